//! Settle: the cursor moves, and what could not simply go on is parked, in one transaction under the lease's epoch.
//!
//! The usual settlement is one small update, and a transaction by itself. It asks in the same step who answers and which place
//! was given last: a cursor from before a fail-over must not be written (see [`crate::identity`]). A repeated one is recognised by
//! its number: numbers grow within an epoch, so one that is not greater than the last has been applied.

use postrider_core::{
    Error,
    lease::Lease,
    log::{Resumed, Settlement},
};

use crate::{
    cursor,
    db::{Db, get, values},
    due,
    error::Work,
    identity,
    lease::{drop_lane, fence},
    parked::Rows,
    route::{Route, drop_empty_replays},
};

/// By primary key. Epoch, number, server and place are asked in the same step: nothing changes if one of them is over. The
/// server is asked for rows that match, so that writing the same cursor again counts. At READ COMMITTED the look at the last
/// place locks nothing.
const ADVANCE: &str = "
UPDATE {p}lane SET passed = COALESCE(?, passed), settled = ?
 WHERE route = ? AND number = ? AND epoch = ? AND (settled IS NULL OR settled < ?)
   AND {name} = ? AND COALESCE(?, 0) <= (SELECT value FROM {p}counter AS given WHERE given.name = 'place')";

const PASSED: &str = "SELECT passed FROM {p}lane WHERE route = ? AND number = ? AND epoch = ?";

/// Held rows count: one behind a dead head must find its lane once that is gone.
const WAITING: &str = "SELECT 1 FROM {p}parked WHERE route = ? AND state <> 'dead' LIMIT 1";

/// Whether a settlement does more than move the cursor, so that it needs a transaction around it.
pub(crate) fn touches_rows(settlement: &Settlement) -> bool {
    !(settlement.remove.is_empty() && settlement.park.is_empty() && settlement.change.is_empty())
}

pub(crate) async fn settle(db: &mut Db, lease: &Lease, settlement: &Settlement) -> Work<()> {
    let Settlement { number, advance, remove, park, change } = settlement;
    let advance = advance.as_ref().map(cursor::decode).transpose()?;
    let (route, number) = (&*lease.lane.route, number.cast_signed());
    let touches_rows = touches_rows(settlement);
    db.is_of(lease)?;
    if touches_rows {
        db.lock_route(route).await?;
    }
    let mut values = values![advance, number, route, lease.lane.number, lease.epoch.0.cast_signed(), number];
    values.extend(values![&*db.server().name, advance]);
    if db.execute(&ADVANCE.replace("{name}", identity::NAME), values).await? == 0 {
        if advance > Some(db.standing().await?.last) {
            // Commits that it has read were taken back; others get their places.
            return Err(Error::fenced().into());
        }
        // Either the lane has another epoch, or this number has been applied.
        return fence(db, lease).await;
    }
    if !touches_rows {
        return Ok(());
    }
    // Cursor and rows commit together, so it makes no difference that the cursor is written first.
    let now = db.now().await?;
    let mut rows = Rows::new(db, route, now);
    for ordinal in remove {
        rows.remove(*ordinal).await?;
    }
    rows.park(park).await?;
    for (ordinal, parked) in change {
        rows.change(*ordinal, parked).await?;
    }
    rows.finish().await
}

/// What a new owner must know first.
pub(crate) async fn resume(db: &mut Db, lease: &Lease) -> Work<Resumed> {
    let values = values![&*lease.lane.route, lease.lane.number, lease.epoch.0.cast_signed()];
    db.is_of(lease)?;
    let passed: i64 = get(&db.query_opt(PASSED, values).await?.ok_or_else(Error::fenced)?, 0)?;
    Ok(Resumed { cursor: cursor::encode(passed), blocked: due::blocked(db, lease).await? })
}

/// Ends a replay's lane if nothing of it goes on without an operator. Its dead rows stay; a redrive brings the lane back.
pub(crate) async fn finish(db: &mut Db, lease: &Lease) -> Work<bool> {
    let route = &*lease.lane.route;
    db.lock_route(route).await?;
    fence(db, lease).await?;
    let is_replay = Route::find(db, route).await?.is_some_and(|route| route.reader.replay.is_some());
    if !is_replay || db.query_opt(WAITING, values![route]).await?.is_some() {
        return Ok(false);
    }
    drop_lane(db, lease).await?;
    db.given_back(lease);
    drop_empty_replays(db).await?;
    Ok(true)
}
