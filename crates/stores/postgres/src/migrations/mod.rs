//! The schema, version by version.
//!
//! A migration is a numbered SQL text that never changes once it is released; its checksum is kept beside its number, so
//! that a schema that somebody altered is noticed. All pending ones are applied in one transaction under an advisory lock:
//! two openers that race apply each of them once, and a crash leaves all of them or none. A database that is newer than
//! this program is refused rather than guessed at.

mod roles;

use deadpool_postgres::Object;
use postrider_core::{
    Error, ErrorKind, Result,
    admin::Actor,
    migration::{self, Applied},
};

use crate::{
    access::Access,
    admin::act,
    db::{Db, unsigned},
    dialect::Postgres,
    error::{Fault, Work, corrupt},
    locked::{LOCK_PATIENCE, MIGRATION_PATIENCE, Waiter},
    values::Instant,
};

pub use postrider_core::migration::Standing;

pub use self::roles::{Roles, roles};

/// Every migration, oldest first. Append only.
const MIGRATIONS: [Migration; 8] = [
    Migration { version: 1, name: "begin", template: include_str!("0001_begin.sql") },
    Migration { version: 2, name: "standstills", template: include_str!("0002_standstills.sql") },
    Migration { version: 3, name: "enqueue", template: include_str!("0003_enqueue.sql") },
    Migration { version: 4, name: "parked_records", template: include_str!("0004_parked_records.sql") },
    Migration { version: 5, name: "leaving", template: include_str!("0005_leaving.sql") },
    Migration { version: 6, name: "finite_instants", template: include_str!("0006_finite_instants.sql") },
    Migration { version: 7, name: "asked", template: include_str!("0007_asked.sql") },
    Migration { version: 8, name: "clock", template: include_str!("0008_clock.sql") },
];

/// The version that this program works with.
pub const LATEST: u32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// Numbers per block of the ring unless another power of two is chosen: about a million.
pub const BLOCK_BITS: u32 = 20;

const LEDGER: &str = "\
CREATE TABLE IF NOT EXISTS {migration} (
    version    bigint      NOT NULL PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
";

const SCHEMA: &str = "CREATE SCHEMA IF NOT EXISTS {schema};\n";

#[derive(Clone, Copy)]
struct Migration {
    version: u32,
    name: &'static str,
    template: &'static str,
}

impl Migration {
    /// Of the text before the names are put in, so that it is the same for every schema.
    fn checksum(&self) -> String {
        format!("{:016x}", xxhash_rust::xxh3::xxh3_64(self.template.as_bytes()))
    }

    /// The statements that apply it and note that it is applied.
    fn sql(&self, dialect: &Postgres, block_bits: u32) -> String {
        let (version, name, checksum) = (self.version, self.name, self.checksum());
        let text = dialect.render(self.template).replace("BLOCK_BITS", &block_bits.to_string());
        let note = dialect.render("INSERT INTO {migration} (version, name, checksum)");
        format!("-- migration {version}: {name}\n{text}\n{note} VALUES ({version}, '{name}', '{checksum}');\n")
    }
}

/// Every migration and whether it is applied.
///
/// # Errors
/// [`ErrorKind::Schema`] if the database is newer than this program or was altered; otherwise what PostgreSQL answers.
pub async fn status(url: &str, dialect: &Postgres) -> Result<Vec<Standing>> {
    let waiter = Waiter::default();
    let attempt = async {
        let mut client = connect(url).await?;
        let db = Db::look(&mut client, dialect).await?;
        waiter.bound(&db, LOCK_PATIENCE).await?;
        let standings = standings(&db).await?;
        db.commit().await?;
        Ok::<_, Fault>(standings)
    };
    let told = waiter.tells(&Access::parse(url)?, "look at the schema", attempt).await;
    told.map_err(|fault| fault.into_error("look at the schema"))
}

/// The migrations that [`up`] would apply.
///
/// # Errors
/// As [`status`].
pub async fn plan(url: &str, dialect: &Postgres) -> Result<Vec<Standing>> {
    Ok(status(url, dialect).await?.into_iter().filter(|standing| standing.applied_at.is_none()).collect())
}

