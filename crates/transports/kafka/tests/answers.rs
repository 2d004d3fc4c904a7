//! What the cluster says, and the outcome that it becomes.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use postrider_core::{
    envelope::Envelope,
    transport::{Outcome, Publisher, Subscriber},
};
use postrider_testkit::{patience::in_time, transport::record};
use postrider_transport_kafka::{Access, Compression, KafkaPublisher, KafkaSubscriber};
use rdkafka::{
    ClientConfig, Message,
    consumer::{BaseConsumer, Consumer},
    mocking::MockCluster,
    types::{RDKafkaApiKey, RDKafkaRespErr},
};

use support::{Own, PATIENCE, access, fresh_name, messages, url};

async fn publish(publisher: &KafkaPublisher, batch: &[(&str, String)]) -> Vec<String> {
    let batch = batch.iter().map(|(topic, payload)| record(&Envelope::new(topic, "order.placed", payload.clone())));
    publisher.publish(batch.collect()).await.iter().map(shown).collect()
}

async fn publish_one(publisher: &KafkaPublisher, topic: &str) -> String {
    publish(publisher, &[(topic, "x".to_owned())]).await.remove(0)
}

fn shown(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Rejected(cause) | Outcome::Unavailable(cause) | Outcome::Unknown(cause) => {
            format!("{} {}", outcome.name(), cause.code())
        }
        other => other.name().to_owned(),
    }
}

