//! TLS against a real server, with an authority and certificates made for the test.
#![cfg(feature = "tls")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/own_server.rs"]
mod own_server;

use own_server::{OwnServer, PASSWORD};
use postrider_core::{
    ErrorKind,
    admin::{Actor, StoreAdmin},
    enlist::Enlist,
    envelope::Envelope,
    limits::Limits,
    log::Log,
};
use postrider_store_postgres::{Postgres, PostgresStore, connect, migrations};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "an authority of the tests");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Certificate and key as PEM.
fn certificate(authority: &Authority, common_name: &str, hosts: &[&str]) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(hosts.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, common_name);
    (params.signed_by(&key, authority).unwrap().pem(), key.serialize_pem())
}

/// Files of this side.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn put(&self, name: &str, text: &str, mode: u32) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    }
}

/// A server with TLS whose certificate is for `db.example` and `localhost`, that knows clients by this authority, and that
/// lets in who these lines say.
fn server(authority: &Authority, admission: &str, names: &str) -> OwnServer {
    let (certificate, key) = certificate(authority, "server", &["db.example", "localhost"]);
    OwnServer::start_with_files(
        &[
            ("server.crt", &certificate),
            ("server.key", &key),
            ("ca.crt", &authority.pem()),
            ("hba", admission),
            ("ident", names),
        ],
        &[
            ("ssl", "on"),
            ("ssl_cert_file", "HERE/server.crt"),
            ("ssl_key_file", "HERE/server.key"),
            ("ssl_ca_file", "HERE/ca.crt"),
            ("hba_file", "HERE/hba"),
            ("ident_file", "HERE/ident"),
        ],
    )
}

const BY_PASSWORD: &str = "host all all all scram-sha-256\n";

async fn refused(url: &str) -> (ErrorKind, String) {
    let error = connect(url).await.expect_err("refused");
    let chain = error.chain();
    assert!(!chain.contains(PASSWORD), "{chain}");
    let opened = PostgresStore::open(url).await.unwrap_err();
    assert_eq!(opened.kind(), error.kind(), "the pool refuses what a single connection refuses: {opened:?}");
    (error.kind(), chain)
}

