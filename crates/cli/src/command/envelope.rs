//! An envelope as people and programs see it. Payloads are shown only where they were asked for.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use postrider::{Envelope, core::time::Timestamp};
use serde_json::{Map, Value, json};

/// The fields of an envelope. A payload that is JSON stands there as it is, under `payload`; any other under
/// `payload_base64`.
pub(super) fn as_json(envelope: &Envelope, payload: bool) -> Map<String, Value> {
    let Envelope { id, topic, name, key, headers, deliver_at, expires_at, attempts_max, .. } = envelope;
    let instant = |at: &Option<Timestamp>| at.map(|at| at.to_string());
    let headers: Map<String, Value> =
        headers.decode().unwrap_or_default().into_iter().map(|(name, value)| (name, value.into())).collect();
    let Value::Object(mut fields) = json!({
        "id": id,
        "topic": topic,
        "name": name,
        "key": key.as_ref().map(ToString::to_string),
        "headers": headers,
        "deliver_at": instant(deliver_at),
        "expires_at": instant(expires_at),
        "attempts_max": attempts_max,
        "payload_bytes": envelope.payload.len(),
    }) else {
        unreachable!("it is written as an object")
    };
    if payload {
        match serde_json::from_slice(&envelope.payload) {
            Ok(value) => fields.insert("payload".to_owned(), value),
            Err(_) => fields.insert("payload_base64".to_owned(), BASE64.encode(&envelope.payload).into()),
        };
    }
    fields
}

/// The same as lines of `name  value`.
pub(super) fn as_lines(envelope: &Envelope, payload: bool) -> Vec<(String, String)> {
    let Envelope { id, topic, name, key, headers, deliver_at, expires_at, attempts_max, .. } = envelope;
    let mut lines = vec![
        ("message".to_owned(), id.to_string()),
        ("topic".to_owned(), topic.to_string()),
        ("name".to_owned(), name.to_string()),
    ];
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            lines.push((name.to_owned(), value));
        }
    };
    add("key", key.as_ref().map(ToString::to_string));
    add("deliver at", deliver_at.map(|at| at.to_string()));
    add("expires at", expires_at.map(|at| at.to_string()));
    add("attempts max", attempts_max.map(|attempts| attempts.to_string()));
    match headers.decode() {
        Ok(headers) => headers.into_iter().for_each(|(name, value)| add(&format!("header {name}"), Some(value))),
        Err(error) => add("headers", Some(error.to_string())),
    }
    add("payload", Some(shown(&envelope.payload, payload)));
    lines
}

fn shown(payload: &[u8], wanted: bool) -> String {
    if !wanted {
        return format!("{} bytes (--payload shows them)", payload.len());
    }
    match std::str::from_utf8(payload) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("base64 {}", BASE64.encode(payload)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_shown_when_it_is_asked_for() {
        let of = |payload: &'static [u8], wanted| as_json(&Envelope::new("t", "n", payload), wanted);
        assert!(!of(b"{}", false).contains_key("payload"));
        assert_eq!(of(b"{\"a\":1}", true)["payload"], json!({ "a": 1 }));
        assert_eq!(of(b"\xff", true)["payload_base64"], json!("/w=="));
        assert_eq!(shown(b"x", false), "1 bytes (--payload shows them)");
        assert_eq!(shown(b"\xff", true), "base64 /w==");
    }
}
