//! Due: parked rows that may run now, and which keys have a line at all.

use std::collections::BTreeMap;

use mysql_async::Row;
use postrider_core::{
    Error,
    due::{DueRead, Kept, Waiting},
    key::KeyHash,
    lease::Lease,
    parked::{BlockedKey, DueLimit, DuePage},
    time::Timestamp,
};

use crate::{
    db::{Db, get, values},
    error::Work,
    lease::fence,
    parked::{ordinal, signed},
    records::envelope,
};

/// Whether the lane has this epoch, and whether its route has a row that waits for time: two ends of an index.
const ANY: &str = "
SELECT EXISTS (SELECT 1 FROM {p}parked WHERE route = lane.route AND in_line = 1 AND wake_at IS NOT NULL)
       OR EXISTS (SELECT 1 FROM {p}parked WHERE route = lane.route AND in_line = 0 AND wake_at IS NOT NULL)
  FROM {p}lane AS lane
 WHERE route = ? AND number = ? AND epoch = ?";

/// Rows that wait for time alone, soonest first: one range of an index that has all the columns. A route with several lanes
/// steps over the rows of the others, page by page.
const WAKING: &str = "
SELECT wake_at, ordinal, spread
  FROM {p}parked
 WHERE route = ? AND in_line = ? AND wake_at >= ? AND (wake_at > ? OR ordinal > ?)
 ORDER BY wake_at, ordinal
 LIMIT ?";

/// The first rows of one line: one range of the index of lines.
const LINE: &str = "
SELECT ordinal, attempts, due_at, key_hash,
       id, topic, name, `key`, enqueued_at, deliver_at, expires_at, attempts_max, headers, payload
  FROM {p}parked
 WHERE route = ? AND in_line = 1 AND key_hash = ?
 ORDER BY ordinal
 LIMIT ?";

/// One row by its primary key.
const ROW: &str = "
SELECT ordinal, attempts, due_at, key_hash,
       id, topic, name, `key`, enqueued_at, deliver_at, expires_at, attempts_max, headers, payload
  FROM {p}parked
 WHERE ordinal = ?";

/// Every line of a route: one pass over its range of the index of lines.
const BLOCKED: &str = "
SELECT key_hash, COUNT(*)
  FROM {p}parked
 WHERE route = ? AND in_line = 1
 GROUP BY key_hash";

/// The usual answer: nothing, by one statement. `None`: there is something; [`due`] tells what.
pub(crate) async fn nothing(db: &mut Db, lease: &Lease) -> Work<Option<DuePage>> {
    db.is_of(lease)?;
    let values = values![&*lease.lane.route, lease.lane.number, lease.epoch.0.cast_signed()];
    let any: bool = get(&db.query_opt(ANY, values).await?.ok_or_else(Error::fenced)?, 0)?;
    Ok((!any).then(DuePage::default))
}

/// Every key of the lease's lane that has a line.
pub(crate) async fn blocked(db: &mut Db, lease: &Lease) -> Work<Vec<BlockedKey>> {
    let mut blocked = Vec::new();
    for row in db.query(BLOCKED, values![&*lease.lane.route]).await? {
        let key = KeyHash::from_i64(get(&row, 0)?);
        if key.lane(lease.lanes) == lease.lane.number {
            blocked.push(BlockedKey { key, rows: get(&row, 1)? });
        }
    }
    Ok(blocked)
}

/// What may run now, longest due first, lines and timed rows alike.
pub(crate) async fn due(db: &mut Db, lease: &Lease, limit: DueLimit) -> Work<DuePage> {
    fence(db, lease).await?;
    let now = db.now().await?;
    let mut waiting = waiting(db, lease, true, limit.lines, now).await?;
    waiting.extend(self::waiting(db, lease, false, limit.lines, now).await?);
    let mut read = DueRead::new(lease, limit, now, waiting);
    while let Some(row) = read.next_due() {
        if row.in_line {
            let values = values![&*lease.lane.route, row.spread.as_i64(), read.rows_of_line()];
            read.line(&row, db.query(LINE, values).await?.iter().map(kept))?;
        } else {
            let found = db.query_opt(ROW, values![signed(row.ordinal)]).await?;
            read.timed(&row, found.as_ref().map(kept).transpose()?);
        }
    }
    Ok(read.page())
}

/// Rows of the index that one statement returns.
const WAKING_PAGE_MAX: i64 = 2_000;

/// Those of the lease's lane that are due, one more than asked for if there is one, or else the next to come due.
async fn waiting(db: &mut Db, lease: &Lease, in_line: bool, limit: u32, now: Timestamp) -> Work<Vec<Waiting>> {
    let mut waiting = Vec::new();
    let mut after = (i64::MIN, i64::MIN);
    let page = i64::from(limit).saturating_mul(i64::from(lease.lanes)).saturating_add(1).min(WAKING_PAGE_MAX);
    // Ends with the rows, with enough of them, or with the first that is not due.
    loop {
        let values = values![&*lease.lane.route, in_line, after.0, after.0, after.1, page];
        let rows = db.query(WAKING, values).await?;
        let is_last = i64::try_from(rows.len()).is_ok_and(|count| count < page);
        for row in rows {
            after = (get(&row, 0)?, get(&row, 1)?);
            let (wake_at, spread) = (Timestamp::from_micros(after.0), KeyHash::from_i64(get(&row, 2)?));
            if spread.lane(lease.lanes) != lease.lane.number {
                continue;
            }
            waiting.push(Waiting { wake_at, ordinal: ordinal(after.1), spread, in_line });
            if wake_at > now || waiting.len() > limit as usize {
                return Ok(waiting);
            }
        }
        if is_last {
            return Ok(waiting);
        }
    }
}

fn kept(row: &Row) -> Work<Kept> {
    let (envelope, enqueued_at) = envelope(row, 4)?;
    Ok(Kept {
        ordinal: ordinal(get(row, 0)?),
        attempts: get(row, 1)?,
        due_at: get::<Option<i64>>(row, 2)?.map(Timestamp::from_micros),
        key: get::<Option<i64>>(row, 3)?.map(KeyHash::from_i64),
        enqueued_at,
        envelope,
    })
}

/// How many rows each route has in each state.
pub(crate) async fn counts(db: &mut Db) -> Work<BTreeMap<(String, String), u64>> {
    let rows = db.query("SELECT route, state, COUNT(*) FROM {p}parked GROUP BY route, state", Vec::new()).await?;
    rows.iter().map(|row| Ok(((get(row, 0)?, get(row, 1)?), get(row, 2)?))).collect()
}
