//! Everything on one screen, in one consistent look.
//!
//! What is pending is counted from the log itself, so a relay that stands still cannot hide it. The scan reads no payloads
//! and is bounded, see [`Pending`].

use std::{sync::Arc, time::Duration};

use postrider_core::{
    admin::{Actor, LaneStatus, NodeStatus, Overview, ParkedCounts, Pending, PendingLooks, RouteStatus, Vitals},
    parked::ParkedState,
    standstill::Standstill,
    time::Timestamp,
};
use rusqlite::{OptionalExtension, params};

use crate::{
    due,
    error::Work,
    lease::{self, LaneRow},
    route::Route,
    select::{CHOSEN_BY, Selection, integer},
    worker::Db,
};

/// The numbers of the log have no gaps but where records were purged: a transaction that is rolled back gives its numbers
/// back. So this needs no scan.
const RECORDS: &str = "SELECT coalesce(max(seq) - min(seq) + 1, 0) FROM {p}log";

/// What waits in the parked rows for anything but its time or an operator.
const OLDEST_WAITING: &str =
    "SELECT min(enqueued_at) FROM {p}parked WHERE route = ?1 AND state IN ('retrying', 'held')";

const BLOCKING: &str = "SELECT count(*) FROM {p}parked WHERE route = ?1 AND in_line AND state = 'dead'";

const NODES: &str = "
SELECT id, name, routes, seen_at, standstills, lease_life, leaving
  FROM {p}node
 WHERE seen_at + lease_life > ?1
 ORDER BY id";

pub(super) fn overview(db: &Db, now: Timestamp) -> Work<Overview> {
    let mut lanes = lease::lanes(db, now)?;
    let last = lease::last_seq(db)?;
    let mut looks = PendingLooks::among(lanes.len());
    let mut routes = Vec::new();
    for route in lease::routes(db)?.into_values() {
        // A replay that has ended has no lanes left, only dead rows.
        if let Some(lanes) = lanes.remove(&route.name) {
            let pending = pending(db, &route, &lanes, looks.begin(), now)?;
            looks.end(&pending);
            routes.push(route_status(db, route, &lanes, pending, last, now)?);
        }
    }
    let records: i64 = db.statement(RECORDS)?.query_row([], |row| row.get(0))?;
    Ok(Overview { routes, nodes: nodes(db, now)?, records: records.unsigned_abs(), at: now })
}

fn route_status(
    db: &Db,
    route: Route,
    lanes: &[LaneRow],
    pending: Pending,
    last: i64,
    now: Timestamp,
) -> Work<RouteStatus> {
    let oldest_row: Option<i64> = db.statement(OLDEST_WAITING)?.query_row([&*route.name], |row| row.get(0))?;
    let oldest_pending_age = pending.oldest.max(oldest_row.map(|at| now.since(Timestamp::from_micros(at))));
    let mut parked = ParkedCounts::default();
    for (state, rows) in due::counts(db, &route.name)? {
        if let Some(state) = ParkedState::parse(&state) {
            *parked.of_mut(state) = rows;
        }
    }
    let blocking: i64 = db.statement(BLOCKING)?.query_row([&*route.name], |row| row.get(0))?;
    parked.blocking = blocking.unsigned_abs();
    let lanes = lanes.iter().map(|lane| LaneStatus {
        number: lane.number,
        owner: lane.owner,
        expires_in: lane.expires_in,
        epoch: lane.epoch,
        cursor: format!("record {} of {}", lane.passed, route.replay_end.unwrap_or(last)),
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
fn pending(db: &Db, route: &Route, lanes: &[LaneRow], mut pending: Pending, now: Timestamp) -> Work<Pending> {
    let least = lanes.iter().map(|lane| lane.passed).min().unwrap_or(i64::MAX);
    let mut statement = db.statement(&format!(
        "SELECT {CHOSEN_BY}, deliver_at FROM {{p}}log WHERE seq > ?1 AND seq <= ?2 ORDER BY seq"
    ))?;
    let mut rows = statement.query(params![least, route.replay_end.unwrap_or(i64::MAX)])?;
    let mut whole = Selection::new(&route.reader, 0, 1);
    // Ends with the log, or when enough was looked at.
    while let Some(row) = rows.next()? {
        let age = now.since(Timestamp::from_micros(integer(row, 4)?));
        if !pending.looks_on(age) {
            break;
        }
        let Some(chosen) = whole.choose(row)? else { continue };
        let seq: i64 = row.get(0)?;
        let open = lanes
            .iter()
            .any(|lane| seq > lane.passed && route.reader.place(chosen.key, &chosen.id, lane.number, route.lanes).1);
        if open {
            let waits = row.get::<_, Option<i64>>(6)?.is_none_or(|at| at <= now.as_micros());
            pending.add(waits.then_some(age));
        }
    }
    Ok(pending)
}

/// The first of the primary key. Records are younger the further one goes, give or take a clock that was set back.
const OLDEST: &str = "SELECT enqueued_at FROM {p}log ORDER BY seq LIMIT 1";

pub(super) fn vitals(db: &Db, now: Timestamp) -> Work<Vitals> {
    let oldest: Option<i64> = db.statement(OLDEST)?.query_row([], |row| row.get(0)).optional()?;
    let age = oldest.map_or(Duration::ZERO, |at| now.since(Timestamp::from_micros(at)));
    Ok(Vitals { oldest_record_age: Some(age), ..Vitals::default() })
}

fn nodes(db: &Db, now: Timestamp) -> Work<Vec<NodeStatus>> {
    let mut statement = db.statement(NODES)?;
    let mut rows = statement.query([now.as_micros()])?;
    let mut nodes = Vec::new();
    while let Some(row) = rows.next()? {
        let routes: Vec<Arc<str>> = lease::names(&row.get::<_, String>(2)?)?;
        let seen = now.since(Timestamp::from_micros(row.get(3)?));
        let standstills = Standstill::decode(&row.get::<_, String>(4)?);
        nodes.push(NodeStatus {
            id: lease::node_id(row.get(0)?),
            name: row.get(1)?,
            routes,
            seen,
            lease_life: Duration::from_micros(row.get::<_, i64>(5)?.unsigned_abs()),
            leaving: row.get(6)?,
            standstills,
        });
    }
    Ok(nodes)
}
