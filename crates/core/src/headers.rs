//! Headers: small text pairs beside the payload.
//!
//! They are encoded once, at enqueue, as a JSON object (so that a service in any language can write them with SQL), kept
//! as bytes through log and relay, and decoded only by a transport that needs them. No headers are no bytes.
//!
//! Names are lower case: letters, digits, `-`, `_`, `.`. Names that begin with `postrider-` are ours.

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};

/// Correlates all messages of one story.
pub const CORRELATION_ID: &str = "correlation-id";
/// The id of the message that caused this one.
pub const CAUSATION_ID: &str = "causation-id";
/// Media type of the payload; `application/json` where absent.
pub const CONTENT_TYPE: &str = "content-type";
/// W3C trace context, captured at enqueue.
pub const TRACEPARENT: &str = "traceparent";
/// W3C trace state, captured at enqueue.
pub const TRACESTATE: &str = "tracestate";
/// Set by the relay on what a replay delivers again: the replay's name.
pub const REPLAY: &str = "postrider-replay";
/// Set by a test of a route on the one message that it sends: the route's name.
pub const PROBE: &str = "postrider-probe";
/// Names that begin so cannot be set by an application.
pub const RESERVED_PREFIX: &str = "postrider-";

/// Encoded headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Bytes);

impl Headers {
    /// Encodes pairs in the order given; a repeated name keeps its last value.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if a name or value breaks the rules above; a value must not contain control characters.
    pub fn new<N: AsRef<str>, V: AsRef<str>>(pairs: impl IntoIterator<Item = (N, V)>) -> Result<Self> {
        let mut map = serde_json::Map::new();
        for (name, value) in pairs {
            check(name.as_ref(), value.as_ref())?;
            map.insert(name.as_ref().to_owned(), value.as_ref().into());
        }
        if map.is_empty() {
            return Ok(Self::default());
        }
        let bytes = serde_json::to_vec(&map).expect("a map of strings is JSON");
        Ok(Self(bytes.into()))
    }

    /// Takes what a store has kept. Nothing is checked until it is decoded.
    #[must_use]
    pub fn from_encoded(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// The bytes to store: a JSON object, or none.
    #[must_use]
    pub fn encoded(&self) -> &Bytes {
        &self.0
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All pairs, sorted by name. Values that are not text (possible when SQL wrote them) appear as their JSON.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the stored bytes are not a JSON object.
    pub fn decode(&self) -> Result<Vec<(String, String)>> {
        if self.0.is_empty() {
            return Ok(Vec::new());
        }
        let map: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&self.0)
            .map_err(|e| Error::new(ErrorKind::Corrupt, "headers are not a JSON object").caused_by(e))?;
        let text = |value| match value {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        Ok(map.into_iter().map(|(name, value)| (name, text(value))).collect())
    }

    /// The value of one header.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn get(&self, name: &str) -> Result<Option<String>> {
        Ok(self.decode()?.into_iter().find(|(n, _)| n == name).map(|(_, value)| value))
    }
}

fn check(name: &str, value: &str) -> Result<()> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    if name.is_empty() || !name.bytes().all(allowed) {
        return Err(Error::invalid("header name must be lower-case letters, digits, `-`, `_` or `.`")
            .with("header", name.escape_debug()));
    }
    if name.starts_with(RESERVED_PREFIX) {
        return Err(Error::invalid("header names that begin with `postrider-` are reserved").with("header", name));
    }
    if value.chars().any(char::is_control) {
        return Err(Error::invalid("header value contains a control character").with("header", name));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_survive_encoding() {
        let headers = Headers::new([("tenant", "größe \"42\""), ("a", "")]).unwrap();
        let back = Headers::from_encoded(headers.encoded().clone()).decode().unwrap();
        assert_eq!(back, [("a".to_owned(), String::new()), ("tenant".to_owned(), "größe \"42\"".to_owned())]);
        assert_eq!(headers.get("tenant").unwrap().as_deref(), Some("größe \"42\""));
        assert!(Headers::new::<&str, &str>([]).unwrap().is_empty());
    }

    #[test]
    fn a_line_break_cannot_be_smuggled_in() {
        for (name, value) in [("a", "x\r\ny"), ("a\nb", "x"), ("", "x"), ("Upper", "x"), ("postrider-replay", "x")] {
            assert_eq!(Headers::new([(name, value)]).unwrap_err().kind(), ErrorKind::Invalid, "{name:?} {value:?}");
        }
    }

    #[test]
    fn values_that_sql_wrote_as_numbers_are_readable() {
        let headers = Headers::from_encoded(Bytes::from_static(br#"{"n": 7}"#));
        assert_eq!(headers.get("n").unwrap().as_deref(), Some("7"));
        let broken = Headers::from_encoded(Bytes::from_static(b"[1]"));
        assert_eq!(broken.decode().unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
