//! Dump and restore, clones, and counters that were set back: delivery goes on without loss, or is refused by name.

use postrider_core::{
    ErrorKind,
    admin::{Actor, ReplaySpec, StoreAdmin},
    lease::ReplayFilter,
    log::Log,
};
use postrider_store_postgres::planted::Plant;

use crate::{
    cluster::Cluster,
    reader::{Reader, append, commit, node, number, spend_ids},
};

fn actor() -> Actor {
    Actor { name: "test".to_owned(), reason: None }
}

/// A cluster with a history: 20 settled, one committed late below them, 7 of a round half done, 10 not read. Its ids are
/// spent up to some 1 500, far above those of a new cluster. Returns what is still to be delivered.
async fn with_history(cluster: &Cluster) -> Vec<postrider_core::envelope::MessageId> {
    let url = cluster.url();
    let mut reader = Reader::open(&url).await;
    let mut late = cluster.connect().await;
    let client = cluster.connect().await;
    spend_ids(&client, 600).await;
    let mut open = late.transaction().await.unwrap();
    let mut due = append(&mut open, 1).await;
    let mut settled = commit(&url, 20).await;
    settled.truncate(20);
    assert_eq!(reader.read_on().await, settled);
    reader.settle().await.unwrap();
    open.commit().await.unwrap();
    let half = commit(&url, 12).await;
    // The late one first, for it has the lowest number; then five of the twelve.
    for expected in [&[due[0], half[0], half[1]][..], &half[2..5]] {
        assert_eq!(reader.page(crate::reader::SMALL).await.unwrap().0, expected);
    }
    reader.settle().await.unwrap();
    due = half[5..].to_vec();
    due.extend(commit(&url, 10).await);
    // Dead rows of others, and a gap in the numbers.
    client.batch_execute("BEGIN; SELECT postrider.enqueue('orders', 'x', 'y'); ROLLBACK").await.unwrap();
    due
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_restored_into_a_new_cluster_is_delivered_to_its_end() {
    let (old, new) = (Cluster::start(""), Cluster::elsewhere());
    let mut due = with_history(&old).await;
    let dump = old.file("dump");
    old.dump(&dump);
    new.restore(&dump);
    // Producers come back before any relay does: their ids are far below those of the restored rows.
    due.extend(commit(&new.url(), 4).await);
    let mut open = new.connect().await;
    let mut open = open.transaction().await.unwrap();
    let held = append(&mut open, 2).await;
    due.extend(commit(&new.url(), 3).await);
    // When a relay comes, the new cluster has come to where the old one was: the same ids mean two things.
    spend_ids(&new.connect().await, 900).await;

    // The mistake first: the old snapshot, asked of new ids, hides new messages.
    let naive = Reader::planted(&new.url(), Plant::NoRebase).await.read_on().await;
    assert!(due.iter().any(|id| !naive.contains(id)), "a cursor that is taken as it is must lose something");

    let mut reader = Reader::open(&new.url()).await;
    // In small pages, with a restart behind each: the place in the rebase is persisted.
    let mut delivered = Vec::new();
    loop {
        let (read, more) = reader.page(crate::reader::SMALL).await.unwrap();
        delivered.extend(read);
        reader.settle().await.unwrap();
        if !more {
            break;
        }
        reader = Reader::open(&new.url()).await;
    }
    assert_eq!(delivered, due, "everything that was not settled, in its order, and nothing twice");
    open.commit().await.unwrap();
    assert_eq!(reader.read_on().await, held, "one that was open meanwhile is not lost");
    let more = commit(&new.url(), 3).await;
    assert_eq!(reader.read_on().await, more);
    reader.settle().await.unwrap();
    let audit = reader.store.audit(100).await.unwrap();
    assert!(audit.iter().any(|entry| entry.action == "rebase" && entry.actor.name == "postrider"), "{audit:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_pg_upgrade_made_goes_on_delivering() {
    let old = Cluster::start("");
    let mut due = with_history(&old).await;
    old.down();
    let new = Cluster::upgraded_from(&old);
    due.extend(commit(&new.url(), 3).await);
    let mut reader = Reader::open(&new.url()).await;
    assert_eq!(reader.read_on().await, due, "everything that was not settled, in its order, and nothing twice");
    reader.settle().await.unwrap();
    let more = commit(&new.url(), 3).await;
    assert_eq!(reader.read_on().await, more);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_route_and_a_replay_of_a_restored_log_begin_with_everything() {
    let (old, new) = (Cluster::start(""), Cluster::elsewhere());
    let first = with_history(&old).await;
    let dump = old.file("dump");
    old.dump(&dump);
    new.restore(&dump);
    let second = commit(&new.url(), 2).await;
    let reader = Reader::open(&new.url()).await;
    let mut late = Reader::take(reader.store.clone(), "late").await;
    let all = late.read_on().await;
    assert_eq!(all.len(), 20 + 1 + 12 + 10 + 2, "a route that begins with the oldest");
    assert!(first.iter().chain(&second).all(|id| all.contains(id)));
    let filter = ReplayFilter::default();
    let name =
        reader.store.replay(&ReplaySpec { route: "r".into(), to: None, filter, rate: None }, &actor()).await.unwrap();
    let lane = postrider_core::lease::LaneId { route: name, number: 0 };
    let lease = reader.store.acquire(&lane, &node("r")).await.unwrap().unwrap();
    let cursor = reader.store.resume(&lease).await.unwrap().cursor;
    let page = reader.store.read(&lease, &cursor, crate::reader::WHOLE).await.unwrap();
    assert_eq!(page.records.len(), all.len(), "a replay");
    assert!(page.ended);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_beside_the_same_identifier_is_noticed_by_the_table() {
    let cluster = Cluster::start("");
    let mut due = with_history(&cluster).await;
    let dump = cluster.file("dump");
    cluster.dump(&dump);
    // The same cluster: only the table is another one.
    cluster.connect().await.batch_execute("DROP SCHEMA postrider CASCADE").await.unwrap();
    cluster.restore(&dump);
    due.extend(commit(&cluster.url(), 2).await);
    assert_eq!(Reader::open(&cluster.url()).await.read_on().await, due);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_is_not_complete_is_waited_for() {
    let (old, new) = (Cluster::start(""), Cluster::elsewhere());
    with_history(&old).await;
    let dump = old.file("dump");
    old.dump(&dump);
    new.restore(&dump);
    let client = new.connect().await;
    client.batch_execute("DROP INDEX postrider.log_3_seq").await.unwrap();
    let reader = Reader::open(&new.url()).await;
    let refused = reader.store.read(&reader.lease, &reader.cursor, crate::reader::WHOLE).await.unwrap_err();
    assert!(refused.is_transient() && refused.to_string().contains("restore is under way"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_that_went_back_are_refused_until_they_are_put_right() {
    let cluster = Cluster::start("");
    let url = cluster.url();
    let mut due = with_history(&cluster).await;
    let client = cluster.connect().await;
    let last = number(&client, "SELECT last_value FROM postrider.seq").await;
    client.batch_execute("SELECT setval('postrider.seq', 3)").await.unwrap();
    let mut reader = Reader::open(&url).await;
    // The round that was half done is read to its end; the next one cannot begin.
    let refused = loop {
        match reader.page(crate::reader::SMALL).await {
            Ok((read, _)) => due.retain(|id| !read.contains(id)),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
    let fix = "`SELECT setval('\"postrider\".\"seq\"', 43)`";
    assert!(refused.to_string().contains(fix) && refused.to_string().contains("route rebase"), "{refused}");
    assert!(last >= 43, "{last}");
    reader.settle().await.unwrap();
    reader.store.rebase_route("r", &actor()).await.unwrap();
    let mut reader = Reader::open(&url).await;
    let refused = reader.store.read(&reader.lease, &reader.cursor, crate::reader::WHOLE).await.unwrap_err();
    assert!(refused.to_string().contains(fix), "so does the rebase: {refused}");
    client.batch_execute("SELECT setval('postrider.seq', 43)").await.unwrap();
    due.extend(commit(&url, 2).await);
    assert_eq!(reader.read_on().await, due);
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_went_back_are_refused_until_the_route_is_rebased() {
    let cluster = Cluster::start("");
    let url = cluster.url();
    // Four billion transactions later; and then somebody resets the cluster and forgets how many billions there were.
    cluster.set_next_xid(1, 2_000);
    let mut due = with_history(&cluster).await;
    cluster.set_next_xid(0, 6_000);
    let mut reader = Reader::open(&url).await;
    let refused = loop {
        match reader.page(crate::reader::SMALL).await {
            Ok((read, _)) => due.retain(|id| !read.contains(id)),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
    assert!(refused.to_string().contains("transaction ids went back") && refused.to_string().contains("route rebase"));
    reader.settle().await.unwrap();
    reader.store.rebase_route("r", &actor()).await.unwrap();
    let mut reader = Reader::open(&url).await;
    due.extend(commit(&url, 2).await);
    let delivered = reader.read_on().await;
    assert!(due.iter().all(|id| delivered.contains(id)), "nothing is lost: {} of {}", delivered.len(), due.len());
}
