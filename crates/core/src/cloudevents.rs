//! An envelope as a CloudEvent (1.0), and back: one mapping for every transport.
//!
//! A transport carries the attributes as its binding says (`ce-` headers, `ce_` record headers, members of a JSON object)
//! and the payload as data. Here is decided which attributes there are; how they are written on a wire is the transport's
//! business. What goes out through [`attributes`] comes back the same through [`from_attributes`].
//!
//! | attribute | value |
//! |---|---|
//! | `specversion` | `1.0` |
//! | `id` | the message id, the same over retries and replays |
//! | `source` | who speaks; the transport's setting |
//! | `type` | the logical name |
//! | `subject`, `partitionkey` | the ordering key, if there is one |
//! | `time` | when it was enqueued, by the store's clock |
//! | `datacontenttype` | the header `content-type`, or `application/json` where there is none |
//! | `topic` | the topic |
//! | `correlationid`, `causationid` | the headers `correlation-id` and `causation-id` |
//! | `postriderreplay` | the replay that delivers it again, if one does |
//! | a header's own name | every other header that may be an attribute: up to 20 lower-case letters and digits, a name that means nothing else here, a value that is not empty. So `tenant` is `tenant`, and `traceparent` is the attribute of the distributed tracing extension |
//! | `postriderheaders` | the headers that are left, as a JSON object in a text |

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    envelope::{Envelope, MessageId},
    error::{Error, ErrorKind, Result},
    headers::{CAUSATION_ID, CONTENT_TYPE, CORRELATION_ID, Headers, REPLAY},
    key::OrderingKey,
    log::Record,
};

/// The version of the specification.
pub const SPECVERSION: &str = "1.0";
/// What `datacontenttype` is where an envelope says nothing.
pub const CONTENT_TYPE_DEFAULT: &str = "application/json";
/// Media types that begin so announce a whole event in the body, so they cannot be the type of its data.
pub const STRUCTURED: &str = "application/cloudevents";
/// What a type that cannot be announced is announced as.
const OPAQUE: &str = "application/octet-stream";
/// Where headers go that cannot be attributes.
const HEADERS: &str = "postriderheaders";
/// Where the name of a replay goes.
const REPLAYED: &str = "postriderreplay";
/// The longest name that the specification advises.
const NAME_MAX: usize = 20;

/// Headers with an attribute of their own.
const RENAMED: [(&str, &str); 3] =
    [(CORRELATION_ID, "correlationid"), (CAUSATION_ID, "causationid"), (REPLAY, REPLAYED)];

/// Attributes that a header cannot be, because they mean something else.
const TAKEN: [&str; 15] = [
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "datacontenttype",
    "dataschema",
    "data",
    "partitionkey",
    "topic",
    "correlationid",
    "causationid",
    REPLAYED,
    HEADERS,
];

/// One attribute: name and value.
pub type Attribute = (String, String);

/// A CloudEvent, read.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    /// What travelled: everything but `deliver_at`, `expires_at` and `attempts_max`, which are the relay's business.
    pub envelope: Envelope,
    /// Who sent it.
    pub source: String,
    /// When it was enqueued, as the sender wrote it.
    pub time: Option<String>,
    /// The replay that delivered it again, if one did.
    pub replay: Option<String>,
}

impl Received {
    /// The envelope as a consumer gets it: a replay is marked by its header, [`REPLAY`], since nothing else travels beside it.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the headers are not a JSON object.
    pub fn into_envelope(self) -> Result<Envelope> {
        let Some(replay) = self.replay else { return Ok(self.envelope) };
        let mut headers: BTreeMap<String, String> = self.envelope.headers.decode()?.into_iter().collect();
        headers.insert(REPLAY.to_owned(), replay);
        Ok(Envelope { headers: encode(&headers)?, ..self.envelope })
    }
}

