//! Options of the store, and how its connections are opened.
//!
//! Every connection works in WAL mode with `synchronous = FULL`: a commit that was answered survives a power cut, and a
//! reader never waits for the writer. A SQLite library with the WAL-reset bug is refused.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use postrider_core::{Error, ErrorKind, Result, time::Timestamp};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::{
    SqliteStore,
    dialect::{Clock, PREFIX, Sqlite},
    error::{Fault, Work},
    identity::Identity,
    migrations,
    wake::Waker,
    worker::{Db, Worker},
};

/// The oldest SQLite that is accepted: 3.51.3 fixes a race that could corrupt a WAL when it is reset.
const LIBRARY_VERSION_MIN: i32 = 3_051_003;

/// How long a connection waits for the write lock unless told otherwise.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How large the WAL file may stay after a checkpoint.
const WAL_BYTES_KEPT: i64 = 64 << 20;

/// Options of a store. Made by [`SqliteStore::builder`].
#[derive(Clone)]
#[must_use]
pub struct Builder {
    path: PathBuf,
    prefix: String,
    migrate: bool,
    busy_timeout: Duration,
    file_bytes_max: Option<u64>,
    clock: Clock,
}

impl Builder {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            prefix: PREFIX.to_owned(),
            migrate: true,
            busy_timeout: BUSY_TIMEOUT,
            file_bytes_max: None,
            clock: Arc::new(Timestamp::now),
        }
    }

    /// What the names of all tables begin with. Default `postrider_`. Two prefixes are two stores in one file.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Whether to bring the schema up to date when opening. Default yes. Without it, opening fails with
    /// [`ErrorKind::Schema`] while the schema is missing or older; see [`migrations`].
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// How long to wait for another writer before answering [`ErrorKind::Unavailable`]. Default 5 s, at most a day. Too
    /// low, and a long transaction of the application makes the relay repeat its work; too high, and it learns late.
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout.min(Duration::from_secs(86_400));
        self
    }

    /// How large the file may become through this store's own writes. Default `None`: as large as the disk. When it is
    /// reached, writes fail with [`ErrorKind::Full`] and succeed again once there is room; nothing is lost.
    pub fn file_bytes_max(mut self, bytes: Option<u64>) -> Self {
        self.file_bytes_max = bytes;
        self
    }

    /// Where the store's time comes from. Default: the clock of this machine. For tests; several processes on one file
    /// must have the same clock.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Opens the store, on threads of its own. Dropping the future leaves the schema migrated or not, never half.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] if the schema is newer or was altered (or, without migration, missing or older),
    /// [`ErrorKind::Corrupt`] if the file is no database, [`ErrorKind::Denied`] if it is read-only,
    /// [`ErrorKind::Unavailable`] if it is locked for too long, [`ErrorKind::Invalid`] if an option is wrong.
    pub async fn open(self) -> Result<SqliteStore> {
        let (answer, answered) = oneshot::channel();
        thread::Builder::new()
            .name("postrider-sqlite-open".to_owned())
            .spawn(move || {
                let _ = answer.send(self.open_blocking());
            })
            .map_err(|e| Error::new(ErrorKind::Unavailable, "start a thread of the store").caused_by(e))?;
        answered.await.map_err(|_| Error::new(ErrorKind::Other, "the thread that opens the store has failed"))?
    }

    fn open_blocking(self) -> Result<SqliteStore> {
        let dialect = Sqlite::new(&self.prefix, Arc::clone(&self.clock))?.in_file(&self.path);
        let file: Arc<str> = self.path.display().to_string().into();
        let opened = |work: Work<Db>| work.map_err(|fault| fault.into_error("open the database", &file));
        let waker = Waker::new();
        let writer = opened(self.writer(&dialect))?;
        let keeper = opened(self.limited(&dialect))?;
        let reader = opened(self.another(&dialect))?;
        let inspector = opened(self.another(&dialect))?;
        Ok(SqliteStore {
            writer: Worker::start("writer", &file, writer, Some(waker.clone()))?,
            keeper: Worker::start("keeper", &file, keeper, None)?,
            reader: Worker::start("reader", &file, reader, None)?,
            inspector: Worker::start("inspector", &file, inspector, None)?,
            dialect,
            waker,
            file,
            identity: Identity::of(&self.path),
        })
    }

    fn writer(&self, dialect: &Sqlite) -> Work<Db> {
        let connection = connect(&self.path, self.busy_timeout)?;
        if connection.is_readonly("main")? {
            return Err(read_only().into());
        }
        if self.migrate {
            migrations::apply(&connection, dialect, None)?;
        } else {
            migrations::check(&connection, dialect)?;
        }
        self.patient(connection, dialect)
    }

    /// A connection that writes, once the writer's has found everything in order.
    fn limited(&self, dialect: &Sqlite) -> Work<Db> {
        self.patient(connect(&self.path, self.busy_timeout)?, dialect)
    }

    fn patient(&self, connection: Connection, dialect: &Sqlite) -> Work<Db> {
        if let Some(bytes) = self.file_bytes_max {
            limit_file(&connection, bytes)?;
        }
        Db::new(connection, dialect.clone()).waiting_itself(self.busy_timeout)
    }

    fn another(&self, dialect: &Sqlite) -> Work<Db> {
        Ok(Db::new(connect(&self.path, self.busy_timeout)?, dialect.clone()))
    }
}

