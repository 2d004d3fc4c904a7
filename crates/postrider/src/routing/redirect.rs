//! A publisher that publishes under other topics than messages were enqueued under.
//!
//! It stands between a route and its destination. The log keeps the topics as they were enqueued, and routes choose by those;
//! only what the destination makes of a topic (a subject, a stream, a Kafka topic, an attribute) follows from the router. The
//! ordering key stays as it is, because the order was decided by it. A topic that could not have been enqueued under is no
//! topic: the message is rejected, and what follows it in its key does not go before it.

use std::sync::Arc;

use postrider_core::{
    BoxFuture, Result,
    capability::PublisherCapabilities,
    envelope::Envelope,
    key::KeyHash,
    log::{Record, RecordRef},
    parked::Cause,
    topic::check_name,
    transport::{Outcome, Publisher},
};

use super::{About, Router};

/// See the [module](self).
pub(crate) struct Redirect {
    publisher: Arc<dyn Publisher>,
    router: Arc<dyn Router>,
}

impl Redirect {
    pub(crate) fn new(publisher: Arc<dyn Publisher>, router: Arc<dyn Router>) -> Self {
        Self { publisher, router }
    }

    /// The record under its new topic, or why it has none.
    fn redirected(&self, record: RecordRef) -> Result<RecordRef, Cause> {
        let envelope = &record.envelope;
        let key = envelope.key.as_ref().map(postrider_core::key::OrderingKey::as_str);
        let about = About { name: &envelope.name, topic: &envelope.topic, key };
        match self.router.topic(&about) {
            Some(topic) if topic != *envelope.topic => {
                check_name("topic", &topic).map_err(|error| {
                    Cause::new("bad-topic", format!("the route's router makes a topic that cannot be one: {error}"))
                })?;
                let envelope = Envelope { topic: topic.as_str().into(), ..envelope.clone() };
                Ok(RecordRef::single(Record { envelope, ..(*record).clone() }))
            }
            _ => Ok(record),
        }
    }

    /// What goes on to the destination, and what is answered here, each with its place in the batch.
    fn sort(&self, batch: Vec<RecordRef>) -> (Vec<RecordRef>, Vec<(usize, Outcome)>) {
        let (mut going, mut answered) = (Vec::with_capacity(batch.len()), Vec::new());
        // The key of the last record that was rejected. Those of one key stand next to each other.
        let mut held: Option<KeyHash> = None;
        for (index, record) in batch.into_iter().enumerate() {
            let key = record.key;
            if key.is_some() && key == held {
                let cause = Cause::new("held", "a message of the same key before it was rejected");
                answered.push((index, Outcome::Unknown(cause)));
                continue;
            }
            match self.redirected(record) {
                Ok(record) => going.push(record),
                Err(cause) => {
                    held = key;
                    answered.push((index, Outcome::Rejected(cause)));
                }
            }
        }
        (going, answered)
    }
}

impl Publisher for Redirect {
    fn capabilities(&self) -> PublisherCapabilities {
        self.publisher.capabilities()
    }

    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        let (going, answered) = self.sort(batch);
        if answered.is_empty() {
            return self.publisher.publish(going);
        }
        Box::pin(async move {
            let count = going.len();
            let mut outcomes = if count == 0 { Vec::new() } else { self.publisher.publish(going).await };
            // A place for each, or answers would move to other messages.
            outcomes.resize_with(count, || Outcome::Unknown(Cause::new("no-outcome", "the publisher gave no answer")));
            // From the first place to the last, so each lands where it was.
            for (index, outcome) in answered {
                outcomes.insert(index, outcome);
            }
            outcomes
        })
    }

    fn reopen(&self) {
        self.publisher.reopen();
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.publisher.close()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use postrider_testkit::transport::record;

    use super::*;
    use crate::{
        handler::Handler,
        routing::{Naming, Topics},
    };

    #[tokio::test]
    async fn topics_change_and_nothing_else_does() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sees = Arc::clone(&seen);
        let publisher = Handler::new(move |record: RecordRef| {
            sees.lock().unwrap().push(record.envelope.clone());
            async {}
        });
        let topics = Topics::new().map("order.placed", "orders").naming(Naming::Snake).prefix("shop.");
        let redirect = Redirect::new(Arc::new(publisher), Arc::new(topics));
        let sent = [
            Envelope::new("order.placed", "order.placed", "1").with_key("ada"),
            Envelope::new("order.paid", "order.paid", "2"),
            Envelope::new("its.own", "order.paid", "3"),
        ];
        for envelope in &sent {
            assert_eq!(redirect.publish(vec![record(envelope)]).await, [Outcome::Durable]);
        }
        let expected: Vec<Envelope> = sent
            .iter()
            .zip(["orders", "shop.order_paid", "its.own"])
            .map(|(envelope, topic)| Envelope { topic: topic.into(), ..envelope.clone() })
            .collect();
        assert_eq!(*seen.lock().unwrap(), expected);
    }

    #[tokio::test]
    async fn a_topic_that_cannot_be_one_is_rejected_and_its_key_waits() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sees = Arc::clone(&seen);
        let publisher = Handler::new(move |record: RecordRef| {
            sees.lock().unwrap().push(String::from_utf8(record.envelope.payload.to_vec()).unwrap());
            async {}
        });
        let by_name = |about: &About<'_>| (about.name == "bad").then(|| "no spaces".to_owned());
        let redirect = Redirect::new(Arc::new(publisher), Arc::new(by_name));
        let envelope = |name: &str, payload: &'static str, key: &str| Envelope::new("t", name, payload).with_key(key);
        let batch = [
            envelope("good", "1", "a"),
            envelope("bad", "2", "b"),
            envelope("good", "3", "b"),
            envelope("good", "4", "c"),
            Envelope::new("t", "bad", "5"),
            Envelope::new("t", "good", "6"),
        ];
        let outcomes = redirect.publish(batch.iter().map(record).collect()).await;
        let names: Vec<&str> = outcomes.iter().map(Outcome::name).collect();
        assert_eq!(names, ["durable", "rejected", "unknown", "durable", "rejected", "durable"]);
        assert!(
            matches!(&outcomes[1], Outcome::Rejected(cause) if cause.code() == "bad-topic"
            && cause.detail().contains("no spaces")),
            "{outcomes:?}"
        );
        assert_eq!(*seen.lock().unwrap(), ["1", "4", "6"]);
    }
}
