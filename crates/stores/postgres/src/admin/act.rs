//! What an operator does: each change and its audit entry are one transaction.

use std::sync::Arc;

use postrider_core::{
    Error, ErrorKind,
    admin::{Actor, AuditEntry, ParkedFilter, ReplaySpec},
    enlist::Batch,
    envelope::MessageId,
    lease::{NodeId, Reader, Replay},
    parked::Ordinal,
};
use tokio_postgres::Row;

use super::rows::Conditions;
use crate::{
    checkpoint::Checkpoint,
    cursor::{Identity, Position},
    db::Db,
    error::{Work, corrupt},
    lease::{add_lane, drop_lanes, take_lanes},
    observe,
    origin::Origin,
    parked::{Rows, ordinal},
    route::{Route, drop_empty_replays, unknown},
    values::Instant,
};

const NOTE: &str =
    "INSERT INTO {audit} (at, actor, reason, action, subject) VALUES (clock_timestamp(), $1, $2, $3, $4)";

const AUDIT: &str = "SELECT at, actor, reason, action, subject FROM {audit} ORDER BY number DESC LIMIT $1";

/// Those that hold an id as text: a pass over the record.
const AUDIT_OF: &str = "
SELECT at, actor, reason, action, subject FROM {audit} WHERE position($1 IN subject) > 0 ORDER BY number DESC";

/// A live one only.
const DRAIN_NODE: &str = "
UPDATE {node} SET leaving = true
 WHERE id = $1 AND seen_at + lease_life * interval '1 microsecond' > clock_timestamp()
RETURNING name";

const PAUSE: &str = "UPDATE {route} SET paused_by = $2, paused_reason = $3 WHERE name = $1";

/// Replays that have ended but have rows again that may run.
const ENDED_REPLAYS: &str = "
SELECT name
  FROM {route} AS route
 WHERE replay_of IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM {lane} AS lane WHERE lane.route = route.name)
   AND EXISTS (SELECT 1 FROM {parked} AS row WHERE row.route = route.name AND row.state <> 'dead')";

const ANNOUNCE: &str = "SELECT pg_notify($1, '')";

/// A route and its replays, or one replay: everything that is kept under these names.
const READERS: &str = "SELECT name FROM {route} WHERE name = $1 OR replay_of = $1 ORDER BY name";

pub(super) async fn redrive(db: &Db<'_>, filter: &ParkedFilter, actor: &Actor) -> Work<u64> {
    let changed = each_row(db, filter, Act::Redrive).await?;
    revive_replays(db).await?;
    note_rows(db, actor, "redrive", filter, &changed).await
}

