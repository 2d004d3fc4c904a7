//! An envelope as people and programs see it. Headers and payload may hold what concerns nobody but sender and receiver:
//! they are shown only where they were asked for.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use postrider::{
    Envelope,
    core::{admin::StoreAdmin, time::Timestamp},
};
use serde_json::{Map, Value, json};

use crate::exit::{Code, Failure, Outcome};

/// What becomes of headers and payload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Contents {
    /// They were asked for.
    Shown,
    /// They were not; how much there is of them is told.
    Measured,
    /// Whoever looks may not see them.
    Hidden,
}

impl Contents {
    /// What this store shows of them. Whoever asks for what they may not see is refused, for an empty payload would be taken
    /// for the message's own.
    pub(super) async fn of(admin: &dyn StoreAdmin, asked: bool) -> Outcome<Self> {
        match (admin.sees_contents().await?, asked) {
            (true, true) => Ok(Self::Shown),
            (true, false) => Ok(Self::Measured),
            (false, false) => Ok(Self::Hidden),
            (false, true) => Err(Failure::new(
                Code::Refused,
                "this role may not see headers and payloads; ask without them, or connect as the role of the relay",
            )),
        }
    }
}

/// The fields of an envelope, with headers and payload if they are shown. A payload that is JSON stands there as it is, under
/// `payload`; any other under `payload_base64`.
pub(super) fn as_json(envelope: &Envelope, contents: Contents) -> Map<String, Value> {
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
        "payload_bytes": (contents != Contents::Hidden).then_some(envelope.payload.len()),
    }) else {
        unreachable!("it is written as an object")
    };
    if contents == Contents::Shown {
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
pub(super) fn as_lines(envelope: &Envelope, contents: Contents) -> Vec<(String, String)> {
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
pub(super) fn contents_as_lines(envelope: &Envelope, contents: Contents) -> Vec<(String, String)> {
    let asked = match contents {
        Contents::Hidden => return vec![("payload".to_owned(), "not for this role to see".to_owned())],
        Contents::Shown => true,
        Contents::Measured => false,
    };
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
        assert!(!as_json(&envelope, Contents::Measured).contains_key("headers"));
        assert_eq!(as_json(&envelope, Contents::Shown)["headers"], json!({ "tenant": "7" }));
        let line =
            |contents| as_lines(&envelope, contents).into_iter().find(|(name, _)| name.starts_with("header")).unwrap();
        assert_eq!(line(Contents::Measured), ("headers".to_owned(), "1 (--payload shows them)".to_owned()));
        assert_eq!(line(Contents::Shown), ("header tenant".to_owned(), "7".to_owned()));
    }

    #[test]
    fn a_payload_is_shown_when_it_is_asked_for() {
        let of = |payload: &'static [u8], contents| as_json(&Envelope::new("t", "n", payload), contents);
        assert!(!of(b"{}", Contents::Measured).contains_key("payload"));
        assert_eq!(of(b"{\"a\":1}", Contents::Shown)["payload"], json!({ "a": 1 }));
        assert_eq!(of(b"\xff", Contents::Shown)["payload_base64"], json!("/w=="));
        assert_eq!(of(b"", Contents::Measured)["payload_bytes"], json!(0));
        assert_eq!(of(b"", Contents::Hidden)["payload_bytes"], json!(null), "what is not seen is not measured");
        assert_eq!(shown(b"x", false), "1 bytes (--payload shows them)");
        assert_eq!(shown(b"\xff", true), "base64 /w==");
    }
}
