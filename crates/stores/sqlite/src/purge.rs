//! Retention: dropping records that every reader has passed and that are old, or many, enough.
//!
//! Bounded per call, so that the write lock is never held for long. Parked rows hold copies and are not asked.

use postrider_core::{log::Retention, time::Timestamp};

use crate::{error::Work, worker::Db};

/// Records that one call looks at, oldest first, and may remove.
const RECORDS_MAX: i64 = 5_000;

/// No lane, no floor: while no route is known nothing is removed.
const FLOOR: &str = "SELECT min(passed) FROM {p}lane";

/// Only the oldest are looked at: what follows is younger, give or take a clock that was set back. The inner select is one
/// range of the primary key.
pub(crate) const PURGE: &str = "
DELETE FROM {p}log
 WHERE seq IN (SELECT seq
                 FROM (SELECT seq, enqueued_at FROM {p}log WHERE seq <= ?1 ORDER BY seq LIMIT ?3)
                WHERE enqueued_at <= ?2 OR seq <= ?4)";

/// The newest number that was given.
const NEWEST: &str = "SELECT max(seq) FROM {p}log";

pub(crate) fn purge(db: &Db, retention: Retention, now: Timestamp) -> Work<u64> {
    let floor: Option<i64> = db.statement(FLOOR)?.query_row([], |row| row.get(0))?;
    let Some(floor) = floor else { return Ok(0) };
    let before = retention.keep.map_or(i64::MIN, |keep| now.saturating_sub(keep).as_micros());
    let surplus = match retention.records_max {
        Some(most) => {
            let newest: Option<i64> = db.statement(NEWEST)?.query_row([], |row| row.get(0))?;
            newest.unwrap_or(0).saturating_sub(i64::try_from(most).unwrap_or(i64::MAX))
        }
        None if retention.keep.is_none() => return Ok(0),
        None => i64::MIN,
    };
    Ok(db.statement(PURGE)?.execute([floor, before, RECORDS_MAX, surplus])? as u64)
}
