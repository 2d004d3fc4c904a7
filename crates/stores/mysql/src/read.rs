//! Reading a page of the log: the hot path.
//!
//! The order list says which messages come next and how large they are; their rows are fetched by primary key, as many as
//! fit into the page and no more. Where the list ends, what is committed meanwhile is given its place (see [`crate::order`]),
//! and reading goes on; but what is there does not wait until a trickle has filled the page. Nothing is locked but, for that,
//! the row that holds the last place.
//!
//! A message that the list names must be there: nothing is purged before every reader has passed it. One that is not, because
//! somebody has deleted it or a proxy has sent two statements to two servers, stops the lane instead of being passed over.
//!
//! Places that a fail-over has taken back are given again. So whoever stands at one that was never given here, or has taken its
//! lease elsewhere, is fenced before it reads (see [`crate::identity`]).

use std::sync::Arc;

use postrider_core::{
    Error, ErrorKind,
    lease::Lease,
    log::{Page, PageLimit},
    time::Timestamp,
};

use crate::{
    MysqlStore,
    db::{Db, get, values},
    error::{Fault, Work},
    order::{self, BATCH_MAX, Entry},
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
    let now = stand(&mut db, lease, after).await?;
    let replay = lease.reader.replay.as_ref().map(|_| Arc::clone(&lease.lane.route));
    let until = if replay.is_some() { replay_end(&mut db, lease).await? } else { i64::MAX };
    let mut reading = Reading {
        selection: Selection::new(&lease.reader, lease.lane.number, lease.lanes),
        gathered: Gathered::new(limit, replay.clone(), now),
        at: after,
        scanned: 0,
    };
    let (mut nothing_waits, mut trickle) = (false, false);
    // Ends with the log, with a full page, or with the scan's limit.
    let more = loop {
        let entries = order::behind(&mut db, reading.at, until).await?;
        // Where there is much there is probably more: what comes behind is ordered while this is fetched and handled.
        if replay.is_none() && (BATCH_MAX / 2..2 * limit.records as usize).contains(&entries.len()) {
            order::order_ahead(store);
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
            (nothing_waits, trickle) = (ordered == 0, ordered < BATCH_MAX);
            // Where nothing waits any more, somebody else may have ordered it since the list was looked at: look again.
            db = store.alone().await?;
            stand(&mut db, lease, reading.at).await?;
        } else if reading.is_over() || !reading.take(&mut db, lease, &entries).await? {
            break true;
        }
    };
    let Reading { gathered, at, .. } = reading;
    Ok(gathered.into_page(after, at, more))
}

/// Answers when it is, or that the lease is from before a fail-over: taken elsewhere, or at a place that was never given here.
async fn stand(db: &mut Db, lease: &Lease, at: i64) -> Work<Timestamp> {
    db.is_of(lease)?;
    let (now, last) = db.standing().await?;
    if at > last { Err(Error::fenced().into()) } else { Ok(now) }
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
    scanned: usize,
}

impl Reading<'_> {
    fn is_over(&self) -> bool {
        self.gathered.is_full() || self.scanned >= SCAN_MAX
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

/// Why a message that the list names is not there.
async fn missing(db: &mut Db, lease: &Lease, seq: i64) -> Fault {
    let lane = &lease.lane;
    let owned = db.query_opt(OWNED, values![&*lane.route, lane.number, lease.epoch.0.cast_signed()]).await;
    match owned {
        Err(fault) => fault,
        // Others have passed it meanwhile, and it was purged.
        Ok(None) => Error::fenced().into(),
        Ok(Some(_)) => Error::new(
            ErrorKind::Corrupt,
            "a message that the order list names is not in the log: somebody has deleted it, or this connection is sent to \
             servers that differ",
        )
        .with("seq", seq)
        .into(),
    }
}