/// Applies what is pending, all or nothing, and returns it; each leaves an entry of the actor in the audit record.
///
/// # Errors
/// As [`status`].
pub async fn up(url: &str, dialect: &Postgres, actor: &Actor) -> Result<Vec<Standing>> {
    let waiter = Waiter::default();
    let attempt = async { apply(&mut connect(url).await?, dialect, BLOCK_BITS, Some(actor), &waiter).await };
    let told = waiter.tells(&Access::parse(url)?, "migrate", attempt).await;
    told.map_err(|fault| fault.into_error("migrate"))
}

/// Other stores beside this one, if this one is not made yet: the prefixes of their tables in the same schema. For whoever
/// is about to make it, perhaps because a prefix was mistyped.
///
/// # Errors
/// What PostgreSQL answers.
pub async fn beside(url: &str, dialect: &Postgres) -> Result<Vec<String>> {
    let attempt = async {
        let mut client = connect(url).await?;
        let db = Db::look(&mut client, dialect).await?;
        if exists(&db, "migration").await? {
            return Ok(Vec::new());
        }
        let rows = db.query(BESIDE, &[&dialect.schema()]).await?;
        Ok::<_, Fault>(rows.iter().map(|row| row.try_get(0)).collect::<std::result::Result<_, _>>()?)
    };
    attempt.await.map_err(|fault| fault.into_error("look at the schema"))
}

/// A store has these two, whatever they begin with.
const BESIDE: &str = "
SELECT left(one.relname, -length('checkpoint'))
  FROM pg_class AS one
  JOIN pg_class AS other
    ON other.relnamespace = one.relnamespace
   AND other.relname = left(one.relname, -length('checkpoint')) || 'migration'
 WHERE one.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
   AND one.relkind = 'r' AND one.relname LIKE '%checkpoint'
 ORDER BY 1";

/// All migrations as one SQL script for people who apply them by hand: run it once, in a database that has none of them.
#[must_use]
pub fn sql(dialect: &Postgres) -> String {
    let steps: Vec<String> = MIGRATIONS.iter().map(|migration| migration.sql(dialect, BLOCK_BITS)).collect();
    format!("BEGIN;\n{}{}\n{}COMMIT;\n", dialect.render(SCHEMA), dialect.render(LEDGER), steps.join("\n"))
}

pub(crate) async fn connect(url: &str) -> Work<Object> {
    let pool = deadpool_postgres::Pool::builder(Access::parse(url)?.manager()).max_size(1).build();
    let pool = pool.map_err(|e| Error::new(ErrorKind::Invalid, "build the pool of connections").caused_by(e))?;
    Ok(pool.get().await?)
}

/// Applies what is pending, under a lock. An opener who was told to migrate is no actor: the ledger says when. Tables that
/// somebody keeps locked are not waited for for long: everybody who enqueues would queue up behind this.
pub(crate) async fn apply(
    client: &mut Object,
    dialect: &Postgres,
    block_bits: u32,
    actor: Option<&Actor>,
    waiter: &Waiter,
) -> Work<Vec<Standing>> {
    let db = Db::begin(client, dialect).await?;
    waiter.bound(&db, LOCK_PATIENCE).await?;
    // Without the lock first: an opener of a finished schema must not wait for anybody.
    if pending(&db).await?.is_empty() {
        return Ok(Vec::new());
    }
    db.take_time().await?;
    waiter.bound(&db, MIGRATION_PATIENCE).await?;
    db.lock("migrations", "").await?;
    waiter.bound(&db, LOCK_PATIENCE).await?;
    let pending = pending(&db).await?;
    // Asked first: making a schema that exists needs the right to make one all the same.
    if !schema_exists(&db).await? {
        db.batch(SCHEMA).await?;
    }
    db.batch(LEDGER).await?;
    for migration in MIGRATIONS.iter().filter(|migration| pending.iter().any(|p| p.version == migration.version)) {
        // Rendered already: the text may hold braces of its own.
        db.batch_as_it_is(&migration.sql(dialect, block_bits)).await?;
    }
    if let Some(actor) = actor {
        for standing in &pending {
            act::note(&db, actor, "migrate", &standing.in_words()).await?;
        }
    }
    db.commit().await?;
    Ok(pending)
}

