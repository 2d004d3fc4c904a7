//! Transactions that are run again, and what a unit of work refuses.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use mongodb::{
    bson::{Document, doc},
    event::{EventHandler, command::CommandEvent},
    options::{ClientOptions, UpdateModifications},
};
use postrider_core::{ErrorKind, enlist::Enlist};
use postrider_store_mongodb::{UnitOfWork, embedded::Embedded, work::Failure};

use crate::{
    named, names,
    support::{Place, batch, url},
};

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
