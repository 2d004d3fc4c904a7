//! Nodes, routes and who may act on which lane.
//!
//! A lane's row says who owns it; its checkpoints say how far it is and under which epoch (see [`crate::checkpoint`]). All
//! instants are the database's. Lanes are locked in the order of their ids, so that transactions wait for each other and
//! never in a circle; whoever locks a node does so before, and whoever ends a lane or begins an epoch of it writes its checkpoint
//! behind.

use std::{collections::HashMap, sync::Arc, time::Duration};

use postrider_core::{
    Error,
    asked::Asked,
    lease::{Epoch, LaneId, Lease, Node, NodeId, NodeStanding, Reader, RouteSpec, Start},
    log::Cursor,
    standstill::Standstill,
    time::Timestamp,
};
use uuid::Uuid;

use crate::{
    checkpoint::{self, Checkpoint},
    cursor::Position,
    db::{Db, unsigned},
    error::{Work, corrupt},
    origin::Origin,
    route::{Route, unknown},
    values::Instant,
};

/// One that lies ahead stays until it is noticed, as with a heartbeat.
const SEE: &str = "
INSERT INTO {node} AS node (id, name, routes, lease_life, standstills, seen_at) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (id) DO UPDATE
   SET name = $2, routes = $3, lease_life = $4, standstills = $5,
       seen_at = CASE WHEN node.seen_at > $6::timestamptz + interval '1 second' THEN node.seen_at ELSE $6 END";

const NODES: &str = "
SELECT id, routes
  FROM {node}
 WHERE seen_at + lease_life * interval '1 microsecond' > $1";

const ASKED: &str = "SELECT asked FROM {route} WHERE name = $1";

const SET_ASKED: &str = "UPDATE {route} SET asked = $2 WHERE name = $1";

/// In the order of ids.
const LOCK_OWNED: &str = "SELECT 1 FROM {lane} WHERE owner = $1 ORDER BY route, number FOR UPDATE";

const RETIRE: &str = "DELETE FROM {node} WHERE id = $1";

const FREE_ALL: &str = "UPDATE {lane} SET owner = NULL, expires_at = NULL WHERE owner = $1";

const OWNER: &str = "SELECT owner, expires_at FROM {lane} WHERE route = $1 AND number = $2 FOR UPDATE";

const TAKE: &str = "UPDATE {lane} SET epoch = $3, owner = $4, expires_at = $5 WHERE route = $1 AND number = $2";

const RELEASE: &str = "
UPDATE {lane} SET owner = NULL, expires_at = NULL
 WHERE route = $1 AND number = $2 AND epoch = $3";

const LOCK_LANES: &str = "SELECT number FROM {lane} WHERE route = $1 ORDER BY number FOR UPDATE";

const DROP_LANE: &str = "DELETE FROM {lane} WHERE route = $1 AND number = $2";

/// A replay has one lane, of which the newest checkpoint is left.
const FORGET_REPLAY: &str = "
DELETE FROM {checkpoint} AS checkpoint
 USING (SELECT number, n FROM {checkpoint} WHERE route = $1 ORDER BY number DESC, n DESC LIMIT 1) AS newest
 WHERE checkpoint.route = $1 AND checkpoint.number = newest.number AND checkpoint.n = newest.n
   AND EXISTS (SELECT 1 FROM {route} WHERE name = $1 AND replay_of IS NOT NULL)";

const ADD_LANE: &str = "INSERT INTO {lane} (route, number, epoch) VALUES ($1, $2, $3)";

const LANES: &str = "
SELECT lane.route, lane.number, lane.owner, lane.expires_at, lane.epoch, newest.cursor
  FROM {lane} AS lane
 CROSS JOIN LATERAL (SELECT cursor
                       FROM {checkpoint} AS checkpoint
                      WHERE checkpoint.route = lane.route AND checkpoint.number = lane.number
                      ORDER BY n DESC
                      LIMIT 1) AS newest
 ORDER BY lane.route, lane.number";

