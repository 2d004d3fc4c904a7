//! A record as an AMQP message, and back.
//!
//! Which attributes an envelope has is decided in [`postrider_core::cloudevents`]. Here they become headers, named as in the
//! binding of CloudEvents for AMQP 1.0. Headers are bytes to RabbitMQ, so nothing is encoded.

use bytes::Bytes;
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, ShortString},
};
use postrider_core::{
    Result,
    cloudevents::{self, Received},
    envelope::Envelope,
    log::Record,
};

/// What a header with an attribute begins with. The binding allows both; the first is written.
const PREFIXES: [&str; 2] = ["cloudEvents:", "cloudEvents_"];
/// Written to disk before it is confirmed.
const PERSISTENT: u8 = 2;
/// What quorum queues count redeliveries in.
const DELIVERY_COUNT: &str = "x-delivery-count";
/// What the properties take beside the headers and their texts, at most: numbers, lengths, short texts.
const PROPERTIES_BYTES: usize = 1_600;

/// The properties of the message for a record, and about how many bytes they have on the wire.
pub(crate) fn write(record: &Record, source: &str) -> Result<(BasicProperties, usize)> {
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(record.envelope.id.to_string().into())
        .with_timestamp(u64::try_from(record.enqueued_at.as_micros() / 1_000_000).unwrap_or(0));
    if let Ok(name) = ShortString::try_new(&*record.envelope.name) {
        properties = properties.with_type(name);
    }
    let (mut headers, mut bytes) = (FieldTable::default(), PROPERTIES_BYTES);
    for (name, value) in cloudevents::attributes(record, source)? {
        if name == "datacontenttype"
            && let Ok(content_type) = ShortString::try_new(&*value)
        {
            properties = properties.with_content_type(content_type);
            continue;
        }
        let name = format!("{}{name}", PREFIXES[0]);
        bytes += name.len() + value.len() + 6;
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    Ok((properties.with_headers(headers), bytes))
}

/// Reads a message back.
///
/// # Errors
/// [`Invalid`](postrider_core::ErrorKind::Invalid) if it is not a CloudEvent of version 1.0 in headers.
pub fn read(properties: &BasicProperties, payload: Bytes) -> Result<Received> {
    let mut attributes = Vec::new();
    if let Some(content_type) = properties.content_type() {
        attributes.push(("datacontenttype".to_owned(), content_type.to_string()));
    }
    for (name, value) in properties.headers().iter().flatten() {
        let attribute = PREFIXES.iter().find_map(|prefix| name.as_str().strip_prefix(prefix));
        if let Some((attribute, value)) = attribute.zip(text(value)) {
            attributes.push((attribute.to_owned(), value));
        }
    }
    cloudevents::from_attributes(attributes, payload)
}

/// What travelled. What is no CloudEvent is not thrown away: its id follows from its `message-id`. Without one it is a new
/// message each time that it is delivered, because two that look the same need not be the same.
pub(crate) fn envelope(place: &str, properties: &BasicProperties, payload: Bytes) -> Envelope {
    if let Ok(envelope) = read(properties, payload.clone()).and_then(Received::into_envelope) {
        return envelope;
    }
    match properties.message_id() {
        Some(id) => cloudevents::foreign(place, id.as_str(), payload),
        None => Envelope::new(place, place, payload),
    }
}

/// How often a message has been delivered, this time included. Classic queues only know whether it was.
pub(crate) fn attempt(properties: &BasicProperties, redelivered: bool) -> u32 {
    let counted = properties.headers().as_ref().and_then(|headers| headers.inner().get(DELIVERY_COUNT));
    let before = counted.and_then(text).and_then(|count| count.parse().ok()).unwrap_or_else(|| u32::from(redelivered));
    before.saturating_add(1)
}

/// A header's value as text. Other programs may write numbers.
fn text(value: &AMQPValue) -> Option<String> {
    Some(match value {
        AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).ok()?,
        AMQPValue::ShortString(text) => text.to_string(),
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::ShortShortInt(value) => value.to_string(),
        AMQPValue::ShortShortUInt(value) => value.to_string(),
        AMQPValue::ShortInt(value) => value.to_string(),
        AMQPValue::ShortUInt(value) => value.to_string(),
        AMQPValue::LongInt(value) => value.to_string(),
        AMQPValue::LongUInt(value) => value.to_string(),
        AMQPValue::LongLongInt(value) => value.to_string(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_another_program_is_read() {
        let mut headers = FieldTable::default();
        let id = "0197741f-8c2e-7b3a-9d51-0c2f6e1a7b44";
        for (name, value) in [("specversion", "1.0"), ("id", id), ("source", "s"), ("type", "t")] {
            headers.insert(format!("cloudEvents_{name}").into(), AMQPValue::LongString(value.into()));
        }
        headers.insert("cloudEvents_count".into(), AMQPValue::LongInt(3));
        headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(4));
        let properties = BasicProperties::default().with_headers(headers).with_content_type("text/plain".into());
        let received = read(&properties, "x".into()).unwrap();
        assert_eq!((received.envelope.id.to_string(), &*received.envelope.topic), (id.to_owned(), "t"));
        let headers = received.envelope.headers.decode().unwrap();
        assert!(headers.contains(&("count".to_owned(), "3".to_owned())), "{headers:?}");
        assert!(headers.contains(&("content-type".to_owned(), "text/plain".to_owned())), "{headers:?}");
        assert_eq!(attempt(&properties, true), 5);
        assert_eq!(attempt(&BasicProperties::default(), true), 2);
        assert_eq!(attempt(&BasicProperties::default(), false), 1);
    }

    #[test]
    fn what_is_no_event_keeps_its_identity_if_it_has_one() {
        let named = BasicProperties::default().with_message_id("m1".into());
        let id = |properties| envelope("q", properties, "x".into()).id;
        assert_eq!(id(&named), id(&named));
        assert_ne!(id(&BasicProperties::default()), id(&BasicProperties::default()));
    }
}
