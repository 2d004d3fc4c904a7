//! Nodes, routes and who may act on which lane.
//!
//! A lane's lease and cursor are one row. Epochs come from one counter of the whole store and from its clock, so a number is
//! never given twice, not even after a route was forgotten and made again: a stale owner can match nothing. A lease counts on the
//! server where it was taken alone (see [`crate::identity`]). All instants are the server's; where its clock
//! goes back, see [`crate::clock`].

use std::{collections::HashMap, sync::Arc, time::Duration};

use mysql_async::Value;
use postrider_core::{
    Error,
    asked::Asked,
    lease::{
        Epoch, LaneId, LaneStanding, Lease, Node, NodeId, NodeStanding, Reader, Roster, RouteSpec, RouteStanding, Start,
    },
    log::Cursor,
    standstill::Standstill,
    time::Timestamp,
};
use uuid::Uuid;

use crate::{
    clock, cursor,
    db::{Db, bytes, get, values},
    error::{Work, corrupt},
    route::Route,
};

const SEE: &str = "
INSERT INTO {p}node (id, name, routes, lease_life, standstills, seen_at) VALUES (?, ?, ?, ?, ?, ?)
    ON DUPLICATE KEY UPDATE name = VALUES(name), routes = VALUES(routes), lease_life = VALUES(lease_life),
                            standstills = VALUES(standstills), seen_at = VALUES(seen_at)";

/// Found without a lock first, so that two nodes which take each other for dead do not wait for each other.
const DEAD: &str = "SELECT id FROM {p}node WHERE seen_at + lease_life <= ?";

const FORGET_DEAD: &str = "DELETE FROM {p}node WHERE id = ? AND seen_at + lease_life <= ?";

const EXTEND: &str = "UPDATE {p}lane SET expires_at = ? WHERE route = ? AND number = ? AND owner = ?";

const OWNED: &str = "SELECT route, number FROM {p}lane WHERE owner = ? ORDER BY route, number";

const NODES: &str = "SELECT id, routes FROM {p}node WHERE seen_at + lease_life > ? ORDER BY id";

const ASKED: &str = "SELECT asked FROM {p}route WHERE name = ?";

const SET_ASKED: &str = "UPDATE {p}route SET asked = ? WHERE name = ?";

const LANES: &str = "SELECT route, number, owner, expires_at, epoch, passed FROM {p}lane ORDER BY route, number";

const LEAVING: &str = "SELECT leaving FROM {p}node WHERE id = ?";

const RETIRE: &str = "DELETE FROM {p}node WHERE id = ?";

const FREE: &str = "
UPDATE {p}lane SET owner = NULL, expires_at = NULL
 WHERE route = ? AND number = ? AND owner = ?";

const OWNER: &str = "SELECT owner, expires_at FROM {p}lane WHERE route = ? AND number = ?";

/// A new epoch begins its count of settlements anew.
const TAKE: &str = "
UPDATE {p}lane SET epoch = ?, owner = ?, expires_at = ?, settled = NULL
 WHERE route = ? AND number = ?";

const RELEASE: &str = "
UPDATE {p}lane SET owner = NULL, expires_at = NULL
 WHERE route = ? AND number = ? AND epoch = ?";

const CURRENT: &str = "SELECT 1 FROM {p}lane WHERE route = ? AND number = ? AND epoch = ?";

const PASSED: &str = "SELECT passed FROM {p}lane WHERE route = ? ORDER BY number";

const LEAST: &str = "SELECT MIN(passed) FROM {p}lane WHERE route = ?";

/// One fresh epoch for all lanes of a route, which are free afterwards.
const FENCE_ALL: &str = "
UPDATE {p}lane SET epoch = ?, owner = NULL, expires_at = NULL, settled = NULL
 WHERE route = ?";

const DROP_LANES: &str = "DELETE FROM {p}lane WHERE route = ?";

const DROP_LANE: &str = "DELETE FROM {p}lane WHERE route = ? AND number = ? AND epoch = ?";

const ADD_LANE: &str = "INSERT INTO {p}lane (route, number, epoch, passed) VALUES (?, ?, ?, ?)";

