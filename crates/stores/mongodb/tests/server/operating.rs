//! Retention, and what an operator looks for.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use postrider_core::{
    admin::{ParkedFilter, StoreAdmin},
    enlist::Enlist,
    limits::Limits,
    log::{Log, PageLimit, RecordRef, Retention, Settlement},
    parked::{Cause, Parked},
};
use postrider_testkit::store::{Fixture, OpenTransaction};

use crate::{
    HOUR, Reader, named, names,
    support::{Place, now},
};

/// Retention goes by the cursors, and not by the time of the insert.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_commits_late_is_not_purged_before_it_is_delivered() {
    let place = Place::new().await;
    let store = place.store();
    let mut reader = Reader::of(&store, "r").await;
    let mut slow = place.begin().await;
    slow.append(vec![named("slow")]).await;
    place.commit(vec![named("a"), named("b"), named("c")]).await;
    assert_eq!(reader.rest(10).await.len(), 3);
    reader.settle().await;
    slow.commit().await;
    let now = Retention::by_age(Duration::ZERO);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(store.purge(now).await.unwrap(), 3, "those that are delivered, and only those");
    let left: Option<Document> = place.collection("log").find_one(doc! {}).await.unwrap();
    assert_eq!(left.unwrap().get_str("name").unwrap(), "slow");
    assert_eq!(store.overview().await.unwrap().routes[0].pending, 1);
    assert_eq!(names(&reader.rest(10).await), ["slow"]);
    reader.settle().await;
    assert_eq!(store.purge(now).await.unwrap(), 1);
    assert_eq!(place.collection("log").count_documents(doc! {}).await.unwrap(), 0);
}

/// However young they are; and never what somebody has yet to read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_that_are_too_many_are_purged_once_they_are_passed() {
    let place = Place::new().await;
    let store = place.store();
    let mut reader = Reader::of(&store, "r").await;
    for n in 0..5 {
        place.commit(vec![named(&format!("n-{n}"))]).await;
    }
    assert_eq!(reader.page(3).await.0.len(), 3);
    reader.settle().await;
    assert_eq!(store.purge(Retention::default()).await.unwrap(), 0);
    assert_eq!(store.purge(Retention::by_count(5)).await.unwrap(), 0, "there are no more than that");
    assert_eq!(store.purge(Retention::by_count(4)).await.unwrap(), 1);
    assert_eq!(store.purge(Retention::by_count(1)).await.unwrap(), 2, "the rest is not passed");
    assert_eq!(names(&reader.rest(10).await), ["n-3", "n-4"]);
    reader.settle().await;
    assert_eq!(store.purge(Retention::by_count(1)).await.unwrap(), 1);
    assert_eq!(names(&place.delivered().await), ["n-4"], "the newest is kept");
    let both = Retention { keep: Some(HOUR), records_max: Some(1) };
    assert_eq!(store.purge(both).await.unwrap(), 0, "neither too many nor too old");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parked_rows_are_found_by_when_they_were_parked() {
    let place = Place::new().await;
    let store = place.store();
    let reader = Reader::of(&store, "r").await;
    place.commit(vec![named("one")]).await;
    let page = store.read(&reader.lease, &reader.cursor, PageLimit { records: 10, bytes: 1 << 20 }).await.unwrap();
    let before = now(&place.client).await.saturating_sub(Duration::from_secs(1));
    let parked = Parked::Retrying { after: HOUR, attempts: 1, cause: Cause::new("refused", "at first") };
    let park = vec![(RecordRef::new(&page.records, 0), parked)];
    let settlement = Settlement { number: 1, advance: Some(page.end.clone()), park, ..Settlement::default() };
    store.settle(&reader.lease, &settlement).await.unwrap();
    let count = async |instant| {
        let filter = ParkedFilter { parked_before: Some(instant), ..ParkedFilter::default() };
        store.parked_count(&filter).await.unwrap()
    };
    assert_eq!(count(before).await, 0);
    assert_eq!(count(before.saturating_add(HOUR)).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_still_open_is_named_with_where_it_comes_from() {
    let place = Place::new().await;
    let store = place.store();
    let mut session = place.client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    session.append(&place.names, Limits::default().check(vec![named("open")])).await.unwrap();
    let found = store.uncommitted(Duration::ZERO).await.unwrap();
    // Other tests may have some open as well.
    assert!(found.iter().any(|finding| finding.subject.contains("127.0.0.1")), "{found:?}");
    for finding in &found {
        assert_eq!(finding.code, "open-transaction", "{finding:?}");
        assert!(finding.detail.contains("has been open for"), "{finding:?}");
    }
    session.abort_transaction().await.unwrap();
}