/// Opens a connection in WAL mode.
pub(crate) fn connect(path: &Path, busy_timeout: Duration) -> Work<Connection> {
    check_library(rusqlite::version_number(), rusqlite::version())?;
    if matches!(path.to_str(), Some("" | ":memory:")) {
        return Err(Error::invalid("a database in memory cannot be shared; use the memory store, or a file").into());
    }
    let connection = Connection::open(path)?;
    connection.busy_timeout(busy_timeout)?;
    if connection.is_readonly("main")? {
        return Err(read_only().into());
    }
    enter_wal(&connection, busy_timeout)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "journal_size_limit", WAL_BYTES_KEPT)?;
    Ok(connection)
}

/// The mode is kept in the file, so this changes something only once. Two connections that do it at the same moment can
/// meet a lock that SQLite does not wait for; ends when the mode is set or the time to wait is over.
fn enter_wal(connection: &Connection, busy_timeout: Duration) -> Work<()> {
    let deadline = Instant::now() + busy_timeout;
    loop {
        let mode = connection
            .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0))
            .map_err(Fault::from);
        match mode {
            Ok(mode) if mode.eq_ignore_ascii_case("wal") => return Ok(()),
            Ok(mode) => {
                return Err(Error::new(ErrorKind::Unsupported, "the file's place does not allow WAL mode")
                    .with("journal_mode", mode)
                    .into());
            }
            Err(fault) if fault.is_busy() && Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
            Err(fault) => return Err(fault),
        }
    }
}

fn limit_file(connection: &Connection, bytes: u64) -> Work<()> {
    let page: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    let pages = i64::try_from(bytes).unwrap_or(i64::MAX) / page.max(1);
    connection.pragma_update_and_check(None, "max_page_count", pages.clamp(1, 4_294_967_294), |_| Ok(()))?;
    Ok(())
}

fn check_library(number: i32, version: &str) -> Result<()> {
    if number < LIBRARY_VERSION_MIN {
        return Err(Error::new(ErrorKind::Unsupported, "this SQLite library can corrupt a WAL; use 3.51.3 or later")
            .with("version", version));
    }
    Ok(())
}

fn read_only() -> Error {
    Error::new(ErrorKind::Denied, "the database is read-only: check the permissions of the file and its folder")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_with_the_wal_reset_bug_is_refused() {
        let refused = check_library(3_051_002, "3.51.2").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("3.51.2"), "{refused}");
        check_library(rusqlite::version_number(), rusqlite::version()).unwrap();
    }

    #[test]
    fn connections_are_durable() {
        let folder = tempfile::tempdir().unwrap();
        let connection = connect(&folder.path().join("a.db"), BUSY_TIMEOUT).unwrap();
        let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
        let synchronous: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0)).unwrap();
        assert_eq!((mode.as_str(), synchronous), ("wal", 2));
    }

    #[test]
    fn a_database_in_memory_is_refused() {
        let fault = connect(Path::new(":memory:"), BUSY_TIMEOUT).unwrap_err();
        assert_eq!(fault.into_error("open", ":memory:").kind(), ErrorKind::Invalid);
    }
}
