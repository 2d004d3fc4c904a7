//! One stream for all lanes of a process: who is at the end of the log reads what that one had.

use std::time::Duration;

use mongodb::bson::doc;
use postrider_core::{
    ErrorKind,
    envelope::Envelope,
    log::{Log, PageLimit},
};
use postrider_store_mongodb::MongoStore;
use postrider_testkit::store::OpenTransaction;

use crate::{
    Reader, named, names,
    support::{
        Place,
        servers::{Server, until},
        url,
    },
};

const PATIENCE: Duration = Duration::from_secs(60);

/// By another process, so to speak: nobody here is told of it but by the server.
async fn commit_elsewhere(place: &Place, envelope: Envelope) {
    let mut application = place.begin().await;
    application.append(vec![envelope]).await;
    application.session.commit_transaction().await.unwrap();
}

/// Commits a message and waits until the open stream has it.
async fn commit_and_wait(place: &Place, store: &MongoStore, name: &str) {
    let hint = store.hint();
    commit_elsewhere(place, named(name)).await;
    tokio::time::timeout(PATIENCE, hint).await.expect("the open stream tells of it");
}

/// Lanes of several routes that are at the end of the log, while a stream is open.
async fn at_the_end(place: &Place, store: &MongoStore, routes: usize) -> Vec<Reader> {
    let mut readers = Vec::new();
    for number in 0..routes {
        readers.push(Reader::of(store, &format!("r{number}")).await);
    }
    // One that has just been opened wakes everybody.
    tokio::time::timeout(PATIENCE, store.hint()).await.expect("the stream is opened");
    for reader in &mut readers {
        reader.rest(10).await;
    }
    commit_and_wait(place, store, "warm-up").await;
    for reader in &mut readers {
        assert_eq!(names(&reader.rest(10).await), ["warm-up"]);
    }
    readers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_at_the_end_of_the_log_share_one_stream() {
    let server = Server::replica_set(&[]).await;
    let place = Place::on(&server.url()).await;
    let store = place.store();
    let mut readers = at_the_end(&place, &store, 4).await;
    let before = server.aggregations().await;
    assert!(before > 0, "a stream is opened by one");
    let mut sent = vec!["warm-up".to_owned()];
    for number in 0..10 {
        sent.push(format!("m{number}"));
        commit_and_wait(&place, &store, &sent[sent.len() - 1]).await;
        for reader in &mut readers {
            assert_eq!(names(&reader.page(10).await.0), [format!("m{number}")]);
        }
    }
    assert_eq!(server.aggregations().await, before, "everybody has read from memory");
    // Who is behind catches up by itself, page by page, in the same order, and then has nothing left.
    let mut late = Reader::of(&store, "late").await;
    assert_eq!(names(&late.rest(3).await), sent);
    readers.push(late);
    commit_and_wait(&place, &store, "last").await;
    for reader in &mut readers {
        assert_eq!(names(&reader.rest(10).await), ["last"]);
        assert_eq!(reader.rest(10).await, [], "once");
    }
}

/// An application and a relay of one process have a handle each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handles_of_one_process_share_one_stream() {
    let server = Server::replica_set(&[]).await;
    let place = Place::on(&server.url()).await;
    let (first, second) = (place.another().await, place.another().await);
    let mut readers = at_the_end(&place, &first, 1).await;
    let mut beside = Reader::of(&second, "beside").await;
    assert_eq!(names(&beside.rest(10).await), ["warm-up"]);
    let before = server.aggregations().await;
    for name in ["one", "two"] {
        commit_and_wait(&place, &second, name).await;
        assert_eq!(names(&beside.page(10).await.0), [name]);
        assert_eq!(names(&readers[0].page(10).await.0), [name]);
    }
    // The one that has opened it goes, and the other is told all the same.
    drop((readers, first));
    commit_and_wait(&place, &second, "three").await;
    assert_eq!(names(&beside.page(10).await.0), ["three"]);
    assert_eq!(server.aggregations().await, before, "the stream that was open has told everybody");
}

/// What the open stream has not had yet is not overlooked by who finds nothing in memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_to_read_means_that_the_server_was_asked() {
    let place = Place::new().await;
    let store = place.store();
    let mut readers = at_the_end(&place, &store, 2).await;
    for number in 0..20 {
        commit_elsewhere(&place, named(&format!("m{number}"))).await;
        for reader in &mut readers {
            assert_eq!(names(&reader.rest(10).await), [format!("m{number}")]);
        }
    }
}

/// A lane that has nothing to read moves its cursor along with the open stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_lane_moves_along_with_the_open_stream() {
    let place = Place::with(&url(), |builder| builder.idle_seconds(0)).await;
    let store = place.store();
    let mut readers = at_the_end(&place, &store, 1).await;
    let before = readers[0].cursor.clone();
    until("the cursor to move", async || {
        place.collection("of_others").insert_one(doc! {}).await.unwrap();
        assert_eq!(readers[0].rest(10).await, []);
        readers[0].cursor != before
    })
    .await;
    commit_and_wait(&place, &store, "next").await;
    assert_eq!(names(&readers[0].rest(10).await), ["next"], "nothing was passed over, and nothing comes twice");
}

/// The end of the collection stops lanes that read from memory as it stops all others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_log_stops_who_shares_a_stream() {
    let place = Place::new().await;
    let store = place.store();
    let mut readers = at_the_end(&place, &store, 2).await;
    commit_elsewhere(&place, named("two")).await;
    place.collection("log").drop().await.unwrap();
    // The next insert makes another one of the same name.
    commit_elsewhere(&place, named("three")).await;
    for reader in &mut readers {
        assert_eq!(names(&reader.page(10).await.0), ["two"], "what was committed before is delivered");
        for _ in 0..2 {
            let limit = PageLimit { records: 10, bytes: 1 << 20 };
            let stopped = store.read(&reader.lease, &reader.cursor, limit).await.unwrap_err();
            assert_eq!((stopped.kind(), stopped.is_transient()), (ErrorKind::Schema, false), "{stopped:?}");
        }
    }
}
