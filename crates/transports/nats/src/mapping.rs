//! A record as a NATS message, and back: the binary mode of CloudEvents, as its binding for NATS is being written.
//!
//! Which attributes an envelope has is decided in [`postrider_core::cloudevents`]. Here they become `ce-` headers.

use async_nats::{HeaderMap, jetstream::message::PublishMessage};
use bytes::Bytes;
use postrider_core::{
    Error, Result,
    cloudevents::{self, Received},
    log::Record,
    percent,
};

/// What a header with an attribute begins with.
const PREFIX: &str = "ce-";
/// Where the type of the data stands.
const CONTENT_TYPE: &str = "content-type";

/// The message for a record on a subject.
pub(crate) fn write(record: &Record, source: &str, subject: &str) -> Result<PublishMessage> {
    let mut headers = HeaderMap::new();
    for (name, value) in cloudevents::attributes(record, source)? {
        match name.as_str() {
            "datacontenttype" => headers.insert(CONTENT_TYPE, value),
            _ => headers.insert(format!("{PREFIX}{name}"), percent::encode(&value)),
        }
    }
    let message = PublishMessage::build().headers(headers).payload(record.envelope.payload.clone());
    Ok(message.message_id(identity(record, subject)))
}

/// By what the stream recognises a duplicate, on whichever of its subjects. Streams are often shared: the copy of another
/// route, on another subject, is no duplicate, and what a replay delivers must not be taken for what was delivered a minute
/// ago.
fn identity(record: &Record, subject: &str) -> String {
    let mut identity = record.envelope.id.to_string();
    for part in std::iter::once(subject).chain(record.replay.as_deref()) {
        identity.push('/');
        identity.push_str(&percent::encode(part));
    }
    identity
}

/// Reads a message back.
///
/// # Errors
/// [`Invalid`](postrider_core::ErrorKind::Invalid) if it is not a CloudEvent of version 1.0 in binary mode.
pub fn read(headers: &HeaderMap, payload: Bytes) -> Result<Received> {
    let mut attributes = Vec::new();
    for (name, values) in headers.iter() {
        let Some(value) = values.first() else { continue };
        let name = name.to_string().to_ascii_lowercase();
        if name == CONTENT_TYPE {
            attributes.push(("datacontenttype".to_owned(), value.as_str().to_owned()));
        } else if let Some(attribute) = name.strip_prefix(PREFIX) {
            let value = percent::decode(value.as_str())
                .ok_or_else(|| Error::invalid("a `ce-` header is not UTF-8").with("header", &name))?;
            attributes.push((attribute.to_owned(), value));
        }
    }
    cloudevents::from_attributes(attributes, payload)
}
