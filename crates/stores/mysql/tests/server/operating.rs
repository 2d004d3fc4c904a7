//! What operators ask and do: parked rows, the doctor, blocked relays, and the audit.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use postrider_core::{
    admin::{Actor, ParkedFilter, StoreAdmin},
    envelope::Envelope,
    lease::LaneId,
    log::{Log, RecordRef, Settlement},
    parked::Parked,
};
use postrider_testkit::store::Fixture;

use crate::{
    ASKING, SILENCE,
    support::{Place, connect, node, spec},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parked_rows_are_chosen_by_when_they_were_parked() {
    let place = Place::new().await;
    let store = place.store();
    let (node, lane) = (node("r", Duration::from_secs(3600)), LaneId { route: "r".into(), number: 0 });
    store.register(&node, &[spec("r")]).await.unwrap();
    let lease = store.acquire(&lane, &node).await.unwrap().unwrap();
    place.commit(vec![Envelope::new("t", "one", ""), Envelope::new("t", "two", "")]).await;
    let cursor = store.resume(&lease).await.unwrap().cursor;
    let limit = postrider_core::log::PageLimit { records: 10, bytes: 1 << 20 };
    let page = store.read(&lease, &cursor, limit).await.unwrap();
    let mut instants = Vec::new();
    for (number, index) in [(1, 0), (2, 1)] {
        instants.push(place.now().await);
        let park = vec![(RecordRef::new(&page.records, index), Parked::Held)];
        store.settle(&lease, &Settlement { number, park, ..Settlement::default() }).await.unwrap();
    }
    instants.push(place.now().await.saturating_add(Duration::from_secs(1)));
    for (instant, expected) in instants.into_iter().zip(0..) {
        let filter = ParkedFilter { parked_before: Some(instant), ..ParkedFilter::default() };
        assert_eq!(store.parked_count(&filter).await.unwrap(), expected, "{filter}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doctor_finds_a_transaction_that_is_open_for_long() {
    let place = Place::new().await;
    let _asking = ASKING.lock().await;
    let mut connection = connect().await;
    connection.query_drop("BEGIN").await.unwrap();
    connection
        .query_drop(format!("INSERT INTO {}log (topic, name, payload) VALUES ('t', 'n', '')", place.prefix()))
        .await
        .unwrap();
    let thresholds =
        postrider_core::doctor::Thresholds { transaction_age: Duration::from_secs(1), ..Default::default() };
    let subject = format!("connection {}", connection.id());
    let deadline = std::time::Instant::now() + Duration::from_secs(120);
    while !place.store().doctor(thresholds).await.unwrap().iter().any(|finding| finding.subject == subject) {
        assert!(std::time::Instant::now() < deadline, "an open transaction is found once it is old");
        tokio::time::sleep(SILENCE).await;
    }
    // Only the oldest are named; those of other tests end, and this one becomes the oldest.
    let found = loop {
        let uncommitted = place.store().uncommitted(Duration::from_secs(1)).await.unwrap();
        if let Some(found) = uncommitted.into_iter().find(|finding| finding.subject == subject) {
            break found;
        }
        assert!(std::time::Instant::now() < deadline, "it has written");
        tokio::time::sleep(SILENCE).await;
    };
    assert!(found.detail.contains("until it commits") && found.fix.contains("KILL"), "{found:?}");
}

/// A settlement that waits for a row is a relay that stands still: whoever has the lock is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_keeps_a_lock_that_others_wait_for_is_named() {
    let place = Place::new().await;
    let table = format!("{}counter", place.prefix());
    assert_eq!(place.store().blockage().await.unwrap(), None);
    let (mut holder, mut waiter) = (connect().await, connect().await);
    holder.query_drop("BEGIN").await.unwrap();
    holder.query_drop(format!("UPDATE {table} SET value = value + 1")).await.unwrap();
    waiter.query_drop("SET SESSION innodb_lock_wait_timeout = 600").await.unwrap();
    let waiting = tokio::spawn(async move { waiter.query_drop(format!("UPDATE {table} SET value = value")).await });
    let _asking = ASKING.lock().await;
    let blockage = async |is_there: bool| {
        let deadline = std::time::Instant::now() + Duration::from_secs(120);
        loop {
            let found = place.store().blockage().await.unwrap();
            if found.is_some() == is_there {
                return found;
            }
            assert!(std::time::Instant::now() < deadline, "{found:?}");
            tokio::time::sleep(SILENCE).await;
        }
    };
    let found = blockage(true).await.unwrap();
    assert_eq!((found.code, found.subject), ("store-locked", format!("connection {}", holder.id())));
    holder.query_drop("ROLLBACK").await.unwrap();
    waiting.await.unwrap().unwrap();
    blockage(false).await;
}

/// An operator does not wait as long as a relay does, and learns who is in the way, also where it is the definition of a table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operators_change_that_gives_up_behind_a_lock_names_its_holder() {
    let place = Place::new().await;
    let store = place.store();
    store.register(&node("r", Duration::from_secs(3600)), &[spec("r")]).await.unwrap();
    let mut holder = connect().await;
    holder.query_drop("BEGIN").await.unwrap();
    holder.query_drop(format!("SELECT * FROM {}route FOR UPDATE", place.prefix())).await.unwrap();
    let _asking = ASKING.lock().await;
    let actor = Actor::new("operator");
    let told = store.pause("r", &actor).await.unwrap_err();
    assert_eq!(told.kind(), postrider_core::ErrorKind::Unavailable);
    let named = format!("store-locked: connection {} keeps a lock", holder.id());
    assert!(told.to_string().contains(&named) && told.chain().contains("pause"), "{}", told.chain());
    assert!(told.to_string().contains(&format!("`KILL {}`", holder.id())), "{told}");
    holder.query_drop("ROLLBACK").await.unwrap();
    store.pause("r", &actor).await.unwrap();
    assert!(store.overview().await.unwrap().routes[0].paused.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_audited_does_not_happen() {
    let place = std::sync::Arc::new(Place::new().await);
    let sql = format!("ALTER TABLE {}audit ADD COLUMN broken INT NOT NULL, ADD CHECK (broken > 0)", place.prefix());
    let broken = async move || {
        let mut connection = connect().await;
        // What is there already is of no account.
        connection.query_drop("SET SESSION check_constraint_checks = 0").await.ok();
        connection.query_drop(sql).await.unwrap();
    };
    postrider_testkit::store::unaudited::nothing_changes_unaudited(place, broken).await;
}
