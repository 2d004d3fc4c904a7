//! Reading what has places: holes in the order list, and messages that are not there.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use postrider_core::{
    ErrorKind,
    envelope::Envelope,
    lease::LaneId,
    log::{Cursor, Log, PageLimit, Retention, Settlement},
};
use postrider_testkit::store::Fixture;

use crate::{
    LIMIT, names, ordering_by_hand,
    support::{Place, connect, node, spec},
    take, until_waiting,
};

/// Nothing is purged before everybody has passed it, so a message that is not there is no reason to go on behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_the_order_list_names_and_that_is_gone_is_not_passed_over() {
    let place = Place::new().await;
    let store = place.store();
    place.commit(vec![Envelope::new("t", "one", ""), Envelope::new("t", "two", "")]).await;
    let (node, lane) = (node("r", Duration::from_secs(3600)), LaneId { route: "r".into(), number: 0 });
    store.register(&node, &[spec("r")]).await.unwrap();
    let lease = store.acquire(&lane, &node).await.unwrap().unwrap();
    let cursor = store.resume(&lease).await.unwrap().cursor;
    let limit = postrider_core::log::PageLimit { records: 10, bytes: 1 << 20 };
    let log = format!("{}log", place.prefix());
    assert_eq!(store.read(&lease, &cursor, limit).await.unwrap().records.len(), 2);
    let mut connection = connect().await;
    connection.query_drop(format!("DELETE FROM {log} WHERE name = 'one'")).await.unwrap();
    let refused = store.read(&lease, &cursor, limit).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    connection
        .query_drop(format!("INSERT INTO {log} (seq, topic, name, payload) VALUES (1, 't', 'put back', '')"))
        .await
        .unwrap();
    let read = store.read(&lease, &cursor, limit).await.unwrap();
    assert_eq!(&*read.records[0].envelope.name, "put back");
}

/// A view of MariaDB may show a batch and hide the one before, which was committed a moment earlier.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_hidden_behind_the_next_one_is_waited_for() {
    let place = Place::new().await;
    let prefix = place.prefix().to_owned();
    let (store, (lease, cursor)) = (place.store(), take(&place.store()).await);
    let (mut first, mut second) = (connect().await, connect().await);
    for connection in [&mut first, &mut second] {
        connection.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
        connection.query_drop("BEGIN").await.unwrap();
    }
    place.commit(vec![Envelope::new("t", "one", "")]).await;
    for sql in ordering_by_hand(&prefix, 1) {
        first.query_drop(sql).await.unwrap();
    }
    // Without the counter, whose lock the first one has.
    second.query_drop(format!("INSERT INTO {prefix}log (topic, name, payload) VALUES ('t', 'two', '')")).await.unwrap();
    for sql in &ordering_by_hand(&prefix, 2)[..2] {
        second.query_drop(sql).await.unwrap();
    }
    second.query_drop("COMMIT").await.unwrap();
    let reading = tokio::spawn(async move { store.read(&lease, &cursor, LIMIT).await });
    until_waiting(&prefix).await;
    first.query_drop(format!("UPDATE {prefix}counter SET value = 2 WHERE name = 'place'")).await.unwrap();
    first.query_drop("COMMIT").await.unwrap();
    let page = reading.await.unwrap().unwrap();
    assert_eq!(page.records.iter().map(|record| &*record.envelope.name).collect::<Vec<_>>(), ["one", "two"]);
}

/// Only retention makes the list shorter, and only where everybody has passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hole_in_the_order_list_is_not_passed_over_unless_it_was_purged() {
    let place = Place::new().await;
    let (store, prefix) = (place.store(), place.prefix());
    let (lease, begin) = take(&store).await;
    let mut cursor = begin.clone();
    let mut ends = Vec::new();
    for name in ["one", "two", "three", "four"] {
        // Each read gives the place to one, as a batch of its own.
        place.commit(vec![Envelope::new("t", name, "")]).await;
        cursor = store.read(&lease, &cursor, LIMIT).await.unwrap().end;
        ends.push(cursor.clone());
    }
    let settlement = Settlement { number: 1, advance: Some(ends[0].clone()), ..Settlement::default() };
    store.settle(&lease, &settlement).await.unwrap();
    assert_eq!(store.purge(Retention::by_age(Duration::ZERO)).await.unwrap(), 1);
    assert_eq!(names(&place.delivered().await), ["two", "three", "four"], "a reader that begins with the oldest");
    let mut connection = connect().await;
    let hide = |last: u32| format!("UPDATE {prefix}ordering SET last = -last WHERE last = {last}");
    let show = |last: u32| format!("UPDATE {prefix}ordering SET last = {last} WHERE last = -{last}");
    let refused = async |cursor: &Cursor| {
        let refused = store.read(&lease, cursor, LIMIT).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        assert!(refused.to_string().contains("order list"), "{refused}");
    };
    connection.query_drop(hide(2)).await.unwrap();
    refused(&ends[0]).await;
    refused(&begin).await;
    connection.query_drop(show(2)).await.unwrap();
    connection.query_drop(hide(3)).await.unwrap();
    let page = store.read(&lease, &ends[0], LIMIT).await;
    assert!(page.is_err(), "it is noticed no later than here: {page:?}");
    refused(&ends[1]).await;
    connection.query_drop(show(3)).await.unwrap();
    connection.query_drop(hide(4)).await.unwrap();
    refused(&ends[2]).await;
    connection.query_drop(show(4)).await.unwrap();
    assert_eq!(store.read(&lease, &ends[0], LIMIT).await.unwrap().records.len(), 3);
}

/// The beginning of the log is far behind where such a reader looks first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_begins_with_the_oldest_finds_it_however_much_was_purged() {
    let place = Place::new().await;
    let store = place.store();
    let (lease, mut cursor) = take(&store).await;
    place.commit((0..3_000).map(|_| Envelope::new("t", "old", "")).collect()).await;
    let large = PageLimit { records: 5_000, ..LIMIT };
    let page = store.read(&lease, &cursor, large).await.unwrap();
    assert_eq!(page.records.len(), 3_000);
    cursor = page.end;
    let settlement = Settlement { number: 1, advance: Some(cursor), ..Settlement::default() };
    store.settle(&lease, &settlement).await.unwrap();
    let mut purged = 0;
    while purged < 3_000 {
        purged += store.purge(Retention::by_age(Duration::ZERO)).await.unwrap();
    }
    place.commit(vec![Envelope::new("t", "new", "")]).await;
    assert_eq!(names(&place.delivered().await), ["new"]);
    let node = node("small", Duration::from_secs(3600));
    store.register(&node, &[spec("small")]).await.unwrap();
    let lease = store.acquire(&LaneId { route: "small".into(), number: 0 }, &node).await.unwrap().unwrap();
    let begin = store.resume(&lease).await.unwrap().cursor;
    let page = store.read(&lease, &begin, LIMIT).await.unwrap();
    assert_eq!(page.records.iter().map(|record| &*record.envelope.name).collect::<Vec<_>>(), ["new"]);
}