async fn pending(db: &Db<'_>) -> Work<Vec<Standing>> {
    Ok(standings(db).await?.into_iter().filter(|standing| standing.applied_at.is_none()).collect())
}

/// For those who migrate by hand: refuses a schema that is not complete.
pub(crate) async fn check(client: &mut Object, dialect: &Postgres, waiter: &Waiter) -> Work<()> {
    let db = Db::look(client, dialect).await?;
    waiter.bound(&db, LOCK_PATIENCE).await?;
    let standings = standings(&db).await?;
    Ok(migration::complete(&standings, "the schema is", ("schema", dialect.schema()))?)
}

/// What was chosen when the tables were made.
pub(crate) async fn block_bits(client: &mut Object, dialect: &Postgres, waiter: &Waiter) -> Work<u32> {
    let db = Db::look(client, dialect).await?;
    waiter.bound(&db, LOCK_PATIENCE).await?;
    let row = db.query_opt("SELECT value FROM {setting} WHERE name = 'block_bits'", &[]).await?;
    Ok(unsigned(row.ok_or_else(|| corrupt("the setting `block_bits` is missing"))?.try_get(0)?))
}

pub(crate) fn check_block_bits(bits: u32) -> Result<()> {
    if (2..=40).contains(&bits) {
        return Ok(());
    }
    Err(Error::invalid("`block_bits` is from 2 to 40").with("block_bits", bits))
}

async fn standings(db: &Db<'_>) -> Work<Vec<Standing>> {
    let mut applied = Applied::new();
    if exists(db, "migration").await? {
        for row in db.query("SELECT version, checksum, applied_at FROM {migration}", &[]).await? {
            let at = row.try_get::<_, Instant>(2)?.0;
            applied.insert(unsigned(row.try_get(0)?), (row.try_get(1)?, at));
        }
    }
    Ok(migration::standings(known(), &applied)?)
}

/// Number, name and checksum of each.
fn known() -> impl Iterator<Item = (u32, &'static str, String)> {
    MIGRATIONS.iter().map(|migration| (migration.version, migration.name, migration.checksum()))
}

/// Asks the catalogue by its tables. A look-up by name is answered from what the session remembers, and that may be older
/// than the lock that was just taken.
async fn exists(db: &Db<'_>, table: &str) -> Work<bool> {
    const EXISTS: &str = "
SELECT 1
  FROM pg_class
  JOIN pg_namespace ON pg_namespace.oid = relnamespace
 WHERE nspname = $1 AND relname = $2";
    let table = format!("{}{table}", db.dialect.prefix());
    Ok(db.query_opt(EXISTS, &[&db.dialect.schema(), &table]).await?.is_some())
}

async fn schema_exists(db: &Db<'_>) -> Work<bool> {
    let schema = db.dialect.schema();
    Ok(db.query_opt("SELECT 1 FROM pg_namespace WHERE nspname = $1", &[&schema]).await?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_names_no_other_schema() {
        let script = sql(&Postgres::new("shop", "x_").unwrap());
        assert!(script.contains("CREATE TABLE \"shop\".\"x_log\""), "{script}");
        assert!(script.contains(">> 20) & 7"), "{script}");
        // The names of headers that are ours begin so, whatever the schema is called.
        let names = script.replace("postrider-", "");
        assert!(!names.contains("postrider") && !names.contains("BLOCK_BITS"), "{script}");
    }

    #[test]
    fn versions_count_from_one() {
        assert!(MIGRATIONS.iter().zip(1..).all(|(migration, version)| migration.version == version));
        assert!(check_block_bits(1).is_err() && check_block_bits(41).is_err() && check_block_bits(BLOCK_BITS).is_ok());
    }
}
