//! The file itself: shared, damaged, newer, read-only, full.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    fs,
    path::Path,
    process::Command,
    sync::{Arc, Barrier},
    time::Duration,
};

use postrider_core::{
    Error, ErrorKind,
    admin::{Actor, ParkedFilter, StoreAdmin},
    enlist::Enlist,
    envelope::Envelope,
    log::{Log, RecordRef, Settlement},
    parked::Parked,
};
use postrider_store_sqlite::{Sqlite, SqliteStore, migrations};
use rusqlite::Connection;
use support::{Outpost, batch, envelopes, ids, take};

/// Long enough for any machine; nothing waits this long unless it fails.
const DEADLINE: Duration = Duration::from_secs(60);

async fn refused(path: &Path) -> Error {
    SqliteStore::open(path).await.expect_err("must not open")
}

#[tokio::test]
async fn two_stores_on_one_file_fence_each_other() {
    let outpost = Outpost::new().await;
    let other = SqliteStore::open(&outpost.path).await.unwrap();
    let lane = outpost.lease.lane.clone();
    let node = support::node();
    assert!(other.acquire(&lane, &node).await.unwrap().is_none(), "the lane is owned, whoever asks");
    outpost.store.release(&outpost.lease).await.unwrap();
    other.acquire(&lane, &node).await.unwrap().unwrap();
    let settlement = Settlement { number: 1, ..Settlement::default() };
    assert!(outpost.store.settle(&outpost.lease, &settlement).await.unwrap_err().is_fenced());
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_is_removed_or_replaced_is_noticed_with_the_next_heartbeat() {
    let outpost = Outpost::new().await;
    let (node, away) = (support::node(), outpost.path.with_extension("away"));
    outpost.store.heartbeat(&node).await.unwrap();
    fs::rename(&outpost.path, &away).unwrap();
    let gone = outpost.store.heartbeat(&node).await.unwrap_err();
    assert!(gone.is_transient() && gone.to_string().contains("removed or replaced"), "{gone}");
    fs::copy(&away, &outpost.path).unwrap();
    outpost.store.heartbeat(&node).await.expect_err("a copy is another file");
    fs::rename(&away, &outpost.path).unwrap();
    outpost.store.heartbeat(&node).await.expect("it is back");
}

/// Runs this very test in a process of its own, which enqueues and ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_another_process_is_hinted_and_read() {
    const CHILD: &str = "POSTRIDER_TEST_ENQUEUE_INTO";
    if let Some(path) = std::env::var_os(CHILD) {
        let mut connection = Connection::open(path).unwrap();
        let mut transaction = connection.transaction().unwrap();
        transaction.append(&Sqlite::default(), batch(envelopes(3))).unwrap();
        return transaction.commit().unwrap();
    }
    let outpost = Outpost::new().await;
    let hint = outpost.store.hint();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_commit_of_another_process_is_hinted_and_read"])
        .env(CHILD, &outpost.path)
        .status()
        .unwrap();
    assert!(child.success());
    tokio::time::timeout(DEADLINE, hint).await.expect("a hint after another process has committed");
    assert_eq!(outpost.read_on().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_waiter_is_hinted_by_another_connection() {
    let outpost = Outpost::new().await;
    let waiters: Vec<_> = (0..8)
        .map(|_| {
            let store = outpost.store.clone();
            let (armed, wait) = tokio::sync::oneshot::channel();
            let task = tokio::spawn(async move {
                let hint = store.hint();
                armed.send(()).unwrap();
                tokio::time::timeout(DEADLINE, hint).await
            });
            (task, wait)
        })
        .collect();
    let mut tasks = Vec::new();
    for (task, armed) in waiters {
        armed.await.unwrap();
        tasks.push(task);
    }
    let mut connection = outpost.connect();
    let mut transaction = connection.transaction().unwrap();
    transaction.append(&outpost.store.dialect(), batch(envelopes(1))).unwrap();
    transaction.commit().unwrap();
    for task in tasks {
        task.await.unwrap().expect("every waiter is woken, not only one");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_in_the_same_process_wakes_the_relay() {
    let outpost = Outpost::new().await;
    let hint = outpost.store.hint();
    outpost.store.pause("r", &Actor::new("test")).await.unwrap();
    tokio::time::timeout(DEADLINE, hint).await.expect("an operator's change is a reason to look");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    let content = "these are my notes, not a database\n".repeat(200);
    fs::write(&path, &content).unwrap();
    let error = refused(&path).await;
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Corrupt, false), "{error}");
    assert!(error.to_string().contains("notes.txt"), "the file is named: {error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), content);
}

#[tokio::test]
async fn a_damaged_page_is_an_error_that_names_file_and_operation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.db");
    migrations::up(&path, &Sqlite::default(), &Actor::new("tests")).unwrap();
    let mut connection = Connection::open(&path).unwrap();
    let mut transaction = connection.transaction().unwrap();
    transaction.append(&Sqlite::default(), batch(envelopes(5000))).unwrap();
    transaction.commit().unwrap();
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(connection);
    let mut bytes = fs::read(&path).unwrap();
    let length = bytes.len();
    // All of the log's pages but the first few, which hold the schema.
    for byte in &mut bytes[40 * 4096..length] {
        *byte = 0x5a;
    }
    fs::write(&path, bytes).unwrap();
    let store = SqliteStore::open(&path).await.unwrap();
    let lease = take(&store).await;
    let cursor = store.resume(&lease).await.unwrap().cursor;
    let limit = postrider_core::log::PageLimit { records: 10_000, bytes: 1 << 30 };
    let error = store.read(&lease, &cursor, limit).await.unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Corrupt, false), "{error}");
    assert!(error.to_string().starts_with("read (") && error.to_string().contains("damaged.db"), "{error}");
}

