//! Settle: the cursor moves, and what could not simply go on is parked, in one transaction under the lease's epoch.
//!
//! The usual settlement is one small update. A repeated one is recognised by its number: numbers grow within an epoch, so
//! one that is not greater than the last has been applied.

use postrider_core::{Error, lease::Lease, log::Settlement, time::Timestamp};
use rusqlite::{OptionalExtension, params};

use crate::{cursor, error::Work, lease::fence, parked::Rows, route::drop_empty_replays, worker::Db};

/// By primary key, under the write lock. Epoch and number are asked in the same step: nothing changes if either is over.
const ADVANCE: &str = "
UPDATE {p}lane SET passed = coalesce(?4, passed), settled = ?5
 WHERE route = ?1 AND number = ?2 AND epoch = ?3 AND (settled IS NULL OR settled < ?5)";

const PASSED: &str = "SELECT passed FROM {p}lane WHERE route = ?1 AND number = ?2 AND epoch = ?3";

const IS_REPLAY: &str = "SELECT 1 FROM {p}route WHERE name = ?1 AND replay_of IS NOT NULL";

/// Held rows count: one behind a dead head must find its lane once that is gone.
const WAITING: &str = "SELECT 1 FROM {p}parked WHERE route = ?1 AND state <> 'dead'";

const DROP_LANE: &str = "DELETE FROM {p}lane WHERE route = ?1 AND number = ?2 AND epoch = ?3";

pub(crate) fn settle(db: &Db, lease: &Lease, settlement: &Settlement, now: Timestamp) -> Work<()> {
    let Settlement { number, advance, remove, park, change } = settlement;
    let advance = advance.as_ref().map(cursor::decode).transpose()?;
    let (route, lane, epoch) = (&*lease.lane.route, lease.lane.number, lease.epoch.0.cast_signed());
    let written = db.statement(ADVANCE)?.execute(params![route, lane, epoch, advance, number.cast_signed()])?;
    if written == 0 {
        // Either the lane has another epoch, or this number has been applied.
        return fence(db, lease);
    }
    if remove.is_empty() && park.is_empty() && change.is_empty() {
        return Ok(());
    }
    // Cursor and rows commit together, so it makes no difference that the cursor is written first.
    let mut rows = Rows::new(db, route, now);
    for ordinal in remove {
        rows.remove(*ordinal)?;
    }
    rows.park(park.iter().map(|(record, parked)| (&**record, parked)))?;
    for (ordinal, parked) in change {
        rows.change(*ordinal, parked)?;
    }
    rows.finish()
}

/// Where the lane's stored cursor is.
pub(crate) fn passed(db: &Db, lease: &Lease) -> Work<i64> {
    let (route, lane, epoch) = (&*lease.lane.route, lease.lane.number, lease.epoch.0.cast_signed());
    let passed = db.statement(PASSED)?.query_row(params![route, lane, epoch], |row| row.get(0)).optional()?;
    Ok(passed.ok_or_else(Error::fenced)?)
}

/// Ends a replay's lane if nothing of it goes on without an operator. Its dead rows stay; a redrive brings the lane back.
pub(crate) fn finish(db: &Db, lease: &Lease) -> Work<bool> {
    fence(db, lease)?;
    let route = &*lease.lane.route;
    if !db.statement(IS_REPLAY)?.exists([route])? || db.statement(WAITING)?.exists([route])? {
        return Ok(false);
    }
    db.statement(DROP_LANE)?.execute(params![route, lease.lane.number, lease.epoch.0.cast_signed()])?;
    drop_empty_replays(db)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use postrider_core::{
        lease::{LaneId, Node, NodeId, Order, RouteSpec, Start},
        topic::TopicFilter,
    };
    use rusqlite::trace::{TraceEvent, TraceEventCodes};

    use super::*;
    use crate::{config, dialect::Sqlite, lease, migrations};

    thread_local! {
        static RUN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    fn note(event: TraceEvent<'_>) {
        if let TraceEvent::Stmt(statement, _) = event {
            let first: String = statement.sql().split_whitespace().take(2).collect::<Vec<_>>().join(" ");
            RUN.with_borrow_mut(|run| run.push(first));
        }
    }

    #[test]
    fn a_plain_settlement_is_one_update() {
        let folder = tempfile::tempdir().unwrap();
        let connection = config::connect(&folder.path().join("a.db"), config::BUSY_TIMEOUT).unwrap();
        migrations::apply(&connection, &Sqlite::default(), None).unwrap();
        let db = Db::new(connection, Sqlite::default());
        let lease_life = std::time::Duration::from_secs(60);
        let node = Node {
            id: NodeId::generate(),
            name: "test".into(),
            routes: vec!["r".into()],
            lease_life,
            standstills: Vec::new(),
        };
        let (topics, order, start) = (TopicFilter::all(), Order::Key, Start::Oldest);
        let spec = RouteSpec { name: "r".into(), topics, order, lanes: 1, start };
        db.write(|db, now| lease::register(db, &node, &[spec], now)).unwrap();
        let lane = LaneId { route: "r".into(), number: 0 };
        let lease = db.write(|db, now| lease::acquire(db, &lane, &node, now)).unwrap().unwrap();
        let settle = |number| {
            let settlement =
                Settlement { number, advance: Some(cursor::encode(number.cast_signed())), ..Settlement::default() };
            RUN.take();
            db.write(|db, now| settle(db, &lease, &settlement, now)).unwrap();
            RUN.take()
        };
        db.connection.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(note));
        for number in 1..=3 {
            assert_eq!(settle(number), ["BEGIN IMMEDIATE", "UPDATE postrider_lane", "COMMIT"]);
            assert_eq!(passed(&db, &lease).unwrap(), number.cast_signed());
        }
        // A repetition looks once more why nothing was written.
        assert_eq!(settle(1), ["BEGIN IMMEDIATE", "UPDATE postrider_lane", "SELECT 1", "COMMIT"]);
        assert_eq!(passed(&db, &lease).unwrap(), 3);
    }
}
