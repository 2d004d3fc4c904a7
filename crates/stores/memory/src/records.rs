//! The records themselves, in commit order, and how a page is cut from them.
//!
//! Positions count from 1 and are never used twice. Whatever a read needs to know of a record is computed once, when it
//! is appended: the hash of its key, what spreads it over lanes, the number of its topic, its weight.
//!
//! Records lie in segments, and a read that begins with a full segment and wants all of it shares it: no record is copied.
//! Any other read gathers clones, which copy no text and no payload. A segment that is not full yet is never shared, so that
//! it can be appended to.

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
    log::{Cursor, Marks, Page, PageLimit, Record, Retention},
    time::Timestamp,
    topic::TopicFilter,
};

/// A full segment has this many records: half of what a relay usually reads at once.
const SEGMENT_MAX: usize = 500;

/// A read looks at no more records than this, so that a narrow filter on a long log does not keep everybody waiting.
const SCAN_MAX: usize = 100_000;

/// The log.
#[derive(Default)]
pub(crate) struct Records {
    segments: VecDeque<Segment>,
    /// Position of the last record that was removed from the front.
    removed: u64,
    /// Position of the last record that was appended.
    last: u64,
    topics: Topics,
}

/// A stretch of the log. Never empty.
struct Segment {
    /// Position of the record before its first.
    before: u64,
    records: Arc<Vec<Record>>,
    /// One for each record.
    facts: Vec<Facts>,
}

