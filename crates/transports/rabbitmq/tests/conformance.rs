//! RabbitMQ keeps every promise of a transport, on a real server, directly and through a slow network.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{sync::Arc, time::Duration};

use postrider_core::{
    BoxFuture,
    transport::{Publisher, Subscriber},
};
use postrider_testkit::{
    envelopes::{SPECIMENS, specimens},
    fault::{Proxy, Traffic},
    transport::{Arrived, PublisherFixture, SubscriberFixture},
};
use postrider_transport_rabbitmq::{Access, RabbitmqPublisher, RabbitmqSubscriber};

use support::{Own, address, url};

mod direct {
    use super::*;

    async fn fresh_publisher() -> Arc<dyn PublisherFixture> {
        Arc::new(Queue::new(None).await)
    }

    async fn fresh_subscriber() -> Arc<dyn SubscriberFixture> {
        Arc::new(Queue::new(None).await)
    }

    postrider_testkit::publisher_conformance!(fresh_publisher);
    postrider_testkit::subscriber_conformance!(fresh_subscriber);
}

mod slow {
    use super::*;

    async fn slow() -> Queue {
        let proxy = Proxy::to(&address()).await;
        proxy.set(Traffic::Delayed(Duration::from_millis(1)));
        Queue::new(Some(proxy)).await
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

/// What a publisher takes by default is more than the largest of them.
#[test]
fn no_envelope_of_the_suite_is_left_out() {
    let access = Access::new(&url()).unwrap();
    let publisher = RabbitmqPublisher::builder(access).build().unwrap();
    let max = publisher.capabilities().message_bytes_max.unwrap();
    let envelopes = specimens();
    assert_eq!(envelopes.len(), SPECIMENS);
    assert!(envelopes.iter().all(|envelope| envelope.weight() <= max), "{max}");
}

/// A quorum queue of its own behind an exchange of its own, with one publisher.
struct Queue {
    own: Own,
    publisher: Arc<RabbitmqPublisher>,
    access: Access,
    _proxy: Option<Proxy>,
}

impl Queue {
    async fn new(proxy: Option<Proxy>) -> Self {
        let own = Own::new().await;
        let url = proxy.as_ref().map_or_else(url, |proxy| format!("amqp://{}", proxy.address()));
        let access = Access::new(&url).unwrap();
        let publisher = Arc::new(RabbitmqPublisher::builder(access.clone()).exchange(&own.name).build().unwrap());
        Self { own, publisher, access, _proxy: proxy }
    }
}

impl PublisherFixture for Queue {
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

impl SubscriberFixture for Queue {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.publisher) as Arc<dyn Publisher>
    }

    fn subscribe(&self) -> BoxFuture<'_, Arc<dyn Subscriber>> {
        Box::pin(async {
            let subscriber = RabbitmqSubscriber::builder(self.access.clone(), &self.own.name).subscribe().await;
            Arc::new(subscriber.unwrap()) as Arc<dyn Subscriber>
        })
    }
}
