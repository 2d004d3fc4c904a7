//! Retention: the ring turns, and keeps what somebody still needs.

use std::time::Duration;

use postrider_core::{
    admin::{Actor, ReplaySpec, StoreAdmin},
    enlist::Enlist,
    envelope::Envelope,
    lease::{LaneId, Lease, ReplayFilter},
    log::{Log, PageLimit, Retention, Settlement},
};
use postrider_store_postgres::PostgresStore;

use crate::{
    Post, WHOLE, node,
    support::{batch, connect, url},
    take,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_ring_is_emptied_leaf_by_leaf_and_loses_nothing() {
    let mut post = Post::new(4).await;
    let retention = Retention::by_age(Duration::ZERO);
    let (mut sent, mut read, mut purged) = (0, 0, 0);
    // Blocks of 16 in 8 leaves: 600 records are more than four times round.
    for _ in 0..60 {
        sent += post.commit(10).await.len();
        read += post.read_on().await.len();
        post.settle().await.unwrap();
        purged += post.store.purge(retention).await.unwrap();
    }
    assert_eq!((sent, read), (600, 600));
    post.until_passed(591).await;
    purged += post.purge_all(retention).await;
    let kept = post.store.overview().await.unwrap().records;
    assert_eq!(purged + kept, 600, "what is purged is gone, and nothing else");
    assert!(purged > 450, "of 600 delivered records only {purged} were purged");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_ring_takes_more_and_an_open_transaction_keeps_its_records() {
    let mut post = Post::new(4).await;
    let retention = Retention::by_age(Duration::ZERO);
    let mut client = connect().await;
    let mut early = client.transaction().await.unwrap();
    let held = Envelope::new("orders", "order.placed", "early");
    let held_id = held.id;
    early.append(&post.store.dialect(), batch(vec![held])).await.unwrap();
    for _ in 0..10 {
        post.commit(50).await;
    }
    assert_eq!(post.read_on().await.len(), 500, "five times round without anything being purged");
    post.settle().await.unwrap();
    assert_eq!(post.store.purge(retention).await.unwrap(), 0, "one that has drawn early keeps everything behind it");
    early.commit().await.unwrap();
    assert_eq!(post.read_on().await, [held_id]);
    // Once it has ended, the bounds rise with the next rounds.
    post.until_passed(480).await;
    let purged = post.purge_all(retention).await;
    assert!(purged > 300, "{purged}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_beyond_the_newest_is_removed_however_young() {
    let mut post = Post::new(4).await;
    post.commit(101).await;
    post.until_passed(95).await;
    assert_eq!(post.store.purge(Retention::default()).await.unwrap(), 0, "nothing is asked for");
    assert_eq!(post.purge_all(Retention::by_count(1_000)).await, 0, "there are not so many");
    // The head is at 101 in blocks of 16; there is no number 0. Behind the block that ends at 47 are 54 numbers.
    assert_eq!(post.purge_all(Retention::by_count(54)).await, 47);
    let young = Retention { keep: Some(Duration::from_secs(3600)), records_max: Some(20) };
    assert_eq!(post.purge_all(young).await, 32, "one of the two is reason enough");
    assert_eq!(post.store.overview().await.unwrap().records, 101 - 47 - 32);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_removed_while_the_sequence_is_set_back() {
    let mut post = Post::new(4).await;
    let retention = Retention::by_age(Duration::ZERO);
    post.commit(101).await;
    post.until_passed(95).await;
    assert_eq!(post.purge_all(retention).await, 95);
    let kept = post.store.overview().await.unwrap().records;
    let set_back = format!("SELECT setval('\"{}\".seq', 1)", post.place.schema());
    connect().await.execute(&set_back, &[]).await.unwrap();
    post.commit(60).await;
    assert_eq!(post.store.purge(retention).await.unwrap(), 0, "nobody has seen these");
    assert_eq!(post.store.overview().await.unwrap().records, kept + 60);
}

/// Counts locks that connections of this name wait for.
async fn until_waiting(application: &str, kind: &str) {
    let waits = "SELECT count(*) FROM pg_locks AS lock JOIN pg_stat_activity AS who USING (pid)
                  WHERE NOT lock.granted AND lock.locktype = $1 AND who.application_name = $2";
    let client = connect().await;
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while client.query_one(waits, &[&kind, &application]).await.unwrap().get::<_, i64>(0) == 0 {
        assert!(std::time::Instant::now() < deadline, "{application} waits for a lock");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_that_is_made_while_retention_waits_keeps_its_records_whatever_the_default_isolation() {
    let mut post = Post::new(4).await;
    let sent = post.commit(40).await.len();
    post.until_passed(32).await;
    let named = |name: &str, more: &str| {
        let application = format!("{name}-{}", uuid::Uuid::now_v7().simple());
        (format!("{}?application_name={application}{more}", url()), application)
    };
    let (registrar_url, registrar) = named("registrar", "");
    let level = "&options=-c%20default_transaction_isolation%3Drepeatable%5C%20read";
    let (purger_url, purger) = named("purger", level);
    let open = async |url: &str| PostgresStore::builder(url).schema(post.place.schema()).open().await.unwrap();
    let (registers, purges) = (open(&registrar_url).await, open(&purger_url).await);
    // Somebody who makes a route is kept waiting half-way, and retention waits for him.
    let mut client = connect().await;
    let holding = client.transaction().await.unwrap();
    let hold = format!("LOCK TABLE \"{}\".node IN EXCLUSIVE MODE", post.place.schema());
    holding.batch_execute(&hold).await.unwrap();
    let registering = tokio::spawn(async move { take(&registers, "late").await });
    until_waiting(&registrar, "relation").await;
    let purging = tokio::spawn(async move { purges.purge(Retention::by_age(Duration::ZERO)).await });
    until_waiting(&purger, "advisory").await;
    holding.commit().await.unwrap();
    let lease = registering.await.unwrap();
    assert_eq!(purging.await.unwrap().unwrap(), 0, "a route has passed nothing yet");
    let cursor = post.store.resume(&lease).await.unwrap().cursor;
    let page = post.store.read(&lease, &cursor, WHOLE).await.unwrap();
    assert_eq!(page.records.len(), sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_ended_leaves_no_checkpoints_behind() {
    let mut post = Post::new(20).await;
    let actor = Actor::new("tests");
    let settle_often = async |store: &PostgresStore, lease: &Lease| {
        let cursor = store.resume(lease).await.unwrap().cursor;
        for number in 1..=10 {
            let page = store.read(lease, &cursor, PageLimit { records: 1, bytes: 1 << 20 }).await.unwrap();
            let settlement = Settlement { number, advance: Some((page.marks)(1)), ..Settlement::default() };
            store.settle(lease, &settlement).await.unwrap();
        }
    };
    let client = connect().await;
    let count = format!("SELECT count(*) FROM \"{}\".checkpoint WHERE route = $1", post.place.schema());
    let checkpoints = async |route: &str| -> i64 { client.query_one(&count, &[&route]).await.unwrap().get(0) };
    post.commit(20).await;
    post.read_on().await;
    post.settle().await.unwrap();

    let spec = ReplaySpec { route: "r".into(), to: None, filter: ReplayFilter::default(), rate: None };
    for is_cancelled in [false, true] {
        let name = post.store.replay(&spec, &actor).await.unwrap();
        let lane = LaneId { route: name.clone(), number: 0 };
        let lease = post.store.acquire(&lane, &node()).await.unwrap().unwrap();
        settle_often(&post.store, &lease).await;
        assert!(checkpoints(&name).await > 10);
        if is_cancelled {
            post.store.cancel_replay(&name, &actor).await.unwrap();
        } else {
            assert!(post.store.finish(&lease).await.unwrap());
        }
        assert_eq!(checkpoints(&name).await, 0, "the name of a replay is never given again");
        let settlement = Settlement { number: 11, ..Settlement::default() };
        assert!(
            post.store.settle(&lease, &settlement).await.unwrap_err().is_fenced(),
            "its owner is fenced all the same"
        );
    }

    let lease = take(&post.store, "other").await;
    settle_often(&post.store, &lease).await;
    assert!(checkpoints("other").await > 10);
    post.store.drop_route("other", &actor).await.unwrap();
    assert_eq!(checkpoints("other").await, 1, "what a former owner runs into");
}
