//! Redis keeps every promise of a transport, on a real server, directly and through a slow network.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use postrider_core::{
    BoxFuture,
    transport::{Publisher, Subscriber},
};
use postrider_testkit::{
    envelopes::{SPECIMENS, specimens},
    fault::{Proxy, Traffic},
    transport::{Arrived, PublisherFixture, SubscriberFixture},
};
use postrider_transport_redis::{Access, RedisPublisher, RedisSubscriber};

use support::{Own, url};

mod direct {
    use super::*;

    async fn fresh_publisher() -> Arc<dyn PublisherFixture> {
        Arc::new(Streams::new(None))
    }

    async fn fresh_subscriber() -> Arc<dyn SubscriberFixture> {
        Arc::new(Streams::new(None))
    }

    postrider_testkit::publisher_conformance!(fresh_publisher);
    postrider_testkit::subscriber_conformance!(fresh_subscriber);
}

mod slow {
    use super::*;

    async fn slow() -> Streams {
        let proxy = Proxy::to(url().trim_start_matches("redis://")).await;
        proxy.set(Traffic::Delayed(Duration::from_millis(1)));
        Streams::new(Some(proxy))
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
    let publisher = RedisPublisher::builder(access).build().unwrap();
    let max = publisher.capabilities().message_bytes_max.unwrap();
    let envelopes = specimens();
    assert_eq!(envelopes.len(), SPECIMENS);
    assert!(envelopes.iter().all(|envelope| envelope.weight() <= max), "{max}");
}

/// Streams of their own, with one publisher.
struct Streams {
    own: Own,
    publisher: Arc<RedisPublisher>,
    access: Access,
    _proxy: Option<Proxy>,
}

impl Streams {
    fn new(proxy: Option<Proxy>) -> Self {
        let own = Own::new();
        let url = proxy.as_ref().map_or_else(url, |proxy| format!("redis://{}", proxy.address()));
        let access = Access::new(&url).unwrap();
        let publisher =
            Arc::new(RedisPublisher::builder(access.clone()).prefix(&own.prefix).declare().build().unwrap());
        Self { own, publisher, access, _proxy: proxy }
    }
}

impl PublisherFixture for Streams {
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

impl SubscriberFixture for Streams {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.publisher) as Arc<dyn Publisher>
    }

    /// To every topic that the suite uses.
    fn subscribe(&self) -> BoxFuture<'_, Arc<dyn Subscriber>> {
        Box::pin(async {
            let mut topics: BTreeSet<String> = specimens().iter().map(|envelope| envelope.topic.to_string()).collect();
            topics.insert("orders".to_owned());
            let streams = topics.iter().map(|topic| format!("{}{topic}", self.own.prefix));
            let builder = RedisSubscriber::builder(self.access.clone(), "tests", streams);
            Arc::new(builder.declare().subscribe().await.unwrap()) as Arc<dyn Subscriber>
        })
    }
}
