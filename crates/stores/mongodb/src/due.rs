//! Due: parked rows that may run now, and which keys have a line at all.

use std::{collections::BTreeMap, time::Duration};

use mongodb::bson::{Document, doc};
use postrider_core::{
    key::KeyHash,
    lease::Lease,
    log::{Record, RecordRef},
    parked::{BlockedKey, DueLimit, DueLine, DuePage, DueRoom, DueRow},
    time::Timestamp,
};

use crate::{
    db::{Db, Find},
    error::Work,
    lease::fence,
    parked::ordinal,
    records::{enqueued_at, envelope},
    value::{int, long, long_opt, narrow, text},
};

/// The usual answer: nothing, by two short looks. `None`: there is something; [`due`] tells what.
pub(crate) async fn nothing(db: &mut Db, lease: &Lease) -> Work<Option<DuePage>> {
    let waiting = doc! { "route": &*lease.lane.route, "in_line": { "$in": [true, false] }, "wake_at": { "$ne": null } };
    let find = Find::new(waiting).limit(1).fields(doc! { "_id": 1 });
    let any = !db.find("parked", find).await?.is_empty();
    fence(db, lease).await?;
    Ok((!any).then(DuePage::default))
}

/// Every key of the lease's lane that has a line: one pass over the route's range of the index of lines.
pub(crate) async fn blocked(db: &mut Db, lease: &Lease) -> Work<Vec<BlockedKey>> {
    let pipeline = vec![
        doc! { "$match": { "route": &*lease.lane.route, "in_line": true } },
        doc! { "$group": { "_id": "$key_hash", "rows": { "$sum": 1_i64 } } },
    ];
    let mut blocked = Vec::new();
    for line in db.aggregate("parked", pipeline).await? {
        let key = KeyHash::from_i64(long(&line, "_id")?);
        if key.lane(lease.lanes) == lease.lane.number {
            blocked.push(BlockedKey { key, rows: int(&line, "rows")? });
        }
    }
    Ok(blocked)
}

/// What may run now, longest due first, lines and timed rows alike.
pub(crate) async fn due(db: &mut Db, lease: &Lease, limit: DueLimit) -> Work<DuePage> {
    let now = db.now().await?;
    fence(db, lease).await?;
    let mut waiting = waiting(db, lease, true, limit.lines, now).await?;
    waiting.extend(self::waiting(db, lease, false, limit.lines, now).await?);
    waiting.sort_by_key(|row| (row.wake_at, row.ordinal));

    let mut read = DueRead { db, lease, now };
    let mut room = limit.room();
    let mut page = DuePage::default();
    for row in waiting {
        let taken = if row.wake_at > now {
            false
        } else if row.in_line {
            page.lines.len() < limit.lines as usize
                && read.line(row.spread, limit.per_line, &mut room).await?.map(|line| page.lines.push(line)).is_some()
        } else {
            page.timed.len() < limit.lines as usize
                && read.timed(row.ordinal, &mut room).await?.map(|row| page.timed.push(row)).is_some()
        };
        if !taken {
            // What stays behind although it is due comes next, at once.
            let wait = row.wake_at.since(now);
            page.next_in = Some(page.next_in.map_or(wait, |next: Duration| next.min(wait)));
        }
    }
    Ok(page)
}

/// A row that waits for time alone.
struct Waiting {
    wake_at: Timestamp,
    ordinal: i64,
    spread: KeyHash,
    in_line: bool,
}

/// Rows of the index that one command returns.
const WAKING_PAGE_MAX: i64 = 2_000;

