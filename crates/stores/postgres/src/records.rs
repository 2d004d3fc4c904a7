//! Rows of the log as records: a page in the making.
//!
//! A page costs a handful of allocations, whatever its length: keys, headers and payloads are gathered in one buffer that
//! the records share, and topics and names are kept once per store.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use postrider_core::{
    envelope::{Envelope, MessageId},
    headers::Headers,
    key::OrderingKey,
    log::{Page, PageLimit, Record},
    time::Timestamp,
};
use tokio_postgres::Row;

use crate::{
    cursor::Position,
    error::Work,
    select::Chosen,
    values::{Instant, Text},
};

/// A page in the making.
pub(crate) struct Gathered {
    limit: PageLimit,
    replay: Option<Arc<str>>,
    records: Vec<Record>,
    /// Per record, where its key, headers and payload lie in the buffer: four ends of three adjoining pieces.
    pieces: Vec<[usize; 4]>,
    /// Per record, in which round it was read and under which number.
    places: Vec<(u32, i64)>,
    /// The position within each round, to be completed by a number.
    rounds: Vec<Position>,
    buffer: Vec<u8>,
    weight: usize,
}

impl Gathered {
    pub(crate) fn new(limit: PageLimit, replay: Option<Arc<str>>) -> Self {
        Self {
            limit: PageLimit { records: limit.records.max(1), ..limit },
            replay,
            records: Vec::new(),
            pieces: Vec::new(),
            places: Vec::new(),
            rounds: Vec::new(),
            buffer: Vec::new(),
            weight: 0,
        }
    }

