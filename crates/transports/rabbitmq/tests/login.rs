//! Logging in by name and password, and what becomes of messages where the login is wrong or has no right.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use postrider_core::{
    ErrorKind,
    envelope::Envelope,
    transport::{Outcome, Publisher, Subscriber},
};
use postrider_testkit::{patience::in_time, transport::record};
use postrider_transport_rabbitmq::{Access, RabbitmqPublisher, RabbitmqSubscriber};

use support::{Own, control_shared, url};

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn publish(access: &Access, own: &Own) -> String {
    let publisher = RabbitmqPublisher::builder(access.clone()).exchange(&own.name).build().unwrap();
    publish_all(&publisher, &["orders"]).await.remove(0)
}

/// Publishes a batch of one message to each of these topics.
async fn publish_all(publisher: &RabbitmqPublisher, topics: &[&str]) -> Vec<String> {
    publish_until_heard(publisher, topics).await.0
}

/// The same, and how often it took.
async fn publish_until_heard(publisher: &RabbitmqPublisher, topics: &[&str]) -> (Vec<String>, usize) {
    let batch = topics.iter().map(|topic| record(&Envelope::new(topic, "n", "x")));
    let shown = |outcome: &Outcome| match outcome {
        Outcome::Unavailable(cause) if cause.is_of_one_destination() => format!("one unavailable {}", cause.code()),
        Outcome::Unavailable(cause) => format!("unavailable {}", cause.code()),
        other => other.name().to_owned(),
    };
    let batch: Vec<_> = batch.collect();
    let (began, mut times) = (Instant::now(), 0);
    loop {
        times += 1;
        let outcomes = publisher.publish(batch.clone()).await;
        assert!(!format!("{outcomes:?}").contains("canary"), "{outcomes:?}");
        // With one of the channels that the server ends the connection may go, too: that says nothing of a right, and everything
        // is published again.
        if !outcomes.iter().any(is_lost_connection) || began.elapsed() > PATIENCE {
            return (outcomes.iter().map(shown).collect(), times);
        }
    }
}

fn is_lost_connection(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Unavailable(cause) | Outcome::Unknown(cause) if ["connect", "connection-lost"].contains(&cause.code()))
}

/// A user of one's own, who may write to this exchange.
fn user_of(own: &Own) -> (String, Access) {
    let user = format!("u{}", uuid::Uuid::now_v7().simple());
    control_shared(&["add_user", &user, "canary"]);
    control_shared(&["set_permissions", "--vhost", "/", &user, "^$", &format!("^{}$", own.name), "^$"]);
    let access = Access::new(&url()).unwrap().password(&user, "canary");
    (user, access)
}

/// The server ends the channel for the sake of one message, with others on it that it has taken or would take.
#[tokio::test(flavor = "multi_thread")]
async fn a_routing_key_that_is_forbidden_stops_no_other_message() {
    let own = Own::new().await;
    let (user, access) = user_of(&own);
    control_shared(&["set_topic_permissions", "--vhost", "/", &user, &own.name, r"^orders\.", ".*"]);
    let publisher = RabbitmqPublisher::builder(access).exchange(&own.name).build().unwrap();
    let topics = ["orders.a", "orders.b", "returns.a", "orders.a", "returns.b", "orders.c", "returns.a", "orders.b"];
    let (outcomes, published) = publish_until_heard(&publisher, &topics).await;
    for (topic, outcome) in topics.iter().zip(&outcomes) {
        let expected = if topic.starts_with("orders") { "durable" } else { "one unavailable denied" };
        assert_eq!(outcome, expected, "{topic}: {outcomes:?}");
    }
    let mut times: BTreeMap<_, usize> = BTreeMap::new();
    for event in own.events().await {
        assert!(event.envelope.topic.starts_with("orders"), "{}", event.envelope.topic);
        *times.entry(event.envelope.id).or_default() += 1;
    }
    assert_eq!(times.len(), 5);
    let once_more = times.values().all(|times| *times <= 2 * published);
    assert!(once_more, "what has no confirm goes once more, not more often: {times:?}");
}

/// An exchange that is forbidden as a whole is not asked with every routing key that there is.
#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_that_is_forbidden_is_asked_a_few_times() {
    let (own, other) = (Own::new().await, Own::new().await);
    let (_, access) = user_of(&other);
    let topics: Vec<String> = (0..100).map(|number| format!("orders.{number}")).collect();
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    let builder = RabbitmqPublisher::builder(access).exchange(&own.name);
    let outcomes = publish_all(&builder.clone().build().unwrap(), &topics).await;
    assert_eq!(outcomes[..8], ["one unavailable denied"; 8]);
    assert_eq!(outcomes[8..], ["throttled"; 92]);
    // With one routing key for all, there is nobody else to ask for.
    let outcomes = publish_all(&builder.routing_key("orders").build().unwrap(), &topics).await;
    assert_eq!(outcomes, ["unavailable denied"; 100]);
    assert!(own.events().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_known_publishes_and_receives_where_it_may() {
    let (own, other) = (Own::new().await, Own::new().await);
    let user = format!("u{}", uuid::Uuid::now_v7().simple());
    control_shared(&["add_user", &user, "canary"]);
    let known = Access::new(&url()).unwrap().password(&user, "canary");
    assert_eq!(publish(&known, &own).await, "unavailable denied", "it may not yet enter the virtual host");
    let ours = format!("^{}$", own.name);
    control_shared(&["set_permissions", "--vhost", "/", &user, "^$", &ours, &ours]);
    assert_eq!(publish(&known, &own).await, "durable");
    assert_eq!(publish(&known, &other).await, "one unavailable denied", "it may not write to that exchange");
    let wrong = Access::new(&url()).unwrap().password(&user, "canary but wrong");
    assert_eq!(publish(&wrong, &own).await, "unavailable denied");

    let subscriber = RabbitmqSubscriber::builder(known.clone(), &own.name).subscribe().await.unwrap();
    assert_eq!(&in_time(subscriber.receive(1)).await.unwrap()[0].envelope.payload[..], b"x");
    let refused = RabbitmqSubscriber::builder(known, &other.name).subscribe().await.err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{}", refused.chain());
    let refused = RabbitmqSubscriber::builder(wrong, &own.name).subscribe().await.err().unwrap();
    assert!(refused.chain().contains("denied") && !refused.chain().contains("canary"), "{}", refused.chain());
}
