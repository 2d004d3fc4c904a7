//! Nodes, routes and who may act on which lane.
//!
//! A lane's lease and cursor are one document, so that a takeover and a settlement meet on it. Epochs come from one counter
//! of the whole store and from its clock, so a number is never given twice, not even after a route was forgotten and made
//! again: a stale owner can match nothing. All instants are the server's, `$$NOW`. A heartbeat asks for it once and extends the
//! node's leases from there in a second command, so that a lease ends rather too early than too late. Where that clock has
//! gone back or has leapt ahead, as it does with a primary that is behind the last one or ahead of it, see [`crate::clock`].

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use mongodb::bson::{Bson, Document, doc};
use postrider_core::{
    Error, ErrorKind,
    asked::Asked,
    lease::{
        Epoch, LaneId, LaneStanding, Lease, Node, NodeId, NodeStanding, Reader, Roster, RouteSpec, RouteStanding, Start,
    },
    log::Cursor,
    standstill::Standstill,
    time::Timestamp,
};

use crate::{
    clock::{Pace, is_ahead, was_ahead},
    cursor::{Position, Tick},
    db::{Db, Find, Update, server_now},
    error::{Work, corrupt},
    route::{self, Route},
    value::{binary, int, is_true, long, long_opt, text, uuid, uuid_opt},
};

/// How long a write of a lease may take that is asked for again with the next heartbeat.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// How long a heartbeat may take: so long that one more fits before the node stops by itself.
pub(crate) fn beat_patience(node: &Node) -> Duration {
    (node.lease_life / 3).max(Duration::from_secs(1))
}

/// What a registration needs to know of the log before it begins.
#[derive(Clone)]
pub(crate) struct Beginning {
    /// Everything up to here is committed.
    pub(crate) committed: Tick,
    pub(crate) overlap: Tick,
    /// The collection of the log, as far as it is known. Asked after the point: if it was dropped in between, the stream tells.
    pub(crate) log: Option<Bson>,
}

impl Beginning {
    pub(crate) async fn of(db: &mut Db, overlap: Tick) -> Work<Self> {
        Ok(Self { committed: db.committed().await?, overlap, log: db.described_log().await?.id() })
    }
}

/// Answers when it was, by the server's clock.
pub(crate) async fn register(db: &mut Db, node: &Node, routes: &[RouteSpec], beginning: &Beginning) -> Work<Timestamp> {
    // Retention must not meet a reader that is half known, and of two that register the second knows of the first.
    db.lock_readers().await?;
    let now = see(db, node).await?;
    let live = live_nodes(db, now).await?;
    for spec in routes {
        register_route(db, node.id, spec, &live, beginning, now).await?;
    }
    Ok(now)
}

async fn live_nodes(db: &mut Db, now: Timestamp) -> Work<Vec<NodeStanding>> {
    let mut live = Vec::new();
    for found in db.find("node", Find::default()).await? {
        if is_live(&found, now)? {
            live.push(NodeStanding { id: node_id(&found, "_id")?, routes: names(&found) });
        }
    }
    Ok(live)
}

async fn register_route(
    db: &mut Db,
    node: NodeId,
    spec: &RouteSpec,
    live: &[NodeStanding],
    beginning: &Beginning,
    now: Timestamp,
) -> Work<()> {
    spec.check()?;
    let known = Route::find(db, &spec.name).await?;
    let stored = route::asked(db, &spec.name).await?;
    let mut asked = Asked::decode(stored.as_deref());
    let has = known.as_ref().map(|known| (&known.reader, known.lanes));
    let wanted = asked.hear(node, spec, has, live);
    if let Some(known) = known.as_ref().filter(|known| Asked::changes_topics(&known.reader, &wanted)) {
        asked.note_topics(&known.reader, &wanted, &cursors(db, &known.name).await?, now);
    }
    change_route(db, &wanted, known.as_ref(), beginning).await?;
    let asked = asked.encode();
    if stored.as_deref() != Some(&*asked) {
        let change = doc! { "$set": { "asked": asked } };
        db.update("route", Update::one(doc! { "_id": &*spec.name }, change)).await?;
    }
    Ok(())
}

