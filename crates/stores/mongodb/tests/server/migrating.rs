//! Migrations: racing, repeated, cut off, and in the audit record.

use std::sync::Arc;

use mongodb::bson::{Document, Timestamp, doc};
use postrider_core::{
    ErrorKind,
    admin::{Actor, StoreAdmin},
    doctor::Thresholds,
    enlist::Enlist,
    migration::Standing,
};
use postrider_store_mongodb::{Mongo, migrations};
use postrider_testkit::store::{Fixture, OpenTransaction};

use crate::{
    Reader, named, names,
    support::{Place, batch, builder, client, servers::until, url},
};

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

async fn validator(place: &Place) -> Document {
    let log = doc! { "listCollections": 1, "filter": { "name": place.names.log() } };
    let answer = place.client.database(place.names.database()).run_command(log).await.unwrap();
    let found = answer.get_document("cursor").unwrap().get_array("firstBatch").unwrap()[0].as_document().unwrap();
    found.get_document("options").unwrap().get_document("validator").unwrap().clone()
}

/// A store of before has a validator that looks at fewer fields; migrating gives it the one of now, and says nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_before_gets_the_validator_of_now() {
    let place = Place::new().await;
    let first = Timestamp { time: 1, increment: 0 };
    let old = doc! {
        "at": { "$type": "timestamp", "$not": { "$type": "array" }, "$gte": first },
        "topic": { "$type": "string" },
        "name": { "$type": "string" },
        "payload": { "$type": ["binData", "string"] },
        "$expr": { "$lte": [{ "$bsonSize": "$$ROOT" }, 16_711_680] },
    };
    let command = doc! { "collMod": place.names.log(), "validator": old };
    place.client.database(place.names.database()).run_command(command).await.unwrap();
    place.collection("meta").delete_one(doc! { "_id": "migration-2" }).await.unwrap();
    let applied = migrations::up(&place.url, &place.names, &Actor::new("anna")).await.unwrap();
    assert_eq!(applied.iter().map(|standing| standing.version).collect::<Vec<_>>(), [2]);
    let log = place.collection("log");
    let zero = Timestamp { time: 0, increment: 0 };
    log.insert_one(doc! { "at": zero, "topic": "t", "name": "n", "key": 7, "payload": "{}" }).await.unwrap_err();
    log.insert_one(doc! { "at": zero, "topic": "t", "name": "n", "key": "7", "payload": "{}" }).await.unwrap();
    place.another().await;
    let told: Vec<String> = place.store().audit(9).await.unwrap().into_iter().map(|entry| entry.subject).collect();
    assert_eq!(told, [applied[0].in_words()], "and nothing had to be mended");
}

/// A change of the collection has to wait for a transaction that is open. Those who enqueue meanwhile do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_that_waits_for_a_transaction_holds_up_nobody() {
    let place = Place::new().await;
    place.collection("meta").delete_one(doc! { "_id": "migration-2" }).await.unwrap();
    let mut open = place.begin().await;
    open.append(vec![named("open")]).await;
    let migrating = tokio::spawn({
        let (url, names) = (place.url.clone(), place.names.clone());
        async move { migrations::up(&url, &names, &Actor::new("anna")).await.map(|applied| applied.len()) }
    });
    let admin = place.client.database("admin");
    let waits = doc! { "currentOp": true, "command.collMod": place.names.log(), "waitingForLock": true };
    until("it to wait", async || {
        let answer = admin.run_command(waits.clone()).await.unwrap();
        !answer.get_array("inprog").unwrap().is_empty()
    })
    .await;
    let (names, message) = (&place.names, &vec![named("meanwhile")]);
    let work = place.store().unit_of_work(&place.client);
    work.run(|mut tx| async move { Ok(tx.append(names, batch(message.clone())).await?) }).await.unwrap();
    assert!(!migrating.is_finished(), "the transaction is still open");
    open.commit().await;
    assert!(migrating.await.unwrap().unwrap() > 0);
    assert!(migrations::plan(&place.url, &place.names).await.unwrap().is_empty());
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
    let whole = validator(&place).await;
    for (migration, cut) in
        [("migration-1", None), ("migration-1", Some("audit")), ("migration-1", Some("parked")), ("migration-2", None)]
    {
        if let Some(cut) = cut {
            // It had not come so far.
            place.collection(cut).drop().await.unwrap();
        }
        meta.delete_one(doc! { "_id": migration }).await.unwrap();
        let names = migrations::plan(&place.url, &place.names).await.unwrap();
        assert_eq!(names.len(), 1, "it is pending again");
        place.another().await;
        assert_eq!((epoch().await, indexes("log").await, indexes("parked").await), before);
        assert_eq!(validator(&place).await, whole, "that of the last migration, whichever came last");
        assert!(migrations::plan(&place.url, &place.names).await.unwrap().is_empty());
    }
    assert_eq!(names(&reader.rest(10).await), ["kept"]);
}

/// What somebody has dropped or changed is told by the doctor, made again by `migrate up`, and that says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_and_a_validator_that_are_gone_are_told_and_made_again() {
    let place = Place::new().await;
    let told = async || {
        let findings = place.store().doctor(Thresholds::default()).await.unwrap();
        findings.into_iter().find(|finding| finding.subject == place.names.log()).map(|finding| finding.detail)
    };
    let up = async || {
        let applied = migrations::up(&place.url, &place.names, &Actor::new("anna")).await.unwrap();
        applied.iter().map(Standing::in_words).collect::<Vec<_>>()
    };
    let whole = validator(&place).await;
    assert_eq!((told().await, up().await), (None, Vec::new()));
    let database = place.client.database(place.names.database());
    let other = doc! { "collMod": place.names.log(), "validator": { "topic": "t" } };
    for (index, validates) in [(true, false), (false, true), (true, true)] {
        if index {
            place.collection("log").drop_index("at").await.unwrap();
        }
        if validates {
            database.run_command(other.clone()).await.unwrap();
        }
        let detail = told().await.unwrap();
        assert_eq!(
            (detail.contains("the index of"), detail.contains("the validator of")),
            (index, validates),
            "{detail}"
        );
        let mut applied = Vec::new();
        applied.extend(index.then_some("0001 begin, again: the index of the log"));
        applied.extend(validates.then_some("0002 types, again: the validator of the log"));
        assert_eq!(up().await, applied);
        assert_eq!((told().await, up().await), (None, Vec::new()));
        assert_eq!(validator(&place).await, whole);
    }
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
