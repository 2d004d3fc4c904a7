//! The store for MariaDB 10.6 and MySQL 8.0.13 or later, on InnoDB: a log in commit-safe order by an order list.
//!
//! An application enqueues in its own transaction (mysql_async; sqlx with a feature) and needs only [`Mysql`] for it, or
//! plain SQL in any language. A relay opens [`MysqlStore`].
//!
//! ```no_run
//! use mysql_async::TxOpts;
//! use postrider_core::{enlist::Enlist, envelope::Envelope, limits::Limits};
//! use postrider_store_mysql::MysqlStore;
//!
//! # async fn example(connection: &mut mysql_async::Conn) -> Result<(), Box<dyn std::error::Error>> {
//! let store = MysqlStore::open("mysql://shop@localhost/shop").await?;
//!
//! let mut transaction = connection.start_transaction(TxOpts::default()).await?;
//! let batch = Limits::default().check(vec![Envelope::new("orders", "order.placed", "{}")]);
//! transaction.append(&store.dialect(), batch).await?;
//! transaction.commit().await?;
//! store.wake();
//! # Ok(())
//! # }
//! ```
//!
//! **Order.** A number is drawn before its transaction commits, so a cursor over numbers would pass over what commits late.
//! A trigger therefore notes every message in a small table of those that have no place yet; whoever reads gives places to
//! what is committed there, by one row a batch. Message rows are never updated. What was committed before another message
//! was enqueued comes first; transactions that are truly concurrent have no order, so take the lock that orders a key (its
//! row, say) *before* you enqueue.
//!
//! **What it needs.** InnoDB, `innodb_flush_log_at_trx_commit` of 1 (2 loses the last second with the machine, 0 is refused),
//! row-based binary logging if there is any, and the right to create a trigger when migrating. A server shows a commit before it
//! is on the disk; a relay hands out what others have ordered only when it is. With asynchronous replication
//! a fail-over can take back a commit whose message is published already; semi-synchronous replication must wait for the
//! replica before it commits (`AFTER_SYNC`).
//!
//! | Feature | Brings |
//! |---|---|
//! | `sqlx` | enqueue in `sqlx::Transaction<'_, sqlx::MySql>` |
//! | `planted` | mistakes of the sequencer that the tests must find; for tests alone |
//! | `tls` (default) | encrypted connections, by rustls |

pub mod enlist;

mod dialect;

mod cursor;
mod durable;
mod list;
mod log;
mod order;
mod read;
mod records;
mod select;

mod due;
mod parked;
mod purge;
mod settle;

mod clock;
mod identity;
mod lease;
mod route;

mod admin;
pub mod capture;

mod wake;

mod config;
mod db;
mod error;
mod locked;
pub mod migrations;
pub mod planted;
mod pool;
mod server;
mod unnoted;

use std::{fmt, sync::Arc};

use postrider_core::{BoxFuture, Error, ErrorKind, Result};

pub use crate::{
    config::{Builder, connect},
    dialect::{Mysql, PREFIX, PREFIX_BYTES_MAX},
    error::error,
    wake::Waker,
};
use crate::{
    db::{Db, LOOK},
    durable::Durable,
    error::Work,
    order::Ahead,
    planted::Plant,
    pool::Pool,
    server::TriggerWatch,
};

/// A handle on one store. Cheap to clone; its connections close when the last clone is dropped.
#[derive(Clone)]
pub struct MysqlStore(Arc<Inner>);

struct Inner {
    pool: Pool,
    dialect: Mysql,
    plant: Plant,
    waker: Waker,
    /// What those who order in this process know of each other.
    ahead: Ahead,
    /// Up to where a crash takes no place back.
    durable: Durable,
    /// Whether new messages are still noted.
    trigger: TriggerWatch,
}

impl MysqlStore {
    /// Opens a store with the default options. See [`Builder::open`].
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub async fn open(url: &str) -> Result<Self> {
        Self::builder(url).open().await
    }

    /// Options for a store.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    /// What an application needs to enqueue into this store.
    #[must_use]
    pub fn dialect(&self) -> Mysql {
        self.0.dialect.clone()
    }

    /// Wakes the relays of this process; see [`Waker`].
    pub fn wake(&self) {
        self.0.waker.wake();
    }

    /// A handle that does nothing but wake, for an application to keep.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.0.waker.clone()
    }

    /// Statements that are transactions of their own.
    async fn alone(&self) -> Work<Db> {
        Ok(Db::alone(self.0.pool.get().await?, &self.0.dialect))
    }

    /// A transaction at READ COMMITTED, as all our sessions are: what must not change in between is locked.
    async fn begin(&self) -> Work<Db> {
        Db::begin(self.0.pool.get().await?, &self.0.dialect, &["START TRANSACTION"]).await
    }

    /// The same for an operator's change, who does not wait for locks for as long as a relay.
    async fn begin_impatiently(&self) -> Work<Db> {
        Db::begin_impatiently(self.0.pool.get().await?, &self.0.dialect).await
    }

    /// On one consistent state of the database, and without changing it.
    async fn look(&self) -> Work<Db> {
        Db::begin(self.0.pool.get().await?, &self.0.dialect, &LOOK).await
    }

    /// Runs a piece of work to its end, whether or not somebody still waits for it: a dropped future leaves it done or not
    /// done, and no connection in the middle of an answer.
    fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Work<T>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T>> {
        let work = tokio::spawn(work);
        Box::pin(async move {
            match work.await {
                Ok(outcome) => outcome.map_err(|fault| fault.into_error(operation)),
                Err(failed) => Err(Error::new(ErrorKind::Other, "the store's task has failed")
                    .with("operation", operation)
                    .caused_by(failed)),
            }
        })
    }
}

impl fmt::Debug for MysqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlStore").field("dialect", &self.0.dialect).finish_non_exhaustive()
    }
}
