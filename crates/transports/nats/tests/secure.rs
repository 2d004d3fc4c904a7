//! Certificates, on servers of one's own: who does not know the other is refused, and told so.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{
    io::{BufRead, BufReader},
    net::TcpStream,
    path::Path,
    time::{Duration, Instant},
};

use postrider_core::{
    envelope::Envelope,
    transport::{Outcome, Publisher, Subscriber},
};
use postrider_outage::certificates;
use postrider_testkit::{
    fault::{Proxy, Server, free_port},
    patience::in_time,
    transport::record,
};
use postrider_transport_nats::{Access, NatsPublisher, NatsSubscriber};

use support::{program, url};

/// Longer than anything here takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(120);

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

/// What is said to a server without TLS everybody on the way can read, the password among it.
#[tokio::test(flavor = "multi_thread")]
async fn where_tls_is_asked_for_a_server_without_it_is_not_spoken_to() {
    let access = Access::new(&url().replace("nats://", "tls://")).unwrap();
    assert_eq!(publish(&access).await, "unavailable tls");
    let error = NatsSubscriber::builder(access, "SHOP", "c").subscribe().await.err().unwrap();
    assert!(error.is_transient() && error.chain().contains("tls"), "{}", error.chain());
    let plain = Access::new(&url()).unwrap();
    let nobody = NatsPublisher::builder(plain).prefix("nobody-takes-this").build().unwrap();
    let outcome = nobody.publish(vec![record(&Envelope::new("orders", "n", "x"))]).await.remove(0);
    assert!(matches!(&outcome, Outcome::Unavailable(cause) if cause.code() == "no-stream"), "it answers: {outcome:?}");
}

/// What a server says first, which it says before TLS begins.
fn announced(server: &Server) -> String {
    let mut line = String::new();
    BufReader::new(TcpStream::connect(server.address()).unwrap()).read_line(&mut line).unwrap();
    line
}

/// A cluster tells its clients of all its servers, and not whether they speak TLS. One that does not is no way out when the
/// others are gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_a_cluster_tells_of_is_not_spoken_to_without_tls_either() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let member = |port: u16, cluster: u16| {
        let (port, cluster) = (port.to_string(), format!("nats://127.0.0.1:{cluster}"));
        ["-a", "127.0.0.1", "-p", &port, "--cluster_name", "c", "--cluster", &cluster].map(str::to_owned).to_vec()
    };
    let cluster = free_port();
    let mut secure = Server::start(&program(), |port| {
        let shown = ["--tls", "--tlscert", &file("server.pem"), "--tlskey", &file("server.key")].map(str::to_owned);
        [member(port, cluster), shown.to_vec()].concat()
    });
    let proxy = Proxy::to("127.0.0.1:1").await;
    let address = proxy.address().to_string();
    let plain = Server::start(&program(), |port| {
        let routes = format!("nats://127.0.0.1:{cluster}");
        let announced = ["--routes", &routes, "--client_advertise", &address].map(str::to_owned);
        [member(port, free_port()), announced.to_vec()].concat()
    });
    proxy.lead_to(&plain.address().to_string());
    let begun = Instant::now();
    while !announced(&secure).contains(&address) {
        assert!(begun.elapsed() < PATIENCE, "the servers do not find each other: {}", announced(&secure));
    }
    let access = Access::new(&format!("tls://{}", secure.address())).unwrap().ca_file(folder.path().join("ca.pem"));
    let publisher = NatsPublisher::builder(access).build().unwrap();
    let publish = async || publisher.publish(vec![record(&Envelope::new("orders", "n", "x"))]).await.remove(0);
    let told = |outcome: &Outcome| matches!(outcome, Outcome::Unavailable(cause) if cause.code() == "disconnected");
    assert!(!told(&publish().await), "there is a connection, although nobody takes the message");
    secure.kill();
    // Somebody who speaks without TLS would stay with the other one.
    while proxy.connections() < 3 {
        assert!(begun.elapsed() < PATIENCE, "{} connections", proxy.connections());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let outcome = publish().await;
    assert!(told(&outcome), "{outcome:?}");
}
