//! Nodes, routes and who may act on which lane.
//!
//! A lane's lease and cursor are one row. Epochs come from one counter of the whole store, so a number is never given
//! twice, not even after a route was forgotten and made again: a stale owner can match nothing. All instants are taken by
//! the store's clock under the write lock.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

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
use rusqlite::{OptionalExtension, params};
use uuid::Uuid;

use crate::{
    cursor,
    error::{Work, corrupt},
    route::{ROUTE, Route, draw},
    worker::Db,
};

const SEE: &str = "
INSERT INTO {p}node (id, name, routes, lease_life, standstills, seen_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
    ON CONFLICT (id) DO UPDATE SET name = ?2, routes = ?3, lease_life = ?4, standstills = ?5, seen_at = ?6";

const FORGET_DEAD: &str = "DELETE FROM {p}node WHERE seen_at + lease_life <= ?1";

const EXTEND: &str = "UPDATE {p}lane SET expires_at = ?2 WHERE owner = ?1";

const NODES: &str = "SELECT id, routes FROM {p}node WHERE seen_at + lease_life > ?1 ORDER BY id";

const ASKED: &str = "SELECT asked FROM {p}route WHERE name = ?1";

const SET_ASKED: &str = "UPDATE {p}route SET asked = ?2 WHERE name = ?1";

const LANES: &str = "SELECT route, number, owner, expires_at, epoch FROM {p}lane ORDER BY route, number";

const LEAVING: &str = "SELECT leaving FROM {p}node WHERE id = ?1";

const RETIRE: &str = "DELETE FROM {p}node WHERE id = ?1";

const FREE_ALL: &str = "UPDATE {p}lane SET owner = NULL, expires_at = NULL WHERE owner = ?1";

const OWNER: &str = "SELECT owner, expires_at FROM {p}lane WHERE route = ?1 AND number = ?2";

/// A new epoch begins its count of settlements anew.
const TAKE: &str = "
UPDATE {p}lane SET epoch = ?3, owner = ?4, expires_at = ?5, settled = NULL
 WHERE route = ?1 AND number = ?2";

const RELEASE: &str = "
UPDATE {p}lane SET owner = NULL, expires_at = NULL
 WHERE route = ?1 AND number = ?2 AND epoch = ?3";

const CURRENT: &str = "SELECT 1 FROM {p}lane WHERE route = ?1 AND number = ?2 AND epoch = ?3";

const PASSED: &str = "SELECT passed FROM {p}lane WHERE route = ?1 ORDER BY number";

const LEAST: &str = "SELECT min(passed) FROM {p}lane WHERE route = ?1";

/// One fresh epoch for all lanes of a route, which are free afterwards.
const FENCE_ALL: &str = "
UPDATE {p}lane SET epoch = ?2, owner = NULL, expires_at = NULL, settled = NULL
 WHERE route = ?1";

const DROP_LANES: &str = "DELETE FROM {p}lane WHERE route = ?1";

const ADD_LANE: &str = "INSERT INTO {p}lane (route, number, epoch, passed) VALUES (?1, ?2, ?3, ?4)";

/// The highest number that was ever drawn: exact under the write lock, and there even when all records are purged.
const LAST_SEQ: &str = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = '{p}log'";

pub(crate) fn register(db: &Db, node: &Node, routes: &[RouteSpec], now: Timestamp) -> Work<()> {
    see(db, node, now)?;
    let live = live_nodes(db, now)?;
    routes.iter().try_for_each(|spec| register_route(db, node.id, spec, &live, now))
}

/// Under the write lock: whoever else registers has been heard, or hears of this one.
fn register_route(db: &Db, node: NodeId, spec: &RouteSpec, live: &[NodeStanding], now: Timestamp) -> Work<()> {
    spec.check()?;
    let known = Route::find(db, &spec.name)?;
    let stored: Option<String> = db.statement(ASKED)?.query_row([&*spec.name], |row| row.get(0)).optional()?.flatten();
    let mut asked = Asked::decode(stored.as_deref());
    let has = known.as_ref().map(|known| (&known.reader, known.lanes));
    let wanted = asked.hear(node, spec, has, live);
    if let Some(known) = known.as_ref().filter(|known| Asked::changes_topics(&known.reader, &wanted)) {
        asked.note_topics(&known.reader, &wanted, &cursors(db, &known.name)?, now);
    }
    change_route(db, &wanted, known.as_ref())?;
    let asked = asked.encode();
    if stored.as_deref() != Some(&*asked) {
        db.statement(SET_ASKED)?.execute(params![&*spec.name, asked])?;
    }
    Ok(())
}

/// Fences the owners not only when the number of lanes changes, but also when topics or order do: an owner that went on
/// with the old filter would pass over what the new one asks for. As many lanes as before stay where they are.
fn change_route(db: &Db, spec: &RouteSpec, known: Option<&Route>) -> Work<()> {
    let reader = Reader { topics: spec.topics.clone(), order: spec.order, replay: None };
    if known.is_some_and(|known| known.lanes == spec.lanes && known.reader == reader) {
        return Ok(());
    }
    let (name, lanes, left) = (Arc::clone(&spec.name), spec.lanes, Vec::new());
    let route = Route { name, lanes, paused: None, reader, replay_end: None, left };
    route.save(db)?;
    let begin = match (known, spec.start) {
        (Some(known), _) if known.lanes == spec.lanes => {
            let epoch = draw(db, "epoch", 1)?;
            db.statement(FENCE_ALL)?.execute(params![&*spec.name, epoch])?;
            return Ok(());
        }
        (Some(_), _) => db.statement(LEAST)?.query_row([&*spec.name], |row| row.get(0))?,
        (None, Start::Oldest) => 0,
        (None, Start::Now) => last_seq(db)?,
    };
    db.statement(DROP_LANES)?.execute([&*spec.name])?;
    add_lanes(db, &spec.name, spec.lanes, begin)
}

/// Where each lane is, by number.
fn cursors(db: &Db, route: &str) -> Work<Vec<Cursor>> {
    let mut statement = db.statement(PASSED)?;
    let passed = statement.query_map([route], |row| row.get(0))?;
    Ok(passed.map(|passed| passed.map(cursor::encode)).collect::<rusqlite::Result<_>>()?)
}

/// Free lanes under a fresh epoch, all at the same place.
pub(crate) fn add_lanes(db: &Db, route: &str, lanes: u32, passed: i64) -> Work<()> {
    let epoch = draw(db, "epoch", 1)?;
    let mut add = db.statement(ADD_LANE)?;
    for number in 0..lanes {
        add.execute(params![route, number, epoch, passed])?;
    }
    Ok(())
}

pub(crate) fn last_seq(db: &Db) -> Work<i64> {
    Ok(db.statement(LAST_SEQ)?.query_row([], |row| row.get(0))?)
}

pub(crate) fn heartbeat(db: &Db, node: &Node, now: Timestamp) -> Work<Roster> {
    see(db, node, now)?;
    db.statement(EXTEND)?.execute(params![node.id.0.as_bytes(), now.saturating_add(node.lease_life).as_micros()])?;
    db.statement(FORGET_DEAD)?.execute([now.as_micros()])?;
    let leave = db.statement(LEAVING)?.query_row([node.id.0.as_bytes()], |row| row.get(0))?;
    Ok(Roster { leave, ..roster(db, now)? })
}

fn see(db: &Db, node: &Node, now: Timestamp) -> Work<()> {
    let routes = serde_json::to_string(&node.routes).expect("names are JSON");
    let life = Timestamp::from_micros(0).saturating_add(node.lease_life).as_micros().min(LIFE_MICROS_MAX);
    let standstills = Standstill::encode(&node.standstills);
    db.statement(SEE)?.execute(params![node.id.0.as_bytes(), node.name, routes, life, standstills, now.as_micros()])?;
    Ok(())
}

/// Ten thousand years: an endless lease must not overflow the sum with an instant.
const LIFE_MICROS_MAX: i64 = 10_000 * 366 * 86_400 * 1_000_000;

fn roster(db: &Db, now: Timestamp) -> Work<Roster> {
    let mut roster = Roster { nodes: live_nodes(db, now)?, ..Roster::default() };
    let routes = routes(db)?;
    let live = routes.values().filter(|route| route.reader.replay.is_none());
    roster.routes.extend(
        live.map(|route| RouteStanding { route: Arc::clone(&route.name), topics: route.reader.topics.clone() }),
    );
    let paused = |route: &Route| route.paused.is_some();
    let mut statement = db.statement(LANES)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        let route = routes.get(name.as_str()).ok_or_else(|| corrupt("a lane has no route"))?;
        roster.lanes.push(LaneStanding {
            lane: LaneId { route: Arc::clone(&route.name), number: row.get(1)? },
            served_by: Arc::clone(route.served_by()),
            owner: live_owner(row.get(2)?, row.get(3)?, now),
            epoch: Epoch(row.get::<_, i64>(4)?.cast_unsigned()),
            // A replay waits while its route is paused: both publish to the same destination.
            paused: paused(route) || routes.get(route.served_by()).is_some_and(paused),
        });
    }
    Ok(roster)
}

