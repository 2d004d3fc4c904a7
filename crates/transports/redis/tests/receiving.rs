//! What a subscriber does when servers, networks and other consumers interfere.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use postrider_core::{
    envelope::Envelope,
    transport::{Delivery, Outcome, Publisher, Requeue, Subscriber},
};
use postrider_testkit::{
    fault::{Proxy, Server, Traffic},
    transport::record,
};
use postrider_transport_redis::{Access, RedisPublisher, RedisSubscriber};
use redis::{Value, aio::MultiplexedConnection};
use tokio::time::timeout;

use support::{Own, PATIENCE, program, url};

fn start(folder: &Path) -> Server {
    let folder = folder.display().to_string();
    Server::start(&program(), |port| {
        ["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir", &folder, "--save", ""].map(str::to_owned).to_vec()
    })
}

/// Publishes messages with these numbers, all of them to one stream.
async fn publish(publisher: &RedisPublisher, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let envelope = Envelope::new("orders", "n", number.to_string()).with_key("one");
        assert_eq!(publisher.publish(vec![record(&envelope)]).await, [Outcome::Durable]);
    }
}

fn number(delivery: &Delivery) -> usize {
    std::str::from_utf8(&delivery.envelope.payload).unwrap().parse().unwrap()
}

/// Receives at least one; an outage is told, and is not the end.
async fn receive(subscriber: &RedisSubscriber, max: u32) -> Vec<Delivery> {
    let some = async {
        loop {
            if let Ok(deliveries) = subscriber.receive(max).await {
                return deliveries;
            }
        }
    };
    timeout(PATIENCE, some).await.expect("something is there")
}

async fn replica_of(connection: &mut MultiplexedConnection, host: &str, port: &str) {
    redis::cmd("REPLICAOF").arg(host).arg(port).exec_async(connection).await.unwrap();
}

