//! What needs a server of its own: a standalone one that is refused, and one whose history is tiny.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::{Duration, Instant};

use mongodb::{
    bson::{Document, Timestamp, doc},
    options::{Acknowledgment, CollectionOptions, WriteConcern},
};
use postrider_core::{
    ErrorKind,
    admin::StoreAdmin,
    doctor::Thresholds,
    enlist::Enlist,
    envelope::Envelope,
    lease::LaneId,
    log::{Log, PageLimit, Settlement},
};
use postrider_store_mongodb::MongoStore;
use postrider_testkit::store::{Fixture, OpenTransaction};
use support::{
    Place, batch, node,
    servers::{PATIENCE, ReplicaSet, Server},
    spec,
};

const HOUR: Duration = Duration::from_hours(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standalone_server_is_refused_with_what_to_do() {
    let server = Server::start(&[]).await;
    let refused = MongoStore::open(&server.url()).await.unwrap_err();
    assert_eq!((refused.kind(), refused.is_transient()), (ErrorKind::Unsupported, false));
    let said = refused.to_string();
    assert!(said.contains("standalone") && said.contains("--replSet") && said.contains("rs.initiate()"), "{said}");
}

/// The server's history is a ring of a megabyte. What it has forgotten is in the collection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_history_costs_a_scan_and_never_a_message() {
    let server = Server::replica_set(&["--oplogSize", "1", "--syncdelay", "1"]).await;
    let place = Place::on(&server.url()).await;
    let store = place.store();
    let owner = node("r", HOUR);
    store.register(&owner, &[spec("r")]).await.unwrap();
    let lease = store.acquire(&LaneId { route: "r".into(), number: 0 }, &owner).await.unwrap().unwrap();
    let mut cursor = store.resume(&lease).await.unwrap().cursor;
    let limit = PageLimit { records: 1_000, bytes: 1 << 30 };
    let named = |name: &str| Envelope::new("t", name, "{}");

    place.commit(vec![named("before")]).await;
    let mut slow = place.begin().await;
    slow.append(vec![named("slow")]).await;
    place.commit(vec![named("quick")]).await;
    let page = store.read(&lease, &cursor, limit).await.unwrap();
    assert_eq!(page.records.len(), 2);
    let first = Settlement { number: 1, advance: Some(page.end.clone()), ..Settlement::default() };
    store.settle(&lease, &first).await.unwrap();
    cursor = page.end;
    slow.commit().await;
    place.commit(vec![named("later")]).await;

    // Until the server has forgotten where the cursor is.
    let noise = place.client.database("noise").collection("noise");
    let deadline = Instant::now() + PATIENCE;
    let page = loop {
        let documents: Vec<_> = (0..20).map(|_| doc! { "x": "x".repeat(100_000) }).collect();
        noise.insert_many(documents).await.unwrap();
        let page = store.read(&lease, &cursor, limit).await.unwrap();
        if store.recoveries() > 0 {
            break page;
        }
        assert!(Instant::now() < deadline, "the server remembers everything");
    };
    let found: Vec<&str> = page.records.iter().map(|record| &*record.envelope.name).collect();
    assert_eq!(found, ["before", "slow", "quick", "later"], "in order, with what was passed once more");
    let second = Settlement { number: 2, advance: Some(page.end.clone()), ..Settlement::default() };
    store.settle(&lease, &second).await.unwrap();
    let findings = store.doctor(Thresholds::default()).await.unwrap();
    assert!(findings.iter().any(|finding| finding.code == "history-lost"), "it is reported: {findings:?}");
    let overview = store.overview().await.unwrap();
    assert_eq!(overview.routes[0].pending, 0);
    assert!(overview.routes[0].lanes[0].cursor.contains("lost history"), "{:?}", overview.routes[0].lanes);

    place.commit(vec![named("after")]).await;
    let page = store.read(&lease, &page.end, limit).await.unwrap();
    let found: Vec<&str> = page.records.iter().map(|record| &*record.envelope.name).collect();
    assert_eq!(found, ["after"], "and the stream goes on");
}

