//! The whole way through a bad network and a broker that ends, to a real NATS server.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{path::Path, time::Duration};

use postrider_testkit::fault::{Proxy, Server};
use postrider_transport_nats::{Access, NatsPublisher, NatsSubscriber};

use support::{Own, program, url};

/// How many messages a subscriber fetches ahead.
const PREFETCH: usize = 32;

fn publisher(url: &str, own: &Own) -> NatsPublisher {
    let access = Access::new(url).unwrap();
    NatsPublisher::builder(access).prefix(&own.name).timeout(Duration::from_millis(500)).build().unwrap()
}

async fn subscriber(url: &str, own: &Own) -> NatsSubscriber {
    let builder = NatsSubscriber::builder(Access::new(url).unwrap(), &own.name, "tests").prefetch(PREFETCH);
    builder.timeout(Duration::from_secs(2)).declare(&[], Duration::from_secs(2)).subscribe().await.unwrap()
}

fn start(folder: &Path) -> Server {
    let folder = folder.display().to_string();
    Server::start(&program(), |port| {
        ["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd", &folder].map(str::to_owned).to_vec()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_network_loses_nothing_and_keeps_the_order() {
    let own = Own::new().await;
    let proxy = Proxy::to(url().trim_start_matches("nats://")).await;
    let publisher = publisher(&format!("nats://{}", proxy.address()), &own);
    let place = postrider_outage::through_a_bad_network(publisher, &proxy).await;
    let committed = place.committed();
    place.judge(async || own.events().await).await;
    assert_eq!(own.events().await.len(), committed, "the stream recognises what is published again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_ends_loses_nothing_that_was_acknowledged() {
    let data = tempfile::tempdir().unwrap();
    let mut server = start(data.path());
    let url = format!("nats://{}", server.address());
    let own = Own::on(&url).await;
    let place = postrider_outage::through_a_broker_that_ends(publisher(&url, &own), &mut server).await;
    place.judge(async || own.events().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_that_no_stream_takes_keeps_no_other_waiting() {
    let own = Own::new().await;
    let gone = async || own.takes(&[format!("{}.orders", own.name)]).await;
    let back = async || own.takes(&[format!("{}.>", own.name)]).await;
    let publisher = publisher(&url(), &own);
    let place = postrider_outage::through_a_destination_that_is_gone(publisher, gone, back).await;
    place.judge(async || own.events().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_in_a_bad_network_loses_nothing_and_keeps_the_order() {
    let own = Own::new().await;
    let proxy = Proxy::to(url().trim_start_matches("nats://")).await;
    let subscriber = subscriber(&format!("nats://{}", proxy.address()), &own).await;
    let publisher = publisher(&url(), &own);
    postrider_outage::receive_through_a_bad_network(publisher, subscriber, &proxy).await.judge_acknowledged(PREFETCH);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_of_a_broker_that_ends_loses_nothing_and_keeps_the_order() {
    let data = tempfile::tempdir().unwrap();
    let mut server = start(data.path());
    let url = format!("nats://{}", server.address());
    let own = Own::on(&url).await;
    let (publisher, subscriber) = (publisher(&url, &own), subscriber(&url, &own).await);
    postrider_outage::receive_through_a_broker_that_ends(publisher, subscriber, &mut server).await.judge(PREFETCH);
}
