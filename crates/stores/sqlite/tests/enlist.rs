//! Enqueue through rusqlite, through plain SQL, and with group commit.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use postrider_core::{
    ErrorKind,
    admin::{Actor, StoreAdmin},
    enlist::Enlist,
    envelope::Envelope,
};
use postrider_store_sqlite::{GroupCommit, Sqlite, SqliteStore, migrations};
use rusqlite::{Connection, TransactionBehavior};
use support::{Outpost, batch, envelopes, ids};

#[tokio::test]
async fn one_and_ten_thousand_rows_commit_in_order() {
    let outpost = Outpost::new().await;
    for count in [1, 10_000] {
        let sent = envelopes(count);
        let mut connection = outpost.connect();
        let mut transaction = connection.transaction().unwrap();
        transaction.append(&outpost.store.dialect(), batch(sent.clone())).unwrap();
        transaction.commit().unwrap();
        assert_eq!(outpost.read_on().await, ids(&sent));
    }
}

#[tokio::test]
async fn rollbacks_of_transaction_and_savepoint_leave_nothing() {
    let outpost = Outpost::new().await;
    let dialect = outpost.store.dialect();
    let mut connection = outpost.connect();
    let mut transaction = connection.transaction().unwrap();
    transaction.append(&dialect, batch(envelopes(500))).unwrap();
    transaction.rollback().unwrap();

    let kept = envelopes(250);
    let mut transaction = connection.transaction().unwrap();
    let mut savepoint = transaction.savepoint().unwrap();
    savepoint.append(&dialect, batch(envelopes(250))).unwrap();
    drop(savepoint);
    let mut savepoint = transaction.savepoint().unwrap();
    savepoint.append(&dialect, batch(kept.clone())).unwrap();
    savepoint.commit().unwrap();
    transaction.commit().unwrap();
    assert_eq!(outpost.read_on().await, ids(&kept));
}

#[tokio::test]
async fn a_broken_batch_touches_nothing_and_says_why() {
    let outpost = Outpost::new().await;
    let mut connection = outpost.connect();
    let mut transaction = connection.transaction().unwrap();
    let error = transaction.append(&outpost.store.dialect(), batch(vec![Envelope::new("a b", "n", "")])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    transaction.commit().unwrap();
    assert_eq!(outpost.read_on().await, []);
}

#[tokio::test]
async fn without_the_tables_an_enqueue_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let mut connection = Connection::open(folder.path().join("empty.db")).unwrap();
    let mut transaction = connection.transaction().unwrap();
    let error = transaction.append(&Sqlite::default(), batch(envelopes(1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("migrations") && error.to_string().contains("empty.db"), "{error}");
}

#[tokio::test]
async fn an_application_can_enqueue_before_any_store_was_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let outbox = Sqlite::with_prefix("shop_").unwrap();
    migrations::up(&path, &outbox, &Actor::new("tests")).unwrap();
    let mut connection = Connection::open(&path).unwrap();
    let mut transaction = connection.transaction().unwrap();
    transaction.append(&outbox, batch(envelopes(3))).unwrap();
    transaction.commit().unwrap();
    let store = SqliteStore::builder(&path).prefix("shop_").migrate(false).open().await.unwrap();
    assert_eq!(store.overview().await.unwrap().records, 3);
}

#[tokio::test]
async fn plain_sql_with_four_columns_is_enough() {
    let outpost = Outpost::new().await;
    let connection = outpost.connect();
    let id = postrider_core::envelope::MessageId::generate();
    let insert = "INSERT INTO postrider_log (id, topic, name, payload) VALUES (?1, ?2, ?3, ?4)";
    let before = postrider_core::time::Timestamp::now();
    connection.execute(insert, (id.0.as_bytes(), "orders", "order.placed", r#"{"n":1}"#)).unwrap();
    let page = outpost.page().await;
    let record = &page.records[0];
    assert_eq!(record.envelope, Envelope { id, ..Envelope::new("orders", "order.placed", r#"{"n":1}"#) });
    let distance = record.enqueued_at.since(before).max(before.since(record.enqueued_at));
    assert!(distance.as_secs() < 60, "SQLite's clock in microseconds: {} against {before}", record.enqueued_at);

    for (what, id, topic, payload) in [
        ("an id of another length", &b"short"[..], "orders", Some("{}")),
        ("no topic", id.0.as_bytes(), "", Some("{}")),
        ("no payload", id.0.as_bytes(), "orders", None),
    ] {
        assert!(connection.execute(insert, (id, topic, "n", payload)).is_err(), "{what} must be refused");
    }
}

#[tokio::test]
async fn a_transaction_that_sqlite_has_rolled_back_cannot_be_used_by_accident() {
    let outpost = Outpost::new().await;
    let mut connection = outpost.connect();
    let mut transaction = connection.transaction().unwrap();
    transaction.execute_batch("ROLLBACK").unwrap();
    let error = transaction.append(&outpost.store.dialect(), batch(envelopes(1))).unwrap_err();
    assert!(error.to_string().contains("rolled"), "{error}");
    drop(transaction);
    assert_eq!(outpost.read_on().await, []);
}

#[tokio::test]
async fn group_commit_takes_back_only_what_failed() {
    let outpost = Outpost::new().await;
    let group = GroupCommit::open(&outpost.path, Some(outpost.store.waker())).await.unwrap();
    // While the lock is taken everything waits, so the first group holds one and the second all others.
    let mut blocker = outpost.connect();
    let held = blocker.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let mut waiting = Vec::new();
    let mut kept = Vec::new();
    for i in 0..20 {
        let (group, dialect, sent) = (group.clone(), outpost.store.dialect(), envelopes(3));
        let fails = i % 5 == 4;
        if !fails {
            kept.extend(ids(&sent));
        }
        waiting.push(tokio::spawn(async move {
            group
                .submit(move |savepoint| {
                    savepoint.append(&dialect, batch(sent))?;
                    assert!(i != 9, "a panic is a failure like any other");
                    if fails { Err(postrider_core::Error::invalid("no")) } else { Ok(i) }
                })
                .await
        }));
        tokio::task::yield_now().await;
    }
    drop(held);
    for (i, handle) in waiting.into_iter().enumerate() {
        let outcome = handle.await.unwrap();
        assert_eq!(outcome.is_ok(), i % 5 != 4, "{i}: {outcome:?}");
    }
    let mut read = outpost.read_on().await;
    read.sort();
    kept.sort();
    assert_eq!(read, kept);
}

#[tokio::test]
async fn a_group_commit_that_cannot_begin_says_so() {
    let outpost = Outpost::new().await;
    outpost.store.overview().await.unwrap();
    let group = GroupCommit::open(&outpost.path, None).await.unwrap();
    let error = group
        .submit(|savepoint| {
            savepoint
                .execute_batch("ROLLBACK")
                .map_err(|e| postrider_core::Error::new(ErrorKind::Other, "run").caused_by(e))
        })
        .await
        .unwrap_err();
    assert!(!error.to_string().is_empty());
    // The thread has survived and goes on.
    let dialect = outpost.store.dialect();
    let sent = envelopes(1);
    let again = sent.clone();
    group.submit(move |savepoint| savepoint.append(&dialect, batch(again))).await.unwrap();
    assert_eq!(outpost.read_on().await, ids(&sent));
}
