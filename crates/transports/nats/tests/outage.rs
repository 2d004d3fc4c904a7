//! The whole way through a bad network and a broker that ends, to a real NATS server.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::time::Duration;

use postrider_testkit::fault::{Proxy, Server};
use postrider_transport_nats::{Access, NatsPublisher};

use support::{Own, program, url};

fn publisher(url: &str, own: &Own) -> NatsPublisher {
    let access = Access::new(url).unwrap();
    NatsPublisher::builder(access).prefix(&own.name).timeout(Duration::from_millis(500)).build().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_network_loses_nothing_and_keeps_the_order() {
    let own = Own::new().await;
    let proxy = Proxy::to(url().trim_start_matches("nats://")).await;
    let publisher = publisher(&format!("nats://{}", proxy.address()), &own);
    let place = postrider_outage::through_a_bad_network(publisher, &proxy).await;
    let arrived = own.events().await;
    assert_eq!(arrived.len(), place.committed(), "the stream recognises what is published again");
    place.judge(&arrived).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_ends_loses_nothing_that_was_acknowledged() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().display().to_string();
    let mut server = Server::start(&program(), |port| {
        ["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd", &folder].map(str::to_owned).to_vec()
    });
    let url = format!("nats://{}", server.address());
    let own = Own::on(&url).await;
    let place = postrider_outage::through_a_broker_that_ends(publisher(&url, &own), &mut server).await;
    place.judge(&own.events().await).await;
}
