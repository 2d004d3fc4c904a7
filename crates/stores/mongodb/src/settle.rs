//! Settle: the cursor moves, and what could not simply go on is parked, in one transaction under the lease's epoch.
//!
//! The usual settlement is one small update. A repeated one is recognised by its number: numbers grow within an epoch, so one
//! that is not greater than the last has been applied. The fence is that the lane is *written*: a transaction that only looks
//! at the epoch, or sets what is there already, commits beside a takeover.

use mongodb::bson::doc;
use postrider_core::{
    Error,
    lease::Lease,
    log::{Resumed, Settlement},
};

use crate::{
    cursor::Position,
    db::{Db, Update},
    due,
    error::Work,
    lease::{fence, named, position},
    parked::Rows,
    planted::Plant,
    route::{Route, drop_empty_replays},
    value::binary,
};

/// Whether a settlement does more than move the cursor, so that it needs a transaction around it.
pub(crate) fn touches_rows(settlement: &Settlement) -> bool {
    !(settlement.remove.is_empty() && settlement.park.is_empty() && settlement.change.is_empty())
}

pub(crate) async fn settle(db: &mut Db, lease: &Lease, settlement: &Settlement, plant: Plant) -> Work<()> {
    let Settlement { advance, remove, park, change, .. } = settlement;
    if plant == Plant::FenceWithoutWrite && advance.is_none() {
        fence(db, lease).await?;
    } else if !advanced(db, lease, settlement).await? {
        return repeated(db, lease).await;
    }
    if !touches_rows(settlement) {
        return Ok(());
    }
    // Cursor and rows commit together, so it makes no difference that the cursor is written first.
    let held = change.iter().filter(|(_, parked)| matches!(parked, postrider_core::parked::Parked::Held)).count();
    let mut rows = Rows::new(db, &lease.lane.route, park.len() + held).await?;
    rows.remove(remove).await?;
    rows.park(park).await?;
    rows.change(change).await?;
    rows.finish().await
}

/// Either the lane has another epoch, or this number has been applied: perhaps just now, and nobody but the primary has it yet.
/// A write of its own waits until a majority has it, and with it everything before.
async fn repeated(db: &mut Db, lease: &Lease) -> Work<()> {
    let beat = doc! { "$inc": { "beat": 1_i64 } };
    if db.update("lane", Update::one(named(lease), beat)).await? == 0 { Err(Error::fenced().into()) } else { Ok(()) }
}

/// Epoch and number are asked in the same step: nothing changes if either is over.
async fn advanced(db: &mut Db, lease: &Lease, settlement: &Settlement) -> Work<bool> {
    let number = settlement.number.cast_signed();
    let mut filter = named(lease);
    filter.insert("$or", vec![doc! { "settled": null }, doc! { "settled": { "$lt": number } }]);
    let mut set = doc! { "settled": number, "beat": { "$add": ["$beat", 1_i64] } };
    if let Some(cursor) = &settlement.advance {
        // What is not ours is refused before it is kept.
        Position::decode(&cursor.0)?;
        set.insert("cursor", binary(&cursor.0));
    }
    Ok(db.update("lane", Update::one(filter, vec![doc! { "$set": set }])).await? > 0)
}

/// What a new owner must know first.
pub(crate) async fn resume(db: &mut Db, lease: &Lease) -> Work<Resumed> {
    let lane = db.find_one("lane", named(lease)).await?.ok_or_else(Error::fenced)?;
    Ok(Resumed { cursor: position(&lane)?.encode(), blocked: due::blocked(db, lease).await? })
}

/// Ends a replay's lane if nothing of it goes on without an operator. Its dead rows stay; a redrive brings the lane back.
pub(crate) async fn finish(db: &mut Db, lease: &Lease) -> Work<bool> {
    let route = &*lease.lane.route;
    fence(db, lease).await?;
    db.lock_route(route, 0).await?;
    let is_replay = Route::find(db, route).await?.is_some_and(|route| route.reader.replay.is_some());
    // Held rows count: one behind a dead head must find its lane once that is gone.
    let waiting = doc! { "route": route, "state": { "$ne": "dead" } };
    if !is_replay || db.find_one("parked", waiting).await?.is_some() {
        return Ok(false);
    }
    db.delete("lane", named(lease)).await?;
    drop_empty_replays(db).await?;
    Ok(true)
}
