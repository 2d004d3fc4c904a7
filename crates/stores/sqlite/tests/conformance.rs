//! The whole store suite, with an application that enqueues through rusqlite.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    sync::{Arc, mpsc},
    thread,
};

use postrider_core::{
    BoxFuture,
    admin::{Actor, StoreAdmin},
    enlist::Enlist,
    envelope::Envelope,
};
use postrider_store_sqlite::{Sqlite, SqliteStore, migrations};
use postrider_testkit::store::{OpenTransaction, unaudited::nothing_changes_unaudited};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use support::{Place, batch};
use tokio::sync::oneshot;

postrider_testkit::store_conformance!(|| Place::fresh(begin));

#[tokio::test]
async fn what_cannot_be_audited_does_not_happen() {
    let place = Arc::new(Place::new(begin).await);
    let path = place.path();
    let broken = async move || {
        let trigger = "CREATE TRIGGER broken BEFORE INSERT ON postrider_audit BEGIN SELECT RAISE(ABORT, 'broken'); END";
        Connection::open(path).unwrap().execute_batch(trigger).unwrap();
    };
    nothing_changes_unaudited(place, broken).await;
}

#[tokio::test]
async fn migrations_of_an_operator_are_audited() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let anna = Actor { name: "anna".into(), reason: Some("ticket 7".into()) };
    let applied = migrations::up(&path, &Sqlite::default(), &anna).unwrap();
    let entries = SqliteStore::open(&path).await.unwrap().audit(100).await.unwrap();
    assert_eq!(entries.len(), applied.len());
    let last = &entries[0];
    assert_eq!((&last.actor, &*last.action, &last.subject), (&anna, "migrate", &applied.last().unwrap().in_words()));
}

/// rusqlite's transaction borrows its connection and stays on its thread; the test sends it what to do.
struct OnThread(mpsc::Sender<(Step, oneshot::Sender<()>)>);

enum Step {
    Append(Vec<Envelope>),
    Run(&'static str),
    Commit,
    RollBack,
}

fn begin(place: &Place) -> BoxFuture<'_, Box<dyn OpenTransaction>> {
    let (steps, queue) = mpsc::channel();
    let (path, dialect, waker) = (place.path(), place.store().dialect(), place.store().waker());
    let (begun, wait) = oneshot::channel();
    thread::spawn(move || {
        let mut connection = Connection::open(path).unwrap();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        begun.send(()).unwrap();
        perform(transaction, &dialect, &queue);
        waker.wake();
    });
    Box::pin(async {
        wait.await.unwrap();
        Box::new(OnThread(steps)) as Box<dyn OpenTransaction>
    })
}

fn perform(mut transaction: Transaction<'_>, dialect: &Sqlite, queue: &mpsc::Receiver<(Step, oneshot::Sender<()>)>) {
    for (step, done) in queue {
        match step {
            Step::Append(envelopes) => transaction.append(dialect, batch(envelopes)).unwrap(),
            Step::Run(sql) => transaction.execute_batch(sql).unwrap(),
            Step::Commit => {
                transaction.commit().unwrap();
                return done.send(()).unwrap();
            }
            Step::RollBack => {
                transaction.rollback().unwrap();
                return done.send(()).unwrap();
            }
        }
        done.send(()).unwrap();
    }
}

impl OnThread {
    fn step(&self, step: Step) -> BoxFuture<'static, ()> {
        let (done, wait) = oneshot::channel();
        self.0.send((step, done)).unwrap();
        Box::pin(async { wait.await.unwrap() })
    }
}

impl OpenTransaction for OnThread {
    fn append(&mut self, envelopes: Vec<Envelope>) -> BoxFuture<'_, ()> {
        self.step(Step::Append(envelopes))
    }

    fn savepoint(&mut self) -> BoxFuture<'_, ()> {
        self.step(Step::Run("SAVEPOINT here"))
    }

    fn roll_back_to_savepoint(&mut self) -> BoxFuture<'_, ()> {
        self.step(Step::Run("ROLLBACK TO here"))
    }

    fn commit(self: Box<Self>) -> BoxFuture<'static, ()> {
        self.step(Step::Commit)
    }

    fn roll_back(self: Box<Self>) -> BoxFuture<'static, ()> {
        self.step(Step::RollBack)
    }
}
