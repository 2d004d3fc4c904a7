//! What an operator does: each change and its audit entry are one transaction.

use std::sync::Arc;

use mongodb::bson::{Document, doc};
use postrider_core::{
    Error, ErrorKind,
    admin::{Actor, AuditEntry, ParkedFilter, ReplaySpec},
    enlist::Batch,
    envelope::MessageId,
    lease::{NodeId, Reader, Replay},
    parked::Ordinal,
    time::Timestamp,
};

use super::rows::conditions;
use crate::{
    cursor::Position,
    db::{Db, Find, Update},
    error::Work,
    lease::{Beginning, add_lanes, drop_lanes, is_live, position},
    parked::{Rows, ordinal},
    records::message_id,
    route::{Route, drop_empty_replays, ended_replays, unknown},
    value::{binary, long, text, text_opt, uuid},
};

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

/// Does it to every matching row, route by route, and answers which rows it changed: of which route and message.
async fn each_row(db: &mut Db, filter: &ParkedFilter, act: Act) -> Work<Vec<(Arc<str>, MessageId)>> {
    let mut changed = Vec::new();
    for (route, found) in matching(db, filter).await? {
        let mut rows = Rows::new(db, &route, 0).await?;
        let places: Vec<Ordinal> = found.iter().map(|(place, _)| *place).collect();
        let done = match act {
            Act::Redrive => rows.redrive(&places).await?,
            Act::Discard => rows.remove(&places).await?,
        };
        rows.finish().await?;
        let of_route = found.iter().filter(|(place, _)| done.contains(place));
        changed.extend(of_route.map(|(_, id)| (Arc::from(&*route), *id)));
    }
    Ok(changed)
}

/// Gathered before anything changes, so that no change meets its own result.
async fn matching(db: &mut Db, filter: &ParkedFilter) -> Work<Vec<(String, Vec<(Ordinal, MessageId)>)>> {
    let find = Find::new(conditions(filter)).sort(doc! { "route": 1, "ordinal": 1 });
    let mut found: Vec<(String, Vec<(Ordinal, MessageId)>)> = Vec::new();
    for row in db.find("parked", find.fields(doc! { "route": 1, "ordinal": 1, "id": 1 })).await? {
        let (route, place) = (text(&row, "route")?, ordinal(long(&row, "ordinal")?));
        let row = (place, MessageId(message_id(&row)));
        match found.last_mut().filter(|(last, _)| last == route) {
            Some((_, rows)) => rows.push(row),
            None => found.push((route.to_owned(), vec![row])),
        }
    }
    Ok(found)
}

/// A replay that has ended goes on for the sake of a redriven row: it gets its lane back, at its end.
async fn revive_replays(db: &mut Db) -> Work<()> {
    for name in ended_replays(db).await? {
        let waiting = doc! { "route": &name, "state": { "$ne": "dead" } };
        if db.find_one("parked", waiting).await?.is_some() {
            let end = Route::get(db, &name).await?.replay_end.unwrap_or_default();
            add_lanes(db, &name, 1, &Position::Scan { until: end, at: end, lost: false, among: None }).await?;
        }
    }
    Ok(())
}

pub(super) async fn pause(db: &mut Db, route: &str, actor: &Actor) -> Work<()> {
    let by = doc! { "paused_by": &actor.name, "paused_reason": actor.reason.clone() };
    set_paused(db, route, doc! { "$set": by }).await?;
    note(db, actor, "pause", route).await
}

pub(super) async fn resume(db: &mut Db, route: &str, actor: &Actor) -> Work<()> {
    set_paused(db, route, doc! { "$unset": { "paused_by": "", "paused_reason": "" } }).await?;
    note(db, actor, "resume", route).await
}

async fn set_paused(db: &mut Db, route: &str, change: Document) -> Work<()> {
    let met = db.update("route", Update::one(doc! { "_id": route }, change)).await?;
    if met == 0 { Err(unknown("route", route).into()) } else { Ok(()) }
}

