//! TLS: the right certificate passes, every wrong one is an outage that is named.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex},
};

use postrider_core::{
    BoxFuture,
    envelope::Envelope,
    transport::{Outcome, Publisher},
};
use postrider_testkit::transport::record;
use postrider_transport_http::{Builder, Guard, HttpPublisher, Resolve};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use tokio::net::TcpListener;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::aws_lc_rs, pki_types::PrivateKeyDer},
};

use support::{Receiver, Seen, secret, status};

struct Loopback;

impl Resolve for Loopback {
    fn resolve<'a>(&'a self, _name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(std::future::ready(Ok(vec![Ipv4Addr::LOCALHOST.into()])))
    }
}

/// An authority of our own.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }
}

/// A certificate for a name, as a server holds it.
fn certificate(authority: Option<&Authority>, name: &str, expired: bool) -> ServerConfig {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    if expired {
        params.not_after = date_time_ymd(2001, 1, 1);
    }
    let key = KeyPair::generate().unwrap();
    let certificate = match authority {
        Some(authority) => params.signed_by(&key, &authority.issuer).unwrap(),
        None => params.self_signed(&key).unwrap(),
    };
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap()
}

/// A server with this certificate; its requests, and a publisher that trusts the authority.
async fn server(config: ServerConfig, authority: &Authority) -> (Arc<Mutex<Vec<Seen>>>, Builder) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (noted, acceptor) = (Arc::clone(&seen), TlsAcceptor::from(Arc::new(config)));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (noted, acceptor) = (Arc::clone(&noted), acceptor.clone());
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    support::serve(stream, noted, Arc::new(|_| status(200))).await;
                }
            });
        }
    });
    (seen, builder(port, authority))
}

fn builder(port: u16, authority: &Authority) -> Builder {
    let guard = Guard::default().allow_port(port).allow("127.0.0.1".parse().unwrap());
    HttpPublisher::builder(&format!("https://hooks.test:{port}/"))
        .secret(secret())
        .guard(guard)
        .resolver(Arc::new(Loopback))
        .system_roots(false)
        .ca_pem(&authority.pem)
}

async fn outcome(builder: Builder) -> Outcome {
    let publisher = builder.build().unwrap();
    publisher.publish(vec![record(&Envelope::new("orders", "order.placed", "{}"))]).await.remove(0)
}

fn is_tls_failure(outcome: &Outcome, word: &str) -> bool {
    matches!(outcome, Outcome::Unavailable(cause) if cause.code() == "tls" && cause.detail().contains(word))
}

#[tokio::test]
async fn the_right_certificate_passes() {
    let authority = Authority::new();
    let (seen, builder) = server(certificate(Some(&authority), "hooks.test", false), &authority).await;
    assert_eq!(outcome(builder).await, Outcome::Durable);
    seen.lock().unwrap()[0].event();
}

#[tokio::test]
async fn a_file_of_certificates_is_trusted() {
    let authority = Authority::new();
    let (_, builder) = server(certificate(Some(&authority), "hooks.test", false), &Authority::new()).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &authority.pem).unwrap();
    assert_eq!(outcome(builder.ca_file(file.path())).await, Outcome::Durable);
}

#[tokio::test]
async fn wrong_certificates_are_an_outage_and_get_no_message() {
    let (authority, other) = (Authority::new(), Authority::new());
    let wrong = [
        ("another name", certificate(Some(&authority), "other.test", false), "hooks.test"),
        ("another authority", certificate(Some(&other), "hooks.test", false), "certificate"),
        ("self-signed", certificate(None, "hooks.test", false), ""),
        ("expired", certificate(Some(&authority), "hooks.test", true), "expired"),
    ];
    for (what, config, word) in wrong {
        let (seen, builder) = server(config, &authority).await;
        let outcome = outcome(builder).await;
        assert!(is_tls_failure(&outcome, word), "{what}: {outcome:?}");
        assert!(seen.lock().unwrap().is_empty(), "{what}: the message was sent all the same");
    }
}

#[tokio::test]
async fn a_server_without_tls_is_not_spoken_to_in_the_clear() {
    let receiver = Receiver::good().await;
    let outcome = outcome(builder(receiver.address.port(), &Authority::new())).await;
    assert!(is_tls_failure(&outcome, ""), "{outcome:?}");
    assert!(receiver.seen().is_empty());
}
