//! NATS keeps every promise of a transport, on a real server, directly and through a slow network.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{sync::Arc, time::Duration};

use postrider_core::{
    BoxFuture,
    envelope::Envelope,
    transport::{Publisher, Subscriber},
};
use postrider_testkit::{
    envelopes::{SPECIMENS, specimens},
    fault::{Proxy, Traffic},
    transport::{Arrived, PublisherFixture, SubscriberFixture, publish},
};
use postrider_transport_nats::{Access, NatsPublisher, NatsSubscriber};

use support::{Own, url};

mod direct {
    use super::*;

    async fn fresh_publisher() -> Arc<dyn PublisherFixture> {
        Arc::new(Stream::new(None).await)
    }

    async fn fresh_subscriber() -> Arc<dyn SubscriberFixture> {
        Arc::new(Stream::new(None).await)
    }

    postrider_testkit::publisher_conformance!(fresh_publisher);
    postrider_testkit::subscriber_conformance!(fresh_subscriber);
}

mod slow {
    use super::*;

    async fn slow() -> Stream {
        let proxy = Proxy::to(url().trim_start_matches("nats://")).await;
        proxy.set(Traffic::Delayed(Duration::from_millis(1)));
        Stream::new(Some(proxy)).await
    }

    async fn fresh_publisher() -> Arc<dyn PublisherFixture> {
        Arc::new(slow().await)
    }

    async fn fresh_subscriber() -> Arc<dyn SubscriberFixture> {
        Arc::new(slow().await)
    }

    postrider_testkit::publisher_conformance!(fresh_publisher);
    postrider_testkit::subscriber_conformance!(fresh_subscriber);
}

/// The server says how much it takes; the one of the tests takes them all.
#[tokio::test]
async fn no_envelope_of_the_suite_is_left_out() {
    let stream = Stream::new(None).await;
    publish(&*stream.publisher, &[Envelope::new("orders", "order.placed", "{}")]).await;
    let max = stream.publisher.capabilities().message_bytes_max.unwrap();
    let envelopes = specimens();
    assert_eq!(envelopes.len(), SPECIMENS);
    assert!(envelopes.iter().all(|envelope| envelope.weight() <= max), "{max}");
}

/// A stream of its own, with one publisher.
struct Stream {
    own: Own,
    publisher: Arc<NatsPublisher>,
    access: Access,
    _proxy: Option<Proxy>,
}

impl Stream {
    async fn new(proxy: Option<Proxy>) -> Self {
        let own = Own::new().await;
        let url = proxy.as_ref().map_or_else(url, |proxy| format!("nats://{}", proxy.address()));
        let access = Access::new(&url).unwrap();
        let publisher = Arc::new(NatsPublisher::builder(access.clone()).prefix(&own.name).build().unwrap());
        Self { own, publisher, access, _proxy: proxy }
    }
}

impl PublisherFixture for Stream {
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

impl SubscriberFixture for Stream {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.publisher) as Arc<dyn Publisher>
    }

    fn subscribe(&self) -> BoxFuture<'_, Arc<dyn Subscriber>> {
        Box::pin(async {
            let builder = NatsSubscriber::builder(self.access.clone(), &self.own.name, "tests");
            // Shorter than the suite's patience: a message may be on its way to a subscriber that has just been dropped.
            let subscriber = builder.declare(&[], Duration::from_secs(8)).subscribe().await.unwrap();
            Arc::new(subscriber) as Arc<dyn Subscriber>
        })
    }
}