/// The envelope of a message that is no CloudEvent: somebody else put it where we receive. `place` is where it came from and
/// becomes topic and name; its id follows from `place` and `identity`, which names it there (a sequence number), so that it
/// is the same however often it is delivered.
#[must_use]
pub fn foreign(place: &str, identity: &str, data: Bytes) -> Envelope {
    let hash = xxhash_rust::xxh3::xxh3_128(format!("{place}\n{identity}").as_bytes());
    let id = MessageId(uuid::Uuid::new_v8(hash.to_be_bytes()));
    Envelope { id, ..Envelope::new(place, place, data) }
}

/// The attributes of a record, those of the specification first. `source` is not empty.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the stored headers are not a JSON object.
pub fn attributes(record: &Record, source: &str) -> Result<Vec<Attribute>> {
    let envelope = &record.envelope;
    let mut extensions = Vec::new();
    let mut left = BTreeMap::new();
    let mut content_type = CONTENT_TYPE_DEFAULT.to_owned();
    for (name, value) in record.headers()? {
        let renamed = RENAMED.iter().find(|(header, _)| *header == name).map(|(_, attribute)| *attribute);
        if name == CONTENT_TYPE {
            content_type = if announceable(&value) { value.clone() } else { OPAQUE.to_owned() };
            // The default is read back as no header at all, so one that says the same is written down.
            if content_type != value || value == CONTENT_TYPE_DEFAULT {
                left.insert(name, value);
            }
        } else if let (Some(attribute), false) = (renamed, value.is_empty()) {
            extensions.push((attribute.to_owned(), value));
        } else if may_be_attribute(&name) && !value.is_empty() {
            extensions.push((name, value));
        } else {
            left.insert(name, value);
        }
    }
    let mut attributes: Vec<Attribute> = Vec::with_capacity(10 + extensions.len());
    let mut push = |name: &str, value: String| attributes.push((name.to_owned(), value));
    push("specversion", SPECVERSION.to_owned());
    push("id", envelope.id.to_string());
    push("source", source.to_owned());
    push("type", envelope.name.to_string());
    if let Some(key) = &envelope.key {
        push("subject", key.to_string());
    }
    push("time", record.enqueued_at.to_string());
    push("datacontenttype", content_type);
    if let Some(key) = &envelope.key {
        push("partitionkey", key.to_string());
    }
    push("topic", envelope.topic.to_string());
    if !left.is_empty() {
        push(HEADERS, serde_json::to_string(&left).expect("a map of strings is JSON"));
    }
    attributes.extend(extensions);
    Ok(attributes)
}

/// The envelope that attributes and data stand for. Attributes that are not known here become headers. An event that
/// another system made has no `topic`; then its `type` is the topic.
///
/// # Errors
/// [`ErrorKind::Invalid`] if an attribute that must be there is not, or is not what it should be.
pub fn from_attributes(attributes: impl IntoIterator<Item = Attribute>, data: Bytes) -> Result<Received> {
    let mut known = BTreeMap::new();
    let mut headers = BTreeMap::new();
    for (name, value) in attributes {
        match RENAMED.iter().find(|(_, attribute)| *attribute == name) {
            Some((header, _)) => drop(headers.insert((*header).to_owned(), value)),
            None if TAKEN.contains(&name.as_str()) => drop(known.insert(name, value)),
            None => drop(headers.insert(name, value)),
        }
    }
    let mut take = |name: &'static str| known.remove(name).filter(|value| !value.is_empty());
    let missing = |name| Error::invalid("a CloudEvent lacks an attribute that it must have").with("attribute", name);
    let version = take("specversion").ok_or_else(|| missing("specversion"))?;
    if version != SPECVERSION {
        let shown: String = version.escape_debug().take(20).collect();
        return Err(Error::invalid("only CloudEvents of version 1.0 can be read").with("specversion", shown));
    }
    let id: MessageId = take("id").ok_or_else(|| missing("id"))?.parse()?;
    let source = take("source").ok_or_else(|| missing("source"))?;
    let name = take("type").ok_or_else(|| missing("type"))?;
    let topic = take("topic").unwrap_or_else(|| name.clone());
    let key = take("partitionkey").or_else(|| take("subject")).map(OrderingKey::from);
    let time = take("time");
    if let Some(content_type) = take("datacontenttype").filter(|content_type| content_type != CONTENT_TYPE_DEFAULT) {
        headers.insert(CONTENT_TYPE.to_owned(), content_type);
    }
    if let Some(left) = take(HEADERS) {
        let left: BTreeMap<String, String> = serde_json::from_str(&left).map_err(|e| {
            Error::invalid("the attribute `postriderheaders` is not a JSON object of texts").caused_by(e)
        })?;
        headers.extend(left);
    }
    let replay = headers.remove(REPLAY);
    let envelope = Envelope { id, key, headers: encode(&headers)?, ..Envelope::new(&topic, &name, data) };
    Ok(Received { envelope, source, time, replay })
}

