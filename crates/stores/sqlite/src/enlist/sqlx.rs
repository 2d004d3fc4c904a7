//! Enqueue with sqlx: `Transaction<'_, sqlx::Sqlite>`.

use postrider_core::{
    BoxFuture, Error, ErrorKind, Result,
    enlist::{Batch, Enlist},
};
use sqlx::AssertSqlSafe;

use super::{already_rolled_back, headers_or_null, runs};
use crate::{dialect::Sqlite, error::from_code};

/// Asynchronous, as sqlx is. If the future is dropped half-way, the transaction holds all, some or none of the batch: roll
/// it back.
impl Enlist<Sqlite> for sqlx::Transaction<'_, sqlx::Sqlite> {
    type Appended<'a>
        = BoxFuture<'a, Result<()>>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, store: &'a Sqlite, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let batch = batch?;
            must_be_open(self, store).await?;
            let now = store.now().as_micros();
            for (sql, run) in runs(store.inserts(), batch.envelopes()) {
                // Safe: the text is ours, and the prefix in it was checked to be an identifier.
                let mut query = sqlx::query(AssertSqlSafe(std::sync::Arc::clone(sql)));
                for envelope in run {
                    query = query
                        .bind(envelope.id.0.as_bytes().as_slice())
                        .bind(&*envelope.topic)
                        .bind(&*envelope.name)
                        .bind(envelope.key.as_ref().map(postrider_core::key::OrderingKey::as_str))
                        .bind(now)
                        .bind(envelope.deliver_at.map(postrider_core::time::Timestamp::as_micros))
                        .bind(envelope.expires_at.map(postrider_core::time::Timestamp::as_micros))
                        .bind(envelope.attempts_max)
                        .bind(headers_or_null(&envelope.headers))
                        .bind(envelope.payload.as_ref());
                }
                query.execute(&mut **self).await.map_err(|error| translate(store, error))?;
            }
            Ok(())
        })
    }
}

/// SQLite rolls a transaction back by itself on some errors (a full disk, `INSERT OR ROLLBACK`), and an insert after that
/// would commit alone: exactly what must never happen. sqlx does not tell, but SQLite does: inside of a transaction a `BEGIN`
/// is an error and changes nothing, outside of one it is not.
async fn must_be_open(tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>, store: &Sqlite) -> Result<()> {
    if sqlx::query("BEGIN").execute(&mut **tx).await.is_err() {
        return Ok(());
    }
    sqlx::query("ROLLBACK").execute(&mut **tx).await.map_err(|error| translate(store, error))?;
    Err(already_rolled_back())
}

fn translate(store: &Sqlite, error: sqlx::Error) -> Error {
    let code = match &error {
        sqlx::Error::Database(database) => database.code().and_then(|code| code.parse().ok()),
        _ => None,
    };
    let translated = match code {
        Some(code) => from_code(code, "enqueue"),
        None => Error::new(ErrorKind::Unavailable, "enqueue"),
    };
    let located = match store.file() {
        Some(file) => translated.with("file", file),
        None => translated,
    };
    located.caused_by(error)
}
