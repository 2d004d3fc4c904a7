//! The server is killed in the middle of everything, again and again: what was committed is delivered, in order, and nothing
//! else is. It is a server of this test's own, which writes every commit through and gives numbers as MariaDB does; the
//! server of the other tests gives them as MySQL 8 does.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{process::Command, time::Duration};

use mysql_async::{Conn, TxOpts, prelude::Queryable};
use postrider_core::{
    admin::StoreAdmin,
    enlist::Enlist,
    envelope::Envelope,
    lease::LaneId,
    log::{Cursor, Log, PageLimit, Settlement},
    parked::DueLimit,
};
use postrider_store_mysql::{Mysql, MysqlStore};
use support::{
    batch, node,
    servers::{database, start},
    spec,
    workload::{DEADLINE, torture},
};

const KILLS: u64 = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_loses_nothing_and_turns_nothing_around() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = start(dir.path());
    let url = database(&server).await;
    let kill = |_| {
        server.kill();
        server.restart();
    };
    torture(url, KILLS, kill).await;
}

/// A server tells when it started to the second.
const TOLD_APART: Duration = Duration::from_millis(1_100);

/// The machine goes down and comes back as it was a while ago, as a replica that lags comes up, or a disk that was told to keep
/// commits for later. The places that were taken back are given to other messages before the owner asks again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_from_before_a_loss_is_fenced_and_passes_over_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = start(dir.path());
    let url = database(&server).await;
    let (store, node) = (MysqlStore::open(&url).await.unwrap(), node("r", Duration::from_secs(3600)));
    store.register(&node, &[spec("r")]).await.unwrap();
    let limit = PageLimit { records: 100, bytes: 1 << 20 };
    let lane = LaneId { route: "r".into(), number: 0 };
    let take = async || {
        let lease = store.acquire(&lane, &node).await.unwrap().unwrap();
        let cursor = store.resume(&lease).await.unwrap().cursor;
        (lease, cursor)
    };
    let settled =
        |number, cursor: &Cursor| Settlement { number, advance: Some(cursor.clone()), ..Settlement::default() };
    enqueue(&url, "kept", 5).await;
    let (lease, cursor) = take().await;
    let kept = store.read(&lease, &cursor, limit).await.unwrap().end;
    store.settle(&lease, &settled(1, &kept)).await.unwrap();
    server.stop();
    tokio::time::sleep(TOLD_APART).await;
    let (data, copy) = (dir.path().join("data"), dir.path().join("copy"));
    let copied = Command::new("cp").arg("-a").args([&data, &copy]).status();
    assert!(copied.is_ok_and(|status| status.success()), "copy the data");
    server.restart();
    // A restart alone costs taking the lane again.
    let told = again(async || store.read(&lease, &kept, limit).await).await.unwrap_err();
    assert!(told.is_fenced(), "{told}");
    let (lease, cursor) = take().await;
    assert_eq!(cursor, kept);
    enqueue(&url, "lost", 5).await;
    let lost = store.read(&lease, &cursor, limit).await.unwrap();
    assert_eq!(lost.records.len(), 5);
    server.kill();
    tokio::time::sleep(TOLD_APART).await;
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&copy, &data).unwrap();
    server.restart();
    enqueue(&url, "new", 10).await;
    // Somebody else gives places to all of them: none is beyond what was given.
    MysqlStore::open(&url).await.unwrap().overview().await.unwrap();
    let given: Option<i64> = Conn::from_url(&url)
        .await
        .unwrap()
        .query_first("SELECT value FROM postrider_counter WHERE name = 'place'")
        .await
        .unwrap();
    assert_eq!(given, Some(15));
    let told = again(async || store.settle(&lease, &settled(2, &lost.end)).await).await.unwrap_err();
    assert!(told.is_fenced(), "{told}");
    let due = DueLimit { lines: 1, per_line: 1, bytes: 1 };
    assert!(again(async || store.due(&lease, due).await).await.unwrap_err().is_fenced());
    assert!(again(async || store.read(&lease, &lost.end, limit).await).await.unwrap_err().is_fenced());
    let (lease, cursor) = take().await;
    let new = store.read(&lease, &cursor, limit).await.unwrap();
    let names: Vec<&str> = new.records.iter().map(|record| &*record.envelope.name).collect();
    assert_eq!(names, ["new"; 10]);
    store.settle(&lease, &settled(1, &new.end)).await.unwrap();
}

/// In one transaction.
async fn enqueue(url: &str, name: &str, count: usize) {
    let mut connection = Conn::from_url(url).await.unwrap();
    let mut transaction = connection.start_transaction(TxOpts::default()).await.unwrap();
    let envelopes: Vec<Envelope> = (0..count).map(|_| Envelope::new("t", name, "")).collect();
    transaction.append(&Mysql::default(), batch(envelopes)).await.unwrap();
    transaction.commit().await.unwrap();
}

/// As the engine does it: what fails in passing, such as a connection that ended with its server, is done again as it was.
async fn again<T>(call: impl AsyncFn() -> postrider_core::Result<T>) -> postrider_core::Result<T> {
    let began = std::time::Instant::now();
    loop {
        match call().await {
            Err(error) if error.is_transient() && !error.is_fenced() && began.elapsed() < DEADLINE => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            told => return told,
        }
    }
}
