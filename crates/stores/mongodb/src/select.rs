//! Which records of the log belong to a reader and lane: topics, the lane's share of the keys, a replay's filter.
//!
//! By the same stable hash that every store uses. A topic is matched once per page, not once per record.

use mongodb::bson::Document;
use postrider_core::{
    key::KeyHash,
    lease::{Reader, ReplayFilter},
    text::Texts,
    time::Timestamp,
};
use uuid::Uuid;

use crate::{
    records::{enqueued_at, key, message_id},
    value::text_opt,
};

/// A reader and a lane of it, at work on one page.
pub(crate) struct Selection<'a> {
    reader: &'a Reader,
    replay: Option<&'a ReplayFilter>,
    lane: (u32, u32),
    verdicts: Vec<bool>,
    pub(crate) topics: Texts,
    pub(crate) names: Texts,
}

/// A record that was chosen.
pub(crate) struct Chosen {
    pub(crate) topic: usize,
    pub(crate) name: usize,
    pub(crate) id: Uuid,
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
    pub(crate) fn choose(&mut self, document: &Document) -> Option<Chosen> {
        let topic = self.topics.number(text_opt(document, "topic").unwrap_or_default().as_bytes());
        if !self.takes_topic(topic) {
            return None;
        }
        let (id, key) = (message_id(document), key(document));
        let (hash, ours) = self.reader.place(key.map(str::as_bytes), &id, self.lane.0, self.lane.1);
        if !ours {
            return None;
        }
        let enqueued_at = enqueued_at(document);
        let name = text_opt(document, "name").unwrap_or_default();
        if !self.replay.is_none_or(|filter| passes(filter, enqueued_at, key, name)) {
            return None;
        }
        Some(Chosen { topic, name: self.names.number(name.as_bytes()), id, hash, enqueued_at })
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

fn passes(filter: &ReplayFilter, enqueued_at: Timestamp, key: Option<&str>, name: &str) -> bool {
    filter.since.is_none_or(|since| enqueued_at >= since)
        && filter.until.is_none_or(|until| enqueued_at < until)
        && filter.key.as_deref().is_none_or(|wanted| key == Some(wanted))
        && filter.name.as_deref().is_none_or(|wanted| name == wanted)
}
