//! Which records of the log belong to a reader and lane: topics, the lane's share of the keys, a replay's filter.
//!
//! By the same stable hash that every store uses, not by one of the database's own, which may change with its version. A
//! topic is matched once per page, not once per record.

use mysql_async::Row;
use postrider_core::{
    key::KeyHash,
    lease::{Reader, ReplayFilter},
    text::Texts,
    time::Timestamp,
};
use uuid::Uuid;

use crate::{
    db::{bytes, get},
    error::{Work, corrupt},
};

/// The columns that a selection looks at, in its order.
pub(crate) const CHOSEN_BY: &str = "seq, topic, id, `key`, enqueued_at, name";

/// A reader and a lane of it, at work on one page. Looks at rows that begin with [`CHOSEN_BY`].
pub(crate) struct Selection<'a> {
    reader: &'a Reader,
    replay: Option<&'a ReplayFilter>,
    lane: (u32, u32),
    verdicts: Vec<bool>,
    pub(crate) topics: Texts,
    pub(crate) names: Texts,
}

/// A record that was chosen.
pub(crate) struct Chosen<'r> {
    pub(crate) topic: usize,
    pub(crate) name: usize,
    pub(crate) id: Uuid,
    pub(crate) key: Option<&'r [u8]>,
    pub(crate) hash: Option<KeyHash>,
    pub(crate) enqueued_at: Timestamp,
}

impl<'a> Selection<'a> {
    /// Lane `number` of `lanes`.
    pub(crate) fn new(reader: &'a Reader, number: u32, lanes: u32) -> Self {
        let replay = reader.replay.as_ref().map(|replay| &replay.filter);
        let (topics, names) = (Texts::default(), Texts::default());
        Self { reader, replay, lane: (number, lanes), verdicts: Vec::new(), topics, names }
    }

    /// `None`: not ours.
    pub(crate) fn choose<'r>(&mut self, row: &'r Row) -> Work<Option<Chosen<'r>>> {
        let topic = self.topics.number(bytes(row, 1).unwrap_or_default());
        if !self.takes_topic(topic) {
            return Ok(None);
        }
        let id = message_id(row, 2)?;
        // What plain SQL wrote is not checked: an empty key is none.
        let key = bytes(row, 3).filter(|key| !key.is_empty());
        let (hash, ours) = self.reader.place(key, &id, self.lane.0, self.lane.1);
        if !ours {
            return Ok(None);
        }
        let enqueued_at = Timestamp::from_micros(get(row, 4)?);
        let name = bytes(row, 5).unwrap_or_default();
        if !self.replay.is_none_or(|filter| passes(filter, enqueued_at, key, name)) {
            return Ok(None);
        }
        Ok(Some(Chosen { topic, name: self.names.number(name), id, key, hash, enqueued_at }))
    }

    /// Matched when the topic is first seen: verdicts stand in the order of the topics' numbers.
    fn takes_topic(&mut self, number: usize) -> bool {
        if number == self.verdicts.len() {
            let topic = self.topics.text(number);
            let also = self.replay.and_then(|filter| filter.topics.as_ref());
            self.verdicts.push(self.reader.topics.matches(topic) && also.is_none_or(|filter| filter.matches(topic)));
        }
        self.verdicts[number]
    }
}

fn passes(filter: &ReplayFilter, enqueued_at: Timestamp, key: Option<&[u8]>, name: &[u8]) -> bool {
    filter.since.is_none_or(|since| enqueued_at >= since)
        && filter.until.is_none_or(|until| enqueued_at < until)
        && filter.key.as_deref().is_none_or(|wanted| key == Some(wanted.as_bytes()))
        && filter.name.as_deref().is_none_or(|wanted| name == wanted.as_bytes())
}

/// The id of a message, which has 16 bytes.
pub(crate) fn message_id(row: &Row, column: usize) -> Work<Uuid> {
    let id = bytes(row, column).and_then(|id| Uuid::from_slice(id).ok());
    Ok(id.ok_or_else(|| corrupt("a message id does not have 16 bytes"))?)
}
