//! Everything on one screen, in one consistent look.
//!
//! What is pending is counted from the log itself, so a relay that stands still cannot hide it. The scan reads no payloads,
//! begins where the slowest lane can have anything unsettled, and is bounded, see [`Pending`]. A transaction that has been
//! open for long keeps that place far behind, so settled rows are passed over by the server, and no more of them are looked
//! at than [`STRAGGLERS_SPAN`] allows. Leaves are read one by one: a query through the parent would lock all of them.

use std::{collections::BTreeMap, time::Duration};

use postrider_core::{
    admin::{Actor, LaneStatus, NodeStatus, Overview, ParkedCounts, Pending, PendingLooks, RouteStatus},
    lease::NodeId,
    parked::ParkedState,
    standstill::Standstill,
    time::Timestamp,
};

use crate::{
    cursor::Position,
    db::Db,
    dialect::LEAVES,
    due,
    error::Work,
    intern::Interner,
    lease::{self, LaneRow},
    observe,
    route::Route,
    select::Selection,
    snapshot::Snapshot,
    values::{FullXid, Instant},
};

/// Rows of a leaf are counted no further than this; beyond, its numbers are taken for its rows.
const COUNTED_MAX: i64 = 200_000;

/// Rows that one statement of the scan returns.
const SCAN_ROWS: i64 = 10_000;

/// Numbers that one statement of the scan looks at.
const SCAN_SPAN: i64 = 200_000;

/// Numbers that are looked at among those that a route has read already, for what committed late. What lies between them and
/// the place where the route reads is not counted.
const STRAGGLERS_SPAN: i64 = 1_000_000;

const NODES: &str = "
SELECT id, name, routes, seen_at, standstills, lease_life, leaving
  FROM {node}
 WHERE seen_at + lease_life * interval '1 microsecond' > $1
 ORDER BY id";

pub(super) async fn overview(db: &Db<'_>, block_bits: u32) -> Work<Overview> {
    let now = db.now().await?;
    let mut lanes = lease::lanes(db, now).await?;
    let log = Log { last: observe::last(db).await?, block_bits, now };
    let counts = due::counts(db).await?;
    let mut looks = PendingLooks::among(lanes.len());
    let mut routes = Vec::new();
    for route in Route::all(db).await?.into_values() {
        // A replay that has ended has no lanes left, only dead rows.
        if let Some(lanes) = lanes.remove(&route.name) {
            let pending = log.pending(db, &route, &lanes, looks.begin()).await?;
            looks.end(&pending);
            routes.push(log.route_status(db, route, &lanes, pending, &counts).await?);
        }
    }
    Ok(Overview { routes, nodes: nodes(db, now).await?, records: records(db).await?, at: now })
}

/// Exact while the log is small; for a large leaf the span of its numbers, which counts what was rolled back too.
async fn records(db: &Db<'_>) -> Work<u64> {
    let mut records = 0;
    for leaf in 0..LEAVES {
        let sql = format!("SELECT count(*) FROM (SELECT 1 FROM {{log_{leaf}}} LIMIT $1) AS counted");
        let mut count: i64 = db.query_one(&sql, &[&COUNTED_MAX]).await?.try_get(0)?;
        if count == COUNTED_MAX {
            let sql = format!("SELECT max(seq) - min(seq) + 1 FROM {{log_{leaf}}}");
            count = db.query_one(&sql, &[]).await?.try_get::<_, Option<i64>>(0)?.unwrap_or(count);
        }
        records += count.unsigned_abs();
    }
    Ok(records)
}

/// What waits in the parked rows for anything but its time or an operator.
const OLDEST_WAITING: &str = "SELECT min(enqueued_at) FROM {parked} WHERE route = $1 AND state IN ('retrying', 'held')";

const BLOCKING: &str = "SELECT count(*) FROM {parked} WHERE route = $1 AND in_line AND state = 'dead'";

/// The log at the moment of the look.
struct Log {
    last: i64,
    block_bits: u32,
    now: Timestamp,
}

impl Log {
    async fn route_status(
        &self,
        db: &Db<'_>,
        route: Route,
        lanes: &[LaneRow],
        pending: Pending,
        counts: &BTreeMap<(String, String), u64>,
    ) -> Work<RouteStatus> {
        let oldest_row: Option<Instant> = db.query_one(OLDEST_WAITING, &[&&*route.name]).await?.try_get(0)?;
        let oldest_pending_age = pending.oldest.max(oldest_row.map(|at| self.now.since(at.0)));
        let mut parked = ParkedCounts::default();
        for state in ParkedState::ALL {
            let count = counts.get(&(route.name.to_string(), state.name().to_owned()));
            *parked.of_mut(state) = count.copied().unwrap_or(0);
        }
        parked.blocking = db.query_one(BLOCKING, &[&&*route.name]).await?.try_get::<_, i64>(0)?.unsigned_abs();
        let lanes = lanes.iter().map(|lane| LaneStatus {
            number: lane.number,
            owner: lane.owner,
            expires_in: lane.expires_in,
            epoch: lane.epoch,
            cursor: lane.position.describe(self.last),
        });
        Ok(RouteStatus {
            lanes: lanes.collect(),
            topics: route.reader.topics.to_string(),
            left: route.left,
            order: route.reader.order,
            paused: route.paused.map(|(name, reason)| Actor { name, reason }),
            pending: pending.count,
            pending_more: pending.more,
            oldest_pending_age,
            parked,
            replay_of: route.reader.replay.map(|replay| replay.of),
            route: route.name,
        })
    }

