//! Due: parked rows that may run now, and which keys have a line at all.

use std::{collections::BTreeMap, time};

use postrider_core::{
    Error,
    due::{DueRead, Kept, Waiting},
    key::KeyHash,
    lease::{LaneId, Lease},
    parked::{BlockedKey, DueLimit, DuePage},
    time::Timestamp,
};
use tokio_postgres::Row;

use crate::{
    checkpoint::Checkpoint,
    db::{Alone, Db, unsigned},
    error::{Fault, Work},
    floor::Look,
    parked::{ordinal, signed},
    records::envelope,
    together::Seat,
    values::Instant,
};

/// Rows that wait for time alone, soonest first: one range of the index that holds only such rows, from the lane's floor on. A
/// route with several lanes steps over the rows of the others, page by page.
const WAKING: &str = "
SELECT wake_at, ordinal, spread
  FROM {parked}
 WHERE route = $1 AND in_line = $2 AND wake_at IS NOT NULL AND (wake_at, ordinal) > ($3, $4)
 ORDER BY wake_at, ordinal
 LIMIT $5";

/// The first rows of one line: one range of the index of lines, from its head on, whose ordinal is known. Below it are those
/// that are gone. Written so that no other index has this order: when all rows but a few are gone, every index looks alike to
/// the planner.
const LINE: &str = "
SELECT ordinal, attempts, due_at, key_hash,
       id, topic, name, key, enqueued_at, deliver_at, expires_at, attempts_max, headers, payload
  FROM {parked}
 WHERE route = $1 AND (key_hash, ordinal) >= ($2, $3) AND key_hash <= $2 AND in_line
 ORDER BY key_hash, ordinal
 LIMIT $4";

/// One row by its primary key.
const ROW: &str = "
SELECT ordinal, attempts, due_at, key_hash,
       id, topic, name, key, enqueued_at, deliver_at, expires_at, attempts_max, headers, payload
  FROM {parked}
 WHERE ordinal = $1";

/// Every line of a route: one pass over its range of the index of lines.
const BLOCKED: &str = "
SELECT key_hash, count(*)
  FROM {parked}
 WHERE route = $1 AND in_line
 GROUP BY key_hash";

/// Of each lane its epoch, its route's first row that waits for time, from a floor on, and what the next floor is made of:
/// when nobody had the route's lock, which is let go of with the end of the statement, and the time.
const LOOK: &str = "
SELECT newest.epoch,
       least((SELECT wake_at FROM {parked}
               WHERE route = lane.route AND in_line AND wake_at >= lane.floor ORDER BY wake_at LIMIT 1),
             (SELECT wake_at FROM {parked}
               WHERE route = lane.route AND NOT in_line AND wake_at >= lane.floor ORDER BY wake_at LIMIT 1)),
       CASE WHEN pg_try_advisory_xact_lock_shared(lane.lock) THEN clock_timestamp() END,
       clock_timestamp()
  FROM unnest($1::text[], $2::bigint[], $3::timestamptz[], $4::bigint[])
       WITH ORDINALITY AS lane (route, number, floor, lock, place)
  LEFT JOIN LATERAL (SELECT epoch
                       FROM {checkpoint} AS checkpoint
                      WHERE checkpoint.route = lane.route AND checkpoint.number = lane.number
                      ORDER BY n DESC
                      LIMIT 1) AS newest ON true
 ORDER BY lane.place";

/// What a lane asks: itself, and where its floor is.
pub(crate) type Question = (LaneId, Timestamp);

/// What is known of a lane that has a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looked {
    epoch: u64,
    pub(crate) look: Look,
}

/// The next question of a lane that found nothing.
pub(crate) type NextLook = Seat<Question, Option<Looked>>;

/// Of each lane, in the order of the lanes.
pub(crate) async fn look(on: &Alone<'_>, lanes: &[Question]) -> Work<Vec<Option<Looked>>> {
    let routes: Vec<&str> = lanes.iter().map(|(lane, _)| &*lane.route).collect();
    let numbers: Vec<i64> = lanes.iter().map(|(lane, _)| i64::from(lane.number)).collect();
    let floors: Vec<Instant> = lanes.iter().map(|(_, floor)| Instant(*floor)).collect();
    let locks: Vec<i64> = routes.iter().map(|route| on.route_lock(route)).collect();
    let asked_at = time::Instant::now();
    let rows = on.query(LOOK, &[&routes, &numbers, &floors, &locks]).await?;
    let (answered_at, mut found) = (time::Instant::now(), Vec::new());
    for row in rows {
        let instant = |column: usize| Ok::<_, Fault>(row.try_get::<_, Option<Instant>>(column)?.map(|at| at.0));
        let (first, free_at) = (instant(1)?, instant(2)?);
        let look = Look { first, free_at, now: row.try_get::<_, Instant>(3)?.0, asked_at, answered_at };
        let epoch: Option<i64> = row.try_get(0)?;
        found.push(epoch.map(|epoch| Looked { epoch: epoch.cast_unsigned(), look }));
    }
    Ok(found)
}

