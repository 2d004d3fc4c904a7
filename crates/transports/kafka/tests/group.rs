//! Several subscribers of one group: partitions move between them, and nothing is lost or out of order.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use postrider_core::{
    ErrorKind,
    envelope::Envelope,
    transport::{Outcome, Publisher, Receipt, Requeue, Subscriber},
};
use postrider_testkit::transport::record;
use postrider_transport_kafka::{KafkaPublisher, KafkaSubscriber};
use rdkafka::Message;

use support::{Own, PATIENCE, access, members, subscribed, until};

const KEYS: usize = 12;

async fn publish(own: &Own, numbers: std::ops::Range<usize>) {
    let publisher = KafkaPublisher::builder(access()).topic(&own.topic).build().unwrap();
    for number in numbers {
        let envelope = Envelope::new("orders", "n", number.to_string()).with_key(format!("key-{}", number % KEYS));
        assert_eq!(publisher.publish(vec![record(&envelope)]).await, [Outcome::Durable]);
    }
}

async fn subscribe(own: &Own) -> KafkaSubscriber {
    subscribed(KafkaSubscriber::builder(access(), &own.topic, [&own.topic]).prefetch(8)).await
}

async fn receive(subscriber: &KafkaSubscriber, count: usize) -> Vec<(usize, Receipt)> {
    let (begun, mut received) = (Instant::now(), Vec::new());
    while received.len() < count {
        assert!(begun.elapsed() < PATIENCE, "{} of {count} have come", received.len());
        let some = tokio::time::timeout(PATIENCE, subscriber.receive(1)).await.expect("something is there");
        // A broker that was not to be reached for a moment is told, and is not the end.
        let Ok(some) = some else { continue };
        received.extend(some.iter().map(|delivery| (number(&delivery.envelope), delivery.receipt)));
    }
    received
}

fn number(envelope: &Envelope) -> usize {
    std::str::from_utf8(&envelope.payload).unwrap().parse().unwrap()
}

/// Which member has received which message, in the order in which they were.
type Received = Arc<Mutex<Vec<(usize, usize)>>>;

