//! Reading a page of the log: the hot path.
//!
//! The order list says which messages come next and how large they are; their rows are fetched by primary key, as many as
//! fit into the page and no more. Where the list ends, what is committed meanwhile is given its place (see [`crate::order`]),
//! and reading goes on; but what is there does not wait until a trickle has filled the page. Nothing is locked but, for that,
//! the row that holds the last place.
//!
//! Places have no gaps. One behind which the list does not go on is a batch that the view hides while it shows the next one, as
//! MariaDB's views may (see [`crate::order`]): whoever has the lock of the last place is waited for, and the list looked at
//! again. What is missing then is gone. Nothing is purged before every reader has passed it, so only a reader that begins with
//! the oldest may miss what was purged before it came, and how far that was is noted. Anything else stops the lane.
//!
//! What others have ordered is seen before it is on the disk, and not handed out before (see [`crate::durable`]).
//!
//! A message that the list names must be there: nothing is purged before every reader has passed it. One that is not, because
//! somebody has deleted it or a proxy has sent two statements to two servers, stops the lane instead of being passed over.
//!
//! Messages that are not noted are in no list, and nobody misses them. So it is looked every now and then whether the trigger
//! is still there ([`TriggerWatch`](crate::server::TriggerWatch)); while it is not, no lane reads.
//!
//! Places that a fail-over has taken back are given again. So whoever stands at one that was never given here, or has taken its
//! lease elsewhere, is fenced before it reads (see [`crate::identity`]).

use std::sync::Arc;

use postrider_core::{
    Error, ErrorKind,
    lease::Lease,
    log::{Page, PageLimit},
};

use crate::{
    MysqlStore,
    db::{Db, Standing, get, values},
    error::{Fault, Work},
    list::{self, Entry},
    order::{self, BATCH_MAX},
    planted::Plant,
    records::{Gathered, fetch},
    select::{CHOSEN_BY, Selection},
};

/// Records that one read looks at. A lane that few records belong to returns after so many, with its cursor moved.
const SCAN_MAX: usize = 20_000;

/// Where a replay ends, if this owner still has it.
const REPLAY_END: &str = "
SELECT replay_end
  FROM {p}route JOIN {p}lane ON route = name
 WHERE name = ? AND number = ? AND epoch = ?";

const OWNED: &str = "SELECT 1 FROM {p}lane WHERE route = ? AND number = ? AND epoch = ?";

/// Reads on behind `after`.
pub(crate) async fn read(store: &MysqlStore, lease: &Lease, after: i64, limit: PageLimit) -> Work<Page> {
    let mut db = store.alone().await?;
    let mut standing = stand(&mut db, lease, after).await?;
    store.0.trigger.check(&mut db).await?;
    let replay = lease.reader.replay.as_ref().map(|_| Arc::clone(&lease.lane.route));
    let until = if replay.is_some() { replay_end(&mut db, lease).await? } else { i64::MAX };
    let mut reading = Reading {
        selection: Selection::new(&lease.reader, lease.lane.number, lease.lanes),
        gathered: Gathered::new(limit, replay.clone(), standing.now),
        at: after,
        seen: after,
        scanned: 0,
    };
    let (mut nothing_waits, mut trickle) = (false, false);
    // Ends with the log, with a full page, with the scan's limit, or when what waits could not be ordered now.
    let more = loop {
        let entries = reading.next(&mut db, lease, until, standing.last, store.0.plant).await?;
        if replay.is_none() {
            // What comes behind is ordered while this is fetched and handled.
            order::order_ahead(store, standing.last.max(reading.seen) - reading.at);
        }
        if entries.is_empty() {
            // All that a replay reads has its place already.
            if replay.is_some() || nothing_waits {
                break false;
            }
            if trickle && !reading.gathered.is_empty() {
                break true;
            }
            // Nobody may hold one connection while waiting for another.
            drop(db);
            let ordered = order::order(store).await?;
            // Where nothing waits any more, somebody else may have ordered it since the list was looked at: look again.
            db = store.alone().await?;
            standing = stand(&mut db, lease, reading.at).await?;
            if ordered.messages == 0 && !ordered.is_all {
                break true;
            }
            (nothing_waits, trickle) = (ordered.messages == 0, ordered.messages < BATCH_MAX);
        } else if reading.is_over() || !reading.take(&mut db, lease, &entries).await? {
            break true;
        }
    };
    let Reading { gathered, at, seen, .. } = reading;
    if !gathered.is_empty() && !standing.is_durable {
        store.0.durable.wait(&mut db, at, seen).await?;
    }
    Ok(gathered.into_page(after, at, more))
}

/// How things stand, or that the lease is from before a fail-over: taken elsewhere, or at a place that was never given here.
async fn stand(db: &mut Db, lease: &Lease, at: i64) -> Work<Standing> {
    db.is_of(lease)?;
    let standing = db.standing().await?;
    if at > standing.last { Err(Error::fenced().into()) } else { Ok(standing) }
}

