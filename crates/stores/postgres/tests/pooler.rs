//! A pooler between: producers and announcements go through it, and the log is not read through one that gives the server's
//! sessions out by transaction.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/own_server.rs"]
mod own_server;

use std::time::{Duration, Instant};

use own_server::OwnServer;
use postrider_core::{
    ErrorKind,
    enlist::Enlist,
    envelope::Envelope,
    lease::{LaneId, Lease, Node, NodeId, Order, RouteSpec, Start},
    limits::Limits,
    log::{Cursor, Log, PageLimit},
    topic::TopicFilter,
};
use postrider_store_postgres::{Notifier, Postgres, PostgresStore, connect};
use postrider_testkit::fault::Proxy;

const WHOLE: PageLimit = PageLimit { records: 100, bytes: 1 << 20 };

async fn take(store: &PostgresStore) -> (Lease, Cursor) {
    let node = Node {
        id: NodeId::generate(),
        name: "n".into(),
        routes: vec!["r".into()],
        lease_life: Duration::from_secs(3600),
        standstills: Vec::new(),
    };
    let (topics, order, start) = (TopicFilter::all(), Order::Key, Start::Oldest);
    store.register(&node, &[RouteSpec { name: "r".into(), topics, order, lanes: 1, start }]).await.unwrap();
    let lease = store.acquire(&LaneId { route: "r".into(), number: 0 }, &node).await.unwrap().unwrap();
    let cursor = store.resume(&lease).await.unwrap().cursor;
    (lease, cursor)
}

fn server() -> OwnServer {
    // What the pooler can log in with.
    OwnServer::start(&[("password_encryption", "md5")])
}

async fn enqueue_through(url: &str) {
    let mut client = connect(url).await.unwrap();
    for _ in 0..3 {
        let mut transaction = client.transaction().await.unwrap();
        let batch = Limits::default().check(vec![Envelope::new("orders", "order.placed", "{}")]);
        transaction.append(&Postgres::default(), batch).await.unwrap();
        transaction.commit().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_not_read_by_transaction_and_whoever_enqueues_need_not_care() {
    let server = server();
    let direct = PostgresStore::open(&server.url("127.0.0.1", "")).await.unwrap();
    let (lease, cursor) = take(&direct).await;
    let pooler = server.pooler("transaction");
    enqueue_through(&pooler.url()).await;

    let builder = PostgresStore::builder(&pooler.url()).migrate(false).connections_max(1);
    let through = builder.open().await.unwrap();
    let refused = through.read(&lease, &cursor, WHOLE).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused:?}");
    assert!(refused.to_string().contains("pooler") && !refused.is_transient(), "{refused}");
    // Nothing that a reader sets for itself is left to whoever comes next.
    let client = connect(&pooler.url()).await.unwrap();
    let setting = client.simple_query("SHOW enable_seqscan").await.unwrap();
    let is_on = setting.iter().any(|answer| match answer {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0) == Some("on"),
        _ => false,
    });
    assert!(is_on, "{setting:?}");

    assert_eq!(direct.read(&lease, &cursor, WHOLE).await.unwrap().records.len(), 3);
}

/// Sessions that take turns: with two of them that are idle, whoever keeps one leaves the other to the first who asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_whose_sessions_take_turns_is_noticed() {
    let server = server();
    let direct = PostgresStore::open(&server.url("127.0.0.1", "")).await.unwrap();
    let (lease, cursor) = take(&direct).await;
    let pooler = server.pooler_with("transaction", "server_round_robin = 1\ndefault_pool_size = 2");
    // Both sessions are there and idle.
    let clients = [connect(&pooler.url()).await.unwrap(), connect(&pooler.url()).await.unwrap()];
    for sql in ["BEGIN", "COMMIT"] {
        for client in &clients {
            client.batch_execute(sql).await.unwrap();
        }
    }
    let through = match PostgresStore::builder(&pooler.url()).migrate(false).connections_max(1).open().await {
        Ok(through) => through,
        // A statement that was prepared on the one session and is not there on the other: that is noticed as well, and sooner.
        Err(refused) => {
            assert!(format!("{refused:?}").contains("prepared statement"), "{refused:?}");
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused:?}");
            return;
        }
    };
    let refused = through.read(&lease, &cursor, WHOLE).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused:?}");
}

/// A pool of one session is noticed as well, and at once: nobody keeps the session while the other asks.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_with_one_session_is_noticed_or_found_too_small() {
    let server = server();
    let direct = PostgresStore::open(&server.url("127.0.0.1", "")).await.unwrap();
    let (lease, cursor) = take(&direct).await;
    let read = async |by: &str| {
        let pooler = server.pooler_with(by, "default_pool_size = 1");
        let through = PostgresStore::builder(&pooler.url()).migrate(false).connections_max(1).open().await.unwrap();
        through.read(&lease, &cursor, WHOLE).await.unwrap_err()
    };
    let refused = read("transaction").await;
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused:?}");
    // Here the session is kept by the store's other connection.
    let refused = read("session").await;
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused:?}");
    assert!(refused.to_string().contains("too few sessions"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_read_through_a_pooler_that_keeps_sessions_whole() {
    let server = server();
    drop(PostgresStore::open(&server.url("127.0.0.1", "")).await.unwrap());
    let pooler = server.pooler("session");
    let store = PostgresStore::builder(&pooler.url()).migrate(false).connections_max(2).open().await.unwrap();
    let (lease, cursor) = take(&store).await;
    enqueue_through(&pooler.url()).await;
    assert_eq!(store.read(&lease, &cursor, WHOLE).await.unwrap().records.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn announcements_pass_whichever_session_they_are_given() {
    let server = server();
    let store = PostgresStore::open(&server.url("127.0.0.1", "")).await.unwrap();
    let pooler = server.pooler("transaction");
    let proxy = Proxy::to(&format!("127.0.0.1:{}", pooler.port)).await;
    let port = |port: u16| format!(":{port}/");
    let url = pooler.url().replace(&port(pooler.port), &port(proxy.address().port()));
    let notifier = Notifier::connect(&url, &store.dialect()).unwrap();
    let arrives = async || {
        let hint = tokio::spawn({
            let store = store.clone();
            async move { store.hint().await }
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        // Listener and notifier connect in the background; announcements are cheap and may be lost until they have.
        while !hint.is_finished() {
            assert!(Instant::now() < deadline, "an announcement arrives");
            notifier.notify();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    arrives().await;
    // Others take the sessions that it had so far.
    let mut others = Vec::new();
    for _ in 0..3 {
        let other = connect(&pooler.url()).await.unwrap();
        other.batch_execute("BEGIN").await.unwrap();
        others.push(other);
    }
    arrives().await;
    assert_eq!(proxy.connections(), 1, "on one connection");
}
