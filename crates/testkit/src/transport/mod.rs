//! The conformance suites of a transport: what a relay may rely on when it publishes, and a consumer when it receives.
//!
//! A publisher's fixture says how to read back what arrived; a subscriber's says how to subscribe anew. As in
//! [`store`](crate::store), the cases are plain async functions, and
//! [`publisher_conformance!`](crate::publisher_conformance) and
//! [`subscriber_conformance!`](crate::subscriber_conformance) make a test of each.
//!
//! Of an envelope travel its id, topic, name, key, headers and payload. What is left (when to deliver, when it expires, how
//! often to try) is the relay's business and stays behind.

pub mod publisher;
pub mod subscriber;

mod cases;

use std::{sync::Arc, time::Duration};

use postrider_core::{
    BoxFuture,
    envelope::{Envelope, MessageId},
    key::OrderingKey,
    log::{Record, RecordRef},
    time::Timestamp,
    transport::{Outcome, Publisher, Subscriber},
};

/// A destination that is fresh, empty, and seen by nobody else, with room for a few thousand messages.
pub trait PublisherFixture: Send + Sync + 'static {
    /// The publisher. Always the same one.
    fn publisher(&self) -> Arc<dyn Publisher>;

    /// Everything that has arrived since the beginning, in the order of arrival.
    fn arrived(&self) -> BoxFuture<'_, Vec<Arrived>>;
}

/// A message as it came out at the other end.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// What travelled.
    pub envelope: Envelope,
    /// The replay that delivered it again, if one did.
    pub replay: Option<String>,
}

/// A destination that can also be received from.
pub trait SubscriberFixture: Send + Sync + 'static {
    /// The publisher. Always the same one.
    fn publisher(&self) -> Arc<dyn Publisher>;

    /// A new subscriber. The suite drops one before it asks for the next.
    fn subscribe(&self) -> BoxFuture<'_, Arc<dyn Subscriber>>;
}

/// Longer than anything here takes on the slowest machine, a broker that waits twice before it gives something out again
/// included.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// An envelope as a record of the log.
#[must_use]
pub fn record(envelope: &Envelope) -> RecordRef {
    RecordRef::single(Record {
        key: envelope.key.as_ref().map(OrderingKey::hash),
        envelope: envelope.clone(),
        enqueued_at: Timestamp::from_micros(1_794_774_281_000_250),
        wait: Duration::ZERO,
        expires_in: None,
        replay: None,
        number: 0,
    })
}

/// Cuts envelopes into batches as the engine does: at most `size` in a batch, messages of one key next to each other, no
/// more than `run_max` of them, and none before an earlier one of its key.
#[must_use]
pub fn batches(envelopes: &[Envelope], size: usize, run_max: u32) -> Vec<Vec<Envelope>> {
    let mut left: Vec<Envelope> = envelopes.to_vec();
    let mut batches = Vec::new();
    while !left.is_empty() {
        let mut groups: Vec<Vec<Envelope>> = Vec::new();
        let (mut taken, mut rest) = (0, Vec::new());
        for envelope in left {
            let group = groups.iter().position(|group| group[0].key.is_some() && group[0].key == envelope.key);
            match group {
                _ if taken == size => rest.push(envelope),
                Some(group) if groups[group].len() < run_max as usize => {
                    groups[group].push(envelope);
                    taken += 1;
                }
                Some(_) => rest.push(envelope),
                None => {
                    groups.push(vec![envelope]);
                    taken += 1;
                }
            }
        }
        batches.push(groups.concat());
        left = rest;
    }
    batches
}

/// Publishes one batch, which must be durable as a whole.
///
/// # Panics
/// If an outcome is missing or not durable.
pub async fn publish(publisher: &dyn Publisher, batch: &[Envelope]) {
    let outcomes = publisher.publish(batch.iter().map(record).collect()).await;
    assert_eq!(outcomes.len(), batch.len(), "a batch has one outcome per message");
    for (outcome, envelope) in outcomes.iter().zip(batch) {
        assert_eq!(*outcome, Outcome::Durable, "a working destination takes {}", envelope.id);
    }
}

/// Publishes everything, batch by batch.
pub async fn publish_all(publisher: &dyn Publisher, envelopes: &[Envelope]) {
    for batch in batches(envelopes, 32, publisher.capabilities().run_max) {
        publish(publisher, &batch).await;
    }
}

/// Asserts that what arrived is what was sent, as far as an envelope travels.
///
/// # Panics
/// If it is not.
pub fn assert_travelled(arrived: &Envelope, sent: &Envelope) {
    assert_eq!(arrived.id, sent.id, "the id must arrive as it was");
    let id = sent.id;
    assert_eq!(arrived.topic, sent.topic, "the topic of {id} must arrive as it was");
    assert_eq!(arrived.name, sent.name, "the name of {id} must arrive as it was");
    assert_eq!(arrived.key, sent.key, "the key of {id} must arrive as it was");
    let headers = |envelope: &Envelope| envelope.headers.decode().expect("headers can be decoded");
    assert_eq!(headers(arrived), headers(sent), "the headers of {id} must arrive as they were");
    assert!(
        arrived.payload == sent.payload,
        "the payload of {id} must arrive byte for byte: {} bytes were sent, {} arrived",
        sent.payload.len(),
        arrived.payload.len()
    );
}

/// The ids of one key, in order.
fn of_key(envelopes: &[Envelope], key: &str) -> Vec<MessageId> {
    let of_key = envelopes.iter().filter(|e| e.key.as_ref().map(OrderingKey::as_str) == Some(key));
    of_key.map(|envelope| envelope.id).collect()
}

/// So many envelopes over so many keys, `key-0` and so on.
fn over_keys(count: usize, keys: usize) -> Vec<Envelope> {
    let envelope =
        |i| Envelope::new("orders", "order.placed", format!("{{\"n\":{i}}}")).with_key(format!("key-{}", i % keys));
    (0..count).map(envelope).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_keep_the_order_of_a_key_and_the_limit_of_a_run() {
        let envelopes = over_keys(50, 7);
        for run_max in [1, 3, 100] {
            let cut = batches(&envelopes, 16, run_max);
            for batch in &cut {
                assert!(batch.len() <= 16);
                for key in 0..7 {
                    let run = of_key(batch, &format!("key-{key}"));
                    assert!(run.len() <= run_max as usize);
                    let first = batch.iter().position(|e| Some(e.id) == run.first().copied()).unwrap_or(0);
                    let together: Vec<_> = batch.iter().skip(first).take(run.len()).map(|e| e.id).collect();
                    assert_eq!(together, run, "messages of one key stand next to each other");
                }
            }
            let all = cut.concat();
            for key in 0..7 {
                let key = format!("key-{key}");
                assert_eq!(of_key(&all, &key), of_key(&envelopes, &key));
            }
        }
    }
}