/// What is committed has its place by now, so that a route that begins now begins behind it.
pub(crate) async fn register(db: &mut Db, node: &Node, routes: &[RouteSpec]) -> Work<()> {
    // Retention must not meet a reader that is half known, and of two that register the second knows of the first.
    db.lock("readers").await?;
    clock::catch_up(db).await?;
    let now = db.now().await?;
    see(db, node, now).await?;
    let live = live_nodes(db, now).await?;
    for spec in routes {
        register_route(db, node.id, spec, &live, now).await?;
    }
    Ok(())
}

async fn register_route(
    db: &mut Db,
    node: NodeId,
    spec: &RouteSpec,
    live: &[NodeStanding],
    now: Timestamp,
) -> Work<()> {
    spec.check()?;
    let known = Route::find(db, &spec.name).await?;
    let stored: Option<String> = match db.query_opt(ASKED, values![&*spec.name]).await? {
        Some(row) => get(&row, 0)?,
        None => None,
    };
    let mut asked = Asked::decode(stored.as_deref());
    let has = known.as_ref().map(|known| (&known.reader, known.lanes));
    let wanted = asked.hear(node, spec, has, live);
    if let Some(known) = known.as_ref().filter(|known| Asked::changes_topics(&known.reader, &wanted)) {
        db.lock_route(&known.name).await?;
        asked.note_topics(&known.reader, &wanted, &cursors(db, &known.name).await?, now);
    }
    change_route(db, &wanted, known.as_ref()).await?;
    let asked = asked.encode();
    if stored.as_deref() != Some(&*asked) {
        db.execute(SET_ASKED, values![asked, &*spec.name]).await?;
    }
    Ok(())
}

/// Fences the owners not only when the number of lanes changes, but also when topics or order do: an owner that went on
/// with the old filter would pass over what the new one asks for. As many lanes as before stay where they are.
async fn change_route(db: &mut Db, spec: &RouteSpec, known: Option<&Route>) -> Work<()> {
    let reader = Reader { topics: spec.topics.clone(), order: spec.order, replay: None };
    if known.is_some_and(|known| known.lanes == spec.lanes && known.reader == reader) {
        return Ok(());
    }
    if known.is_some() {
        db.lock_route(&spec.name).await?;
    }
    let (name, lanes, left) = (Arc::clone(&spec.name), spec.lanes, Vec::new());
    let route = Route { name, lanes, paused: None, reader, replay_end: None, left };
    route.save(db).await?;
    let begin = match (known, spec.start) {
        (Some(known), _) if known.lanes == spec.lanes => {
            let epoch = db.draw_epoch().await?;
            db.execute(FENCE_ALL, values![epoch, &*spec.name]).await?;
            return Ok(());
        }
        (Some(_), _) => get(&db.query_one(LEAST, values![&*spec.name]).await?, 0)?,
        (None, Start::Oldest) => 0,
        (None, Start::Now) => db.counter("place").await?,
    };
    db.execute(DROP_LANES, values![&*spec.name]).await?;
    add_lanes(db, &spec.name, spec.lanes, begin).await
}

/// Where each lane is, by number. Under the route's lock.
async fn cursors(db: &mut Db, route: &str) -> Work<Vec<Cursor>> {
    let rows = db.query(PASSED, values![route]).await?;
    rows.iter().map(|row| Ok(cursor::encode(get(row, 0)?))).collect()
}

/// Free lanes under a fresh epoch, all at the same place.
pub(crate) async fn add_lanes(db: &mut Db, route: &str, lanes: u32, passed: i64) -> Work<()> {
    let epoch = db.draw_epoch().await?;
    for number in 0..lanes {
        db.execute(ADD_LANE, values![route, number, epoch, passed]).await?;
    }
    Ok(())
}

pub(crate) async fn drop_lanes(db: &mut Db, route: &str) -> Work<()> {
    db.execute(DROP_LANES, values![route]).await?;
    Ok(())
}

pub(crate) async fn drop_lane(db: &mut Db, lease: &Lease) -> Work<()> {
    db.execute(DROP_LANE, named(lease)).await?;
    Ok(())
}

