//! A record as a line of JSON, and back.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use postrider_core::{
    Error, ErrorKind, Result,
    envelope::{Envelope, MessageId},
    headers::{Headers, REPLAY},
    key::OrderingKey,
    log::Record,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A message as it stands in a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// What travelled: everything but `deliver_at`, `expires_at` and `attempts_max`, which are the relay's business.
    pub envelope: Envelope,
    /// When it was enqueued, by the store's clock; RFC 3339.
    pub enqueued_at: String,
    /// The replay that delivered it again, if one did: in the line it stands among the headers, as `postrider-replay`.
    pub replay: Option<String>,
}

#[derive(Serialize)]
struct Written<'a> {
    id: MessageId,
    topic: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    enqueued_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

#[derive(Deserialize)]
struct Read<'a> {
    id: MessageId,
    topic: String,
    name: String,
    key: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    enqueued_at: String,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    payload_base64: Option<String>,
}

/// Appends a record's line to `buffer`, line break included. On an error the buffer is as it was.
pub(crate) fn write_line(buffer: &mut Vec<u8>, record: &Record) -> Result<()> {
    let envelope = &record.envelope;
    let payload = one_line_of_json(&envelope.payload);
    let written = Written {
        id: envelope.id,
        topic: &envelope.topic,
        name: &envelope.name,
        key: envelope.key.as_ref().map(OrderingKey::as_str),
        headers: record.headers()?.into_iter().collect(),
        enqueued_at: record.enqueued_at.to_string(),
        payload_base64: payload.is_none().then(|| BASE64.encode(&envelope.payload)),
        payload,
    };
    serde_json::to_writer(&mut *buffer, &written).expect("strings and checked JSON are JSON");
    buffer.push(b'\n');
    Ok(())
}

/// Reads a line back, with or without its line break.
///
/// ```
/// use postrider_transport_ndjson::read_line;
/// let line = r#"{"id":"01977420-dc00-7000-8000-000000000001","topic":"orders","name":"order.placed",
///                "enqueued_at":"2026-11-15T20:24:41.000250Z","payload":{"cents":990}}"#;
/// assert_eq!(&read_line(line.as_bytes())?.envelope.payload[..], br#"{"cents":990}"#);
/// # Ok::<(), postrider_core::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the line is not a whole message: skip it, it is the torn end of a write that failed.
pub fn read_line(line: &[u8]) -> Result<Line> {
    let mut read: Read<'_> = serde_json::from_slice(line).map_err(|e| corrupt("not a message as JSON").caused_by(e))?;
    let payload = match (read.payload, read.payload_base64) {
        (Some(json), None) => Bytes::copy_from_slice(json.get().as_bytes()),
        (None, Some(text)) => {
            BASE64.decode(text).map_err(|e| corrupt("`payload_base64` is not Base64").caused_by(e))?.into()
        }
        _ => return Err(corrupt("a message has either `payload` or `payload_base64`")),
    };
    let replay = read.headers.remove(REPLAY);
    let headers = match read.headers.is_empty() {
        true => Headers::default(),
        false => Headers::from_encoded(serde_json::to_vec(&read.headers).expect("strings are JSON").into()),
    };
    let envelope = Envelope { id: read.id, headers, ..Envelope::new(&read.topic, &read.name, payload) };
    let envelope = Envelope { key: read.key.map(OrderingKey::from), ..envelope };
    Ok(Line { envelope, enqueued_at: read.enqueued_at, replay })
}

/// The payload as JSON, if it is JSON that can stand in a line byte for byte. Space around it would not survive, a line
/// break inside would end the line, and `null` could not be told from no payload at all.
fn one_line_of_json(payload: &[u8]) -> Option<&RawValue> {
    if payload.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return None;
    }
    let json: &RawValue = serde_json::from_slice(payload).ok()?;
    (json.get().len() == payload.len() && payload != b"null").then_some(json)
}

fn corrupt(message: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, message)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use postrider_core::time::Timestamp;

    use super::*;

    fn line_of(payload: &'static [u8]) -> String {
        let envelope = Envelope::new("orders", "order.placed", payload);
        let (wait, enqueued_at) = (Duration::ZERO, Timestamp::from_micros(0));
        let record = Record { envelope, key: None, enqueued_at, wait, expires_in: None, replay: None, number: 0 };
        let mut buffer = Vec::new();
        write_line(&mut buffer, &record).unwrap();
        let text = String::from_utf8(buffer).unwrap();
        assert_eq!(text.matches('\n').count(), 1, "one line: {text}");
        let back = read_line(text.trim_end().as_bytes()).unwrap();
        assert_eq!((back.envelope, back.enqueued_at), (record.envelope, "1970-01-01T00:00:00.000000Z".to_owned()));
        text
    }

    #[test]
    fn json_stands_as_it_is_and_everything_else_as_base64() {
        for json in [r#"{"b": 1, "a": 2, "a": 3}"#, "42", "\"\u{2028}\"", "true", "12345678901234567890123", "[]"] {
            assert!(line_of(json.as_bytes()).contains(&format!("\"payload\":{json}")), "{json}");
        }
        for other in ["", " 42", "42 ", "null", "{\n}", "{", "nul", "\u{feff}{}"] {
            assert!(line_of(other.as_bytes()).contains("\"payload_base64\":"), "{other:?}");
        }
        assert!(line_of(&[0xff, 0xfe]).contains("\"payload_base64\":\"//4=\""));
    }

    #[test]
    fn what_is_absent_is_left_out() {
        let line = line_of(b"{}");
        for field in ["key", "headers", "payload_base64"] {
            assert!(!line.contains(&format!("\"{field}\"")), "{field} in {line}");
        }
    }

    #[test]
    fn torn_lines_are_refused() {
        let line = line_of(br#"{"n":1}"#);
        for length in 0..line.trim_end().len() {
            let error = read_line(&line.as_bytes()[..length]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "the first {length} bytes");
        }
        let twice = line.trim_end().replace(r#""payload":"#, r#""payload_base64":"AA==","payload":"#);
        assert_eq!(read_line(twice.as_bytes()).unwrap_err().kind(), ErrorKind::Corrupt, "two payloads are none");
    }
}