async fn is_encrypted(client: &tokio_postgres::Client) -> bool {
    client.query_one("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_server_that_proves_its_name_is_talked_to() {
    let (ours, other) = (authority(), authority());
    let server = server(&ours, BY_PASSWORD, "");
    let files = Files::new();
    let (right, wrong) = (files.put("right.pem", &ours.pem(), 0o644), files.put("wrong.pem", &other.pem(), 0o644));

    // Not loopback by its name, so verified without being asked to.
    let client = connect(&server.url("db.example", &format!("hostaddr=127.0.0.1&sslrootcert={right}"))).await.unwrap();
    assert!(is_encrypted(&client).await);
    for mode in ["require", "verify-ca", "verify-full"] {
        let url = server.url("localhost", &format!("sslmode={mode}&sslrootcert={right}&channel_binding=require"));
        assert!(is_encrypted(&connect(&url).await.unwrap()).await, "{mode}");
    }

    let (kind, told) = refused(&server.url("localhost", &format!("sslmode=verify-full&sslrootcert={wrong}"))).await;
    assert!(kind == ErrorKind::Denied && told.contains("sslrootcert"), "{kind:?} {told}");
    let (kind, told) = refused(&server.url("db.example", "hostaddr=127.0.0.1")).await;
    assert!(kind == ErrorKind::Denied && told.contains("sslrootcert"), "the system does not know it: {told}");
    for mode in ["require", "verify-ca", "verify-full"] {
        let elsewhere = format!("hostaddr=127.0.0.1&sslmode={mode}&sslrootcert={right}");
        let (kind, told) = refused(&server.url("other.example", &elsewhere)).await;
        assert!(kind == ErrorKind::Denied && told.contains("another host"), "{mode}: {told}");
    }

    let clear = connect(&server.url("db.example", "hostaddr=127.0.0.1&sslmode=disable")).await.unwrap();
    assert!(!is_encrypted(&clear).await);
    let local = connect(&server.url("127.0.0.1", "")).await.unwrap();
    assert!(!is_encrypted(&local).await, "loopback may be in the clear");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_refused_unless_clear_text_is_asked_for() {
    let authority = authority();
    let server = OwnServer::start(&[]);
    let files = Files::new();
    let root = files.put("ca.pem", &authority.pem(), 0o644);
    for url in [
        server.url("localhost", &format!("sslmode=require&sslrootcert={root}")),
        server.url("db.example", &format!("hostaddr=127.0.0.1&sslrootcert={root}")),
    ] {
        let (kind, told) = refused(&url).await;
        assert!(kind == ErrorKind::Denied && told.contains("sslmode=disable"), "{told}");
    }
    assert!(connect(&server.url("db.example", "hostaddr=127.0.0.1&sslmode=disable")).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_can_show_a_certificate() {
    let authority = authority();
    let server = server(&authority, "hostssl all all all cert map=all\n", "all shop postrider\n");
    let files = Files::new();
    let root = files.put("ca.pem", &authority.pem(), 0o644);
    let (certificate, key) = certificate(&authority, "shop", &[]);
    let (cert, key_file) = (files.put("shop.pem", &certificate, 0o644), files.put("shop.key", &key, 0o600));

    let url = |more: &str| server.url("localhost", &format!("sslrootcert={root}{more}"));
    let client = connect(&url(&format!("&sslcert={cert}&sslkey={key_file}"))).await.unwrap();
    assert!(is_encrypted(&client).await);
    let (_, told) = refused(&url("")).await;
    assert!(!told.is_empty());

    let open = files.put("open.key", &key, 0o644);
    let (kind, told) = refused(&url(&format!("&sslcert={cert}&sslkey={open}"))).await;
    assert!(kind == ErrorKind::Invalid && told.contains("sslkey"), "{told}");
    let other = files.put("other.key", &KeyPair::generate().unwrap().serialize_pem(), 0o600);
    let (kind, told) = refused(&url(&format!("&sslcert={cert}&sslkey={other}"))).await;
    assert!(kind == ErrorKind::Invalid && told.contains("do not go together"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_connection_of_a_store_is_encrypted() {
    let authority = authority();
    let server = server(&authority, "hostssl all all all scram-sha-256\n", "");
    let files = Files::new();
    let root = files.put("ca.pem", &authority.pem(), 0o644);
    let url = server.url("localhost", &format!("sslrootcert={root}"));

    assert_eq!(
        migrations::up(&url, &Postgres::default(), &Actor::new("tests")).await.unwrap().len(),
        migrations::LATEST as usize
    );
    let store = PostgresStore::open(&url).await.unwrap();
    let mut client = connect(&url).await.unwrap();
    let mut transaction = client.transaction().await.unwrap();
    let batch = Limits::default().check(vec![Envelope::new("orders", "order.placed", "{}")]);
    transaction.append(&store.dialect(), batch).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(store.overview().await.unwrap().records, 1);

    // The listener and the notifier are connections of their own, and the reader's is a third.
    let notifier = store.notifier();
    let woken = tokio::time::timeout(std::time::Duration::from_secs(20), async {
        let hint = store.hint();
        tokio::pin!(hint);
        loop {
            notifier.notify();
            if tokio::time::timeout(std::time::Duration::from_millis(10), &mut hint).await.is_ok() {
                break;
            }
        }
    });
    assert!(woken.await.is_ok(), "an announcement travels through TLS");
    let open: i64 = client
        .query_one(
            "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE client_port > 0 AND NOT ssl",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(open, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_hosts_the_primary_is_taken_and_a_standby_is_not_read() {
    let primary = OwnServer::start(&[]);
    let standby = primary.standby();
    let both =
        format!("postgres://postrider:{PASSWORD}@127.0.0.1:{},127.0.0.1:{}/postgres", standby.port, primary.port);
    let store = PostgresStore::open(&both).await.unwrap();
    assert_eq!(store.overview().await.unwrap().records, 0);
    let client = connect(&both).await.unwrap();
    let in_recovery: bool = client.query_one("SELECT pg_is_in_recovery()", &[]).await.unwrap().get(0);
    assert!(!in_recovery, "the standby is first in the list and is passed over");

    let only =
        format!("postgres://postrider:{PASSWORD}@127.0.0.1:{}/postgres?target_session_attrs=read-write", standby.port);
    let (kind, _) = refused(&only).await;
    assert_eq!(kind, ErrorKind::Unavailable);
}