/// Receives and acknowledges until it is aborted. That a broker was not to be reached for a moment is not the end.
fn member(name: usize, subscriber: KafkaSubscriber, received: &Received) -> tokio::task::JoinHandle<()> {
    let received = Arc::clone(received);
    tokio::spawn(async move {
        loop {
            let Ok(deliveries) = subscriber.receive(5).await else {
                tokio::task::yield_now().await;
                continue;
            };
            for delivery in deliveries {
                received.lock().unwrap().push((name, number(&delivery.envelope)));
                // While partitions move a commit may fail; then the message comes again.
                drop(subscriber.acknowledge(vec![delivery.receipt]).await);
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_move_and_nothing_is_lost_or_out_of_order() {
    let own = Own::new().await;
    let received = Received::default();
    let count = |member: usize| received.lock().unwrap().iter().filter(|(name, _)| *name == member).count();
    let all = || -> BTreeSet<usize> { received.lock().unwrap().iter().map(|(_, number)| *number).collect() };
    let one = member(1, subscribe(&own).await, &received);
    publish(&own, 0..60).await;
    until("the first has received", || count(1) >= 60).await;
    let two = member(2, subscribe(&own).await, &received);
    // More and more, until both have some.
    let mut published = 60;
    while count(2) == 0 {
        publish(&own, published..published + 24).await;
        published += 24;
        assert!(published < 10_000, "the second gets nothing");
    }
    until("both together have everything", || all().len() == published).await;
    one.abort();
    drop(one.await);
    publish(&own, published..published + 60).await;
    published += 60;
    until("the second has the rest", || all().len() == published).await;
    two.abort();
    // First arrivals of every key are in order, whoever has received them.
    let mut last: BTreeMap<usize, usize> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (name, number) in received.lock().unwrap().iter().copied().filter(|(_, number)| seen.insert(*number)) {
        let before = last.insert(number % KEYS, number);
        let key = number % KEYS;
        assert!(before.is_none_or(|before| before < number), "key {key}: {before:?}, then {number} by member {name}");
    }
}

/// One key, so one partition.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_behind_something_that_is_out_comes_again() {
    let own = Own::new().await;
    let publisher = KafkaPublisher::builder(access()).topic(&own.topic).build().unwrap();
    for number in 0..5 {
        let envelope = Envelope::new("orders", "n", number.to_string()).with_key("one");
        assert_eq!(publisher.publish(vec![record(&envelope)]).await, [Outcome::Durable]);
    }
    let subscriber = subscribe(&own).await;
    let received = receive(&subscriber, 5).await;
    let receipts = |which: &[usize]| which.iter().map(|index| received[*index].1).collect::<Vec<_>>();
    subscriber.acknowledge(receipts(&[0, 2, 3])).await.unwrap();
    subscriber.reject(received[4].1, Requeue::Never).await.unwrap();
    drop(subscriber);
    let next = subscribe(&own).await;
    let again: Vec<usize> = receive(&next, 4).await.iter().map(|(number, _)| *number).collect();
    assert_eq!(again, [1, 2, 3, 4], "nothing is skipped, and what is done with at the front does not come again");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_rejected_for_later_is_not_lost_with_its_subscriber() {
    let own = Own::new().await;
    publish(&own, 0..1).await;
    let subscriber = subscribe(&own).await;
    let received = receive(&subscriber, 1).await;
    subscriber.reject(received[0].1, Requeue::After(Duration::from_hours(1))).await.unwrap();
    drop(subscriber);
    let next = subscribe(&own).await;
    assert_eq!(receive(&next, 1).await[0].0, 0);
}

/// More than is read ahead, while nobody receives: the client is paused and served, and goes on afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_that_reads_no_further_goes_on_where_it_was() {
    let own = Own::new().await;
    publish(&own, 0..300).await;
    let subscriber = subscribe(&own).await;
    let mut received: Vec<usize> = Vec::new();
    let first = receive(&subscriber, 1).await;
    received.push(first[0].0);
    until("the partitions are paused", || subscriber.is_paused()).await;
    received.extend(receive(&subscriber, 299).await.iter().map(|(number, _)| *number));
    let all: BTreeSet<usize> = received.iter().copied().collect();
    assert_eq!((all.len(), received.len()), (300, 300), "everything comes, and once");
}

/// The client keeps a pause of a partition that it loses. When the partition is back, its subscriber has long had room again,
/// so nothing else would ever resume it.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_went_while_it_was_paused_is_read_when_it_comes_back() {
    let own = Own::new().await;
    publish(&own, 0..120).await;
    let places: BTreeSet<i32> = own.messages().await.iter().map(Message::partition).collect();
    assert_eq!(places.len(), 3, "every partition has something, so whoever has it shows it");
    let received = Received::default();
    let count = |member: usize| received.lock().unwrap().iter().filter(|(name, _)| *name == member).count();
    let all = || -> BTreeSet<usize> { received.lock().unwrap().iter().map(|(_, number)| *number).collect() };
    let first = subscribe(&own).await;
    until("the first has paused", || first.is_paused()).await;
    let two = member(2, subscribe(&own).await, &received);
    until("the second has got something that was the first's", || count(2) > 0).await;
    let one = member(1, first, &received);
    // The first gets more than it had read ahead, so it has resumed what was left to it.
    until("both together have everything", || all().len() == 120 && count(1) > 16).await;
    two.abort();
    drop(two.await);
    publish(&own, 120..240).await;
    until("the first has the rest, of all partitions", || all().len() == 240).await;
    one.abort();
}

/// Its session would last longer than this test.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_that_was_closed_is_no_member_any_more() {
    let own = Own::new().await;
    publish(&own, 0..2).await;
    let builder = KafkaSubscriber::builder(access(), &own.topic, [&own.topic]).timeout(PATIENCE);
    let subscriber = subscribed(builder.session_timeout(PATIENCE * 2)).await;
    let received = receive(&subscriber, 2).await;
    subscriber.acknowledge(vec![received[0].1]).await.unwrap();
    assert_eq!(members(&own.url, &own.topic).await, 1);
    subscriber.close().await.unwrap();
    assert_eq!(members(&own.url, &own.topic).await, 0, "the group knows that it has left");
    subscriber.close().await.expect("it is closed already");
    let ended = subscriber.receive(1).await.expect_err("nothing comes any more");
    assert_eq!(ended.kind(), ErrorKind::Unavailable);
    assert!(subscriber.acknowledge(vec![received[1].1]).await.is_err(), "nor can anything be answered");
    let next = subscribe(&own).await;
    assert_eq!(receive(&next, 1).await[0].0, received[1].0, "what was out comes again, to the next one");
}