/// What reading needs to know of a record.
#[derive(Clone, Copy)]
pub(crate) struct Facts {
    /// What decides its lane: its key's hash, or its id's.
    spread: KeyHash,
    weight: usize,
    topic: u32,
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
        for (mut envelope, enqueued_at) in enqueued {
            let key = envelope.key.as_ref().map(OrderingKey::hash);
            let facts = Facts {
                spread: spread(key, envelope.id),
                weight: envelope.weight(),
                topic: self.topics.number(&mut envelope.topic),
                timed: envelope.deliver_at.is_some() || envelope.expires_at.is_some(),
            };
            let (wait, number) = (Duration::ZERO, self.last + 1);
            let record = Record { envelope, key, enqueued_at, wait, expires_in: None, replay: None, number };
            self.push(record, facts);
        }
    }

    /// Position of the last record.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Position before the oldest record that is still kept.
    pub(crate) fn before_oldest(&self) -> u64 {
        self.removed
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.last - self.removed
    }

    /// The first record of this id, and its position.
    pub(crate) fn find(&self, id: MessageId) -> Option<(u64, &Record)> {
        self.behind(self.removed).find(|(_, record, _)| record.envelope.id == id).map(|(at, record, _)| (at, record))
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
        let end = self.end_of(selection);
        let (records, marks, position) = match self.whole_segment(selection, after, limit) {
            Some(records) => {
                let position = after + records.len() as u64;
                let marks: Marks = Arc::new(move |n| cursor(after + u64::from(n)));
                (records, marks, position)
            }
            None => self.gather(selection, after, limit, now, replay),
        };
        Page {
            records,
            marks,
            end: cursor(position),
            more: position < end,
            ended: selection.end.is_some_and(|end_of_replay| position >= end_of_replay),
        }
    }

    /// The full segment that begins behind a position, if all of it is wanted just as it lies there.
    fn whole_segment(&self, selection: &Selection<'_>, after: u64, limit: PageLimit) -> Option<Arc<Vec<Record>>> {
        let segment = self.segments.get(self.segment_of(after + 1)).filter(|segment| segment.before == after)?;
        let as_it_lies = selection.end.is_none() && selection.reader.order == Order::Key;
        if !as_it_lies || !segment.is_full() || SEGMENT_MAX > limit.records as usize {
            return None;
        }
        let mut chosen = self.chosen(selection);
        let mut bytes = 0;
        for (record, facts) in segment.records.iter().zip(&segment.facts) {
            bytes += facts.weight;
            if facts.timed || bytes > limit.bytes || !chosen.takes(record, facts) {
                return None;
            }
        }
        Some(Arc::clone(&segment.records))
    }

    /// Clones of the records that are wanted, in any stretch of the log.
    fn gather(
        &self,
        selection: &Selection<'_>,
        after: u64,
        limit: PageLimit,
        now: Timestamp,
        replay: Option<&Arc<str>>,
    ) -> (Arc<Vec<Record>>, Marks, u64) {
        let mut chosen = self.chosen(selection);
        let (mut records, mut positions, mut bytes) = (Vec::new(), Vec::new(), 0);
        // A cursor never moves back, not even one from before a purge.
        let mut position = after;
        for (at, record, facts) in self.behind(after).take(SCAN_MAX) {
            if at > self.end_of(selection) {
                break;
            }
            if chosen.takes(record, facts) {
                let too_heavy = !records.is_empty() && bytes + facts.weight > limit.bytes;
                if records.len() == limit.records.max(1) as usize || too_heavy {
                    break;
                }
                bytes += facts.weight;
                positions.push(at);
                records.push(seen(record, facts, selection.reader.order, now, replay));
            }
            position = at;
        }
        let marks = Arc::new(move |n: u32| cursor(if n == 0 { after } else { positions[n as usize - 1] }));
        (Arc::new(records), marks, position)
    }

    /// Every chosen record behind a position, with its position.
    pub(crate) fn iterate<'a>(
        &'a self,
        selection: &'a Selection<'a>,
        after: u64,
    ) -> impl Iterator<Item = (u64, &'a Record, &'a Facts)> {
        self.look(selection, after).filter_map(|(at, record, facts)| facts.map(|facts| (at, record, facts)))
    }

    /// Every record behind a position, with its position, and its facts if it is chosen.
    pub(crate) fn look<'a>(
        &'a self,
        selection: &'a Selection<'a>,
        after: u64,
    ) -> impl Iterator<Item = (u64, &'a Record, Option<&'a Facts>)> {
        let mut chosen = self.chosen(selection);
        let end = self.end_of(selection);
        let until_end = self.behind(after).take_while(move |(at, _, _)| *at <= end);
        until_end.map(move |(at, record, facts)| (at, record, chosen.takes(record, facts).then_some(facts)))
    }

    /// Removes at most `count` records from the front, none of them behind `floor` or enqueued after `before`.
    pub(crate) fn purge(&mut self, floor: u64, retention: Retention, now: Timestamp, count: u64) -> u64 {
        let before = retention.keep.map(|keep| now.saturating_sub(keep));
        let surplus = retention.records_max.map_or(0, |most| self.last.saturating_sub(most));
        let may_go = |(at, record, _): &(u64, &Record, &Facts)| {
            *at <= floor && (*at <= surplus || before.is_some_and(|before| record.enqueued_at <= before))
        };
        let limit = usize::try_from(count).unwrap_or(usize::MAX);
        let purged = self.behind(self.removed).take(limit).take_while(may_go).count() as u64;
        self.removed += purged;
        while self.segments.front().is_some_and(|segment| segment.end() <= self.removed) {
            self.segments.pop_front();
        }
        purged
    }

    fn push(&mut self, record: Record, facts: Facts) {
        match self.segments.back_mut().filter(|segment| !segment.is_full()) {
            Some(open) => {
                Arc::get_mut(&mut open.records).expect("only full segments are shared").push(record);
                open.facts.push(facts);
            }
            None => {
                let (records, facts) = (Arc::new(vec![record]), vec![facts]);
                self.segments.push_back(Segment { before: self.last, records, facts });
            }
        }
        self.last += 1;
    }

    /// Everything that is kept behind a position, in either direction.
    pub(crate) fn in_order(
        &self,
        after: Option<u64>,
        newest_first: bool,
    ) -> Box<dyn Iterator<Item = (u64, &Record)> + '_> {
        let all = self.behind(if newest_first { 0 } else { after.unwrap_or(0) }).map(|(at, record, _)| (at, record));
        if newest_first {
            let before = after.unwrap_or(u64::MAX);
            let kept: Vec<_> = all.take_while(|(at, _)| *at < before).collect();
            Box::new(kept.into_iter().rev())
        } else {
            Box::new(all)
        }
    }

    /// Everything that is kept behind a position.
    fn behind(&self, after: u64) -> impl Iterator<Item = (u64, &Record, &Facts)> {
        let after = after.max(self.removed);
        self.segments.range(self.segment_of(after + 1).min(self.segments.len())..).flat_map(move |segment| {
            let passed = usize::try_from(after.saturating_sub(segment.before)).expect("records fit into memory");
            let positions = segment.before + passed as u64 + 1..;
            let rest = segment.records.iter().zip(&segment.facts).skip(passed);
            positions.zip(rest).map(|(at, (record, facts))| (at, record, facts))
        })
    }

    /// The index of the segment that has a position, or of the one that would.
    fn segment_of(&self, position: u64) -> usize {
        self.segments.partition_point(|segment| segment.end() < position)
    }

    fn end_of(&self, selection: &Selection<'_>) -> u64 {
        selection.end.map_or(self.last, |end| end.min(self.last))
    }

    fn chosen<'a>(&'a self, selection: &'a Selection<'a>) -> Chosen<'a> {
        let replay = selection.reader.replay.as_ref().map(|replay| &replay.filter);
        Chosen { selection, replay, topics: &self.topics, verdicts: vec![None; self.topics.names.len()] }
    }
}

impl Segment {
    fn is_full(&self) -> bool {
        self.facts.len() == SEGMENT_MAX
    }

    /// Position of its last record.
    fn end(&self) -> u64 {
        self.before + self.facts.len() as u64
    }
}

