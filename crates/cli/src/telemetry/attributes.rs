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
    /// Host and port of a URL that has them; of several servers, those of the first.
    pub(super) server: Option<(String, Option<u16>)>,
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
        attributes.extend(port.map(|port| KeyValue::new(SERVER_PORT, i64::from(port))));
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

/// The ports that are meant where a URL names none.
const USUAL_PORTS: [(&str, u16); 8] = [
    ("https", 443),
    ("http", 80),
    ("nats", 4222),
    ("amqp", 5672),
    ("amqps", 5671),
    ("redis", 6379),
    ("rediss", 6379),
    ("kafka", 9092),
];

/// Host and port of a URL, and nothing else of it: a path may be a secret. A cluster is known by the first of its servers.
pub(super) fn server(url: &str) -> Option<(String, Option<u16>)> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let authority = authority.rsplit('@').next()?;
    let first = authority.split(',').next()?.trim();
    let (host, port) = match first.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port.parse().ok()?)),
        _ => (first, USUAL_PORTS.iter().find(|(known, _)| *known == scheme).map(|(_, port)| *port)),
    };
    (!host.is_empty()).then(|| (host.trim_matches(['[', ']']).to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_host_and_port_and_nothing_else() {
        let cases = [
            ("https://hooks.example.com/secret", Some(("hooks.example.com", Some(443)))),
            ("http://user:secret@[::1]:8080/x", Some(("::1", Some(8080)))),
            ("http://[::1]/x", Some(("::1", Some(80)))),
            ("http://localhost:81?x", Some(("localhost", Some(81)))),
            ("nats://broker", Some(("broker", Some(4222)))),
            ("nats://a:4333,nats://b:4222", Some(("a", Some(4333)))),
            ("nats://a, nats://b", Some(("a", Some(4222)))),
            ("amqp://rabbit/shop", Some(("rabbit", Some(5672)))),
            ("amqps://rabbit", Some(("rabbit", Some(5671)))),
            ("redis://[::1]/0", Some(("::1", Some(6379)))),
            ("kafka://a,b:19092", Some(("a", Some(9092)))),
            ("kafka://a:9092,b", Some(("a", Some(9092)))),
            ("unheard-of://a", Some(("a", None))),
            ("file:/tmp/x", None),
            ("stdout", None),
        ];
        for (url, expected) in cases {
            assert_eq!(server(url), expected.map(|(host, port)| (host.to_owned(), port)), "{url}");
        }
    }
}
