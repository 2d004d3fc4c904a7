//! A record as the fields of a stream's entry, and back.
//!
//! Which attributes an envelope has is decided in [`postrider_core::cloudevents`]. Here they become fields `ce_…`, and the
//! payload the field `data`. Fields are bytes to Redis, so nothing is encoded.

use bytes::Bytes;
use postrider_core::{
    Error, Result,
    cloudevents::{self, Received},
    envelope::Envelope,
    log::Record,
};
use redis::Cmd;

/// What a field with an attribute begins with.
const PREFIX: &str = "ce_";
/// The field with the payload.
const DATA: &str = "data";

/// A field of an entry: name and value.
pub(crate) type Field = (Vec<u8>, Vec<u8>);

/// The command that adds a record to a stream.
pub(crate) fn write(record: &Record, source: &str, stream: &str, make: bool) -> Result<Cmd> {
    let mut command = redis::cmd("XADD");
    command.arg(stream);
    if !make {
        command.arg("NOMKSTREAM");
    }
    command.arg("*");
    for (name, value) in cloudevents::attributes(record, source)? {
        command.arg(format!("{PREFIX}{name}")).arg(value);
    }
    command.arg(DATA).arg(&record.envelope.payload[..]);
    Ok(command)
}

/// Reads the fields of an entry back.
///
/// # Errors
/// [`Invalid`](postrider_core::ErrorKind::Invalid) if they are not a CloudEvent of version 1.0.
pub fn read(fields: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> Result<Received> {
    let (mut attributes, mut data) = (Vec::new(), Bytes::new());
    for (name, value) in fields {
        if name == DATA.as_bytes() {
            data = value.into();
        } else if let Some(attribute) = name.strip_prefix(PREFIX.as_bytes()) {
            let text =
                |bytes: Vec<u8>| String::from_utf8(bytes).map_err(|_| Error::invalid("a `ce_` field is not UTF-8"));
            attributes.push((text(attribute.to_vec())?, text(value)?));
        }
    }
    cloudevents::from_attributes(attributes, data)
}

/// What travelled. What is no CloudEvent is not thrown away: its payload is the field `data`, or all fields as JSON.
pub(crate) fn envelope(stream: &str, id: &str, fields: &[Field]) -> Envelope {
    if let Ok(envelope) = read(fields.iter().cloned()).and_then(Received::into_envelope) {
        return envelope;
    }
    let data = fields.iter().find(|(name, _)| name == DATA.as_bytes()).map(|(_, value)| value.clone());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let object = || {
        let fields: serde_json::Map<String, serde_json::Value> =
            fields.iter().map(|(name, value)| (text(name), text(value).into())).collect();
        serde_json::Value::Object(fields).to_string().into_bytes()
    };
    cloudevents::foreign(stream, id, data.unwrap_or_else(object).into())
}
