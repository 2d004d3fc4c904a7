//! The whole way through a bad network and a broker that ends, to a real Kafka server.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{
    collections::BTreeSet,
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use postrider_core::{
    ErrorKind,
    envelope::Envelope,
    transport::{Outcome, Publisher, Subscriber},
};
use postrider_outage::Place;
use postrider_testkit::{
    fault::{Proxy, Server, Traffic, free_port},
    patience::in_time,
    transport::record,
};
use postrider_transport_kafka::{Access, KafkaPublisher, KafkaSubscriber, Mechanism};
use rdkafka::error::RDKafkaErrorCode;

use support::{Own, PATIENCE, access, config, fresh_name, rights, start, subscribed, told, url};

/// How many messages a subscriber fetches ahead.
const PREFETCH: usize = 32;

fn publisher(url: &str, own: &Own) -> KafkaPublisher {
    let access = Access::new(url).unwrap();
    KafkaPublisher::builder(access).topic(&own.topic).timeout(Duration::from_secs(1)).build().unwrap()
}

/// One whose client itself lives through a restart.
fn patient(url: &str, own: &Own) -> KafkaPublisher {
    KafkaPublisher::builder(Access::new(url).unwrap()).topic(&own.topic).timeout(PATIENCE).build().unwrap()
}

async fn subscriber(url: &str, own: &Own) -> KafkaSubscriber {
    // Silence is noticed sooner than after a minute, and a broker that is back sooner than after two seconds.
    let access = Access::new(url).unwrap().property("socket.timeout.ms", "3000");
    let access = access.property("reconnect.backoff.max.ms", "500");
    let builder = KafkaSubscriber::builder(access, "tests", [&own.topic]).prefetch(PREFETCH);
    subscribed(builder.session_timeout(Duration::from_secs(10))).await
}