#[tokio::test]
async fn a_newer_or_altered_schema_is_refused() {
    for (change, words) in [
        ("INSERT INTO postrider_migration (version, name, checksum) VALUES (99, 'future', '00')", ["newer", "99"]),
        ("UPDATE postrider_migration SET checksum = 'ffff' WHERE version = 1", ["another text", "version: 1"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("schema.db");
        migrations::up(&path, &Sqlite::default(), &Actor::new("tests")).unwrap();
        Connection::open(&path).unwrap().execute_batch(change).unwrap();
        let errors = [refused(&path).await, migrations::status(&path, &Sqlite::default()).unwrap_err()];
        for error in errors {
            assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Schema, false));
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)) && text.contains("schema.db"), "{text}");
        }
    }
}

#[tokio::test]
async fn without_migration_a_missing_schema_is_refused_and_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bare.db");
    let error = SqliteStore::builder(&path).migrate(false).open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("run the migrations"), "{error}");
    let tables: i64 =
        Connection::open(&path).unwrap().query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
    assert_eq!(tables, 0);
    migrations::up(&path, &Sqlite::default(), &Actor::new("tests")).unwrap();
    SqliteStore::builder(&path).migrate(false).open().await.unwrap();
}

#[test]
fn migrations_tell_what_is_pending_and_are_idempotent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let dialect = Sqlite::default();
    let pending = migrations::plan(&path, &dialect).unwrap();
    assert!(!pending.is_empty() && !path.exists(), "looking makes no file");
    assert_eq!(migrations::up(&path, &dialect, &Actor::new("tests")).unwrap(), pending);
    assert_eq!(migrations::up(&path, &dialect, &Actor::new("tests")).unwrap(), []);
    assert!(migrations::status(&path, &dialect).unwrap().iter().all(|standing| standing.applied_at.is_some()));
}

