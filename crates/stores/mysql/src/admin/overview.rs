//! Everything on one screen, in one consistent look.
//!
//! What is pending is counted from the log itself, so a relay that stands still cannot hide it. The scan reads no payloads
//! and is bounded, see [`Pending`].

use std::{collections::BTreeMap, time::Duration};

use postrider_core::{
    admin::{Actor, LaneStatus, NodeStatus, Overview, ParkedCounts, Pending, PendingLooks, RouteStatus, Vitals},
    parked::ParkedState,
    standstill::Standstill,
    time::Timestamp,
};

use crate::{
    db::{Db, get, values},
    due,
    error::Work,
    lease::{self, LaneRow},
    list,
    order::BATCH_MAX,
    planted::Plant,
    records::fetch,
    route::Route,
    select::{CHOSEN_BY, Selection},
};

/// Rows are counted no further than this; beyond, their numbers are taken for rows.
const COUNTED_MAX: i64 = 200_000;

const COUNTED: &str = "SELECT COUNT(*) FROM (SELECT 1 FROM {p}log LIMIT ?) AS counted";

const SPAN: &str = "SELECT COALESCE(MAX(seq) - MIN(seq) + 1, 0) FROM {p}log";

/// What waits in the parked rows for anything but its time or an operator.
const OLDEST_WAITING: &str = "SELECT MIN(enqueued_at) FROM {p}parked WHERE route = ? AND state IN ('retrying', 'held')";

const BLOCKING: &str = "SELECT COUNT(*) FROM {p}parked WHERE route = ? AND in_line = 1 AND state = 'dead'";

const NODES: &str = "
SELECT id, name, routes, seen_at, standstills, lease_life, leaving
  FROM {p}node
 WHERE seen_at + lease_life > ?
 ORDER BY id";

pub(super) async fn overview(db: &mut Db) -> Work<Overview> {
    let now = db.now().await?;
    let mut lanes = lease::lanes(db, now).await?;
    let look = Look { last: db.counter("place").await?, counts: due::counts(db).await?, now };
    let mut looks = PendingLooks::among(lanes.len());
    let mut routes = Vec::new();
    for route in Route::all(db).await?.into_values() {
        // A replay that has ended has no lanes left, only dead rows.
        if let Some(lanes) = lanes.remove(&route.name) {
            let pending = look.pending(db, &route, &lanes, looks.begin()).await?;
            looks.end(&pending);
            routes.push(look.route_status(db, route, &lanes, pending).await?);
        }
    }
    Ok(Overview { routes, nodes: nodes(db, now).await?, records: records(db).await?, at: now })
}

/// Exact while the log is small; for a large one the span of its numbers, which counts what was rolled back too.
async fn records(db: &mut Db) -> Work<u64> {
    let counted: i64 = get(&db.query_one(COUNTED, values![COUNTED_MAX]).await?, 0)?;
    if counted < COUNTED_MAX {
        return Ok(counted.unsigned_abs());
    }
    get(&db.query_one(SPAN, Vec::new()).await?, 0)
}

/// The moment of the look.
struct Look {
    last: i64,
    counts: BTreeMap<(String, String), u64>,
    now: Timestamp,
}

impl Look {
    async fn route_status(&self, db: &mut Db, route: Route, lanes: &[LaneRow], pending: Pending) -> Work<RouteStatus> {
        let oldest_row: Option<i64> = get(&db.query_one(OLDEST_WAITING, values![&*route.name]).await?, 0)?;
        let oldest_row = oldest_row.map(|at| self.now.since(Timestamp::from_micros(at)));
        let mut parked = ParkedCounts::default();
        for state in ParkedState::ALL {
            let count = self.counts.get(&(route.name.to_string(), state.name().to_owned()));
            *parked.of_mut(state) = count.copied().unwrap_or(0);
        }
        parked.blocking = get(&db.query_one(BLOCKING, values![&*route.name]).await?, 0)?;
        let lanes = lanes.iter().map(|lane| LaneStatus {
            number: lane.number,
            owner: lane.owner,
            expires_in: lane.expires_in,
            epoch: lane.epoch,
            cursor: format!("record {} of {}", lane.passed, route.replay_end.unwrap_or(self.last)),
        });
        Ok(RouteStatus {
            lanes: lanes.collect(),
            topics: route.reader.topics.to_string(),
            left: route.left,
            order: route.reader.order,
            paused: route.paused.map(|(name, reason)| Actor { name, reason }),
            pending: pending.count,
            pending_more: pending.more,
            oldest_pending_age: pending.oldest.max(oldest_row),
            parked,
            replay_of: route.reader.replay.map(|replay| replay.of),
            route: route.name,
        })
    }

    /// How many records no cursor has passed, and the age of the oldest of those that are not scheduled for later.
    async fn pending(&self, db: &mut Db, route: &Route, lanes: &[LaneRow], mut pending: Pending) -> Work<Pending> {
        let columns = format!("{CHOSEN_BY}, deliver_at");
        let mut at = lanes.iter().map(|lane| lane.passed).min().unwrap_or(i64::MAX);
        let mut whole = Selection::new(&route.reader, 0, 1);
        // Ends with the log, or when enough was looked at.
        loop {
            let entries = list::behind(db, at, route.replay_end.unwrap_or(i64::MAX), i64::MAX, Plant::None).await?;
            let Some(last) = entries.last() else { return Ok(pending) };
            at = last.place;
            for entries in entries.chunks(BATCH_MAX) {
                let rows = fetch(db, &columns, entries).await?;
                for entry in entries {
                    let Some(row) = rows.get(&entry.seq) else { continue };
                    let age = self.now.since(Timestamp::from_micros(get(row, 4)?));
                    if !pending.looks_on(age) {
                        return Ok(pending);
                    }
                    let Some(chosen) = whole.choose(row)? else { continue };
                    let open = |lane: &LaneRow| {
                        entry.place > lane.passed
                            && route.reader.place(chosen.key, &chosen.id, lane.number, route.lanes).1
                    };
                    if lanes.iter().any(open) {
                        let waits = get::<Option<i64>>(row, 6)?.is_none_or(|at| at <= self.now.as_micros());
                        pending.add(waits.then_some(age));
                    }
                }
            }
        }
    }
}

/// The first of the primary key: numbers are drawn a little before the commit, which makes no difference to an age.
const OLDEST: &str = "SELECT enqueued_at FROM {p}log ORDER BY seq LIMIT 1";

pub(super) async fn vitals(db: &mut Db) -> Work<Vitals> {
    let now = db.now().await?;
    let oldest: Option<i64> = db.query(OLDEST, Vec::new()).await?.first().map(|row| get(row, 0)).transpose()?;
    let age = oldest.map_or(Duration::ZERO, |at| now.since(Timestamp::from_micros(at)));
    Ok(Vitals { oldest_record_age: Some(age), ..Vitals::default() })
}

async fn nodes(db: &mut Db, now: Timestamp) -> Work<Vec<NodeStatus>> {
    let mut nodes = Vec::new();
    for row in db.query(NODES, values![now.as_micros()]).await? {
        nodes.push(NodeStatus {
            id: lease::node_id(&row, 0)?,
            name: get(&row, 1)?,
            routes: lease::names(&get::<String>(&row, 2)?)?,
            seen: now.since(Timestamp::from_micros(get(&row, 3)?)),
            standstills: Standstill::decode(&get::<String>(&row, 4)?),
            lease_life: Duration::from_micros(get(&row, 5)?),
            leaving: get(&row, 6)?,
        });
    }
    Ok(nodes)
}
