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

use super::rows::Conditions;
use crate::{
    db::{Db, get, values},
    error::Work,
    lease::{add_lanes, drop_lanes, id_bytes},
    parked::{Rows, ordinal},
    route::{Route, drop_empty_replays, unknown},
    select::message_id,
};

const NOTE: &str = "INSERT INTO {p}audit (at, actor, reason, action, subject) VALUES (?, ?, ?, ?, ?)";

const AUDIT: &str = "SELECT at, actor, reason, action, subject FROM {p}audit ORDER BY number DESC LIMIT ?";

/// Those that hold an id as text: a pass over the record.
const AUDIT_OF: &str = "
SELECT at, actor, reason, action, subject FROM {p}audit WHERE LOCATE(?, subject) > 0 ORDER BY number DESC";

/// A live one only.
const LIVE_NODE: &str = "SELECT name FROM {p}node WHERE id = ? AND seen_at + lease_life > ? FOR UPDATE";

const PAUSE: &str = "UPDATE {p}route SET paused_by = ?, paused_reason = ? WHERE name = ?";

/// Replays that have ended but have rows again that may run.
const ENDED_REPLAYS: &str = "
SELECT name, replay_end
  FROM {p}route AS route
 WHERE replay_of IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM {p}lane AS lane WHERE lane.route = route.name)
   AND EXISTS (SELECT 1 FROM {p}parked AS parked WHERE parked.route = route.name AND parked.state <> 'dead')";

/// A route and its replays, or one replay: everything that is kept under these names.
const READERS: &str = "SELECT name FROM {p}route WHERE name = ? OR replay_of = ? ORDER BY name";

pub(super) async fn redrive(db: &mut Db, filter: &ParkedFilter, actor: &Actor) -> Work<u64> {
    let changed = each_row(db, filter, Act::Redrive).await?;
    revive_replays(db).await?;
    note_rows(db, actor, "redrive", filter, &changed).await
}

pub(super) async fn discard(db: &mut Db, filter: &ParkedFilter, actor: &Actor) -> Work<u64> {
    let changed = each_row(db, filter, Act::Discard).await?;
    drop_empty_replays(db).await?;
    note_rows(db, actor, "discard", filter, &changed).await
}

/// What to do with a row.
#[derive(Clone, Copy)]
enum Act {
    Redrive,
    Discard,
}

/// Does it to every matching row, route by route under its lock, and answers which rows it changed: of which route and message.
async fn each_row(db: &mut Db, filter: &ParkedFilter, act: Act) -> Work<Vec<(Arc<str>, MessageId)>> {
    db.lock("readers").await?;
    let mut changed = Vec::new();
    for route in matching_routes(db, filter).await? {
        db.lock_route(&route).await?;
        let of_route = ParkedFilter { route: Some(route.clone()), ..filter.clone() };
        // Gathered before anything changes, so that no change meets its own result.
        let found = matching(db, &of_route).await?;
        let now = db.now().await?;
        let mut rows = Rows::new(db, &route, now);
        for (ordinal, id) in found {
            let done = match act {
                Act::Redrive => rows.redrive(ordinal).await?,
                Act::Discard => rows.remove(ordinal).await?,
            };
            changed.extend(done.then(|| (Arc::from(&*route), id)));
        }
        rows.finish().await?;
    }
    Ok(changed)
}

async fn matching_routes(db: &mut Db, filter: &ParkedFilter) -> Work<Vec<String>> {
    let Conditions { sql, values } = Conditions::new(filter);
    let rows = db.query(&format!("SELECT DISTINCT route FROM {{p}}parked WHERE {sql} ORDER BY route"), values).await?;
    rows.iter().map(|row| get(row, 0)).collect()
}

async fn matching(db: &mut Db, filter: &ParkedFilter) -> Work<Vec<(Ordinal, MessageId)>> {
    let Conditions { sql, values } = Conditions::new(filter);
    let rows = db.query(&format!("SELECT ordinal, id FROM {{p}}parked WHERE {sql} ORDER BY ordinal"), values).await?;
    rows.iter().map(|row| Ok((ordinal(get(row, 0)?), MessageId(message_id(row, 1)?)))).collect()
}

/// A replay that has ended goes on for the sake of a redriven row: it gets its lane back, at its end.
async fn revive_replays(db: &mut Db) -> Work<()> {
    for row in db.query(ENDED_REPLAYS, Vec::new()).await? {
        add_lanes(db, &get::<String>(&row, 0)?, 1, get(&row, 1)?).await?;
    }
    Ok(())
}

pub(super) async fn pause(db: &mut Db, route: &str, actor: &Actor) -> Work<()> {
    set_paused(db, route, Some(actor)).await?;
    note(db, actor, "pause", route).await
}

pub(super) async fn resume(db: &mut Db, route: &str, actor: &Actor) -> Work<()> {
    set_paused(db, route, None).await?;
    note(db, actor, "resume", route).await
}

async fn set_paused(db: &mut Db, route: &str, by: Option<&Actor>) -> Work<()> {
    let name = by.map(|actor| actor.name.clone());
    let reason = by.and_then(|actor| actor.reason.clone());
    let changed = db.execute(PAUSE, values![name, reason, route]).await?;
    if changed == 0 { Err(unknown("route", route).into()) } else { Ok(()) }
}

