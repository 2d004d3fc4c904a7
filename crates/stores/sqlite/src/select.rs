//! Which records of the log belong to a reader and lane: topics, the lane's share of the keys, a replay's filter.
//!
//! Chosen while stepping through the rows, cheapest question first, so that a record that is passed over costs no look at
//! its payload. A topic is matched once per page, not once per record.

use postrider_core::{
    key::KeyHash,
    lease::{Reader, ReplayFilter},
};
use rusqlite::{Row, types::ValueRef};
use uuid::Uuid;

use crate::{
    error::{Work, corrupt},
    intern::{Interner, Last},
};

/// The columns by which a record is chosen, in the order in which [`Selection::choose`] expects them.
pub(crate) const CHOSEN_BY: &str = "seq, topic, id, key, enqueued_at, name";

/// A reader and a lane of it, at work on one page.
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
    pub(crate) enqueued_at: i64,
    pub(crate) name: u32,
}

impl<'a> Selection<'a> {
    /// Lane `number` of `lanes`.
    pub(crate) fn new(reader: &'a Reader, number: u32, lanes: u32) -> Self {
        let replay = reader.replay.as_ref().map(|replay| &replay.filter);
        Self {
            reader,
            replay,
            lane: (number, lanes),
            verdicts: Vec::new(),
            topic: Last::default(),
            name: Last::default(),
        }
    }

    /// Looks at a row that begins with [`CHOSEN_BY`]. `None`: not ours.
    pub(crate) fn choose<'r>(&mut self, row: &'r Row<'_>, interner: &mut Interner) -> Work<Option<Chosen<'r>>> {
        let topic = self.topic.number(bytes(row, 1)?, interner);
        if !self.takes_topic(topic, interner) {
            return Ok(None);
        }
        let id = Uuid::from_slice(bytes(row, 2)?).map_err(|_| corrupt("a message id does not have 16 bytes"))?;
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

fn passes(filter: &ReplayFilter, enqueued_at: i64, key: Option<&[u8]>, name: &[u8]) -> bool {
    filter.since.is_none_or(|since| enqueued_at >= since.as_micros())
        && filter.until.is_none_or(|until| enqueued_at < until.as_micros())
        && filter.key.as_deref().is_none_or(|wanted| key == Some(wanted.as_bytes()))
        && filter.name.as_deref().is_none_or(|wanted| name == wanted.as_bytes())
}

/// The bytes of a text or blob; other languages may have stored either.
pub(crate) fn bytes<'r>(row: &'r Row<'_>, column: usize) -> Work<&'r [u8]> {
    optional_bytes(row, column)?.ok_or_else(|| corrupt("a column that cannot be empty is").into())
}

/// As [`bytes`], where nothing may be stored.
pub(crate) fn optional_bytes<'r>(row: &'r Row<'_>, column: usize) -> Work<Option<&'r [u8]>> {
    match row.get_ref(column)? {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Ok(Some(bytes)),
        ValueRef::Null => Ok(None),
        ValueRef::Integer(_) | ValueRef::Real(_) => Err(corrupt("a column of text or bytes holds a number").into()),
    }
}

/// A number.
pub(crate) fn integer(row: &Row<'_>, column: usize) -> Work<i64> {
    optional_integer(row, column)?.ok_or_else(|| corrupt("a column that cannot be empty is").into())
}

/// As [`integer`], where nothing may be stored.
pub(crate) fn optional_integer(row: &Row<'_>, column: usize) -> Work<Option<i64>> {
    match row.get_ref(column)? {
        ValueRef::Integer(value) => Ok(Some(value)),
        ValueRef::Null => Ok(None),
        ValueRef::Real(_) | ValueRef::Text(_) | ValueRef::Blob(_) => {
            Err(corrupt("a column of numbers holds something else").into())
        }
    }
}
