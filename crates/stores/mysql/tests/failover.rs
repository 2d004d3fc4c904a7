//! Commits that are taken back, as a fail-over to a replica that lags takes them: what is committed in their place is delivered.
//! (That a server which has lost them is known again by its start is in `crash.rs`, with a server of that test's own.)
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::Duration;

use mysql_async::prelude::Queryable;
use postrider_core::{
    envelope::Envelope,
    lease::{LaneId, Lease, Node},
    log::{Cursor, Log, PageLimit, RecordRef, Settlement},
    parked::{Cause, DueLimit, Parked},
};
use postrider_store_mysql::MysqlStore;
use postrider_testkit::store::Fixture;
use support::{Place, connect, node, spec};

const LIMIT: PageLimit = PageLimit { records: 100, bytes: 1 << 20 };

/// The only lane of the route `r`.
fn lane() -> LaneId {
    LaneId { route: "r".into(), number: 0 }
}

/// Takes the lane and resumes.
async fn take(store: &MysqlStore, node: &Node) -> (Lease, Cursor) {
    let lease = store.acquire(&lane(), node).await.unwrap().expect("the lane is to be had");
    let cursor = store.resume(&lease).await.unwrap().cursor;
    (lease, cursor)
}

fn several(name: &str, count: usize) -> Vec<Envelope> {
    (0..count).map(|_| Envelope::new("t", name, "")).collect()
}

fn advance(number: u64, cursor: &Cursor) -> Settlement {
    Settlement { number, advance: Some(cursor.clone()), ..Settlement::default() }
}

/// The last five places are taken back with their messages, and given again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_stands_at_a_place_that_was_never_given_is_fenced_and_what_comes_next_arrives() {
    let place = Place::new().await;
    let (store, node) = (place.store(), node("r", Duration::from_secs(3600)));
    store.register(&node, &[spec("r")]).await.unwrap();
    let (lease, cursor) = take(&store, &node).await;
    place.commit(several("kept", 5)).await;
    let kept = store.read(&lease, &cursor, LIMIT).await.unwrap().end;
    store.settle(&lease, &advance(1, &kept)).await.unwrap();
    place.commit(several("lost", 5)).await;
    let lost = store.read(&lease, &kept, LIMIT).await.unwrap();
    assert_eq!(lost.records.len(), 5);
    let mut connection = connect().await;
    for sql in [
        "DELETE FROM {p}log WHERE name = 'lost'",
        "DELETE FROM {p}ordering WHERE last > 5",
        "UPDATE {p}counter SET value = 5 WHERE name = 'place'",
    ] {
        connection.query_drop(sql.replace("{p}", place.prefix())).await.unwrap();
    }
    place.commit(several("new", 3)).await;
    assert!(store.read(&lease, &lost.end, LIMIT).await.unwrap_err().is_fenced(), "its place was never given");
    let half = (lost.marks)(3);
    for (number, cursor) in [(2, &half), (3, &lost.end)] {
        assert!(store.settle(&lease, &advance(number, cursor)).await.unwrap_err().is_fenced());
    }
    let (lease, cursor) = take(&store, &node).await;
    assert_eq!(cursor, kept, "nothing was written");
    let new = store.read(&lease, &cursor, LIMIT).await.unwrap();
    assert_eq!(new.records.iter().map(|record| &*record.envelope.name).collect::<Vec<_>>(), ["new"; 3]);
    store.settle(&lease, &advance(1, &new.end)).await.unwrap();
}

/// The next primary is an hour behind: leases and retries last as long as they were given for, and no longer; what the
/// application has set for an instant stays there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_goes_back_holds_up_neither_lanes_nor_retries() {
    let place = Place::new().await;
    let store = place.store();
    let (dead, life) = (node("r", Duration::from_millis(500)), Duration::from_secs(20));
    store.register(&dead, &[spec("r")]).await.unwrap();
    let (lease, cursor) = take(&store, &dead).await;
    let soon = place.now().await.saturating_add(Duration::from_secs(1800));
    let mut sent = several("retried", 2);
    sent.iter_mut().for_each(|envelope| *envelope = envelope.clone().with_key("k"));
    sent.push(Envelope { deliver_at: Some(soon), ..Envelope::new("t", "later", "") });
    place.commit(sent).await;
    let page = store.read(&lease, &cursor, LIMIT).await.unwrap();
    let record = |index| RecordRef::new(&page.records, index);
    let retrying = Parked::Retrying { after: Duration::from_millis(200), attempts: 1, cause: Cause::new("c", "d") };
    let park = vec![
        (record(0), retrying),
        (record(1), Parked::Held),
        (record(2), Parked::Scheduled { after: Duration::from_secs(1800) }),
    ];
    store.settle(&lease, &Settlement { park, ..advance(1, &page.end) }).await.unwrap();
    // As the clock of the last primary would have written it.
    let mut connection = connect().await;
    for sql in [
        "UPDATE {p}node SET seen_at = seen_at + 3600000000",
        "UPDATE {p}lane SET expires_at = expires_at + 3600000000",
        "UPDATE {p}parked SET due_at = due_at + 3600000000, wake_at = wake_at + 3600000000 WHERE deliver_at IS NULL",
    ] {
        connection.query_drop(sql.replace("{p}", place.prefix())).await.unwrap();
    }
    let next = node("r", life);
    store.register(&next, &[spec("r")]).await.unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    let lease = loop {
        store.heartbeat(&next).await.unwrap();
        if let Some(lease) = store.acquire(&lane(), &next).await.unwrap() {
            break lease;
        }
        assert!(std::time::Instant::now() < deadline, "a dead owner's lease runs out");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let limit = DueLimit { lines: 10, per_line: 10, bytes: 1 << 20 };
    let due = loop {
        let due = store.due(&lease, limit).await.unwrap();
        if !due.lines.is_empty() {
            break due;
        }
        assert!(std::time::Instant::now() < deadline, "a retry comes due: {due:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(due.lines[0].rows.len(), 2, "and what waits behind it");
    assert!(due.timed.is_empty(), "what is set for an instant waits for it");
    assert!(due.next_in.is_some_and(|wait| wait > Duration::from_secs(1200)), "{due:?}");
    let roster = store.heartbeat(&next).await.unwrap();
    assert!(roster.nodes.iter().all(|standing| standing.id == next.id), "the dead one is not live");
}
