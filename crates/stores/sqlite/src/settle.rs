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
