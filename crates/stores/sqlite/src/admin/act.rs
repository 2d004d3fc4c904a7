//! What an operator does: each change and its audit entry are one transaction.

use std::sync::Arc;

use postrider_core::{
    Error, ErrorKind,
    admin::{Actor, AuditEntry, ParkedFilter, ReplaySpec},
    enlist::Batch,
    envelope::MessageId,
    lease::{NodeId, Reader, Replay},
    parked::Ordinal,
    time::Timestamp,
};
use rusqlite::{OptionalExtension, params};

use super::rows::condition;
use crate::{
    enlist::rusqlite::append,
    error::Work,
    lease::{add_lanes, last_seq},
    parked::{Rows, ordinal},
    read::message_id,
    route::{Route, draw, drop_empty_replays, unknown},
    worker::Db,
};

const NOTE: &str = "INSERT INTO {p}audit (at, actor, reason, action, subject) VALUES (?1, ?2, ?3, ?4, ?5)";

const AUDIT: &str = "SELECT at, actor, reason, action, subject FROM {p}audit ORDER BY number DESC LIMIT ?1";

/// Those that hold an id as text: a pass over the record.
const AUDIT_OF: &str = "
SELECT at, actor, reason, action, subject FROM {p}audit WHERE instr(subject, ?1) > 0 ORDER BY number DESC";

/// A live one only.
const DRAIN_NODE: &str = "UPDATE {p}node SET leaving = 1 WHERE id = ?1 AND seen_at + lease_life > ?2 RETURNING name";

const PAUSE: &str = "UPDATE {p}route SET paused_by = ?2, paused_reason = ?3 WHERE name = ?1";

/// Replays that have ended but have rows again that may run.
const ENDED_REPLAYS: &str = "
SELECT name, replay_end
  FROM {p}route AS route
 WHERE replay_of IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM {p}lane AS lane WHERE lane.route = route.name)
   AND EXISTS (SELECT 1 FROM {p}parked AS row WHERE row.route = route.name AND row.state <> 'dead')";

const BEFORE_OLDEST: &str = "SELECT coalesce(min(seq) - 1, 0) FROM {p}log";

/// A route and its replays, or one replay: everything that is kept under these names.
const READERS: &str = "SELECT name FROM {p}route WHERE name = ?1 OR replay_of = ?1";

pub(super) fn redrive(db: &Db, filter: &ParkedFilter, actor: &Actor, now: Timestamp) -> Work<u64> {
    let changed = each_row(db, filter, now, Act::Redrive)?;
    revive_replays(db)?;
    note_rows(db, actor, "redrive", filter, &changed, now)
}

pub(super) fn discard(db: &Db, filter: &ParkedFilter, actor: &Actor, now: Timestamp) -> Work<u64> {
    let changed = each_row(db, filter, now, Act::Discard)?;
    drop_empty_replays(db)?;
    note_rows(db, actor, "discard", filter, &changed, now)
}

/// What to do with a row.
#[derive(Clone, Copy)]
enum Act {
    Redrive,
    Discard,
}

/// Does it to every matching row, route by route, and answers which rows it changed: of which route and message.
fn each_row(db: &Db, filter: &ParkedFilter, now: Timestamp, act: Act) -> Work<Vec<(Arc<str>, MessageId)>> {
    let mut changed = Vec::new();
    let found = matching(db, filter)?;
    for of_route in found.chunk_by(|one, other| one.0 == other.0) {
        let route: Arc<str> = of_route[0].0.as_str().into();
        let mut rows = Rows::new(db, &route, now);
        for (_, ordinal, id) in of_route {
            let done = match act {
                Act::Redrive => rows.redrive(*ordinal)?,
                Act::Discard => rows.remove(*ordinal)?,
            };
            changed.extend(done.then(|| (Arc::clone(&route), *id)));
        }
        rows.finish()?;
    }
    Ok(changed)
}

/// Gathered before anything changes, so that no change meets its own result.
fn matching(db: &Db, filter: &ParkedFilter) -> Work<Vec<(String, Ordinal, MessageId)>> {
    let (condition, values) = condition(filter);
    let mut statement =
        db.statement(&format!("SELECT route, ordinal, id FROM {{p}}parked WHERE {condition} ORDER BY route, ordinal"))?;
    let mut rows = statement.query(rusqlite::params_from_iter(values))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push((row.get(0)?, ordinal(row.get(1)?), message_id(row, 2)?));
    }
    Ok(found)
}

/// A replay that has ended goes on for the sake of a redriven row: it gets its lane back, at its end.
fn revive_replays(db: &Db) -> Work<()> {
    let mut statement = db.statement(ENDED_REPLAYS)?;
    let found = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
    for (name, end) in found.collect::<rusqlite::Result<Vec<_>>>()? {
        add_lanes(db, &name, 1, end)?;
    }
    Ok(())
}

pub(super) fn pause(db: &Db, route: &str, actor: &Actor, now: Timestamp) -> Work<()> {
    set_paused(db, route, Some(actor))?;
    note(db, actor, "pause", route, now)
}

pub(super) fn resume(db: &Db, route: &str, actor: &Actor, now: Timestamp) -> Work<()> {
    set_paused(db, route, None)?;
    note(db, actor, "resume", route, now)
}

