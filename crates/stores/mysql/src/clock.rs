//! The server's clock, where it goes back.
//!
//! All instants are the primary's. The next primary may be behind it, and then what was written lies ahead: a dead owner's lease
//! would not run out for as long as the clocks are apart, and a retry would not come. So whoever registers or beats first looks
//! for instants that are not yet, and takes them for now: leases then last as long as they were given for, and rows wait as
//! long as they were to wait, and at most for the fail-over longer. Nobody loses a lease by it whose heartbeats arrive, and
//! what an application has scheduled for an instant stays at that instant.
//!
//! How far the clock went back is told by when nodes were last seen. That is put right in the same transaction as the rows,
//! under a lock, so rows move once.

use crate::{
    db::{Db, get, values},
    error::Work,
    lease::LIFE_MICROS_MAX,
    route::Route,
};

/// Instants of one look are not all asked at the same moment; what is ahead by less is not ahead.
const MICROS_MIN: i64 = 1_000_000;

/// Whether anything is ahead of an instant: a few rows, without a lock.
const ANY: &str = "
SELECT EXISTS (SELECT 1 FROM {p}node WHERE seen_at > ?)
       OR EXISTS (SELECT 1
                    FROM {p}lane JOIN {p}node ON id = owner
                   WHERE expires_at > ? + lease_life AND lease_life < ?)";

const NEWEST: &str = "SELECT MAX(seen_at) FROM {p}node";

const NODES: &str = "SELECT id FROM {p}node WHERE seen_at > ? ORDER BY id";

const SEEN: &str = "UPDATE {p}node SET seen_at = ? WHERE id = ? AND seen_at > ?";

/// A node is forgotten no sooner than its leases run out, so whoever has one is known. An endless lease is never ahead.
const LANES: &str = "
SELECT route, number, lease_life
  FROM {p}lane JOIN {p}node ON id = owner
 WHERE expires_at > ? + lease_life AND lease_life < ?
 ORDER BY route, number";

const SHORTEN: &str = "UPDATE {p}lane SET expires_at = ? WHERE route = ? AND number = ? AND expires_at > ?";

/// One pass over the rows of a route. What waits for an instant of the application's goes on waiting for it.
const EARLIER: &str = "
UPDATE {p}parked SET due_at = due_at - ?, wake_at = wake_at - ?
 WHERE route = ? AND due_at > ? AND (state <> 'scheduled' OR deliver_at IS NULL)";

/// Takes everything that was written ahead of its time for written now. In a transaction, before anything of it is locked.
pub(crate) async fn catch_up(db: &mut Db) -> Work<()> {
    let ahead = db.now().await?.as_micros() + MICROS_MIN;
    if !get::<bool>(&db.query_one(ANY, values![ahead, ahead, LIFE_MICROS_MAX]).await?, 0)? {
        return Ok(());
    }
    // One at a time; and what was written while we waited is not ahead of an instant that is asked behind the lock.
    db.lock("readers").await?;
    let now = db.now().await?.as_micros();
    let ahead = now + MICROS_MIN;
    let newest: Option<i64> = get(&db.query_one(NEWEST, Vec::new()).await?, 0)?;
    if let Some(newest) = newest.filter(|newest| *newest > ahead) {
        // By name, as everybody who locks several.
        for route in Route::all(db).await?.into_keys() {
            db.lock_route(&route).await?;
            db.execute(EARLIER, values![newest - now, newest - now, &*route, now]).await?;
        }
    }
    for row in db.query(LANES, values![ahead, LIFE_MICROS_MAX]).await? {
        let (route, number, life): (Vec<u8>, u32, i64) = (get(&row, 0)?, get(&row, 1)?, get(&row, 2)?);
        db.execute(SHORTEN, values![now + life, route, number, ahead + life]).await?;
    }
    for row in db.query(NODES, values![ahead]).await? {
        db.execute(SEEN, values![now, get::<Vec<u8>>(&row, 0)?, ahead]).await?;
    }
    Ok(())
}