async fn replay_end(db: &mut Db, lease: &Lease) -> Work<i64> {
    let lane = &lease.lane;
    let row = db.query_opt(REPLAY_END, values![&*lane.route, lane.number, lease.epoch.0.cast_signed()]).await?;
    get(&row.ok_or_else(Error::fenced)?, 0)
}

/// A read under way.
struct Reading<'a> {
    selection: Selection<'a>,
    gathered: Gathered,
    at: i64,
    /// The last place that was seen.
    seen: i64,
    scanned: usize,
}

impl Reading<'_> {
    fn is_over(&self) -> bool {
        self.gathered.is_full() || self.scanned >= SCAN_MAX
    }

    /// The entries that come next. `last` is a place that was given before: what is not behind it must be there.
    async fn next(&mut self, db: &mut Db, lease: &Lease, until: i64, last: i64, plant: Plant) -> Work<Vec<Entry>> {
        // As many as fill the page if each lane has its share.
        let most = (self.gathered.missing() * lease.lanes as usize).min(SCAN_MAX) as i64;
        let mut entries = list::behind(db, self.at, until, most, plant).await?;
        let must = last.min(until);
        if missing_to(self.at, &entries, must).is_some() && plant != Plant::NoGapCheck {
            db.wait_for("place").await?;
            entries = list::behind(db, self.at, until, i64::MAX, Plant::None).await?;
            if let Some(missing) = missing_to(self.at, &entries, must) {
                // A lane that has passed something keeps what comes next from being purged.
                if self.at > 0 || missing > db.counter("purged").await? {
                    return Err(gone(db, lease, self.at + 1).await);
                }
                self.at = missing;
            }
        }
        self.seen = self.seen.max(entries.last().map_or(self.at, |entry| entry.place));
        Ok(entries)
    }

    /// Takes what belongs to the lane, in order. `false`: the page ends before the entries do.
    async fn take(&mut self, db: &mut Db, lease: &Lease, mut entries: &[Entry]) -> Work<bool> {
        let columns = format!("{CHOSEN_BY}, deliver_at, expires_at, attempts_max, headers, payload");
        while !entries.is_empty() {
            let room = if self.is_over() { 0 } else { self.gathered.room(entries) };
            if room == 0 {
                return Ok(false);
            }
            let (now, later) = entries.split_at(room);
            let rows = fetch(db, &columns, now).await?;
            for entry in now {
                assert!(entry.place > self.at, "the log is read in ascending order");
                let Some(row) = rows.get(&entry.seq) else { return Err(missing(db, lease, entry.seq).await) };
                if let Some(chosen) = self.selection.choose(row)? {
                    self.gathered.take(entry.place, row, &chosen, &self.selection)?;
                }
                self.at = entry.place;
            }
            self.scanned += room;
            entries = later;
        }
        Ok(true)
    }
}

/// The last of the places that are missing directly behind `at`, up to which at least `must` have been given.
fn missing_to(at: i64, entries: &[Entry], must: i64) -> Option<i64> {
    let missing = entries.first().map_or(must, |entry| entry.place - 1);
    Some(missing).filter(|missing| *missing > at)
}

/// Why a place that was given is not in the list.
async fn gone(db: &mut Db, lease: &Lease, place: i64) -> Fault {
    let what = "the order list does not go on where this lane stands: somebody has deleted from it, or this connection is sent \
                to servers that differ";
    broken(db, lease, Error::new(ErrorKind::Corrupt, what).with("place", place)).await
}

/// Why a message that the list names is not there.
async fn missing(db: &mut Db, lease: &Lease, seq: i64) -> Fault {
    let what = "a message that the order list names is not in the log: somebody has deleted it, or this connection is sent to \
                servers that differ";
    broken(db, lease, Error::new(ErrorKind::Corrupt, what).with("seq", seq)).await
}

async fn broken(db: &mut Db, lease: &Lease, error: Error) -> Fault {
    let lane = &lease.lane;
    let owned = db.query_opt(OWNED, values![&*lane.route, lane.number, lease.epoch.0.cast_signed()]).await;
    match owned {
        Err(fault) => fault,
        // Others have passed it meanwhile, and it was purged.
        Ok(None) => Error::fenced().into(),
        Ok(Some(_)) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_directly_behind_is_found() {
        let from = |place| [Entry { place, seq: 1, bytes: 0 }];
        assert_eq!(missing_to(0, &from(1), 1), None);
        assert_eq!(missing_to(7, &from(8), 20), None, "the rest comes in another look");
        assert_eq!(missing_to(7, &from(9), 9), Some(8));
        assert_eq!(missing_to(0, &from(801), 900), Some(800));
        assert_eq!(missing_to(7, &[], 7), None, "there is no more");
        assert_eq!(missing_to(7, &[], 9), Some(9));
    }
}
