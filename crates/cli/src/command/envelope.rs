//! An envelope as people and programs see it. Headers and payload may hold what concerns nobody but sender and receiver:
//! they are shown only where they were asked for.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use postrider::{Envelope, core::time::Timestamp};
use serde_json::{Map, Value, json};

/// The fields of an envelope, with `contents` also headers and payload. A payload that is JSON stands there as it is, under
/// `payload`; any other under `payload_base64`.
pub(super) fn as_json(envelope: &Envelope, contents: bool) -> Map<String, Value> {
    let Envelope { id, topic, name, key, headers, deliver_at, expires_at, attempts_max, .. } = envelope;
    let instant = |at: &Option<Timestamp>| at.map(|at| at.to_string());
    let Value::Object(mut fields) = json!({
        "id": id,
        "topic": topic,
        "name": name,
        "key": key.as_ref().map(ToString::to_string),
        "deliver_at": instant(deliver_at),
        "expires_at": instant(expires_at),
        "attempts_max": attempts_max,
        "payload_bytes": envelope.payload.len(),
    }) else {
        unreachable!("it is written as an object")
    };
    if contents {
        let headers: Map<String, Value> =
            headers.decode().unwrap_or_default().into_iter().map(|(name, value)| (name, value.into())).collect();
        fields.insert("headers".to_owned(), headers.into());
        match serde_json::from_slice(&envelope.payload) {
            Ok(value) => fields.insert("payload".to_owned(), value),
            Err(_) => fields.insert("payload_base64".to_owned(), BASE64.encode(&envelope.payload).into()),
        };
    }
    fields
}

/// The same as lines of `name  value`.
pub(super) fn as_lines(envelope: &Envelope, contents: bool) -> Vec<(String, String)> {
    let Envelope { id, topic, name, key, deliver_at, expires_at, attempts_max, .. } = envelope;
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
    lines.extend(contents_as_lines(envelope, contents));
    lines
}

/// Headers and payload alone; how much there is of them, unless they were asked for.
pub(super) fn contents_as_lines(envelope: &Envelope, asked: bool) -> Vec<(String, String)> {
    let mut lines = match envelope.headers.decode() {
        Ok(headers) if asked => {
            headers.into_iter().map(|(name, value)| (format!("header {name}"), value)).collect::<Vec<_>>()
        }
        Ok(headers) if headers.is_empty() => Vec::new(),
        Ok(headers) => vec![("headers".to_owned(), format!("{} (--payload shows them)", headers.len()))],
        Err(error) => vec![("headers".to_owned(), error.to_string())],
    };
    lines.push(("payload".to_owned(), shown(&envelope.payload, asked)));
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
    use postrider::core::headers::Headers;

    use super::*;

    #[test]
    fn headers_are_shown_when_they_are_asked_for() {
        let mut envelope = Envelope::new("t", "n", "{}");
        envelope.headers = Headers::new([("tenant", "7")]).unwrap();
        assert!(!as_json(&envelope, false).contains_key("headers"));
        assert_eq!(as_json(&envelope, true)["headers"], json!({ "tenant": "7" }));
        let line = |asked| as_lines(&envelope, asked).into_iter().find(|(name, _)| name.starts_with("header")).unwrap();
        assert_eq!(line(false), ("headers".to_owned(), "1 (--payload shows them)".to_owned()));
        assert_eq!(line(true), ("header tenant".to_owned(), "7".to_owned()));
    }

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