    /// What follows is read in this round.
    pub(crate) fn enter(&mut self, round: Position) {
        self.rounds.push(round);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// What the page may weigh.
    pub(crate) fn bytes_max(&self) -> usize {
        self.limit.bytes
    }

    /// How many more records fit, by their number.
    pub(crate) fn room(&self) -> usize {
        self.limit.records as usize - self.records.len()
    }

    /// How many more records like those so far fit, by their bytes. While there are none, `before` is what they weighed on
    /// average in the page before; `None`: nothing is known of them.
    pub(crate) fn room_by_weight(&self, before: Option<usize>) -> Option<usize> {
        let average = self.average().or(before)?.max(1);
        Some(self.limit.bytes.saturating_sub(self.weight) / average)
    }

    /// What a record weighs on average. `None`: there is none.
    pub(crate) fn average(&self) -> Option<usize> {
        self.weight.checked_div(self.records.len())
    }

    /// Adds a record, unless the page is full, or it is too heavy for a page that has others: then `false`. `age` is how long
    /// ago the row was read, which is what it says the time was.
    pub(crate) fn take(
        &mut self,
        row: &Row,
        chosen: &Chosen<'_>,
        age: Duration,
        topic: Arc<str>,
        name: Arc<str>,
    ) -> Work<bool> {
        let key = chosen.key.unwrap_or_default();
        let headers = row.try_get::<_, Option<&[u8]>>(9)?.unwrap_or_default();
        let payload: &[u8] = row.try_get(10)?;
        // The same sum as `Envelope::weight`, before there is an envelope.
        let weight = key.len() + headers.len() + payload.len() + size_of::<Envelope>();
        let heavy = !self.records.is_empty() && self.weight + weight > self.limit.bytes;
        if self.room() == 0 || heavy {
            return Ok(false);
        }
        self.weight += weight;
        let mut ends = [self.buffer.len(); 4];
        for (end, piece) in ends[1..].iter_mut().zip([key, headers, payload]) {
            self.buffer.extend_from_slice(piece);
            *end = self.buffer.len();
        }
        self.pieces.push(ends);
        let round = u32::try_from(self.rounds.len() - 1).expect("a page has few rounds");
        self.places.push((round, row.try_get(0)?));
        self.records.push(self.record(row, chosen, age, topic, name)?);
        Ok(true)
    }

    /// The record without its bytes; they follow when the buffer is complete.
    fn record(&self, row: &Row, chosen: &Chosen<'_>, age: Duration, topic: Arc<str>, name: Arc<str>) -> Work<Record> {
        let instant =
            |column| Ok::<_, tokio_postgres::Error>(row.try_get::<_, Option<Instant>>(column)?.map(|at| at.0));
        let (deliver_at, expires_at) = (instant(6)?, instant(7)?);
        // Only a record that needs the time has it.
        let now = instant(11)?.map_or(chosen.enqueued_at, |then| then.saturating_add(age));
        Ok(Record {
            envelope: Envelope {
                id: MessageId(chosen.id),
                topic,
                name,
                key: None,
                headers: Headers::default(),
                payload: Bytes::new(),
                deliver_at,
                expires_at,
                attempts_max: row.try_get::<_, Option<i64>>(8)?.map(at_least_one),
            },
            key: chosen.hash,
            enqueued_at: chosen.enqueued_at,
            wait: deliver_at.map_or(Duration::ZERO, |at| at.since(now)),
            expires_in: expires_at.map(|at| at.since(now)),
            replay: self.replay.clone(),
            number: row.try_get::<_, i64>(0)?.cast_unsigned(),
        })
    }

    /// `after` is where the page was read from, `end` where it ends.
    pub(crate) fn into_page(
        self,
        after: postrider_core::log::Cursor,
        end: postrider_core::log::Cursor,
        more: bool,
    ) -> Page {
        let Self { mut records, pieces, places, rounds, buffer, .. } = self;
        let buffer = Bytes::from(buffer);
        for (record, [from, key, headers, payload]) in records.iter_mut().zip(pieces) {
            record.envelope.key = slice(&buffer, from..key).map(|key| ordering_key(&key));
            if let Some(headers) = slice(&buffer, key..headers) {
                record.envelope.headers = Headers::from_encoded(headers);
            }
            if let Some(payload) = slice(&buffer, headers..payload) {
                record.envelope.payload = payload;
            }
        }
        let marks = Arc::new(move |n: u32| {
            let Some((round, seq)) = n.checked_sub(1).map(|index| places[index as usize]) else { return after.clone() };
            let mut position = rounds[round as usize].clone();
            position.target.as_mut().expect("a record is read inside of a round").1 = seq;
            position.encode()
        });
        Page { records: Arc::new(records), marks, end, more, ended: false }
    }
}

fn ordering_key(bytes: &Bytes) -> OrderingKey {
    OrderingKey::from_utf8(bytes.clone()).unwrap_or_else(|_| OrderingKey::from(&*String::from_utf8_lossy(bytes)))
}

/// What plain SQL wrote is not checked: a message has one attempt at least.
fn at_least_one(attempts: i64) -> u32 {
    u32::try_from(attempts.max(1)).unwrap_or(u32::MAX)
}

/// Nothing for nothing: an empty slice would keep the buffer alive for no use.
fn slice(buffer: &Bytes, range: Range<usize>) -> Option<Bytes> {
    (!range.is_empty()).then(|| buffer.slice(range))
}

/// One envelope with buffers of its own, from a row that has `id, topic, name, key, enqueued_at, deliver_at, expires_at,
/// attempts_max, headers, payload` from column `first` on; for the few that are parked or looked at.
pub(crate) fn envelope(row: &Row, first: usize) -> Work<(Envelope, Timestamp)> {
    let text = |column: usize| {
        Ok::<_, tokio_postgres::Error>(String::from_utf8_lossy(row.try_get::<_, Text<'_>>(first + column)?.0))
    };
    let key = row.try_get::<_, Option<Text<'_>>>(first + 3)?.filter(|key| !key.0.is_empty());
    let headers: Option<&[u8]> = row.try_get(first + 8)?;
    let envelope = Envelope {
        id: MessageId(row.try_get(first)?),
        topic: (&*text(1)?).into(),
        name: (&*text(2)?).into(),
        key: key.map(|key| ordering_key(&Bytes::copy_from_slice(key.0))),
        headers: headers.map(|headers| Headers::from_encoded(Bytes::copy_from_slice(headers))).unwrap_or_default(),
        payload: Bytes::copy_from_slice(row.try_get(first + 9)?),
        deliver_at: row.try_get::<_, Option<Instant>>(first + 5)?.map(|at| at.0),
        expires_at: row.try_get::<_, Option<Instant>>(first + 6)?.map(|at| at.0),
        attempts_max: row.try_get::<_, Option<i64>>(first + 7)?.map(at_least_one),
    };
    Ok((envelope, row.try_get::<_, Instant>(first + 4)?.0))
}
