//! What cannot be tried on a server that others use: TLS, limits of the server, and a server without memory.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{
    collections::BTreeMap,
    fs,
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use postrider_core::{
    envelope::Envelope,
    transport::{Delivery, Outcome, Publisher, Subscriber},
};
use postrider_testkit::{
    fault::{Proxy, Server, free_port},
    patience::in_time,
    transport::record,
};
use postrider_transport_rabbitmq::{Access, RabbitmqPublisher, RabbitmqSubscriber};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use support::{Own, control, server_in};

/// Long enough for a hundred messages one by one, and for a queue that has just begun, on any machine.
const TIMEOUT: Duration = Duration::from_secs(30);

fn to(access: Access, own: &Own) -> RabbitmqPublisher {
    RabbitmqPublisher::builder(access).exchange(&own.name).timeout(TIMEOUT).build().unwrap()
}

async fn outcomes(publisher: &RabbitmqPublisher, payloads: &[&str]) -> Vec<String> {
    let envelope = |payload: &&str| record(&Envelope::new("orders", "n", (*payload).to_owned()));
    let outcomes = publisher.publish(payloads.iter().map(envelope).collect()).await;
    let shown = |outcome: &Outcome| match outcome {
        Outcome::Rejected(cause) | Outcome::Unavailable(cause) | Outcome::Unknown(cause) => {
            format!("{} {}", outcome.name(), cause.code())
        }
        other => other.name().to_owned(),
    };
    outcomes.iter().map(shown).collect()
}

/// Ends the server and starts it again. It listens on one port after the other, so it is ready when it does on both.
fn again(server: &mut Server, tls_port: u16) {
    server.stop();
    server.restart();
    listens(tls_port);
}