/// A server that announces the proxy beside itself, because it tells its clients where to connect to.
async fn behind_a_proxy(folder: &Path) -> (Server, Proxy) {
    let (behind, announced) = (free_port(), free_port());
    let server = start(folder, |port, controller| {
        format!(
            "listeners=PLAIN://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},PROXIED://127.0.0.1:{behind}\n\
             advertised.listeners=PLAIN://127.0.0.1:{port},PROXIED://127.0.0.1:{announced}\n\
             listener.security.protocol.map=PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT\n"
        )
    });
    (server, Proxy::at(announced, &format!("127.0.0.1:{behind}")).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_network_loses_nothing_and_keeps_the_order() {
    let data = tempfile::tempdir().unwrap();
    let (server, proxy) = behind_a_proxy(data.path()).await;
    let own = Own::on(&format!("kafka://{}", server.address())).await;
    let publisher = publisher(&format!("kafka://{}", proxy.address()), &own);
    let place = postrider_outage::through_a_bad_network(publisher, &proxy).await;
    place.judge(async || own.events().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_ends_loses_nothing_that_was_acknowledged() {
    let data = tempfile::tempdir().unwrap();
    let mut server = start(data.path(), |_, _| String::new());
    let url = format!("kafka://{}", server.address());
    let own = Own::on(&url).await;
    let place = postrider_outage::through_a_broker_that_ends(publisher(&url, &own), &mut server).await;
    place.judge(async || own.events().await).await;
}

/// Publishes to the topics that messages name, behind a prefix.
fn by_topic(access: Access, prefix: &str) -> KafkaPublisher {
    KafkaPublisher::builder(access).prefix(prefix).timeout(Duration::from_secs(1)).build().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_gone_keeps_no_other_waiting() {
    let prefix = fresh_name();
    let orders = Own::named(&url(), &format!("{prefix}orders")).await;
    let returns = Own::named(&url(), &format!("{prefix}returns")).await;
    // What is in a topic goes with it.
    let mut arrived = Vec::new();
    let gone = async || {
        arrived = returns.events().await;
        returns.delete().await;
        told(config(&url()), &returns.topic, Some(RDKafkaErrorCode::UnknownTopicOrPartition)).await;
    };
    let publisher = by_topic(access(), &prefix);
    let back = async || returns.create().await;
    let place = postrider_outage::through_a_destination_that_is_gone(publisher, gone, back).await;
    arrived.extend(returns.events().await);
    arrived.extend(orders.events().await);
    place.judge(async || arrived).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_forbidden_keeps_no_other_waiting() {
    let (data, login) = (tempfile::tempdir().unwrap(), free_port());
    let server = start(data.path(), |port, controller| {
        format!(
            "listeners=PLAIN://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},LOGIN://127.0.0.1:{login}\n\
             advertised.listeners=PLAIN://127.0.0.1:{port},LOGIN://127.0.0.1:{login}\n\
             listener.security.protocol.map=PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT\n\
             listener.name.login.sasl.enabled.mechanisms=PLAIN\n\
             listener.name.login.plain.sasl.jaas.config=\
             org.apache.kafka.common.security.plain.PlainLoginModule required user_relay=\"secret\";\n\
             authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
             super.users=User:ANONYMOUS\n"
        )
    });
    let url = format!("kafka://{}", server.address());
    let (orders, returns) = (Own::named(&url, "orders").await, Own::named(&url, "returns").await);
    let mut relay = config(&format!("127.0.0.1:{login}"));
    relay.set("security.protocol", "sasl_plaintext").set("sasl.mechanism", "PLAIN");
    relay.set("sasl.username", "relay").set("sasl.password", "secret");
    let give = async |own: &Own| {
        rights::give(server.address(), "relay", &own.topic);
        told(relay.clone(), &own.topic, None).await;
    };
    give(&orders).await;
    give(&returns).await;
    let gone = async || {
        rights::take(server.address(), "relay", &returns.topic);
        told(relay.clone(), &returns.topic, Some(RDKafkaErrorCode::TopicAuthorizationFailed)).await;
    };
    let access = Access::new(&format!("kafka://127.0.0.1:{login}")).unwrap();
    let publisher = by_topic(access.password(Mechanism::Plain, "relay", "secret"), "");
    let back = async || give(&returns).await;
    let place = postrider_outage::through_a_destination_that_is_gone(publisher, gone, back).await;
    let mut arrived = returns.events().await;
    arrived.extend(orders.events().await);
    place.judge(async || arrived).await;
}

/// With transactions there is more to lose: a coordinator, the client's right to its id, and what is neither committed nor aborted.
#[tokio::test(flavor = "multi_thread")]
async fn transactions_lose_nothing_in_a_bad_network_or_with_a_broker_that_ends() {
    let data = tempfile::tempdir().unwrap();
    let (mut server, proxy) = behind_a_proxy(data.path()).await;
    let own = Own::on(&format!("kafka://{}", server.address())).await;
    let builder = KafkaPublisher::builder(Access::new(&format!("kafka://{}", proxy.address())).unwrap());
    let publisher = builder.topic(&own.topic).transactions(&own.topic).timeout(Duration::from_secs(2)).build().unwrap();
    let mut place = Place::new(publisher).await;
    postrider_outage::disturb(&mut place, &proxy).await;
    postrider_outage::end(&mut place, &mut server, Server::kill).await;
    place.judge(async || own.events().await).await;
}

/// The client would keep what it is given while the cluster says nothing, and send it late.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_to_be_unsent_never_arrives() {
    let data = tempfile::tempdir().unwrap();
    let (server, proxy) = behind_a_proxy(data.path()).await;
    let own = Own::on(&format!("kafka://{}", server.address())).await;
    let publisher = publisher(&format!("kafka://{}", proxy.address()), &own);
    let publish = async || {
        let envelope = Envelope::new("orders", "n", "x");
        (envelope.id, publisher.publish(vec![record(&envelope)]).await.remove(0))
    };
    let (begun, mut unsent) = (Instant::now(), BTreeSet::new());
    while publish().await.1 != Outcome::Durable {
        assert!(begun.elapsed() < PATIENCE, "nothing goes through");
    }
    proxy.set(Traffic::Silent);
    while unsent.len() < 5 {
        let (id, outcome) = publish().await;
        assert!(begun.elapsed() < PATIENCE, "there is no connection, and it is not told: {outcome:?}");
        match outcome {
            Outcome::Unavailable(cause) if cause.code().starts_with("connect") => drop(unsent.insert(id)),
            other => assert_ne!(other, Outcome::Durable, "nobody has answered"),
        }
    }
    // What waits in the network goes on now, and so would what waits in the client.
    proxy.set(Traffic::Flowing);
    while publish().await.1 != Outcome::Durable {
        assert!(begun.elapsed() < PATIENCE, "nothing goes through any more");
    }
    let arrived: BTreeSet<_> = own.events().await.iter().map(|event| event.envelope.id).collect();
    assert!(arrived.is_disjoint(&unsent), "of {unsent:?} these have arrived: {arrived:?}");
}

/// Receives and acknowledges one; an outage is told and is not the end.
async fn receive(subscriber: &KafkaSubscriber) -> String {
    let one = async {
        loop {
            let Ok(mut received) = subscriber.receive(1).await else { continue };
            let delivery = received.remove(0);
            if subscriber.acknowledge(vec![delivery.receipt]).await.is_ok() {
                return String::from_utf8(delivery.envelope.payload.to_vec()).unwrap();
            }
        }
    };
    tokio::time::timeout(PATIENCE, one).await.expect("the subscriber goes on")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_of_a_broker_that_ends_loses_nothing_and_keeps_the_order() {
    let data = tempfile::tempdir().unwrap();
    let mut server = start(data.path(), |_, _| String::new());
    let url = format!("kafka://{}", server.address());
    let own = Own::on(&url).await;
    let (publisher, subscriber) = (publisher(&url, &own), subscriber(&url, &own).await);
    postrider_outage::receive_through_a_broker_that_ends(publisher, subscriber, &mut server).await.judge(PREFETCH);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_in_a_bad_network_loses_nothing_and_keeps_the_order() {
    let data = tempfile::tempdir().unwrap();
    let (server, proxy) = behind_a_proxy(data.path()).await;
    let url = format!("kafka://{}", server.address());
    let own = Own::on(&url).await;
    let subscriber = subscriber(&format!("kafka://{}", proxy.address()), &own).await;
    let publisher = publisher(&url, &own);
    postrider_outage::receive_through_a_bad_network(publisher, subscriber, &proxy).await.judge(PREFETCH);
}

/// A server behind a proxy, with so many messages of one key, and a subscriber that connects through the proxy.
async fn with_messages(folder: &Path, count: usize) -> (Server, Proxy, KafkaSubscriber) {
    let (server, proxy) = behind_a_proxy(folder).await;
    let url = format!("kafka://{}", server.address());
    let own = Own::on(&url).await;
    let publisher = patient(&url, &own);
    for number in 0..count {
        let envelope = Envelope::new("orders", "n", number.to_string()).with_key("one");
        assert_eq!(publisher.publish(vec![record(&envelope)]).await, [Outcome::Durable]);
    }
    let access = Access::new(&format!("kafka://{}", proxy.address())).unwrap().property("socket.timeout.ms", "3000");
    let builder = KafkaSubscriber::builder(access, "tests", [&own.topic]).session_timeout(Duration::from_secs(10));
    let subscriber = subscribed(builder.timeout(Duration::from_secs(2))).await;
    (server, proxy, subscriber)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_that_nobody_answers_fails_in_time_and_the_next_one_does_its_work() {
    let data = tempfile::tempdir().unwrap();
    let (_server, proxy, subscriber) = with_messages(data.path(), 2).await;
    let delivery = in_time(subscriber.receive(1)).await.unwrap().remove(0);
    proxy.set(Traffic::Silent);
    let answer = tokio::time::timeout(PATIENCE, subscriber.acknowledge(vec![delivery.receipt])).await;
    assert_eq!(answer.expect("it is given up").unwrap_err().kind(), ErrorKind::Unavailable);
    proxy.set(Traffic::Flowing);
    assert_eq!(receive(&subscriber).await, "1", "what was answered does not come again");
}

/// The client waits for a coordinator as long as it takes; a program that ends does not.
#[test]
fn a_commit_under_way_keeps_no_program_from_ending() {
    let data = tempfile::tempdir().unwrap();
    let outside = tokio::runtime::Runtime::new().unwrap();
    let inside = tokio::runtime::Runtime::new().unwrap();
    let (mut server, proxy) = outside.block_on(async {
        let (server, proxy, subscriber) = with_messages(data.path(), 1).await;
        let (received, receiving) = tokio::sync::oneshot::channel();
        inside.spawn(async move {
            let delivery = subscriber.receive(1).await.unwrap().remove(0);
            received.send(()).unwrap();
            drop(subscriber.acknowledge(vec![delivery.receipt]).await);
        });
        proxy.set(Traffic::Delayed(Duration::from_millis(50)));
        tokio::time::timeout(PATIENCE, receiving).await.expect("it comes").unwrap();
        (server, proxy)
    });
    server.kill();
    drop(proxy);
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        drop(inside);
        ended.send(()).unwrap();
    });
    end.recv_timeout(PATIENCE).expect("a runtime waits for nothing that may never come");
}
