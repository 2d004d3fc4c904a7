//! Documents as records: what a document of the log holds, and a page in the making.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use mongodb::bson::{Bson, Document, doc};
use postrider_core::{
    envelope::{Envelope, MessageId},
    headers::Headers,
    key::OrderingKey,
    log::{Page, PageLimit, Record},
    time::Timestamp,
};
use uuid::Uuid;

use crate::{
    cursor::{Position, Tick},
    select::{Chosen, Selection},
    value::{binary, bytes, instant, long_opt, narrow, point, text_opt, uuid, uuid_opt},
};

/// Everything but what is large, for looks that need neither headers nor payload.
pub(crate) fn light() -> Document {
    doc! { "payload": 0, "headers": 0 }
}

/// The fields of an envelope, as they are kept in the log and in parked rows.
pub(crate) fn fields(envelope: &Envelope) -> Document {
    let mut document = doc! { "id": uuid(envelope.id.0), "topic": &*envelope.topic, "name": &*envelope.name };
    if let Some(key) = &envelope.key {
        document.insert("key", key.as_str());
    }
    if let Some(at) = envelope.deliver_at {
        document.insert("deliver_at", at.as_micros());
    }
    if let Some(at) = envelope.expires_at {
        document.insert("expires_at", at.as_micros());
    }
    if let Some(attempts) = envelope.attempts_max {
        document.insert("attempts_max", i64::from(attempts));
    }
    if !envelope.headers.is_empty() {
        document.insert("headers", binary(envelope.headers.encoded()));
    }
    document.insert("payload", binary(&envelope.payload));
    document
}

/// The message's id. One that was written without any has a fixed one that is made of the document's own.
pub(crate) fn message_id(document: &Document) -> Uuid {
    uuid_opt(document, "id").unwrap_or_else(|| made_of(document.get("_id")))
}

fn made_of(id: Option<&Bson>) -> Uuid {
    let text = match id {
        Some(Bson::ObjectId(id)) => id.bytes().to_vec(),
        Some(Bson::Binary(binary)) => binary.bytes.clone(),
        Some(other) => other.to_string().into_bytes(),
        None => Vec::new(),
    };
    Uuid::new_v8(xxhash_rust::xxh3::xxh3_128(&text).to_be_bytes())
}

/// The point of the document in the time of the cluster: its number in the log.
pub(crate) fn at(document: &Document) -> Tick {
    point(document, "at").unwrap_or(0)
}

/// When it was enqueued, by the server's clock. That one knows seconds alone; within its second the clock of whoever enqueued
/// is taken at its word.
pub(crate) fn enqueued_at(document: &Document) -> Timestamp {
    let said = instant(document, "enqueued_at");
    let Some(tick) = point(document, "at") else { return said.unwrap_or(Timestamp::from_micros(0)) };
    let (seconds, count) = (tick >> 32, tick & u64::from(u32::MAX));
    let second = i64::try_from(seconds * 1_000_000).unwrap_or(i64::MAX - 999_999);
    let inside =
        said.map_or_else(|| i64::try_from(count).unwrap_or(i64::MAX), |said| said.as_micros().saturating_sub(second));
    Timestamp::from_micros(second + inside.clamp(0, 999_999))
}

/// The ordering key. An empty one is none: what other languages write is not checked.
pub(crate) fn key(document: &Document) -> Option<&str> {
    text_opt(document, "key").filter(|key| !key.is_empty())
}