#[test]
fn openers_that_race_migrate_once() {
    for _ in 0..10 {
        let folder = tempfile::tempdir().unwrap();
        let path = Arc::new(folder.path().join("raced.db"));
        let start = Arc::new(Barrier::new(4));
        let racers: Vec<_> = (0..4)
            .map(|_| {
                let (path, start) = (Arc::clone(&path), Arc::clone(&start));
                std::thread::spawn(move || {
                    start.wait();
                    migrations::up(&*path, &Sqlite::default(), &Actor::new("tests")).map(|applied| applied.len())
                })
            })
            .collect();
        let applied: usize = racers.into_iter().map(|racer| racer.join().unwrap().unwrap()).sum();
        assert_eq!(applied, usize::try_from(migrations::LATEST).unwrap(), "each migration is applied by one of them");
    }
}

#[tokio::test]
async fn a_read_only_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locked.db");
    migrations::up(&path, &Sqlite::default(), &Actor::new("tests")).unwrap();
    // By the address, because the permissions of a file do not bind the superuser, who may run the tests.
    let error = refused(Path::new(&format!("file:{}?mode=ro", path.display()))).await;
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Denied, false), "{error}");
    assert!(error.to_string().contains("locked.db") && error.to_string().contains("read-only"), "{error}");
}

#[tokio::test]
async fn a_folder_that_does_not_exist_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = refused(&folder.path().join("nowhere/a.db")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("nowhere/a.db"), "{error}");
}

#[tokio::test]
async fn every_error_names_the_file_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    // SQLite itself would name it without the dot.
    let path = folder.path().join("./shop.db");
    let written = format!("file: {}", path.display());
    let store = SqliteStore::open(&path).await.unwrap();
    let lease = take(&store).await;
    let cursor = store.resume(&lease).await.unwrap().cursor;
    let mut connection = Connection::open(&path).unwrap();
    connection.execute_batch("DROP TABLE postrider_log; DELETE FROM postrider_counter").unwrap();

    let limit = postrider_core::log::PageLimit { records: 10, bytes: 1 << 20 };
    let mut errors = vec![store.read(&lease, &cursor, limit).await.unwrap_err()];
    // One of ours: a counter is missing.
    store.release(&lease).await.unwrap();
    errors.push(store.acquire(&lease.lane, &support::node()).await.unwrap_err());
    let mut transaction = connection.transaction().unwrap();
    errors.push(transaction.append(&store.dialect(), batch(envelopes(1))).unwrap_err());
    errors.push(transaction.append(&Sqlite::default().in_file(&path), batch(envelopes(1))).unwrap_err());
    drop(transaction);
    connection.execute_batch("UPDATE postrider_migration SET checksum = 'ffff'").unwrap();
    errors.push(refused(&path).await);
    errors.push(migrations::status(&path, &Sqlite::default()).unwrap_err());
    errors.push(migrations::up(&path, &Sqlite::default(), &Actor::new("tests")).unwrap_err());
    let uri = format!("file:{}?mode=ro", path.display());
    let read_only = refused(Path::new(&uri)).await;
    assert_eq!(read_only.to_string().matches(&format!("file: {uri}")).count(), 1, "{read_only}");
    for error in errors {
        assert_eq!(error.to_string().matches(&written).count(), 1, "{error} must name the file, once, as {written}");
    }
}

