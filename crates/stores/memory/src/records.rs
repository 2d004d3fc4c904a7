//! The records themselves, in commit order, and how a page is cut from them.
//!
//! Positions count from 1 and are never used twice. Whatever a read needs to know of a record is computed once, when it
//! is appended: the hash of its key, what spreads it over lanes, the number of its topic, its weight. A read then costs a
//! look at those and a clone, which copies no text and no payload.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use postrider_core::{
    Error, ErrorKind, Result,
    envelope::{Envelope, MessageId},
    key::{KeyHash, OrderingKey},
    lease::{Order, Reader, ReplayFilter},
    log::{Cursor, Page, PageLimit, Record},
    time::Timestamp,
    topic::TopicFilter,
};

/// A read looks at no more records than this, so that a narrow filter on a long log does not keep everybody waiting.
const SCAN_MAX: u64 = 100_000;

/// The log.
#[derive(Default)]
pub(crate) struct Records {
    stored: VecDeque<Stored>,
    /// Position of the last record that was removed from the front.
    removed: u64,
    topics: Topics,
}

/// One record with what reading needs to know of it.
pub(crate) struct Stored {
    pub(crate) record: Record,
    /// What decides its lane: its key's hash, or its id's.
    spread: KeyHash,
    topic: u32,
    weight: usize,
    /// Whether its `wait` or `expires_in` depend on the time of reading.
    timed: bool,
}

/// Which records of the log: what one lane reads, or all lanes of a route.
pub(crate) struct Selection<'a> {
    pub(crate) reader: &'a Reader,
    /// Number and count of lanes; `None` for all lanes.
    pub(crate) lane: Option<(u32, u32)>,
    /// No record behind this position.
    pub(crate) end: Option<u64>,
}

impl Records {
    /// Appends what one transaction has enqueued.
    pub(crate) fn append(&mut self, enqueued: Vec<(Envelope, Timestamp)>) {
        self.stored.reserve(enqueued.len());
        for (mut envelope, enqueued_at) in enqueued {
            let topic = self.topics.number(&mut envelope.topic);
            let key = envelope.key.as_ref().map(OrderingKey::hash);
            self.stored.push_back(Stored {
                spread: spread(key, envelope.id),
                topic,
                weight: envelope.weight(),
                timed: envelope.deliver_at.is_some() || envelope.expires_at.is_some(),
                record: Record { envelope, key, enqueued_at, wait: Duration::ZERO, expires_in: None, replay: None },
            });
        }
    }

    /// Position of the last record.
    pub(crate) fn last(&self) -> u64 {
        self.removed + self.stored.len() as u64
    }

    /// Position before the oldest record that is still kept.
    pub(crate) fn before_oldest(&self) -> u64 {
        self.removed
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.stored.len() as u64
    }

    /// The first record of this id, and its position.
    pub(crate) fn find(&self, id: MessageId) -> Option<(u64, &Stored)> {
        (self.removed + 1..).zip(&self.stored).find(|(_, stored)| stored.record.envelope.id == id)
    }

    /// One page behind a position.
    pub(crate) fn read(
        &self,
        selection: &Selection<'_>,
        after: u64,
        limit: PageLimit,
        now: Timestamp,
        replay: Option<&Arc<str>>,
    ) -> Page {
        let from = after.max(self.removed);
        let last = self.end_of(selection);
        let records_max = limit.records.max(1) as usize;
        let mut chosen = self.chosen(selection);
        let mut records = Vec::with_capacity(records_max.min(usize::try_from(last.saturating_sub(from)).unwrap_or(0)));
        // Position of each record of the page: what its marks are made of.
        let mut positions = Vec::with_capacity(records.capacity());
        let (mut position, mut bytes) = (from, 0);
        let scan_end = last.min(from.saturating_add(SCAN_MAX));
        for stored in self.stored.iter().skip(index(from, self.removed)).take(index(scan_end, from)) {
            if chosen.takes(stored) {
                let too_heavy = !records.is_empty() && bytes + stored.weight > limit.bytes;
                if records.len() == records_max || too_heavy {
                    break;
                }
                bytes += stored.weight;
                positions.push(position + 1);
                records.push(stored.read(selection.reader.order, now, replay));
            }
            position += 1;
        }
        // A cursor never moves back, not even one that was made by a store that has lost its records since.
        let end = position.max(after);
        let marks = Arc::new(move |n: u32| cursor(if n == 0 { after } else { positions[n as usize - 1] }));
        Page {
            records: Arc::new(records),
            marks,
            end: cursor(end),
            more: position < last,
            ended: selection.end.is_some_and(|end_of_replay| position >= end_of_replay),
        }
    }

