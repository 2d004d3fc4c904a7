//! Due: parked rows that may run now, and which keys have a line at all.

use std::collections::BTreeMap;

use mongodb::bson::{Document, doc};
use postrider_core::{
    due::{DueRead, Kept, Waiting},
    key::KeyHash,
    lease::Lease,
    parked::{BlockedKey, DueLimit, DuePage},
    time::Timestamp,
};

use crate::{
    db::{Db, Find},
    error::Work,
    lease::fence,
    parked::{ordinal, signed},
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
    let mut read = DueRead::new(lease, limit, now, waiting);
    while let Some(row) = read.next_due() {
        let route = &*lease.lane.route;
        if row.in_line {
            let filter = doc! { "route": route, "in_line": true, "key_hash": row.spread.as_i64() };
            let find = Find::new(filter).sort(doc! { "ordinal": 1 }).limit(read.rows_of_line());
            read.line(&row, db.find("parked", find).await?.into_iter().map(kept))?;
        } else {
            let filter = doc! { "route": route, "ordinal": signed(row.ordinal) };
            read.timed(&row, db.find_one("parked", filter).await?.map(kept).transpose()?);
        }
    }
    Ok(read.page())
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
            waiting.push(Waiting { wake_at, ordinal: ordinal(after.1), spread, in_line });
            if wake_at > now || waiting.len() > limit as usize {
                return Ok(waiting);
            }
        }
        if is_last {
            return Ok(waiting);
        }
    }
}

fn kept(row: Document) -> Work<Kept> {
    Ok(Kept {
        ordinal: ordinal(long(&row, "ordinal")?),
        attempts: narrow(long(&row, "attempts")?),
        due_at: long_opt(&row, "due_at").map(Timestamp::from_micros),
        key: long_opt(&row, "key_hash").map(KeyHash::from_i64),
        enqueued_at: enqueued_at(&row),
        envelope: envelope(row),
    })
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
