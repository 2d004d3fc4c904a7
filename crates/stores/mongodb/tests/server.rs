//! What depends on the server: plain inserts of other languages, migrations that race or are switched off, sessions without a
//! transaction, units of work that are run again, a collection that is dropped, and the counter-examples that the reader was
//! made for.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use mongodb::{
    bson::{Bson, DateTime, Document, Timestamp, doc},
    event::{EventHandler, command::CommandEvent},
    options::{ClientOptions, UpdateModifications},
};
use postrider_core::{
    ErrorKind,
    admin::{Actor, ParkedFilter, StoreAdmin},
    doctor::Thresholds,
    enlist::Enlist,
    envelope::{Envelope, MessageId},
    lease::{LaneId, Lease, RouteSpec},
    limits::Limits,
    log::{Cursor, Log, PageLimit, RecordRef, Retention, Settlement},
    parked::{Cause, DueLimit, Parked},
    topic::TopicFilter,
};
use postrider_store_mongodb::{
    Mongo, MongoStore, UnitOfWork, embedded::Embedded, migrations, planted::Plant, work::Failure,
};
use postrider_testkit::store::{Fixture, OpenTransaction};
use support::{Place, batch, builder, client, node, now, spec, url};

const HOUR: Duration = Duration::from_hours(1);

fn names(envelopes: &[Envelope]) -> Vec<&str> {
    envelopes.iter().map(|envelope| &*envelope.name).collect()
}

fn named(name: &str) -> Envelope {
    Envelope::new("t", name, "{}").with_key("k")
}

/// A lane in the hands of a test.
struct Reader {
    store: MongoStore,
    lease: Lease,
    cursor: Cursor,
    number: u64,
}

impl Reader {
    async fn of(store: &MongoStore, route: &str) -> Self {
        let node = node(route, HOUR);
        store.register(&node, &[spec(route)]).await.unwrap();
        let lane = LaneId { route: route.into(), number: 0 };
        let lease = store.acquire(&lane, &node).await.unwrap().expect("the lane is free");
        let cursor = store.resume(&lease).await.unwrap().cursor;
        Self { store: store.clone(), lease, cursor, number: 0 }
    }

    /// One page, and the cursor moves along.
    async fn page(&mut self, records: u32) -> (Vec<Envelope>, bool) {
        let page = self.store.read(&self.lease, &self.cursor, PageLimit { records, bytes: 1 << 30 }).await.unwrap();
        self.cursor = page.end;
        (page.records.iter().map(|record| record.envelope.clone()).collect(), page.more)
    }

    /// All that there is.
    async fn rest(&mut self, records: u32) -> Vec<Envelope> {
        let mut all = Vec::new();
        loop {
            let (some, more) = self.page(records).await;
            all.extend(some);
            if !more {
                return all;
            }
        }
    }