/// Fences the owners not only when the number of lanes changes, but also when topics or order do: an owner that went on
/// with the old filter would pass over what the new one asks for. As many lanes as before stay where they are.
async fn change_route(db: &mut Db, spec: &RouteSpec, known: Option<&Route>, beginning: &Beginning) -> Work<()> {
    let reader = Reader { topics: spec.topics.clone(), order: spec.order, replay: None };
    if known.is_some_and(|known| known.lanes == spec.lanes && known.reader == reader) {
        return Ok(());
    }
    let (name, lanes, left) = (Arc::clone(&spec.name), spec.lanes, Vec::new());
    let route = Route { name, lanes, paused: None, reader, replay_end: None, left };
    route.save(db, beginning).await?;
    let Beginning { committed, overlap, .. } = *beginning;
    let begin = match (known, spec.start) {
        (Some(known), _) if known.lanes == spec.lanes => {
            let epoch = db.draw_epoch().await?;
            let free = doc! { "$set": { "epoch": epoch }, "$unset": { "owner": "", "expires_at": "", "settled": "" } };
            db.update("lane", Update::many(doc! { "route": &*spec.name }, free)).await?;
            return Ok(());
        }
        (Some(_), _) => {
            let lanes = db.find("lane", Find::new(doc! { "route": &*spec.name })).await?;
            let positions = lanes.iter().map(position).collect::<Work<Vec<_>>>()?;
            Position::least(positions, committed, overlap)
        }
        (None, Start::Oldest) => Position::oldest(committed),
        (None, Start::Now) => Position::behind(committed),
    };
    drop_lanes(db, &spec.name).await?;
    add_lanes(db, &spec.name, spec.lanes, &begin).await
}

/// Where each lane is, by number.
async fn cursors(db: &mut Db, route: &str) -> Work<Vec<Cursor>> {
    let lanes = db.find("lane", Find::new(doc! { "route": route }).sort(doc! { "number": 1 })).await?;
    lanes.iter().map(|lane| Ok(position(lane)?.encode())).collect()
}

/// Free lanes under a fresh epoch, all at the same place.
pub(crate) async fn add_lanes(db: &mut Db, route: &str, lanes: u32, at: &Position) -> Work<()> {
    let epoch = db.draw_epoch().await?;
    let cursor = binary(&at.encode().0);
    let lane = |number: u32| {
        let id = LaneId { route: route.into(), number }.to_string();
        let number = i64::from(number);
        doc! { "_id": id, "route": route, "number": number, "epoch": epoch, "cursor": cursor.clone(), "beat": 0_i64 }
    };
    db.insert("lane", (0..lanes).map(lane).collect()).await
}

pub(crate) async fn drop_lanes(db: &mut Db, route: &str) -> Work<()> {
    db.delete("lane", doc! { "route": route }).await?;
    Ok(())
}

/// Not one transaction: an owner that settles all the time would make it start over and over. Who is there and who owns what
/// is then looked at in one state.
///
/// Answers when it was, by the server's clock: the instant by which the look tells who is live, however long it takes.
pub(crate) async fn heartbeat(db: &mut Db, node: &Node) -> Work<Timestamp> {
    let now = see(db, node).await?;
    let extend = doc! { "expires_at": now.as_micros().saturating_add(life(node)), "lease_life": life(node) };
    let extend = doc! { "$set": extend };
    db.update("lane", Update::many(doc! { "owner": uuid(node.id.0) }, extend)).await?;
    Ok(now)
}

pub(crate) async fn forget_dead(db: &mut Db) -> Work<()> {
    let over = doc! { "$lte": [{ "$add": ["$seen_at", "$lease_life"] }, server_now()] };
    db.delete("node", doc! { "$expr": over }).await?;
    Ok(())
}

async fn see(db: &mut Db, node: &Node) -> Work<Timestamp> {
    let routes: Vec<Bson> = node.routes.iter().map(|route| Bson::from(&**route)).collect();
    let literal = |value: Bson| doc! { "$literal": value };
    // A pipeline, for the clock; so every text is said to be one, and not an expression.
    let said = doc! {
        "name": literal(node.name.clone().into()),
        "routes": literal(routes.into()),
        "lease_life": life(node),
        "standstills": literal(Standstill::encode(&node.standstills).into()),
        "seen_at": server_now(),
        // Asked before it is overwritten: with one node there is perhaps nothing else that tells.
        "ahead": { "$or": [{ "$ifNull": ["$ahead", false] }, was_ahead("$seen_at")] },
        "leaving": { "$ifNull": ["$leaving", false] },
    };
    let seen = db.find_and_upsert("node", doc! { "_id": uuid(node.id.0) }, vec![doc! { "$set": said }]).await?;
    Ok(Timestamp::from_micros(long(&seen, "seen_at")?))
}

/// In microseconds, and not so long that the sum with an instant overflows.
fn life(node: &Node) -> i64 {
    Timestamp::from_micros(0).saturating_add(node.lease_life).as_micros().min(LIFE_MICROS_MAX)
}

/// Ten thousand years.
const LIFE_MICROS_MAX: i64 = 10_000 * 366 * 86_400 * 1_000_000;

/// What a look at the roster shows besides.
#[derive(Default)]
pub(crate) struct Upkeep {
    /// A dead node is still listed.
    pub(crate) dead: bool,
    /// Something was written at an instant that is not yet.
    pub(crate) ahead: bool,
}