impl Facts {
    /// The lane that has this record when there are so many.
    pub(crate) fn lane(&self, order: Order, lanes: u32) -> u32 {
        if order == Order::Total { KeyHash::TOTAL.lane(lanes) } else { self.spread.lane(lanes) }
    }
}

/// A copy of the record as a lane sees it at this moment.
fn seen(record: &Record, facts: &Facts, order: Order, now: Timestamp, replay: Option<&Arc<str>>) -> Record {
    let mut record = record.clone();
    if order == Order::Total {
        record.key = Some(KeyHash::TOTAL);
    }
    if facts.timed {
        set_spans(&mut record, now);
    }
    record.replay = replay.cloned();
    record
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
    fn takes(&mut self, record: &Record, facts: &Facts) -> bool {
        let order = self.selection.reader.order;
        self.topic(facts.topic)
            && self.selection.lane.is_none_or(|(number, lanes)| lanes <= 1 || facts.lane(order, lanes) == number)
            && self.replay.is_none_or(|filter| replayed(filter, record))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn log_of(count: usize) -> (Records, Vec<MessageId>) {
        let mut records = Records::default();
        let sent: Vec<_> = (0..count).map(|i| Envelope::new("t", "n", format!("{i}")).with_key("a")).collect();
        let ids = sent.iter().map(|envelope| envelope.id).collect();
        for some in sent.chunks(7) {
            records.append(some.iter().map(|envelope| (envelope.clone(), Timestamp::from_micros(0))).collect());
        }
        (records, ids)
    }

    fn read_from(records: &Records, mut after: u64, limit: PageLimit) -> Vec<MessageId> {
        let reader = Reader { topics: TopicFilter::all(), order: Order::Key, replay: None };
        let selection = Selection { reader: &reader, lane: Some((0, 1)), end: None };
        let mut ids = Vec::new();
        loop {
            let page = records.read(&selection, after, limit, Timestamp::from_micros(0), None);
            assert!(page.records.len() <= limit.records as usize);
            for n in 0..u32::try_from(page.records.len()).unwrap() {
                assert_eq!(position(&(page.marks)(n)).unwrap(), after + u64::from(n));
            }
            ids.extend(page.records.iter().map(|record| record.envelope.id));
            after = position(&page.end).unwrap();
            if !page.more {
                return ids;
            }
        }
    }

    #[test]
    fn every_position_reads_the_same_log_whether_segments_are_shared_or_not() {
        let (records, ids) = log_of(3 * SEGMENT_MAX + 20);
        for after in [0, 1, SEGMENT_MAX - 1, SEGMENT_MAX, SEGMENT_MAX + 1, 3 * SEGMENT_MAX, ids.len()] {
            for limit in [SEGMENT_MAX - 1, SEGMENT_MAX, 1000] {
                let limit = PageLimit { records: u32::try_from(limit).unwrap(), bytes: 1 << 30 };
                assert_eq!(read_from(&records, after as u64, limit), ids[after..], "after {after} by {limit:?}");
            }
            let few_bytes = PageLimit { records: 1000, bytes: 10_000 };
            assert_eq!(read_from(&records, after as u64, few_bytes), ids[after..], "after {after} by few bytes");
        }
    }

    #[test]
    fn a_full_segment_is_shared_and_the_log_can_still_be_appended_to() {
        let (mut records, ids) = log_of(SEGMENT_MAX);
        let reader = Reader { topics: TopicFilter::all(), order: Order::Key, replay: None };
        let selection = Selection { reader: &reader, lane: Some((0, 1)), end: None };
        let limit = PageLimit { records: 1000, bytes: 1 << 30 };
        let page = records.read(&selection, 0, limit, Timestamp::from_micros(0), None);
        assert!(Arc::ptr_eq(&page.records, &records.segments[0].records));
        records.append(vec![(Envelope::new("t", "n", ""), Timestamp::from_micros(0))]);
        assert_eq!(read_from(&records, 0, limit).len(), ids.len() + 1);
    }

    #[test]
    fn a_purge_may_stop_inside_a_segment() {
        let (mut records, ids) = log_of(SEGMENT_MAX + 10);
        let (now, limit) = (Timestamp::from_micros(1), PageLimit { records: 1000, bytes: 1 << 30 });
        assert_eq!(records.purge(3, Retention::by_age(Duration::ZERO), now, 100), 3);
        assert_eq!((records.count(), records.before_oldest()), (ids.len() as u64 - 3, 3));
        assert_eq!(records.find(ids[2]).map(|(at, _)| at), None);
        assert_eq!(records.find(ids[3]).map(|(at, _)| at), Some(4));
        assert_eq!(records.purge(u64::MAX, Retention::by_age(Duration::ZERO), now, 10_000), ids.len() as u64 - 3);
        assert!(records.segments.is_empty());
        assert_eq!(records.last(), ids.len() as u64, "positions are never used twice");
        assert_eq!(read_from(&records, ids.len() as u64, limit), []);
    }
}
