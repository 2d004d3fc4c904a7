//! A standby is not read, and one that is promoted though it lags goes on from what it has.

use std::time::{Duration, Instant};

use postrider_core::{envelope::MessageId, log::Log};
use postrider_store_postgres::{PostgresStore, planted::Plant};

use crate::{
    cluster::Cluster,
    reader::{Reader, WHOLE, commit, node, number, spend_ids},
};

/// Waits until the standby has replayed all that the primary has written.
async fn caught_up(primary: &Cluster, standby: &Cluster) {
    let written = primary.connect().await.query_one("SELECT pg_current_wal_lsn()::text", &[]).await.unwrap();
    let (written, client) = (written.get::<_, String>(0), standby.connect().await);
    let sql = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn";
    let deadline = Instant::now() + Duration::from_secs(60);
    while client.query_one(sql, &[&written]).await.unwrap().get::<_, Option<bool>>(0) != Some(true) {
        assert!(Instant::now() < deadline, "the standby follows");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_refuses_to_be_read() {
    let primary = Cluster::start("");
    let mut reader = Reader::open(&primary.url()).await;
    let standby = primary.standby();
    commit(&primary.url(), 3).await;
    assert_eq!(reader.read_on().await.len(), 3);
    reader.settle().await.unwrap();
    caught_up(&primary, &standby).await;
    // The lease that the primary gave is on the standby too; only reading tells them apart.
    let store = PostgresStore::builder(&standby.url()).migrate(false).open().await.unwrap();
    let refused = store.read(&reader.lease, &reader.cursor, WHOLE).await.unwrap_err();
    assert!(refused.to_string().contains("standby") && refused.is_transient(), "{refused}");
    // A relay that was started too early waits until the standby is the primary.
    let refused = store.heartbeat(&node("r")).await.unwrap_err();
    assert!(refused.is_transient(), "{refused:?}");
    let refused = store.acquire(&reader.lease.lane, &node("r")).await.unwrap_err();
    assert!(refused.is_transient(), "{refused:?}");
}

/// A primary fails, and what it did last is not on the standby that takes its place. Returns what the reader got of the
/// messages whose ids were handed out twice, and what they are.
async fn promoted_though_it_lags(plant: Plant) -> (Vec<MessageId>, Vec<MessageId>) {
    let primary = Cluster::start("");
    let url = primary.url();
    let mut reader = Reader::planted(&url, plant).await;
    commit(&url, 2).await;
    reader.read_on().await;
    reader.settle().await.unwrap();
    // It has everything up to here, and will not hear of the rest.
    let mut standby = primary.copy();
    for _ in 0..8 {
        commit(&url, 1).await;
    }
    let client = primary.connect().await;
    spend_ids(&client, 40).await;
    assert_eq!(reader.read_on().await.len(), 8, "the reader has seen them; nobody else will");
    let before = number(&client, "SELECT pg_current_xact_id()::text::bigint").await;
    primary.crash();
    standby.take_over_address(&primary);
    standby.up();
    standby.promote();
    let client = standby.connect().await;
    let after = number(&client, "SELECT pg_current_xact_id()::text::bigint").await;
    assert!(after + 24 < before, "ids are handed out again: {before}, then {after}");
    let mut sent = Vec::new();
    for _ in 0..12 {
        sent.extend(commit(&url, 1).await);
    }
    // Past where the old primary was, so that the planted mistake is not refused for its ids or numbers.
    spend_ids(&client, 60).await;
    (reader.recover().await, sent)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lagging_standby_that_is_promoted_goes_on_from_what_was_persisted() {
    let (read, sent) = promoted_though_it_lags(Plant::None).await;
    assert_eq!(read, sent);
    let (read, sent) = promoted_though_it_lags(Plant::BaseKeptOverLostConnection).await;
    assert!(read.len() < sent.len(), "a base that is kept over a fail-over must hide something");
}
