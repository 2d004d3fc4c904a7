//! Settle: the cursor moves, and what could not simply go on is parked, in one transaction under the lease's epoch.
//!
//! The usual settlement is one statement that writes one small row, and a transaction by itself. A repeated one is
//! recognised by its number: numbers grow within an epoch, so one that is not greater than the last has been applied.

use postrider_core::{
    Error, ErrorKind,
    lease::Lease,
    log::{Resumed, Settlement},
};

use crate::{
    checkpoint::{self, Advance, Checkpoint},
    cursor::Position,
    db::{Alone, Db},
    due,
    error::Work,
    lease::{drop_lane, lock_lanes},
    parked::Rows,
    route::{Route, drop_empty_replays},
};

/// Held rows count: one behind a dead head must find its lane once that is gone.
const WAITING: &str = "SELECT 1 FROM {parked} WHERE route = $1 AND state <> 'dead' LIMIT 1";

/// The usual settlement, which moves the cursor and nothing else: one statement in one round trip. `false`: nothing was
/// written, and [`settle`] has to find out why.
pub(crate) async fn settle_alone(on: &Alone<'_>, lease: &Lease, settlement: &Settlement) -> Work<bool> {
    if touches_rows(settlement) {
        return Ok(false);
    }
    let position = settlement.advance.as_ref().map(Position::decode).transpose()?;
    let advance = advance(lease, settlement, position.as_ref());
    match checkpoint::settle(on, lease, settlement.number, advance.as_ref()).await {
        // Somebody else wrote the lane's next checkpoint at the same moment.
        Err(fault) if fault.is_unique_violation() => Ok(false),
        written => written,
    }
}

fn touches_rows(settlement: &Settlement) -> bool {
    !(settlement.remove.is_empty() && settlement.park.is_empty() && settlement.change.is_empty())
}

fn advance<'a>(lease: &Lease, settlement: &'a Settlement, position: Option<&Position>) -> Option<Advance<'a>> {
    settlement.advance.as_ref().zip(position).map(|(cursor, position)| Advance {
        cursor,
        session: position.session,
        lo: if lease.reader.replay.is_some() { position.replay_lo() } else { position.lo() },
    })
}

pub(crate) async fn settle(db: &Db<'_>, lease: &Lease, settlement: &Settlement) -> Work<()> {
    let Settlement { number, remove, park, change, .. } = settlement;
    let position = settlement.advance.as_ref().map(Position::decode).transpose()?;
    let advance = advance(lease, settlement, position.as_ref());
    let touches_rows = touches_rows(settlement);
    if touches_rows {
        db.lock_route(&lease.lane.route).await?;
        if Checkpoint::of(db, lease).await?.settled >= *number {
            return Ok(());
        }
        let mut rows = Rows::new(db, &lease.lane.route, db.now().await?);
        for ordinal in remove {
            rows.remove(*ordinal).await?;
        }
        rows.park(park).await?;
        for (ordinal, parked) in change {
            rows.change(*ordinal, parked).await?;
        }
        rows.finish().await?;
    }
    if checkpoint::settle(db, lease, *number, advance.as_ref()).await? {
        return Ok(());
    }
    // No checkpoint was written: fenced, repeated, or a cursor from before a crash, which must not be written either.
    match Checkpoint::of(db, lease).await?.settled >= *number {
        true if touches_rows => {
            Err(Error::new(ErrorKind::Conflict, "the same settlement was applied meanwhile").into())
        }
        true => Ok(()),
        false => Err(Error::fenced().into()),
    }
}

/// What a new owner must know first.
pub(crate) async fn resume(db: &Db<'_>, lease: &Lease) -> Work<Resumed> {
    let cursor = Checkpoint::of(db, lease).await?.cursor;
    // However many lines there are, all of them are counted.
    db.take_time().await?;
    Ok(Resumed { cursor, blocked: due::blocked(db, lease).await? })
}

/// Ends a replay's lane if nothing of it goes on without an operator. Its dead rows stay; a redrive brings the lane back.
pub(crate) async fn finish(db: &Db<'_>, lease: &Lease) -> Work<bool> {
    let route = &*lease.lane.route;
    db.lock_route(route).await?;
    // Before its checkpoint, as by whoever takes the lane.
    lock_lanes(db, route).await?;
    Checkpoint::of(db, lease).await?;
    let is_replay = Route::find(db, route).await?.is_some_and(|route| route.reader.replay.is_some());
    if !is_replay || db.query_opt(WAITING, &[&route]).await?.is_some() {
        return Ok(false);
    }
    drop_lane(db, route, lease.lane.number).await?;
    drop_empty_replays(db).await?;
    Ok(true)
}
