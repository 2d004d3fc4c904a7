//! Looking through the log, block by block and one stretch of it at a time.
//!
//! What the database can choose, it chooses; patterns of topics and how far the readers are, are looked at here. Leaves are
//! read one by one: a query through the parent would lock all of them.

use std::{collections::HashMap, sync::Arc};

use postrider_core::{
    browse::{LogRecord, RecordFilter, RecordPage},
    envelope::MessageId,
    lease::LaneId,
};
use tokio_postgres::Row;

use crate::{
    db::Db,
    dialect::LEAVES,
    error::Work,
    lease::{self, LaneRow},
    route::Route,
    snapshot::Snapshot,
    values::{FullXid, Instant, Text},
};

/// One entry of each leaf's index. `least` passes over leaves that are empty.
const ENDS: &str = "
SELECT least((SELECT min(seq) FROM {log_0}), (SELECT min(seq) FROM {log_1}), (SELECT min(seq) FROM {log_2}),
             (SELECT min(seq) FROM {log_3}), (SELECT min(seq) FROM {log_4}), (SELECT min(seq) FROM {log_5}),
             (SELECT min(seq) FROM {log_6}), (SELECT min(seq) FROM {log_7})),
       coalesce(pg_sequence_last_value('{seq}'::regclass), 0), pg_current_snapshot()";

/// Rows that one look takes out of the database.
const ROWS_MAX: i64 = 50_000;

/// Rows that one statement returns.
const STATEMENT_ROWS: i64 = 5_000;

pub(super) async fn records(
    db: &Db<'_>,
    filter: &RecordFilter,
    after: Option<u64>,
    limit: u32,
    block_bits: u32,
) -> Work<RecordPage> {
    let readers = Readers {
        routes: Route::all(db).await?.into_values().collect(),
        lanes: lease::lanes(db, db.now().await?).await?,
    };
    let mut page = RecordPage::default();
    let ends = Ends::of(db).await?;
    let Some(mut stretch) = Stretch::new(&ends, filter, after, block_bits) else { return Ok(page) };
    let mut fetched = 0;
    // Ends with the log, with a full page, or when enough rows were looked at.
    while let Some(rows) = stretch.next(db, filter).await? {
        let mut looked_at = after;
        for row in &rows {
            if page.records.len() >= limit as usize {
                page.next = looked_at;
                return Ok(page);
            }
            let mut record = record(row)?;
            looked_at = Some(record.number);
            record.passed = readers.passed(&record, row.try_get::<_, FullXid>(8)?.0);
            if filter.takes(&mut record) {
                page.records.push(record);
            }
        }
        fetched += i64::try_from(rows.len()).unwrap_or(i64::MAX);
        let full = page.records.len() >= limit as usize;
        if (full || fetched >= ROWS_MAX) && stretch.has_more() {
            page.next = Some(stretch.at.cast_unsigned());
            return Ok(page);
        }
    }
    Ok(page)
}

/// Where the log begins and ends.
pub(super) struct Ends {
    /// The first number in it. `None`: it is empty.
    oldest: Option<i64>,
    /// The last number drawn.
    last: i64,
    /// What it was looked at with.
    pub(super) snapshot: Snapshot,
}

impl Ends {
    pub(super) async fn of(db: &Db<'_>) -> Work<Self> {
        let row = db.query_one(ENDS, &[]).await?;
        Ok(Self { oldest: row.try_get(0)?, last: row.try_get(1)?, snapshot: row.try_get(2)? })
    }
}

/// What is left to look at: numbers above `at` up to `end`, or below `at` down to `end`.
pub(super) struct Stretch {
    pub(super) at: i64,
    end: i64,
    newest_first: bool,
    block_bits: u32,
}

impl Stretch {
    /// `None`: the log is empty.
    pub(super) fn new(ends: &Ends, filter: &RecordFilter, after: Option<u64>, block_bits: u32) -> Option<Self> {
        let (oldest, last) = (ends.oldest?, ends.last);
        let after = after.map(u64::cast_signed);
        let newest_first = filter.newest_first;
        let (at, end) = if newest_first {
            (after.map_or(last.saturating_add(1), |after| after.min(last.saturating_add(1))), oldest)
        } else {
            (after.map_or(oldest - 1, |after| after.max(oldest - 1)), last)
        };
        Some(Self { at, end, newest_first, block_bits })
    }

