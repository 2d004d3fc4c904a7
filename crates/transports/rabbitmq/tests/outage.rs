//! The whole way through a bad network and a broker that ends, to a real RabbitMQ server.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::time::Duration;

use postrider_testkit::fault::Proxy;
use postrider_transport_rabbitmq::{Access, QueueKind, RabbitmqPublisher, RabbitmqSubscriber};

use support::{Own, address, control_shared, server_in, url};

/// How many messages a subscriber fetches ahead.
const PREFETCH: u16 = 32;

fn publisher(url: &str, own: &Own) -> RabbitmqPublisher {
    let access = Access::new(url).unwrap();
    RabbitmqPublisher::builder(access).exchange(&own.name).timeout(Duration::from_millis(500)).build().unwrap()
}

/// With a queue of its own, beside the one that everything is read from.
async fn subscriber(url: &str, own: &Own) -> RabbitmqSubscriber {
    let queue = format!("{}-received", own.name);
    let builder = RabbitmqSubscriber::builder(Access::new(url).unwrap(), &queue).prefetch(PREFETCH);
    builder.declare(QueueKind::Quorum).bind(&own.name, "#").subscribe().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_network_loses_nothing_and_keeps_the_order() {
    let own = Own::new().await;
    let proxy = Proxy::to(&address()).await;
    let publisher = publisher(&format!("amqp://{}", proxy.address()), &own);
    let place = postrider_outage::through_a_bad_network(publisher, &proxy).await;
    place.judge(async || own.events().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_ends_loses_nothing_that_was_confirmed() {
    let data = tempfile::tempdir().unwrap();
    let mut server = server_in(data.path());
    let url = format!("amqp://{}", server.address());
    let own = Own::on(&url).await;
    // RabbitMQ 3.10 writes down late that there is a new quorum queue: killed within moments of it, the node knows the queue
    // and never finds its leader again. Once it has ended in order, it has everything.
    server.stop();
    server.restart();
    let place = postrider_outage::through_a_broker_that_ends(publisher(&url, &own), &mut server).await;
    place.judge(async || own.events().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_routing_key_that_no_queue_takes_keeps_no_other_waiting() {
    let own = Own::taking(&url(), "orders", "quorum", &[]).await;
    own.bind("returns").await;
    let (gone, back) = (async || own.unbind("returns").await, async || own.bind("returns").await);
    let publisher = publisher(&url(), &own);
    let place = postrider_outage::through_a_destination_that_is_gone(publisher, gone, back).await;
    place.judge(async || own.events().await).await;
}

/// One routing key becomes forbidden while messages go to it and to another: those of the other go on, and none of them is sent
/// again and again because the server ended a channel that it was on.
#[tokio::test(flavor = "multi_thread")]
async fn a_routing_key_that_is_forbidden_keeps_no_other_waiting() {
    let own = Own::new().await;
    let user = format!("u{}", uuid::Uuid::now_v7().simple());
    control_shared(&["add_user", &user, "secret"]);
    control_shared(&["set_permissions", "--vhost", "/", &user, "^$", &format!("^{}$", own.name), "^$"]);
    let allow = |keys: &str| control_shared(&["set_topic_permissions", "--vhost", "/", &user, &own.name, keys, ".*"]);
    let gone = async || {
        allow("^orders$");
        // A channel remembers for a while what it was allowed.
        control_shared(&["close_all_user_connections", &user, "rights have changed"]);
    };
    let access = Access::new(&url()).unwrap().password(&user, "secret");
    let publisher = RabbitmqPublisher::builder(access).exchange(&own.name).build().unwrap();
    let place = postrider_outage::through_a_destination_that_is_gone(publisher, gone, async || allow(".*")).await;
    // Once over the connection that is closed, once beside what is forbidden, and once without it.
    place.judge_copies(3, async || own.events().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_in_a_bad_network_loses_nothing_and_keeps_the_order() {
    let own = Own::new().await;
    let proxy = Proxy::to(&address()).await;
    let subscriber = subscriber(&format!("amqp://{}", proxy.address()), &own).await;
    let publisher = publisher(&url(), &own);
    let receiver = postrider_outage::receive_through_a_bad_network(publisher, subscriber, &proxy).await;
    receiver.judge(PREFETCH.into());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_of_a_broker_that_ends_loses_nothing_and_keeps_the_order() {
    let data = tempfile::tempdir().unwrap();
    let mut server = server_in(data.path());
    let url = format!("amqp://{}", server.address());
    let own = Own::on(&url).await;
    let subscriber = subscriber(&url, &own).await;
    // As above: what is new is on disk once the server has ended in order.
    server.stop();
    server.restart();
    let publisher = publisher(&url, &own);
    let receiver = postrider_outage::receive_through_a_broker_that_ends(publisher, subscriber, &mut server).await;
    receiver.judge(PREFETCH.into());
}
