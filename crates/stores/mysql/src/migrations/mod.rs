//! The schema, version by version.
//!
//! A migration is a numbered SQL text that never changes once it is released; its checksum is kept beside its number, so
//! that a schema that somebody altered is noticed. DDL commits by itself here, so every statement is safe to repeat and a
//! migration that was cut off begins again; two openers that race take turns by a named lock of the server. A database that
//! is newer than this program is refused rather than guessed at.

use postrider_core::{
    Error, ErrorKind, Result,
    admin::Actor,
    migration::{self, Applied},
    time::Timestamp,
};

use crate::{
    admin::act,
    config::lend,
    db::{Db, get, values},
    dialect::Mysql,
    error::{Fault, Work},
    locked,
    server::{Settings, has_trigger},
    unnoted,
};

pub use postrider_core::migration::Standing;

/// Every migration, oldest first. Append only.
const MIGRATIONS: [Migration; 3] = [
    Migration { version: 1, name: "begin", template: include_str!("0001_begin.sql") },
    Migration { version: 2, name: "marks", template: include_str!("0002_marks.sql") },
    Migration { version: 3, name: "asked", template: include_str!("0003_asked.sql") },
];

/// The one that makes the trigger.
const TRIGGERED: Migration = MIGRATIONS[0];

/// The version that this program works with.
pub const LATEST: u32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// How long to wait for somebody else who migrates, in seconds.
const PATIENCE_SECONDS: i64 = 60;

const LEDGER: &str = "\
CREATE TABLE IF NOT EXISTS {p}migration (
    version    INT UNSIGNED  NOT NULL PRIMARY KEY,
    name       VARBINARY(64) NOT NULL,
    checksum   VARBINARY(32) NOT NULL,
    applied_at BIGINT        NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
) ENGINE = InnoDB;
";

const LEDGER_EXISTS: &str = "
SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?";

/// A store is where a ledger and an order list have the same prefix.
const STORES: &str = "
SELECT LEFT(ledger.table_name, CHAR_LENGTH(ledger.table_name) - CHAR_LENGTH('migration')) AS prefix
  FROM information_schema.tables AS ledger
  JOIN information_schema.tables AS list ON list.table_schema = ledger.table_schema
   AND list.table_name = CONCAT(LEFT(ledger.table_name, CHAR_LENGTH(ledger.table_name) - CHAR_LENGTH('migration')), 'ordering')
 WHERE ledger.table_schema = DATABASE() AND RIGHT(ledger.table_name, CHAR_LENGTH('migration')) = 'migration'
 ORDER BY prefix";

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

    /// The statement that notes that it is applied.
    fn note(&self) -> String {
        let (version, name, checksum) = (self.version, self.name, self.checksum());
        format!("INSERT INTO {{p}}migration (version, name, checksum) VALUES ({version}, '{name}', '{checksum}');")
    }
}

/// The statements of a text: each ends with a semicolon at the end of a line.
fn statements(text: &str) -> impl Iterator<Item = String> + '_ {
    let code = |piece: &str| {
        piece
            .lines()
            .filter(|line| !line.trim_start().starts_with("--"))
            .collect::<Vec<_>>()
            .join("\n")
            .trim()
            .to_owned()
    };
    text.split(";\n").map(code).filter(|statement| !statement.is_empty())
}

/// Every migration and whether it is applied.
///
/// # Errors
/// [`ErrorKind::Schema`] if the database is newer than this program or was altered; otherwise what the server answers.
pub async fn status(url: &str, dialect: &Mysql) -> Result<Vec<Standing>> {
    let mut db = Db::alone(lend(url).await?, dialect);
    standings(&mut db).await.map_err(|fault| fault.into_error("look at the schema"))
}

/// The migrations that [`up`] would apply.
///
/// # Errors
/// As [`status`].
pub async fn plan(url: &str, dialect: &Mysql) -> Result<Vec<Standing>> {
    Ok(status(url, dialect).await?.into_iter().filter(|standing| standing.applied_at.is_none()).collect())
}

