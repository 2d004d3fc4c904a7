//! Enqueue with sqlx: `Transaction<'_, sqlx::MySql>`.

use std::sync::Arc;

use postrider_core::{
    BoxFuture, Error, ErrorKind, Result,
    enlist::{Batch, Enlist},
    key::OrderingKey,
    time::Timestamp,
};
use sqlx::{AssertSqlSafe, Executor};

use super::{IS_OPEN, already_ended, headers_or_null, runs};
use crate::{dialect::Mysql, error::from_number};

/// Asynchronous, as sqlx is. If the future is dropped half-way, the transaction holds all, some or none of the batch: roll
/// it back.
impl Enlist<Mysql> for sqlx::Transaction<'_, sqlx::MySql> {
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
            for (sql, run) in runs(store.inserts(), batch.envelopes()) {
                // Safe: the text is ours, and the prefix in it was checked to be an identifier.
                let mut query = sqlx::query(AssertSqlSafe(Arc::clone(sql)));
                for envelope in run {
                    query = query
                        .bind(envelope.id.0.as_bytes().as_slice())
                        .bind(&*envelope.topic)
                        .bind(&*envelope.name)
                        .bind(envelope.key.as_ref().map(OrderingKey::as_str))
                        .bind(envelope.deliver_at.map(Timestamp::as_micros))
                        .bind(envelope.expires_at.map(Timestamp::as_micros))
                        .bind(envelope.attempts_max)
                        .bind(headers_or_null(&envelope.headers))
                        .bind(envelope.payload.as_ref());
                }
                query.execute(&mut **self).await.map_err(translate)?;
            }
            Ok(())
        })
    }
}

/// sqlx does not tell, but the server does.
async fn must_be_open(transaction: &mut sqlx::Transaction<'_, sqlx::MySql>) -> Result<()> {
    for sql in IS_OPEN {
        (**transaction).execute(sqlx::raw_sql(sql)).await.map_err(|error| already_ended().caused_by(error))?;
    }
    Ok(())
}

fn translate(error: sqlx::Error) -> Error {
    let number = match &error {
        sqlx::Error::Database(database) => {
            database.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>().map(sqlx::mysql::MySqlDatabaseError::number)
        }
        _ => None,
    };
    match number {
        Some(number) => from_number(number, "enqueue").caused_by(error),
        None => Error::new(ErrorKind::Unavailable, "enqueue").caused_by(error),
    }
}