/// One lane is enough: a replay is read at its own pace. It begins with the oldest message and ends with what is committed by
/// now.
pub(super) async fn replay(db: &mut Db, spec: &ReplaySpec, actor: &Actor, beginning: &Beginning) -> Work<Arc<str>> {
    db.lock_readers().await?;
    let of = a_route(db, &spec.route).await?;
    let to = a_route(db, spec.to.as_ref().unwrap_or(&spec.route)).await?;
    let replay = Replay { of: to.name, filter: spec.filter.clone(), rate: spec.rate };
    let name: Arc<str> = format!("{}#replay-{}", spec.route, db.draw("replay").await?).into();
    let route = Route {
        name: Arc::clone(&name),
        lanes: 1,
        paused: None,
        reader: Reader { replay: Some(replay), ..of.reader },
        replay_end: Some(beginning.committed),
        left: Vec::new(),
    };
    route.save(db, beginning).await?;
    add_lanes(db, &name, 1, &Position::oldest(beginning.committed)).await?;
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

/// Every lane scans the collection for what it has not passed, and goes on with the stream from now. Its owners are fenced:
/// they would go on from where they were.
pub(super) async fn rebase_route(db: &mut Db, route: &str, actor: &Actor, beginning: &Beginning) -> Work<()> {
    db.lock_readers().await?;
    a_route(db, route).await?;
    // From now on it reads the collection that is there, whichever it read before.
    let reads = match &beginning.log {
        Some(log) => doc! { "$set": { "log": log } },
        None => doc! { "$unset": { "log": "" } },
    };
    db.update("route", Update::one(doc! { "_id": route }, reads)).await?;
    let epoch = db.draw_epoch().await?;
    for lane in db.find("lane", Find::new(doc! { "route": route })).await? {
        let rebased = position(&lane)?.rebase(beginning.committed, beginning.overlap);
        let set = doc! { "epoch": epoch, "cursor": binary(&rebased.encode().0) };
        let change = doc! { "$set": set, "$unset": { "owner": "", "expires_at": "", "settled": "" } };
        db.update("lane", Update::one(doc! { "_id": text(&lane, "_id")? }, change)).await?;
    }
    note(db, actor, "rebase-route", route).await
}

pub(super) async fn drain_node(db: &mut Db, node: NodeId, actor: &Actor) -> Work<()> {
    let now = db.now().await?;
    let found = db.find_one("node", doc! { "_id": uuid(node.0) }).await?;
    let live = match found {
        Some(found) if is_live(&found, now)? => found,
        _ => return Err(Error::new(ErrorKind::NotFound, "there is no such live node").with("node", node).into()),
    };
    let leave = doc! { "$set": { "leaving": true } };
    db.update("node", Update::one(doc! { "_id": uuid(node.0) }, leave)).await?;
    note(db, actor, "drain-node", &format!("{} ({node})", text(&live, "name")?)).await
}

pub(super) async fn cancel_replay(db: &mut Db, name: &str, actor: &Actor) -> Work<()> {
    db.lock_readers().await?;
    if Route::find(db, name).await?.is_none_or(|route| route.reader.replay.is_none()) {
        return Err(unknown("replay", name).into());
    }
    forget(db, name).await?;
    note(db, actor, "cancel-replay", name).await
}

pub(super) async fn forget_route(db: &mut Db, route: &str, actor: &Actor) -> Work<()> {
    db.lock_readers().await?;
    if Route::find(db, route).await?.is_none_or(|known| known.reader.replay.is_some()) {
        return Err(unknown("route", route).into());
    }
    forget(db, route).await?;
    note(db, actor, "forget-route", route).await
}

/// A route and its replays, or one replay: everything that is kept under these names.
async fn forget(db: &mut Db, name: &str) -> Work<()> {
    let readers = Find::new(doc! { "$or": [{ "_id": name }, { "replay_of": name }] }).fields(doc! { "_id": 1 });
    for reader in db.find("route", readers).await? {
        let name = text(&reader, "_id")?;
        db.delete("parked", doc! { "route": name }).await?;
        drop_lanes(db, name).await?;
        db.delete("route", doc! { "_id": name }).await?;
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
    let (number, at) = (db.draw("audit").await?, db.now().await?.as_micros());
    let (name, reason) = (&actor.name, actor.reason.clone());
    let entry = doc! { "_id": number, "at": at, "actor": name, "reason": reason, "action": action, "subject": subject };
    db.insert("audit", vec![entry]).await
}

pub(super) async fn audit(db: &mut Db, limit: u32) -> Work<Vec<AuditEntry>> {
    if limit == 0 {
        return Ok(Vec::new());
    }
    let newest = Find::default().sort(doc! { "_id": -1 }).limit(i64::from(limit));
    db.find("audit", newest).await?.iter().map(entry).collect()
}

/// Those that hold the id as text: a pass over the record. An id has no sign that means something in a pattern.
pub(super) async fn audit_of(db: &mut Db, id: MessageId, limit: u32) -> Work<Vec<AuditEntry>> {
    let about = Find::new(doc! { "subject": { "$regex": id.to_string() } }).sort(doc! { "_id": -1 });
    let entries = db.find("audit", about).await?.iter().map(entry).collect::<Work<Vec<AuditEntry>>>()?;
    Ok(entries.into_iter().filter(|entry| entry.names(id)).take(limit as usize).collect())
}

fn entry(document: &Document) -> Work<AuditEntry> {
    let reason = text_opt(document, "reason").map(ToOwned::to_owned);
    Ok(AuditEntry {
        at: Timestamp::from_micros(long(document, "at")?),
        actor: Actor { name: text(document, "actor")?.to_owned(), reason },
        action: text(document, "action")?.to_owned(),
        subject: text(document, "subject")?.to_owned(),
    })
}