/// Applies what is pending and returns it; each leaves an entry of the actor in the audit record. If it is cut off, the next
/// one goes on. Should the trigger that notes new messages be gone, it is created again. Messages that it has missed at any
/// time are found by a pass over the log, and noted. The migration that has made the trigger is then among those that are
/// returned, with that in its name.
///
/// # Errors
/// As [`status`]; [`ErrorKind::Unsupported`] if the server is one that the store would refuse.
pub async fn up(url: &str, dialect: &Mysql, actor: &Actor) -> Result<Vec<Standing>> {
    let mut db = Db::alone(lend(url).await?, dialect);
    let work = async {
        // What the store would refuse must not get its tables.
        Settings::of(&mut db).await?.check()?;
        let applied = apply(&mut db, Some(actor)).await?;
        let mut again = Vec::new();
        if !has_trigger(&mut db).await? {
            let of_trigger = |statement: &String| statement.starts_with("CREATE TRIGGER");
            for statement in statements(TRIGGERED.template).filter(of_trigger) {
                act::note(&mut db, actor, "migrate", "the trigger that notes new messages, again").await?;
                db.execute_text(&statement).await?;
                again.push("the trigger that notes new messages".to_owned());
            }
        }
        let noted = unnoted::note(url, dialect, actor).await?;
        if noted > 0 {
            again.push(format!("{noted} messages that were never noted"));
        }
        if again.is_empty() {
            return Ok(applied);
        }
        let made = standings(&mut db).await?.into_iter().filter(|standing| standing.version == TRIGGERED.version);
        let again = made.map(|made| Standing { name: format!("{}, again: {}", made.name, again.join(", ")), ..made });
        Ok(applied.into_iter().chain(again).collect())
    };
    let connect = || async move { Ok(Db::alone(lend(url).await?, dialect)) };
    locked::told("migrate", connect, work).await.map_err(|fault: Fault| fault.into_error("migrate"))
}

/// The prefixes of other stores in the same database, if the one that is asked for is not there: perhaps one of them is meant.
///
/// # Errors
/// What the server answers.
pub async fn beside(url: &str, dialect: &Mysql) -> Result<Vec<String>> {
    let mut db = Db::alone(lend(url).await?, dialect);
    others(&mut db).await.map_err(|fault| fault.into_error("look at the schema"))
}

async fn others(db: &mut Db) -> Work<Vec<String>> {
    let mut prefixes: Vec<String> = Vec::new();
    for row in db.query(STORES, Vec::new()).await? {
        prefixes.push(get(&row, 0)?);
    }
    let is_there = prefixes.iter().any(|prefix| prefix == db.dialect.prefix());
    Ok(if is_there { Vec::new() } else { prefixes })
}

/// All migrations as one SQL script for people who apply them by hand: run it once, in an empty database. A second run ends
/// with an error before it has changed anything.
#[must_use]
pub fn sql(dialect: &Mysql) -> String {
    let step = |migration: &Migration| {
        let Migration { version, name, template } = migration;
        // That is so for [`up`], which leaves out a trigger that is there.
        let template = template.strip_prefix(REPEATS).unwrap_or(template);
        format!("-- migration {version}: {name}\n{template}\n{}\n", migration.note())
    };
    let steps: Vec<String> = MIGRATIONS.iter().map(step).collect();
    dialect.render(&format!("{ONCE}{LEDGER}\n{}", steps.join("\n")))
}

/// What the first migration says of itself, and what is said in its place to those who run it by hand.
const REPEATS: &str = "\
-- Every statement is safe to repeat: DDL commits by itself here, so a migration that was cut off begins again.
";
const ONCE: &str = "\
-- Run this once, in an empty database. A second run ends where the trigger is there already (ERROR 1359), and has changed
-- nothing by then. DDL commits by itself here: where the script was cut off, `postrider migrate up` goes on.

";

/// Applies what is pending, one opener at a time. An opener who was told to migrate is no actor: the ledger says when.
pub(crate) async fn apply(db: &mut Db, actor: Option<&Actor>) -> Work<Vec<Standing>> {
    // Without the lock first: an opener of a finished schema must not wait for anybody.
    if standings(db).await?.iter().all(|standing| standing.applied_at.is_some()) {
        return Ok(Vec::new());
    }
    let lock = lock_name(db).await?;
    let row = db.query_one("SELECT GET_LOCK(?, ?)", values![&*lock, PATIENCE_SECONDS]).await?;
    if get::<Option<i64>>(&row, 0)? != Some(1) {
        return Err(Error::new(ErrorKind::Unavailable, "somebody else has been migrating this store for long")
            .with("seconds", PATIENCE_SECONDS)
            .into());
    }
    let applied = apply_alone(db, actor).await;
    db.query("SELECT RELEASE_LOCK(?)", values![lock]).await?;
    applied
}

