//! Getting in: plain inserts of other languages, sessions without a transaction, and what the server refuses.

use std::{sync::Arc, time::Duration};

use mongodb::bson::{Bson, DateTime, Timestamp, bson, doc};
use postrider_core::{
    ErrorKind,
    enlist::Enlist,
    envelope::Envelope,
    headers::Headers,
    limits::Limits,
    log::{Log, PageLimit, RecordRef, Settlement},
    parked::{Cause, DueLimit, Parked},
    time::Timestamp as Instant,
};
use postrider_testkit::store::Fixture;

use crate::{
    Reader, named, names,
    support::{Place, batch},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_insert_of_any_language_enqueues() {
    let place = Place::new().await;
    let log = place.collection("log");
    let zero = Timestamp { time: 0, increment: 0 };
    let soon = DateTime::from_millis(4_102_444_800_000);
    log.insert_one(doc! { "at": zero, "topic": "t", "name": "one", "key": "größe", "payload": "{}" }).await.unwrap();
    let headers = doc! { "tenant": "7" };
    let two = doc! { "at": zero, "topic": "t", "name": "two", "payload": "x", "headers": headers, "deliver_at": soon };
    log.insert_one(two).await.unwrap();
    let delivered = place.delivered().await;
    assert_eq!(names(&delivered), ["one", "two"]);
    assert_eq!(delivered[0].key.as_ref().unwrap().as_str(), "größe");
    assert_eq!(&delivered[0].payload[..], b"{}");
    assert_eq!(delivered[1].headers.get("tenant").unwrap().as_deref(), Some("7"));
    assert_eq!(delivered[1].deliver_at.unwrap().as_micros(), 4_102_444_800_000_000);
    assert_ne!(delivered[0].id, delivered[1].id, "an id is made for whoever gives none");
    assert_eq!(place.delivered().await[0].id, delivered[0].id, "and is always the same");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_without_its_point_in_time_is_refused() {
    let place = Place::new().await;
    let log = place.collection("log");
    let zero = Timestamp { time: 0, increment: 0 };
    let whole = doc! { "at": zero, "topic": "t", "name": "n", "payload": "x" };
    for missing in ["at", "topic", "name", "payload"] {
        let mut part = whole.clone();
        part.remove(missing);
        assert!(log.insert_one(part).await.is_err(), "without {missing}");
    }
    let several = doc! { "at": [Timestamp { time: 7, increment: 1 }], "topic": "t", "name": "n", "payload": "x" };
    assert!(log.insert_one(several).await.is_err(), "one point, and not a list of them");
    // An update does not fill it in, so a cursor would pass it over.
    let upsert = log.update_one(doc! { "_id": "mine" }, doc! { "$set": whole }).upsert(true).await;
    assert!(upsert.is_err());
    assert_eq!(place.delivered().await, []);
}

/// What is of another type would not be read: a key that is a number would be none, and the order of its messages with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_field_of_another_type_is_refused_and_what_is_left_out_is_not() {
    let place = Place::new().await;
    let log = place.collection("log");
    let with = |name: &str, value: Bson| {
        let mut message = doc! { "at": Timestamp { time: 0, increment: 0 }, "topic": "t", "name": "n", "payload": "x" };
        message.insert(name, value);
        message
    };
    let (id, now) = (mongodb::bson::Uuid::new(), DateTime::now());
    for (name, value) in [
        ("key", Bson::from(4711)),
        ("key", bson!(["4711"])),
        ("topic", bson!(["t"])),
        ("payload", bson!({ "number": 4711 })),
        ("id", "4711".into()),
        ("id", 4711.into()),
        ("headers", "tenant=7".into()),
        ("deliver_at", "2030-01-01T00:00:00Z".into()),
        ("expires_at", "2030-01-01T00:00:00Z".into()),
        ("attempts_max", "3".into()),
        ("attempts_max", 0.into()),
        ("attempts_max", 1.5.into()),
    ] {
        assert!(log.insert_one(with(name, value.clone())).await.is_err(), "{name}: {value}");
    }
    assert_eq!(place.delivered().await, []);
    let good = [
        ("key", Bson::from("4711")),
        ("key", Bson::Null),
        ("id", id.into()),
        ("id", mongodb::bson::Uuid::new().to_string().into()),
        ("id", Bson::Null),
        ("headers", bson!({ "tenant": "7" })),
        ("headers", bson!({})),
        ("deliver_at", now.into()),
        ("expires_at", Bson::Null),
        ("attempts_max", 3.into()),
        ("attempts_max", 3_i64.into()),
        ("attempts_max", 3.0.into()),
    ];
    for (name, value) in good.clone() {
        log.insert_one(with(name, value.clone())).await.unwrap_or_else(|error| panic!("{name}: {value}: {error}"));
    }
    let delivered = place.delivered().await;
    assert_eq!(delivered.len(), good.len());
    assert_eq!(delivered.iter().filter(|envelope| envelope.attempts_max == Some(3)).count(), 3);
    assert!(delivered.iter().any(|envelope| envelope.id.0.as_bytes() == &id.bytes()), "the id that was given");
    // And everything that the library itself writes.
    let headers = Headers::new([("tenant", "7")]).unwrap();
    let [deliver_at, expires_at] =
        [4_102_444_800, 4_102_444_801].map(|second: i64| Some(Instant::from_micros(second * 1_000_000)));
    let whole = Envelope { headers, deliver_at, expires_at, attempts_max: Some(u32::MAX), ..named("whole") };
    place.commit(vec![whole.clone()]).await;
    assert_eq!(place.delivered().await.last(), Some(&whole));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_without_a_transaction_is_refused() {
    let place = Place::new().await;
    let mut session = place.client.start_session().await.unwrap();
    let refused = session.append(&place.names, batch(vec![named("alone")])).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("start_transaction"), "{refused}");
    // The session is as good as before.
    session.start_transaction().await.unwrap();
    session.append(&place.names, batch(vec![named("together")])).await.unwrap();
    session.commit_transaction().await.unwrap();
    let late = session.append(&place.names, batch(vec![named("late")])).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Invalid, "after its commit a session is in no transaction");
    assert_eq!(names(&place.delivered().await), ["together"]);
}