/// Waits until somebody listens on a port.
fn listens(port: u16) {
    let (begun, address) = (Instant::now(), SocketAddr::from(([127, 0, 0, 1], port)));
    while TcpStream::connect(address).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(120), "nobody listens on {address}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// An authority, and certificates of it for `localhost` and for a client, as PEM files that the server can read.
fn certificates(folder: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // Another name than the certificates have, or they would look like ones that sign themselves.
    params.distinguished_name.push(DnType::CommonName, "an authority of our own");
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap().pem();
    let client_key = KeyPair::generate().unwrap();
    let client = CertificateParams::new(Vec::new()).unwrap().signed_by(&client_key, &issuer).unwrap().pem();
    for (name, pem) in [
        ("ca.pem", authority),
        ("server.pem", certificate),
        ("key.pem", key.serialize_pem()),
        ("client.pem", client),
        ("client.key", client_key.serialize_pem()),
    ] {
        fs::write(folder.join(name), pem).unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_the_server_and_tls_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    certificates(path);
    let tls_port = free_port();
    let file = |name: &str| path.join(name).display().to_string();
    let settings = [
        ("max_message_size", "1000".to_owned()),
        ("listeners.ssl.1", format!("127.0.0.1:{tls_port}")),
        ("ssl_options.cacertfile", file("ca.pem")),
        ("ssl_options.certfile", file("server.pem")),
        ("ssl_options.keyfile", file("key.pem")),
    ];
    let text: String = settings.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
    fs::write(path.join("rabbitmq.conf"), &text).unwrap();
    let mut server = server_in(path);
    listens(tls_port);
    let url = format!("amqp://{}", server.address());
    let own = Own::on(&url).await;

    // The server ends the channel for the large one; its neighbours do not pay for it.
    let publisher = to(Access::new(&url).unwrap(), &own);
    let large = "x".repeat(2_000);
    assert_eq!(outcomes(&publisher, &["a", &large, "b"]).await, ["durable", "rejected amqp-406", "durable"]);
    assert_eq!(outcomes(&publisher, &[&large]).await, ["rejected amqp-406"]);
    // Many suspects at once: each is sent alone, and all are told from the one that was to blame.
    let mut payloads = vec!["x"; 100];
    payloads[40] = &large;
    let expected: Vec<_> = (0..100).map(|i| if i == 40 { "rejected amqp-406" } else { "durable" }).collect();
    assert_eq!(outcomes(&publisher, &payloads).await, expected);

    let over_tls = Access::new(&format!("amqps://localhost:{tls_port}")).unwrap();
    assert_eq!(outcomes(&to(over_tls.clone(), &own), &["x"]).await, ["unavailable tls"], "an unknown authority");
    let refused = RabbitmqSubscriber::builder(over_tls.clone(), &own.name).subscribe().await.err().unwrap();
    assert!(refused.is_transient() && refused.chain().contains("tls"), "{}", refused.chain());
    let trusting = over_tls.ca_file(path.join("ca.pem")).unwrap();
    assert_eq!(outcomes(&to(trusting.clone(), &own), &["over tls"]).await, ["durable"]);
    receives(trusting, &own, "over tls").await;
    let by_address = Access::new(&format!("amqps://127.0.0.1:{tls_port}")).unwrap();
    let misnamed = to(by_address.ca_file(path.join("ca.pem")).unwrap(), &own);
    assert_eq!(outcomes(&misnamed, &["x"]).await, ["unavailable tls"], "a certificate of another name");

    // A server that asks for a certificate, which is shown to it or is not.
    let asking = "ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true\n";
    fs::write(path.join("rabbitmq.conf"), format!("{text}{asking}")).unwrap();
    again(&mut server, tls_port);
    let access = Access::new(&format!("amqps://localhost:{tls_port}")).unwrap().ca_file(path.join("ca.pem")).unwrap();
    let refused = outcomes(&to(access.clone(), &own), &["x"]).await.remove(0);
    assert_eq!(refused, "unavailable tls");
    let known = access.client_certificate(path.join("client.pem"), path.join("client.key")).unwrap();
    assert_eq!(outcomes(&to(known.clone(), &own), &["known"]).await, ["durable"]);
    receives(known, &own, "known").await;
}

/// Whoever may publish also receives, up to this message.
async fn receives(access: Access, own: &Own, payload: &str) {
    let subscriber = RabbitmqSubscriber::builder(access, &own.name).timeout(TIMEOUT).subscribe().await.unwrap();
    let mut received = Vec::new();
    while !received.iter().any(|got: &Delivery| got.envelope.payload[..] == *payload.as_bytes()) {
        received = in_time(subscriber.receive(1_000)).await.unwrap();
    }
}

/// An alarm that comes and goes. While the server takes nothing, nothing is sent to it, and the one connection is kept: otherwise
/// every attempt would leave a connection behind, and in it a message that is taken in the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_memory_is_not_sent_to_again_and_again() {
    const BATCHES: usize = 4;
    const MESSAGES: usize = 100;
    let folder = tempfile::tempdir().unwrap();
    let server = server_in(folder.path());
    let own = Own::on(&format!("amqp://{}", server.address())).await;
    let proxy = Proxy::to(&server.address().to_string()).await;
    let access = Access::new(&format!("amqp://{}", proxy.address())).unwrap();
    let publisher = RabbitmqPublisher::builder(access).exchange(&own.name).timeout(Duration::from_secs(10));
    let publisher = Arc::new(publisher.build().unwrap());
    in_time(async { while outcomes(&publisher, &["before"]).await != ["durable"] {} }).await;
    let connections = proxy.connections();

    control(&server, folder.path(), &["set_vm_memory_high_watermark", "0"]);
    // More than the client can write before it hears that it must not.
    let under_way: Vec<_> = (0..BATCHES)
        .map(|batch| {
            let publisher = Arc::clone(&publisher);
            tokio::spawn(async move {
                let payloads: Vec<String> =
                    (0..MESSAGES).map(|message| format!("{batch} {message} {}", "x".repeat(20_000))).collect();
                outcomes(&publisher, &payloads.iter().map(String::as_str).collect::<Vec<_>>()).await
            })
        })
        .collect();
    for batch in under_way {
        assert_eq!(in_time(batch).await.unwrap(), vec!["unavailable blocked"; MESSAGES]);
    }
    for _ in 0..10 {
        assert_eq!(outcomes(&publisher, &["probe"]).await, ["unavailable blocked"]);
    }
    assert_eq!(proxy.connections(), connections, "no attempt makes another connection");

    control(&server, folder.path(), &["set_vm_memory_high_watermark", "0.4"]);
    in_time(async { while outcomes(&publisher, &["after"]).await != ["durable"] {} }).await;
    assert_eq!(
        outcomes(&publisher, &["after"; 10]).await,
        vec!["durable"; 10],
        "also when what was under way is done with"
    );
    assert_eq!(proxy.connections(), connections, "and the one that was blocked goes on");
    let mut seen = BTreeMap::<String, usize>::new();
    for event in own.events().await {
        let text = String::from_utf8_lossy(&event.envelope.payload).into_owned();
        *seen.entry(text).or_default() += 1;
    }
    assert_eq!(seen.get("probe"), None, "nothing is sent while nothing is taken");
    seen.retain(|text, count| text.ends_with('x') && *count > 1);
    assert_eq!(seen.len(), 0, "what was under way is there once at most");
}