/// The server takes 64 characters.
async fn lock_name(db: &mut Db) -> Work<String> {
    let database: String = get(&db.query_one("SELECT DATABASE()", Vec::new()).await?, 0)?;
    let hash = xxhash_rust::xxh3::xxh3_64(format!("{database}\0{}", db.dialect.prefix()).as_bytes());
    Ok(format!("postrider-migrate-{hash:016x}"))
}

async fn apply_alone(db: &mut Db, actor: Option<&Actor>) -> Work<Vec<Standing>> {
    let pending: Vec<Standing> =
        standings(db).await?.into_iter().filter(|standing| standing.applied_at.is_none()).collect();
    for statement in statements(LEDGER) {
        db.execute_text(&statement).await?;
    }
    for migration in MIGRATIONS.iter().filter(|migration| pending.iter().any(|p| p.version == migration.version)) {
        for statement in statements(migration.template) {
            // A trigger cannot be created twice, and must never be dropped while somebody enqueues.
            if !statement.starts_with("CREATE TRIGGER") || !has_trigger(db).await? {
                db.execute_text(&statement).await?;
            }
        }
        // Before it counts as applied: cut off in between it is told twice, and never not at all.
        if let (Some(actor), Some(of)) = (actor, pending.iter().find(|of| of.version == migration.version)) {
            act::note(db, actor, "migrate", &of.in_words()).await?;
        }
        db.execute_text(migration.note().trim_end_matches(';')).await?;
    }
    Ok(pending)
}

/// For those who migrate by hand: refuses a schema that is not complete.
pub(crate) async fn check(db: &mut Db) -> Work<()> {
    let standings = standings(db).await?;
    Ok(migration::complete(&standings, "the schema is", ("prefix", db.dialect.prefix()))?)
}

async fn standings(db: &mut Db) -> Work<Vec<Standing>> {
    let table = db.dialect.render("{p}migration");
    let mut applied = Applied::new();
    if db.query_opt(LEDGER_EXISTS, values![table]).await?.is_some() {
        for row in db.query("SELECT version, checksum, applied_at FROM {p}migration", Vec::new()).await? {
            applied.insert(get(&row, 0)?, (get(&row, 1)?, Timestamp::from_micros(get(&row, 2)?)));
        }
    }
    Ok(migration::standings(known(), &applied)?)
}

/// Number, name and checksum of each.
fn known() -> impl Iterator<Item = (u32, &'static str, String)> {
    MIGRATIONS.iter().map(|migration| (migration.version, migration.name, migration.checksum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_texts_never_change() {
        // A released migration is in databases out there. If this fails, write a new one instead.
        let checksums: Vec<String> = MIGRATIONS.iter().map(Migration::checksum).collect();
        assert_eq!(checksums, ["34691d5c789a79f4", "653f614d8b04b749", "a9cb87dc1b208880"]);
        assert!(MIGRATIONS.iter().zip(1..).all(|(migration, version)| migration.version == version));
    }

    #[test]
    fn the_script_says_that_it_is_run_once() {
        let script = sql(&Mysql::default());
        assert!(script.starts_with("-- Run this once") && !script.contains("Every statement is safe to repeat"));
        assert!(TRIGGERED.template.starts_with(REPEATS) && TRIGGERED.template.contains("\nCREATE TRIGGER "));
    }

    #[test]
    fn a_text_is_cut_into_its_statements() {
        let text = "-- why; and so on\nCREATE a (\n  b INT -- c\n);\n\n-- next\nINSERT d;\n";
        assert_eq!(statements(text).collect::<Vec<_>>(), ["CREATE a (\n  b INT -- c\n)", "INSERT d"]);
        let begins = ["CREATE ", "INSERT ", "SET ", "PREPARE ", "EXECUTE ", "DEALLOCATE "];
        let mut all = MIGRATIONS.iter().flat_map(|migration| statements(migration.template));
        assert!(all.all(|statement| begins.iter().any(|begin| statement.starts_with(begin))));
    }
}
