//! What the doctor finds, each fact caused on a real file.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use postrider_core::{
    admin::StoreAdmin,
    doctor::{Finding, Severity, Thresholds},
};
use postrider_store_sqlite::SqliteStore;
use rusqlite::Connection;

async fn findings(path: &std::path::Path, thresholds: Thresholds) -> Vec<Finding> {
    let store = SqliteStore::builder(path.to_str().unwrap()).migrate(false).open().await.unwrap();
    store.doctor(thresholds).await.unwrap()
}

async fn made(dir: &tempfile::TempDir) -> std::path::PathBuf {
    let path = dir.path().join("app.db");
    SqliteStore::open(path.to_str().unwrap()).await.unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_file_gives_no_cause_for_concern() {
    let dir = tempfile::tempdir().unwrap();
    let path = made(&dir).await;
    let none = Thresholds { disk_free_bytes: 0, ..Thresholds::default() };
    assert_eq!(findings(&path, none).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_with_too_little_room_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = made(&dir).await;
    let found = findings(&path, Thresholds { disk_free_bytes: u64::MAX, ..Thresholds::default() }).await;
    assert_eq!((found[0].code, found[0].severity), ("disk-nearly-full", Severity::Warning));
    assert!(found[0].subject.ends_with("app.db"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_page_is_an_error() {
    use std::io::{Seek, SeekFrom, Write};
    let dir = tempfile::tempdir().unwrap();
    let path = made(&dir).await;
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("CREATE TABLE other (x); INSERT INTO other VALUES (zeroblob(100000));").unwrap();
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let page: i64 =
        connection.query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'other'", [], |row| row.get(0)).unwrap();
    let size: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0)).unwrap();
    drop(connection);
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(((page - 1) * size).unsigned_abs())).unwrap();
    file.write_all(&[0xff; 64]).unwrap();
    drop(file);
    let found = findings(&path, Thresholds { disk_free_bytes: 0, ..Thresholds::default() }).await;
    assert_eq!((found[0].code, found[0].severity), ("corrupt", Severity::Error));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_nears_its_limit_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = made(&dir).await;
    let builder = SqliteStore::builder(path.to_str().unwrap()).file_bytes_max(Some(1));
    let store = builder.open().await.unwrap();
    let found = store.doctor(Thresholds { disk_free_bytes: 0, ..Thresholds::default() }).await.unwrap();
    assert_eq!((found[0].code, found[0].severity), ("file-nearly-full", Severity::Warning), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_does_not_end_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = made(&dir).await;
    let store = SqliteStore::builder(path.to_str().unwrap()).migrate(false).open().await.unwrap();
    assert_eq!(store.blockage().await.unwrap(), None);
    let writer = Connection::open(&path).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let blockage = store.blockage().await.unwrap().unwrap();
    assert_eq!((blockage.code, blockage.severity), ("store-locked", Severity::Error));
    let found = store.doctor(Thresholds { disk_free_bytes: 0, ..Thresholds::default() }).await.unwrap();
    assert_eq!(found, [blockage], "the doctor says the same");
    writer.execute_batch("ROLLBACK").unwrap();
    assert_eq!(store.blockage().await.unwrap(), None, "the connection that looked keeps no lock");
}