fn live_nodes(db: &Db, now: Timestamp) -> Work<Vec<NodeStanding>> {
    let mut nodes = Vec::new();
    let mut statement = db.statement(NODES)?;
    let mut rows = statement.query([now.as_micros()])?;
    while let Some(row) = rows.next()? {
        nodes.push(NodeStanding { id: node_id(row.get(0)?), routes: names(&row.get::<_, String>(1)?)? });
    }
    Ok(nodes)
}

/// Every route and replay by name.
pub(crate) fn routes(db: &Db) -> Work<BTreeMap<Arc<str>, Route>> {
    let mut statement = db.statement(&format!("SELECT {ROUTE} FROM {{p}}route ORDER BY name"))?;
    let mut rows = statement.query([])?;
    let mut routes = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let route = Route::from_row(row)?;
        routes.insert(Arc::clone(&route.name), route);
    }
    Ok(routes)
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
pub(crate) fn lanes(db: &Db, now: Timestamp) -> Work<HashMap<Arc<str>, Vec<LaneRow>>> {
    let mut statement =
        db.statement("SELECT route, number, owner, expires_at, epoch, passed FROM {p}lane ORDER BY route, number")?;
    let mut rows = statement.query([])?;
    let mut lanes: HashMap<Arc<str>, Vec<LaneRow>> = HashMap::new();
    while let Some(row) = rows.next()? {
        let (owner, expires_at) = (live_owner(row.get(2)?, row.get(3)?, now), row.get::<_, Option<i64>>(3)?);
        lanes.entry(row.get::<_, String>(0)?.into()).or_default().push(LaneRow {
            number: row.get(1)?,
            owner,
            expires_in: expires_at.filter(|_| owner.is_some()).map(|at| Timestamp::from_micros(at).since(now)),
            epoch: Epoch(row.get::<_, i64>(4)?.cast_unsigned()),
            passed: row.get(5)?,
        });
    }
    Ok(lanes)
}

