//! Giving places: the counter-examples that the order list was made for, and several who order at the same time.

use std::time::Duration;

use mysql_async::{TxOpts, prelude::Queryable};
use postrider_core::{
    admin::StoreAdmin,
    envelope::Envelope,
    log::{Log, PageLimit},
};
use postrider_store_mysql::MysqlStore;
use postrider_testkit::{
    fault::{Proxy, Traffic},
    store::Fixture,
};

use crate::{
    LIMIT, names, ordering_by_hand,
    support::{Place, connect, url},
    take, until_waiting,
};

/// What another process has ordered is seen before it is on the disk; what one has ordered oneself is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_have_ordered_is_handed_out_behind_a_commit() {
    let place = Place::new().await;
    let (one, other) = (place.another().await, place.another().await);
    let mut connection = connect().await;
    let on_disk: Option<bool> = connection.query_first("SELECT @@log_bin AND @@sync_binlog = 1").await.unwrap();
    if on_disk == Some(true) {
        return;
    }
    let mut barriers = async || -> i64 {
        let sql = format!("SELECT value FROM {}counter WHERE name = 'barrier'", place.prefix());
        connection.query_first(sql).await.unwrap().unwrap()
    };
    let (lease, mut cursor) = take(&one).await;
    for _ in 0..3 {
        place.commit(vec![Envelope::new("t", "n", ""), Envelope::new("t", "n", "")]).await;
        let page = one.read(&lease, &cursor, LIMIT).await.unwrap();
        assert_eq!(page.records.len(), 2);
        cursor = page.end;
    }
    assert_eq!(barriers().await, 0, "whoever orders has committed");
    place.commit((0..4).map(|_| Envelope::new("t", "n", "")).collect()).await;
    other.overview().await.unwrap();
    let few = PageLimit { records: 2, ..LIMIT };
    for _ in 0..2 {
        let page = one.read(&lease, &cursor, few).await.unwrap();
        assert_eq!(page.records.len(), 2);
        cursor = page.end;
        assert_eq!(barriers().await, 1, "once for all that was seen");
    }
    assert!(one.read(&lease, &cursor, few).await.unwrap().records.is_empty());
    assert_eq!(barriers().await, 1, "and not for nothing");
}

/// The messages have their places before this process could see them: somebody else was quicker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_have_ordered_wakes_a_waiter() {
    let place = Place::new().await;
    let (store, prefix) = (place.store(), place.prefix());
    let mut connection = connect().await;
    for round in 1..=5 {
        let hint = store.hint();
        let log = format!("INSERT INTO {prefix}log (topic, name, payload) VALUES ('t', 'n', '')");
        let ordering = ordering_by_hand(prefix, round);
        for sql in [&["BEGIN".to_owned(), log][..], &ordering, &["COMMIT".to_owned()]].concat() {
            connection.query_drop(sql).await.unwrap();
        }
        assert!(tokio::time::timeout(Duration::from_secs(60), hint).await.is_ok(), "round {round}");
    }
}

/// A relay whose process stands still, or whose machine is gone, keeps the lock that all others need; its session does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_stands_still_in_a_transaction_holds_others_up_for_a_while_only() {
    let place = Place::new().await;
    let options = mysql_async::Opts::from_url(&url()).unwrap();
    let proxy = Proxy::to(&format!("{}:{}", options.ip_or_hostname(), options.tcp_port())).await;
    let through = url().replace(&format!(":{}/", options.tcp_port()), &format!(":{}/", proxy.address().port()));
    let still = MysqlStore::builder(&through).prefix(place.prefix()).open().await.unwrap();
    place.commit(vec![Envelope::new("t", "one", "")]).await;
    let mut other = connect().await;
    let mut holding = other.start_transaction(TxOpts::default()).await.unwrap();
    holding
        .query_drop(format!("SELECT 1 FROM {}counter WHERE name = 'place' FOR UPDATE", place.prefix()))
        .await
        .unwrap();
    let standing = tokio::spawn(async move { still.overview().await.map(|_| ()) });
    until_waiting(place.prefix()).await;
    // It gets the lock, and never learns of it.
    proxy.set(Traffic::Silent);
    holding.rollback().await.unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(300);
    while place.store().overview().await.is_err() {
        assert!(std::time::Instant::now() < deadline, "the lock is let go");
    }
    assert_eq!(names(&place.delivered().await), ["one"]);
    standing.abort();
}

/// The names in the log by their numbers, which is not their order.
async fn by_number(place: &Place) -> Vec<String> {
    connect().await.query(format!("SELECT name FROM {}log ORDER BY seq", place.prefix())).await.unwrap()
}