/// `begin_now` is where a route begins that begins now. It was taken before this transaction.
pub(crate) async fn register(db: &Db<'_>, node: &Node, routes: &[RouteSpec], begin_now: Option<&Position>) -> Work<()> {
    // Retention must not meet a reader that is half known, and of two that register the second knows of the first.
    db.lock("readers", "").await?;
    let now = db.now().await?;
    see(db, node, now).await?;
    let live = live_nodes(db, now).await?;
    let mut specs: Vec<&RouteSpec> = routes.iter().collect();
    specs.sort_by_key(|spec| &spec.name);
    for spec in specs {
        register_route(db, node.id, spec, &live, begin_now, now).await?;
    }
    Ok(())
}

async fn live_nodes(db: &Db<'_>, now: Timestamp) -> Work<Vec<NodeStanding>> {
    let rows = db.query(NODES, &[&Instant(now)]).await?;
    rows.iter().map(|row| Ok(NodeStanding { id: NodeId(row.try_get(0)?), routes: names(row.try_get(1)?)? })).collect()
}

async fn register_route(
    db: &Db<'_>,
    node: NodeId,
    spec: &RouteSpec,
    live: &[NodeStanding],
    begin_now: Option<&Position>,
    now: Timestamp,
) -> Work<()> {
    spec.check()?;
    let known = Route::find(db, &spec.name).await?;
    let stored: Option<String> = match db.query_opt(ASKED, &[&&*spec.name]).await? {
        Some(row) => row.try_get(0)?,
        None => None,
    };
    let mut asked = Asked::decode(stored.as_deref());
    let has = known.as_ref().map(|known| (&known.reader, known.lanes));
    let wanted = asked.hear(node, spec, has, live);
    let taken = change_route(db, &wanted, begin_now).await?;
    if let Some((known, cursors)) = known.as_ref().zip(taken) {
        asked.note_topics(&known.reader, &wanted, &cursors, now);
    }
    let asked = asked.encode();
    if stored.as_deref() != Some(&*asked) {
        db.execute(SET_ASKED, &[&&*spec.name, &asked]).await?;
    }
    Ok(())
}

/// Fences the owners not only when the number of lanes changes, but also when topics or order do: an owner that went on
/// with the old filter would pass over what the new one asks for. Answers where the lanes were, if anything has changed.
async fn change_route(db: &Db<'_>, spec: &RouteSpec, begin_now: Option<&Position>) -> Work<Option<Vec<Cursor>>> {
    let reader = Reader { topics: spec.topics.clone(), order: spec.order, replay: None };
    if is_as_before(Route::find(db, &spec.name).await?.as_ref(), spec, &reader) {
        return Ok(None);
    }
    db.lock_route(&spec.name).await?;
    let known = Route::find(db, &spec.name).await?;
    if is_as_before(known.as_ref(), spec, &reader) {
        return Ok(None);
    }
    let cursors = take_lanes(db, &spec.name).await?;
    let begin: Vec<Cursor> = match (&known, spec.start) {
        // Only the filter has changed: every lane goes on where it is.
        (Some(known), _) if known.lanes == spec.lanes => cursors.clone(),
        (Some(_), _) => everywhere(spec, least(&spec.name, &cursors)?),
        (None, Start::Oldest) => everywhere(spec, Origin::of(db).await?.oldest().encode()),
        (None, Start::Now) => {
            everywhere(spec, begin_now.ok_or_else(|| corrupt("nobody knows where to begin"))?.encode())
        }
    };
    let route = Route { name: Arc::clone(&spec.name), lanes: spec.lanes, paused: None, reader, left: Vec::new() };
    route.save(db).await?;
    for (number, cursor) in (0..).zip(&begin) {
        add_lane(db, &spec.name, number, Position::decode(cursor)?.lo(), cursor).await?;
    }
    Ok(Some(cursors))
}

fn everywhere(spec: &RouteSpec, cursor: Cursor) -> Vec<Cursor> {
    vec![cursor; spec.lanes as usize]
}

