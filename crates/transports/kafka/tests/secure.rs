//! Certificates and logins, on a server of one's own that asks for both.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{fs, path::Path, time::Instant};

use postrider_core::{
    envelope::Envelope,
    transport::{Outcome, Publisher, Subscriber},
};
use postrider_testkit::{
    fault::{Server, free_port},
    patience::in_time,
    transport::record,
};
use postrider_transport_kafka::{Access, KafkaPublisher, KafkaSubscriber, Mechanism};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};

use support::{PATIENCE, serves, subscribed};

/// Speaks TLS on one port and lets in `plain`, `scram` and `stranger`, whose password is `canary`. The last may do nothing.
/// On another port it asks for a certificate instead, of `relay`.
fn start(folder: &Path) -> (Server, String, String) {
    certificates(folder);
    fs::write(
        folder.join("format.arguments"),
        "--add-scram SCRAM-SHA-512=[name=scram,password=canary] --add-scram SCRAM-SHA-256=[name=scram,password=canary]",
    )
    .unwrap();
    let (secure, mutual) = (free_port(), free_port());
    let (directory, login) = (folder.display(), "org.apache.kafka.common.security");
    let server = support::start(folder, |port, controller| {
        format!(
            "listeners=PLAIN://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},SECURE://127.0.0.1:{secure},\
             MUTUAL://127.0.0.1:{mutual}\n\
             advertised.listeners=PLAIN://127.0.0.1:{port},SECURE://127.0.0.1:{secure},MUTUAL://127.0.0.1:{mutual}\n\
             listener.security.protocol.map=PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL,MUTUAL:SSL\n\
             listener.name.mutual.ssl.keystore.type=PEM\n\
             listener.name.mutual.ssl.keystore.location={directory}/server.pem\n\
             listener.name.mutual.ssl.truststore.type=PEM\n\
             listener.name.mutual.ssl.truststore.location={directory}/ca.pem\n\
             listener.name.mutual.ssl.client.auth=required\n\
             listener.name.secure.ssl.keystore.type=PEM\n\
             listener.name.secure.ssl.keystore.location={directory}/server.pem\n\
             listener.name.secure.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n\
             listener.name.secure.plain.sasl.jaas.config={login}.plain.PlainLoginModule required user_plain=\"canary\" user_stranger=\"canary\";\n\
             listener.name.secure.scram-sha-256.sasl.jaas.config={login}.scram.ScramLoginModule required;\n\
             listener.name.secure.scram-sha-512.sasl.jaas.config={login}.scram.ScramLoginModule required;\n\
             authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
             super.users=User:ANONYMOUS;User:plain;User:scram;User:CN=relay\n"
        )
    });
    (server, format!("kafka://127.0.0.1:{secure}"), format!("kafka://127.0.0.1:{mutual}"))
}

/// An authority of our own in `ca.pem`, key and certificate of the server in `server.pem`, and those of a client in
/// `client.pem` and `client.key`.
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
    let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::new(Vec::new()).unwrap());
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "relay");
    fs::write(folder.join("client.pem"), params.signed_by(&key, &issuer).unwrap().pem()).unwrap();
    fs::write(folder.join("client.key"), key.serialize_pem()).unwrap();
}

/// Publishes until it becomes of it what should: on a slow machine the first words to a server may take too long.
async fn publishing_is(access: &Access, expected: &str) {
    let begun = Instant::now();
    loop {
        let outcome = publish(access).await;
        if outcome == expected {
            return;
        }
        let slow = outcome.starts_with("unavailable ") && begun.elapsed() < PATIENCE;
        assert!(slow, "it is {outcome} and should be {expected}");
    }
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
    let (server, url, mutual) = tokio::task::spawn_blocking(move || start(&path)).await.unwrap();
    serves(&format!("kafka://{}", server.address())).await;
    let trusting = Access::new(&url).unwrap().tls().ca_file(folder.path().join("ca.pem"));
    for (mechanism, user) in
        [(Mechanism::Plain, "plain"), (Mechanism::ScramSha256, "scram"), (Mechanism::ScramSha512, "scram")]
    {
        let known = trusting.clone().password(mechanism, user, "canary");
        println!("{mechanism:?}");
        publishing_is(&known, "durable").await;
        let wrong = trusting.clone().password(mechanism, user, "canary but wrong");
        publishing_is(&wrong, "unavailable denied").await;
    }
    let known = trusting.password(Mechanism::ScramSha512, "scram", "canary");
    let subscriber = subscribed(KafkaSubscriber::builder(known, "g", ["orders"]).timeout(PATIENCE)).await;
    assert_eq!(&in_time(subscriber.receive(1)).await.unwrap()[0].envelope.payload[..], b"x");
    // Or its end would go on beside that of the program, which puts OpenSSL away.
    subscriber.close().await.unwrap();
    // A right that is missing is an outage: whoever took it gives it back, and no message has paid for it.
    let stranger = Access::new(&url).unwrap().tls().ca_file(folder.path().join("ca.pem"));
    publishing_is(&stranger.password(Mechanism::Plain, "stranger", "canary"), "unavailable kafka-29").await;
    // A certificate instead of a login.
    let file = |name: &str| folder.path().join(name);
    let mutual = Access::new(&mutual).unwrap().tls().ca_file(file("ca.pem"));
    assert!(publish(&mutual).await.starts_with("unavailable "), "nothing was shown");
    publishing_is(&mutual.client_certificate(file("client.pem"), file("client.key")), "durable").await;
    // Whose certificate nobody has signed that we know.
    let suspicious = Access::new(&url).unwrap().tls().password(Mechanism::Plain, "plain", "canary");
    publishing_is(&suspicious, "unavailable tls").await;
}