/// Waits until a server answers a question with a text that has this in it.
async fn answers(connection: &mut MultiplexedConnection, question: &[&str], expected: &str) {
    let begun = Instant::now();
    loop {
        let mut command = redis::cmd(question[0]);
        let answer: redis::RedisResult<Value> = command.arg(&question[1..]).query_async(connection).await;
        if format!("{answer:?}").contains(expected) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{question:?} is not answered with {expected}: {answer:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The connections go on and lead to what was the primary, which says no to everything that writes. The address leads to the
/// next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_became_a_replica_is_left() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (first, second) = (start(one.path()), start(two.path()));
    let (first, second) = (&first.address().to_string(), &second.address().to_string());
    let (old, new) = (Own::on(&format!("redis://{first}")), Own::on(&format!("redis://{second}")));
    let (mut to_old, mut to_new) = (old.connection().await, new.connection().await);
    replica_of(&mut to_new, "127.0.0.1", first.rsplit_once(':').unwrap().1).await;

    let proxy = Proxy::to(first).await;
    let access = Access::new(&format!("redis://{}", proxy.address())).unwrap();
    let publisher = RedisPublisher::builder(access.clone()).declare().prefix(&old.prefix).build().unwrap();
    let stream = format!("{}orders", old.prefix);
    let subscriber = RedisSubscriber::builder(access, "g", [&stream]).declare().subscribe().await.unwrap();
    publish(&publisher, 0..2).await;
    let before = receive(&subscriber, 1).await;
    assert_eq!(before.iter().map(number).collect::<Vec<_>>(), [0]);
    answers(&mut to_new, &["XLEN", &stream], "int(2)").await;
    answers(&mut to_new, &["XPENDING", &stream, "g"], "postrider").await;

    replica_of(&mut to_new, "NO", "ONE").await;
    replica_of(&mut to_old, "127.0.0.1", second.rsplit_once(':').unwrap().1).await;
    proxy.lead_to(second);
    let begun = Instant::now();
    let after = record(&Envelope::new("orders", "n", "2").with_key("one"));
    loop {
        let outcome = publisher.publish(vec![after.clone()]).await.remove(0);
        if outcome == Outcome::Durable {
            break;
        }
        assert!(matches!(outcome, Outcome::Unavailable(_)), "no message pays for a fail-over: {outcome:?}");
        assert!(begun.elapsed() < PATIENCE, "the publisher still speaks to the wrong server: {outcome:?}");
    }
    while let Err(error) = subscriber.acknowledge(vec![before[0].receipt]).await {
        assert!(begun.elapsed() < PATIENCE, "the subscriber still speaks to the wrong server: {}", error.chain());
    }
    let mut rest: Vec<usize> = Vec::new();
    while !rest.contains(&2) {
        rest.extend(receive(&subscriber, 1).await.iter().map(number));
    }
    assert_eq!(rest, [1, 2], "what was acknowledged does not come again");
}

/// A network delivers a read late, over a connection that was given up: the server answers it, and nobody gets the answer.
#[tokio::test(flavor = "multi_thread")]
async fn entries_that_went_astray_come_before_newer_ones() {
    let own = Own::new();
    let access = Access::new(&url()).unwrap();
    let publisher = RedisPublisher::builder(access.clone()).declare().prefix(&own.prefix).build().unwrap();
    let stream = format!("{}orders", own.prefix);
    publish(&publisher, 0..6).await;
    // Longer than the patience of this test.
    let builder = RedisSubscriber::builder(access, "g", [&stream]).prefetch(2).claim_after(10 * PATIENCE);
    let subscriber = builder.timeout(PATIENCE).declare().subscribe().await.unwrap();
    let mut connection = own.connection().await;
    // The subscriber has as many as it may have, and asks for no more.
    answers(&mut connection, &["XPENDING", &stream, "g"], "[int(2)").await;
    let mut late = redis::cmd("XREADGROUP");
    late.arg("GROUP").arg("g").arg("postrider").arg("COUNT").arg(2).arg("STREAMS").arg(&stream).arg(">");
    late.exec_async(&mut connection).await.unwrap();
    let mut numbers: Vec<usize> = Vec::new();
    while numbers.len() < 6 {
        let deliveries = receive(&subscriber, 1).await;
        numbers.extend(deliveries.iter().map(number));
        assert_eq!(deliveries[0].attempt, 1);
        subscriber.acknowledge(deliveries.iter().map(|delivery| delivery.receipt).collect()).await.unwrap();
    }
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
    redis::cmd("DEL").arg(&stream).exec_async(&mut connection).await.unwrap();
}

/// The reader is gone with its runtime: whoever receives is told so, and does not wait for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_whose_reader_has_ended_says_so() {
    let own = Own::new();
    let stream = format!("{}orders", own.prefix);
    let elsewhere = tokio::runtime::Runtime::new().unwrap();
    let builder = RedisSubscriber::builder(Access::new(&url()).unwrap(), "g", [&stream]).declare();
    let subscriber = elsewhere.spawn(builder.subscribe()).await.unwrap().unwrap();
    elsewhere.shutdown_background();
    let received = timeout(PATIENCE, subscriber.receive(1)).await.expect("it does not wait for ever");
    assert!(received.unwrap_err().is_transient());
    redis::cmd("DEL").arg(&stream).exec_async(&mut own.connection().await).await.unwrap();
}

/// What is taken over from others is looked up in two steps. What the caller acknowledges in between is done with.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_does_not_come_again_while_others_are_taken_over() {
    let own = Own::new();
    let proxy = Proxy::to(url().trim_start_matches("redis://").split('/').next().unwrap()).await;
    proxy.set(Traffic::Delayed(Duration::from_millis(3)));
    let publisher = RedisPublisher::builder(Access::new(&url()).unwrap()).declare().prefix(&own.prefix);
    let publisher = publisher.build().unwrap();
    let batch: Vec<_> = (0..400).map(|i| record(&Envelope::new("orders", "n", i.to_string()))).collect();
    assert!(publisher.publish(batch).await.iter().all(|outcome| *outcome == Outcome::Durable));
    let stream = format!("{}orders", own.prefix);
    let access = Access::new(&format!("redis://{}", proxy.address())).unwrap();
    // Everything that is out is looked up again all the time.
    let builder = RedisSubscriber::builder(access, "g", [&stream]).prefetch(8).claim_after(Duration::from_millis(1));
    let subscriber = builder.timeout(PATIENCE).declare().subscribe().await.unwrap();
    let mut times: BTreeMap<usize, usize> = BTreeMap::new();
    while times.len() < 400 {
        let deliveries = receive(&subscriber, 2).await;
        for delivery in &deliveries {
            *times.entry(number(delivery)).or_default() += 1;
        }
        subscriber.acknowledge(deliveries.iter().map(|delivery| delivery.receipt).collect()).await.unwrap();
    }
    times.retain(|_, times| *times > 1);
    assert!(times.is_empty(), "acknowledged, and received again: {times:?}");
    redis::cmd("DEL").arg(&stream).exec_async(&mut own.connection().await).await.unwrap();
}

