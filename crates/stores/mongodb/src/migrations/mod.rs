//! The collections and indexes, version by version.
//!
//! A migration is a numbered list of commands that never changes once it is released; its checksum is kept beside its number,
//! so that one that somebody altered is noticed. Every command is safe to repeat, so a migration that was cut off begins
//! again, and openers that race do the same thing twice. A database that is newer than this program is refused rather than
//! guessed at.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mongodb::bson::{Bson, Document, doc};
pub use postrider_core::migration::Standing;
use postrider_core::{
    Result,
    admin::Actor,
    migration::{self, Applied},
    time::Timestamp,
};

use crate::{
    admin::act,
    config::connect,
    db::{Db, Described, Find, Update, server_now},
    dialect::Mongo,
    error::{Fault, Work, corrupt},
    server,
    value::{long, text, text_opt},
};

/// Every migration, oldest first. Append only.
const MIGRATIONS: [Migration; 2] = [
    Migration { version: 1, name: "begin", template: include_str!("0001_begin.json") },
    // What another type has in an optional field is not read, and the message would go without its key or before its time.
    Migration { version: 2, name: "types", template: include_str!("0002_types.json") },
];

/// The version that this program works with.
pub const LATEST: u32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// What the server answers to whoever makes what is there: the collection, or an index of that name.
const EXISTS: [i32; 2] = [48, 68];

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

    /// The commands, with the collections' names, as JSON.
    fn commands(&self, names: &Mongo) -> Vec<serde_json::Value> {
        let text = self.template.replace("{p}", names.prefix());
        serde_json::from_str(&text).expect("a migration is a list of commands")
    }

    /// Its entry among those that are applied.
    fn entry(&self) -> String {
        format!("migration-{}", self.version)
    }
}

/// Every migration and whether it is applied.
///
/// # Errors
/// [`Schema`](postrider_core::ErrorKind::Schema) if the database is newer than this program or was altered; otherwise what
/// the server answers.
pub async fn status(url: &str, names: &Mongo) -> Result<Vec<Standing>> {
    let mut db = open(url, names).await?;
    standings(&mut db).await.map_err(|fault| fault.into_error("look at the collections"))
}

/// The migrations that [`up`] would apply.
///
/// # Errors
/// As [`status`].
pub async fn plan(url: &str, names: &Mongo) -> Result<Vec<Standing>> {
    Ok(status(url, names).await?.into_iter().filter(|standing| standing.applied_at.is_none()).collect())
}

/// Applies what is pending and returns it; each leaves an entry of the actor in the audit record. If it is cut off, the next
/// one goes on. A log that lacks its index or its validator, because it was dropped, gets them again; then the migration that
/// has made them is among those that are returned, with that in its name.
///
/// # Errors
/// As [`status`].
pub async fn up(url: &str, names: &Mongo, actor: &Actor) -> Result<Vec<Standing>> {
    let mut db = open(url, names).await?;
    apply(&mut db, Some(actor)).await.map_err(|fault| fault.into_error("migrate"))
}

/// The prefixes of other stores in the same database, if the one that is asked for is not there: perhaps one of them is meant.
///
/// # Errors
/// What the server answers.
pub async fn beside(url: &str, names: &Mongo) -> Result<Vec<String>> {
    let client = connect(url).await?;
    let listed = client.database(names.database()).list_collection_names().await;
    let listed = listed.map_err(|error| crate::error::from_mongo(&error, "look at the collections"))?;
    let mut prefixes: Vec<String> = listed
        .iter()
        .filter_map(|name| name.strip_suffix("meta"))
        .filter(|prefix| listed.iter().any(|name| name.strip_suffix("log") == Some(prefix)))
        .map(ToOwned::to_owned)
        .collect();
    prefixes.sort();
    let is_there = prefixes.iter().any(|prefix| prefix == names.prefix());
    Ok(if is_there { Vec::new() } else { prefixes })
}

/// All migrations as a script for `mongosh`, for people who apply them by hand.
#[must_use]
pub fn script(names: &Mongo) -> String {
    let mut script = format!("const store = db.getSiblingDB({:?});\n", names.database());
    for migration in &MIGRATIONS {
        script.push_str(&format!("\n// migration {}: {}\n", migration.version, migration.name));
        for command in migration.commands(names) {
            script.push_str(&format!("store.runCommand(EJSON.deserialize({command}));\n"));
        }
        let Migration { version, name, .. } = migration;
        let note = serde_json::json!({
            "update": names.name("meta"),
            "updates": [{
                "q": { "_id": migration.entry() },
                "u": [{ "$set": {
                    "version": version,
                    "name": name,
                    "checksum": migration.checksum(),
                    "applied_at": { "$multiply": [{ "$toLong": "$$NOW" }, 1000] },
                } }],
                "upsert": true,
            }],
        });
        script.push_str(&format!("store.runCommand({note});\n"));
    }
    script
}

