//! The schema, version by version.
//!
//! A migration is a numbered SQL text that never changes once it is released; its checksum is kept beside its number, so
//! that a schema that somebody altered is noticed. All pending ones are applied in one transaction that holds the write
//! lock: two openers that race apply each of them once, and a crash leaves all of them or none. A database that is newer
//! than this program is refused rather than guessed at.

use std::path::Path;

use postrider_core::{
    Result,
    admin::Actor,
    migration::{self, Applied},
    time::Timestamp,
};
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, params};

use crate::{
    config,
    dialect::Sqlite,
    error::{Fault, Work},
};

pub use postrider_core::migration::Standing;

/// Every migration, oldest first. Append only.
const MIGRATIONS: [Migration; 5] = [
    Migration { version: 1, name: "begin", template: include_str!("0001_begin.sql") },
    Migration { version: 2, name: "standstills", template: include_str!("0002_standstills.sql") },
    Migration { version: 3, name: "parked_records", template: include_str!("0003_parked_records.sql") },
    Migration { version: 4, name: "leaving", template: include_str!("0004_leaving.sql") },
    Migration { version: 5, name: "asked", template: include_str!("0005_asked.sql") },
];

/// The version that this program works with.
pub const LATEST: u32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

const LEDGER: &str = "\
CREATE TABLE IF NOT EXISTS {p}migration (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    checksum   TEXT    NOT NULL,
    applied_at INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)
) STRICT;
";

const AUDIT: &str = "
INSERT INTO {p}audit (at, actor, reason, action, subject)
VALUES (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000, ?1, ?2, 'migrate', ?3)";

#[derive(Clone, Copy)]
struct Migration {
    version: u32,
    name: &'static str,
    template: &'static str,
}

impl Migration {
    /// Of the text before the prefix is put in, so that it is the same for every prefix.
    fn checksum(&self) -> String {
        format!("{:016x}", xxhash_rust::xxh3::xxh3_64(self.template.as_bytes()))
    }

    /// The statements that apply it and note that it is applied.
    fn sql(&self, dialect: &Sqlite) -> String {
        let (version, name, checksum) = (self.version, self.name, self.checksum());
        let note =
            format!("INSERT INTO {{p}}migration (version, name, checksum) VALUES ({version}, '{name}', '{checksum}');");
        format!("-- migration {version}: {name}\n{}\n{}\n", dialect.render(self.template), dialect.render(&note))
    }
}

/// Every migration and whether it is applied. A file that does not exist has none applied, and is not made. Blocks.
///
/// # Errors
/// [`Schema`](postrider_core::ErrorKind::Schema) if the database is newer than this program or was altered; otherwise what
/// SQLite answers.
pub fn status(path: impl AsRef<Path>, dialect: &Sqlite) -> Result<Vec<Standing>> {
    let path = path.as_ref();
    let file = path.display().to_string();
    if !path.exists() {
        return migration::standings(known(), &Applied::new());
    }
    look(path)
        .and_then(|connection| standings(&connection, dialect))
        .map_err(|fault| fault.into_error("look at the schema", &file))
}

/// The migrations that [`up`] would apply. Blocks.
///
/// # Errors
/// As [`status`].
pub fn plan(path: impl AsRef<Path>, dialect: &Sqlite) -> Result<Vec<Standing>> {
    Ok(status(path, dialect)?.into_iter().filter(|standing| standing.applied_at.is_none()).collect())
}

/// Applies what is pending, all or nothing, and returns it; each leaves an entry of the actor in the audit record. Makes the
/// file if there is none. Blocks.
///
/// # Errors
/// As [`status`].
pub fn up(path: impl AsRef<Path>, dialect: &Sqlite, actor: &Actor) -> Result<Vec<Standing>> {
    let file = path.as_ref().display().to_string();
    config::connect(path.as_ref(), config::BUSY_TIMEOUT)
        .and_then(|connection| apply(&connection, dialect, Some(actor)))
        .map_err(|fault| fault.into_error("migrate", &file))
}

/// All migrations as one SQL script for people who apply them by hand: run it once, in an empty database.
#[must_use]
pub fn sql(dialect: &Sqlite) -> String {
    let steps: Vec<String> = MIGRATIONS.iter().map(|migration| migration.sql(dialect)).collect();
    format!("PRAGMA journal_mode = WAL;\nBEGIN IMMEDIATE;\n{}\n{}COMMIT;\n", dialect.render(LEDGER), steps.join("\n"))
}

