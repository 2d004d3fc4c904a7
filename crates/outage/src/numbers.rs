//! Messages that are numbers, over a few keys, so that it can be told which are missing and which came too early.

use std::{collections::BTreeMap, time::Duration};

use postrider_core::envelope::Envelope;

pub(crate) const KEYS: usize = 8;
/// Messages that are made at a time.
pub(crate) const ROUND: usize = 80;

/// Longer than a whole scenario takes on the slowest machine, restarts of a broker included, and less than half of what the
/// workshop gives a test program: what goes wrong is told by the step it happened in, not by a program that is ended.
pub(crate) const PATIENCE: Duration = Duration::from_secs(400);

/// What a step gives, unless it takes longer than a whole scenario may.
pub(crate) async fn in_time<T>(step: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(PATIENCE, step).await.ok()
}

/// The message with this number.
pub(crate) fn envelope(number: usize) -> Envelope {
    Envelope::new("orders", "order.placed", number.to_string()).with_key(format!("key-{}", number % KEYS))
}

/// The same, where every message of one key goes to another topic.
pub(crate) fn envelope_of_two_topics(number: usize) -> Envelope {
    let topic = if number % KEYS == ELSEWHERE { "returns" } else { "orders" };
    Envelope { topic: topic.into(), ..envelope(number) }
}

/// The key of which that is so.
const ELSEWHERE: usize = 3;

/// The number of a message.
pub(crate) fn number(envelope: &Envelope) -> usize {
    let text = std::str::from_utf8(&envelope.payload).expect("the payload is a number");
    text.parse().expect("the payload is a number")
}

/// What there is of each key after so many.
pub(crate) fn all(count: usize) -> BTreeMap<String, Vec<usize>> {
    (0..KEYS).map(|key| (format!("key-{key}"), (key..count).step_by(KEYS).collect())).collect()
}

/// First arrivals of each key, in order.
pub(crate) fn first_arrivals<'a>(envelopes: impl Iterator<Item = &'a Envelope>) -> BTreeMap<String, Vec<usize>> {
    let mut arrived: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for envelope in envelopes {
        let number = number(envelope);
        let key = envelope.key.as_ref().expect("every message has a key");
        let line = arrived.entry(key.to_string()).or_default();
        if !line.contains(&number) {
            line.push(number);
        }
    }
    arrived
}
