//! Retention at its worst moments: nothing that is not delivered is ever emptied, and nothing waits for it.

use std::time::{Duration, Instant};

use postrider_core::log::{Log, Retention};

use crate::{
    cluster::Cluster,
    reader::{Reader, append, commit, number},
};

const NOW: Retention = Retention::by_age(Duration::ZERO);

/// Numbers per block and leaves of the ring, as the reader's store has them.
const BLOCK: i64 = 64;
const RING: i64 = 8 * BLOCK;

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_enters_a_leaf_between_look_and_lock_keeps_its_records() {
    let cluster = Cluster::start("");
    let url = cluster.url();
    let mut reader = Reader::open(&url).await;
    // The first block is full, read and settled; the head is at the end of the last block of the ring.
    commit(&url, usize::try_from(RING - 2).unwrap()).await;
    reader.read_on().await;
    reader.settle().await.unwrap();
    commit(&url, 1).await;
    reader.read_on().await;
    reader.settle().await.unwrap();
    let client = cluster.connect().await;
    assert_eq!(number(&client, "SELECT last_value FROM postrider.seq").await, RING - 1);

    let mut writer = cluster.connect().await;
    let mut writing = writer.transaction().await.unwrap();
    writing.batch_execute("LOCK TABLE ONLY postrider.log_0 IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let purging = tokio::spawn({
        let store = reader.store.clone();
        async move { store.purge(NOW).await.unwrap() }
    });
    // It has looked, has found the first leaf, and waits for whoever has it.
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'postrider.log_0'::regclass";
    let deadline = Instant::now() + Duration::from_secs(60);
    while number(&client, waits).await == 0 {
        assert!(Instant::now() < deadline && !purging.is_finished(), "the purge comes to the first leaf");
    }
    // Meanwhile the ring has come round.
    let sent = append(&mut writing, 3).await;
    // The clock went back as well, so that these do not look too young to go.
    let older = "UPDATE postrider.log_0 SET enqueued_at = enqueued_at - interval '1 day'";
    writing.batch_execute(older).await.unwrap();
    writing.commit().await.unwrap();
    purging.await.unwrap();
    assert_eq!(number(&client, "SELECT last_value FROM postrider.seq").await, RING + 2);
    assert_eq!(reader.read_on().await, sent, "what the head wrote into the leaf is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_straggler_that_commits_while_leaves_are_emptied_is_delivered() {
    let cluster = Cluster::start("");
    let url = cluster.url();
    let mut reader = Reader::open(&url).await;
    commit(&url, usize::try_from(3 * BLOCK + 10).unwrap()).await;
    reader.read_on().await;
    reader.settle().await.unwrap();
    let mut late = cluster.connect().await;
    let mut straggler = late.transaction().await.unwrap();
    let held = append(&mut straggler, 1).await;
    for _ in 0..4 {
        commit(&url, usize::try_from(BLOCK).unwrap()).await;
        reader.read_on().await;
        reader.settle().await.unwrap();
    }
    // Leaves before the straggler's are emptied, its own and those behind are not.
    let mut purged = 0;
    loop {
        match reader.store.purge(NOW).await.unwrap() {
            0 => break,
            some => purged += some,
        }
    }
    assert_eq!(purged, (3 * BLOCK - 1).unsigned_abs(), "three whole blocks lie before it; there is no number 0");
    straggler.commit().await.unwrap();
    reader.store.purge(NOW).await.unwrap();
    assert_eq!(reader.read_on().await, held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_that_runs_delays_retention_and_nothing_else() {
    let cluster = Cluster::start("");
    let url = cluster.url();
    let mut reader = Reader::open(&url).await;
    let block = usize::try_from(2 * BLOCK).unwrap();
    commit(&url, block).await;
    reader.read_on().await;
    reader.settle().await.unwrap();
    // As `pg_dump` does it: one snapshot, and every table locked at the beginning.
    let mut client = cluster.connect().await;
    let dump = client.build_transaction().isolation_level(tokio_postgres::IsolationLevel::RepeatableRead);
    let dump = dump.start().await.unwrap();
    let tables = "SELECT string_agg(format('%I.%I', schemaname, tablename), ', ') FROM pg_tables
                   WHERE schemaname = 'postrider'";
    let tables: String = dump.query_one(tables, &[]).await.unwrap().get(0);
    dump.batch_execute(&format!("LOCK TABLE {tables} IN ACCESS SHARE MODE")).await.unwrap();
    commit(&url, 2).await;
    assert_eq!(reader.read_on().await.len(), 2);
    reader.settle().await.unwrap();
    assert_eq!(reader.store.purge(NOW).await.unwrap(), 0, "the leaf is in use");
    let sent = commit(&url, 2).await;
    assert_eq!(reader.read_on().await, sent, "messages go on");
    dump.commit().await.unwrap();
    reader.settle().await.unwrap();
    assert!(reader.store.purge(NOW).await.unwrap() > 0, "and retention, when the dump is done");
}
