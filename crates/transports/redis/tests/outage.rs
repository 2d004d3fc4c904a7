//! The whole way through a bad network and a broker that ends, to a real Redis server.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use postrider_outage::Place;
use postrider_testkit::fault::{Proxy, Server};
use postrider_transport_redis::{Access, RedisPublisher, RedisSubscriber};

use support::{Own, program, url};

/// How many messages a subscriber fetches ahead.
const PREFETCH: usize = 32;

fn publisher(url: &str, own: &Own) -> RedisPublisher {
    let access = Access::new(url).unwrap();
    RedisPublisher::builder(access).declare().prefix(&own.prefix).timeout(Duration::from_millis(500)).build().unwrap()
}

async fn subscriber(url: &str, own: &Own) -> RedisSubscriber {
    let stream = format!("{}orders", own.prefix);
    let builder = RedisSubscriber::builder(Access::new(url).unwrap(), "tests", [stream]).prefetch(PREFETCH);
    builder.timeout(Duration::from_secs(1)).declare().subscribe().await.unwrap()
}

/// One that declares nothing.
fn to_streams_that_are_there(url: &str, own: &Own) -> RedisPublisher {
    let builder = RedisPublisher::builder(Access::new(url).unwrap()).prefix(&own.prefix);
    builder.timeout(Duration::from_millis(500)).build().unwrap()
}

/// As an operator makes a stream.
async fn make(own: &Own, topic: &str) {
    let mut command = redis::cmd("XGROUP");
    command.arg("CREATE").arg(format!("{}{topic}", own.prefix)).arg("tests").arg("0").arg("MKSTREAM");
    command.exec_async(&mut own.connection().await).await.unwrap();
}

fn start(folder: &Path) -> Server {
    start_with(folder, "yes")
}

fn start_with(folder: &Path, appendonly: &str) -> Server {
    let folder = folder.display().to_string();
    Server::start(&program(), |port| {
        ["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir", &folder, "--appendonly", appendonly, "--save", ""]
            .map(str::to_owned)
            .to_vec()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_network_loses_nothing_and_keeps_the_order() {
    let own = Own::new();
    let proxy = Proxy::to(url().trim_start_matches("redis://")).await;
    let publisher = publisher(&format!("redis://{}", proxy.address()), &own);
    let place = postrider_outage::through_a_bad_network(publisher, &proxy).await;
    place.judge(async || own.events().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_ends_loses_nothing_that_was_acknowledged() {
    let data = tempfile::tempdir().unwrap();
    let mut server = start(data.path());
    let url = format!("redis://{}", server.address());
    let own = Own::on(&url);
    let place = postrider_outage::through_a_broker_that_ends(publisher(&url, &own), &mut server).await;
    place.judge(async || own.events().await).await;
}

/// A server that keeps nothing: its streams are gone when it is back, and somebody has to make them, sooner or later.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_lost_its_streams_is_an_outage_until_they_are_made_again() {
    let data = tempfile::tempdir().unwrap();
    let mut server = start_with(data.path(), "no");
    let url = format!("redis://{}", server.address());
    let own = Own::on(&url);
    let make = async || make(&own, "orders").await;
    make().await;
    let timeout = Duration::from_millis(500);
    let mut place = Place::new(to_streams_that_are_there(&url, &own)).await;
    place.enqueue();
    place.delivered().await;
    let mut arrived = own.events().await;
    let before = place.openings();
    server.kill();
    server.restart();
    place.enqueue();
    place.opened(before + 1).await;
    let begun = Instant::now();
    // For longer than the time after which a message would have to pay.
    while begun.elapsed() < 4 * timeout {
        assert_eq!(own.events().await.len(), 0, "there is no stream");
    }
    make().await;
    place.delivered().await;
    arrived.extend(own.events().await);
    place.judge(async || arrived).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_gone_keeps_no_other_waiting() {
    let own = Own::new();
    make(&own, "orders").await;
    make(&own, "returns").await;
    let gone = async || {
        let mut rename = redis::cmd("RENAME");
        rename.arg(format!("{}returns", own.prefix)).arg(format!("{}before", own.prefix));
        rename.exec_async(&mut own.connection().await).await.unwrap();
    };
    let publisher = to_streams_that_are_there(&url(), &own);
    let back = async || make(&own, "returns").await;
    let place = postrider_outage::through_a_destination_that_is_gone(publisher, gone, back).await;
    place.judge(async || own.events().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_in_a_bad_network_loses_nothing_and_keeps_the_order() {
    let own = Own::new();
    let proxy = Proxy::to(url().trim_start_matches("redis://")).await;
    let subscriber = subscriber(&format!("redis://{}", proxy.address()), &own).await;
    let publisher = publisher(&url(), &own);
    postrider_outage::receive_through_a_bad_network(publisher, subscriber, &proxy).await.judge_acknowledged(PREFETCH);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_of_a_broker_that_ends_loses_nothing_and_keeps_the_order() {
    let data = tempfile::tempdir().unwrap();
    let mut server = start(data.path());
    let url = format!("redis://{}", server.address());
    let own = Own::on(&url);
    let (publisher, subscriber) = (publisher(&url, &own), subscriber(&url, &own).await);
    postrider_outage::receive_through_a_broker_that_ends(publisher, subscriber, &mut server).await.judge(PREFETCH);
}
