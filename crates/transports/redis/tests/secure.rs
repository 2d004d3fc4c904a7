//! Certificates, on servers of one's own: who does not know the other is refused, and told so.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::path::Path;

use postrider_core::{
    envelope::Envelope,
    transport::{Outcome, Publisher, Subscriber},
};
use postrider_outage::certificates;
use postrider_testkit::{fault::Server, patience::in_time, transport::record};
use postrider_transport_redis::{Access, RedisPublisher, RedisSubscriber};

use support::program;

/// A server that speaks TLS alone, and asks for a certificate or does not.
fn start(folder: &Path, asks: bool) -> Server {
    let file = |name: &str| folder.join(name).display().to_string();
    Server::start(&program(), |port| {
        let asks = if asks { "yes" } else { "no" };
        let settings = [
            ("--port", "0".to_owned()),
            ("--tls-port", port.to_string()),
            ("--bind", "127.0.0.1".to_owned()),
            ("--dir", folder.display().to_string()),
            ("--save", String::new()),
            ("--tls-cert-file", file("server.pem")),
            ("--tls-key-file", file("server.key")),
            ("--tls-ca-cert-file", file("ca.pem")),
            ("--tls-auth-clients", asks.to_owned()),
        ];
        settings.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    })
}

async fn publish(access: &Access) -> String {
    let publisher = RedisPublisher::builder(access.clone()).declare().build().unwrap();
    let outcome = publisher.publish(vec![record(&Envelope::new("orders", "n", "x"))]).await.remove(0);
    match &outcome {
        Outcome::Unavailable(cause) => {
            // Shown if the test fails.
            println!("{cause}");
            format!("unavailable {}", cause.code())
        }
        other => format!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_must_have_a_certificate_that_we_trust() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let server = start(folder.path(), false);
    let access = Access::new(&format!("rediss://{}", server.address())).unwrap();
    assert_eq!(publish(&access).await, "unavailable tls", "an unknown authority");
    let wrong = access.clone().ca_file(folder.path().join("stranger.pem")).unwrap();
    assert_eq!(publish(&wrong).await, "unavailable tls", "another authority");
    let trusting = access.ca_file(folder.path().join("ca.pem")).unwrap();
    assert_eq!(publish(&trusting).await, "Durable");
    let subscriber = RedisSubscriber::builder(trusting, "g", ["orders"]).declare().subscribe().await.unwrap();
    assert_eq!(&in_time(subscriber.receive(1)).await.unwrap()[0].envelope.payload[..], b"x");
    let by_name = Access::new(&format!("rediss://localhost:{}", server.address().port())).unwrap();
    let misnamed = by_name.ca_file(folder.path().join("ca.pem")).unwrap();
    assert_eq!(publish(&misnamed).await, "unavailable tls", "a certificate of another name");
    // A server that speaks TLS alone is not spoken to without.
    let plain = Access::new(&format!("redis://{}", server.address())).unwrap();
    assert!(publish(&plain).await.starts_with("unavailable "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_shown_to_a_server_that_asks_for_one() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let server = start(folder.path(), true);
    let file = |name: &str| folder.path().join(name);
    let access = Access::new(&format!("rediss://{}", server.address())).unwrap().ca_file(file("ca.pem")).unwrap();
    assert!(publish(&access).await.starts_with("unavailable "), "nothing was shown");
    let stranger = access.clone().client_certificate(file("stranger.pem"), file("stranger.key")).unwrap();
    assert!(publish(&stranger).await.starts_with("unavailable "), "the server does not know who signed it");
    let known = access.clone().client_certificate(file("client.pem"), file("client.key")).unwrap();
    assert_eq!(publish(&known).await, "Durable");
    assert!(access.client_certificate(file("client.pem"), file("no-such-file")).is_err());
}
