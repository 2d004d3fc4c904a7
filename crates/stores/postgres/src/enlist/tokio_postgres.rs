//! Enqueue with tokio-postgres: `Transaction`, also the one of deadpool.

use postrider_core::{
    BoxFuture, Result,
    enlist::{Batch, Enlist},
    key::OrderingKey,
};
use tokio_postgres::{
    Transaction,
    types::{ToSql, Type},
};

use super::{column, headers_or_null};
use crate::{dialect::Postgres, error::from_postgres, values::Instant};

/// Asynchronous, as tokio-postgres is: one statement, one round trip, nothing prepared, so a transaction pooler may stand
/// between. If the future is dropped half-way, the transaction holds all or none of the batch: roll it back.
impl Enlist<Postgres> for Transaction<'_> {
    type Appended<'a>
        = BoxFuture<'a, Result<()>>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, store: &'a Postgres, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        Box::pin(append(self, store, batch))
    }
}

impl Enlist<Postgres> for deadpool_postgres::Transaction<'_> {
    type Appended<'a>
        = BoxFuture<'a, Result<()>>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, store: &'a Postgres, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        Box::pin(append(self, store, batch))
    }
}

async fn append(transaction: &Transaction<'_>, store: &Postgres, batch: Result<Batch>) -> Result<()> {
    let batch = batch?;
    let batch = batch.envelopes();
    if batch.is_empty() {
        return Ok(());
    }
    let ids = column(batch, |envelope| envelope.id.0);
    let topics = column(batch, |envelope| &*envelope.topic);
    let names = column(batch, |envelope| &*envelope.name);
    let keys = column(batch, |envelope| envelope.key.as_ref().map(OrderingKey::as_str));
    let deliver_at = column(batch, |envelope| envelope.deliver_at.map(Instant));
    let expires_at = column(batch, |envelope| envelope.expires_at.map(Instant));
    let attempts_max = column(batch, |envelope| envelope.attempts_max.map(i64::from));
    let headers = column(batch, |envelope| headers_or_null(&envelope.headers));
    let payloads = column(batch, |envelope| envelope.payload.as_ref());
    let parameters: [(&(dyn ToSql + Sync), Type); 9] = [
        (&ids, Type::UUID_ARRAY),
        (&topics, Type::TEXT_ARRAY),
        (&names, Type::TEXT_ARRAY),
        (&keys, Type::TEXT_ARRAY),
        (&deliver_at, Type::TIMESTAMPTZ_ARRAY),
        (&expires_at, Type::TIMESTAMPTZ_ARRAY),
        (&attempts_max, Type::INT8_ARRAY),
        (&headers, Type::BYTEA_ARRAY),
        (&payloads, Type::BYTEA_ARRAY),
    ];
    transaction.execute_typed(store.insert(), &parameters).await.map_err(|e| from_postgres(e, "enqueue"))?;
    Ok(())
}