fn set_paused(db: &Db, route: &str, by: Option<&Actor>) -> Work<()> {
    let reason = by.and_then(|actor| actor.reason.as_deref());
    let changed = db.statement(PAUSE)?.execute(params![route, by.map(|actor| &actor.name), reason])?;
    if changed == 0 { Err(unknown("route", route).into()) } else { Ok(()) }
}

/// One lane is enough: a replay is read at its own pace. It begins with the oldest record and ends with the newest of now.
pub(super) fn replay(db: &Db, spec: &ReplaySpec, actor: &Actor, now: Timestamp) -> Work<Arc<str>> {
    let of = a_route(db, &spec.route)?;
    let to = a_route(db, spec.to.as_ref().unwrap_or(&spec.route))?;
    let replay = Replay { of: to.name, filter: spec.filter.clone(), rate: spec.rate };
    let name: Arc<str> = format!("{}#replay-{}", spec.route, draw(db, "replay", 1)?).into();
    let route = Route {
        name: Arc::clone(&name),
        lanes: 1,
        paused: None,
        reader: Reader { replay: Some(replay), ..of.reader },
        replay_end: Some(last_seq(db)?),
        left: Vec::new(),
    };
    route.save(db)?;
    let begin = db.statement(BEFORE_OLDEST)?.query_row([], |row| row.get(0))?;
    add_lanes(db, &name, 1, begin)?;
    note(db, actor, "replay", &spec.in_words(&name), now)?;
    Ok(name)
}

/// A route that exists and is no replay.
fn a_route(db: &Db, name: &str) -> Work<Route> {
    let route = Route::get(db, name)?;
    if route.reader.replay.is_some() {
        return Err(Error::invalid("a replay cannot be replayed; name its route").with("route", name).into());
    }
    Ok(route)
}

pub(super) fn drain_node(db: &Db, node: NodeId, actor: &Actor, now: Timestamp) -> Work<()> {
    let found: Option<String> = db
        .statement(DRAIN_NODE)?
        .query_row(params![node.0.as_bytes(), now.as_micros()], |row| row.get(0))
        .optional()?;
    let name = found.ok_or_else(|| no_such_node(node))?;
    note(db, actor, "drain-node", &format!("{name} ({node})"), now)
}

fn no_such_node(node: NodeId) -> Error {
    Error::new(ErrorKind::NotFound, "there is no such live node").with("node", node)
}

pub(super) fn cancel_replay(db: &Db, name: &str, actor: &Actor, now: Timestamp) -> Work<()> {
    if Route::find(db, name)?.is_none_or(|route| route.reader.replay.is_none()) {
        return Err(unknown("replay", name).into());
    }
    forget(db, name)?;
    note(db, actor, "cancel-replay", name, now)
}

pub(super) fn forget_route(db: &Db, route: &str, actor: &Actor, now: Timestamp) -> Work<()> {
    if Route::find(db, route)?.is_none_or(|known| known.reader.replay.is_some()) {
        return Err(unknown("route", route).into());
    }
    forget(db, route)?;
    note(db, actor, "forget-route", route, now)
}

fn forget(db: &Db, name: &str) -> Work<()> {
    let names: Vec<String> =
        db.statement(READERS)?.query_map([name], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for name in names {
        for sql in [
            "DELETE FROM {p}parked WHERE route = ?1",
            "DELETE FROM {p}lane WHERE route = ?1",
            "DELETE FROM {p}route WHERE name = ?1",
        ] {
            db.statement(sql)?.execute([&name])?;
        }
    }
    Ok(())
}

pub(super) fn enqueue(db: &Db, batch: Batch, actor: Option<&Actor>, now: Timestamp) -> Work<()> {
    let subject = batch.in_words();
    append(&db.connection, &db.dialect, Ok(batch))?;
    match actor {
        Some(actor) => note(db, actor, "enqueue", &subject, now),
        None => Ok(()),
    }
}

/// Nothing changed is nothing to note.
fn note_rows(
    db: &Db,
    actor: &Actor,
    action: &str,
    filter: &ParkedFilter,
    changed: &[(Arc<str>, MessageId)],
    now: Timestamp,
) -> Work<u64> {
    for subject in filter.subjects(changed) {
        note(db, actor, action, &subject, now)?;
    }
    Ok(changed.len() as u64)
}

fn note(db: &Db, actor: &Actor, action: &str, subject: &str, now: Timestamp) -> Work<()> {
    db.statement(NOTE)?.execute(params![now.as_micros(), actor.name, actor.reason, action, subject])?;
    Ok(())
}

pub(super) fn audit(db: &Db, limit: u32) -> Work<Vec<AuditEntry>> {
    let mut statement = db.statement(AUDIT)?;
    let entries = statement.query_map([limit], entry)?;
    Ok(entries.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn audit_of(db: &Db, id: MessageId, limit: u32) -> Work<Vec<AuditEntry>> {
    let mut statement = db.statement(AUDIT_OF)?;
    let entries = statement.query_map([id.to_string()], entry)?.collect::<rusqlite::Result<Vec<AuditEntry>>>()?;
    Ok(entries.into_iter().filter(|entry| entry.names(id)).take(limit as usize).collect())
}

fn entry(row: &rusqlite::Row<'_>) -> rusqlite::Result<AuditEntry> {
    Ok(AuditEntry {
        at: Timestamp::from_micros(row.get(0)?),
        actor: Actor { name: row.get(1)?, reason: row.get(2)? },
        action: row.get(3)?,
        subject: row.get(4)?,
    })
}