/// How many partitions a topic has; none if there is no such topic.
async fn partitions(topic: &str) -> usize {
    let topic = topic.to_owned();
    let count = move || {
        let servers = url().trim_start_matches("kafka://").to_owned();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", servers).set("allow.auto.create.topics", "false");
        let consumer: BaseConsumer = config.create().unwrap();
        consumer.fetch_metadata(Some(&topic), PATIENCE).unwrap().topics()[0].partitions().len()
    };
    tokio::task::spawn_blocking(count).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_topic_stays_away_is_rejected_and_the_topic_is_not_made() {
    let prefix = fresh_name();
    let publisher = KafkaPublisher::builder(access()).prefix(&prefix).timeout(Duration::from_secs(2)).build().unwrap();
    assert_eq!(publish_one(&publisher, "orders").await, "unavailable no-topic", "somebody may be about to make it");
    let begun = Instant::now();
    let mut outcome = String::new();
    while outcome != "rejected no-topic" {
        assert!(begun.elapsed() < PATIENCE, "{outcome}");
        outcome = publish_one(&publisher, "orders").await;
        assert!(outcome.ends_with(" no-topic"), "{outcome}");
    }
    assert_eq!(
        publish_one(&publisher, "orders").await,
        "rejected no-topic",
        "the others of this topic do not wait again"
    );
    assert_eq!(publish_one(&publisher, "others").await, "unavailable no-topic", "another topic has a time of its own");
    assert_eq!(partitions(&format!("{prefix}orders")).await, 0, "the server would make one by itself");
    assert_eq!(publish_one(&publisher, "a/b").await, "rejected bad-topic");
    let subscriber = KafkaSubscriber::builder(access(), "g", [format!("{prefix}orders")]).subscribe().await;
    assert_eq!(subscriber.err().unwrap().kind(), postrider_core::ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_is_made_when_asked_for_and_left_as_it_is_afterwards() {
    let prefix = fresh_name();
    let builder = KafkaPublisher::builder(access()).prefix(&prefix);
    for count in [2, 5] {
        let publisher = builder.clone().declare(count, None).build().unwrap();
        assert_eq!(publish_one(&publisher, "orders").await, "durable");
    }
    let name = format!("{prefix}orders");
    assert_eq!(partitions(&name).await, 2);
    assert_eq!(messages(&url(), &name).await.len(), 2);
    let publisher = builder.declare(1, Some(7)).build().unwrap();
    assert_eq!(publish_one(&publisher, "others").await, "unavailable declare", "there is one broker, not seven");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_message_that_is_too_large_for_its_topic_spoils_none_of_its_neighbours() {
    let own = Own::with(&url(), &[("max.message.bytes", "3000")]).await;
    let publisher = KafkaPublisher::builder(access()).topic(&own.topic).build().unwrap();
    // In one request they would be larger than the topic takes, although each of them is not.
    let mut batch: Vec<(&str, String)> = (0..40).map(|_| ("orders", "x".repeat(500))).collect();
    batch.insert(20, ("orders", "y".repeat(5_000)));
    let outcomes = publish(&publisher, &batch).await;
    for (index, outcome) in outcomes.iter().enumerate() {
        assert_eq!(outcome, if index == 20 { "rejected too-large" } else { "durable" }, "message {index}");
    }
    assert_eq!(own.messages().await.len(), 40);
    assert_eq!(publish_one(&publisher, "orders").await, "durable", "the publisher goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_deleted_is_waited_for() {
    let own = Own::new().await;
    let timeout = Duration::from_secs(2);
    let builder = KafkaPublisher::builder(access()).timeout(timeout);
    // One topic for everything, and one that the message names itself.
    let publishers = [builder.clone().topic(&own.topic).build().unwrap(), builder.build().unwrap()];
    for publisher in &publishers {
        assert_eq!(publish_one(publisher, &own.topic).await, "durable");
    }
    own.delete().await;
    for publisher in &publishers {
        let (begun, mut outcomes) = (Instant::now(), Vec::new());
        // For longer than the time after which a message would have to pay.
        while outcomes.last().map(String::as_str) != Some("unavailable no-topic") || begun.elapsed() < timeout * 2 {
            outcomes.push(publish_one(publisher, &own.topic).await);
            assert!(begun.elapsed() < PATIENCE, "{outcomes:?}");
        }
        let bad = |outcome: &String| outcome == "durable" || outcome.starts_with("rejected");
        assert!(!outcomes.iter().any(bad), "{outcomes:?}");
    }
    own.create().await;
    let begun = Instant::now();
    for publisher in &publishers {
        while publish_one(publisher, &own.topic).await != "durable" {
            assert!(begun.elapsed() < PATIENCE, "the topic is there again");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_not_there_is_unavailable() {
    // Bound and not listening: the port is ours and refuses connections.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let access = Access::new(&format!("kafka://{}", socket.local_addr().unwrap())).unwrap();
    let publisher = KafkaPublisher::builder(access.clone()).build().unwrap();
    assert_eq!(publish_one(&publisher, "orders").await, "unavailable connect");
    assert_eq!(publish_one(&publisher, "orders").await, "unavailable connect");
    assert!(KafkaSubscriber::builder(access, "g", ["t"]).subscribe().await.err().unwrap().is_transient());
}

/// The client's own queue is full: no message is at fault, and there is room again in a moment.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_client_has_no_room_for_is_throttled_and_goes_through_later() {
    let own = Own::new().await;
    let small = access().property("queue.buffering.max.messages", "10");
    // What the client has it keeps for so long, so its queue is full before anything is sent.
    let publisher = KafkaPublisher::builder(small).topic(&own.topic).linger(Duration::from_millis(200));
    let publisher = publisher.build().unwrap();
    let mut left: Vec<_> = (0..50).map(|_| record(&Envelope::new("orders", "n", "x"))).collect();
    let (begun, mut throttled) = (Instant::now(), 0);
    while !left.is_empty() {
        assert!(begun.elapsed() < PATIENCE, "{} of them do not go through", left.len());
        let mut outcomes = publisher.publish(left.clone()).await.into_iter();
        left.retain(|_| match outcomes.next() {
            Some(Outcome::Durable) => false,
            Some(Outcome::Throttled(wait)) => {
                assert!(!wait.is_zero());
                throttled += 1;
                true
            }
            other => panic!("{other:?}"),
        });
    }
    assert!(throttled > 0, "there is room for ten");
    assert_eq!(own.messages().await.len(), 50, "each is there once");
}

/// As Kafka's own clients do it; the hashes are from its tests.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_the_record_s_key_and_chooses_the_partition_as_everywhere() {
    let own = Own::new().await;
    let publisher = KafkaPublisher::builder(access()).topic(&own.topic).compression(Compression::Zstd).build().unwrap();
    let hashes = [("21", -973_932_308_i32), ("foobar", -790_332_482), ("a-little-bit-long-string", -985_981_536)];
    let batch = hashes.map(|(key, _)| record(&Envelope::new("orders", "n", "x").with_key(key)));
    assert_eq!(publisher.publish(batch.to_vec()).await, [Outcome::Durable, Outcome::Durable, Outcome::Durable]);
    let found: BTreeMap<String, i32> = own
        .messages()
        .await
        .iter()
        .map(|message| (String::from_utf8(message.key().unwrap().to_vec()).unwrap(), message.partition()))
        .collect();
    let expected: BTreeMap<String, i32> =
        hashes.iter().map(|(key, hash)| ((*key).to_owned(), (hash & i32::MAX) % 3)).collect();
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_event_is_received_all_the_same() {
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
    let own = Own::new().await;
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", url().trim_start_matches("kafka://"));
    let producer: BaseProducer = config.create().unwrap();
    producer.send(BaseRecord::to(&own.topic).payload("hello").key("größe")).unwrap();
    tokio::task::spawn_blocking(move || producer.flush(PATIENCE).unwrap()).await.unwrap();
    let subscriber = KafkaSubscriber::builder(access(), &own.topic, [&own.topic]).subscribe().await.unwrap();
    let delivery = in_time(subscriber.receive(1)).await.unwrap().remove(0);
    assert_eq!((&*delivery.envelope.topic, &delivery.envelope.payload[..]), (own.topic.as_str(), &b"hello"[..]));
    assert_eq!(delivery.envelope.key.as_ref().unwrap().as_str(), "größe");
    assert_eq!(delivery.attempt, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_younger_publisher_with_the_same_id_of_transactions_shuts_the_older_one_out() {
    let own = Own::new().await;
    let builder = KafkaPublisher::builder(access()).topic(&own.topic).transactions(&own.topic);
    let (older, younger) = (builder.clone().build().unwrap(), builder.build().unwrap());
    assert_eq!(older.capabilities().batches_max, Some(1));
    assert_eq!(publish_one(&older, "orders").await, "durable");
    assert_eq!(publish_one(&younger, "orders").await, "durable");
    assert_eq!(publish_one(&older, "orders").await, "unavailable not-sent");
    assert_eq!(own.messages().await.len(), 2, "nothing of what was shut out is seen");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_goes_again_without_what_is_refused() {
    let own = Own::with(&url(), &[("max.message.bytes", "3000")]).await;
    let publisher = KafkaPublisher::builder(access()).topic(&own.topic).transactions(&own.topic).build().unwrap();
    let batch = [("orders", "x".to_owned()), ("orders", "y".repeat(5_000)), ("orders", "z".to_owned())];
    // The second time finds clients that the first one has used.
    for round in 1..=2 {
        let outcomes = publish(&publisher, &batch).await;
        assert_eq!(outcomes, ["durable", "rejected too-large", "durable"], "round {round}");
        assert_eq!(own.messages().await.len(), 2 * round);
    }
    assert_eq!(publish_one(&publisher, "orders").await, "durable");
}

/// A partition that knows nothing of a producer takes its second request although it has just refused the first, as in the moment
/// in which it gets a leader. The client then reports both as stored. Its own cluster for tests does the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_client_only_concludes_to_be_stored_is_not_durable() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("orders", 1, 1).unwrap();
    cluster.request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION]);
    // A request for each, and all of them on their way before the first is answered; on a slow machine they are not, and the
    // client repeats the first in time.
    cluster.broker_round_trip_time(1, Duration::from_millis(500)).unwrap();
    let url = format!("kafka://{}", cluster.bootstrap_servers());
    let publisher = KafkaPublisher::builder(Access::new(&url).unwrap().property("batch.num.messages", "1"));
    let publisher = publisher.build().unwrap();
    let payloads = ["a", "b", "c"];
    let outcomes = publish(&publisher, &payloads.map(|payload| ("orders", payload.to_owned()))).await;
    cluster.broker_round_trip_time(1, Duration::ZERO).unwrap();
    let stored = async || -> Vec<String> {
        let messages = messages(&url, "orders").await;
        messages.iter().map(|message| String::from_utf8(message.payload().unwrap().to_vec()).unwrap()).collect()
    };
    let there = stored().await;
    for (payload, outcome) in payloads.iter().zip(&outcomes) {
        let is_there = there.iter().any(|stored| stored == payload);
        let expected = if is_there { "durable" } else { "unknown not-acknowledged" };
        assert_eq!(outcome, expected, "{payload} of {there:?}");
    }
    // What nobody has goes once more, and is there then.
    for (payload, _) in payloads.iter().zip(&outcomes).filter(|(_, outcome)| *outcome != "durable") {
        assert_eq!(publish(&publisher, &[("orders", (*payload).to_owned())]).await, ["durable"]);
    }
    let mut there = stored().await;
    there.sort_unstable();
    assert_eq!(there, payloads);
}