/// Applies what is pending under the write lock. An opener who was told to migrate is no actor: the ledger says when.
pub(crate) fn apply(connection: &Connection, dialect: &Sqlite, actor: Option<&Actor>) -> Work<Vec<Standing>> {
    // Without the lock first: an opener of a finished schema must not wait for a writer.
    if standings(connection, dialect)?.iter().all(|standing| standing.applied_at.is_some()) {
        return Ok(Vec::new());
    }
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let pending: Vec<Standing> =
        standings(connection, dialect)?.into_iter().filter(|standing| standing.applied_at.is_none()).collect();
    connection.execute_batch(&dialect.render(LEDGER))?;
    for migration in MIGRATIONS.iter().filter(|migration| pending.iter().any(|p| p.version == migration.version)) {
        connection.execute_batch(&migration.sql(dialect))?;
    }
    if let Some(actor) = actor {
        let mut audit = connection.prepare(&dialect.render(AUDIT))?;
        for standing in &pending {
            audit.execute(params![actor.name, actor.reason, standing.in_words()])?;
        }
    }
    transaction.commit()?;
    Ok(pending)
}

/// For those who migrate by hand: refuses a schema that is not complete.
pub(crate) fn check(connection: &Connection, dialect: &Sqlite) -> Work<()> {
    let standings = standings(connection, dialect)?;
    Ok(migration::complete(&standings, "the schema is", ("prefix", dialect.prefix()))?)
}

fn standings(connection: &Connection, dialect: &Sqlite) -> Work<Vec<Standing>> {
    let mut applied = Applied::new();
    if table_exists(connection, &dialect.render("{p}migration"))? {
        let sql = dialect.render("SELECT version, checksum, applied_at FROM {p}migration");
        let mut statement = connection.prepare(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            // A number that is none of ours is of a later version.
            let version = u32::try_from(row.get::<_, i64>(0)?).unwrap_or(u32::MAX);
            applied.insert(version, (row.get(1)?, Timestamp::from_micros(row.get(2)?)));
        }
    }
    Ok(migration::standings(known(), &applied)?)
}

/// Number, name and checksum of each.
fn known() -> impl Iterator<Item = (u32, &'static str, String)> {
    MIGRATIONS.iter().map(|migration| (migration.version, migration.name, migration.checksum()))
}

/// Asks the file itself. SQLite's own question about a table is answered from what the connection remembers, and that may
/// be older than the lock that was just taken.
pub(crate) fn table_exists(connection: &Connection, table: &str) -> rusqlite::Result<bool> {
    connection.prepare("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1")?.exists([table])
}

/// Without making a file, and without changing one.
fn look(path: &Path) -> Work<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(path, flags).map_err(Fault::from)?;
    connection.busy_timeout(config::BUSY_TIMEOUT)?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_texts_never_change() {
        // A released migration is in databases out there. If this fails, write a new one instead.
        let checksums: Vec<String> = MIGRATIONS.iter().map(Migration::checksum).collect();
        let released =
            ["6bdb6b3741a67a15", "bf915c5d84ee72e0", "a8bb6e6ab98a3a65", "f15631f54099b076", "c15c79e06da7601e"];
        assert_eq!(checksums, released);
        assert!(MIGRATIONS.iter().zip(1..).all(|(migration, version)| migration.version == version));
    }

    #[test]
    fn the_printed_script_makes_the_same_schema() {
        let folder = tempfile::tempdir().unwrap();
        let dialect = Sqlite::with_prefix("x_").unwrap();
        let (by_hand, by_up) = (folder.path().join("hand.db"), folder.path().join("up.db"));
        Connection::open(&by_hand).unwrap().execute_batch(&sql(&dialect)).unwrap();
        up(&by_up, &dialect, &Actor::new("tests")).unwrap();
        assert_eq!(plan(&by_hand, &dialect).unwrap(), []);
        let schema = |path| -> Vec<String> {
            let connection = Connection::open(path).unwrap();
            let mut statement =
                connection.prepare("SELECT sql FROM sqlite_schema WHERE sql NOT NULL ORDER BY name").unwrap();
            statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        };
        assert_eq!(schema(&by_hand), schema(&by_up));
    }
}