pub(crate) async fn heartbeat(db: &mut Db, node: &Node) -> Work<Roster> {
    clock::catch_up(db).await?;
    let now = db.now().await?;
    see(db, node, now).await?;
    let until = now.saturating_add(node.lease_life).as_micros();
    for lane in owned(db, node.id).await? {
        db.execute(EXTEND, values![until, &*lane.route, lane.number, id_bytes(node.id)]).await?;
    }
    for row in db.query(DEAD, values![now.as_micros()]).await? {
        db.execute(FORGET_DEAD, values![bytes(&row, 0).unwrap_or_default(), now.as_micros()]).await?;
    }
    let leave = get(&db.query_one(LEAVING, values![id_bytes(node.id)]).await?, 0)?;
    Ok(Roster { leave, ..roster(db, now).await? })
}

/// By primary key afterwards, so that only these rows are ever locked, in the order of their ids.
async fn owned(db: &mut Db, node: NodeId) -> Work<Vec<LaneId>> {
    let mut lanes = Vec::new();
    for row in db.query(OWNED, values![id_bytes(node)]).await? {
        lanes.push(LaneId { route: get::<String>(&row, 0)?.into(), number: get(&row, 1)? });
    }
    Ok(lanes)
}

async fn see(db: &mut Db, node: &Node, now: Timestamp) -> Work<()> {
    let routes = serde_json::to_string(&node.routes).expect("names are JSON");
    let life = Timestamp::from_micros(0).saturating_add(node.lease_life).as_micros().min(LIFE_MICROS_MAX);
    let standstills = Standstill::encode(&node.standstills);
    let values = values![id_bytes(node.id), &*node.name, routes, life, standstills, now.as_micros()];
    db.execute(SEE, values).await?;
    Ok(())
}

/// Ten thousand years: an endless lease must not overflow the sum with an instant.
pub(crate) const LIFE_MICROS_MAX: i64 = 10_000 * 366 * 86_400 * 1_000_000;

