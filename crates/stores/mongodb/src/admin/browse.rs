//! Looking through the log, one stretch of it at a time. A record's number is its point in the time of the cluster.

use mongodb::bson::{Document, doc};
use postrider_core::{
    browse::{LogRecord, RecordFilter, RecordPage, TopicPage},
    envelope::MessageId,
};

use super::readers::{About, Readers};
use crate::{
    cursor::{Tick, timestamp},
    db::{Db, Find},
    error::Work,
    records::{at, enqueued_at, key, light, message_id},
    value::{instant, long, text, text_opt},
};

/// Records that one look passes over.
const SCAN_MAX: usize = 50_000;

/// Records of one answer.
const BATCH_MAX: i64 = 2_000;

/// A range of the index on `at`.
pub(super) async fn topics(db: &mut Db, after: Option<u64>, limit: u32) -> Work<TopicPage> {
    let pipeline = vec![
        doc! { "$match": { "at": { "$gt": timestamp(after.unwrap_or(0)) } } },
        doc! { "$sort": { "at": 1 } },
        doc! { "$limit": i64::from(limit) },
        doc! { "$group": { "_id": "$topic", "records": { "$sum": 1_i64 }, "at": { "$max": "$at" } } },
    ];
    let found = db.aggregate("log", pipeline).await?;
    let counts: Work<Vec<_>> = found
        .iter()
        .map(|topic| Ok((text(topic, "_id")?.to_owned(), long(topic, "records")?.unsigned_abs(), at(topic))))
        .collect();
    Ok(TopicPage::of_counts(counts?, limit))
}

pub(super) async fn records(
    db: &mut Db,
    aside: &mut Db,
    overlap: Tick,
    filter: &RecordFilter,
    after: Option<u64>,
    limit: u32,
) -> Work<RecordPage> {
    let now = db.now().await?;
    let readers = Readers::of(db, aside, now, overlap).await?;
    let mut place = after.unwrap_or(if filter.newest_first { u64::MAX } else { 0 });
    let (mut page, mut scanned) = (RecordPage::default(), 0);
    // Ends with the log, with a full page, or with the scan's limit.
    loop {
        let (beyond, direction) = if filter.newest_first { ("$lt", -1) } else { ("$gt", 1) };
        let find = Find::new(doc! { "at": { beyond: timestamp(place) } }).sort(doc! { "at": direction });
        let documents = db.find("log", find.limit(BATCH_MAX).fields(light())).await?;
        let is_last = i64::try_from(documents.len()).is_ok_and(|count| count < BATCH_MAX);
        for document in documents {
            if page.records.len() >= limit as usize || scanned == SCAN_MAX {
                page.next = Some(place);
                return Ok(page);
            }
            place = at(&document);
            scanned += 1;
            let mut record = record(&document);
            record.passed = readers.passed(&About {
                number: record.number,
                id: &record.id.0,
                topic: &record.topic,
                name: &record.name,
                key: record.key.as_deref(),
                enqueued_at: record.enqueued_at,
            });
            if filter.takes(&mut record) {
                page.records.push(record);
            }
        }
        if is_last {
            return Ok(page);
        }
    }
}

fn record(document: &Document) -> LogRecord {
    LogRecord {
        number: at(document),
        id: MessageId(message_id(document)),
        topic: text_opt(document, "topic").unwrap_or_default().to_owned(),
        name: text_opt(document, "name").unwrap_or_default().to_owned(),
        key: key(document).map(ToOwned::to_owned),
        enqueued_at: enqueued_at(document),
        deliver_at: instant(document, "deliver_at"),
        expires_at: instant(document, "expires_at"),
        passed: Vec::new(),
    }
}
