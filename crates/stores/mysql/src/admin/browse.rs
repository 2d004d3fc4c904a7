//! Looking through the log, one stretch of it at a time. A record's number is its place.

use std::{collections::HashMap, sync::Arc};

use mysql_async::Row;
use postrider_core::{
    browse::{LogRecord, RecordFilter, RecordPage, TopicPage},
    envelope::MessageId,
    lease::LaneId,
    text::text,
    time::Timestamp,
};

use crate::{
    db::{Db, bytes, get, values},
    error::Work,
    lease::{self, LaneRow},
    list,
    order::BATCH_MAX,
    planted::Plant,
    records::fetch,
    route::Route,
    select::{CHOSEN_BY, message_id},
};

/// Records that one look passes over.
const SCAN_MAX: usize = 50_000;

/// A range of the primary key, ordered or not: whoever asks for topics does not ask for places.
const TOPICS: &str = "
SELECT topic, COUNT(*), MAX(seq)
  FROM (SELECT seq, topic FROM {p}log WHERE seq > ? ORDER BY seq LIMIT ?) AS stretch
 GROUP BY topic";

pub(super) async fn topics(db: &mut Db, after: Option<u64>, limit: u32) -> Work<TopicPage> {
    let rows = db.query(TOPICS, values![after.unwrap_or(0), limit]).await?;
    let counts: Work<Vec<_>> = rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?, get(row, 2)?))).collect();
    Ok(TopicPage::of_counts(counts?, limit))
}

pub(super) async fn records(db: &mut Db, filter: &RecordFilter, after: Option<u64>, limit: u32) -> Work<RecordPage> {
    let now = db.now().await?;
    let readers =
        Readers { routes: Route::all(db).await?.into_values().collect(), lanes: lease::lanes(db, now).await? };
    let columns = format!("{CHOSEN_BY}, deliver_at, expires_at");
    let begin = if filter.newest_first { i64::MAX } else { 0 };
    let mut at = after.map_or(begin, |after| i64::try_from(after).unwrap_or(i64::MAX));
    let (mut page, mut scanned) = (RecordPage::default(), 0);
    // Ends with the log, with a full page, or with the scan's limit.
    loop {
        let entries = if filter.newest_first {
            list::before(db, at).await?
        } else {
            list::behind(db, at, i64::MAX, i64::MAX, Plant::None).await?
        };
        if entries.is_empty() {
            return Ok(page);
        }
        for entries in entries.chunks(BATCH_MAX) {
            let rows = fetch(db, &columns, entries).await?;
            for entry in entries {
                if page.records.len() >= limit as usize || scanned == SCAN_MAX {
                    page.next = Some(at.cast_unsigned());
                    return Ok(page);
                }
                at = entry.place;
                scanned += 1;
                let Some(row) = rows.get(&entry.seq) else { continue };
                let mut record = record(entry.place, row)?;
                record.passed = readers.passed(&record);
                if filter.takes(&mut record) {
                    page.records.push(record);
                }
            }
        }
    }
}

fn record(place: i64, row: &Row) -> Work<LogRecord> {
    let instant = |column| Ok::<_, crate::error::Fault>(get::<Option<i64>>(row, column)?.map(Timestamp::from_micros));
    Ok(LogRecord {
        number: place.cast_unsigned(),
        topic: text(bytes(row, 1).unwrap_or_default()).into_owned(),
        id: MessageId(message_id(row, 2)?),
        key: bytes(row, 3).filter(|key| !key.is_empty()).map(|key| text(key).into_owned()),
        enqueued_at: Timestamp::from_micros(get(row, 4)?),
        name: text(bytes(row, 5).unwrap_or_default()).into_owned(),
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
        let place = record.number.cast_signed();
        let mut passed = Vec::new();
        for route in &self.routes {
            let in_time = route.replay_end.is_none_or(|end| place <= end);
            let bytes = key.as_ref().map(String::as_bytes);
            if !in_time || !route.reader.reads(topic, name, key.as_deref(), *enqueued_at) {
                passed.extend(route.passed_once(place, topic, bytes, &record.id.0));
                continue;
            }
            for lane in self.lanes.get(&route.name).into_iter().flatten() {
                if route.reader.place(bytes, &record.id.0, lane.number, route.lanes).1 {
                    let lane_id = LaneId { route: Arc::clone(&route.name), number: lane.number };
                    passed.push((lane_id, place <= lane.passed));
                }
            }
        }
        passed
    }
}