fn is_as_before(known: Option<&Route>, spec: &RouteSpec, reader: &Reader) -> bool {
    known.is_some_and(|known| known.lanes == spec.lanes && known.reader == *reader)
}

/// Where all lanes of a route have settled everything. A single lane's cursor stays as it is, byte for byte.
fn least(route: &str, cursors: &[Cursor]) -> Work<Cursor> {
    if let [only] = cursors {
        return Ok(only.clone());
    }
    let lanes = cursors.iter().map(Position::decode).collect::<Result<Vec<_>, _>>()?;
    Ok(Position::least(&lanes)
        .map_err(|error| error.with("route", route))?
        .ok_or_else(|| corrupt("a route has no lane"))?
        .encode())
}

/// Removes the lanes of a route, and answers where each was, by number. Under the route's lock.
pub(crate) async fn take_lanes(db: &Db<'_>, route: &str) -> Work<Vec<Cursor>> {
    let numbers = lock_lanes(db, route).await?;
    // Whoever owns a lane is fenced before it is asked where the lane is: a settlement needs no lock, and one that came behind
    // the question would not count. Fenced once: what was written by the first of two fences would be tidied away by the
    // second, and a settlement that waits for the first would go through.
    drop_lanes(db, route).await?;
    cursors_of(db, route, &numbers).await
}

async fn cursors_of(db: &Db<'_>, route: &str, numbers: &[u32]) -> Work<Vec<Cursor>> {
    let mut cursors = Vec::new();
    for &number in numbers {
        let newest = Checkpoint::newest(db, route, number).await?;
        cursors.push(newest.ok_or_else(|| corrupt("a lane has no checkpoint"))?.cursor);
    }
    Ok(cursors)
}

/// Locks the lanes of a route, and answers their numbers.
pub(crate) async fn lock_lanes(db: &Db<'_>, route: &str) -> Work<Vec<u32>> {
    let rows = db.query(LOCK_LANES, &[&route]).await?;
    rows.iter().map(|row| Ok(unsigned(row.try_get(0)?))).collect()
}

/// Removes the lanes of a route and fences whoever owns one. Under the route's lock. Of a replay nothing stays: its name is
/// never given again, and who has no checkpoint is fenced too.
pub(crate) async fn drop_lanes(db: &Db<'_>, route: &str) -> Work<()> {
    for number in lock_lanes(db, route).await? {
        drop_lane(db, route, number).await?;
    }
    db.execute(FORGET_REPLAY, &[&route]).await?;
    Ok(())
}

pub(crate) async fn drop_lane(db: &Db<'_>, route: &str, number: u32) -> Work<()> {
    checkpoint::end(db, route, number).await?;
    db.execute(DROP_LANE, &[&route, &i64::from(number)]).await?;
    Ok(())
}

/// A free lane under a fresh epoch.
pub(crate) async fn add_lane(db: &Db<'_>, route: &str, number: u32, lo: i64, cursor: &Cursor) -> Work<()> {
    let epoch = checkpoint::begin(db, route, number, lo, cursor).await?;
    db.execute(ADD_LANE, &[&route, &i64::from(number), &epoch.0.cast_signed()]).await?;
    Ok(())
}

async fn see(db: &Db<'_>, node: &Node, now: Timestamp) -> Work<()> {
    let Said { routes, life, standstills } = Said::of(node);
    db.execute(SEE, &[&node.id.0, &node.name, &routes, &life, &standstills, &Instant(now)]).await?;
    Ok(())
}

/// What a node says of itself, as it is stored.
pub(crate) struct Said {
    pub(crate) routes: String,
    pub(crate) life: i64,
    pub(crate) standstills: String,
}

impl Said {
    pub(crate) fn of(node: &Node) -> Self {
        Self {
            routes: serde_json::to_string(&node.routes).expect("names are JSON"),
            life: Timestamp::from_micros(0).saturating_add(node.lease_life).as_micros().min(LIFE_MICROS_MAX),
            standstills: Standstill::encode(&node.standstills),
        }
    }
}