/// A lane that nothing is for moves along with the server's history, and never has to be read anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_lane_is_not_forgotten() {
    let server = Server::replica_set(&["--oplogSize", "1", "--syncdelay", "1"]).await;
    let place = Place::with(&server.url(), |builder| builder.idle_seconds(0)).await;
    let store = place.store();
    let owner = node("r", HOUR);
    store.register(&owner, &[spec("r"), spec("asleep")]).await.unwrap();
    let lease = async |route: &str| {
        let lane = LaneId { route: route.into(), number: 0 };
        store.acquire(&lane, &owner).await.unwrap().unwrap()
    };
    let (awake, asleep) = (lease("r").await, lease("asleep").await);
    let limit = PageLimit { records: 1_000, bytes: 1 << 30 };
    let mut cursor = store.resume(&awake).await.unwrap().cursor;
    let noise = place.client.database("noise").collection("noise");
    let deadline = Instant::now() + PATIENCE;
    // Until the server has forgotten where both have begun.
    loop {
        let documents: Vec<_> = (0..5).map(|_| doc! { "x": "x".repeat(100_000) }).collect();
        noise.insert_many(documents).await.unwrap();
        let page = store.read(&awake, &cursor, limit).await.unwrap();
        assert!(page.records.is_empty());
        cursor = page.end;
        assert_eq!(store.recoveries(), 0, "the lane that reads is remembered");
        let begun = store.resume(&asleep).await.unwrap().cursor;
        store.read(&asleep, &begun, limit).await.unwrap();
        if store.recoveries() > 0 {
            break;
        }
        assert!(Instant::now() < deadline, "the server remembers everything");
    }
    let before = store.recoveries();
    place.commit(vec![Envelope::new("t", "n", "{}")]).await;
    let page = store.read(&awake, &cursor, limit).await.unwrap();
    assert_eq!((page.records.len(), store.recoveries()), (1, before));
}

/// What an application was told is written, and only one member had when it died, was never delivered and never is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_one_member_had_is_never_delivered() {
    let mut set = ReplicaSet::start().await;
    let place = Place::on(&set.url()).await;
    let store = place.store();
    let owner = node("r", HOUR);
    store.register(&owner, &[spec("r")]).await.unwrap();
    let lease = store.acquire(&LaneId { route: "r".into(), number: 0 }, &owner).await.unwrap().unwrap();
    let begin = store.resume(&lease).await.unwrap().cursor;
    let limit = PageLimit { records: 1_000, bytes: 1 << 30 };
    place.commit(vec![Envelope::new("t", "kept", "{}")]).await;

    set.stop_replication().await;
    let weak = WriteConcern::builder().w(Acknowledgment::Nodes(1)).build();
    let weak = CollectionOptions::builder().write_concern(weak).build();
    let database = place.client.database(place.names.database());
    let log = database.collection_with_options::<Document>(place.names.log(), weak);
    let at = Timestamp { time: 0, increment: 0 };
    let ghost = |n: i32| doc! { "at": at, "topic": "t", "name": "ghost", "key": n.to_string(), "payload": "{}" };
    log.insert_many((0..200).map(ghost)).await.unwrap();
    let page = store.read(&lease, &begin, limit).await.unwrap();
    let found: Vec<&str> = page.records.iter().map(|record| &*record.envelope.name).collect();
    assert_eq!(found, ["kept"], "what a majority does not have is not read");
    set.lose_primary().await;

    let deadline = Instant::now() + PATIENCE;
    // The drivers may have to find the new primary first.
    let (names_of, later) = (&place.names, &vec![Envelope::new("t", "later", "{}")]);
    let work = store.unit_of_work(&place.client).patience(PATIENCE);
    work.run(|mut tx| async move { Ok(tx.append(names_of, batch(later.clone())).await?) }).await.unwrap();
    let names = loop {
        match store.read(&lease, &page.end, limit).await {
            Ok(page) => break page.records.iter().map(|record| record.envelope.name.to_string()).collect::<Vec<_>>(),
            Err(error) => assert!(error.is_transient() && Instant::now() < deadline, "{error:?}"),
        }
    };
    assert_eq!(names, ["later"]);
    assert!(place.delivered().await.iter().all(|envelope| &*envelope.name != "ghost"), "nor by a scan");
}
