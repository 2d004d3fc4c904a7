//! The attributes of a span, by the semantic conventions for messaging. They are still in development: should a name
//! move, it moves here.

use opentelemetry::KeyValue;
use postrider::core::{headers::CORRELATION_ID, log::RecordRef};

const SYSTEM: &str = "messaging.system";
const OPERATION_NAME: &str = "messaging.operation.name";
const OPERATION_TYPE: &str = "messaging.operation.type";
const DESTINATION: &str = "messaging.destination.name";
const BATCH_COUNT: &str = "messaging.batch.message_count";
const CONVERSATION_ID: &str = "messaging.message.conversation_id";
pub(super) const MESSAGE_ID: &str = "messaging.message.id";
const SERVER_ADDRESS: &str = "server.address";
const SERVER_PORT: &str = "server.port";
pub(super) const ERROR_TYPE: &str = "error.type";
/// Ours: the conventions know no routes.
const ROUTE: &str = "postrider.route";

/// What the publishes of one route have in common.
pub(super) struct Common {
    pub(super) route: String,
    pub(super) system: &'static str,
    /// Host and port of a URL that has them.
    pub(super) server: Option<(String, u16)>,
}

/// The name of the span, and its attributes.
pub(super) fn of(common: &Common, batch: &[RecordRef]) -> (String, Vec<KeyValue>) {
    let mut attributes = vec![
        KeyValue::new(SYSTEM, common.system),
        KeyValue::new(OPERATION_NAME, "send"),
        KeyValue::new(OPERATION_TYPE, "send"),
        KeyValue::new(ROUTE, common.route.clone()),
    ];
    if let Some((host, port)) = &common.server {
        attributes.push(KeyValue::new(SERVER_ADDRESS, host.clone()));
        attributes.push(KeyValue::new(SERVER_PORT, i64::from(*port)));
    }
    let topic = one_topic(batch);
    attributes.extend(topic.map(|topic| KeyValue::new(DESTINATION, topic.to_owned())));
    match batch {
        [record] => {
            attributes.push(KeyValue::new(MESSAGE_ID, record.envelope.id.to_string()));
            let correlation = record.envelope.headers.get(CORRELATION_ID).ok().flatten();
            attributes.extend(correlation.map(|id| KeyValue::new(CONVERSATION_ID, id)));
        }
        _ => attributes.push(KeyValue::new(BATCH_COUNT, i64::try_from(batch.len()).unwrap_or(i64::MAX))),
    }
    // A batch of several topics goes to all of them; what they have in common is the route.
    (format!("send {}", topic.unwrap_or(&common.route)), attributes)
}

fn one_topic(batch: &[RecordRef]) -> Option<&str> {
    let first = batch.first()?;
    batch.iter().all(|record| record.envelope.topic == first.envelope.topic).then_some(&*first.envelope.topic)
}

/// Host and port of an HTTP URL, and nothing else of it: a path may be a secret.
pub(super) fn server(url: &str) -> Option<(String, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let authority = authority.rsplit('@').next()?;
    let usual = if scheme == "https" { 443 } else { 80 };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
        _ => (authority, usual),
    };
    (!host.is_empty()).then(|| (host.trim_matches(['[', ']']).to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_host_and_port_and_nothing_else() {
        let cases = [
            ("https://hooks.example.com/secret", Some(("hooks.example.com", 443))),
            ("http://user:secret@[::1]:8080/x", Some(("::1", 8080))),
            ("http://[::1]/x", Some(("::1", 80))),
            ("http://localhost:81?x", Some(("localhost", 81))),
            ("file:/tmp/x", None),
            ("stdout", None),
        ];
        for (url, expected) in cases {
            assert_eq!(server(url), expected.map(|(host, port)| (host.to_owned(), port)), "{url}");
        }
    }
}