    pub(super) fn has_more(&self) -> bool {
        if self.newest_first { self.at > self.end } else { self.at < self.end }
    }

    /// The leaf in which the next number is, and what is left to look at there, both ends included.
    pub(super) fn block(&self) -> (usize, i64, i64) {
        let first = if self.newest_first { self.at - 1 } else { self.at + 1 };
        let block = first >> self.block_bits;
        let (low, high) = (block << self.block_bits, ((block + 1) << self.block_bits) - 1);
        let (low, high) = if self.newest_first { (low.max(self.end), first) } else { (first, high.min(self.end)) };
        (usize::try_from(block).expect("numbers count from 1") % LEAVES, low, high)
    }

    /// The next rows, at most as many as one statement returns, and none beyond the block in which it begins. `None` at the
    /// end.
    async fn next(&mut self, db: &Db<'_>, filter: &RecordFilter) -> Work<Option<Vec<Row>>> {
        if !self.has_more() {
            return Ok(None);
        }
        let (leaf, low, high) = self.block();
        let direction = if self.newest_first { "DESC" } else { "ASC" };
        let sql = format!(
            "SELECT seq, id, topic, name, key, enqueued_at, deliver_at, expires_at, tx
               FROM {{log_{leaf}}}
              WHERE seq BETWEEN $1 AND $2 AND ($3::text IS NULL OR key = $3) AND ($4::text IS NULL OR name = $4)
                AND ($5::timestamptz IS NULL OR enqueued_at >= $5) AND ($6::timestamptz IS NULL OR enqueued_at < $6)
              ORDER BY seq {direction} LIMIT $7"
        );
        let chosen = &filter.chosen;
        let (since, until) = (chosen.since.map(Instant), chosen.until.map(Instant));
        let rows = db.query(&sql, &[&low, &high, &chosen.key, &chosen.name, &since, &until, &STATEMENT_ROWS]).await?;
        let whole = i64::try_from(rows.len()).is_ok_and(|count| count < STATEMENT_ROWS);
        self.at = match rows.last() {
            Some(last) if !whole => last.try_get(0)?,
            _ if self.newest_first => low,
            _ => high,
        };
        Ok(Some(rows))
    }
}

fn record(row: &Row) -> Work<LogRecord> {
    let text = |text: Text<'_>| String::from_utf8_lossy(text.0).into_owned();
    Ok(LogRecord {
        number: row.try_get::<_, i64>(0)?.cast_unsigned(),
        id: MessageId(row.try_get(1)?),
        topic: text(row.try_get(2)?),
        name: text(row.try_get(3)?),
        key: row.try_get::<_, Option<Text<'_>>>(4)?.map(text),
        enqueued_at: row.try_get::<_, Instant>(5)?.0,
        deliver_at: row.try_get::<_, Option<Instant>>(6)?.map(|at| at.0),
        expires_at: row.try_get::<_, Option<Instant>>(7)?.map(|at| at.0),
        passed: Vec::new(),
    })
}

/// Everybody who reads the log, and how far they are.
struct Readers {
    routes: Vec<Route>,
    lanes: HashMap<Arc<str>, Vec<LaneRow>>,
}

impl Readers {
    /// The lanes that a record belongs to, and whether each has passed it.
    fn passed(&self, record: &LogRecord, xid: u64) -> Vec<(LaneId, bool)> {
        let LogRecord { topic, name, key, enqueued_at, .. } = record;
        let seq = record.number.cast_signed();
        let mut passed = Vec::new();
        for route in &self.routes {
            let lanes = self.lanes.get(&route.name);
            let bytes = key.as_ref().map(String::as_bytes);
            if !route.reader.reads(topic, name, key.as_deref(), *enqueued_at) {
                passed.extend(route.passed_once(lanes, (xid, seq), topic, bytes, &record.id.0));
                continue;
            }
            for lane in lanes.into_iter().flatten() {
                let in_time = route.reader.replay.is_none() || lane.position.is_in_replay(xid, seq);
                if in_time && route.reader.place(bytes, &record.id.0, lane.number, route.lanes).1 {
                    let lane_id = LaneId { route: Arc::clone(&route.name), number: lane.number };
                    passed.push((lane_id, lane.position.has_settled(xid, seq)));
                }
            }
        }
        passed
    }
}
