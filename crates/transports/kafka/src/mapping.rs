//! A record as a record of Kafka, and back: the binary mode of CloudEvents, as its binding for Kafka says.
//!
//! Which attributes an envelope has is decided in [`postrider_core::cloudevents`]. Here they become record headers `ce_…`,
//! as UTF-8, and the payload becomes the value.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use postrider_core::{
    Error, Result,
    cloudevents::{self, Received},
    envelope::Envelope,
    key::OrderingKey,
    log::Record,
    parked::Cause,
};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};

/// What a header with an attribute begins with.
const PREFIX: &str = "ce_";
/// Where the type of the data stands.
const CONTENT_TYPE: &str = "content-type";
/// The longest name of a topic.
const TOPIC_MAX: usize = 249;

/// Whether Kafka has topics of that name.
pub(crate) fn check_topic(name: &str) -> Result<(), Cause> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.chars().all(fine) && (1..=TOPIC_MAX).contains(&name.len()) && name != "." && name != ".." {
        return Ok(());
    }
    let shown: String = name.escape_debug().take(80).collect();
    Err(Cause::new(
        "bad-topic",
        format!(
            "no topic of Kafka can be called {shown}: a name has up to {TOPIC_MAX} letters, digits, `.`, `_` and `-`; \
             name one topic for the whole route, or enqueue under another"
        ),
    ))
}

/// The record headers of a record.
pub(crate) fn headers(record: &Record, source: &str) -> Result<OwnedHeaders> {
    let attributes = cloudevents::attributes(record, source)?;
    let mut headers = OwnedHeaders::new_with_capacity(attributes.len());
    for (name, value) in &attributes {
        headers = match name.as_str() {
            "datacontenttype" => headers.insert(Header { key: CONTENT_TYPE, value: Some(value) }),
            _ => headers.insert(Header { key: &format!("{PREFIX}{name}"), value: Some(value) }),
        };
    }
    Ok(headers)
}

/// Reads a record of Kafka back.
///
/// # Errors
/// [`Invalid`](postrider_core::ErrorKind::Invalid) if it is not a CloudEvent of version 1.0 in binary mode.
pub fn read(message: &impl Message) -> Result<Received> {
    let mut attributes = Vec::new();
    if let Some(headers) = message.headers() {
        for header in headers.iter() {
            let attribute = match header.key {
                CONTENT_TYPE => "datacontenttype",
                key => match key.strip_prefix(PREFIX) {
                    Some(attribute) => attribute,
                    None => continue,
                },
            };
            let value = std::str::from_utf8(header.value.unwrap_or_default())
                .map_err(|_| Error::invalid("a `ce_` header is not UTF-8").with("header", header.key.escape_debug()))?;
            attributes.push((attribute.to_owned(), value.to_owned()));
        }
    }
    cloudevents::from_attributes(attributes, payload(message))
}

/// What travelled. What is no CloudEvent is not thrown away: the consumer decides.
pub(crate) fn envelope(message: &impl Message) -> Envelope {
    // The client panics where a header's name is not UTF-8, which whoever writes to the topic can make it. That must not
    // end the subscriber: the record would stop the next one as well.
    let event = catch_unwind(AssertUnwindSafe(|| read(message).and_then(Received::into_envelope)));
    if let Ok(Ok(envelope)) = event {
        return envelope;
    }
    let identity = format!("{}/{}", message.partition(), message.offset());
    let mut envelope = cloudevents::foreign(message.topic(), &identity, payload(message));
    envelope.key = message.key().and_then(|key| std::str::from_utf8(key).ok()).map(OrderingKey::from);
    envelope
}

/// A record without a value, which Kafka has for deletions, is one with an empty one.
fn payload(message: &impl Message) -> Bytes {
    Bytes::copy_from_slice(message.payload().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use rdkafka::{Timestamp, message::OwnedMessage};

    use super::*;

    #[test]
    fn names_of_topics_are_those_of_kafka() {
        for fine in ["a", "order.placed", "a_b-C.9", &"x".repeat(249)] {
            assert!(check_topic(fine).is_ok(), "{fine}");
        }
        for bad in ["", ".", "..", "a/b", "größe", "a b", &"x".repeat(250)] {
            assert_eq!(check_topic(bad).unwrap_err().code(), "bad-topic", "{bad}");
        }
    }

    #[test]
    fn what_is_no_event_keeps_its_key_and_is_always_the_same() {
        let plain = |offset| {
            let (payload, key) = (Some(b"hello".to_vec()), Some("größe".as_bytes().to_vec()));
            OwnedMessage::new(payload, key, "plain".to_owned(), Timestamp::NotAvailable, 3, offset, None)
        };
        let read = envelope(&plain(7));
        assert_eq!((&*read.topic, &read.payload[..]), ("plain", &b"hello"[..]));
        assert_eq!(read.key.as_ref().map(OrderingKey::as_str), Some("größe"));
        assert_eq!(read.id, envelope(&plain(7)).id);
        assert_ne!(read.id, envelope(&plain(8)).id);
        let deleted = OwnedMessage::new(None, None, "plain".to_owned(), Timestamp::NotAvailable, 3, 1, None);
        assert!(envelope(&deleted).payload.is_empty());
    }
}
