//! What a subscriber does when others interfere: a consumer that is deleted, one that is shared, and how much it takes ahead.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::time::{Duration, Instant};

use async_nats::jetstream::{
    AckKind,
    consumer::{PullConsumer, pull},
};
use futures_util::StreamExt;
use postrider_core::{
    ErrorKind,
    envelope::Envelope,
    transport::{Delivery, Outcome, Publisher, Subscriber},
};
use postrider_testkit::{
    fault::{Proxy, Traffic},
    transport::{PATIENCE, record},
};
use postrider_transport_nats::{Access, NatsPublisher, NatsSubscriber, SubscriberBuilder};
use tokio::{task::yield_now, time::timeout};

use support::{Own, url};

const CONSUMER: &str = "tests";

fn builder(own: &Own) -> SubscriberBuilder {
    NatsSubscriber::builder(Access::new(&url()).unwrap(), &own.name, CONSUMER)
}

/// Publishes messages with these numbers.
async fn publish(own: &Own, numbers: std::ops::Range<usize>) {
    let publisher = NatsPublisher::builder(Access::new(&url()).unwrap()).prefix(&own.name).build().unwrap();
    let batch: Vec<_> = numbers.map(|number| record(&Envelope::new("orders", "n", number.to_string()))).collect();
    assert!(publisher.publish(batch).await.iter().all(|outcome| *outcome == Outcome::Durable));
}

async fn receive(subscriber: &NatsSubscriber, max: u32) -> Vec<Delivery> {
    timeout(PATIENCE, subscriber.receive(max)).await.expect("something is there").unwrap()
}

fn number(delivery: &Delivery) -> usize {
    std::str::from_utf8(&delivery.envelope.payload).unwrap().parse().unwrap()
}

/// Receives and acknowledges so many, one by one; their numbers.
async fn take(subscriber: &NatsSubscriber, count: usize) -> Vec<usize> {
    let mut numbers = Vec::new();
    while numbers.len() < count {
        let delivery = receive(subscriber, 1).await.remove(0);
        subscriber.acknowledge(vec![delivery.receipt]).await.unwrap();
        numbers.push(number(&delivery));
    }
    numbers
}

