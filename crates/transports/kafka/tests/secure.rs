//! Certificates and logins, on a server of one's own that asks for both.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{fs, path::Path};

use postrider_core::{
    envelope::Envelope,
    transport::{Outcome, Publisher, Subscriber},
};
use postrider_testkit::{fault::Server, transport::record};
use postrider_transport_kafka::{Access, KafkaPublisher, KafkaSubscriber, Mechanism};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use support::free_port;

/// Speaks TLS on one port and lets in `plain` and `scram`, whose password is `canary`.
fn start(folder: &Path) -> (Server, String) {
    certificates(folder);
    fs::write(
        folder.join("format.arguments"),
        "--add-scram SCRAM-SHA-512=[name=scram,password=canary] --add-scram SCRAM-SHA-256=[name=scram,password=canary]",
    )
    .unwrap();
    let (secure, directory, login) = (free_port(), folder.display(), "org.apache.kafka.common.security");
    let server = support::start(folder, |port, controller| {
        format!(
            "listeners=PLAIN://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},SECURE://127.0.0.1:{secure}\n\
             advertised.listeners=PLAIN://127.0.0.1:{port},SECURE://127.0.0.1:{secure}\n\
             listener.security.protocol.map=PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL\n\
             listener.name.secure.ssl.keystore.type=PEM\n\
             listener.name.secure.ssl.keystore.location={directory}/server.pem\n\
             listener.name.secure.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n\
             listener.name.secure.plain.sasl.jaas.config={login}.plain.PlainLoginModule required user_plain=\"canary\";\n\
             listener.name.secure.scram-sha-256.sasl.jaas.config={login}.scram.ScramLoginModule required;\n\
             listener.name.secure.scram-sha-512.sasl.jaas.config={login}.scram.ScramLoginModule required;\n"
        )
    });
    (server, format!("kafka://127.0.0.1:{secure}"))
}

/// An authority of our own in `ca.pem`, and key and certificate of the server in `server.pem`.
fn certificates(folder: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // Another name than the server's, or its certificate would look like one that signs itself.
    params.distinguished_name.push(DnType::CommonName, "an authority of our own");
    let authority = KeyPair::generate().unwrap();
    fs::write(folder.join("ca.pem"), params.self_signed(&authority).unwrap().pem()).unwrap();
    let (key, issuer) = (KeyPair::generate().unwrap(), Issuer::new(params, authority));
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    fs::write(folder.join("server.pem"), format!("{}{}", key.serialize_pem(), certificate.pem())).unwrap();
}

async fn publish(access: &Access) -> String {
    let publisher = KafkaPublisher::builder(access.clone()).topic("orders").declare(1, Some(1)).build().unwrap();
    let outcome = publisher.publish(vec![record(&Envelope::new("orders", "n", "x"))]).await.remove(0);
    assert!(!format!("{outcome:?}").contains("canary"), "{outcome:?}");
    match &outcome {
        Outcome::Unavailable(cause) => {
            // Shown if the test fails.
            println!("{cause}");
            format!("unavailable {}", cause.code())
        }
        other => other.name().to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_and_logins_are_checked_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let (_server, url) = tokio::task::spawn_blocking(move || start(&path)).await.unwrap();
    let trusting = Access::new(&url).unwrap().tls().ca_file(folder.path().join("ca.pem"));
    for (mechanism, user) in
        [(Mechanism::Plain, "plain"), (Mechanism::ScramSha256, "scram"), (Mechanism::ScramSha512, "scram")]
    {
        let known = trusting.clone().password(mechanism, user, "canary");
        assert_eq!(publish(&known).await, "durable", "{mechanism:?}");
        let wrong = trusting.clone().password(mechanism, user, "canary but wrong");
        assert_eq!(publish(&wrong).await, "unavailable denied", "{mechanism:?}");
    }
    let known = trusting.password(Mechanism::ScramSha512, "scram", "canary");
    let subscriber = KafkaSubscriber::builder(known, "g", ["orders"]).subscribe().await.unwrap();
    assert_eq!(&subscriber.receive(1).await.unwrap()[0].envelope.payload[..], b"x");
    // Whose certificate nobody has signed that we know.
    let suspicious = Access::new(&url).unwrap().tls().password(Mechanism::Plain, "plain", "canary");
    assert_eq!(publish(&suspicious).await, "unavailable tls");
}