fn encode(headers: &BTreeMap<String, String>) -> Result<Headers> {
    if headers.is_empty() {
        return Ok(Headers::default());
    }
    let bytes = serde_json::to_vec(headers)
        .map_err(|e| Error::new(ErrorKind::Other, "headers cannot be written as JSON").caused_by(e))?;
    Ok(Headers::from_encoded(bytes.into()))
}

/// Whether a header's name may be the name of an attribute.
fn may_be_attribute(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(allowed) && !TAKEN.contains(&name)
}

/// Whether a text can be announced as the type of the data on any wire: it looks like a media type, has nothing but
/// visible ASCII and inner spaces, and does not claim that the data is a whole event.
fn announceable(content_type: &str) -> bool {
    let whole_event = content_type.get(..STRUCTURED.len()).is_some_and(|start| start.eq_ignore_ascii_case(STRUCTURED));
    content_type.contains('/')
        && content_type.bytes().all(|b| (b' '..=b'~').contains(&b))
        && content_type.trim() == content_type
        && !whole_event
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::time::Timestamp;

    fn record(headers: &[(&str, &str)]) -> Record {
        let mut envelope = Envelope::new("orders", "order.placed", "{}").with_key("größe 42");
        envelope.headers = Headers::new(headers.iter().copied()).unwrap();
        let (key, enqueued_at) = (None, Timestamp::from_micros(0));
        Record { envelope, key, enqueued_at, wait: Duration::ZERO, expires_in: None, replay: None, number: 0 }
    }

    #[test]
    fn a_replay_is_a_header_of_what_a_consumer_gets() {
        let record = Record { replay: Some("r".into()), ..record(&[("tenant", "7")]) };
        let back = from_attributes(attributes(&record, "shop").unwrap(), Bytes::new()).unwrap();
        assert_eq!(back.replay.as_deref(), Some("r"));
        let envelope = back.into_envelope().unwrap();
        assert_eq!(envelope.headers.get(REPLAY).unwrap().as_deref(), Some("r"));
        assert_eq!(envelope.headers.get("tenant").unwrap().as_deref(), Some("7"));
    }

    #[test]
    fn what_is_no_event_has_the_same_id_however_often_it_comes() {
        let id = |place, identity| foreign(place, identity, Bytes::new()).id;
        assert_eq!(id("orders", "1"), id("orders", "1"));
        assert_ne!(id("orders", "1"), id("orders", "2"));
        assert_ne!(id("orders", "1"), id("payments", "1"));
    }

    fn value(attributes: &[Attribute], name: &str) -> Option<String> {
        attributes.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone())
    }

    fn round_trip(headers: &[(&str, &str)]) -> Vec<Attribute> {
        let record = record(headers);
        let attributes = attributes(&record, "shop").unwrap();
        let back = from_attributes(attributes.clone(), record.envelope.payload.clone()).unwrap();
        assert_eq!(back.envelope.headers.decode().unwrap(), record.envelope.headers.decode().unwrap());
        assert_eq!((back.envelope.key, back.envelope.topic), (record.envelope.key, record.envelope.topic));
        assert_eq!((back.source.as_str(), back.time.as_deref()), ("shop", Some("1970-01-01T00:00:00.000000Z")));
        let fine = |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        assert!(attributes.iter().all(|(name, value)| fine(name) && !value.is_empty()), "{attributes:?}");
        attributes
    }

    #[test]
    fn the_attributes_are_those_of_the_specification() {
        let attributes = round_trip(&[("correlation-id", "c"), ("tenant", "7"), ("traceparent", "00-a-b-01")]);
        let expected = [
            ("specversion", "1.0"),
            ("source", "shop"),
            ("type", "order.placed"),
            ("subject", "größe 42"),
            ("partitionkey", "größe 42"),
            ("topic", "orders"),
            ("datacontenttype", "application/json"),
            ("correlationid", "c"),
            ("tenant", "7"),
            ("traceparent", "00-a-b-01"),
        ];
        for (name, expected) in expected {
            assert_eq!(value(&attributes, name).as_deref(), Some(expected), "{name}");
        }
        assert_eq!(value(&attributes, "postriderheaders"), None);
    }

    #[test]
    fn headers_that_cannot_be_attributes_travel_together() {
        let odd = [("id", "mine"), ("a-b", "1"), ("data", "d"), ("empty", ""), ("topic", "t"), ("correlation-id", "")];
        let attributes = round_trip(&odd);
        let left = r#"{"a-b":"1","correlation-id":"","data":"d","empty":"","id":"mine","topic":"t"}"#;
        assert_eq!(value(&attributes, "postriderheaders").as_deref(), Some(left));
        assert_ne!(value(&attributes, "id").as_deref(), Some("mine"), "a header cannot change the identity");
        assert_eq!(value(&attributes, "topic").as_deref(), Some("orders"));
    }

    #[test]
    fn a_content_type_survives_even_if_it_cannot_be_announced() {
        for (header, announced) in [
            ("text/plain; charset=utf-8", "text/plain; charset=utf-8"),
            ("application/json", "application/json"),
            ("application/CloudEvents+json", "application/octet-stream"),
            ("größe/x", "application/octet-stream"),
            ("nonsense", "application/octet-stream"),
            ("", "application/octet-stream"),
        ] {
            let attributes = round_trip(&[("content-type", header)]);
            assert_eq!(value(&attributes, "datacontenttype").as_deref(), Some(announced), "{header:?}");
        }
    }

    #[test]
    fn a_replay_is_told_apart_from_a_header() {
        let replayed = Record { replay: Some("orders#replay-1".into()), ..record(&[]) };
        let attributes = attributes(&replayed, "shop").unwrap();
        assert_eq!(value(&attributes, "postriderreplay").as_deref(), Some("orders#replay-1"));
        let back = from_attributes(attributes, Bytes::new()).unwrap();
        assert_eq!(back.replay.as_deref(), Some("orders#replay-1"));
        assert!(back.envelope.headers.is_empty());
    }

    #[test]
    fn an_event_that_is_not_whole_is_refused() {
        let whole = attributes(&record(&[]), "shop").unwrap();
        for name in ["specversion", "id", "source", "type"] {
            let without: Vec<_> = whole.iter().filter(|(n, _)| n != name).cloned().collect();
            let error = from_attributes(without, Bytes::new()).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
        let change = |name: &str, value: &str| {
            let pairs = whole.iter().map(|(n, v)| (n.clone(), if n == name { value.to_owned() } else { v.clone() }));
            from_attributes(pairs, Bytes::new()).unwrap_err().to_string()
        };
        assert!(change("specversion", "0.3").contains("0.3"));
        assert!(change("id", "not a uuid").contains("UUID"));
    }
}