/// Somebody else gives a message its place between two looks of a reader, which must not take that for the end of the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_has_ordered_meanwhile_is_read_at_once() {
    let place = Place::new().await;
    let (prefix, mut other) = (place.prefix().to_owned(), connect().await);
    place.commit(vec![Envelope::new("orders", "one", "{}")]).await;
    let mut ordering = other.start_transaction(TxOpts::default()).await.unwrap();
    ordering.query_drop(format!("SELECT 1 FROM {prefix}counter WHERE name = 'place' FOR UPDATE")).await.unwrap();
    let reading = place.delivered();
    let meanwhile = async {
        until_waiting(&prefix).await;
        for sql in ordering_by_hand(&prefix, 1) {
            ordering.query_drop(sql).await.unwrap();
        }
        ordering.commit().await.unwrap();
    };
    let (delivered, ()) = tokio::join!(reading, meanwhile);
    assert_eq!(names(&delivered), ["one"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_insert_that_waits_with_its_number_is_not_taken_for_one_that_was_rolled_back() {
    let place = Place::new().await;
    let insert =
        |name: &str| format!("INSERT INTO {}log (topic, name, payload) VALUES ('t', '{name}', '')", place.prefix());
    let (mut foreign, mut waiting) = (connect().await, connect().await);
    foreign.query_drop(insert("first")).await.unwrap();
    foreign.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    foreign.query_drop("BEGIN").await.unwrap();
    let everything = format!("SELECT seq FROM {}log WHERE seq > 0 FOR UPDATE", place.prefix());
    let _: Vec<u64> = foreign.query(everything).await.unwrap();
    waiting.query_drop("BEGIN").await.unwrap();
    let late = insert("late");
    let waiting = tokio::spawn(async move { waiting.query_drop(late).await.map(|()| waiting) });
    until_waiting(place.prefix()).await;
    foreign.query_drop(insert("foreign")).await.unwrap();
    foreign.query_drop("COMMIT").await.unwrap();
    assert_eq!(names(&place.delivered().await), ["first", "foreign"]);
    let mut waiting = waiting.await.unwrap().unwrap();
    assert_eq!(names(&place.delivered().await), ["first", "foreign"], "what is not committed is not delivered");
    waiting.query_drop("COMMIT").await.unwrap();
    assert_eq!(names(&place.delivered().await), ["first", "foreign", "late"]);
    assert_eq!(by_number(&place).await, ["first", "late", "foreign"], "it had its number before");
}

/// Whoever coordinates several databases may vanish between preparing and committing, for as long as it likes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_transaction_holds_up_nobody_and_comes_when_it_is_committed() {
    let place = Place::new().await;
    let mut prepared = Vec::new();
    for name in ["committed", "rolled back"] {
        let (mut connection, id) = (connect().await, uuid::Uuid::now_v7());
        let insert = format!("INSERT INTO {}log (topic, name, payload) VALUES ('t', '{name}', '')", place.prefix());
        for sql in [format!("XA START '{id}'"), insert, format!("XA END '{id}'"), format!("XA PREPARE '{id}'")] {
            connection.query_drop(sql).await.unwrap();
        }
        prepared.push((connection, id));
    }
    for names_so_far in [&["meanwhile"][..], &["meanwhile", "meanwhile"]] {
        place.commit(vec![Envelope::new("t", "meanwhile", "")]).await;
        assert_eq!(names(&place.delivered().await), names_so_far);
    }
    for ((mut connection, id), end) in prepared.into_iter().zip(["COMMIT", "ROLLBACK"]) {
        connection.query_drop(format!("XA {end} '{id}'")).await.unwrap();
    }
    assert_eq!(names(&place.delivered().await), ["meanwhile", "meanwhile", "committed"]);
}

/// `INSERT … SELECT` reserves numbers ahead of the rows: a row that has read what another transaction committed may have a
/// lower number than the message of that transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_has_read_another_transaction_follows_its_message() {
    let place = Place::new().await;
    let (mut earlier, mut later) = (connect().await, connect().await);
    let (keys, log) = (format!("{}keys", place.prefix()), format!("{}log", place.prefix()));
    earlier.query_drop(format!("CREATE TABLE {keys} (k BIGINT PRIMARY KEY, v VARCHAR(20))")).await.unwrap();
    earlier.query_drop(format!("INSERT INTO {keys} VALUES (1, 'a'), (2, 'b'), (3, 'old'), (4, 'c')")).await.unwrap();
    earlier.query_drop("BEGIN").await.unwrap();
    earlier.query_drop(format!("UPDATE {keys} SET v = 'read' WHERE k = 3")).await.unwrap();
    later.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    let all = format!("INSERT INTO {log} (topic, name, payload) SELECT 't', v, '' FROM {keys}");
    let later = tokio::spawn(async move { later.query_drop(all).await });
    until_waiting(place.prefix()).await;
    let inserted =
        earlier.query_drop(format!("INSERT INTO {log} (topic, name, payload) VALUES ('t', 'earlier', '')")).await;
    let lock_mode: Option<u32> = connect().await.query_first("SELECT @@innodb_autoinc_lock_mode").await.unwrap();
    if lock_mode != Some(2) {
        // The lock of the numbers is held until the statement ends, which waits for us.
        assert!(inserted.is_err() || later.await.unwrap().is_err(), "two that wait for each other do not both go on");
        return;
    }
    inserted.unwrap();
    earlier.query_drop("COMMIT").await.unwrap();
    later.await.unwrap().unwrap();
    assert_eq!(names(&place.delivered().await), ["a", "b", "earlier", "read", "c"]);
    assert_eq!(by_number(&place).await, ["a", "b", "read", "earlier", "c"], "the numbers say otherwise");
}
