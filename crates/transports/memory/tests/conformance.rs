//! The memory transport keeps every promise of a transport, and a few of its own.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use postrider_core::{
    BoxFuture,
    envelope::Envelope,
    headers::REPLAY,
    transport::{Outcome, Publisher, Subscriber},
};
use postrider_testkit::transport::{Arrived, PublisherFixture, SubscriberFixture, record};
use postrider_transport_memory::{MemorySubscriber, MemoryTransport};

postrider_testkit::publisher_conformance!(fresh_publisher);
postrider_testkit::subscriber_conformance!(fresh_subscriber);

async fn fresh_publisher() -> Arc<dyn PublisherFixture> {
    let transport = MemoryTransport::new(10_000);
    Arc::new(Published { subscriber: transport.subscriber(), transport, arrived: Mutex::default() })
}

async fn fresh_subscriber() -> Arc<dyn SubscriberFixture> {
    Arc::new(Subscribed(MemoryTransport::new(10_000)))
}

struct Published {
    transport: MemoryTransport,
    subscriber: MemorySubscriber,
    arrived: Mutex<Vec<Arrived>>,
}

impl PublisherFixture for Published {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(self.transport.publisher())
    }

    fn arrived(&self) -> BoxFuture<'_, Vec<Arrived>> {
        let mut arrived = self.arrived.lock().expect("nobody panicked");
        // What is durable is in the queue, so whatever there is comes without waiting.
        while let Some(received) = self.subscriber.receive(1_000).now_or_never() {
            for delivery in received.expect("receive") {
                let replay = delivery.envelope.headers.get(REPLAY).expect("readable headers");
                arrived.push(Arrived { envelope: delivery.envelope, replay });
            }
        }
        Box::pin(std::future::ready(arrived.clone()))
    }
}

struct Subscribed(MemoryTransport);

impl SubscriberFixture for Subscribed {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(self.0.publisher())
    }

    fn subscribe(&self) -> BoxFuture<'_, Arc<dyn Subscriber>> {
        Box::pin(async { Arc::new(self.0.subscriber()) as Arc<dyn Subscriber> })
    }
}

#[tokio::test]
async fn a_full_queue_throttles_and_takes_more_once_there_is_room() {
    let transport = MemoryTransport::new(3);
    let (publisher, subscriber) = (transport.publisher(), transport.subscriber());
    let batch: Vec<_> = (0..5).map(|_| Envelope::new("t", "n", "").with_key("a")).collect();
    let outcomes = publisher.publish(batch.iter().map(record).collect()).await;
    let names: Vec<_> = outcomes.iter().map(Outcome::name).collect();
    assert_eq!(names, ["durable", "durable", "durable", "throttled", "throttled"]);
    let first = subscriber.receive(2).await.unwrap();
    let again = publisher.publish(vec![record(&batch[3])]).await;
    assert_eq!(again[0].name(), "throttled", "what is not acknowledged still takes its room");
    subscriber.acknowledge(first.iter().map(|delivery| delivery.receipt).collect()).await.unwrap();
    assert_eq!(publisher.publish(batch[3..].iter().map(record).collect()).await, [Outcome::Durable, Outcome::Durable]);
    assert_eq!(transport.len(), 3);
}

#[tokio::test]
async fn a_second_delivery_counts_its_attempt() {
    let transport = MemoryTransport::new(3);
    transport.publisher().publish(vec![record(&Envelope::new("t", "n", ""))]).await;
    for attempt in 1..4 {
        // Dropped without acknowledging.
        let delivery = transport.subscriber().receive(1).await.unwrap().remove(0);
        assert_eq!(delivery.attempt, attempt);
    }
}

#[tokio::test]
async fn a_waiting_subscriber_is_woken_by_what_another_gives_back() {
    let transport = MemoryTransport::new(3);
    transport.publisher().publish(vec![record(&Envelope::new("t", "n", ""))]).await;
    let (one, two) = (transport.subscriber(), transport.subscriber());
    one.receive(1).await.unwrap();
    let mut waiting = two.receive(1);
    assert!((&mut waiting).now_or_never().is_none());
    drop(one);
    assert_eq!(waiting.await.unwrap()[0].attempt, 2);
}
