//! The whole way through a bad network and a broker that ends, to a real Kafka server.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{path::Path, time::Duration};

use postrider_core::{
    envelope::Envelope,
    transport::{Outcome, Publisher, Subscriber},
};
use postrider_testkit::{
    fault::{Proxy, Server, free_port},
    transport::record,
};
use postrider_transport_kafka::{Access, KafkaPublisher, KafkaSubscriber};

use support::{Own, PATIENCE, start};

/// How many messages a subscriber fetches ahead.
const PREFETCH: usize = 32;

fn publisher(url: &str, own: &Own) -> KafkaPublisher {
    let access = Access::new(url).unwrap();
    KafkaPublisher::builder(access).topic(&own.topic).timeout(Duration::from_secs(1)).build().unwrap()
}

async fn subscriber(url: &str, own: &Own) -> KafkaSubscriber {
    // Silence is noticed sooner than after a minute.
    let access = Access::new(url).unwrap().property("socket.timeout.ms", "3000");
    let builder = KafkaSubscriber::builder(access, "tests", [&own.topic]).prefetch(PREFETCH);
    builder.session_timeout(Duration::from_secs(10)).subscribe().await.unwrap()
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
    place.judge(&own.events().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_ends_loses_nothing_that_was_acknowledged() {
    let data = tempfile::tempdir().unwrap();
    let mut server = start(data.path(), |_, _| String::new());
    let url = format!("kafka://{}", server.address());
    let own = Own::on(&url).await;
    let place = postrider_outage::through_a_broker_that_ends(publisher(&url, &own), &mut server).await;
    place.judge(&own.events().await).await;
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
async fn a_subscriber_goes_on_after_its_broker_was_killed() {
    let data = tempfile::tempdir().unwrap();
    let mut server = start(data.path(), |_, _| String::new());
    let url = format!("kafka://{}", server.address());
    let own = Own::on(&url).await;
    let access = Access::new(&url).unwrap();
    let publisher = KafkaPublisher::builder(access.clone()).topic(&own.topic).timeout(PATIENCE).build().unwrap();
    let subscriber = KafkaSubscriber::builder(access, "tests", [&own.topic]).subscribe().await.unwrap();
    for round in 0..3 {
        let envelope = Envelope::new("orders", "n", round.to_string()).with_key("one");
        // With a long patience the client itself lives through the restart.
        let outcome = tokio::time::timeout(PATIENCE, publisher.publish(vec![record(&envelope)])).await.unwrap();
        assert_eq!(outcome, [Outcome::Durable], "round {round}");
        assert_eq!(receive(&subscriber).await, round.to_string(), "in order, and what was acknowledged not again");
        server.kill();
        server.restart();
    }
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