pub(super) async fn discard(db: &Db<'_>, filter: &ParkedFilter, actor: &Actor) -> Work<u64> {
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
async fn each_row(db: &Db<'_>, filter: &ParkedFilter, act: Act) -> Work<Vec<(Arc<str>, MessageId)>> {
    db.lock("readers", "").await?;
    let mut changed = Vec::new();
    for route in matching_routes(db, filter).await? {
        db.lock_route(&route).await?;
        let of_route = ParkedFilter { route: Some(route.clone()), ..filter.clone() };
        let mut rows = Rows::new(db, &route, db.now().await?);
        // Gathered before anything changes, so that no change meets its own result.
        for (ordinal, id) in matching(db, &of_route).await? {
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

async fn matching_routes(db: &Db<'_>, filter: &ParkedFilter) -> Work<Vec<String>> {
    let conditions = Conditions::new(filter);
    let sql = format!("SELECT DISTINCT route FROM {{parked}} WHERE {} ORDER BY route", conditions.sql);
    let rows = db.query(&sql, &conditions.values()).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

async fn matching(db: &Db<'_>, filter: &ParkedFilter) -> Work<Vec<(Ordinal, MessageId)>> {
    let conditions = Conditions::new(filter);
    let sql = format!("SELECT ordinal, id FROM {{parked}} WHERE {} ORDER BY ordinal", conditions.sql);
    let rows = db.query(&sql, &conditions.values()).await?;
    rows.iter().map(|row| Ok((ordinal(row.try_get(0)?), MessageId(row.try_get(1)?)))).collect()
}

/// A replay that has ended goes on for the sake of a redriven row: it gets its lane back, at its end.
async fn revive_replays(db: &Db<'_>) -> Work<()> {
    for row in db.query(ENDED_REPLAYS, &[]).await? {
        let name: String = row.try_get(0)?;
        let newest = Checkpoint::newest(db, &name, 0).await?.ok_or_else(|| corrupt("a replay has no checkpoint"))?;
        add_lane(db, &name, 0, newest.lo, &newest.cursor).await?;
    }
    Ok(())
}

pub(super) async fn pause(db: &Db<'_>, route: &str, actor: &Actor) -> Work<()> {
    set_paused(db, route, Some(actor)).await?;
    note(db, actor, "pause", route).await
}

pub(super) async fn resume(db: &Db<'_>, route: &str, actor: &Actor) -> Work<()> {
    set_paused(db, route, None).await?;
    note(db, actor, "resume", route).await
}

async fn set_paused(db: &Db<'_>, route: &str, by: Option<&Actor>) -> Work<()> {
    let name = by.map(|actor| &actor.name);
    let reason = by.and_then(|actor| actor.reason.as_deref());
    let changed = db.execute(PAUSE, &[&route, &name, &reason]).await?;
    if changed == 0 { Err(unknown("route", route).into()) } else { Ok(()) }
}

/// One lane is enough: a replay is read at its own pace. It is a single round over all that is committed now.
pub(super) async fn replay(db: &Db<'_>, spec: &ReplaySpec, actor: &Actor) -> Work<Arc<str>> {
    db.lock("readers", "").await?;
    let of = a_route(db, &spec.route).await?;
    let to = a_route(db, spec.to.as_ref().unwrap_or(&spec.route)).await?;
    // The snapshot first, then the last number: nothing that it sees is above.
    let target = observe::snapshot(db).await?;
    let (origin, last) = (Origin::of(db).await?, observe::last(db).await?);
    let position = Position::replay(origin.identity, target, last, origin.restored);
    let number: i64 = db.query_one("SELECT nextval('{replay}')", &[]).await?.try_get(0)?;
    let name: Arc<str> = format!("{}#replay-{number}", spec.route).into();
    let replay = Replay { of: to.name, filter: spec.filter.clone(), rate: spec.rate };
    let reader = Reader { replay: Some(replay), ..of.reader };
    Route { name: Arc::clone(&name), lanes: 1, paused: None, reader, left: Vec::new() }.save(db).await?;
    add_lane(db, &name, 0, position.replay_lo(), &position.encode()).await?;
    note(db, actor, "replay", &spec.in_words(&name)).await?;
    Ok(name)
}

/// A route that exists and is no replay.
async fn a_route(db: &Db<'_>, name: &str) -> Work<Route> {
    let route = Route::get(db, name).await?;
    if route.reader.replay.is_some() {
        return Err(Error::invalid("a replay cannot be replayed; name its route").with("route", name).into());
    }
    Ok(route)
}

pub(super) async fn drain_node(db: &Db<'_>, node: NodeId, actor: &Actor) -> Work<()> {
    let Some(row) = db.query_opt(DRAIN_NODE, &[&node.0]).await? else {
        return Err(Error::new(ErrorKind::NotFound, "there is no such live node").with("node", node).into());
    };
    note(db, actor, "drain-node", &format!("{} ({node})", row.try_get::<_, &str>(0)?)).await
}

pub(super) async fn cancel_replay(db: &Db<'_>, name: &str, actor: &Actor) -> Work<()> {
    db.lock("readers", "").await?;
    if Route::find(db, name).await?.is_none_or(|route| route.reader.replay.is_none()) {
        return Err(unknown("replay", name).into());
    }
    forget(db, name).await?;
    note(db, actor, "cancel-replay", name).await
}

pub(super) async fn forget_route(db: &Db<'_>, route: &str, actor: &Actor) -> Work<()> {
    db.lock("readers", "").await?;
    if Route::find(db, route).await?.is_none_or(|known| known.reader.replay.is_some()) {
        return Err(unknown("route", route).into());
    }
    forget(db, route).await?;
    note(db, actor, "forget-route", route).await
}

/// The cursors count nowhere from now on, so whoever takes a lane rebases it. A rebase that is half done begins again.
pub(super) async fn rebase_route(db: &Db<'_>, route: &str, actor: &Actor) -> Work<()> {
    db.lock("readers", "").await?;
    if Route::find(db, route).await?.is_none_or(|known| known.reader.replay.is_some()) {
        return Err(unknown("route", route).into());
    }
    db.lock_route(route).await?;
    for (number, cursor) in (0..).zip(&take_lanes(db, route).await?) {
        let position = Position::decode(cursor)?.before_rebase();
        let position = Position { identity: Identity::NOWHERE, session: 0, ..position };
        // Nothing that is stored may be removed before the rebase has looked at it.
        add_lane(db, route, number, 0, &position.encode()).await?;
    }
    note(db, actor, "rebase-route", route).await
}

/// The newest checkpoint of each lane stays: it is what a former owner runs into.
async fn forget(db: &Db<'_>, name: &str) -> Work<()> {
    for row in db.query(READERS, &[&name]).await? {
        let name: String = row.try_get(0)?;
        db.lock_route(&name).await?;
        db.execute("DELETE FROM {parked} WHERE route = $1", &[&name]).await?;
        drop_lanes(db, &name).await?;
        db.execute("DELETE FROM {route} WHERE name = $1", &[&name]).await?;
    }
    Ok(())
}

/// Notes whose rows were changed, and answers how many.
async fn note_rows(
    db: &Db<'_>,
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

/// Announced by the commit itself: an operator, or a collector with many messages at once, does not come in masses, and has no
/// connection besides.
pub(super) async fn enqueue(db: &Db<'_>, batch: &Batch, actor: Option<&Actor>) -> Work<()> {
    db.append(batch).await?;
    match actor {
        Some(actor) => note(db, actor, "enqueue", &batch.in_words()).await,
        None => Ok(()),
    }
}

/// With the commit the relays of other processes learn that there may be something to do.
pub(super) async fn announce(db: &Db<'_>) -> Work<()> {
    db.execute(ANNOUNCE, &[&db.dialect.channel()]).await?;
    Ok(())
}

pub(crate) async fn note(db: &Db<'_>, actor: &Actor, action: &str, subject: &str) -> Work<()> {
    db.execute(NOTE, &[&actor.name, &actor.reason, &action, &subject]).await?;
    Ok(())
}

pub(super) async fn audit(db: &Db<'_>, limit: u32) -> Work<Vec<AuditEntry>> {
    db.query(AUDIT, &[&i64::from(limit)]).await?.iter().map(entry).collect()
}

pub(super) async fn audit_of(db: &Db<'_>, id: MessageId, limit: u32) -> Work<Vec<AuditEntry>> {
    let rows = db.query(AUDIT_OF, &[&id.to_string()]).await?;
    let entries = rows.iter().map(entry).collect::<Work<Vec<AuditEntry>>>()?;
    Ok(entries.into_iter().filter(|entry| entry.names(id)).take(limit as usize).collect())
}

fn entry(row: &Row) -> Work<AuditEntry> {
    Ok(AuditEntry {
        at: row.try_get::<_, Instant>(0)?.0,
        actor: Actor { name: row.try_get(1)?, reason: row.try_get(2)? },
        action: row.try_get(3)?,
        subject: row.try_get(4)?,
    })
}