    /// Every chosen record behind a position, with its position.
    pub(crate) fn iterate<'a>(
        &'a self,
        selection: &'a Selection<'a>,
        after: u64,
    ) -> impl Iterator<Item = (u64, &'a Stored)> {
        let from = after.max(self.removed);
        let mut chosen = self.chosen(selection);
        let stored = self.stored.iter().skip(index(from, self.removed)).take(index(self.end_of(selection), from));
        (from + 1..).zip(stored).filter(move |(_, stored)| chosen.takes(stored))
    }

    /// Removes at most `count` records from the front, none of them behind `floor` or enqueued after `before`.
    pub(crate) fn purge(&mut self, floor: u64, before: Timestamp, count: u64) -> u64 {
        let mut purged = 0;
        while purged < count
            && self.removed < floor
            && self.stored.front().is_some_and(|oldest| oldest.record.enqueued_at <= before)
        {
            self.stored.pop_front();
            self.removed += 1;
            purged += 1;
        }
        purged
    }

    fn end_of(&self, selection: &Selection<'_>) -> u64 {
        selection.end.map_or(self.last(), |end| end.min(self.last()))
    }

    fn chosen<'a>(&'a self, selection: &'a Selection<'a>) -> Chosen<'a> {
        let replay = selection.reader.replay.as_ref().map(|replay| &replay.filter);
        Chosen { selection, replay, topics: &self.topics, verdicts: vec![None; self.topics.names.len()] }
    }
}

impl Stored {
    /// The record as a lane sees it at this moment.
    fn read(&self, order: Order, now: Timestamp, replay: Option<&Arc<str>>) -> Record {
        let mut record = self.record.clone();
        if order == Order::Total {
            record.key = Some(KeyHash::TOTAL);
        }
        if self.timed {
            set_spans(&mut record, now);
        }
        record.replay = replay.cloned();
        record
    }

    /// The lane that has this record when there are so many.
    pub(crate) fn lane(&self, order: Order, lanes: u32) -> u32 {
        if order == Order::Total { KeyHash::TOTAL.lane(lanes) } else { self.spread.lane(lanes) }
    }
}

/// What spreads a record over lanes: its key, or its id where it has none.
pub(crate) fn spread(key: Option<KeyHash>, id: MessageId) -> KeyHash {
    key.unwrap_or_else(|| KeyHash::of(id.0.as_bytes()))
}

/// Computes what is left until delivery and expiry.
pub(crate) fn set_spans(record: &mut Record, now: Timestamp) {
    record.wait = record.envelope.deliver_at.map_or(Duration::ZERO, |at| at.since(now));
    record.expires_in = record.envelope.expires_at.map(|at| at.since(now));
}

/// A selection at work. Topics are matched once per read, not once per record.
struct Chosen<'a> {
    selection: &'a Selection<'a>,
    replay: Option<&'a ReplayFilter>,
    topics: &'a Topics,
    verdicts: Vec<Option<bool>>,
}

impl Chosen<'_> {
    fn takes(&mut self, stored: &Stored) -> bool {
        let order = self.selection.reader.order;
        self.topic(stored.topic)
            && self.selection.lane.is_none_or(|(number, lanes)| lanes <= 1 || stored.lane(order, lanes) == number)
            && self.replay.is_none_or(|filter| replayed(filter, &stored.record))
    }

    fn topic(&mut self, number: u32) -> bool {
        let Self { selection, replay, topics, verdicts } = self;
        *verdicts[number as usize].get_or_insert_with(|| {
            let name = &topics.names[number as usize];
            let also = replay.and_then(|filter| filter.topics.as_ref());
            selection.reader.topics.matches(name) && also.is_none_or(|filter: &TopicFilter| filter.matches(name))
        })
    }
}

/// Whether a replay delivers this record again; its topic is not looked at here.
fn replayed(filter: &ReplayFilter, record: &Record) -> bool {
    let envelope = &record.envelope;
    let key = envelope.key.as_ref().map(OrderingKey::as_str);
    filter.since.is_none_or(|since| record.enqueued_at >= since)
        && filter.until.is_none_or(|until| record.enqueued_at < until)
        && filter.key.as_deref().is_none_or(|wanted| key == Some(wanted))
        && filter.name.as_deref().is_none_or(|wanted| *envelope.name == *wanted)
}

/// Every topic that was ever appended, by number.
#[derive(Default)]
struct Topics {
    numbers: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
}

impl Topics {
    /// The number of a topic; also lets all its records share one text.
    fn number(&mut self, topic: &mut Arc<str>) -> u32 {
        if let Some((known, number)) = self.numbers.get_key_value(topic) {
            *topic = Arc::clone(known);
            return *number;
        }
        let number = u32::try_from(self.names.len()).expect("fewer topics than a u32 counts");
        self.numbers.insert(Arc::clone(topic), number);
        self.names.push(Arc::clone(topic));
        number
    }
}

/// The cursor behind a position.
pub(crate) fn cursor(position: u64) -> Cursor {
    Cursor(Bytes::copy_from_slice(&position.to_be_bytes()))
}

/// The position of a cursor.
pub(crate) fn position(cursor: &Cursor) -> Result<u64> {
    let bytes = cursor.0.as_ref().try_into();
    bytes.map(u64::from_be_bytes).map_err(|_| Error::new(ErrorKind::Corrupt, "not a cursor of the memory store"))
}

/// How far one position lies behind another.
fn index(position: u64, from: u64) -> usize {
    usize::try_from(position.saturating_sub(from)).expect("records fit into memory")
}