#[tokio::test]
async fn a_full_disk_loses_nothing_and_the_store_goes_on_once_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("full.db");
    let dialect = Sqlite::default();
    migrations::up(&path, &dialect, &Actor::new("tests")).unwrap();
    let sent: Vec<_> = (0..40).map(|_| Envelope::new("t", "n", vec![7; 20_000])).collect();
    let mut connection = Connection::open(&path).unwrap();
    let mut transaction = connection.transaction().unwrap();
    transaction.append(&dialect, batch(sent.clone())).unwrap();
    transaction.commit().unwrap();
    let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();

    // The store's side: parking needs room, and there is none.
    let bytes = u64::try_from((pages + 2) * 4096).unwrap();
    let store = SqliteStore::builder(&path).file_bytes_max(Some(bytes)).open().await.unwrap();
    let lease = take(&store).await;
    let before = store.resume(&lease).await.unwrap().cursor;
    let limit = postrider_core::log::PageLimit { records: 1000, bytes: 1 << 30 };
    let page = store.read(&lease, &before, limit).await.unwrap();
    let held = |n| (RecordRef::new(&page.records, n), Parked::Held);
    let settlement = Settlement {
        number: 1,
        advance: Some(page.end.clone()),
        park: (0..40).map(held).collect(),
        ..Settlement::default()
    };
    let error = store.settle(&lease, &settlement).await.unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Full, true), "{error}");
    assert!(error.to_string().contains("settle") && error.to_string().contains("full.db"), "{error}");
    assert_eq!(store.resume(&lease).await.unwrap().cursor, before, "the cursor has not passed what is not parked");
    assert_eq!(store.parked(&ParkedFilter::default(), None, 100).await.unwrap().len(), 0);

    // The application's side: its own connection, its own limit.
    connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).unwrap();
    let mut transaction = connection.transaction().unwrap();
    let error = transaction.append(&dialect, batch(sent.clone())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    drop(transaction);

    // Room again: the same settlement goes through.
    let roomy = SqliteStore::open(&path).await.unwrap();
    roomy.settle(&lease, &settlement).await.unwrap();
    assert_eq!(roomy.resume(&lease).await.unwrap().cursor, page.end);
    assert_eq!(roomy.parked(&ParkedFilter::default(), None, 100).await.unwrap().len(), 40);
    assert_eq!(store.overview().await.unwrap().records, 40, "nothing of the failed enqueue is there");
}

#[tokio::test]
async fn a_long_foreign_transaction_makes_a_write_wait_or_answer_unavailable() {
    let outpost = Outpost::new().await;
    let impatient = SqliteStore::builder(&outpost.path).busy_timeout(Duration::from_millis(1)).open().await.unwrap();
    let blocker = outpost.connect();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = impatient.settle(&outpost.lease, &Settlement { number: 1, ..Settlement::default() }).await.unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Unavailable, true), "{error}");
    // Reading waits for no writer.
    assert_eq!(outpost.read_on().await, ids(&[]));
    blocker.execute_batch("COMMIT").unwrap();
    impatient.settle(&outpost.lease, &Settlement { number: 1, ..Settlement::default() }).await.unwrap();
}

/// Each of the others waits as long as the store is told to, one after the other. A heartbeat that had to queue behind them
/// would come too late for its leases.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_waits_for_the_lock_and_for_nothing_else() {
    let outpost = Outpost::new().await;
    let store = SqliteStore::builder(&outpost.path).busy_timeout(Duration::from_secs(1)).open().await.unwrap();
    let foreign = Connection::open(&outpost.path).unwrap();
    foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
    let others: Vec<_> = (0..30)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.pause("r", &Actor::new("operator")).await.map_err(|error| error.kind()) })
        })
        .collect();
    let answered = store.heartbeat(&support::node()).await.expect_err("the lock is taken");
    assert_eq!(answered.kind(), ErrorKind::Unavailable, "{answered:?}");
    assert!(!others.iter().all(tokio::task::JoinHandle::is_finished), "it was answered before the last of them");
    foreign.execute_batch("ROLLBACK").unwrap();
    store.heartbeat(&support::node()).await.expect("the lock is free");
    for other in others {
        let _ = other.await.unwrap(); // those at the end had better luck
    }
}

#[tokio::test]
async fn two_prefixes_are_two_stores_in_one_file() {
    let outpost = Outpost::new().await;
    let other = SqliteStore::builder(&outpost.path).prefix("other_").open().await.unwrap();
    let mut connection = outpost.connect();
    let mut transaction = connection.transaction().unwrap();
    transaction.append(&other.dialect(), batch(envelopes(2))).unwrap();
    transaction.commit().unwrap();
    assert_eq!(outpost.read_on().await, []);
    assert_eq!(other.overview().await.unwrap().records, 2);
}