    async fn settle(&mut self) {
        self.number += 1;
        let advance = Some(self.cursor.clone());
        let settlement = Settlement { number: self.number, advance, ..Settlement::default() };
        self.store.settle(&self.lease, &settlement).await.unwrap();
    }
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn openers_that_race_migrate_once() {
    let names = Mongo::new(&format!("t{}", uuid::Uuid::now_v7().simple())).unwrap();
    let without = builder(&url(), &names).migrate(false).open().await.unwrap_err();
    assert_eq!(without.kind(), ErrorKind::Schema);
    assert!(migrations::status(&url(), &names).await.unwrap().iter().all(|standing| standing.applied_at.is_none()));
    let opening = (0..6).map(|_| tokio::spawn(builder(&url(), &names).open()));
    for opened in opening.collect::<Vec<_>>() {
        opened.await.unwrap().unwrap();
    }
    assert!(migrations::plan(&url(), &names).await.unwrap().is_empty());
    assert!(migrations::up(&url(), &names, &Actor::new("tests")).await.unwrap().is_empty());
    builder(&url(), &names).migrate(false).open().await.unwrap();
    assert_eq!(migrations::beside(&url(), &names).await.unwrap(), Vec::<String>::new());
    let other = Mongo::with_prefix(names.database(), "other_").unwrap();
    assert_eq!(migrations::beside(&url(), &other).await.unwrap(), [names.prefix()], "perhaps that one is meant");

    let meta = client().await.database(names.database()).collection::<Document>(&format!("{}meta", names.prefix()));
    let altered = doc! { "$set": { "checksum": "0123" } };
    meta.update_one(doc! { "_id": "migration-1" }, altered).await.unwrap();
    let refused = builder(&url(), &names).open().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Schema);
    client().await.database(names.database()).drop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_unit_of_work_is_run_again_until_it_is_done() {
    let place = Place::new().await;
    let work = place.store().unit_of_work(&place.client);
    place.collection("account").insert_one(doc! { "_id": 1, "balance": 0_i64 }).await.unwrap();
    let account = format!("{}account", place.names.prefix());
    let tasks = (0..8).map(|n| {
        let (work, names, account) = (work.clone(), place.names.clone(), account.clone());
        tokio::spawn(async move {
            let (paid, names, account) = (&vec![named(&format!("paid-{n}"))], &names, &account);
            work.run(|mut tx| async move {
                let paying = doc! { "$inc": { "balance": 1_i64 } };
                let met = tx.collection::<Document>(account).update_one(doc! { "_id": 1 }, paying).await?;
                assert_eq!(met.matched_count, 1);
                tx.append(names, batch(paid.clone())).await?;
                Ok(())
            })
            .await
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap().unwrap();
    }
    let account = place.collection("account").find_one(doc! { "_id": 1 }).await.unwrap().unwrap();
    assert_eq!(account.get_i64("balance").unwrap(), 8, "each was done once");
    let mut delivered: Vec<String> = names(&place.delivered().await).into_iter().map(ToOwned::to_owned).collect();
    delivered.sort();
    assert_eq!(delivered, (0..8).map(|n| format!("paid-{n}")).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_of_the_application_takes_everything_back() {
    let place = Place::new().await;
    let work = UnitOfWork::new(&place.client, &place.names);
    place.collection("things").insert_one(doc! { "_id": 1, "n": 1 }).await.unwrap();
    let (names, things) = (&place.names, &format!("{}things", place.names.prefix()));
    let runs = &AtomicU32::new(0);
    let kept = &std::sync::Mutex::new(None);
    let outcome: Result<(), Failure> = work
        .run(|tx| async move {
            runs.fetch_add(1, Ordering::SeqCst);
            *kept.lock().unwrap() = Some(tx.clone());
            tx.collection(things).insert_many([doc! { "_id": 2, "n": 1 }, doc! { "_id": 3, "n": 1 }]).await?;
            tx.collection(things).replace_one(doc! { "_id": 2 }, doc! { "n": 5 }).await?;
            tx.collection::<Document>(things).update_many(doc! {}, doc! { "$inc": { "n": 1 } }).await?;
            let after = tx.collection::<Document>(things);
            let after = after.find_one_and_update(doc! { "_id": 2 }, doc! { "$inc": { "n": 1 } }).await?.unwrap();
            assert_eq!(after.get_i32("n").unwrap(), 7, "what it did itself it sees");
            tx.collection::<Document>(things).delete_one(doc! { "_id": 3 }).await?;
            assert_eq!(tx.collection::<Document>(things).find(doc! {}).await?.len(), 2);
            assert!(tx.collection::<Document>(things).find_one(doc! { "_id": 3 }).await?.is_none());
            tx.collection::<Document>(things).delete_many(doc! {}).await?;
            tx.session().await?.append(names, batch(vec![named("never")])).await?;
            Err(Failure::application("out of stock"))
        })
        .await;
    assert_eq!(outcome.unwrap_err().to_string(), "out of stock");
    assert_eq!(runs.load(Ordering::SeqCst), 1, "another run would not cure it");
    let mut over = kept.lock().unwrap().take().unwrap();
    assert!(over.collection(things).insert_one(doc! { "_id": 4 }).await.is_err(), "it would be part of nothing");
    assert!(over.append(names, batch(vec![named("late")])).await.is_err());
    let left = place.collection("things").count_documents(doc! {}).await.unwrap();
    assert_eq!((left, place.delivered().await), (1, Vec::new()));
}

/// A transaction replaces and deletes as quickly as any other write, and mail would be gone with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_of_work_throws_no_mail_of_a_document_away() {
    let place = Place::new().await;
    let orders = place.collection("orders");
    orders.insert_one(doc! { "_id": 1, "_outbox": [{ "topic": "t" }] }).await.unwrap();
    orders.insert_one(doc! { "_id": 2, "_outbox": [] }).await.unwrap();
    orders.insert_one(doc! { "_id": 3, "mail": [{ "topic": "t" }] }).await.unwrap();
    let (one, two, three) = (&doc! { "_id": 1 }, &doc! { "_id": 2 }, &doc! { "_id": 3 });
    let name = &format!("{}orders", place.names.prefix());
    let work = place.store().unit_of_work(&place.client);
    let refused = |outcome: Result<(), Failure>| {
        let error = outcome.unwrap_err().into_error();
        assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Conflict, false), "{error:?}");
        assert!(error.to_string().contains("not collected yet"), "{error}");
    };
    let replacing = work.run(|tx| async move {
        tx.collection(name).replace_one(two.clone(), doc! { "n": 1 }).await?;
        tx.collection(name).replace_one(one.clone(), doc! { "n": 1 }).await.map(drop)
    });
    refused(replacing.await);
    let deleting =
        work.run(|tx| async move { tx.collection::<Document>(name).delete_one(one.clone()).await.map(drop) });
    refused(deleting.await);
    let clearing = work.run(|tx| async move { tx.collection::<Document>(name).delete_many(doc! {}).await.map(drop) });
    refused(clearing.await);
    let harmful: [UpdateModifications; 4] = [
        vec![doc! { "$replaceWith": { "n": 1 } }].into(),
        vec![doc! { "$set": { "n": 1 } }, doc! { "$unset": "_outbox" }].into(),
        doc! { "$set": { "n": 1, "_outbox": [] } }.into(),
        doc! { "$set": { "n": 1 }, "$pop": { "_outbox": 1 } }.into(),
    ];
    for update in &harmful {
        let updating = work.run(|tx| async move {
            tx.collection::<Document>(name).update_one(one.clone(), update.clone()).await.map(drop)
        });
        refused(updating.await);
        let updating = work.run(|tx| async move {
            tx.collection::<Document>(name).update_many(doc! {}, update.clone()).await.map(drop)
        });
        refused(updating.await);
        let updating = work.run(|tx| async move {
            tx.collection::<Document>(name).find_one_and_update(one.clone(), update.clone()).await.map(drop)
        });
        refused(updating.await);
    }
    assert_eq!(orders.count_documents(doc! { "n": { "$exists": false } }).await.unwrap(), 3, "nothing has changed");
    let updating = work.run(|tx| async move {
        let orders = tx.collection::<Document>(name);
        let more = doc! { "$set": { "seen": true }, "$push": { "_outbox": { "topic": "t" } } };
        let (pushed, whole) = (orders.update_one(one.clone(), more).await?, vec![doc! { "$replaceWith": "$$ROOT" }]);
        Ok((pushed.matched_count, orders.update_one(two.clone(), whole).await?.matched_count))
    });
    assert_eq!(updating.await.unwrap(), (1, 1), "more mail, and another document where there is none");

    let elsewhere = work.clone().embedded(&Embedded::with_field("mail").unwrap());
    let deleting =
        elsewhere.run(|tx| async move { tx.collection::<Document>(name).delete_one(three.clone()).await.map(drop) });
    refused(deleting.await);
    let done = work.run(|tx| async move {
        let orders = tx.collection::<Document>(name);
        let replaced = orders.replace_one(two.clone(), doc! { "n": 1 }).await?.matched_count;
        let deleted = orders.delete_one(two.clone()).await?.deleted_count;
        let absent = orders.delete_one(two.clone()).await?.deleted_count;
        Ok((replaced, deleted, absent, orders.delete_many(three.clone()).await?.deleted_count))
    });
    assert_eq!(done.await.unwrap(), (1, 1, 0, 1), "what has no mail is as good as any other");
}

/// The server has one fail point of this name for everybody.
static FAIL_POINT: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A client whose commands can be told from others', and counted.
async fn counted(place: &Place, command: &'static str) -> (mongodb::Client, String, Arc<AtomicU32>) {
    let mut options = ClientOptions::parse(url()).await.unwrap();
    let name = format!("app-{}", place.names.database());
    options.app_name = Some(name.clone());
    let count = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&count);
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        if matches!(&event, CommandEvent::Started(started) if started.command_name == command) {
            counts.fetch_add(1, Ordering::SeqCst);
        }
    }));
    (mongodb::Client::with_options(options).unwrap(), name, count)
}