/// A write that the server refuses inside of an answer that is otherwise good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_refuses_of_an_enqueue_is_told_by_its_code_and_without_its_text() {
    let place = Place::new().await;
    let refuses = doc! { "collMod": place.names.log(), "validator": { "name": { "$ne": "refused" } } };
    place.client.database(place.names.database()).run_command(refuses).await.unwrap();
    let mut session = place.client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let envelopes = vec![named("taken"), Envelope::new("t", "refused", "secret")];
    let refused = session.append(&place.names, batch(envelopes)).await.unwrap_err();
    assert_eq!((refused.kind(), refused.is_transient()), (ErrorKind::Invalid, false), "{refused:?}");
    let said = format!("{refused} {refused:?}");
    assert!(said.contains("121") && !said.contains("secret"), "{said}");
    let _ = session.abort_transaction().await;
    assert_eq!(place.delivered().await, [], "all or nothing");
}

/// `at` is given by the server as the message is inserted: unique, and in the order of what caused what.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_message_has_a_point_in_time_of_its_own() {
    let place = Arc::new(Place::new().await);
    let writers = (0..6).map(|_| {
        let place = Arc::clone(&place);
        tokio::spawn(async move {
            for _ in 0..10 {
                place.commit(vec![named("n"), named("n")]).await;
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let points = place.collection("log").distinct("at", doc! {}).await.unwrap();
    assert_eq!(points.len(), 120);
    assert!(points.iter().all(|point| matches!(point, Bson::Timestamp(at) if at.time > 0)));
}

/// What gets in can be parked, and what could not be does not get in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_as_large_as_a_document_can_be_parked() {
    const LARGEST: usize = (16 << 20) - (64 << 10);
    let place = Place::new().await;
    let store = place.store();
    let limits = Limits { payload_bytes_max: 32 << 20, ..Limits::default() };
    let sized = |name: &str, bytes: usize| Envelope::new("t", name, vec![7; bytes]).with_key("k");
    let mut session = place.client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let refused = session.append(&place.names, limits.check(vec![sized("too-large", LARGEST)])).await.unwrap_err();
    assert_eq!((refused.kind(), refused.is_transient()), (ErrorKind::Limit, false), "{refused}");
    assert!(refused.to_string().contains("message_bytes_max"), "{refused}");
    let both = vec![sized("large", 3 << 20), sized("largest", LARGEST - 2_000)];
    session.append(&place.names, limits.check(both)).await.unwrap();
    session.commit_transaction().await.unwrap();
    let foreign = doc! {
        "at": Timestamp { time: 0, increment: 0 }, "topic": "t", "name": "foreign", "payload": "x".repeat(LARGEST),
    };
    place.collection("log").insert_one(foreign).await.expect_err("nor with a plain insert");

    let mut reader = Reader::of(&store, "r").await;
    // Once by the scan and once by the stream.
    for turn in ["scan", "stream"] {
        let page = store.read(&reader.lease, &reader.cursor, PageLimit { records: 10, bytes: 1 << 30 }).await.unwrap();
        assert_eq!(page.records.len(), 2, "{turn}");
        // Whatever a destination has to say.
        let cause = Cause::new("refused", "ö".repeat(1 << 20));
        let parked = Parked::Retrying { after: Duration::ZERO, attempts: 1, cause };
        let park = (0..2).map(|index| (RecordRef::new(&page.records, index), parked.clone())).collect();
        reader.number += 1;
        let settlement =
            Settlement { number: reader.number, advance: Some(page.end.clone()), park, ..Settlement::default() };
        store.settle(&reader.lease, &settlement).await.unwrap();
        reader.cursor = page.end;
        let due = store.due(&reader.lease, DueLimit { lines: 1, per_line: 10, bytes: 1 << 30 }).await.unwrap();
        let rows = &due.lines[0].rows;
        assert_eq!(rows.iter().map(|row| &*row.record.envelope.name).collect::<Vec<_>>(), ["large", "largest"]);
        assert_eq!(rows[1].record.envelope.payload.len(), LARGEST - 2_000);
        reader.number += 1;
        let remove = rows.iter().map(|row| row.ordinal).collect();
        let done = Settlement { number: reader.number, remove, ..Settlement::default() };
        store.settle(&reader.lease, &done).await.unwrap();
        if turn == "scan" {
            session.start_transaction().await.unwrap();
            let both = vec![sized("large", 3 << 20), sized("largest", LARGEST - 2_000)];
            session.append(&place.names, limits.check(both)).await.unwrap();
            session.commit_transaction().await.unwrap();
        }
    }
}
