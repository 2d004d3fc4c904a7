//! Statements of an enqueue, prepared on one connection of tokio-postgres.

use postrider_core::{
    BoxFuture, Result,
    enlist::{Batch, Enlist, EnlistShared},
};
use tokio_postgres::{Client, Statement, Transaction};

use super::{
    columns::Shape,
    tokio_postgres::{Source, append},
};
use crate::{dialect::Postgres, error::from_postgres};

/// The statements of an enqueue, prepared on one connection, so that the server parses and plans them once. Keep it beside
/// the connection.
///
/// On another connection they do not exist, and the server says so. Not for a transaction pooler that knows nothing of
/// prepared statements.
///
/// ```no_run
/// use postrider_core::{enlist::Enlist, envelope::Envelope, limits::Limits};
/// use postrider_store_postgres::{Postgres, enlist::Prepared};
///
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let store = Postgres::default();
/// let prepared = Prepared::new(client, &store).await?;
///
/// let transaction = client.transaction().await?;
/// let batch = Limits::default().check(vec![Envelope::new("orders", "order.placed", "{}")]);
/// prepared.on(&transaction).append(&store, batch).await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Prepared {
    plain: Statement,
    one: Statement,
    many: Statement,
}

impl Prepared {
    /// Prepares them: three round trips.
    ///
    /// # Errors
    /// If the tables are not there, or may not be written to.
    pub async fn new(client: &Client, store: &Postgres) -> Result<Self> {
        let prepare = async |sql: &str| client.prepare(sql).await.map_err(|e| from_postgres(e, "prepare the enqueue"));
        Ok(Self {
            plain: prepare(store.insert_of(Shape::Plain)).await?,
            one: prepare(store.insert_of(Shape::One)).await?,
            many: prepare(store.insert_of(Shape::Many)).await?,
        })
    }

    /// A transaction of the same connection, to enqueue in.
    #[must_use]
    pub fn on<'a>(&'a self, transaction: &'a Transaction<'a>) -> On<'a> {
        On { prepared: self, transaction }
    }
}

impl Source for &Prepared {
    fn statement(&self, shape: Shape) -> Option<&Statement> {
        Some(match shape {
            Shape::Plain => &self.plain,
            Shape::One => &self.one,
            Shape::Many => &self.many,
        })
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").finish_non_exhaustive()
    }
}

/// A transaction together with the statements that are prepared on its connection. Made by [`Prepared::on`].
pub struct On<'a> {
    prepared: &'a Prepared,
    transaction: &'a Transaction<'a>,
}

/// If the future is dropped half-way, the transaction holds all or none of the batch: roll it back.
impl Enlist<Postgres> for On<'_> {
    type Appended<'a>
        = BoxFuture<'a, Result<()>>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, store: &'a Postgres, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        self.append_shared(store, batch)
    }
}

impl EnlistShared<Postgres> for On<'_> {
    fn append_shared<'a>(&'a self, store: &'a Postgres, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { append(self.transaction, store, self.prepared, &batch?).await })
    }
}

impl std::fmt::Debug for On<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("On").finish_non_exhaustive()
    }
}