/// Those of the lease's lane that are due, one more than asked for if there is one, or else the next to come due. One range
/// of an index that has all the fields. A route with several lanes steps over the rows of the others, page by page.
async fn waiting(db: &mut Db, lease: &Lease, in_line: bool, limit: u32, now: Timestamp) -> Work<Vec<Waiting>> {
    let mut waiting = Vec::new();
    let mut after = (i64::MIN, i64::MIN);
    let page = i64::from(limit).saturating_mul(i64::from(lease.lanes)).saturating_add(1).min(WAKING_PAGE_MAX);
    // Ends with the rows, with enough of them, or with the first that is not due.
    loop {
        let behind = vec![doc! { "wake_at": { "$gt": after.0 } }, doc! { "ordinal": { "$gt": after.1 } }];
        let filter =
            doc! { "route": &*lease.lane.route, "in_line": in_line, "wake_at": { "$gte": after.0 }, "$or": behind };
        let fields = doc! { "_id": 0, "wake_at": 1, "ordinal": 1, "spread": 1 };
        let find = Find::new(filter).sort(doc! { "wake_at": 1, "ordinal": 1 }).limit(page).fields(fields);
        let rows = db.find("parked", find).await?;
        let is_last = i64::try_from(rows.len()).is_ok_and(|count| count < page);
        for row in rows {
            after = (long(&row, "wake_at")?, long(&row, "ordinal")?);
            let (wake_at, spread) = (Timestamp::from_micros(after.0), KeyHash::from_i64(long(&row, "spread")?));
            if spread.lane(lease.lanes) != lease.lane.number {
                continue;
            }
            waiting.push(Waiting { wake_at, ordinal: after.1, spread, in_line });
            if wake_at > now || waiting.len() > limit as usize {
                return Ok(waiting);
            }
        }
        if is_last {
            return Ok(waiting);
        }
    }
}

/// One due read.
struct DueRead<'a> {
    db: &'a mut Db,
    lease: &'a Lease,
    now: Timestamp,
}

impl DueRead<'_> {
    /// The head of a line and as many behind it as may follow. `None`: there is no room left, or the line is gone.
    async fn line(&mut self, key: KeyHash, per_line: u32, room: &mut DueRoom) -> Work<Option<DueLine>> {
        let per_line = per_line.max(1);
        let filter = doc! { "route": &*self.lease.lane.route, "in_line": true, "key_hash": key.as_i64() };
        let find = Find::new(filter).sort(doc! { "ordinal": 1 }).limit(i64::from(per_line) + 1);
        let mut line = DueLine { key, rows: Vec::new(), more: false };
        for row in self.db.find("parked", find).await? {
            let due = long_opt(&row, "due_at").is_some_and(|at| at <= self.now.as_micros());
            if line.rows.len() == per_line as usize || !due {
                line.more = true;
                break;
            }
            let found = self.row(row)?;
            if !room.take(&found.record) {
                line.more = true;
                break;
            }
            line.rows.push(found);
        }
        Ok((!line.rows.is_empty()).then_some(line))
    }

    /// One row in no line. `None`: there is no room left, or it is gone.
    async fn timed(&mut self, ordinal: i64, room: &mut DueRoom) -> Work<Option<DueRow>> {
        let filter = doc! { "route": &*self.lease.lane.route, "ordinal": ordinal };
        let Some(row) = self.db.find_one("parked", filter).await? else { return Ok(None) };
        let found = self.row(row)?;
        Ok(room.take(&found.record).then_some(found))
    }

    fn row(&self, row: Document) -> Work<DueRow> {
        let (ordinal, attempts) = (ordinal(long(&row, "ordinal")?), narrow(long(&row, "attempts")?));
        let key = long_opt(&row, "key_hash").map(KeyHash::from_i64);
        let enqueued_at = enqueued_at(&row);
        let envelope = envelope(row);
        let record = Record {
            key,
            enqueued_at,
            wait: envelope.deliver_at.map_or(Duration::ZERO, |at| at.since(self.now)),
            expires_in: envelope.expires_at.map(|at| at.since(self.now)),
            replay: self.lease.reader.replay.as_ref().map(|_| self.lease.lane.route.clone()),
            number: 0,
            envelope,
        };
        Ok(DueRow { ordinal, record: RecordRef::single(record), attempts })
    }
}

/// How many rows each route has in each state.
pub(crate) async fn counts(db: &mut Db) -> Work<BTreeMap<(String, String), u64>> {
    let group = doc! { "_id": { "route": "$route", "state": "$state" }, "rows": { "$sum": 1_i64 } };
    let mut counts = BTreeMap::new();
    for found in db.aggregate("parked", vec![doc! { "$group": group }]).await? {
        if let Ok(id) = found.get_document("_id") {
            let of = (text(id, "route")?.to_owned(), text(id, "state")?.to_owned());
            counts.insert(of, long(&found, "rows")?.unsigned_abs());
        }
    }
    Ok(counts)
}
