//! The server's clock, where it goes back.
//!
//! All instants are the primary's. A standby that is promoted may be behind it, and then what was written lies ahead: a dead
//! owner's lease would not run out for as long as the clocks are apart, and a retry would not come. So whoever registers, or
//! learns of it by its heartbeat, looks for instants that are not yet, and takes them for now: leases then last as long as they
//! were given for, and rows wait as long as they were to wait, and at most for the fail-over longer. Nobody loses a lease by it
//! whose heartbeats arrive, and what an application has scheduled for an instant stays at that instant.
//!
//! How far the clock went back is told by when nodes were last seen. One short transaction puts that right, shortens leases,
//! and writes down with each route how far its rows lie ahead; until then a heartbeat leaves it as it is. Rows may be many, so
//! they are moved some at a time, and how far that is, is written down in the same transaction: rows move once, whoever moves
//! them and however often it fails. What cannot be done at once is left to the next heartbeat of any node; no lane waits for it.
//!
//! Nodes are locked before lanes, as by a heartbeat. The time is asked for behind every lock: a lease may have been extended
//! while it was waited for, and nobody writes a wake time that is earlier than the moment at which it had the route's lock (see
//! [`crate::floor`]).

use uuid::Uuid;

use crate::{db::Db, error::Work, lease::LIFE_MICROS_MAX, values::Instant};

/// How long any lock is waited for. Whoever waits may have others wait, and there is another heartbeat soon.
const PATIENCE: &str = "SET LOCAL lock_timeout = '1s'";

/// Rows that one transaction looks at, while it has the route's lock.
const ROWS: i64 = 1_000;

/// A route whose rows lie ahead, and whether a node does.
const AHEAD: &str = "
SELECT (SELECT name FROM {route} WHERE ahead_by IS NOT NULL ORDER BY name LIMIT 1),
       EXISTS (SELECT 1 FROM {node} WHERE seen_at > clock_timestamp() + interval '1 second')";

/// In the order of ids, as everywhere.
const LOCK_NODES: &str = "
SELECT id, seen_at FROM {node} WHERE seen_at > clock_timestamp() + interval '1 second' ORDER BY id FOR UPDATE";

const SEEN: &str = "UPDATE {node} SET seen_at = $2 WHERE id = ANY ($1)";

/// In the order of ids. A node is forgotten no sooner than its leases run out, so whoever has one is known. An endless lease is
/// never ahead.
const SHORTEN: &str = "
WITH ahead AS MATERIALIZED (
    SELECT lane.route, lane.number, node.lease_life
      FROM {lane} AS lane
      JOIN {node} AS node ON node.id = lane.owner
     WHERE node.lease_life < $1
       AND lane.expires_at > clock_timestamp() + interval '1 second' + node.lease_life * interval '1 microsecond'
     ORDER BY lane.route, lane.number
       FOR UPDATE OF lane
)
UPDATE {lane} AS lane
   SET expires_at = clock_timestamp() + ahead.lease_life * interval '1 microsecond'
  FROM ahead
 WHERE lane.route = ahead.route AND lane.number = ahead.number";

/// The ordinals that are drawn from now on are of rows that are written by the new clock.
const NOTE: &str = "
UPDATE {route}
   SET ahead_by = $1, ahead_from = 0, ahead_to = coalesce(pg_sequence_last_value('{ordinal}'::regclass), 0)";

const LEFT: &str = "SELECT ahead_by, ahead_from, ahead_to FROM {route} WHERE name = $1 AND ahead_by IS NOT NULL";

/// The next rows of a route, by ordinal. What waits for an instant of the application's goes on waiting for it. A row that
/// somebody has changed meanwhile, and not moved to the end, may come early once.
const EARLIER: &str = "
WITH batch AS MATERIALIZED (
    SELECT ordinal
      FROM {parked}
     WHERE route = $1 AND ordinal > $4 AND ordinal <= $5
     ORDER BY ordinal
     LIMIT $6
), moved AS (
    UPDATE {parked} AS row
       SET due_at = CASE WHEN row.due_at > $2::timestamptz
                         THEN greatest(row.due_at - $3::bigint * interval '1 microsecond', $2) ELSE row.due_at END,
           wake_at = CASE WHEN row.wake_at > $2
                          THEN greatest(row.wake_at - $3 * interval '1 microsecond', $2) ELSE row.wake_at END
      FROM batch
     WHERE row.ordinal = batch.ordinal AND (row.due_at > $2 OR row.wake_at > $2)
       AND (row.state <> 'scheduled' OR row.deliver_at IS NULL)
)
SELECT max(ordinal), count(*) FROM batch";

const MOVED: &str = "UPDATE {route} SET ahead_from = $2 WHERE name = $1";

const DONE: &str = "UPDATE {route} SET ahead_by = NULL, ahead_from = NULL, ahead_to = NULL WHERE name = $1";

/// Does one piece of what is to be done, in a transaction of its own. `false`: there was nothing.
pub(crate) async fn catch_up(db: &Db<'_>) -> Work<bool> {
    db.batch(PATIENCE).await?;
    let row = db.query_one(AHEAD, &[]).await?;
    match row.try_get::<_, Option<&str>>(0)? {
        Some(route) => move_some(db, route).await?,
        None if row.try_get(1)? => notice(db).await?,
        None => return Ok(false),
    }
    Ok(true)
}

/// Takes what lies ahead of nodes and leases for written now, and writes down how far the rows of all routes do.
async fn notice(db: &Db<'_>) -> Work<()> {
    // Of two that do this the second finds nothing, and no route is made meanwhile.
    db.lock("readers", "").await?;
    let nodes = db.query(LOCK_NODES, &[]).await?;
    let now = db.now().await?;
    let ids = nodes.iter().map(|row| row.try_get(0)).collect::<Result<Vec<Uuid>, _>>()?;
    let seen = nodes.iter().map(|row| row.try_get(1)).collect::<Result<Vec<Instant>, _>>()?;
    let Some(newest) = seen.into_iter().map(|at| at.0).max() else { return Ok(()) };
    // The clock went back once more: rows are moved by one distance after the other.
    if db.query_one(AHEAD, &[]).await?.try_get::<_, Option<&str>>(0)?.is_some() {
        return Ok(());
    }
    db.execute(SEEN, &[&ids, &Instant(now)]).await?;
    db.execute(SHORTEN, &[&LIFE_MICROS_MAX]).await?;
    let ahead = i64::try_from(newest.since(now).as_micros()).unwrap_or(i64::MAX);
    db.execute(NOTE, &[&ahead]).await?;
    Ok(())
}

/// Takes some rows of a route for written now.
async fn move_some(db: &Db<'_>, route: &str) -> Work<()> {
    db.lock_route(route).await?;
    let Some(row) = db.query_opt(LEFT, &[&route]).await? else { return Ok(()) };
    let (ahead, from, to): (i64, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let now = Instant(db.now().await?);
    let row = db.query_one(EARLIER, &[&route, &now, &ahead, &from, &to, &ROWS]).await?;
    let (last, looked_at): (Option<i64>, i64) = (row.try_get(0)?, row.try_get(1)?);
    match last.filter(|_| looked_at == ROWS) {
        Some(last) => db.execute(MOVED, &[&route, &last]).await?,
        None => db.execute(DONE, &[&route]).await?,
    };
    Ok(())
}
