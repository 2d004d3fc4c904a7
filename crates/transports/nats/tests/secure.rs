//! Certificates, on servers of one's own: who does not know the other is refused, and told so.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{path::Path, time::Duration};

use postrider_core::{
    envelope::Envelope,
    transport::{Outcome, Publisher, Subscriber},
};
use postrider_outage::certificates;
use postrider_testkit::{fault::Server, patience::in_time, transport::record};
use postrider_transport_nats::{Access, NatsPublisher, NatsSubscriber};

use support::program;

/// A server that speaks TLS alone, and asks for a certificate or does not.
fn start(folder: &Path, asks: bool) -> Server {
    let file = |name: &str| folder.join(name).display().to_string();
    Server::start(&program(), |port| {
        let settings = [
            ("-a", "127.0.0.1".to_owned()),
            ("-p", port.to_string()),
            ("-sd", file("data")),
            ("--tlscert", file("server.pem")),
            ("--tlskey", file("server.key")),
            ("--tlscacert", file("ca.pem")),
        ];
        let mut arguments: Vec<String> =
            settings.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
        arguments.extend(["-js".to_owned(), "--tls".to_owned()]);
        if asks {
            arguments.push("--tlsverify".to_owned());
        }
        arguments
    })
}

async fn publish(access: &Access) -> String {
    let publisher = NatsPublisher::builder(access.clone()).prefix("shop").declare("SHOP", 1).build().unwrap();
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
    // The server asks for TLS, so both mean the same.
    for scheme in ["nats", "tls"] {
        let access = Access::new(&format!("{scheme}://{}", server.address())).unwrap();
        assert_eq!(publish(&access).await, "unavailable tls", "an unknown authority");
        let wrong = access.clone().ca_file(folder.path().join("stranger.pem"));
        assert_eq!(publish(&wrong).await, "unavailable tls", "another authority");
        let trusting = access.ca_file(folder.path().join("ca.pem"));
        assert_eq!(publish(&trusting).await, "Durable");
    }
    let trusting = |host: &str| {
        let url = format!("tls://{host}:{}", server.address().port());
        Access::new(&url).unwrap().ca_file(folder.path().join("ca.pem"))
    };
    let subscriber = NatsSubscriber::builder(trusting("127.0.0.1"), "SHOP", "c");
    let subscriber = subscriber.declare(&[], Duration::from_secs(30)).subscribe().await.unwrap();
    assert_eq!(&in_time(subscriber.receive(1)).await.unwrap()[0].envelope.payload[..], b"x");
    assert_eq!(publish(&trusting("localhost")).await, "unavailable tls", "a certificate of another name");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_shown_to_a_server_that_asks_for_one() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let server = start(folder.path(), true);
    let file = |name: &str| folder.path().join(name);
    let access = Access::new(&format!("tls://{}", server.address())).unwrap().ca_file(file("ca.pem"));
    assert!(publish(&access).await.starts_with("unavailable "), "nothing was shown");
    let stranger = access.clone().client_certificate(file("stranger.pem"), file("stranger.key"));
    assert!(publish(&stranger).await.starts_with("unavailable "), "the server does not know who signed it");
    let known = access.clone().client_certificate(file("client.pem"), file("client.key"));
    assert_eq!(publish(&known).await, "Durable");
    let mixed = access.client_certificate(file("client.pem"), file("no-such-file"));
    assert!(NatsPublisher::builder(mixed).build().is_err());
}
