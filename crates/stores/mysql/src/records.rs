//! Rows as records: fetching what the order list names, and a page in the making.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use mysql_async::Row;
use postrider_core::{
    envelope::{Envelope, MessageId},
    headers::Headers,
    key::OrderingKey,
    log::{Page, PageLimit, Record},
    text::text,
    time::Timestamp,
};

use crate::{
    cursor,
    db::{Db, bytes, get, list, values},
    error::Work,
    list::{Entry, is_dense},
    order::BATCH_MAX,
    select::{Chosen, Selection, message_id},
};

/// The rows that entries name, by number. One that is not there has been purged, or is missing.
pub(crate) async fn fetch(db: &mut Db, columns: &str, entries: &[Entry]) -> Work<HashMap<i64, Row>> {
    let mut rows = HashMap::with_capacity(entries.len());
    let numbers: Vec<i64> = entries.iter().map(|entry| entry.seq).collect();
    if is_dense(&numbers) {
        // The usual case, and cheaper than to name each of them.
        let (least, greatest) = (numbers.iter().min(), numbers.iter().max());
        let sql = format!("SELECT {columns} FROM {{p}}log FORCE INDEX (PRIMARY) WHERE seq BETWEEN ? AND ?");
        for row in db.query(&sql, values![least.copied(), greatest.copied()]).await? {
            rows.insert(get(&row, 0)?, row);
        }
        return Ok(rows);
    }
    for some in numbers.chunks(BATCH_MAX) {
        let numbers = list(some.iter().copied());
        let sql = format!("SELECT {columns} FROM {{p}}log FORCE INDEX (PRIMARY) WHERE seq IN ({numbers})");
        for row in db.query_text(&sql).await? {
            rows.insert(get(&row, 0)?, row);
        }
    }
    Ok(rows)
}

/// A page in the making.
pub(crate) struct Gathered {
    limit: PageLimit,
    replay: Option<Arc<str>>,
    now: Timestamp,
    records: Vec<Record>,
    weight: usize,
}

impl Gathered {
    /// `now` is the instant by the store's clock.
    pub(crate) fn new(limit: PageLimit, replay: Option<Arc<str>>, now: Timestamp) -> Self {
        let limit = PageLimit { records: limit.records.max(1), ..limit };
        Self { limit, replay, now, records: Vec::new(), weight: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.missing() == 0
    }

    /// How many more records it takes.
    pub(crate) fn missing(&self) -> usize {
        (self.limit.records as usize).saturating_sub(self.records.len())
    }

    /// How many of the next entries to fetch: as many as fit, and one in any case into an empty page. Zero: none fits.
    pub(crate) fn room(&self, entries: &[Entry]) -> usize {
        let mut weight = self.weight;
        let mut room = 0;
        for entry in &entries[..self.missing().min(entries.len())] {
            weight += entry.bytes as usize + size_of::<Envelope>();
            if weight > self.limit.bytes && !(room == 0 && self.records.is_empty()) {
                break;
            }
            room += 1;
        }
        room
    }

    /// Adds a record.
    pub(crate) fn take(&mut self, place: i64, row: &Row, chosen: &Chosen<'_>, selection: &Selection<'_>) -> Work<()> {
        let instant =
            |column| Ok::<_, crate::error::Fault>(get::<Option<i64>>(row, column)?.map(Timestamp::from_micros));
        let (deliver_at, expires_at) = (instant(6)?, instant(7)?);
        let envelope = Envelope {
            id: MessageId(chosen.id),
            topic: Arc::clone(selection.topics.text(chosen.topic)),
            name: Arc::clone(selection.names.text(chosen.name)),
            key: chosen.key.map(ordering_key),
            headers: headers(bytes(row, 9)),
            payload: Bytes::copy_from_slice(bytes(row, 10).unwrap_or_default()),
            deliver_at,
            expires_at,
            attempts_max: get::<Option<u32>>(row, 8)?.map(|attempts| attempts.max(1)),
        };
        self.weight += envelope.weight();
        self.records.push(Record {
            key: chosen.hash,
            enqueued_at: chosen.enqueued_at,
            wait: deliver_at.map_or(Duration::ZERO, |at| at.since(self.now)),
            expires_in: expires_at.map(|at| at.since(self.now)),
            replay: self.replay.clone(),
            number: place.cast_unsigned(),
            envelope,
        });
        Ok(())
    }

    /// `after` is where the page was read from, `end` where it ends.
    pub(crate) fn into_page(self, after: i64, end: i64, more: bool) -> Page {
        let places: Vec<i64> = self.records.iter().map(|record| record.number.cast_signed()).collect();
        let marks = Arc::new(move |n: u32| cursor::encode(if n == 0 { after } else { places[n as usize - 1] }));
        let ended = self.replay.is_some() && !more;
        Page { records: Arc::new(self.records), marks, end: cursor::encode(end), more, ended }
    }
}

/// An envelope and when it was enqueued, from the columns `id, topic, name, key, enqueued_at, deliver_at, expires_at,
/// attempts_max, headers, payload` that begin at `first`.
pub(crate) fn envelope(row: &Row, first: usize) -> Work<(Envelope, Timestamp)> {
    let instant = |column| Ok::<_, crate::error::Fault>(get::<Option<i64>>(row, column)?.map(Timestamp::from_micros));
    let envelope = Envelope {
        id: MessageId(message_id(row, first)?),
        topic: text(bytes(row, first + 1).unwrap_or_default()).into(),
        name: text(bytes(row, first + 2).unwrap_or_default()).into(),
        key: bytes(row, first + 3).filter(|key| !key.is_empty()).map(ordering_key),
        deliver_at: instant(first + 5)?,
        expires_at: instant(first + 6)?,
        attempts_max: get::<Option<u32>>(row, first + 7)?.map(|attempts| attempts.max(1)),
        headers: headers(bytes(row, first + 8)),
        payload: Bytes::copy_from_slice(bytes(row, first + 9).unwrap_or_default()),
    };
    Ok((envelope, Timestamp::from_micros(get(row, first + 4)?)))
}

fn ordering_key(bytes: &[u8]) -> OrderingKey {
    OrderingKey::from(text(bytes).into_owned())
}

fn headers(stored: Option<&[u8]>) -> Headers {
    match stored.filter(|headers| !headers.is_empty()) {
        Some(headers) => Headers::from_encoded(Bytes::copy_from_slice(headers)),
        None => Headers::default(),
    }
}
