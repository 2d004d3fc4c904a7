//! Logging in, on servers of one's own: by password, token and credentials, and what becomes of messages where the login is
//! wrong or has no right to publish.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{fs, path::Path, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use nkeys::KeyPair;
use postrider_core::{
    envelope::Envelope,
    transport::{Outcome, Publisher, Subscriber},
};
use postrider_testkit::{fault::Server, patience::in_time, transport::record};
use postrider_transport_nats::{Access, NatsPublisher, NatsSubscriber};
use serde_json::{Value, json};

use support::program;

/// A server with these settings beside its streams.
fn start(folder: &Path, settings: &str) -> Server {
    let (file, data) = (folder.join("server.conf"), folder.join("data").display().to_string());
    fs::write(&file, format!("{settings}\njetstream {{ store_dir: \"{data}\" }}\n")).unwrap();
    let file = file.display().to_string();
    Server::start(&program(), |port| {
        ["-a", "127.0.0.1", "-p", &port.to_string(), "-c", &file].map(str::to_owned).to_vec()
    })
}

fn access(server: &Server) -> Access {
    Access::new(&format!("nats://{}", server.address())).unwrap()
}

async fn publish(access: &Access, topics: &[&str]) -> Vec<String> {
    let publisher = NatsPublisher::builder(access.clone()).prefix("shop").declare("SHOP", 1).build().unwrap();
    let batch = topics.iter().map(|topic| record(&Envelope::new(topic, "n", "x"))).collect();
    let shown = |outcome: &Outcome| match outcome {
        Outcome::Unavailable(cause) => {
            // Shown if the test fails.
            println!("{cause}");
            format!("unavailable {}", cause.code())
        }
        other => format!("{other:?}"),
    };
    publisher.publish(batch).await.iter().map(shown).collect()
}

/// Whoever is let in also receives.
async fn receives(access: &Access) {
    let subscriber = NatsSubscriber::builder(access.clone(), "SHOP", "c").declare(&[], Duration::from_secs(30));
    let subscriber = subscriber.subscribe().await.unwrap();
    assert_eq!(&in_time(subscriber.receive(1)).await.unwrap()[0].envelope.payload[..], b"x");
}

#[tokio::test(flavor = "multi_thread")]
async fn by_password() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), r#"authorization { users: [ { user: "relay", password: "canary" } ] }"#);
    let known = access(&server).password("relay", "canary");
    assert_eq!(publish(&known, &["orders"]).await, ["Durable"]);
    receives(&known).await;
    for stranger in [
        access(&server),
        access(&server).password("relay", "wrong"),
        access(&server).password("other", "canary"),
        access(&server).token("canary"),
    ] {
        assert_eq!(publish(&stranger, &["orders"]).await, ["unavailable denied"]);
        let error = NatsSubscriber::builder(stranger, "SHOP", "c").subscribe().await.err().unwrap();
        assert!(error.chain().contains("denied") && !error.chain().contains("canary"), "{}", error.chain());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn by_token() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), r#"authorization { token: "canary" }"#);
    let known = access(&server).token("canary");
    assert_eq!(publish(&known, &["orders"]).await, ["Durable"]);
    receives(&known).await;
    assert_eq!(publish(&access(&server).token("wrong"), &["orders"]).await, ["unavailable denied"]);
}

/// Whoever takes a right by mistake gives it back, and no message has paid for it; nor do those pay that may go.
#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_missing_is_an_outage_of_its_subjects() {
    let folder = tempfile::tempdir().unwrap();
    let permissions = r#"publish: { allow: ["$JS.API.>", "shop.orders"] }"#;
    let user = format!(r#"{{ user: "relay", password: "canary", permissions: {{ {permissions} }} }}"#);
    let server = start(folder.path(), &format!("authorization {{ users: [ {user} ] }}"));
    let known = access(&server).password("relay", "canary");
    let outcomes = publish(&known, &["orders", "invoices", "refunds", "orders"]).await;
    assert_eq!(outcomes, ["Durable", "unavailable denied", "unavailable denied", "Durable"]);
}

/// Claims, signed as the server wants them.
fn signed(signer: &KeyPair, subject: &KeyPair, name: &str, nats: &Value) -> String {
    let claims = json!({
        "jti": name, "iat": 1_700_000_000, "iss": signer.public_key(), "name": name, "sub": subject.public_key(), "nats": nats,
    });
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", encode(&json!({ "typ": "JWT", "alg": "ed25519-nkey" })), encode(&claims));
    let signature = URL_SAFE_NO_PAD.encode(signer.sign(text.as_bytes()).unwrap());
    format!("{text}.{signature}")
}

/// The text of a `.creds` file for a new user of an account.
fn credentials(account: &KeyPair) -> String {
    let user = KeyPair::new_user();
    let nats = json!({ "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2 });
    let (jwt, seed) = (signed(account, &user, "relay", &nats), user.seed().unwrap());
    [
        "-----BEGIN NATS USER JWT-----",
        &jwt,
        "------END NATS USER JWT------",
        "",
        "-----BEGIN USER NKEY SEED-----",
        &seed,
        "------END USER NKEY SEED------",
        "",
    ]
    .join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn by_credentials() {
    let folder = tempfile::tempdir().unwrap();
    let (operator, account, system) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
    let everything = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
    });
    let mut with_streams = everything.clone();
    for limit in ["mem_storage", "disk_storage", "streams", "consumer"] {
        with_streams[limit] = json!(-1);
    }
    let claims = |limits: &Value| json!({ "limits": limits, "type": "account", "version": 2 });
    let settings = format!(
        "operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{ {}: {}, {}: {} }}",
        signed(&operator, &operator, "operator", &json!({ "type": "operator", "version": 2 })),
        system.public_key(),
        account.public_key(),
        signed(&operator, &account, "shop", &claims(&with_streams)),
        system.public_key(),
        signed(&operator, &system, "system", &claims(&everything)),
    );
    let server = start(folder.path(), &settings);
    let known = access(&server).credentials(&credentials(&account));
    assert_eq!(publish(&known, &["orders"]).await, ["Durable"]);
    receives(&known).await;
    let stranger = access(&server).credentials(&credentials(&KeyPair::new_account()));
    assert_eq!(publish(&stranger, &["orders"]).await, ["unavailable denied"], "of an account that nobody knows");
    let garbled = access(&server).credentials("no credentials");
    assert!(NatsPublisher::builder(garbled).build().is_err());
}
