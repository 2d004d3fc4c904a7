//! Purge: messages that every reader has passed leave the log, a bounded number at a time.
//!
//! The oldest are looked at first, then the stream is asked which of them committed late, behind some cursor: those stay.
//! The order of the two matters: whatever the look has seen is committed by the time the stream is asked, and so the stream
//! has it. Each different cursor is asked about once, and for no longer than [`PATIENCE`] together: the transaction is open
//! meanwhile. Where the server has forgotten that part of its history, or has not answered in time, only what is older by the
//! overlap is taken for passed. The delete meets every registration of a reader that has committed since the look began, so
//! none is overlooked. A collection that expires its documents by itself could know nothing of all this.
//!
//! How many there are is asked of the collection's own books, which cost nothing to read. They count what is not committed yet,
//! and may be off by a little after a crash of the server.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use mongodb::bson::{Bson, doc};
use postrider_core::log::Retention;

use crate::{
    cursor::{Position, Tick, timestamp},
    db::{Db, Find},
    error::Work,
    lease::lanes,
    records::{at, enqueued_at},
    stream::{LATE_PATIENCE, late},
    value::long,
};

/// Messages that one purge removes at most.
const MESSAGES_MAX: i64 = 1_000;

/// How long the stream is asked in one purge: well below what a server allows a transaction.
const PATIENCE: Duration = Duration::from_secs(10);

/// `aside` is for the stream and the count, which cannot be asked inside of a transaction.
pub(crate) async fn purge(db: &mut Db, aside: &mut Db, retention: Retention, overlap: Tick) -> Work<u64> {
    if retention == Retention::default() {
        return Ok(0);
    }
    let now = db.now().await?;
    let lanes = lanes(db, now).await?.into_values().flatten();
    let positions: HashMap<_, Position> = lanes.map(|lane| (lane.at.encode().0, lane.at)).collect();
    // While no route is known nothing is removed.
    let Some(bound) = positions.values().map(Position::bound).min() else { return Ok(0) };
    let fields = doc! { "at": 1, "enqueued_at": 1 };
    let find = Find::new(doc! { "at": { "$lte": timestamp(bound) } }).sort(doc! { "at": 1 });
    let mut oldest = db.find("log", find.limit(MESSAGES_MAX).fields(fields)).await?;
    // After the look: whatever another has removed since then is not counted, and ends this transaction.
    let surplus = match retention.records_max {
        Some(most) => count(aside).await?.saturating_sub(most),
        None => 0,
    };
    let oldest_kept = retention.keep.map(|keep| now.saturating_sub(keep));
    let mut place = 0;
    oldest.retain(|document| {
        place += 1;
        place <= surplus || oldest_kept.is_some_and(|kept| enqueued_at(document) < kept)
    });
    if oldest.is_empty() {
        return Ok(0);
    }
    let seen = db.operation_time();
    let mut kept: HashSet<Tick> = HashSet::new();
    let mut trusted = bound;
    let all_until = Instant::now() + PATIENCE;
    for position in positions.values() {
        let until = all_until.min(Instant::now() + LATE_PATIENCE);
        match late(aside, position, seen, until).await? {
            Some(late) => kept.extend(late.iter().map(at)),
            None => trusted = trusted.min(position.scan_from(overlap)),
        }
    }
    oldest.retain(|document| at(document) <= trusted && !kept.contains(&at(document)));
    let ids: Vec<Bson> = oldest.iter_mut().filter_map(|document| document.remove("_id")).collect();
    if ids.is_empty() {
        return Ok(0);
    }
    // At the end, for it keeps registrations from committing. One that has committed since the look began ends this
    // transaction.
    db.lock_readers().await?;
    db.delete("log", doc! { "_id": { "$in": ids } }).await
}

/// How many messages the log has, by the collection's books.
async fn count(db: &mut Db) -> Work<u64> {
    let command = doc! { "count": db.names.log() };
    let answer = db.ask(command).await?;
    Ok(long(&answer, "n")?.unsigned_abs())
}