/// The commit is done and its answer says that nobody knows: it is the commit that is repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_without_an_answer_is_repeated_and_nothing_else() {
    let _alone = FAIL_POINT.lock().await;
    let place = Place::new().await;
    let (client, name, commits) = counted(&place, "commitTransaction").await;
    let fail = doc! {
        "configureFailPoint": "failCommand",
        "mode": { "times": 3 },
        "data": {
            "failCommands": ["commitTransaction"],
            "appName": name,
            "writeConcernError": { "code": 64, "errmsg": "waited too long for the others" },
        },
    };
    client.database("admin").run_command(fail).await.unwrap();
    let (runs, names_of) = (&AtomicU32::new(0), &place.names);
    UnitOfWork::new(&client, names_of)
        .run(|mut tx| async move {
            runs.fetch_add(1, Ordering::SeqCst);
            tx.append(names_of, batch(vec![named("once")])).await?;
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert!(commits.load(Ordering::SeqCst) > 3, "three answers say that nobody knows");
    assert_eq!(names(&place.delivered().await), ["once"]);
}

/// What the server says of an error counts more than its number: lock time-outs and their like are cured by another run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_the_server_asks_to_repeat_is_repeated_whatever_the_code() {
    let _alone = FAIL_POINT.lock().await;
    let place = Place::new().await;
    let (client, name, inserts) = counted(&place, "insert").await;
    for code in [24, 239, 267, 99_999] {
        let fail = doc! {
            "configureFailPoint": "failCommand",
            "mode": { "times": 2 },
            "data": {
                "failCommands": ["insert"],
                "appName": &name,
                "errorCode": code,
                "errorLabels": ["TransientTransactionError"],
            },
        };
        client.database("admin").run_command(fail).await.unwrap();
        let (runs, names_of) = (&AtomicU32::new(0), &place.names);
        UnitOfWork::new(&client, names_of)
            .run(|mut tx| async move {
                runs.fetch_add(1, Ordering::SeqCst);
                let enqueued = tx.append(names_of, batch(vec![named("once")])).await;
                assert!(enqueued.as_ref().is_ok() || enqueued.as_ref().is_err_and(|e| e.kind() == ErrorKind::Conflict));
                Ok(enqueued?)
            })
            .await
            .unwrap();
        assert_eq!((runs.load(Ordering::SeqCst), inserts.swap(0, Ordering::SeqCst)), (3, 3), "{code}");
    }
    assert_eq!(place.delivered().await.len(), 4);
}

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