impl Looked {
    /// Refuses what was found for a lease that is over.
    pub(crate) fn of(found: Option<Self>, lease: &Lease) -> Work<Self> {
        Ok(found.filter(|found| found.epoch == lease.epoch.0).ok_or_else(Error::fenced)?)
    }

    /// The usual answer: nothing waits. Otherwise [`due`] tells what does.
    pub(crate) fn is_nothing(&self) -> bool {
        self.look.first.is_none()
    }
}

/// Every key of the lease's lane that has a line.
pub(crate) async fn blocked(db: &Db<'_>, lease: &Lease) -> Work<Vec<BlockedKey>> {
    let mut blocked = Vec::new();
    for row in db.query(BLOCKED, &[&&*lease.lane.route]).await? {
        let key = KeyHash::from_i64(row.try_get(0)?);
        if key.lane(lease.lanes) == lease.lane.number {
            blocked.push(BlockedKey { key, rows: unsigned(row.try_get(1)?) });
        }
    }
    Ok(blocked)
}

/// What may run now, longest due first, lines and timed rows alike. No row of the route wakes before `floor`.
pub(crate) async fn due(db: &Db<'_>, lease: &Lease, limit: DueLimit, floor: Timestamp) -> Work<DuePage> {
    Checkpoint::of(db, lease).await?;
    let now = db.now().await?;
    let mut waiting = Vec::new();
    for in_line in [true, false] {
        waiting.extend(self::waiting(db, lease, in_line, limit.lines, now, floor).await?);
    }
    let mut read = DueRead::new(lease, limit, now, waiting);
    while let Some(row) = read.next_due() {
        if row.in_line {
            let (route, head) = (&*lease.lane.route, signed(row.ordinal));
            let rows = db.query(LINE, &[&route, &row.spread.as_i64(), &head, &read.rows_of_line()]).await?;
            read.line(&row, rows.iter().map(kept))?;
        } else {
            let found = db.query_opt(ROW, &[&signed(row.ordinal)]).await?;
            read.timed(&row, found.as_ref().map(kept).transpose()?);
        }
    }
    Ok(read.page())
}

/// Those of the lease's lane that are due, one more than asked for if there is one, or else the next to come due.
async fn waiting(
    db: &Db<'_>,
    lease: &Lease,
    in_line: bool,
    limit: u32,
    now: Timestamp,
    floor: Timestamp,
) -> Work<Vec<Waiting>> {
    let mut waiting = Vec::new();
    // Ordinals begin with 1.
    let mut after = (Instant(floor), 0_i64);
    let page = i64::from(limit).saturating_mul(i64::from(lease.lanes)).saturating_add(1).min(WAKING_PAGE_MAX);
    // Ends with the rows, with enough of them, or with the first that is not due.
    loop {
        let rows = db.query(WAKING, &[&&*lease.lane.route, &in_line, &after.0, &after.1, &page]).await?;
        let is_last = i64::try_from(rows.len()).is_ok_and(|count| count < page);
        for row in rows {
            let (wake_at, spread) = (row.try_get::<_, Instant>(0)?.0, KeyHash::from_i64(row.try_get(2)?));
            let ordinal = row.try_get(1)?;
            after = (Instant(wake_at), ordinal);
            if spread.lane(lease.lanes) != lease.lane.number {
                continue;
            }
            waiting.push(Waiting { wake_at, ordinal: self::ordinal(ordinal), spread, in_line });
            if wake_at > now || waiting.len() > limit as usize {
                return Ok(waiting);
            }
        }
        if is_last {
            return Ok(waiting);
        }
    }
}

/// Rows of the index that one statement returns.
const WAKING_PAGE_MAX: i64 = 2_000;

fn kept(row: &Row) -> Work<Kept> {
    let (envelope, enqueued_at) = envelope(row, 4)?;
    Ok(Kept {
        ordinal: ordinal(row.try_get(0)?),
        attempts: unsigned(row.try_get(1)?),
        due_at: row.try_get::<_, Option<Instant>>(2)?.map(|at| at.0),
        key: row.try_get::<_, Option<i64>>(3)?.map(KeyHash::from_i64),
        enqueued_at,
        envelope,
    })
}

/// How many rows each route has in each state.
pub(crate) async fn counts(db: &Db<'_>) -> Work<BTreeMap<(String, String), u64>> {
    let rows = db.query("SELECT route, state, count(*) FROM {parked} GROUP BY route, state", &[]).await?;
    rows.iter().map(|row| Ok(((row.try_get(0)?, row.try_get(1)?), row.try_get::<_, i64>(2)?.unsigned_abs()))).collect()
}