async fn roster(db: &mut Db, now: Timestamp) -> Work<Roster> {
    let mut roster = Roster { nodes: live_nodes(db, now).await?, ..Roster::default() };
    let routes = Route::all(db).await?;
    let live = routes.values().filter(|route| route.reader.replay.is_none());
    roster.routes.extend(
        live.map(|route| RouteStanding { route: Arc::clone(&route.name), topics: route.reader.topics.clone() }),
    );
    let paused = |route: &Route| route.paused.is_some();
    for (name, lanes) in lanes(db, now).await? {
        // A lane and its route come and go together; one that was looked at in between is not there.
        let Some(route) = routes.get(&name) else { continue };
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
    Ok(roster)
}

async fn live_nodes(db: &mut Db, now: Timestamp) -> Work<Vec<NodeStanding>> {
    let mut nodes = Vec::new();
    for row in db.query(NODES, values![now.as_micros()]).await? {
        nodes.push(NodeStanding { id: node_id(&row, 0)?, routes: names(&get::<String>(&row, 1)?)? });
    }
    Ok(nodes)
}

/// One lane as it is stored.
pub(crate) struct LaneRow {
    pub(crate) number: u32,
    pub(crate) owner: Option<NodeId>,
    /// How long the owner still has.
    pub(crate) expires_in: Option<Duration>,
    pub(crate) epoch: Epoch,
    pub(crate) passed: i64,
}

/// The lanes of every route, by number.
pub(crate) async fn lanes(db: &mut Db, now: Timestamp) -> Work<HashMap<Arc<str>, Vec<LaneRow>>> {
    let mut lanes: HashMap<Arc<str>, Vec<LaneRow>> = HashMap::new();
    for row in db.query(LANES, Vec::new()).await? {
        let expires_at = get::<Option<i64>>(&row, 3)?.map(Timestamp::from_micros);
        let owner = live_owner(bytes(&row, 2), expires_at, now)?;
        lanes.entry(get::<String>(&row, 0)?.into()).or_default().push(LaneRow {
            number: get(&row, 1)?,
            owner,
            expires_in: expires_at.filter(|_| owner.is_some()).map(|at| at.since(now)),
            epoch: Epoch(get::<i64>(&row, 4)?.cast_unsigned()),
            passed: get(&row, 5)?,
        });
    }
    Ok(lanes)
}

pub(crate) async fn retire(db: &mut Db, node: NodeId) -> Work<()> {
    for lane in owned(db, node).await? {
        db.execute(FREE, values![&*lane.route, lane.number, id_bytes(node)]).await?;
    }
    db.execute(RETIRE, values![id_bytes(node)]).await?;
    Ok(())
}

/// A node that asks for a lane which it owns already gets it under a new epoch: the answer to its first request was lost,
/// and since its heartbeats extend the lease nobody else could ever take the lane.
pub(crate) async fn acquire(db: &mut Db, lane: &LaneId, node: &Node) -> Work<Option<Lease>> {
    let place = || values![&*lane.route, lane.number];
    // A look without a lock answers most; then the counter before the lane, as everywhere.
    if !is_free(db, OWNER, place(), node).await? {
        return Ok(None);
    }
    let epoch = db.draw_epoch().await?;
    if !is_free(db, &format!("{OWNER} FOR UPDATE"), place(), node).await? {
        return Ok(None);
    }
    let route = Route::get(db, &lane.route).await?;
    let until = db.standing().await?.now.saturating_add(node.lease_life).as_micros();
    db.execute(TAKE, values![epoch, id_bytes(node.id), until, &*lane.route, lane.number]).await?;
    let lease = Lease {
        lane: LaneId { route: route.name, number: lane.number },
        lanes: route.lanes,
        epoch: Epoch(epoch.cast_unsigned()),
        reader: Arc::new(route.reader),
    };
    db.taken(&lease);
    Ok(Some(lease))
}

async fn is_free(db: &mut Db, sql: &str, place: Vec<Value>, node: &Node) -> Work<bool> {
    let Some(row) = db.query_opt(sql, place).await? else { return Ok(false) };
    let now = db.now().await?;
    let expires_at = get::<Option<i64>>(&row, 1)?.map(Timestamp::from_micros);
    Ok(live_owner(bytes(&row, 0), expires_at, now)?.is_none_or(|owner| owner == node.id))
}

pub(crate) async fn release(db: &mut Db, lease: &Lease) -> Work<()> {
    let changed = db.execute(RELEASE, named(lease)).await?;
    db.given_back(lease);
    if changed == 0 { Err(Error::fenced().into()) } else { Ok(()) }
}

/// Fails unless the lease was taken here and its epoch is the current one.
pub(crate) async fn fence(db: &mut Db, lease: &Lease) -> Work<()> {
    db.is_of(lease)?;
    match db.query_opt(CURRENT, named(lease)).await? {
        Some(_) => Ok(()),
        None => Err(Error::fenced().into()),
    }
}

/// A lease as route, number and epoch.
fn named(lease: &Lease) -> Vec<Value> {
    values![&*lease.lane.route, lease.lane.number, lease.epoch.0.cast_signed()]
}

/// The owner, if the lease has not expired.
fn live_owner(owner: Option<&[u8]>, expires_at: Option<Timestamp>, now: Timestamp) -> Work<Option<NodeId>> {
    let owner = owner.filter(|_| expires_at.is_some_and(|at| at > now));
    owner.map(|owner| Ok(NodeId(Uuid::from_slice(owner).map_err(|_| corrupt("a node's id has 16 bytes"))?))).transpose()
}

pub(crate) fn id_bytes(node: NodeId) -> Vec<u8> {
    node.0.as_bytes().to_vec()
}

pub(crate) fn node_id(row: &mysql_async::Row, column: usize) -> Work<NodeId> {
    Ok(NodeId(crate::select::message_id(row, column)?))
}

pub(crate) fn names(json: &str) -> Work<Vec<Arc<str>>> {
    Ok(serde_json::from_str(json).map_err(|_| corrupt("a node's routes are not the JSON that was written"))?)
}
