//! What the server is and how it is set: what would break a promise is refused when the store is opened, with one sentence
//! that says what to change.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use postrider_core::{Error, ErrorKind, Result};

use crate::{
    db::{Db, get, values},
    error::Work,
};

const SETTINGS: &str = "
SELECT VERSION(), @@innodb_flush_log_at_trx_commit, @@log_bin, @@binlog_format, @@read_only, @@sync_binlog";

const ENGINES: &str = "
SELECT table_name, engine
  FROM information_schema.tables
 WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND LEFT(table_name, ?) = ? AND engine <> 'InnoDB'
 ORDER BY table_name";

const TRIGGER: &str = "
SELECT 1
  FROM information_schema.triggers
 WHERE trigger_schema = DATABASE() AND trigger_name = ? AND event_object_table = ? AND action_timing = 'AFTER'";

/// How the server is set, as far as promises depend on it.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    version: String,
    pub(crate) flush_at_commit: i64,
    pub(crate) binary_log: bool,
    binary_log_format: String,
    pub(crate) read_only: bool,
    pub(crate) sync_binary_log: i64,
}

impl Settings {
    pub(crate) async fn of(db: &mut Db) -> Work<Self> {
        let row = db.query_one(SETTINGS, Vec::new()).await?;
        Ok(Self {
            version: get(&row, 0)?,
            flush_at_commit: get(&row, 1)?,
            binary_log: get(&row, 2)?,
            binary_log_format: get(&row, 3)?,
            // MariaDB also knows other kinds of read-only than yes and no.
            read_only: get::<i64>(&row, 4).map_or(true, |read_only| read_only != 0),
            sync_binary_log: get(&row, 5)?,
        })
    }

    /// Refuses what would lose messages, or could not work.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_version()?;
        if self.flush_at_commit == 0 {
            return self.unsupported(
                "with innodb_flush_log_at_trx_commit = 0 a crash of the server takes back commits whose messages are \
                 published already; set it to 1",
            );
        }
        if self.binary_log && self.binary_log_format.eq_ignore_ascii_case("statement") {
            return self.unsupported(
                "with binlog_format = STATEMENT a replica would number messages differently; set it to ROW or MIXED",
            );
        }
        Ok(())
    }

    /// Refuses a server on which the tables cannot be made: it would answer that there is a mistake in our SQL.
    fn check_version(&self) -> Result<()> {
        let version = numbers(&self.version);
        let is_mariadb = self.version.to_ascii_lowercase().contains("mariadb");
        if is_mariadb && version < (10, 6, 0) {
            return self.unsupported("this MariaDB is too old for an outbox that keeps its order; use 10.6 or later");
        }
        // The tables have defaults that are expressions.
        if !is_mariadb && version < (8, 0, 13) {
            return self.unsupported("this MySQL is too old for the tables of an outbox; use 8.0.13 or later");
        }
        Ok(())
    }

    fn unsupported(&self, what: &'static str) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, what).with("version", &self.version))
    }
}

fn numbers(version: &str) -> (u32, u32, u32) {
    let mut numbers = version.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

/// Refuses tables that cannot roll back, and a log whose new rows nobody notes.
pub(crate) async fn check_tables(db: &mut Db) -> Work<()> {
    let prefix = db.dialect.prefix().to_owned();
    let length = i64::try_from(prefix.len()).unwrap_or(i64::MAX);
    if let Some(row) = db.query_opt(ENGINES, values![length, &*prefix]).await? {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "a table of the store is not on InnoDB, so a rolled-back transaction would leave its messages behind; convert \
             it with ALTER TABLE … ENGINE = InnoDB",
        )
        .with("table", get::<String>(&row, 0)?)
        .with("engine", get::<String>(&row, 1)?)
        .into());
    }
    check_trigger(db).await
}

async fn check_trigger(db: &mut Db) -> Work<()> {
    if has_trigger(db).await? {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Schema,
        "the trigger that notes new messages is missing, so none of them would ever be read; `postrider migrate up` \
         creates it again, or grant TRIGGER so that it can be seen",
    )
    .with("trigger", db.dialect.render("{p}log_pending"))
    .into())
}

/// Whether new rows of the log are noted.
pub(crate) async fn has_trigger(db: &mut Db) -> Work<bool> {
    let (trigger, log) = (db.dialect.render("{p}log_pending"), db.dialect.render("{p}log"));
    Ok(db.query_opt(TRIGGER, values![trigger, log]).await?.is_some())
}

/// Looks every now and then whether the trigger is still there: nothing else shows that it was dropped, for what is not noted is
/// not missed.
#[derive(Debug)]
pub(crate) struct TriggerWatch {
    every: Duration,
    /// When somebody last began to look, unless it was gone then.
    looked_at: Mutex<Option<Instant>>,
}

impl TriggerWatch {
    /// The store is opened, so it is there.
    pub(crate) fn new(every: Duration) -> Self {
        Self { every, looked_at: Mutex::new(Some(Instant::now())) }
    }

    /// Looks if it is time to; one at a time. While it is gone, and while that cannot be seen, everybody looks.
    pub(crate) async fn check(&self, db: &mut Db) -> Work<()> {
        {
            let mut looked_at = self.lock();
            if looked_at.is_some_and(|looked_at| looked_at.elapsed() < self.every) {
                return Ok(());
            }
            *looked_at = Some(Instant::now());
        }
        let checked = check_trigger(db).await;
        if checked.is_err() {
            *self.lock() = None;
        }
        checked
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.looked_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            version: "10.11.6-MariaDB-0+deb12u1".to_owned(),
            flush_at_commit: 1,
            binary_log: true,
            binary_log_format: "MIXED".to_owned(),
            read_only: false,
            sync_binary_log: 1,
        }
    }

    #[test]
    fn only_servers_that_keep_the_promises_are_taken() {
        let version = |version: &str| Settings { version: version.to_owned(), ..settings() };
        for good in ["10.6.0-MariaDB", "11.4.2-MariaDB-log", "8.0.13", "8.0.36-log", "8.4.0", "9.1.0-commercial"] {
            version(good).check().unwrap();
        }
        for bad in ["10.5.23-MariaDB", "5.7.44-log", "8.0.12", "8.0.4-rc-log", "gibberish"] {
            assert_eq!(version(bad).check().unwrap_err().kind(), ErrorKind::Unsupported, "{bad}");
        }
        let old = version("8.0.12").check().unwrap_err().to_string();
        assert!(old.contains("8.0.13 or later"), "{old}");
        let lazy = Settings { flush_at_commit: 0, ..settings() }.check().unwrap_err().to_string();
        assert!(lazy.contains("innodb_flush_log_at_trx_commit"), "{lazy}");
        let statement = Settings { binary_log_format: "STATEMENT".to_owned(), ..settings() };
        assert!(statement.check().is_err());
        Settings { binary_log: false, ..statement }.check().unwrap();
    }
}
