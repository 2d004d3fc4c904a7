//! Enqueue with tokio-postgres: `Transaction`, also the one of deadpool.

use postrider_core::{
    BoxFuture, Result,
    enlist::{Batch, Enlist, EnlistShared},
};
use tokio_postgres::{
    Statement, Transaction,
    types::{ToSql, Type},
};

use super::columns::{Many, One, Shape};
use crate::{dialect::Postgres, error::from_postgres};

/// Asynchronous, as tokio-postgres is: one statement, one round trip, nothing prepared, so a transaction pooler may stand
/// between. If the future is dropped half-way, the transaction holds all or none of the batch: roll it back.
impl Enlist<Postgres> for Transaction<'_> {
    type Appended<'a>
        = BoxFuture<'a, Result<()>>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, store: &'a Postgres, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        self.append_shared(store, batch)
    }
}

impl EnlistShared<Postgres> for Transaction<'_> {
    fn append_shared<'a>(&'a self, store: &'a Postgres, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { append(self, store, Texts, &batch?).await })
    }
}

/// As above, with statements prepared once per connection, in the pool's cache. Where a transaction pooler stands between
/// that knows nothing of prepared statements, enqueue in `&mut *transaction`: that is the plain one.
impl Enlist<Postgres> for deadpool_postgres::Transaction<'_> {
    type Appended<'a>
        = BoxFuture<'a, Result<()>>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, store: &'a Postgres, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        self.append_shared(store, batch)
    }
}

/// The first enqueue on a connection prepares, which is a round trip of its own.
impl EnlistShared<Postgres> for deadpool_postgres::Transaction<'_> {
    fn append_shared<'a>(&'a self, store: &'a Postgres, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let batch = batch?;
            let Some(shape) = Shape::of(batch.envelopes()) else { return Ok(()) };
            let statement =
                self.prepare_cached(store.insert_of(shape)).await.map_err(|e| from_postgres(e, "enqueue"))?;
            append(self, store, &statement, &batch).await
        })
    }
}

/// How the statement is given.
pub(super) trait Source: Send {
    /// The statement that is prepared for a batch of this length; `None` if it is to be parsed.
    fn statement(&self, shape: Shape) -> Option<&Statement>;
}

/// Parsed each time.
pub(super) struct Texts;

impl Source for Texts {
    fn statement(&self, _: Shape) -> Option<&Statement> {
        None
    }
}

impl Source for &Statement {
    fn statement(&self, _: Shape) -> Option<&Statement> {
        Some(self)
    }
}

/// One statement, sent when the future is first polled.
pub(super) async fn append(
    transaction: &Transaction<'_>,
    store: &Postgres,
    source: impl Source,
    batch: &Batch,
) -> Result<()> {
    let Some(shape) = Shape::of(batch.envelopes()) else { return Ok(()) };
    let insert = async |bound: &[(&(dyn ToSql + Sync), Type)]| match source.statement(shape) {
        Some(statement) => {
            let parameters: Vec<_> = bound.iter().map(|(value, _)| *value).collect();
            transaction.execute(statement, &parameters).await
        }
        None => transaction.execute_typed(store.insert_of(shape), bound).await,
    };
    let sent = match (shape, batch.envelopes()) {
        (Shape::Plain, [envelope]) => insert(&One::new(envelope).bound_plain()).await,
        (Shape::One, [envelope]) => insert(&One::new(envelope).bound()).await,
        (_, envelopes) => insert(&Many::new(envelopes).bound()).await,
    };
    sent.map_err(|e| from_postgres(e, "enqueue"))?;
    Ok(())
}