/// In one state of the database, as of `now`.
pub(crate) async fn roster(db: &mut Db, node: NodeId, now: Timestamp) -> Work<(Roster, Upkeep)> {
    let mut roster = Roster::default();
    let mut upkeep = Upkeep::default();
    for found in db.find("node", Find::default().sort(doc! { "_id": 1 })).await? {
        let standing = NodeStanding { id: node_id(&found, "_id")?, routes: names(&found) };
        roster.leave |= standing.id == node && is_true(&found, "leaving");
        if is_live(&found, now)? {
            roster.nodes.push(standing);
        } else {
            upkeep.dead = true;
        }
        upkeep.ahead |= is_true(&found, "ahead") || is_ahead(Timestamp::from_micros(long(&found, "seen_at")?), now);
    }
    let routes = Route::all(db).await?;
    let live = routes.values().filter(|route| route.reader.replay.is_none());
    roster.routes.extend(
        live.map(|route| RouteStanding { route: Arc::clone(&route.name), topics: route.reader.topics.clone() }),
    );
    let paused = |route: &Route| route.paused.is_some();
    for (name, lanes) in lanes(db, now).await? {
        // A lane and its route come and go together.
        let Some(route) = routes.get(&name) else { continue };
        upkeep.ahead |= lanes.iter().any(|lane| lane.given_at.is_some_and(|at| is_ahead(at, now)));
        roster.lanes.extend(lanes.into_iter().map(|lane| LaneStanding {
            lane: LaneId { route: Arc::clone(&route.name), number: lane.number },
            served_by: Arc::clone(route.served_by()),
            owner: lane.owner,
            epoch: lane.epoch,
            // A replay waits while its route is paused: both publish to the same destination.
            paused: paused(route) || routes.get(route.served_by()).is_some_and(paused),
        }));
    }
    roster.lanes.sort_by(|one, other| one.lane.cmp(&other.lane));
    Ok((roster, upkeep))
}

/// Whether a node has sent its heartbeat within its lease life.
pub(crate) fn is_live(node: &Document, now: Timestamp) -> Work<bool> {
    Ok(long(node, "seen_at")?.saturating_add(long(node, "lease_life")?) > now.as_micros())
}

/// One lane as it is stored.
pub(crate) struct LaneRow {
    pub(crate) number: u32,
    pub(crate) owner: Option<NodeId>,
    /// How long the owner still has.
    pub(crate) expires_in: Option<Duration>,
    /// When the lease was given, or last extended.
    given_at: Option<Timestamp>,
    pub(crate) epoch: Epoch,
    pub(crate) at: Position,
    /// When a scan last had to make up for lost history, if one had to.
    pub(crate) recovered: Option<Timestamp>,
}

/// The lanes of every route, by number.
pub(crate) async fn lanes(db: &mut Db, now: Timestamp) -> Work<HashMap<Arc<str>, Vec<LaneRow>>> {
    let mut lanes: HashMap<Arc<str>, Vec<LaneRow>> = HashMap::new();
    for found in db.find("lane", Find::default().sort(doc! { "route": 1, "number": 1 })).await? {
        let expires_at = long_opt(&found, "expires_at").map(Timestamp::from_micros);
        let owner = uuid_opt(&found, "owner").filter(|_| expires_at.is_some_and(|at| at > now)).map(NodeId);
        lanes.entry(text(&found, "route")?.into()).or_default().push(LaneRow {
            number: int(&found, "number")?,
            owner,
            expires_in: expires_at.filter(|_| owner.is_some()).map(|at| at.since(now)),
            given_at: expires_at
                .zip(long_opt(&found, "lease_life"))
                .map(|(at, life)| Timestamp::from_micros(at.as_micros().saturating_sub(life))),
            epoch: Epoch(long(&found, "epoch")?.cast_unsigned()),
            at: position(&found)?,
            recovered: long_opt(&found, "recovered_at").map(Timestamp::from_micros),
        });
    }
    Ok(lanes)
}

/// The cursor of a lane.
pub(crate) fn position(lane: &Document) -> Work<Position> {
    let cursor = lane.get_binary_generic("cursor").map_err(|_| corrupt("a lane has no cursor"))?;
    Ok(Position::decode(cursor)?)
}

pub(crate) async fn retire(db: &mut Db, node: NodeId) -> Work<()> {
    let free = doc! { "$unset": { "owner": "", "expires_at": "" } };
    db.update("lane", Update::many(doc! { "owner": uuid(node.0) }, free)).await?;
    db.delete("node", doc! { "_id": uuid(node.0) }).await?;
    Ok(())
}