/// An owner parks while another takes its lane. If its settlement is answered with Ok, the other must have seen the row.
async fn hidden_rows(plant: Plant, rounds: u32) -> u32 {
    let place = Place::with(&url(), |builder| builder.plant(plant)).await;
    let store = place.store();
    let mut owner = Reader::of(&store, "r").await;
    let mut hidden = 0;
    for round in 0..rounds {
        place.commit(vec![Envelope::new("t", "n", "{}").with_key(format!("key-{round}"))]).await;
        let page = store.read(&owner.lease, &owner.cursor, PageLimit { records: 10, bytes: 1 << 20 }).await.unwrap();
        let parked = Parked::Retrying { after: HOUR, attempts: 1, cause: Cause::new("test", "planted") };
        let park = vec![(RecordRef::new(&page.records, 0), parked)];
        let settlement = Settlement { number: 1, park, ..Settlement::default() };
        let taking = async {
            let next = node("r", HOUR);
            // Each round meets the settlement at another moment.
            tokio::time::sleep(Duration::from_millis(u64::from(round % 12))).await;
            // Whoever has it is dead, so to speak.
            let expired = doc! { "$set": { "expires_at": 0_i64 } };
            place.collection("lane").update_many(doc! {}, expired).await.unwrap();
            let lane = LaneId { route: "r".into(), number: 0 };
            let lease = store.acquire(&lane, &next).await.unwrap().expect("the lane is free");
            let blocked = store.resume(&lease).await.unwrap().blocked.len();
            (lease, blocked)
        };
        let before = store.resume(&owner.lease).await.unwrap().blocked.len();
        let (settled, (lease, blocked)) = tokio::join!(store.settle(&owner.lease, &settlement), taking);
        match settled {
            Ok(()) if blocked == before => hidden += 1,
            Ok(()) => {}
            Err(error) => assert!(error.is_fenced(), "{error:?}"),
        }
        let cursor = store.resume(&lease).await.unwrap().cursor;
        owner = Reader { store: store.clone(), lease, cursor, number: 0 };
        owner.rest(10).await;
        owner.settle().await;
        let lane = LaneId { route: "r".into(), number: 0 };
        let lease = store.acquire(&lane, &node("r", HOUR)).await.unwrap();
        assert!(lease.is_none(), "somebody has it");
        owner = again(&store, owner).await;
        if hidden > 0 && plant != Plant::None {
            println!("{plant:?}: round {round}");
            break;
        }
    }
    hidden
}

