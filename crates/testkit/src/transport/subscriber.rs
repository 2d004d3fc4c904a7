//! Cases: what a consumer may rely on when it receives.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use postrider_core::{
    envelope::{Envelope, MessageId},
    transport::{Delivery, Receipt, Requeue, Subscriber},
};

use super::{PATIENCE, SubscriberFixture, assert_travelled, of_key, over_keys, publish_all};
use crate::envelopes::specimens;

/// A receive returns at least one delivery and no more than asked for.
pub async fn a_receive_is_bounded(fixture: Arc<dyn SubscriberFixture>) {
    publish_all(&*fixture.publisher(), &over_keys(10, 10)).await;
    let subscriber = fixture.subscribe().await;
    let mut count = 0;
    while count < 10 {
        let deliveries = receive(&*subscriber, 3).await;
        assert!((1..=3).contains(&deliveries.len()), "between 1 and 3, not {}", deliveries.len());
        count += deliveries.len();
        acknowledge(&*subscriber, &deliveries).await;
    }
    assert_eq!(count, 10);
}

/// A receive waits until something arrives.
pub async fn a_receive_waits(fixture: Arc<dyn SubscriberFixture>) {
    let subscriber = fixture.subscribe().await;
    let waiting = tokio::spawn(async move { receive(&*subscriber, 10).await.len() });
    tokio::task::yield_now().await;
    publish_all(&*fixture.publisher(), &over_keys(1, 1)).await;
    assert_eq!(waiting.await.expect("it wakes up"), 1);
}

/// Every envelope arrives as it was.
pub async fn every_envelope_survives(fixture: Arc<dyn SubscriberFixture>) {
    let (publisher, subscriber) = (fixture.publisher(), fixture.subscribe().await);
    // A transport may learn of its server how large a message may be.
    publish_all(&*publisher, &over_keys(1, 1)).await;
    drain(&*subscriber, 1).await;
    let max = publisher.capabilities().message_bytes_max.unwrap_or(usize::MAX);
    let sent: Vec<_> = specimens().into_iter().filter(|envelope| envelope.weight() <= max).collect();
    for chunk in sent.chunks(20) {
        publish_all(&*publisher, chunk).await;
        let arrived = drain(&*subscriber, chunk.len()).await;
        for envelope in chunk {
            let arrived = arrived.iter().find(|arrived| arrived.id == envelope.id);
            assert_travelled(arrived.unwrap_or_else(|| panic!("{} has not arrived", envelope.id)), envelope);
        }
    }
}

/// The messages of a key are received in the order of publishing.
pub async fn a_key_is_received_in_order(fixture: Arc<dyn SubscriberFixture>) {
    let sent = over_keys(200, 4);
    publish_all(&*fixture.publisher(), &sent).await;
    let arrived = drain(&*fixture.subscribe().await, sent.len()).await;
    for key in (0..4).map(|key| format!("key-{key}")) {
        assert_eq!(of_key(&arrived, &key), of_key(&sent, &key), "messages of {key} are received in order");
    }
}

/// A receive that is dropped loses nothing.
pub async fn a_dropped_receive_loses_nothing(fixture: Arc<dyn SubscriberFixture>) {
    let subscriber = fixture.subscribe().await;
    let sent = over_keys(20, 20);
    for envelope in &sent {
        let mut waiting = subscriber.receive(5);
        let ready = futures_util::poll!(&mut waiting).is_ready();
        assert!(!ready, "nothing is there to be received");
        publish_all(&*fixture.publisher(), std::slice::from_ref(envelope)).await;
        drop(waiting);
        let received = drain(&*subscriber, 1).await;
        assert_eq!(ids(&received), [envelope.id], "a receive that was dropped must not take a delivery with it");
    }
}

/// What was acknowledged is not delivered again.
pub async fn an_acknowledged_delivery_is_done(fixture: Arc<dyn SubscriberFixture>) {
    let publisher = fixture.publisher();
    publish_all(&*publisher, &over_keys(5, 5)).await;
    let subscriber = fixture.subscribe().await;
    drain(&*subscriber, 5).await;
    drop(subscriber);
    let last = over_keys(1, 1);
    publish_all(&*publisher, &last).await;
    let next = fixture.subscribe().await;
    assert_eq!(ids(&drain(&*next, 1).await), ids(&last), "acknowledged deliveries do not come again");
}

