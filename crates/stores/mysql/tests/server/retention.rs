//! Retention: what may go, and what an open transaction keeps.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use postrider_core::{
    admin::StoreAdmin,
    envelope::Envelope,
    lease::LaneId,
    log::{Log, Retention, Settlement},
};
use postrider_testkit::store::Fixture;

use crate::support::{Place, connect, node, spec};

/// A low number may commit late: who empties the log up to a number loses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_waits_for_a_transaction_that_is_still_open() {
    let place = Place::new().await;
    let store = place.store();
    let (node, lane) = (node("r", Duration::from_secs(3600)), LaneId { route: "r".into(), number: 0 });
    store.register(&node, &[spec("r")]).await.unwrap();
    let lease = store.acquire(&lane, &node).await.unwrap().unwrap();
    let log = format!("{}log", place.prefix());
    let (mut slow, mut fast) = (connect().await, connect().await);
    slow.query_drop("BEGIN").await.unwrap();
    slow.query_drop(format!("INSERT INTO {log} (topic, name, payload) VALUES ('t', 'slow', '')")).await.unwrap();
    fast.query_drop(format!("INSERT INTO {log} (topic, name, payload) VALUES ('t', 'fast', '')")).await.unwrap();
    let read = async |number| {
        let cursor = store.resume(&lease).await.unwrap().cursor;
        let limit = postrider_core::log::PageLimit { records: 10, bytes: 1 << 20 };
        let page = store.read(&lease, &cursor, limit).await.unwrap();
        let settlement = Settlement { number, advance: Some(page.end.clone()), ..Settlement::default() };
        store.settle(&lease, &settlement).await.unwrap();
        page.records.iter().map(|record| record.envelope.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(read(1).await, ["fast"]);
    assert_eq!(store.purge(Retention::by_age(Duration::ZERO)).await.unwrap(), 1, "it need not wait for the open one");
    slow.query_drop("COMMIT").await.unwrap();
    assert_eq!(read(2).await, ["slow"], "a low number that commits late is read, also behind a purge");
    assert_eq!(store.purge(Retention::by_age(Duration::ZERO)).await.unwrap(), 1);
    assert_eq!(store.overview().await.unwrap().records, 0);
}

/// By number: whole batches go that lie beyond the newest, however young they are, and nothing that was not passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_by_number_keeps_the_newest_and_what_was_not_passed() {
    let place = Place::new().await;
    let store = place.store();
    let (node, lane) = (node("r", Duration::from_secs(3600)), LaneId { route: "r".into(), number: 0 });
    store.register(&node, &[spec("r")]).await.unwrap();
    let lease = store.acquire(&lane, &node).await.unwrap().unwrap();
    let mut cursor = store.resume(&lease).await.unwrap().cursor;
    let limit = postrider_core::log::PageLimit { records: 10, bytes: 1 << 20 };
    for _ in 0..5 {
        // Each read gives the place to one, as a batch of its own.
        place.commit(vec![Envelope::new("t", "n", "")]).await;
        cursor = store.read(&lease, &cursor, limit).await.unwrap().end;
    }
    assert_eq!(store.purge(Retention::by_count(2)).await.unwrap(), 0, "nothing of it was passed");
    let settlement = Settlement { number: 1, advance: Some(cursor), ..Settlement::default() };
    store.settle(&lease, &settlement).await.unwrap();
    let long = Retention { keep: Some(Duration::from_secs(3600)), records_max: Some(4) };
    assert_eq!(store.purge(Retention::default()).await.unwrap(), 0);
    assert_eq!(store.purge(Retention::by_count(5)).await.unwrap(), 0);
    assert_eq!(store.purge(long).await.unwrap(), 1);
    assert_eq!(store.purge(Retention::by_count(2)).await.unwrap(), 2);
    assert_eq!(store.overview().await.unwrap().records, 2);
}
