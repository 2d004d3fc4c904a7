//! Enqueue with mysql_async: `Transaction<'_>`.

use mysql_async::{Params, Transaction, Value, consts::StatusFlags, prelude::Queryable};
use postrider_core::{
    BoxFuture, Result,
    enlist::{Batch, Enlist},
    envelope::Envelope,
    key::OrderingKey,
    time::Timestamp,
};

use super::{IS_OPEN, already_ended, headers_or_null, runs};
use crate::{dialect::Mysql, error::from_mysql};

/// Asynchronous, as mysql_async is. If the future is dropped half-way, the transaction holds all, some or none of the batch:
/// roll it back.
impl Enlist<Mysql> for Transaction<'_> {
    type Appended<'a>
        = BoxFuture<'a, Result<()>>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, store: &'a Mysql, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let batch = batch?;
            if batch.envelopes().is_empty() {
                return Ok(());
            }
            must_be_open(self).await?;
            insert(self, store, batch.envelopes()).await.map_err(|error| from_mysql(error, "enqueue"))
        })
    }
}

/// Into the log, in order.
pub(crate) async fn insert(
    client: &mut impl Queryable,
    store: &Mysql,
    envelopes: &[Envelope],
) -> mysql_async::Result<()> {
    for (sql, run) in runs(store.inserts(), envelopes) {
        let values: Vec<Value> = run.iter().flat_map(values).collect();
        client.exec_drop(&**sql, Params::Positional(values)).await?;
    }
    Ok(())
}

/// The server says with every answer whether a transaction is open. After an error it says nothing, and is asked.
async fn must_be_open(transaction: &mut Transaction<'_>) -> Result<()> {
    let open = |ok: &mysql_async::OkPacket<'_>| ok.status_flags().contains(StatusFlags::SERVER_STATUS_IN_TRANS);
    if transaction.last_ok_packet().is_some_and(open) {
        return Ok(());
    }
    for sql in IS_OPEN {
        transaction.query_drop(sql).await.map_err(|error| already_ended().caused_by(error))?;
    }
    Ok(())
}

fn values(envelope: &Envelope) -> [Value; 9] {
    [
        envelope.id.0.as_bytes().as_slice().into(),
        (&*envelope.topic).into(),
        (&*envelope.name).into(),
        envelope.key.as_ref().map(OrderingKey::as_str).into(),
        envelope.deliver_at.map(Timestamp::as_micros).into(),
        envelope.expires_at.map(Timestamp::as_micros).into(),
        envelope.attempts_max.into(),
        headers_or_null(&envelope.headers).into(),
        envelope.payload.as_ref().into(),
    ]
}
