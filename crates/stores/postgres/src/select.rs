//! Which records of the log belong to a reader and lane: topics, the lane's share of the keys, a replay's filter.
//!
//! Plain topics are chosen by the database already; everything else here, by the same stable hash that every store uses.
//! (A hash of the database's own may change with its version, and with lanes at different places that would be loss.) A
//! topic is matched once per page, not once per record.

use postrider_core::{
    key::KeyHash,
    lease::{Reader, ReplayFilter},
    time::Timestamp,
};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::{
    error::Work,
    intern::{Interner, Last},
    values::{Instant, Text},
};

/// A reader and a lane of it, at work on one page. Looks at rows that begin with `seq, topic, id, key, enqueued_at, name`.
pub(crate) struct Selection<'a> {
    reader: &'a Reader,
    replay: Option<&'a ReplayFilter>,
    lane: (u32, u32),
    verdicts: Vec<Option<bool>>,
    topic: Last,
    name: Last,
}

/// A record that was chosen.
pub(crate) struct Chosen<'a> {
    pub(crate) topic: u32,
    pub(crate) id: Uuid,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) hash: Option<KeyHash>,
    pub(crate) enqueued_at: Timestamp,
    pub(crate) name: u32,
}

impl<'a> Selection<'a> {
    /// Lane `number` of `lanes`.
    pub(crate) fn new(reader: &'a Reader, number: u32, lanes: u32) -> Self {
        let replay = reader.replay.as_ref().map(|replay| &replay.filter);
        let (topic, name) = (Last::default(), Last::default());
        Self { reader, replay, lane: (number, lanes), verdicts: Vec::new(), topic, name }
    }

    /// `None`: not ours.
    pub(crate) fn choose<'r>(&mut self, row: &'r Row, interner: &mut Interner) -> Work<Option<Chosen<'r>>> {
        let topic = self.topic.number(row.try_get::<_, Text<'_>>(1)?.0, interner);
        if !self.takes_topic(topic, interner) {
            return Ok(None);
        }
        let id: Uuid = row.try_get(2)?;
        // What plain SQL wrote is not checked: an empty key is none.
        let key = row.try_get::<_, Option<Text<'_>>>(3)?.map(|key| key.0).filter(|key| !key.is_empty());
        let (hash, ours) = self.reader.place(key, &id, self.lane.0, self.lane.1);
        if !ours {
            return Ok(None);
        }
        let enqueued_at = row.try_get::<_, Instant>(4)?.0;
        let name = row.try_get::<_, Text<'_>>(5)?.0;
        if !self.replay.is_none_or(|filter| passes(filter, enqueued_at, key, name)) {
            return Ok(None);
        }
        Ok(Some(Chosen { topic, id, key, hash, enqueued_at, name: self.name.number(name, interner) }))
    }

    fn takes_topic(&mut self, number: u32, interner: &Interner) -> bool {
        let index = number as usize;
        if index >= self.verdicts.len() {
            self.verdicts.resize(index + 1, None);
        }
        *self.verdicts[index].get_or_insert_with(|| {
            let topic = interner.text(number);
            let also = self.replay.and_then(|filter| filter.topics.as_ref());
            self.reader.topics.matches(topic) && also.is_none_or(|filter| filter.matches(topic))
        })
    }
}

/// The topics themselves, if none of the patterns is a wildcard: the database can leave out the rest.
pub(crate) fn plain_topics(reader: &Reader) -> Option<Vec<String>> {
    let patterns = reader.topics.patterns().iter().map(postrider_core::topic::TopicPattern::as_str);
    patterns.map(|pattern| (!pattern.contains('*')).then(|| pattern.to_owned())).collect()
}

/// Whether the only lane of a reader takes every row that the database returns.
pub(crate) fn takes_all(reader: &Reader) -> bool {
    let all = |pattern: &postrider_core::topic::TopicPattern| pattern.as_str() == "**";
    reader.replay.is_none() && (reader.topics.patterns().iter().any(all) || plain_topics(reader).is_some())
}

pub(crate) fn passes(filter: &ReplayFilter, enqueued_at: Timestamp, key: Option<&[u8]>, name: &[u8]) -> bool {
    filter.since.is_none_or(|since| enqueued_at >= since)
        && filter.until.is_none_or(|until| enqueued_at < until)
        && filter.key.as_deref().is_none_or(|wanted| key == Some(wanted.as_bytes()))
        && filter.name.as_deref().is_none_or(|wanted| name == wanted.as_bytes())
}