/// A fresh epoch for a lane that is free, or whose lease is over. `None`: it is somebody's; most are answered by that look.
///
/// A node that asks for a lane which it owns already gets it under a new epoch: the answer to its first request was lost,
/// and since its heartbeats extend the lease nobody else could ever take the lane.
///
/// A lease that is over by a clock which has just leapt ahead is not over yet: its owner may live.
pub(crate) async fn claim(db: &mut Db, lane: &LaneId, node: &Node, pace: &Pace) -> Work<Option<i64>> {
    let Some(found) = db.find_one("lane", free(lane, node)).await? else { return Ok(None) };
    if uuid_opt(&found, "owner").is_some_and(|owner| owner != node.id.0) {
        let asked_at = Instant::now();
        pace.note(asked_at, db.now().await?);
        let life = Duration::from_micros(long_opt(&found, "lease_life").unwrap_or(0).unsigned_abs());
        if pace.has_leapt_within(life) {
            return Ok(None);
        }
    }
    db.draw_epoch().await.map(Some)
}

/// Takes the lane, or finds that another was faster. In a transaction, not because it were several steps, but because a lane
/// that an open transaction has written is then refused at once instead of waited for: an owner that died in the middle of a
/// settlement has left one, and whoever takes over has heartbeats to send.
pub(crate) async fn take(db: &mut Db, lane: &LaneId, node: &Node, epoch: i64) -> Work<bool> {
    let mut filter = free(lane, node);
    filter.insert("epoch", doc! { "$lt": epoch });
    let taken = doc! {
        "epoch": epoch,
        "owner": uuid(node.id.0),
        "expires_at": { "$add": [server_now(), life(node)] },
        "lease_life": life(node),
        "beat": { "$add": ["$beat", 1_i64] },
    };
    // A new epoch begins its count of settlements anew.
    let change = vec![doc! { "$set": taken }, doc! { "$unset": "settled" }];
    Ok(db.find_and_update("lane", filter, change).await?.is_some())
}

/// The lease of a lane that was taken. The reader is looked up after that: whoever changes it raises the epoch, so that a lease
/// with the wrong one is fenced.
pub(crate) async fn given(db: &mut Db, lane: &LaneId, epoch: i64) -> Work<Option<Lease>> {
    let Some(route) = Route::find(db, &lane.route).await? else { return Ok(None) };
    Ok(Some(Lease {
        lane: LaneId { route: route.name, number: lane.number },
        lanes: route.lanes,
        epoch: Epoch(epoch.cast_unsigned()),
        reader: Arc::new(route.reader),
    }))
}

/// Why a lane that is nobody's cannot be had.
pub(crate) fn is_held(lane: &LaneId) -> Error {
    let what = "the lane is free, and a transaction that is still open has written to it; if its process has died, the \
                server ends it after transactionLifetimeLimitSeconds";
    Error::new(ErrorKind::Conflict, what).with("lane", lane)
}

/// The lane, if the node may have it.
fn free(lane: &LaneId, node: &Node) -> Document {
    let expired = doc! { "$lte": [{ "$ifNull": ["$expires_at", 0_i64] }, server_now()] };
    let free = doc! { "$or": [{ "owner": null }, { "owner": uuid(node.id.0) }, { "$expr": expired }] };
    doc! { "_id": lane.to_string(), "$and": [free] }
}

pub(crate) async fn release(db: &mut Db, lease: &Lease) -> Work<()> {
    let free = doc! { "$unset": { "owner": "", "expires_at": "" }, "$inc": { "beat": 1_i64 } };
    let met = db.update("lane", Update::one(named(lease), free)).await?;
    if met == 0 { Err(Error::fenced().into()) } else { Ok(()) }
}

/// Fails unless the lease's epoch is the current one. Looking is no fence for what is written afterwards: only a write to the
/// lane is.
pub(crate) async fn fence(db: &mut Db, lease: &Lease) -> Work<()> {
    match db.find_one("lane", named(lease)).await? {
        Some(_) => Ok(()),
        None => Err(Error::fenced().into()),
    }
}

/// The lane of a lease, while its epoch is the current one.
pub(crate) fn named(lease: &Lease) -> Document {
    doc! { "_id": lease.lane.to_string(), "epoch": lease.epoch.0.cast_signed() }
}

pub(crate) fn node_id(document: &Document, name: &str) -> Work<NodeId> {
    Ok(NodeId(uuid_opt(document, name).ok_or_else(|| corrupt("a node's id has 16 bytes"))?))
}

pub(crate) fn names(node: &Document) -> Vec<Arc<str>> {
    let routes = node.get_array("routes").map(Vec::as_slice).unwrap_or_default();
    routes.iter().filter_map(Bson::as_str).map(Arc::from).collect()
}
