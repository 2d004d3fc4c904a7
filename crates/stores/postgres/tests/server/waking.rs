//! Hints between processes when their connections are cut: the log is read all the same, and hints come again by themselves.

use std::time::{Duration, Instant};

use postrider_core::{
    admin::{Actor, ParkedFilter, StoreAdmin},
    envelope::Envelope,
    log::Log,
};
use postrider_store_postgres::{Notifier, PostgresStore};
use postrider_testkit::fault::{Proxy, Traffic};
use tokio_postgres::Client;

use crate::{
    Post,
    support::{batch, connect, url},
};

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The first hint of all. Both sides connect in the background; announcements are cheap, and lost until both have.
async fn first_hint(store: &PostgresStore, notifier: &Notifier) {
    let (mut hint, deadline) = (store.hint(), Instant::now() + PATIENCE);
    while tokio::time::timeout(Duration::from_millis(5), &mut hint).await.is_err() {
        assert!(Instant::now() < deadline, "an announcement arrives");
        notifier.notify();
    }
}

/// The session whose last statement, or whose application, is this one, once it is there and at rest.
async fn session(client: &Client, column: &str, value: &str) -> i32 {
    let sql = format!("SELECT pid FROM pg_stat_activity WHERE {column} = $1 AND state = 'idle'");
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(row) = client.query_opt(&sql, &[&value]).await.unwrap() {
            return row.get(0);
        }
        assert!(Instant::now() < deadline, "{column} {value}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Ends a session, and waits until it is gone.
async fn cut(client: &Client, pid: i32) {
    assert!(client.query_one("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap().get::<_, bool>(0));
    let deadline = Instant::now() + PATIENCE;
    while client.query_opt("SELECT 1 FROM pg_stat_activity WHERE pid = $1", &[&pid]).await.unwrap().is_some() {
        assert!(Instant::now() < deadline, "a terminated session ends");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_was_cut_off_listens_again_and_only_time_was_lost() {
    let mut post = Post::new(20).await;
    let (store, client) = (post.store.clone(), connect().await);
    let notifier = post.place.another().await.notifier();
    let listens = format!("LISTEN \"{}.log\"", post.place.schema());
    first_hint(&store, &notifier).await;
    for round in 0..3 {
        let hint = store.hint();
        cut(&client, session(&client, "query", &listens).await).await;
        let sent = post.commit(3).await;
        assert_eq!(post.read_on().await, sent, "the log is read without any hint");
        // Something may have been announced meanwhile.
        let woken = tokio::time::timeout(PATIENCE, hint).await;
        assert!(woken.is_ok(), "round {round}: who waits is told when somebody listens again");
        session(&client, "query", &listens).await;
        let hint = store.hint();
        notifier.notify();
        let woken = tokio::time::timeout(PATIENCE, hint).await;
        assert!(woken.is_ok(), "round {round}: announcements arrive as before");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_announced_is_announced_on_the_next_connection() {
    let post = Post::new(20).await;
    let (store, client) = (post.store.clone(), connect().await);
    let application = format!("notifier-{}", uuid::Uuid::now_v7().simple());
    let notifier = Notifier::connect(&format!("{}?application_name={application}", url()), &store.dialect()).unwrap();
    first_hint(&store, &notifier).await;
    for round in 0..3 {
        cut(&client, session(&client, "application_name", &application).await).await;
        let hint = store.hint();
        notifier.notify();
        assert!(tokio::time::timeout(PATIENCE, hint).await.is_ok(), "round {round}: asked for once");
    }
}

/// What a proxy that keeps connections and passes nothing on costs: the time until somebody asks, and gets no answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_on_which_nothing_passes_is_given_up_by_both_sides() {
    let post = Post::new(20).await;
    let config: tokio_postgres::Config = url().parse().unwrap();
    let port = config.get_ports()[0];
    let server = format!("127.0.0.1:{port}");
    // Each side has a proxy of its own, and the other one is not behind it.
    let (hearing, telling) = (Proxy::to(&server).await, Proxy::to(&server).await);
    let through = |proxy: &Proxy| url().replace(&format!(":{port}/"), &format!(":{}/", proxy.address().port()));
    let builder = PostgresStore::builder(&through(&hearing)).schema(post.place.schema()).connections_max(1);
    let listener = builder.open().await.unwrap();
    let notifier = Notifier::connect(&through(&telling), &post.store.dialect()).unwrap();
    first_hint(&listener, &notifier).await;

    let before = (hearing.connections(), telling.connections());
    hearing.set(Traffic::Silent);
    telling.set(Traffic::Silent);
    let hint = listener.hint();
    notifier.notify();
    let deadline = Instant::now() + Duration::from_secs(120);
    while hearing.connections() == before.0 || telling.connections() == before.1 {
        assert!(Instant::now() < deadline, "both sides connect anew");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    hearing.set(Traffic::Flowing);
    telling.set(Traffic::Flowing);
    assert!(tokio::time::timeout(PATIENCE, hint).await.is_ok(), "and what was asked for is announced");
}

/// `postrider enqueue`, and mail that is collected, has no notifier.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_operator_enqueues_or_redrives_is_announced() {
    let post = Post::new(20).await;
    let (store, other) = (post.store.clone(), post.place.another().await);
    for redrives in [false, true] {
        let (mut hint, deadline) = (store.hint(), Instant::now() + PATIENCE);
        // The listener connects in the background.
        while tokio::time::timeout(Duration::from_millis(50), &mut hint).await.is_err() {
            assert!(Instant::now() < deadline, "what an operator has done is announced");
            if redrives {
                other.redrive(&ParkedFilter::default(), &Actor::new("anna")).await.unwrap();
            } else {
                let batch = batch(vec![Envelope::new("t", "n", "")]).unwrap();
                other.enqueue(batch, None).await.unwrap();
            }
        }
    }
}
