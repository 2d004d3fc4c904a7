//! One transaction of the store on a pooled connection, with the store's clock and names; or one statement alone.
//!
//! What the relay does all the time is not waited for for ever ([`ANSWER_PATIENCE`], and for reading [`crate::silence`]): a
//! server that hangs, or whatever stands between, may keep a connection alive and never answer. What an operator asks for may
//! take its time.

use std::time::Duration;

use deadpool_postgres::{Object, Transaction, TransactionBuilder};
use postrider_core::{
    enlist::{Batch, EnlistShared},
    time::Timestamp,
};
use tokio_postgres::{IsolationLevel, Row, types::ToSql};

use crate::{
    dialect::Postgres,
    error::{Fault, Work},
    values::Instant,
};

/// How long a call of the relay may take, its waits for locks included. Then its connection is closed, and the server rolls
/// back what it had begun.
pub(crate) const ANSWER_PATIENCE: Duration = Duration::from_secs(20);

/// The same for retention, which may have a large leaf to count.
pub(crate) const PURGE_PATIENCE: Duration = Duration::from_mins(10);

/// How long the server waits for the next statement of a transaction. One who is frozen in the middle of it, or whose machine is
/// gone, would keep its locks, and everybody who needs them waiting, for as long as the connection stands: hours, where nobody
/// says that it does not. One who only looks keeps retention from emptying what it looks at. Shorter than a lease, unless that is
/// very short, so whoever takes the lane after it waits for nobody. For this transaction alone: a pooler may stand between.
const IDLE_PATIENCE: &str = "SET LOCAL idle_in_transaction_session_timeout = '10s'";

/// What the lock on a route is called.
const ROUTE: &str = "route";

/// What a statement binds.
pub(crate) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// An open transaction. Dropped without [`Self::commit`], it is rolled back.
pub(crate) struct Db<'a> {
    transaction: Transaction<'a>,
    pub(crate) dialect: &'a Postgres,
}

impl<'a> Db<'a> {
    /// READ COMMITTED, whatever the database has for a default: what must not change in between is locked, and who has waited
    /// for a lock must see what was committed meanwhile.
    pub(crate) async fn begin(client: &'a mut Object, dialect: &'a Postgres) -> Work<Self> {
        let builder = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
        Self::start(builder, dialect).await
    }