/// One lane is enough: a replay is read at its own pace. It begins with the oldest record and ends with the newest of now.
pub(super) async fn replay(db: &mut Db, spec: &ReplaySpec, actor: &Actor) -> Work<Arc<str>> {
    db.lock("readers").await?;
    let of = a_route(db, &spec.route).await?;
    let to = a_route(db, spec.to.as_ref().unwrap_or(&spec.route)).await?;
    let replay = Replay { of: to.name, filter: spec.filter.clone(), rate: spec.rate };
    let name: Arc<str> = format!("{}#replay-{}", spec.route, db.draw("replay", 1).await?).into();
    let route = Route {
        name: Arc::clone(&name),
        lanes: 1,
        paused: None,
        reader: Reader { replay: Some(replay), ..of.reader },
        replay_end: Some(db.counter("place").await?),
        left: Vec::new(),
    };
    route.save(db).await?;
    add_lanes(db, &name, 1, 0).await?;
    note(db, actor, "replay", &spec.in_words(&name)).await?;
    Ok(name)
}

/// A route that exists and is no replay.
async fn a_route(db: &mut Db, name: &str) -> Work<Route> {
    let route = Route::get(db, name).await?;
    if route.reader.replay.is_some() {
        return Err(Error::invalid("a replay cannot be replayed; name its route").with("route", name).into());
    }
    Ok(route)
}

pub(super) async fn drain_node(db: &mut Db, node: NodeId, actor: &Actor) -> Work<()> {
    let now = db.now().await?.as_micros();
    let Some(row) = db.query_opt(LIVE_NODE, values![id_bytes(node), now]).await? else {
        return Err(Error::new(ErrorKind::NotFound, "there is no such live node").with("node", node).into());
    };
    db.execute("UPDATE {p}node SET leaving = 1 WHERE id = ?", values![id_bytes(node)]).await?;
    note(db, actor, "drain-node", &format!("{} ({node})", get::<String>(&row, 0)?)).await
}

pub(super) async fn cancel_replay(db: &mut Db, name: &str, actor: &Actor) -> Work<()> {
    db.lock("readers").await?;
    if Route::find(db, name).await?.is_none_or(|route| route.reader.replay.is_none()) {
        return Err(unknown("replay", name).into());
    }
    forget(db, name).await?;
    note(db, actor, "cancel-replay", name).await
}

pub(super) async fn forget_route(db: &mut Db, route: &str, actor: &Actor) -> Work<()> {
    db.lock("readers").await?;
    if Route::find(db, route).await?.is_none_or(|known| known.reader.replay.is_some()) {
        return Err(unknown("route", route).into());
    }
    forget(db, route).await?;
    note(db, actor, "forget-route", route).await
}

async fn forget(db: &mut Db, name: &str) -> Work<()> {
    for row in db.query(READERS, values![name, name]).await? {
        let name: String = get(&row, 0)?;
        db.lock_route(&name).await?;
        db.execute("DELETE FROM {p}parked WHERE route = ?", values![&*name]).await?;
        drop_lanes(db, &name).await?;
        db.execute("DELETE FROM {p}route WHERE name = ?", values![&*name]).await?;
    }
    Ok(())
}

/// Nothing changed is nothing to note.
async fn note_rows(
    db: &mut Db,
    actor: &Actor,
    action: &str,
    filter: &ParkedFilter,
    changed: &[(Arc<str>, MessageId)],
) -> Work<u64> {
    for subject in filter.subjects(changed) {
        note(db, actor, action, &subject).await?;
    }
    Ok(changed.len() as u64)
}

pub(super) async fn enqueue(db: &mut Db, batch: &Batch, actor: Option<&Actor>) -> Work<()> {
    db.append(batch).await?;
    match actor {
        Some(actor) => note(db, actor, "enqueue", &batch.in_words()).await,
        None => Ok(()),
    }
}

pub(crate) async fn note(db: &mut Db, actor: &Actor, action: &str, subject: &str) -> Work<()> {
    let now = db.now().await?.as_micros();
    db.execute(NOTE, values![now, &*actor.name, actor.reason.clone(), action, subject]).await?;
    Ok(())
}

pub(super) async fn audit(db: &mut Db, limit: u32) -> Work<Vec<AuditEntry>> {
    db.query(AUDIT, values![limit]).await?.iter().map(entry).collect()
}

pub(super) async fn audit_of(db: &mut Db, id: MessageId, limit: u32) -> Work<Vec<AuditEntry>> {
    let rows = db.query(AUDIT_OF, values![id.to_string()]).await?;
    let entries = rows.iter().map(entry).collect::<Work<Vec<AuditEntry>>>()?;
    Ok(entries.into_iter().filter(|entry| entry.names(id)).take(limit as usize).collect())
}

fn entry(row: &mysql_async::Row) -> Work<AuditEntry> {
    Ok(AuditEntry {
        at: Timestamp::from_micros(get(row, 0)?),
        actor: Actor { name: get(row, 1)?, reason: get(row, 2)? },
        action: get(row, 3)?,
        subject: get(row, 4)?,
    })
}