pub(crate) fn retire(db: &Db, node: NodeId) -> Work<()> {
    db.statement(RETIRE)?.execute([node.0.as_bytes()])?;
    db.statement(FREE_ALL)?.execute([node.0.as_bytes()])?;
    Ok(())
}

/// A node that asks for a lane which it owns already gets it under a new epoch: the answer to its first request was lost,
/// and since its heartbeats extend the lease nobody else could ever take the lane.
pub(crate) fn acquire(db: &Db, lane: &LaneId, node: &Node, now: Timestamp) -> Work<Option<Lease>> {
    let held: Option<(Option<[u8; 16]>, Option<i64>)> = db
        .statement(OWNER)?
        .query_row(params![&*lane.route, lane.number], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((owner, expires_at)) = held else { return Ok(None) };
    if live_owner(owner, expires_at, now).is_some_and(|owner| owner != node.id) {
        return Ok(None);
    }
    let route = Route::get(db, &lane.route)?;
    let epoch = draw(db, "epoch", 1)?;
    let until = now.saturating_add(node.lease_life).as_micros();
    db.statement(TAKE)?.execute(params![&*lane.route, lane.number, epoch, node.id.0.as_bytes(), until])?;
    Ok(Some(Lease {
        lane: LaneId { route: route.name, number: lane.number },
        lanes: route.lanes,
        epoch: Epoch(epoch.cast_unsigned()),
        reader: Arc::new(route.reader),
    }))
}

pub(crate) fn release(db: &Db, lease: &Lease) -> Work<()> {
    let changed = db.statement(RELEASE)?.execute(named(lease))?;
    if changed == 0 { Err(Error::fenced().into()) } else { Ok(()) }
}

/// Fails unless the lease's epoch is the current one.
pub(crate) fn fence(db: &Db, lease: &Lease) -> Work<()> {
    if db.statement(CURRENT)?.exists(named(lease))? { Ok(()) } else { Err(Error::fenced().into()) }
}

/// A lease as the parameters ?1 to ?3.
fn named(lease: &Lease) -> (&str, u32, i64) {
    (&lease.lane.route, lease.lane.number, lease.epoch.0.cast_signed())
}

/// The owner, if the lease has not expired.
fn live_owner(owner: Option<[u8; 16]>, expires_at: Option<i64>, now: Timestamp) -> Option<NodeId> {
    owner.filter(|_| expires_at.is_some_and(|at| at > now.as_micros())).map(node_id)
}

pub(crate) fn node_id(bytes: [u8; 16]) -> NodeId {
    NodeId(Uuid::from_bytes(bytes))
}

pub(crate) fn names(json: &str) -> Work<Vec<Arc<str>>> {
    Ok(serde_json::from_str(json).map_err(|_| corrupt("a node's routes are not the JSON that was written"))?)
}
