//! A log that is dropped, renamed or replaced under its routes.

use std::time::Duration;

use mongodb::bson::{Timestamp, doc};
use postrider_core::{
    ErrorKind,
    admin::{Actor, StoreAdmin},
    lease::LaneId,
    log::{Log, PageLimit, Retention},
};
use postrider_store_mongodb::{MongoStore, migrations};

use postrider_testkit::store::Fixture;

use crate::{
    HOUR, Reader, named, names,
    support::{Place, node, url},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_or_renamed_log_stops_the_route_with_a_cause() {
    for rename in [false, true] {
        let place = Place::new().await;
        let store = place.store();
        let mut reader = Reader::of(&store, "r").await;
        place.commit(vec![named("one")]).await;
        assert_eq!(reader.rest(10).await.len(), 1);
        reader.settle().await;
        place.commit(vec![named("two")]).await;
        let log = format!("{}.{}", place.names.database(), place.names.log());
        if rename {
            let away = doc! { "renameCollection": &log, "to": format!("{log}_away") };
            place.client.database("admin").run_command(away).await.unwrap();
        } else {
            place.collection("log").drop().await.unwrap();
        }
        assert_eq!(names(&reader.page(10).await.0), ["two"], "what was committed before is delivered");
        let limit = PageLimit { records: 10, bytes: 1 << 20 };
        for _ in 0..2 {
            let stopped = store.read(&reader.lease, &reader.cursor, limit).await.unwrap_err();
            assert_eq!((stopped.kind(), stopped.is_transient()), (ErrorKind::Schema, false), "{stopped:?}");
            assert!(stopped.to_string().contains("dropped or renamed"), "{stopped}");
        }
        if rename {
            let back = doc! { "renameCollection": format!("{log}_away"), "to": &log };
            place.client.database("admin").run_command(back).await.unwrap();
        }
        let overview = store.overview().await.expect("who looks is not stopped with the route");
        assert_eq!((overview.routes.len(), overview.routes[0].pending), (1, if rename { 2 } else { 0 }));
        let purged = store.purge(Retention::by_age(Duration::ZERO)).await.expect("nor is retention");
        assert_eq!(purged, 0, "nothing is known of what is behind the end");
        store.read(&reader.lease, &reader.cursor, limit).await.expect_err("the route stays stopped");
        store.rebase_route("r", &Actor::new("operator")).await.unwrap();
        let mut next = again_from_store(&store).await;
        let found = names(&next.rest(10).await).join(" ");
        assert_eq!(found, if rename { "one two" } else { "" }, "what is there is delivered, some of it twice");
        place.commit(vec![named("three")]).await;
        assert_eq!(names(&next.rest(10).await), ["three"]);
        assert_whole(&place).await;
    }
}

/// The log has its index, and refuses what it must.
async fn assert_whole(place: &Place) {
    let log = place.collection("log");
    assert!(log.list_index_names().await.unwrap().contains(&"at".to_owned()));
    log.insert_one(doc! { "topic": "t", "name": "without its point in time", "payload": "{}" }).await.unwrap_err();
    let zero = Timestamp { time: 0, increment: 0 };
    log.insert_one(doc! { "at": zero, "topic": "t", "name": "n", "key": 7, "payload": "{}" }).await.unwrap_err();
}

/// The server has forgotten the drop together with everything else. What is there under the name is another collection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_was_replaced_while_history_was_lost_stops_every_route() {
    let place = Place::with(&url(), |builder| builder.forget_every(1)).await;
    let store = place.store();
    let mut readers = [Reader::of(&store, "r").await, Reader::of(&store, "s").await];
    place.commit(vec![named("one")]).await;
    for reader in &mut readers {
        assert_eq!(names(&reader.rest(10).await), ["one"]);
        reader.settle().await;
        let in_stream = reader.cursor.clone();
        assert_eq!(names(&reader.rest(10).await), ["one"], "the same log is read anew");
        reader.cursor = in_stream;
    }
    assert!(store.recoveries() > 1, "every read of the stream finds its history lost");
    place.commit(vec![named("lost")]).await;
    place.collection("log").drop().await.unwrap();
    let stops = async |reader: &Reader, how: &str| {
        let limit = PageLimit { records: 10, bytes: 1 << 20 };
        let stopped = store.read(&reader.lease, &reader.cursor, limit).await.unwrap_err();
        assert_eq!((stopped.kind(), stopped.is_transient()), (ErrorKind::Schema, false), "{stopped:?}");
        assert!(stopped.to_string().contains("dropped or renamed") && stopped.to_string().contains(how), "{stopped}");
    };
    stops(&readers[0], "missing").await;
    place.commit(vec![named("new")]).await;
    for reader in &readers {
        stops(reader, "replaced").await;
    }
    store.rebase_route("r", &Actor::new("operator")).await.unwrap();
    assert_whole(&place).await;
    assert_eq!(names(&again_from_store(&store).await.rest(10).await), ["new"]);
    stops(&readers[1], "replaced").await;
}

/// The ledger says that all is applied, and so it was, to a collection that is not there any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrating_makes_a_dropped_log_whole_again() {
    let place = Place::new().await;
    let anna = Actor::new("anna");
    for inserted in [false, true] {
        place.collection("log").drop().await.unwrap();
        if inserted {
            place.commit(vec![named("made-it-anew")]).await;
        }
        let again = migrations::up(&place.url, &place.names, &anna).await.unwrap();
        assert!(again.len() == 2 && again.iter().all(|standing| standing.name.contains("again")), "{again:?}");
        assert_whole(&place).await;
    }
    place.collection("log").drop_index("at").await.unwrap();
    place.another().await;
    assert_whole(&place).await;
    let entries = async || place.store().audit(100).await.unwrap().len();
    assert_eq!(entries().await, 2, "what an operator has mended is told");
    migrations::up(&place.url, &place.names, &anna).await.unwrap();
    assert_eq!(entries().await, 2, "and nothing where nothing was lacking");
}

async fn again_from_store(store: &MongoStore) -> Reader {
    let node = node("r", HOUR);
    let lane = LaneId { route: "r".into(), number: 0 };
    let lease = store.acquire(&lane, &node).await.unwrap().expect("rebasing frees the lanes");
    let cursor = store.resume(&lease).await.unwrap().cursor;
    Reader { store: store.clone(), lease, cursor, number: 0 }
}