async fn open(url: &str, names: &Mongo) -> Result<Db> {
    let client = connect(url).await?;
    // What the store would refuse must not get its collections.
    server::check(&server::hello(&client).await.map_err(|fault| fault.into_error("connect"))?)?;
    Db::alone(&client, names, &Arc::default()).await.map_err(|fault| fault.into_error("connect"))
}

/// Applies what is pending. An opener who was told to migrate is no actor: the ledger says when.
pub(crate) async fn apply(db: &mut Db, actor: Option<&Actor>) -> Work<Vec<Standing>> {
    let standings = standings(db).await?;
    let pending: Vec<Standing> = standings.iter().filter(|standing| standing.applied_at.is_none()).cloned().collect();
    let is_new = pending.len() == MIGRATIONS.len();
    let is_pending = |migration: &Migration| pending.iter().any(|pending| pending.version == migration.version);
    let applied: Vec<Migration> = MIGRATIONS.iter().filter(|migration| !is_pending(migration)).copied().collect();
    let mended = if is_new { Vec::new() } else { make_up(db, &applied).await? };
    if let (false, Some(actor)) = (mended.is_empty(), actor) {
        act::note(db, actor, "migrate", "the log, which was not as it was made").await?;
    }
    for migration in MIGRATIONS.iter().filter(|migration| is_pending(migration)) {
        for command in migration.commands(&db.names) {
            tell(db, document(command)?).await?;
        }
        // Before it counts as applied: cut off in between it is told twice, and never not at all.
        if let (Some(actor), Some(of)) = (actor, pending.iter().find(|of| of.version == migration.version)) {
            act::note(db, actor, "migrate", &of.in_words()).await?;
        }
        note(db, migration).await?;
    }
    // One that was cut off may come behind a later one, and has set what that one has changed.
    if !is_new && !pending.is_empty() {
        mend(db).await?;
    }
    let again = standings.into_iter().filter_map(|standing| {
        let parts: Vec<_> = mended.iter().filter(|of| of.version == standing.version).map(|of| of.what).collect();
        let name = format!("{}, again: {}", standing.name, parts.join(", "));
        (!parts.is_empty()).then_some(Standing { name, ..standing })
    });
    Ok(again.chain(pending).collect())
}

/// One command, unless what it makes is there.
///
/// A change of a collection waits for every transaction that has written to it, and whoever comes to write meanwhile waits behind
/// it. So it gives up soon, lets them pass, and asks again, for longer than a server lets a transaction be open.
async fn tell(db: &mut Db, command: Document) -> Work<()> {
    let mut command = command;
    if command.contains_key("collMod") {
        command.insert("maxTimeMS", i64::try_from(CHANGE_PATIENCE.as_millis()).unwrap_or(i64::MAX));
    }
    let began = Instant::now();
    // Ends with an answer, or when it was asked for long enough.
    loop {
        match db.tell(command.clone()).await {
            Err(fault) if fault.code().is_some_and(|code| EXISTS.contains(&code)) => return Ok(()),
            // Of two who insert the same at the same time, one is told so; it is there.
            Err(Fault::Refused { code: 11000, .. }) => return Ok(()),
            Err(fault) if fault.is_out_of_time() && began.elapsed() < OPEN_FOR => {
                tokio::time::sleep(CHANGE_PATIENCE).await;
            }
            outcome => return outcome.map(drop),
        }
    }
}

/// How long a change of a collection keeps others waiting at most.
const CHANGE_PATIENCE: Duration = Duration::from_secs(2);

/// Longer than a transaction is open on a server that is set as usual, which is a minute and a half at most.
const OPEN_FOR: Duration = Duration::from_mins(2);

/// Makes what the log lacks of what the migrations have made. Who may not look leaves it as it is.
pub(crate) async fn mend(db: &mut Db) -> Work<()> {
    make_up(db, &MIGRATIONS).await.map(drop)
}

/// The same for some of the migrations. Answers what was lacking.
async fn make_up(db: &mut Db, applied: &[Migration]) -> Work<Vec<Lacking>> {
    let lacking = lacking_of(db, applied).await?;
    for part in &lacking {
        tell(db, part.command.clone()).await?;
    }
    Ok(lacking)
}

/// Something that a migration has made of the log and that is not there any more, or is another.
pub(crate) struct Lacking {
    version: u32,
    /// For people.
    pub(crate) what: &'static str,
    command: Document,
}

/// What the log lacks: a collection that was dropped is made anew by the next insert, without its index, by which it is scanned,
/// and without its validator. Nothing for those who may not look.
pub(crate) async fn lacking(db: &mut Db) -> Work<Vec<Lacking>> {
    lacking_of(db, &MIGRATIONS).await
}