/// What was neither acknowledged nor rejected comes again, at the latest to the next subscriber.
pub async fn an_unacknowledged_delivery_comes_again(fixture: Arc<dyn SubscriberFixture>) {
    let sent = over_keys(6, 2);
    publish_all(&*fixture.publisher(), &sent).await;
    let subscriber = fixture.subscribe().await;
    let mut first = Vec::new();
    while first.len() < 6 {
        first.extend(receive(&*subscriber, 6).await);
    }
    subscriber.acknowledge(vec![first[0].receipt, first[1].receipt]).await.expect("acknowledge");
    drop(subscriber);
    let next = fixture.subscribe().await;
    let again = drain(&*next, 4).await;
    let expected: Vec<_> = first[2..].iter().map(|delivery| delivery.envelope.clone()).collect();
    for key in ["key-0", "key-1"] {
        assert_eq!(
            of_key(&again, key),
            of_key(&expected, key),
            "unacknowledged deliveries come again, in order per key"
        );
    }
}

/// A delivery that is rejected for good does not come again.
pub async fn a_delivery_rejected_for_good_is_done(fixture: Arc<dyn SubscriberFixture>) {
    let publisher = fixture.publisher();
    publish_all(&*publisher, &over_keys(1, 1)).await;
    let subscriber = fixture.subscribe().await;
    let delivery = receive(&*subscriber, 1).await.remove(0);
    subscriber.reject(delivery.receipt, Requeue::Never).await.expect("reject");
    let next = over_keys(1, 1);
    publish_all(&*publisher, &next).await;
    assert_eq!(ids(&drain(&*subscriber, 1).await), ids(&next), "a delivery rejected for good does not come again");
}

/// A delivery that is rejected for later comes again, not before its time.
pub async fn a_delivery_rejected_for_later_comes_later(fixture: Arc<dyn SubscriberFixture>) {
    let sent = over_keys(1, 1);
    publish_all(&*fixture.publisher(), &sent).await;
    let subscriber = fixture.subscribe().await;
    let later = Duration::from_millis(50);
    for wait in [Duration::ZERO, later] {
        let delivery = receive(&*subscriber, 1).await.remove(0);
        assert_eq!(delivery.envelope.id, sent[0].id);
        let rejected = Instant::now();
        subscriber.reject(delivery.receipt, Requeue::After(wait)).await.expect("reject");
        let again = receive(&*subscriber, 1).await.remove(0);
        assert_eq!(again.envelope.id, sent[0].id, "a delivery rejected for later comes again");
        assert!(rejected.elapsed() >= wait, "not before {wait:?} have passed");
        assert!(again.attempt >= 1, "attempts count from 1");
        // Back into the queue for the next round.
        subscriber.reject(again.receipt, Requeue::After(Duration::ZERO)).await.expect("reject");
    }
}

/// Acknowledging twice, or something unknown, does no harm to others.
pub async fn a_stray_acknowledgement_does_no_harm(fixture: Arc<dyn SubscriberFixture>) {
    let sent = over_keys(2, 2);
    publish_all(&*fixture.publisher(), &sent).await;
    let subscriber = fixture.subscribe().await;
    let first = receive(&*subscriber, 1).await.remove(0);
    acknowledge(&*subscriber, std::slice::from_ref(&first)).await;
    // Whether this is an error is the transport's business.
    drop(subscriber.acknowledge(vec![first.receipt, Receipt(u64::MAX)]).await);
    assert_eq!(drain(&*subscriber, 1).await.len(), 1, "the other delivery still comes");
}

async fn receive(subscriber: &dyn Subscriber, max: u32) -> Vec<Delivery> {
    let received = tokio::time::timeout(PATIENCE, subscriber.receive(max)).await;
    received.expect("something is there, so receive must return").expect("receive")
}

async fn acknowledge(subscriber: &dyn Subscriber, deliveries: &[Delivery]) {
    let receipts = deliveries.iter().map(|delivery| delivery.receipt).collect();
    subscriber.acknowledge(receipts).await.expect("acknowledge");
}

/// Receives and acknowledges exactly so many.
async fn drain(subscriber: &dyn Subscriber, count: usize) -> Vec<Envelope> {
    let mut envelopes = Vec::new();
    while envelopes.len() < count {
        let deliveries = receive(subscriber, 7).await;
        acknowledge(subscriber, &deliveries).await;
        envelopes.extend(deliveries.into_iter().map(|delivery| delivery.envelope));
    }
    assert_eq!(envelopes.len(), count, "more was received than was there to be received");
    envelopes
}

fn ids(envelopes: &[Envelope]) -> Vec<MessageId> {
    envelopes.iter().map(|envelope| envelope.id).collect()
}
