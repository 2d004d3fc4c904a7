//! Which records of the log belong to a reader and lane: topics, the lane's share of the keys, a replay's filter.
//!
//! Chosen while stepping through the rows, cheapest question first, so that a record that is passed over costs no look at
//! its payload. A topic is matched once per page, not once per record.

use postrider_core::{
    key::KeyHash,
    lease::{Reader, ReplayFilter},
    text::Texts,
};
use rusqlite::{Row, types::ValueRef};
use uuid::Uuid;

use crate::error::{Fault, Work, corrupt};

/// The columns by which a record is chosen, in the order in which [`Selection::choose`] expects them.
pub(crate) const CHOSEN_BY: &str = "seq, topic, id, key, enqueued_at, name";

/// A reader and a lane of it, at work on one page.
pub(crate) struct Selection<'a> {
    reader: &'a Reader,
    replay: Option<&'a ReplayFilter>,
    lane: (u32, u32),
    topics: Texts,
    names: Texts,
    /// Per topic, whether it is ours.
    verdicts: Vec<bool>,
}

/// A record that was chosen. Topic and name are numbers among the [`Selection`]'s texts.
#[derive(Clone, Copy)]
pub(crate) struct Chosen<'r> {
    pub(crate) topic: usize,
    pub(crate) id: Uuid,
    pub(crate) key: Option<&'r [u8]>,
    pub(crate) hash: Option<KeyHash>,
    pub(crate) enqueued_at: i64,
    pub(crate) name: usize,
}

impl<'a> Selection<'a> {
    /// Lane `number` of `lanes`.
    pub(crate) fn new(reader: &'a Reader, number: u32, lanes: u32) -> Self {
        Self {
            reader,
            replay: reader.replay.as_ref().map(|replay| &replay.filter),
            lane: (number, lanes),
            topics: Texts::default(),
            names: Texts::default(),
            verdicts: Vec::new(),
        }
    }

    /// Looks at a row that begins with [`CHOSEN_BY`]. `None`: not ours.
    #[inline]
    pub(crate) fn choose<'r>(&mut self, row: &'r Row<'_>) -> Work<Option<Chosen<'r>>> {
        let topic = self.topics.number(bytes(row, 1)?);
        if !self.takes_topic(topic) {
            return Ok(None);
        }
        let Ok(id) = Uuid::from_slice(bytes(row, 2)?) else { return Err(short_id()) };
        let key = optional_bytes(row, 3)?;
        let (hash, ours) = self.reader.place(key, &id, self.lane.0, self.lane.1);
        if !ours {
            return Ok(None);
        }
        let enqueued_at = integer(row, 4)?;
        let name = bytes(row, 5)?;
        if !self.replay.is_none_or(|filter| passes(filter, enqueued_at, key, name)) {
            return Ok(None);
        }
        Ok(Some(Chosen { topic, id, key, hash, enqueued_at, name: self.names.number(name) }))
    }

    /// The texts of the topics and names that were chosen.
    pub(crate) fn into_texts(self) -> (Texts, Texts) {
        (self.topics, self.names)
    }

    /// Matched when the topic is first seen: verdicts stand in the order of the topics' numbers.
    #[inline]
    fn takes_topic(&mut self, number: usize) -> bool {
        if number == self.verdicts.len() {
            let topic = self.topics.text(number);
            let also = self.replay.and_then(|filter| filter.topics.as_ref());
            let ours = self.reader.topics.matches(topic) && also.is_none_or(|filter| filter.matches(topic));
            self.verdicts.push(ours);
        }
        self.verdicts[number]
    }
}

fn passes(filter: &ReplayFilter, enqueued_at: i64, key: Option<&[u8]>, name: &[u8]) -> bool {
    filter.since.is_none_or(|since| enqueued_at >= since.as_micros())
        && filter.until.is_none_or(|until| enqueued_at < until.as_micros())
        && filter.key.as_deref().is_none_or(|wanted| key == Some(wanted.as_bytes()))
        && filter.name.as_deref().is_none_or(|wanted| name == wanted.as_bytes())
}

/// The bytes of a text or blob; other languages may have stored either.
#[inline]
pub(crate) fn bytes<'r>(row: &'r Row<'_>, column: usize) -> Work<&'r [u8]> {
    match row.get_ref(column)? {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Ok(bytes),
        other => Err(unexpected(other)),
    }
}

/// As [`bytes`], where nothing may be stored.
#[inline]
pub(crate) fn optional_bytes<'r>(row: &'r Row<'_>, column: usize) -> Work<Option<&'r [u8]>> {
    match row.get_ref(column)? {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Ok(Some(bytes)),
        ValueRef::Null => Ok(None),
        other => Err(unexpected(other)),
    }
}

/// A number.
#[inline]
pub(crate) fn integer(row: &Row<'_>, column: usize) -> Work<i64> {
    match row.get_ref(column)? {
        ValueRef::Integer(value) => Ok(value),
        other => Err(unexpected(other)),
    }
}

/// As [`integer`], where nothing may be stored.
#[inline]
pub(crate) fn optional_integer(row: &Row<'_>, column: usize) -> Work<Option<i64>> {
    match row.get_ref(column)? {
        ValueRef::Integer(value) => Ok(Some(value)),
        ValueRef::Null => Ok(None),
        other => Err(unexpected(other)),
    }
}

#[cold]
fn unexpected(value: ValueRef<'_>) -> Fault {
    Fault::from(corrupt(match value {
        ValueRef::Null => "a column that cannot be empty is",
        ValueRef::Integer(_) | ValueRef::Real(_) => "a column of text or bytes holds a number",
        ValueRef::Text(_) | ValueRef::Blob(_) => "a column of numbers holds something else",
    }))
}

#[cold]
fn short_id() -> Fault {
    Fault::from(corrupt("a message id does not have 16 bytes"))
}
