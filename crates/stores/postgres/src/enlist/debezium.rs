//! The transactions that join a [`DebeziumOutbox`]: the same as those that join our own log, and as there one statement
//! for a batch. If a future is dropped half-way, the transaction holds all or none of the batch: roll it back.

use postrider_core::{
    BoxFuture, Result,
    enlist::{Batch, Enlist},
};
use tokio_postgres::{
    Transaction,
    types::{ToSql, Type},
};

use super::{Array, Layout};
use crate::{debezium::DebeziumOutbox, error::from_postgres, values::Instant};

impl Enlist<DebeziumOutbox> for Transaction<'_> {
    type Appended<'a>
        = BoxFuture<'a, Result<()>>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, outbox: &'a DebeziumOutbox, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        Box::pin(append(self, outbox, batch))
    }
}

impl Enlist<DebeziumOutbox> for deadpool_postgres::Transaction<'_> {
    type Appended<'a>
        = BoxFuture<'a, Result<()>>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, outbox: &'a DebeziumOutbox, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        Box::pin(append(self, outbox, batch))
    }
}

#[cfg(feature = "sqlx")]
impl Enlist<DebeziumOutbox> for sqlx::Transaction<'_, sqlx::Postgres> {
    type Appended<'a>
        = BoxFuture<'a, Result<()>>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, outbox: &'a DebeziumOutbox, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        Box::pin(super::sqlx::append(self, outbox, batch))
    }
}

#[cfg(feature = "sea-orm")]
impl Enlist<DebeziumOutbox> for sea_orm::DatabaseTransaction {
    type Appended<'a>
        = BoxFuture<'a, Result<()>>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, outbox: &'a DebeziumOutbox, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        Box::pin(super::sea_orm::append(self, outbox, batch))
    }
}

#[cfg(feature = "diesel-async")]
impl<C: diesel_async::AsyncConnection<Backend = diesel::pg::Pg>> Enlist<DebeziumOutbox>
    for super::DieselAsyncTransaction<'_, C>
{
    type Appended<'a>
        = BoxFuture<'a, Result<()>>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, outbox: &'a DebeziumOutbox, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        Box::pin(super::diesel_async::append(self.connection(), outbox, batch))
    }
}

#[cfg(feature = "diesel")]
impl<C: diesel::Connection<Backend = diesel::pg::Pg>> Enlist<DebeziumOutbox> for super::DieselTransaction<'_, C> {
    type Appended<'a>
        = Result<()>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, outbox: &'a DebeziumOutbox, batch: Result<Batch>) -> Result<()> {
        super::diesel::append(self.connection(), outbox, batch)
    }
}

/// For tokio-postgres, without preparing anything, so a transaction pooler may stand between.
async fn append(transaction: &Transaction<'_>, layout: &impl Layout, batch: Result<Batch>) -> Result<()> {
    let batch = batch?;
    if batch.envelopes().is_empty() {
        return Ok(());
    }
    let arrays: Vec<_> = layout.arrays(batch.envelopes())?.into_iter().map(parameter).collect();
    let parameters: Vec<(&(dyn ToSql + Sync), Type)> =
        arrays.iter().map(|(array, ty)| (&**array as &(dyn ToSql + Sync), ty.clone())).collect();
    transaction.execute_typed(layout.insert(), &parameters).await.map_err(|e| from_postgres(e, "enqueue"))?;
    Ok(())
}

fn parameter<'e>(array: Array<'e>) -> (Box<dyn ToSql + Sync + Send + 'e>, Type) {
    match array {
        Array::Ids(ids) => (Box::new(ids), Type::UUID_ARRAY),
        Array::Texts(texts) => (Box::new(texts), Type::TEXT_ARRAY),
        Array::OwnedTexts(texts) => (Box::new(texts), Type::TEXT_ARRAY),
        Array::Instants(instants) => {
            let instants: Vec<_> = instants.into_iter().map(|at| at.map(Instant)).collect();
            (Box::new(instants), Type::TIMESTAMPTZ_ARRAY)
        }
        Array::Numbers(numbers) => (Box::new(numbers), Type::INT8_ARRAY),
        Array::Bytes(bytes) => (Box::new(bytes), Type::BYTEA_ARRAY),
    }
}