    /// How many records no cursor has passed, and the age of the oldest of those that are not scheduled for later.
    async fn pending(&self, db: &Db<'_>, route: &Route, lanes: &[LaneRow], mut pending: Pending) -> Work<Pending> {
        let replay = route.reader.replay.is_some();
        let lo = |lane: &LaneRow| if replay { lane.position.replay_lo() } else { lane.position.lo() };
        let mut at = lanes.iter().map(lo).min().unwrap_or(i64::MAX);
        let Passed { base, read } = Passed::of(lanes, at);
        let looked_at_most = at.saturating_add(STRAGGLERS_SPAN);
        let mut whole = Selection::new(&route.reader, 0, 1);
        let mut interner = Interner::default();
        // Ends with the log, or when enough was looked at.
        while at < self.last {
            if at >= looked_at_most && at < read {
                at = read;
                continue;
            }
            let block = (at + 1) >> self.block_bits;
            let end = (((block + 1) << self.block_bits) - 1).min(self.last).min(at + SCAN_SPAN);
            let leaf = usize::try_from(block).expect("positive") % LEAVES;
            let sql = format!(
                "SELECT seq, topic, id, key, enqueued_at, name, deliver_at, tx
                   FROM {{log_{leaf}}}
                  WHERE seq > $1 AND seq <= $2 AND NOT pg_visible_in_snapshot(tx, $4)
                  ORDER BY seq LIMIT $3"
            );
            let rows = db.query(&sql, &[&at, &end, &SCAN_ROWS, &base]).await?;
            let is_whole = i64::try_from(rows.len()).is_ok_and(|count| count < SCAN_ROWS);
            for row in &rows {
                at = row.try_get(0)?;
                let age = self.now.since(row.try_get::<_, Instant>(4)?.0);
                if !pending.looks_on(age) {
                    return Ok(pending);
                }
                let Some(chosen) = whole.choose(row, &mut interner)? else { continue };
                let xid = row.try_get::<_, FullXid>(7)?.0;
                let open = lanes.iter().any(|lane| {
                    route.reader.place(chosen.key, &chosen.id, lane.number, route.lanes).1
                        && !lane.position.has_settled(xid, at)
                        && (!replay || lane.position.is_in_replay(xid, at))
                });
                if open {
                    let deliver_at: Option<Instant> = row.try_get(6)?;
                    pending.add(deliver_at.is_none_or(|at| at.0 <= self.now).then_some(age));
                }
            }
            if is_whole {
                at = end;
            }
        }
        Ok(pending)
    }
}

/// What all lanes of a route are past.
struct Passed {
    /// What this sees is settled.
    base: Snapshot,
    /// Up to this number everything has been read but what committed late.
    read: i64,
}

impl Passed {
    /// `lo` is where the slowest lane can have anything unsettled. Of lanes that are being rebased, or that count in several
    /// clusters, no more is known.
    fn of(lanes: &[LaneRow], lo: i64) -> Self {
        let positions = || lanes.iter().map(|lane| &lane.position);
        let comparable = positions().all(|one| one.before.is_none() && one.identity == lanes[0].position.identity);
        let oldest = positions().filter(|_| comparable).map(|one| &one.base).min_by(|one, other| one.age(other));
        let read = |one: &Position| one.target.as_ref().map_or(one.hi, |(_, pos)| *pos);
        Self {
            base: oldest.cloned().unwrap_or_else(Snapshot::empty),
            read: positions().map(read).min().filter(|_| comparable).unwrap_or(lo),
        }
    }
}

async fn nodes(db: &Db<'_>, now: Timestamp) -> Work<Vec<NodeStatus>> {
    let mut nodes = Vec::new();
    for row in db.query(NODES, &[&Instant(now)]).await? {
        let routes = lease::names(row.try_get(2)?)?;
        let seen = now.since(row.try_get::<_, Instant>(3)?.0);
        let standstills = Standstill::decode(row.try_get(4)?);
        nodes.push(NodeStatus {
            id: NodeId(row.try_get(0)?),
            name: row.try_get(1)?,
            routes,
            seen,
            lease_life: Duration::from_micros(row.try_get::<_, i64>(5)?.unsigned_abs()),
            leaving: row.try_get(6)?,
            standstills,
        });
    }
    Ok(nodes)
}
