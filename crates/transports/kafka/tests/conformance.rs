//! Kafka keeps every promise of a transport, on a real server, directly and through a slow network.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::sync::Arc;

use postrider_core::{
    BoxFuture,
    transport::{Publisher, Subscriber},
};
use postrider_testkit::{
    envelopes::{SPECIMENS, specimens},
    transport::{Arrived, PublisherFixture, SubscriberFixture},
};
use postrider_transport_kafka::{Access, KafkaPublisher, KafkaSubscriber};

use support::{Own, slow_url, url};

mod direct {
    use super::*;

    async fn fresh_publisher() -> Arc<dyn PublisherFixture> {
        Arc::new(Topic::new(url(), false).await)
    }

    async fn fresh_subscriber() -> Arc<dyn SubscriberFixture> {
        Arc::new(Topic::new(url(), false).await)
    }

    postrider_testkit::publisher_conformance!(fresh_publisher);
    postrider_testkit::subscriber_conformance!(fresh_subscriber);
}

mod slow {
    use super::*;

    async fn fresh_publisher() -> Arc<dyn PublisherFixture> {
        Arc::new(Topic::new(slow_url(), false).await)
    }

    async fn fresh_subscriber() -> Arc<dyn SubscriberFixture> {
        Arc::new(Topic::new(slow_url(), false).await)
    }

    postrider_testkit::publisher_conformance!(fresh_publisher);
    postrider_testkit::subscriber_conformance!(fresh_subscriber);
}

mod in_transactions {
    use super::*;

    async fn fresh_publisher() -> Arc<dyn PublisherFixture> {
        Arc::new(Topic::new(url(), true).await)
    }

    postrider_testkit::publisher_conformance!(fresh_publisher);
}

/// More than the largest envelope of the suite has.
const MESSAGE_BYTES_MAX: usize = 2 << 20;

#[test]
fn no_envelope_of_the_suite_is_left_out() {
    let envelopes = specimens();
    assert_eq!(envelopes.len(), SPECIMENS);
    assert!(envelopes.iter().all(|envelope| envelope.weight() <= MESSAGE_BYTES_MAX));
}

/// A topic of its own, with one publisher.
struct Topic {
    own: Own,
    publisher: Arc<KafkaPublisher>,
    access: Access,
}

impl Topic {
    async fn new(url: String, transactions: bool) -> Self {
        // Room for the largest envelope of the suite, so that it leaves none out.
        let own = Own::with(&support::url(), &[("max.message.bytes", "4000000")]).await;
        let access = Access::new(&url).unwrap();
        let mut builder =
            KafkaPublisher::builder(access.clone()).topic(&own.topic).message_bytes_max(MESSAGE_BYTES_MAX);
        if transactions {
            builder = builder.transactions(&own.topic);
        }
        Self { own, publisher: Arc::new(builder.build().unwrap()), access }
    }
}

impl PublisherFixture for Topic {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.publisher) as Arc<dyn Publisher>
    }

    fn arrived(&self) -> BoxFuture<'_, Vec<Arrived>> {
        Box::pin(async {
            let events = self.own.events().await.into_iter();
            events.map(|event| Arrived { envelope: event.envelope, replay: event.replay }).collect()
        })
    }
}

impl SubscriberFixture for Topic {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.publisher) as Arc<dyn Publisher>
    }

    fn subscribe(&self) -> BoxFuture<'_, Arc<dyn Subscriber>> {
        Box::pin(async {
            let builder = KafkaSubscriber::builder(self.access.clone(), &self.own.topic, [&self.own.topic]);
            Arc::new(builder.subscribe().await.unwrap()) as Arc<dyn Subscriber>
        })
    }
}