/// The same lane under the next epoch, in which settlements count from one.
async fn again(store: &MongoStore, owner: Reader) -> Reader {
    store.release(&owner.lease).await.unwrap();
    let lease = store.acquire(&owner.lease.lane, &node("r", HOUR)).await.unwrap().expect("the lane is free");
    let cursor = store.resume(&lease).await.unwrap().cursor;
    Reader { lease, cursor, ..owner }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stale_owner_parks_nothing_that_the_next_one_does_not_see() {
    assert_eq!(hidden_rows(Plant::None, 25).await, 0);
    assert!(hidden_rows(Plant::FenceWithoutWrite, 4_000).await > 0, "a look at the epoch is no fence");
}

/// A relay that is killed in the middle of a settlement leaves its transaction open, and the lane written in it. Others must not
/// wait for the server to end that, for they have heartbeats to send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_the_dead_hold_keeps_nobody_waiting() {
    let place = Place::new().await;
    let store = place.store();
    let (killed, next) = (Reader::of(&store, "r").await, node("r", Duration::from_secs(3)));
    store.register(&next, &[spec("r"), spec("s")]).await.unwrap();
    let lanes = place.collection("lane");
    lanes.update_many(doc! {}, doc! { "$set": { "expires_at": 0_i64 } }).await.unwrap();
    let mut forgotten = place.client.start_session().await.unwrap();
    forgotten.start_transaction().await.unwrap();
    let written = doc! { "$inc": { "beat": 1_i64 } };
    lanes.update_one(doc! { "route": "r" }, written.clone()).session(&mut forgotten).await.unwrap();

    let refused = store.acquire(&killed.lease.lane, &next).await.unwrap_err();
    assert_eq!((refused.kind(), refused.is_transient()), (ErrorKind::Conflict, true), "{refused:?}");
    assert!(refused.to_string().contains("still open"), "{refused}");
    let other = LaneId { route: "s".into(), number: 0 };
    store.acquire(&other, &next).await.unwrap().expect("another lane is to be had");
    store.heartbeat(&next).await.expect("whoever has other lanes keeps them");
    forgotten.abort_transaction().await.unwrap();
    store.acquire(&killed.lease.lane, &next).await.unwrap().expect("the server has ended it");

    // Nor for ever where it is a lane of its own.
    forgotten.start_transaction().await.unwrap();
    lanes.update_one(doc! { "route": "r" }, written).session(&mut forgotten).await.unwrap();
    let refused = store.heartbeat(&next).await.unwrap_err();
    assert_eq!((refused.kind(), refused.is_transient()), (ErrorKind::Unavailable, true), "{refused:?}");
    let retired = store.retire(next.id).await.unwrap_err();
    assert_eq!((retired.kind(), retired.is_transient()), (ErrorKind::Conflict, true), "{retired:?}");
    forgotten.abort_transaction().await.unwrap();
    store.heartbeat(&next).await.unwrap();
    store.retire(next.id).await.unwrap();
}

/// The clock of the last primary was an hour ahead, and nobody but one node was there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_has_gone_back_holds_up_no_row_of_the_only_node() {
    let place = Place::new().await;
    let store = place.store();
    let parked = Parked::Retrying { after: Duration::ZERO, attempts: 1, cause: Cause::new("refused", "at first") };
    let only = node("r", HOUR);
    store.register(&only, &[spec("r")]).await.unwrap();
    let lane = LaneId { route: "r".into(), number: 0 };
    let lease = store.acquire(&lane, &only).await.unwrap().expect("the lane is free");
    let cursor = store.resume(&lease).await.unwrap().cursor;
    place.commit(vec![named("head"), named("held")]).await;
    let page = store.read(&lease, &cursor, PageLimit { records: 10, bytes: 1 << 20 }).await.unwrap();
    let park = vec![(RecordRef::new(&page.records, 0), parked), (RecordRef::new(&page.records, 1), Parked::Held)];
    let settlement = Settlement { number: 1, advance: Some(page.end.clone()), park, ..Settlement::default() };
    store.settle(&lease, &settlement).await.unwrap();
    let due = async || {
        let due = store.due(&lease, DueLimit { lines: 9, per_line: 9, bytes: 1 << 20 }).await.unwrap();
        due.lines.iter().map(|line| line.rows.len()).sum::<usize>()
    };
    assert_eq!(due().await, 2);
    let hour = 3_600_000_000_i64;
    let ahead = async |with_node: bool| {
        let rows = doc! { "due_at": { "$ne": null } };
        let (row, head) = (doc! { "$inc": { "due_at": hour, "set_at": hour } }, doc! { "$inc": { "wake_at": hour } });
        place.collection("parked").update_many(rows, row).await.unwrap();
        place.collection("parked").update_many(doc! { "wake_at": { "$ne": null } }, head).await.unwrap();
        if with_node {
            place.collection("node").update_many(doc! {}, doc! { "$inc": { "seen_at": hour } }).await.unwrap();
            place.collection("lane").update_many(doc! {}, doc! { "$inc": { "expires_at": hour } }).await.unwrap();
        }
        assert_eq!(due().await, 0);
    };
    ahead(true).await;
    store.heartbeat(&only).await.unwrap();
    assert_eq!(due().await, 2, "its own last heartbeat tells");
    // One that has said goodbye leaves nothing behind that tells.
    ahead(false).await;
    store.register(&node("r", HOUR), &[spec("r")]).await.unwrap();
    assert_eq!(due().await, 2, "the rows themselves tell whoever starts");
}

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
        assert_eq!(migrations::up(&place.url, &place.names, &anna).await.unwrap(), []);
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

