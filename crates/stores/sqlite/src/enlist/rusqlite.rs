//! Enqueue with rusqlite: `Transaction` and `Savepoint`.

use postrider_core::{
    Error, ErrorKind, Result,
    enlist::{Batch, Enlist},
    envelope::Envelope,
};
use rusqlite::{Connection, ToSql, ffi};

use super::{already_rolled_back, headers_or_null, runs};
use crate::{
    dialect::Sqlite,
    error::{code_of, from_rusqlite},
    migrations::table_exists,
};

/// Synchronous, as rusqlite is.
///
/// ```
/// use postrider_core::{admin::Actor, enlist::Enlist, envelope::Envelope, limits::Limits};
/// use postrider_store_sqlite::{Sqlite, migrations};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("shop.db");
/// let outbox = Sqlite::default();
/// migrations::up(&path, &outbox, &Actor::new("set-up"))?;
/// let mut connection = rusqlite::Connection::open(&path)?;
/// let mut transaction = connection.transaction()?;
/// let batch = Limits::default().check(vec![Envelope::new("orders", "order.placed", "{}")]);
/// transaction.append(&outbox, batch)?;
/// transaction.commit()?;
/// # Ok(())
/// # }
/// ```
impl Enlist<Sqlite> for rusqlite::Transaction<'_> {
    type Appended<'a>
        = Result<()>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, store: &'a Sqlite, batch: Result<Batch>) -> Result<()> {
        append(self, store, batch)
    }
}

impl Enlist<Sqlite> for rusqlite::Savepoint<'_> {
    type Appended<'a>
        = Result<()>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, store: &'a Sqlite, batch: Result<Batch>) -> Result<()> {
        append(self, store, batch)
    }
}

pub(crate) fn append(connection: &Connection, store: &Sqlite, batch: Result<Batch>) -> Result<()> {
    let batch = batch?;
    // A full disk or an I/O error makes SQLite roll back on its own. What follows would then commit row by row, outside of
    // any transaction: exactly what must never happen.
    if connection.is_autocommit() {
        return Err(already_rolled_back());
    }
    let now = store.now().as_micros();
    for (sql, run) in runs(store.inserts(), batch.envelopes()) {
        insert(connection, sql, run, now).map_err(|error| explain(connection, store, error))?;
    }
    Ok(())
}

fn insert(connection: &Connection, sql: &str, run: &[Envelope], now: i64) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut index = 0;
    for envelope in run {
        let key = envelope.key.as_ref().map(postrider_core::key::OrderingKey::as_str);
        let values: [&dyn ToSql; 10] = [
            envelope.id.0.as_bytes(),
            &envelope.topic,
            &envelope.name,
            &key,
            &now,
            &envelope.deliver_at.map(postrider_core::time::Timestamp::as_micros),
            &envelope.expires_at.map(postrider_core::time::Timestamp::as_micros),
            &envelope.attempts_max,
            &headers_or_null(&envelope.headers),
            &envelope.payload.as_ref(),
        ];
        for value in values {
            index += 1;
            statement.raw_bind_parameter(index, value)?;
        }
    }
    statement.raw_execute()?;
    Ok(())
}

/// A missing table is only "an error" to SQLite; look whether that is it, and say what to do.
fn explain(connection: &Connection, store: &Sqlite, error: rusqlite::Error) -> Error {
    let file = store.file().or(connection.path()).unwrap_or_default().to_owned();
    let missing = code_of(&error) == Some(ffi::SQLITE_ERROR)
        && table_exists(connection, &store.render("{p}log")).is_ok_and(|exists| !exists);
    if missing {
        return Error::new(ErrorKind::Schema, "enqueue: the log table is missing; run the migrations first")
            .with("table", store.render("{p}log"))
            .with("file", file)
            .caused_by(error);
    }
    from_rusqlite(error, "enqueue").with("file", file)
}