async fn delete_consumer(own: &Own) {
    let stream = own.jetstream.get_stream(&own.name).await.unwrap();
    stream.delete_consumer(CONSUMER).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_declared_and_deleted_is_made_again_behind_what_was_acknowledged() {
    let own = Own::new().await;
    publish(&own, 0..5).await;
    let declared = || builder(&own).declare(&[], Duration::from_secs(30));
    let first = declared().subscribe().await.unwrap();
    assert_eq!(take(&first, 3).await, [0, 1, 2]);
    drop(first);
    // One that begins now knows what was acknowledged; what comes while the consumer is gone is not left out either.
    let subscriber = declared().subscribe().await.unwrap();
    let waiting = receive(&subscriber, 1).await;
    assert_eq!(number(&waiting[0]), 3);
    delete_consumer(&own).await;
    publish(&own, 5..7).await;
    let mut numbers = Vec::new();
    while numbers.len() < 4 {
        match timeout(PATIENCE, subscriber.receive(1)).await.expect("it comes again") {
            Ok(deliveries) => numbers.extend(deliveries.iter().map(number)),
            Err(error) => assert!(error.is_transient(), "{}", error.chain()),
        }
    }
    // What was fetched ahead over the old consumer comes as well, before or after.
    numbers.sort_unstable();
    numbers.dedup();
    assert!(numbers.iter().all(|number| (3..7).contains(number)), "{numbers:?}: nothing that was acknowledged");
    let mut seen = numbers;
    while !(seen.contains(&3) && seen.contains(&6)) {
        seen.extend(receive(&subscriber, 10).await.iter().map(number));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_others_make_and_delete_is_told_of_and_gone_on_with_when_it_is_back() {
    let own = Own::new().await;
    let make = async || -> PullConsumer {
        let stream = own.jetstream.get_stream(&own.name).await.unwrap();
        let config = pull::Config { durable_name: Some(CONSUMER.to_owned()), ..pull::Config::default() };
        stream.create_consumer(config).await.unwrap()
    };
    make().await;
    publish(&own, 0..1).await;
    let subscriber = builder(&own).subscribe().await.unwrap();
    assert_eq!(take(&subscriber, 1).await, [0]);
    delete_consumer(&own).await;
    let error = loop {
        let received = timeout(PATIENCE, subscriber.receive(1)).await.expect("it is noticed");
        let error = received.expect_err("there is nothing to receive");
        if error.kind() == ErrorKind::NotFound {
            break error.chain();
        }
    };
    assert!(error.contains(CONSUMER) && error.contains(&own.name) && error.contains("declared"), "{error}");
    make().await;
    assert_eq!(take(&subscriber, 1).await, [0], "a consumer that is new begins at the beginning");
}

/// Two that share a consumer see gaps in its numbers all the time. After a lost connection they are not taken for losses, which
/// would cost the whole of `ack_wait`.
#[tokio::test(flavor = "multi_thread")]
async fn who_shares_a_consumer_goes_on_at_once_after_a_lost_connection() {
    let own = Own::new().await;
    let proxy = Proxy::to(url().trim_start_matches("nats://")).await;
    let access = Access::new(&format!("nats://{}", proxy.address())).unwrap();
    // Longer than the patience of this test.
    let shared = NatsSubscriber::builder(access, &own.name, CONSUMER).prefetch(1).declare(&[], 10 * PATIENCE);
    let shared = shared.subscribe().await.unwrap();
    let stream = own.jetstream.get_stream(&own.name).await.unwrap();
    let other: PullConsumer = stream.get_consumer(CONSUMER).await.unwrap();
    // The subscriber has asked for one ahead, so of several the other gets one.
    let other_takes = async || {
        let mut taken = other.batch().max_messages(1).expires(PATIENCE).messages().await.unwrap();
        taken.next().await.unwrap().unwrap().double_ack().await.unwrap();
    };
    publish(&own, 0..1).await;
    assert_eq!(take(&shared, 1).await, [0]);
    publish(&own, 1..4).await;
    other_takes().await;
    assert_eq!(take(&shared, 2).await.len(), 2, "and so it knows of the other");
    let connections = proxy.connections();
    proxy.cut();
    let begun = Instant::now();
    while proxy.connections() == connections {
        assert!(begun.elapsed() < PATIENCE, "the subscriber connects again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    publish(&own, 4..8).await;
    other_takes().await;
    let mut received = 0;
    while received < 2 {
        let deliveries = timeout(PATIENCE, shared.receive(1)).await.expect("it does not wait for what is not missing");
        // The connection that was cut may be told of as an error.
        received += deliveries.map_or(0, |deliveries| deliveries.len());
    }
}

/// While a handler takes its time, the server sends again what waits for it. Nobody is to handle that twice, or a handler that is
/// too slow once would never catch up.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_is_slower_than_the_server_waits_receives_everything_once() {
    const COUNT: usize = 8;
    let own = Own::new().await;
    let subscriber = builder(&own).prefetch(32).declare(&[], Duration::from_secs(1)).subscribe().await.unwrap();
    publish(&own, 0..COUNT).await;
    let first = receive(&subscriber, 1).await.remove(0);
    assert_eq!(number(&first), 0);
    // All of them have been sent once more: as many deliveries again.
    let stream = own.jetstream.get_stream(&own.name).await.unwrap();
    let begun = Instant::now();
    while stream.consumer_info(CONSUMER).await.unwrap().delivered.consumer_sequence < 2 * COUNT as u64 {
        assert!(begun.elapsed() < PATIENCE, "the server does not send again what was not answered in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    subscriber.acknowledge(vec![first.receipt]).await.unwrap();
    assert_eq!(take(&subscriber, COUNT - 1).await, (1..COUNT).collect::<Vec<_>>());
    publish(&own, COUNT..COUNT + 1).await;
    assert_eq!(take(&subscriber, 1).await, [COUNT], "what is newer comes next, and nothing twice");
    // What was left out counts as answered, too.
    let begun = Instant::now();
    while stream.consumer_info(CONSUMER).await.unwrap().num_ack_pending > 0 {
        assert!(begun.elapsed() < PATIENCE, "something is still out");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A program that ends waits for its subscriber, so that the next one does not wait for `ack_wait`.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_closed_subscriber_had_is_there_at_once() {
    let own = Own::new().await;
    // Longer than the patience of this test.
    let declared = || builder(&own).declare(&[], 10 * PATIENCE);
    let first = declared().subscribe().await.unwrap();
    publish(&own, 0..4).await;
    let mut received = 0;
    while received < 4 {
        received += receive(&first, 4).await.len();
    }
    first.close().await.unwrap();
    assert!(first.receive(1).await.is_err(), "a subscriber that is closed receives nothing");
    let next = declared().subscribe().await.unwrap();
    assert_eq!(take(&next, 4).await, [0, 1, 2, 3]);
}

/// What a server has given out and not got back is never more than is fetched ahead and was received.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_fetched_ahead_than_is_asked_for() {
    for prefetch in [1, 2, 3, 32] {
        let own = Own::new().await;
        publish(&own, 0..200).await;
        let subscriber =
            builder(&own).prefetch(prefetch).declare(&[], Duration::from_secs(300)).subscribe().await.unwrap();
        let stream = own.jetstream.get_stream(&own.name).await.unwrap();
        let mut received = 0;
        while received < 120 {
            received += receive(&subscriber, 1).await.len();
            let out = stream.consumer_info(CONSUMER).await.unwrap().num_ack_pending;
            assert!(out <= received + prefetch, "{out} are out, {received} of them received; {prefetch} may be ahead");
        }
    }
}

fn through(proxy: &Proxy, own: &Own) -> SubscriberBuilder {
    let access = Access::new(&format!("nats://{}", proxy.address())).unwrap();
    NatsSubscriber::builder(access, &own.name, CONSUMER)
}

/// A subscriber that crashes gives nothing back. What it had comes before what is newer.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_subscriber_begins_with_what_the_last_one_had() {
    let own = Own::new().await;
    let proxy = Proxy::to(url().trim_start_matches("nats://")).await;
    let ack_wait = Duration::from_secs(5);
    let crashed = through(&proxy, &own).declare(&[], ack_wait).subscribe().await.unwrap();
    publish(&own, 0..4).await;
    let mut received = 0;
    while received < 4 {
        received += receive(&crashed, 4).await.len();
    }
    proxy.set(Traffic::Refusing);
    proxy.cut();
    std::mem::forget(crashed);
    let stream = own.jetstream.get_stream(&own.name).await.unwrap();
    let begun = Instant::now();
    while stream.consumer_info(CONSUMER).await.unwrap().num_waiting > 0 {
        assert!(begun.elapsed() < PATIENCE, "the server does not learn of the crash");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    publish(&own, 4..8).await;
    let next = builder(&own).subscribe().await.unwrap();
    let mut first_arrivals: Vec<usize> = Vec::new();
    while first_arrivals.len() < 8 {
        let number = take(&next, 1).await[0];
        if !first_arrivals.contains(&number) {
            first_arrivals.push(number);
        }
    }
    assert_eq!(first_arrivals, [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// A server counts a delivery also if nobody saw it. What was sent often enough is gone, so what is put back for the sake of order,
/// or got lost on its way, would be missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_gives_messages_up_is_refused_before_it_does() {
    let own = Own::new().await;
    publish(&own, 0..5).await;
    let stream = own.jetstream.get_stream(&own.name).await.unwrap();
    let make = async |max_deliver: i64| -> PullConsumer {
        let durable_name = Some(CONSUMER.to_owned());
        let ack_wait = Duration::from_secs(2);
        stream
            .create_consumer(pull::Config { durable_name, ack_wait, max_deliver, ..Default::default() })
            .await
            .unwrap()
    };
    let declared = || builder(&own).declare(&[], Duration::from_secs(2));
    for max_deliver in [1, 1_000_000] {
        make(max_deliver).await;
        for builder in [builder(&own), builder(&own).shared(), declared()] {
            let error = builder.subscribe().await.err().expect("it is refused");
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let told = error.chain();
            assert!(told.contains(CONSUMER) && told.contains("`max_deliver` to -1"), "{told}");
        }
    }
    // Without a limit nothing is missing, although somebody fetches three and leaves, and what is newer is put back for them.
    let left = make(-1).await.fetch().max_messages(3).messages().await.unwrap();
    assert_eq!(left.count().await, 3);
    let subscriber = declared().subscribe().await.unwrap();
    publish(&own, 5..10).await;
    assert_eq!(take(&subscriber, 10).await, Vec::from_iter(0..10));
}

/// The server hands out what comes again in the order in which it got it back, whatever its order was.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_again_in_another_order_is_given_out_in_its_own() {
    let own = Own::new().await;
    publish(&own, 0..10).await;
    let declared = || builder(&own).declare(&[], Duration::from_secs(2));
    declared().subscribe().await.unwrap().close().await.unwrap();
    let stream = own.jetstream.get_stream(&own.name).await.unwrap();
    let consumer: PullConsumer = stream.get_consumer(CONSUMER).await.unwrap();
    let fetched = consumer.fetch().max_messages(10).messages().await.unwrap();
    let fetched: Vec<_> = fetched.map(Result::unwrap).collect().await;
    assert_eq!(fetched.len(), 10);
    for message in fetched.iter().rev() {
        message.ack_with(AckKind::Nak(None)).await.unwrap();
    }
    publish(&own, 10..12).await;
    let subscriber = declared().subscribe().await.unwrap();
    assert_eq!(take(&subscriber, 12).await, Vec::from_iter(0..12));
}

/// The host is gone without a word: for half a minute the server believes that somebody there waits for messages, and sends
/// them there.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_subscriber_begins_with_what_a_lost_host_had() {
    let own = Own::new().await;
    let proxy = Proxy::to(url().trim_start_matches("nats://")).await;
    let ack_wait = Duration::from_secs(3);
    let lost = through(&proxy, &own).prefetch(8).declare(&[], ack_wait).subscribe().await.unwrap();
    publish(&own, 0..4).await;
    let mut received = 0;
    while received < 4 {
        received += receive(&lost, 4).await.len();
    }
    proxy.set(Traffic::Silent);
    std::mem::forget(lost);
    let stream = own.jetstream.get_stream(&own.name).await.unwrap();
    assert!(stream.consumer_info(CONSUMER).await.unwrap().num_waiting > 0, "the server does not know of the loss");
    let next = builder(&own).subscribe().await.unwrap();
    publish(&own, 4..24).await;
    let mut first_arrivals: Vec<usize> = Vec::new();
    while first_arrivals.len() < 24 {
        let number = take(&next, 1).await[0];
        if !first_arrivals.contains(&number) {
            first_arrivals.push(number);
        }
    }
    assert_eq!(first_arrivals, (0..24).collect::<Vec<_>>());
}

/// Whoever says that it shares a consumer does not wait for what others have.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_said_to_share_a_consumer_begins_at_once() {
    let own = Own::new().await;
    // Longer than the patience of this test.
    let shared = || builder(&own).prefetch(1).declare(&[], 10 * PATIENCE).shared();
    let first = shared().subscribe().await.unwrap();
    publish(&own, 0..1).await;
    assert_eq!(receive(&first, 1).await.len(), 1);
    let second = shared().subscribe().await.unwrap();
    publish(&own, 1..4).await;
    assert_eq!(take(&second, 1).await.len(), 1);
}

/// Some acknowledgements are gone with a connection, and the last one is confirmed over the next.
#[tokio::test]
async fn what_is_acknowledged_does_not_come_again() {
    const COUNT: usize = 400;
    let own = Own::new().await;
    let proxy = Proxy::to(url().trim_start_matches("nats://")).await;
    // Longer than the patience of this test, so that what is out stays out.
    let subscriber = through(&proxy, &own).prefetch(COUNT).timeout(PATIENCE).declare(&[], 10 * PATIENCE);
    let subscriber = subscriber.subscribe().await.unwrap();
    publish(&own, 0..COUNT).await;
    let mut receipts = Vec::new();
    while receipts.len() < COUNT {
        receipts.extend(receive(&subscriber, 100).await.iter().map(|delivery| delivery.receipt));
    }
    proxy.set(Traffic::Silent);
    let mut acknowledging = subscriber.acknowledge(receipts);
    // It gets so far as one turn lets it, and what it has said goes into the network, which swallows it.
    assert!(futures_util::poll!(&mut acknowledging).is_pending());
    for _ in 0..1_000 {
        yield_now().await;
    }
    let connections = proxy.connections();
    proxy.reset();
    let begun = Instant::now();
    while proxy.connections() == connections {
        assert!(begun.elapsed() < PATIENCE, "the subscriber connects again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Not before: what still is in the network would go on its way.
    proxy.set(Traffic::Flowing);
    let answer = timeout(2 * PATIENCE, acknowledging).await.expect("it has a time limit");
    let stream = own.jetstream.get_stream(&own.name).await.unwrap();
    let out = stream.consumer_info(CONSUMER).await.unwrap().num_ack_pending;
    assert!(answer.is_err() || out == 0, "{out} come again that were acknowledged");
}