async fn lacking_of(db: &mut Db, applied: &[Migration]) -> Work<Vec<Lacking>> {
    let (has_log, validator) = match db.described_log().await? {
        Described::Unknown => return Ok(Vec::new()),
        Described::Absent => (false, None),
        Described::There { validator, .. } => (true, validator),
    };
    let indexes = if has_log { db.log_indexes().await? } else { Vec::new() };
    let names = db.names.clone();
    let mut commands = Vec::new();
    for migration in applied {
        for command in migration.commands(&names) {
            commands.push((migration.version, document(command)?));
        }
    }
    commands.retain(|(_, command)| command.values().next().and_then(Bson::as_str) == Some(names.log()));
    // Each sets the whole of it, so only what the last one says counts.
    let wanted = commands.iter().rev().find_map(|(_, command)| command.get_document("validator").ok()).cloned();
    let mut lacking = Vec::new();
    for (version, command) in commands {
        let (what, is_done) = match command.keys().next().map(String::as_str) {
            Some("create") => ("the collection of the log", has_log),
            Some("collMod") => (
                "the validator of the log",
                command.get_document("validator").ok() != wanted.as_ref() || validator == wanted,
            ),
            _ => ("the index of the log", indexed(&command).all(|name| indexes.iter().any(|there| there == name))),
        };
        if !is_done {
            lacking.push(Lacking { version, what, command });
        }
    }
    Ok(lacking)
}

/// The names of the indexes that a command makes.
fn indexed(command: &Document) -> impl Iterator<Item = &str> {
    let indexes = command.get_array("indexes").map(Vec::as_slice).unwrap_or_default();
    indexes.iter().filter_map(|index| text_opt(index.as_document()?, "name"))
}

async fn note(db: &mut Db, migration: &Migration) -> Work<()> {
    let Migration { version, name, .. } = migration;
    let said = doc! {
        "version": i64::from(*version),
        "name": *name,
        "checksum": migration.checksum(),
        "applied_at": { "$ifNull": ["$applied_at", server_now()] },
    };
    let entry = Update::one(doc! { "_id": migration.entry() }, vec![doc! { "$set": said }]).or_insert();
    match db.update("meta", entry).await {
        Err(Fault::Refused { code: 11000, .. }) => Ok(()),
        outcome => outcome.map(drop),
    }
}

fn document(command: serde_json::Value) -> Work<Document> {
    fn value(json: serde_json::Value) -> Bson {
        match json {
            serde_json::Value::Null => Bson::Null,
            serde_json::Value::Bool(value) => value.into(),
            serde_json::Value::Number(number) => number.as_i64().map_or_else(|| Bson::from(number.as_f64()), small),
            serde_json::Value::String(text) => text.into(),
            serde_json::Value::Array(values) => Bson::Array(values.into_iter().map(value).collect()),
            serde_json::Value::Object(fields) => {
                let long =
                    fields.get("$numberLong").and_then(|text| text.as_str()).and_then(|text| text.parse::<i64>().ok());
                let part = |name| u32::try_from(fields.get("$timestamp")?.get(name)?.as_u64()?).ok();
                match (long, part("t").zip(part("i"))) {
                    (Some(number), _) => Bson::Int64(number),
                    (None, Some((time, increment))) => Bson::Timestamp(mongodb::bson::Timestamp { time, increment }),
                    (None, None) => {
                        Bson::Document(fields.into_iter().map(|(name, field)| (name, value(field))).collect())
                    }
                }
            }
        }
    }
    // As the shell would send it.
    fn small(number: i64) -> Bson {
        i32::try_from(number).map_or(Bson::Int64(number), Bson::Int32)
    }
    match value(command) {
        Bson::Document(document) => Ok(document),
        _ => Err(corrupt("a migration is a list of commands").into()),
    }
}

/// For those who migrate by hand: refuses what is not complete.
pub(crate) async fn check(db: &mut Db) -> Work<()> {
    let standings = standings(db).await?;
    Ok(migration::complete(&standings, "the collections are", ("prefix", db.names.prefix()))?)
}

async fn standings(db: &mut Db) -> Work<Vec<Standing>> {
    let mut applied = Applied::new();
    let entries = Find::new(doc! { "_id": { "$regex": "^migration-" } });
    for entry in db.find("meta", entries).await? {
        let version = u32::try_from(long(&entry, "version")?).unwrap_or(u32::MAX);
        let at = Timestamp::from_micros(long(&entry, "applied_at")?);
        applied.insert(version, (text(&entry, "checksum")?.to_owned(), at));
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
        assert_eq!(checksums, ["c2b0cefcaa2a4324", "e6dc3e801e0ac4e9"]);
        assert!(MIGRATIONS.iter().zip(1..).all(|(migration, version)| migration.version == version));
    }

    #[test]
    fn every_command_is_about_a_collection_of_the_store() {
        let names = Mongo::new("shop").unwrap();
        for command in MIGRATIONS.iter().flat_map(|migration| migration.commands(&names)) {
            let document = document(command).unwrap();
            let name = document.keys().next().unwrap().clone();
            assert!(["create", "collMod", "createIndexes", "update"].contains(&name.as_str()), "{name}");
            assert!(document.get_str(&name).unwrap().starts_with("postrider_"));
        }
        assert!(script(&names).contains("db.getSiblingDB(\"shop\")"));
    }
}
