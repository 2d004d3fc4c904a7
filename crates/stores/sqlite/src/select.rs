//! Which records of the log belong to a reader and lane: topics, the lane's share of the keys, a replay's filter.
//!
//! Chosen while stepping through the rows, cheapest question first, so that a record that is passed over costs no look at
//! its payload. A topic is matched once per page, not once per record.

use std::borrow::Cow;

use postrider_core::{
    key::KeyHash,
    lease::{Reader, ReplayFilter},
};
use rusqlite::{Row, types::ValueRef};
use uuid::Uuid;

use crate::{
    error::{Work, corrupt},
    intern::{Interner, text},
};

/// The columns by which a record is chosen, in the order in which [`Selection::choose`] expects them.
pub(crate) const CHOSEN_BY: &str = "seq, topic, id, key, enqueued_at, name";

/// A reader and a lane of it, at work on one page.
pub(crate) struct Selection<'a> {
    reader: &'a Reader,
    replay: Option<&'a ReplayFilter>,
    lane: (u32, u32),
    verdicts: Vec<Option<bool>>,
}

/// A record that was chosen.
pub(crate) struct Chosen<'a> {
    pub(crate) topic: u32,
    pub(crate) id: Uuid,
    pub(crate) key: Option<Cow<'a, str>>,
    pub(crate) hash: Option<KeyHash>,
    pub(crate) enqueued_at: i64,
    pub(crate) name: &'a [u8],
}

impl<'a> Selection<'a> {
    /// Lane `number` of `lanes`.
    pub(crate) fn new(reader: &'a Reader, number: u32, lanes: u32) -> Self {
        let replay = reader.replay.as_ref().map(|replay| &replay.filter);
        Self { reader, replay, lane: (number, lanes), verdicts: Vec::new() }
    }

    /// Looks at a row that begins with [`CHOSEN_BY`]. `None`: not ours.
    pub(crate) fn choose<'r>(&mut self, row: &'r Row<'_>, interner: &mut Interner) -> Work<Option<Chosen<'r>>> {
        let topic = interner.number(bytes(row, 1)?);
        if !self.takes_topic(topic, interner) {
            return Ok(None);
        }
        let id = Uuid::from_slice(bytes(row, 2)?).map_err(|_| corrupt("a message id does not have 16 bytes"))?;
        let key = optional_bytes(row, 3)?.map(text);
        let (hash, ours) = self.reader.place(key.as_deref().map(str::as_bytes), &id, self.lane.0, self.lane.1);
        if !ours {
            return Ok(None);
        }
        let chosen = Chosen { topic, id, key, hash, enqueued_at: row.get(4)?, name: bytes(row, 5)? };
        let replayed = self.replay.is_none_or(|filter| chosen.passes(filter));
        Ok(replayed.then_some(chosen))
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

impl Chosen<'_> {
    fn passes(&self, filter: &ReplayFilter) -> bool {
        filter.since.is_none_or(|since| self.enqueued_at >= since.as_micros())
            && filter.until.is_none_or(|until| self.enqueued_at < until.as_micros())
            && filter.key.as_deref().is_none_or(|wanted| self.key.as_deref() == Some(wanted))
            && filter.name.as_deref().is_none_or(|wanted| self.name == wanted.as_bytes())
    }
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
