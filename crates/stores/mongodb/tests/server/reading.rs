//! The counter-examples that the reader was made for: scans, lost history, and transactions that are open meanwhile.

use mongodb::bson::{Bson, Timestamp, doc};
use postrider_core::{
    admin::StoreAdmin,
    doctor::Thresholds,
    envelope::{Envelope, MessageId},
    lease::{LaneId, RouteSpec},
    log::{Log, PageLimit},
    topic::TopicFilter,
};
use postrider_store_mongodb::planted::Plant;
use postrider_testkit::store::{Fixture, OpenTransaction};

use crate::{
    HOUR, Reader, named, names,
    support::{Place, node, spec, url},
};

/// A scan without an upper bound passes the place of a message before that commits, and then meets one that was enqueued
/// after it.
async fn first_deliveries_of_a_paged_scan(plant: Plant) -> Vec<String> {
    let place = Place::with(&url(), |builder| builder.plant(plant)).await;
    place.commit(vec![Envelope::new("t", "old-1", "")]).await;
    let mut slow = place.begin().await;
    slow.append(vec![named("first")]).await;
    place.commit(vec![Envelope::new("t", "old-2", "")]).await;
    let mut reader = Reader::of(&place.store(), "r").await;
    let mut delivered = reader.page(1).await.0;
    delivered.extend(reader.page(1).await.0);
    assert_eq!(names(&delivered), ["old-1", "old-2"], "the scan is behind the place of the open transaction");
    slow.commit().await;
    place.commit(vec![named("second")]).await;
    delivered.extend(reader.rest(1).await);
    let mut seen = std::collections::HashSet::new();
    delivered.retain(|envelope| seen.insert(envelope.id));
    names(&delivered).into_iter().skip(2).map(ToOwned::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_ends_where_everything_was_committed() {
    assert_eq!(first_deliveries_of_a_paged_scan(Plant::None).await, ["first", "second"]);
    assert_eq!(first_deliveries_of_a_paged_scan(Plant::UnboundedScan).await, ["second", "first"], "the mistake shows");
}

/// A page of a scan sees a part of a transaction that was open when the scan began, and has passed the place of the rest.
async fn deliveries_of_a_torn_transaction(plant: Plant) -> Vec<String> {
    let place = Place::with(&url(), |builder| builder.plant(plant)).await;
    place.commit(vec![Envelope::new("t", "old-1", "")]).await;
    let mut slow = place.begin().await;
    slow.append(vec![named("first")]).await;
    place.commit(vec![Envelope::new("t", "old-2", "")]).await;
    slow.append(vec![named("second")]).await;
    place.commit(vec![Envelope::new("t", "old-3", "")]).await;
    let mut reader = Reader::of(&place.store(), "r").await;
    let mut delivered = reader.page(1).await.0;
    delivered.extend(reader.page(1).await.0);
    assert_eq!(names(&delivered), ["old-1", "old-2"], "the scan is between the two of the open transaction");
    slow.commit().await;
    delivered.extend(reader.rest(1).await);
    names(&delivered).into_iter().skip(2).map(ToOwned::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_leaves_what_was_open_to_the_stream_as_a_whole() {
    let whole = deliveries_of_a_torn_transaction(Plant::None).await;
    assert_eq!(whole, ["old-3", "first", "second"], "in order, and once");
    let torn = deliveries_of_a_torn_transaction(Plant::TornTransaction).await;
    assert_eq!(torn, ["second", "old-3", "first", "second"], "the mistake shows");
}

/// What was inserted before the cursor and committed behind it is found by a scan that begins early enough.
async fn found_after_lost_history(plant: Plant) -> Vec<String> {
    let place = Place::with(&url(), |builder| builder.plant(plant).forget_every(3)).await;
    let mut reader = Reader::of(&place.store(), "r").await;
    let mut slow = place.begin().await;
    slow.append(vec![named("slow")]).await;
    place.commit(vec![named("quick")]).await;
    assert_eq!(names(&reader.page(10).await.0), ["quick"]);
    reader.settle().await;
    assert_eq!(reader.page(10).await.0, []);
    slow.commit().await;
    place.commit(vec![named("later")]).await;
    // The cursor is behind what the slow one inserted, and the read after the next finds its history lost.
    let mut found = Vec::new();
    for _ in 0..4 {
        found = reader.page(10).await.0;
        if place.store().recoveries() > 0 {
            break;
        }
        reader.cursor = reader.store.resume(&reader.lease).await.unwrap().cursor;
    }
    assert!(place.store().recoveries() > 0, "one of the reads has forgotten where it was");
    names(&found).into_iter().map(ToOwned::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_after_lost_history_begins_before_what_was_open() {
    assert_eq!(found_after_lost_history(Plant::None).await, ["slow", "quick", "later"], "what was passed comes twice");
    assert_eq!(found_after_lost_history(Plant::NoOverlap).await, ["later"], "the mistake loses it");
}

/// A transaction of many megabytes is several entries of the server's history, and one to us.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_larger_than_one_entry_is_resumed_in_its_middle() {
    let place = Place::new().await;
    let mut reader = Reader::of(&place.store(), "r").await;
    let sent: Vec<Envelope> = (0..24).map(|_| Envelope::new("t", "n", vec![7; 1 << 20])).collect();
    place.commit(sent.clone()).await;
    let mut read: Vec<MessageId> = Vec::new();
    loop {
        let page = reader.store.read(&reader.lease, &reader.cursor, PageLimit { records: 5, bytes: 1 << 30 }).await;
        let page = page.unwrap();
        read.extend(page.records.iter().map(|record| record.envelope.id));
        reader.cursor = page.end;
        reader.settle().await;
        let left = place.store().overview().await.unwrap().routes[0].pending;
        assert_eq!(left, (sent.len() - read.len()) as u64, "what is left is known to the message");
        if !page.more {
            break;
        }
    }
    assert_eq!(read, sent.iter().map(|envelope| envelope.id).collect::<Vec<_>>());
}

/// The server cuts an answer at its own limit and does not say so. What lies behind the cut is not at its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_goes_on_behind_an_answer_that_the_server_has_cut_short() {
    let place = Place::new().await;
    let (log, text) = (place.collection("log"), "x".repeat(100 << 10));
    let document = |topic: &str, name: &str, payload: &str| doc! { "at": Timestamp { time: 0, increment: 0 }, "topic": topic, "name": name, "payload": payload };
    for _ in 0..6 {
        log.insert_many((0..50).map(|_| document("of-others", "n", &text))).await.unwrap();
    }
    log.insert_one(document("mine", "wanted", "{}")).await.unwrap();
    let store = place.store();
    let route = RouteSpec { topics: TopicFilter::new(["mine"]).unwrap(), ..spec("narrow") };
    let node = node("narrow", HOUR);
    store.register(&node, &[route]).await.unwrap();
    let lane = LaneId { route: "narrow".into(), number: 0 };
    let lease = store.acquire(&lane, &node).await.unwrap().expect("the lane is free");
    let mut cursor = store.resume(&lease).await.unwrap().cursor;
    let mut found = Vec::new();
    loop {
        let page = store.read(&lease, &cursor, PageLimit { records: 1_000, bytes: 4 << 20 }).await.unwrap();
        found.extend(page.records.iter().map(|record| record.envelope.name.to_string()));
        cursor = page.end;
        if !page.more {
            break;
        }
    }
    assert_eq!(found, ["wanted"]);
}

/// As somebody inserts it who fills in `at` with a clock of its own instead of `Timestamp(0, 0)`, with ids of several types.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_share_one_at_are_all_delivered_once_in_pages_of_any_size() {
    let place = Place::new().await;
    place.commit(vec![named("before")]).await;
    let log = place.collection("log");
    let now = log.find_one(doc! {}).await.unwrap().unwrap().get_timestamp("at").unwrap();
    let shared = Timestamp { increment: now.increment + 1, ..now };
    let ids: [Bson; 6] = [7.into(), "o-1".into(), Bson::Null, doc! { "a": 1 }.into(), 8_i64.into(), "o-2".into()];
    let document =
        |at: Timestamp, id: Bson, name: &str| doc! { "_id": id, "at": at, "topic": "t", "name": name, "payload": "" };
    let own = ids.into_iter().zip(["a", "b", "c", "d", "e", "f"]).map(|(id, name)| document(shared, id, name));
    log.insert_many(own).await.unwrap();
    let old = Timestamp { time: 1, increment: 1 };
    log.insert_many([document(old, 1.into(), "old-1"), document(old, 2.into(), "old-2")]).await.unwrap();
    place.commit(vec![named("behind")]).await;
    for records in [1, 2, 3, 10] {
        let mut reader = Reader::of(&place.store(), &format!("r{records}")).await;
        let mut delivered = reader.page(records).await.0;
        reader.settle().await;
        // As another owner goes on: with what is kept of the cursor.
        reader.cursor = reader.store.resume(&reader.lease).await.unwrap().cursor;
        delivered.extend(reader.rest(records).await);
        reader.settle().await;
        assert_eq!(names(&delivered[..2]), ["old-1", "old-2"]);
        assert_eq!(sorted(names(&delivered)), ["a", "b", "before", "behind", "c", "d", "e", "f", "old-1", "old-2"]);
        let overview = place.store().overview().await.unwrap();
        assert!(overview.routes.iter().all(|route| route.pending == 0), "{overview:?}");
    }
}

/// One of those that share an `at` was open when the scan began: the stream has it, and the scan the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_messages_that_share_one_at_only_what_was_open_is_left_to_the_stream() {
    let place = Place::new().await;
    place.commit(vec![named("before")]).await;
    let log = place.collection("log");
    let at = log.find_one(doc! {}).await.unwrap().unwrap().get_timestamp("at").unwrap();
    let document = |name: &str| doc! { "at": at, "topic": "t", "name": name, "payload": "" };
    let mut slow = place.begin().await;
    log.insert_one(document("open")).session(&mut slow.session).await.unwrap();
    log.insert_one(document("committed")).await.unwrap();
    let mut reader = Reader::of(&place.store(), "r").await;
    slow.commit().await;
    assert_eq!(sorted(names(&reader.rest(1).await)), ["before", "committed", "open"]);
}

fn sorted(mut names: Vec<&str>) -> Vec<&str> {
    names.sort_unstable();
    names
}

/// By the time somebody settles, the scan may be over and the lane in the stream again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_history_is_reported_although_the_scan_is_over_when_it_is_settled() {
    let place = Place::with(&url(), |builder| builder.forget_every(2)).await;
    let store = place.store();
    let mut reader = Reader::of(&store, "r").await;
    place.commit(vec![named("one")]).await;
    assert_eq!(names(&reader.rest(10).await), ["one"]);
    reader.settle().await;
    let told = async || {
        let findings = store.doctor(Thresholds::default()).await.unwrap();
        findings.iter().any(|finding| finding.code == "history-lost")
    };
    assert!(!told().await);
    for _ in 0..2 {
        reader.rest(10).await;
    }
    assert_eq!(store.recoveries(), 1, "every second read finds its history lost");
    place.commit(vec![named("two")]).await;
    assert_eq!(names(&reader.rest(10).await), ["two"]);
    reader.settle().await;
    let lane = store.overview().await.unwrap().routes[0].lanes[0].cursor.clone();
    assert!(lane.starts_with("stream"), "{lane}");
    assert!(told().await, "it is reported");
}