    /// On one consistent state of the database, and without changing it.
    pub(crate) async fn look(client: &'a mut Object, dialect: &'a Postgres) -> Work<Self> {
        let builder = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).read_only(true);
        Self::start(builder, dialect).await
    }

    async fn start(builder: TransactionBuilder<'a>, dialect: &'a Postgres) -> Work<Self> {
        let db = Self { transaction: builder.start().await?, dialect };
        db.transaction.batch_execute(IDLE_PATIENCE).await?;
        Ok(db)
    }

    pub(crate) async fn commit(self) -> Work<()> {
        Ok(self.transaction.commit().await?)
    }

    /// Appends to the log, as an application does.
    pub(crate) async fn append(&self, batch: &Batch) -> Work<()> {
        Ok(self.transaction.append_shared(self.dialect, Ok(batch.clone())).await?)
    }

    pub(crate) async fn query(&self, sql: &str, parameters: Parameters<'_>) -> Work<Vec<Row>> {
        let statement = self.transaction.prepare_cached(&self.dialect.render(sql)).await?;
        Ok(self.transaction.query(&statement, parameters).await?)
    }

    pub(crate) async fn query_opt(&self, sql: &str, parameters: Parameters<'_>) -> Work<Option<Row>> {
        Ok(self.query(sql, parameters).await?.into_iter().next())
    }

    pub(crate) async fn query_one(&self, sql: &str, parameters: Parameters<'_>) -> Work<Row> {
        let statement = self.transaction.prepare_cached(&self.dialect.render(sql)).await?;
        Ok(self.transaction.query_one(&statement, parameters).await?)
    }

    pub(crate) async fn execute(&self, sql: &str, parameters: Parameters<'_>) -> Work<u64> {
        let statement = self.transaction.prepare_cached(&self.dialect.render(sql)).await?;
        Ok(self.transaction.execute(&statement, parameters).await?)
    }

    /// Statements without parameters, perhaps several.
    pub(crate) async fn batch(&self, sql: &str) -> Work<()> {
        Ok(self.transaction.batch_execute(&self.dialect.render(sql)).await?)
    }

    /// As [`Self::batch`], with the names put in already.
    pub(crate) async fn batch_as_it_is(&self, sql: &str) -> Work<()> {
        Ok(self.transaction.batch_execute(sql).await?)
    }

    /// From now on no statement is cancelled by the server for its length, whatever the database or the role has for a default.
    /// For this transaction alone: the connection may lead through a pooler, and be somebody else's afterwards.
    pub(crate) async fn take_time(&self) -> Work<()> {
        Ok(self.transaction.batch_execute("SET LOCAL statement_timeout = 0").await?)
    }

    /// The instant by the database's clock. The one door through which time enters this crate. Ask it behind the locks.
    pub(crate) async fn now(&self) -> Work<Timestamp> {
        Ok(self.query_one("SELECT clock_timestamp()", &[]).await?.try_get::<_, Instant>(0)?.0)
    }

    /// Waits until nobody else has this lock; it ends with the transaction.
    pub(crate) async fn lock(&self, what: &str, name: &str) -> Work<()> {
        let number = self.dialect.lock(what, name);
        self.execute("SELECT pg_advisory_xact_lock($1)", &[&number]).await?;
        Ok(())
    }

    /// Everything that changes a route's lanes or parked rows does so under this lock, so that the head of a line, which
    /// is marked, is found by one transaction at a time.
    pub(crate) async fn lock_route(&self, route: &str) -> Work<()> {
        self.lock(ROUTE, route).await
    }
}

/// An answer, or the fault that none came in time. `None`: there is time enough.
pub(crate) async fn in_time<T>(patience: Option<Duration>, work: impl Future<Output = Work<T>>) -> Work<T> {
    match patience {
        Some(patience) => tokio::time::timeout(patience, work).await.unwrap_or(Err(Fault::Silent)),
        None => work.await,
    }
}

/// One statement that is a transaction of its own: one round trip, and nothing to roll back.
pub(crate) struct Alone<'a> {
    client: &'a Object,
    dialect: &'a Postgres,
}

impl<'a> Alone<'a> {
    pub(crate) fn new(client: &'a Object, dialect: &'a Postgres) -> Self {
        Self { client, dialect }
    }

    pub(crate) async fn query(&self, sql: &str, parameters: Parameters<'_>) -> Work<Vec<Row>> {
        let statement = self.client.prepare_cached(&self.dialect.render(sql)).await?;
        Ok(self.client.query(&statement, parameters).await?)
    }

    pub(crate) async fn query_opt(&self, sql: &str, parameters: Parameters<'_>) -> Work<Option<Row>> {
        Ok(self.query(sql, parameters).await?.into_iter().next())
    }

    /// The number of the lock that [`Db::lock_route`] takes.
    pub(crate) fn route_lock(&self, route: &str) -> i64 {
        self.dialect.lock(ROUTE, route)
    }
}

/// Where a statement that serves both may run: alone, or as a part of a transaction.
pub(crate) trait Execute: Sync {
    /// Runs a statement and answers how many rows it wrote.
    fn execute(&self, sql: &str, parameters: Parameters<'_>) -> impl Future<Output = Work<u64>> + Send;
}

impl Execute for Db<'_> {
    async fn execute(&self, sql: &str, parameters: Parameters<'_>) -> Work<u64> {
        Db::execute(self, sql, parameters).await
    }
}

impl Execute for Alone<'_> {
    async fn execute(&self, sql: &str, parameters: Parameters<'_>) -> Work<u64> {
        let statement = self.client.prepare_cached(&self.dialect.render(sql)).await?;
        Ok(self.client.execute(&statement, parameters).await?)
    }
}

/// A number that is never negative, as SQL keeps it.
pub(crate) fn unsigned(value: i64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