/// A field that is there and would not be read, because it is of another type than it should be. The validator of the log
/// refuses such a message; mail in documents has none. What is null counts as left out.
pub(crate) fn misshapen(document: &Document) -> Option<&'static str> {
    let is_bytes = |name: &str| matches!(document.get(name), Some(Bson::Binary(_) | Bson::String(_)));
    let fields = [
        ("key", text_opt(document, "key").is_some()),
        ("deliver_at", instant(document, "deliver_at").is_some()),
        ("expires_at", instant(document, "expires_at").is_some()),
        ("attempts_max", long_opt(document, "attempts_max").is_some()),
        ("headers", matches!(document.get("headers"), Some(Bson::Document(_) | Bson::Binary(_)))),
        ("payload", is_bytes("payload")),
    ];
    let is_there = |name: &str| !matches!(document.get(name), None | Some(Bson::Null));
    fields.into_iter().find(|(name, is_read)| !is_read && is_there(name)).map(|(name, _)| name)
}

fn headers(value: Option<Bson>) -> Headers {
    let encoded = match value {
        // As other languages like to write them.
        Some(Bson::Document(pairs)) if !pairs.is_empty() => {
            let text = |value: &Bson| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
            let pairs: serde_json::Map<String, serde_json::Value> =
                pairs.iter().map(|(name, value)| (name.clone(), text(value).into())).collect();
            Some(Bytes::from(serde_json::Value::from(pairs).to_string()))
        }
        other => bytes(other).filter(|bytes| !bytes.is_empty()),
    };
    encoded.map_or_else(Headers::default, Headers::from_encoded)
}

/// The envelope of a document, of which it takes headers and payload.
pub(crate) fn envelope(mut document: Document) -> Envelope {
    let topic = text_opt(&document, "topic").unwrap_or_default().into();
    let name = text_opt(&document, "name").unwrap_or_default().into();
    Envelope {
        id: MessageId(message_id(&document)),
        topic,
        name,
        key: key(&document).map(OrderingKey::from),
        deliver_at: instant(&document, "deliver_at"),
        expires_at: instant(&document, "expires_at"),
        attempts_max: long_opt(&document, "attempts_max").map(|attempts| narrow(attempts).max(1)),
        headers: headers(document.remove("headers")),
        payload: bytes(document.remove("payload")).unwrap_or_default(),
    }
}

/// A page in the making.
pub(crate) struct Gathered {
    limit: PageLimit,
    replay: Option<Arc<str>>,
    now: Option<Timestamp>,
    records: Vec<Record>,
    positions: Vec<Position>,
    weight: usize,
}

impl Gathered {
    pub(crate) fn new(limit: PageLimit, replay: Option<Arc<str>>) -> Self {
        let limit = PageLimit { records: limit.records.max(1), ..limit };
        Self { limit, replay, now: None, records: Vec::new(), positions: Vec::new(), weight: 0 }
    }