/// An application may write before any relay has migrated; its insert makes the collection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collection_that_an_insert_has_made_gets_its_validator() {
    let place = Place::new().await;
    let names = Mongo::with_prefix(place.names.database(), "early_").unwrap();
    let log = place.client.database(names.database()).collection::<Document>("early_log");
    let zero = Timestamp { time: 0, increment: 0 };
    log.insert_one(doc! { "at": zero, "topic": "t", "name": "first", "payload": "{}" }).await.unwrap();
    builder(&place.url, &names).open().await.unwrap();
    log.insert_one(doc! { "topic": "t", "name": "without its point in time", "payload": "{}" }).await.unwrap_err();
    log.insert_one(doc! { "at": zero, "topic": "t", "name": "second", "payload": "{}" }).await.unwrap();
}

/// A migration that was cut off begins again, wherever that was. What is there stays as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_of_a_migration_can_be_repeated() {
    let place = Place::new().await;
    let mut reader = Reader::of(&place.store(), "r").await;
    place.commit(vec![named("kept")]).await;
    let meta = place.collection("meta");
    let epoch = async || meta.find_one(doc! { "_id": "epoch" }).await.unwrap().unwrap().get_i64("value").unwrap();
    let indexes = async |collection: &str| place.collection(collection).list_index_names().await.unwrap();
    let before = (epoch().await, indexes("log").await, indexes("parked").await);
    assert!(before.0 > 0, "a lane was taken");
    for cut in [None, Some("audit"), Some("parked")] {
        if let Some(cut) = cut {
            // It had not come so far.
            place.collection(cut).drop().await.unwrap();
        }
        meta.delete_one(doc! { "_id": "migration-1" }).await.unwrap();
        let names = migrations::plan(&place.url, &place.names).await.unwrap();
        assert_eq!(names.len(), 1, "it is pending again");
        place.another().await;
        assert_eq!((epoch().await, indexes("log").await, indexes("parked").await), before);
        assert!(migrations::plan(&place.url, &place.names).await.unwrap().is_empty());
    }
    assert_eq!(names(&reader.rest(10).await), ["kept"]);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_audited_does_not_happen() {
    let place = Arc::new(Place::new().await);
    let (database, audit) = (place.client.database(place.names.database()), format!("{}audit", place.names.prefix()));
    let broken = async move || {
        let command = doc! { "collMod": audit, "validator": { "broken": true } };
        database.run_command(command).await.unwrap();
    };
    postrider_testkit::store::unaudited::nothing_changes_unaudited(place, broken).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrations_of_an_operator_are_audited() {
    let names = Mongo::new(&format!("t{}", uuid::Uuid::now_v7().simple())).unwrap();
    let anna = Actor { name: "anna".into(), reason: Some("ticket 7".into()) };
    let applied = migrations::up(&url(), &names, &anna).await.unwrap();
    let entries = builder(&url(), &names).open().await.unwrap().audit(100).await.unwrap();
    assert_eq!(entries.len(), applied.len());
    let last = &entries[0];
    assert_eq!((&last.actor, &*last.action, &last.subject), (&anna, "migrate", &applied.last().unwrap().in_words()));
    client().await.database(names.database()).drop().await.unwrap();
}
