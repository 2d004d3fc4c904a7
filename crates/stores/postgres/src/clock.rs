//! The server's clock, where it goes back.
//!
//! All instants are the primary's. A standby that is promoted may be behind it, and then what was written lies ahead: a dead
//! owner's lease would not run out for as long as the clocks are apart, and a retry would not come. So whoever registers, or
//! learns of it by its heartbeat, looks for instants that are not yet, and takes them for now: leases then last as long as they
//! were given for, and rows wait as long as they were to wait, and at most for the fail-over longer. Nobody loses a lease by it
//! whose heartbeats arrive, and what an application has scheduled for an instant stays at that instant.
//!
//! How far the clock went back is told by when nodes were last seen. That is put right in the same transaction as the rows,
//! under a lock, so rows move once; a heartbeat leaves it as it is until then.

use postrider_core::time::Timestamp;

use crate::{db::Db, error::Work, lease::LIFE_MICROS_MAX, route::Route, values::Instant};

const NEWEST: &str = "
SELECT max(seen_at), max(seen_at) > clock_timestamp() + interval '1 second', clock_timestamp()
  FROM {node}";

/// One pass over the rows of a route. What waits for an instant of the application's goes on waiting for it. Nobody writes a
/// wake time that is past already (see [`crate::floor`]).
const EARLIER: &str = "
UPDATE {parked}
   SET due_at = CASE WHEN due_at > $2::timestamptz THEN greatest(due_at - ($3::timestamptz - $2), $2) ELSE due_at END,
       wake_at = CASE WHEN wake_at > $2 THEN greatest(wake_at - ($3::timestamptz - $2), $2) ELSE wake_at END
 WHERE route = $1 AND (due_at > $2 OR wake_at > $2) AND (state <> 'scheduled' OR deliver_at IS NULL)";

/// In the order of ids, as everywhere. A node is forgotten no sooner than its leases run out, so whoever has one is known. An
/// endless lease is never ahead.
const SHORTEN: &str = "
WITH ahead AS MATERIALIZED (
    SELECT lane.route, lane.number, node.lease_life
      FROM {lane} AS lane
      JOIN {node} AS node ON node.id = lane.owner
     WHERE node.lease_life < $2
       AND lane.expires_at > $1::timestamptz + interval '1 second' + node.lease_life * interval '1 microsecond'
     ORDER BY lane.route, lane.number
       FOR UPDATE OF lane
)
UPDATE {lane} AS lane
   SET expires_at = $1::timestamptz + ahead.lease_life * interval '1 microsecond'
  FROM ahead
 WHERE lane.route = ahead.route AND lane.number = ahead.number";

const SEEN: &str = "
WITH ahead AS MATERIALIZED (
    SELECT id FROM {node} WHERE seen_at > $1::timestamptz + interval '1 second' ORDER BY id FOR UPDATE
)
UPDATE {node} SET seen_at = $1 WHERE id IN (SELECT id FROM ahead)";

/// Takes everything that was written ahead of its time for written now. Under the lock of readers.
pub(crate) async fn catch_up(db: &Db<'_>) -> Work<()> {
    let row = db.query_one(NEWEST, &[]).await?;
    let (Some(newest), Some(true)) = (row.try_get::<_, Option<Instant>>(0)?, row.try_get::<_, Option<bool>>(1)?) else {
        return Ok(());
    };
    let now: Timestamp = row.try_get::<_, Instant>(2)?.0;
    // By name, as everybody who locks several.
    for route in Route::all(db).await?.into_keys() {
        db.lock_route(&route).await?;
        db.execute(EARLIER, &[&&*route, &Instant(now), &newest]).await?;
    }
    db.execute(SHORTEN, &[&Instant(now), &LIFE_MICROS_MAX]).await?;
    db.execute(SEEN, &[&Instant(now)]).await?;
    Ok(())
}