    /// Whether the instant by the store's clock has to be known for these, and is not: most messages do not wait for one.
    pub(crate) fn needs_clock<'d>(&self, mut documents: impl Iterator<Item = &'d Document>) -> bool {
        self.now.is_none() && documents.any(|d| d.contains_key("deliver_at") || d.contains_key("expires_at"))
    }

    pub(crate) fn set_clock(&mut self, now: Timestamp) {
        self.now = Some(now);
    }

    /// How many more records it takes, as far as their number goes.
    pub(crate) fn room(&self) -> usize {
        self.limit.records as usize - self.records.len()
    }

    /// Whether a document fits. The first one always does.
    pub(crate) fn fits(&self, document: &Document) -> bool {
        let length = |name| match document.get(name) {
            Some(Bson::Binary(binary)) => binary.bytes.len(),
            Some(Bson::String(text)) => text.len(),
            _ => 0,
        };
        let weight = length("payload") + length("headers") + length("key") + size_of::<Envelope>();
        self.room() > 0 && (self.records.is_empty() || self.weight + weight <= self.limit.bytes)
    }

    /// Adds a record that fits, behind which the lane is at `position`.
    pub(crate) fn take(
        &mut self,
        mut document: Document,
        chosen: &Chosen,
        selection: &Selection<'_>,
        position: Position,
    ) {
        let (deliver_at, expires_at) = (instant(&document, "deliver_at"), instant(&document, "expires_at"));
        let envelope = Envelope {
            id: MessageId(chosen.id),
            topic: Arc::clone(selection.topics.text(chosen.topic)),
            name: Arc::clone(selection.names.text(chosen.name)),
            key: key(&document).map(OrderingKey::from),
            deliver_at,
            expires_at,
            attempts_max: long_opt(&document, "attempts_max").map(|attempts| narrow(attempts).max(1)),
            headers: headers(document.remove("headers")),
            payload: bytes(document.remove("payload")).unwrap_or_default(),
        };
        let now = self.now;
        let left = |at: Timestamp| now.map_or(Duration::ZERO, |now| at.since(now));
        self.weight += envelope.weight();
        self.positions.push(position);
        self.records.push(Record {
            key: chosen.hash,
            enqueued_at: chosen.enqueued_at,
            wait: deliver_at.map_or(Duration::ZERO, left),
            expires_in: expires_at.map(left),
            replay: self.replay.clone(),
            number: at(&document),
            envelope,
        });
    }

    /// `after` is where the page was read from, `end` where it ends.
    pub(crate) fn into_page(self, after: Position, end: &Position, more: bool) -> Page {
        let positions = self.positions;
        let mark = move |n: u32| if n == 0 { after.encode() } else { positions[n as usize - 1].encode() };
        let ended = self.replay.is_some() && !more;
        Page { records: Arc::new(self.records), marks: Arc::new(mark), end: end.encode(), more, ended }
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{DateTime, oid::ObjectId};

    use super::*;

    #[test]
    fn an_envelope_survives_and_what_others_write_is_read() {
        let headers = Headers::new([("tenant", "größe")]).unwrap();
        let sent = Envelope { headers, attempts_max: Some(u32::MAX), ..Envelope::new("t", "n", vec![0, 255]) };
        assert_eq!(envelope(fields(&sent)), sent);
        let foreign = doc! {
            "_id": ObjectId::new(), "topic": "t", "name": "n", "key": "", "payload": "text", "headers": { "a": "b", "n": 7 },
        };
        let read = envelope(foreign.clone());
        assert_eq!((&read.payload[..], read.key.is_none()), (b"text".as_slice(), true));
        assert_eq!(
            read.headers.decode().unwrap(),
            [("a".to_owned(), "b".to_owned()), ("n".to_owned(), "7".to_owned())]
        );
        assert_eq!(read.id, envelope(foreign).id, "an id that is made up is always the same");
    }

    #[test]
    fn a_field_that_would_not_be_read_is_named() {
        let sent = Envelope { attempts_max: Some(3), ..Envelope::new("t", "n", "{}").with_key("k") };
        assert_eq!(misshapen(&fields(&sent)), None);
        assert_eq!(
            misshapen(&doc! { "key": null, "headers": { "a": "b" }, "attempts_max": 3.0, "payload": "x" }),
            None
        );
        assert_eq!(misshapen(&doc! { "key": 4711, "payload": "x" }), Some("key"));
        assert_eq!(misshapen(&doc! { "deliver_at": "2030-01-01" }), Some("deliver_at"));
        assert_eq!(misshapen(&doc! { "payload": { "number": 4711 } }), Some("payload"));
    }

    #[test]
    fn the_server_says_the_second_and_the_client_what_is_in_it() {
        let at = mongodb::bson::Timestamp { time: 100, increment: 7 };
        let enqueued = |said: Option<i64>| {
            let mut document = doc! { "at": at };
            document.extend(said.map(|millis| ("enqueued_at".to_owned(), DateTime::from_millis(millis).into())));
            enqueued_at(&document).as_micros()
        };
        assert_eq!(enqueued(None), 100_000_007);
        assert_eq!(enqueued(Some(100_250)), 100_250_000);
        let (behind, ahead) = (enqueued(Some(i64::MIN)), enqueued(Some(3_600_000)));
        assert_eq!((behind, ahead), (100_000_000, 100_999_999));
    }
}
