//! Reading a page of the log: the hot path.
//!
//! The order list says which messages come next and how large they are; their rows are fetched by primary key, as many as
//! fit into the page and no more. Where the list ends, what is committed meanwhile is given its place (see [`crate::order`]),
//! and reading goes on. Nothing is locked but, for that, the row that holds the last place.

use std::sync::Arc;

use postrider_core::{
    Error,
    lease::Lease,
    log::{Page, PageLimit},
};

use crate::{
    MysqlStore,
    db::{Db, get, values},
    error::Work,
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

/// Reads on behind `after`.
pub(crate) async fn read(store: &MysqlStore, lease: &Lease, after: i64, limit: PageLimit) -> Work<Page> {
    let mut db = store.alone().await?;
    let replay = lease.reader.replay.as_ref().map(|_| Arc::clone(&lease.lane.route));
    let until = if replay.is_some() { replay_end(&mut db, lease).await? } else { i64::MAX };
    let mut reading = Reading {
        selection: Selection::new(&lease.reader, lease.lane.number, lease.lanes),
        gathered: Gathered::new(limit, replay.clone(), db.now().await?),
        at: after,
        scanned: 0,
    };
    let mut nothing_waits = false;
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
            // Nobody may hold one connection while waiting for another.
            drop(db);
            nothing_waits = order::order(store).await? == 0;
            // Where nothing waits any more, somebody else may have ordered it since the list was looked at: look again.
            db = store.alone().await?;
        } else if reading.is_over() || !reading.take(&mut db, &entries).await? {
            break true;
        }
    };
    let Reading { gathered, at, .. } = reading;
    Ok(gathered.into_page(after, at, more))
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
    async fn take(&mut self, db: &mut Db, mut entries: &[Entry]) -> Work<bool> {
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
                if let Some(row) = rows.get(&entry.seq)
                    && let Some(chosen) = self.selection.choose(row)?
                {
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