/// A handler that puts everything off until later has no more in memory than was agreed.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_that_has_as_many_as_it_may_have_reads_no_more() {
    let own = Own::new();
    let stream = format!("{}orders", own.prefix);
    let access = Access::new(&url()).unwrap();
    let publisher = RedisPublisher::builder(access.clone()).declare().prefix(&own.prefix).build().unwrap();
    publish(&publisher, 0..50).await;
    let builder = RedisSubscriber::builder(access, "g", [&stream]).prefetch(4).out_max(10);
    let subscriber = builder.declare().subscribe().await.unwrap();
    let mut held = Vec::new();
    for expected in 0..10 {
        let delivery = receive(&subscriber, 1).await.remove(0);
        assert_eq!(number(&delivery), expected);
        if expected < 8 {
            subscriber.reject(delivery.receipt, Requeue::After(10 * PATIENCE)).await.unwrap();
        } else {
            held.push(delivery.receipt);
        }
    }
    // Long enough for many reads: there are forty more entries, and one who receives.
    let more = timeout(Duration::from_secs(3), subscriber.receive(1)).await;
    assert!(more.is_err(), "{more:?}");
    let mut connection = own.connection().await;
    answers(&mut connection, &["XPENDING", &stream, "g"], "[int(10)").await;
    subscriber.acknowledge(vec![held.remove(0)]).await.unwrap();
    assert_eq!(number(&receive(&subscriber, 1).await[0]), 10, "there is room for one more");
    subscriber.reject(held.remove(0), Requeue::Never).await.unwrap();
    assert_eq!(number(&receive(&subscriber, 1).await[0]), 11, "and for another");
    redis::cmd("DEL").arg(&stream).exec_async(&mut connection).await.unwrap();
}

/// What waits with one consumer of a group, for as long as it wants, is not taken over by another before its time.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_later_is_left_to_the_consumer_that_has_it() {
    let own = Own::new();
    let stream = format!("{}orders", own.prefix);
    let consumer = |name: &str| {
        let access = Access::new(&url()).unwrap();
        RedisSubscriber::builder(access, "g", [&stream]).consumer(name).claim_after(Duration::from_secs(6)).declare()
    };
    let publisher =
        RedisPublisher::builder(Access::new(&url()).unwrap()).declare().prefix(&own.prefix).build().unwrap();
    publish(&publisher, 0..1).await;
    let has = consumer("has").subscribe().await.unwrap();
    let delivery = receive(&has, 1).await.remove(0);
    let other = consumer("other").subscribe().await.unwrap();
    // More than three times as long as others wait.
    has.reject(delivery.receipt, Requeue::After(Duration::from_secs(20))).await.unwrap();
    tokio::select! {
        again = receive(&has, 1) => assert_eq!(number(&again[0]), 0),
        taken = receive(&other, 1) => panic!("another has taken it over: {taken:?}"),
    }
}