/// Ten thousand years: an endless lease must not overflow the sum with an instant.
pub(crate) const LIFE_MICROS_MAX: i64 = 10_000 * 366 * 86_400 * 1_000_000;

/// One lane as it is stored.
pub(crate) struct LaneRow {
    pub(crate) number: u32,
    pub(crate) owner: Option<NodeId>,
    /// How long the owner still has.
    pub(crate) expires_in: Option<Duration>,
    pub(crate) epoch: Epoch,
    pub(crate) position: Position,
}

/// The lanes of every route, by number.
pub(crate) async fn lanes(db: &Db<'_>, now: Timestamp) -> Work<HashMap<Arc<str>, Vec<LaneRow>>> {
    let mut lanes: HashMap<Arc<str>, Vec<LaneRow>> = HashMap::new();
    for row in db.query(LANES, &[]).await? {
        let expires_at: Option<Instant> = row.try_get(3)?;
        let owner = live_owner(row.try_get(2)?, expires_at, now);
        lanes.entry(row.try_get::<_, &str>(0)?.into()).or_default().push(LaneRow {
            number: unsigned(row.try_get(1)?),
            owner,
            expires_in: expires_at.filter(|_| owner.is_some()).map(|at| at.0.since(now)),
            epoch: epoch(row.try_get(4)?),
            position: Position::decode(&crate::cursor::stored(row.try_get(5)?))?,
        });
    }
    Ok(lanes)
}

pub(crate) async fn retire(db: &Db<'_>, node: NodeId) -> Work<()> {
    // The node before its lanes, as by a heartbeat.
    db.execute(RETIRE, &[&node.0]).await?;
    db.execute(LOCK_OWNED, &[&node.0]).await?;
    db.execute(FREE_ALL, &[&node.0]).await?;
    Ok(())
}

/// A node that asks for a lane which it owns already gets it under a new epoch: the answer to its first request was lost,
/// and since its heartbeats extend the lease nobody else could ever take the lane.
pub(crate) async fn acquire(db: &Db<'_>, lane: &LaneId, node: &Node) -> Work<Option<Lease>> {
    let (route, number) = (&*lane.route, i64::from(lane.number));
    let Some(row) = db.query_opt(OWNER, &[&route, &number]).await? else { return Ok(None) };
    let now = db.now().await?;
    if live_owner(row.try_get(0)?, row.try_get(1)?, now).is_some_and(|owner| owner != node.id) {
        return Ok(None);
    }
    let known = Route::find(db, route).await?.ok_or_else(|| unknown("route", route))?;
    let begun = checkpoint::go_on(db, route, lane.number).await?.ok_or_else(|| corrupt("a lane has no checkpoint"))?;
    let epoch = begun.epoch;
    let until = Instant(now.saturating_add(node.lease_life));
    db.execute(TAKE, &[&route, &number, &epoch.0.cast_signed(), &node.id.0, &until]).await?;
    Ok(Some(Lease {
        lane: LaneId { route: known.name, number: lane.number },
        lanes: known.lanes,
        epoch,
        reader: Arc::new(known.reader),
    }))
}

pub(crate) async fn release(db: &Db<'_>, lease: &Lease) -> Work<()> {
    let LaneId { route, number } = &lease.lane;
    let changed = db.execute(RELEASE, &[&&**route, &i64::from(*number), &lease.epoch.0.cast_signed()]).await?;
    if changed == 0 { Err(Error::fenced().into()) } else { Ok(()) }
}

/// The owner, if the lease has not expired.
fn live_owner(owner: Option<Uuid>, expires_at: Option<Instant>, now: Timestamp) -> Option<NodeId> {
    owner.filter(|_| expires_at.is_some_and(|at| at.0 > now)).map(NodeId)
}

fn epoch(stored: i64) -> Epoch {
    Epoch(stored.cast_unsigned())
}

pub(crate) fn names(json: &str) -> Work<Vec<Arc<str>>> {
    Ok(serde_json::from_str(json).map_err(|_| corrupt("a node's routes are not the JSON that was written"))?)
}
