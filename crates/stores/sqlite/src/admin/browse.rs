//! Looking through the log, one stretch of it at a time.

use std::{collections::HashMap, sync::Arc};

use postrider_core::{
    browse::{LogRecord, RecordFilter, RecordPage, TopicPage},
    envelope::MessageId,
    lease::LaneId,
    text::text,
    time::Timestamp,
};
use rusqlite::{Row, params};
use uuid::Uuid;

use crate::{
    error::{Work, corrupt},
    lease::{self, LaneRow},
    route::Route,
    select::{bytes, integer, optional_bytes, optional_integer},
    worker::Db,
};

/// Records that one look passes over, so that nobody else waits long for the thread.
const SCAN_MAX: u32 = 100_000;

/// Ranges of the primary key, without a lock and without a look at headers and payloads.
const OLDEST_FIRST: &str = "
SELECT seq, id, topic, name, key, enqueued_at, deliver_at, expires_at FROM {p}log WHERE seq > ?1 ORDER BY seq";
const NEWEST_FIRST: &str = "
SELECT seq, id, topic, name, key, enqueued_at, deliver_at, expires_at FROM {p}log WHERE seq < ?1 ORDER BY seq DESC";

/// A range of the primary key, without a look at headers and payloads.
const TOPICS: &str = "
SELECT topic, count(*), max(seq)
  FROM (SELECT seq, topic FROM {p}log WHERE seq > ?1 ORDER BY seq LIMIT ?2)
 GROUP BY topic";

pub(super) fn topics(db: &Db, after: Option<u64>, limit: u32) -> Work<TopicPage> {
    let mut statement = db.statement(TOPICS)?;
    let counts = statement.query_map(params![after.unwrap_or(0).cast_signed(), limit], |row| {
        Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs(), row.get::<_, i64>(2)?.unsigned_abs()))
    })?;
    Ok(TopicPage::of_counts(counts.collect::<rusqlite::Result<Vec<_>>>()?, limit))
}

pub(super) fn records(
    db: &Db,
    filter: &RecordFilter,
    after: Option<u64>,
    limit: u32,
    now: Timestamp,
) -> Work<RecordPage> {
    let readers = Readers { routes: lease::routes(db)?.into_values().collect(), lanes: lease::lanes(db, now)? };
    let (sql, begin) = if filter.newest_first { (NEWEST_FIRST, i64::MAX) } else { (OLDEST_FIRST, 0) };
    let mut statement = db.statement(sql)?;
    let mut rows = statement.query([after.map_or(begin, u64::cast_signed)])?;
    let mut page = RecordPage::default();
    let (mut looked_at, mut scanned) = (None, 0);
    // Ends with the log, with a full page, or with the scan's limit.
    while let Some(row) = rows.next()? {
        if page.records.len() >= limit as usize || scanned == SCAN_MAX {
            page.next = looked_at;
            break;
        }
        let mut record = record(row)?;
        looked_at = Some(record.number);
        scanned += 1;
        record.passed = readers.passed(&record);
        if filter.takes(&mut record) {
            page.records.push(record);
        }
    }
    Ok(page)
}

fn record(row: &Row<'_>) -> Work<LogRecord> {
    let id = Uuid::from_slice(bytes(row, 1)?).map_err(|_| corrupt("a message id does not have 16 bytes"))?;
    let instant = |column| Ok::<_, crate::error::Fault>(optional_integer(row, column)?.map(Timestamp::from_micros));
    Ok(LogRecord {
        number: integer(row, 0)?.cast_unsigned(),
        id: MessageId(id),
        topic: text(bytes(row, 2)?).into_owned(),
        name: text(bytes(row, 3)?).into_owned(),
        key: optional_bytes(row, 4)?.map(|key| text(key).into_owned()),
        enqueued_at: Timestamp::from_micros(integer(row, 5)?),
        deliver_at: instant(6)?,
        expires_at: instant(7)?,
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
    fn passed(&self, record: &LogRecord) -> Vec<(LaneId, bool)> {
        let LogRecord { topic, name, key, enqueued_at, .. } = record;
        let number = record.number.cast_signed();
        let mut passed = Vec::new();
        for route in &self.routes {
            let in_time = route.replay_end.is_none_or(|end| number <= end);
            let bytes = key.as_ref().map(String::as_bytes);
            if !in_time || !route.reader.reads(topic, name, key.as_deref(), *enqueued_at) {
                passed.extend(route.passed_once(number, topic, bytes, &record.id.0));
                continue;
            }
            for lane in self.lanes.get(&route.name).into_iter().flatten() {
                if route.reader.place(bytes, &record.id.0, lane.number, route.lanes).1 {
                    let lane_id = LaneId { route: Arc::clone(&route.name), number: lane.number };
                    passed.push((lane_id, number <= lane.passed));
                }
            }
        }
        passed
    }
}
