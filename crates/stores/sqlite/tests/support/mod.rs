//! A store on a file of its own with a clock that tests set, and an application beside it.
#![allow(dead_code, unused_imports, reason = "each test program uses a part of it")]

mod outpost;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use postrider_core::{BoxFuture, admin::StoreAdmin, envelope::Envelope, limits::Limits, log::Log, time::Timestamp};
use postrider_store_sqlite::SqliteStore;
use postrider_testkit::store::{Fixture, OpenTransaction};
use tempfile::TempDir;

pub(crate) use outpost::{Outpost, envelopes, ids, node, take};

/// How the application's transactions are opened.
pub(crate) type Begin = fn(&Place) -> BoxFuture<'_, Box<dyn OpenTransaction>>;

/// Where the store is, and its clock.
pub(crate) struct Place {
    folder: TempDir,
    clock: Arc<AtomicI64>,
    store: Mutex<SqliteStore>,
    begin: Begin,
}

impl Place {
    pub(crate) async fn fresh(begin: Begin) -> Arc<dyn Fixture> {
        Arc::new(Self::new(begin).await)
    }

    pub(crate) async fn new(begin: Begin) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(AtomicI64::new(Timestamp::now().as_micros()));
        let store = Mutex::new(open(&folder.path().join("store.db"), &clock).await);
        Self { folder, clock, store, begin }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    pub(crate) fn store(&self) -> SqliteStore {
        self.store.lock().unwrap().clone()
    }
}

async fn open(path: &Path, clock: &Arc<AtomicI64>) -> SqliteStore {
    let clock = Arc::clone(clock);
    let builder = SqliteStore::builder(path);
    let now = move || Timestamp::from_micros(clock.load(Ordering::SeqCst));
    builder.clock(Arc::new(now)).open().await.unwrap()
}

impl Fixture for Place {
    fn log(&self) -> Arc<dyn Log> {
        Arc::new(self.store())
    }

    fn admin(&self) -> Arc<dyn StoreAdmin> {
        Arc::new(self.store())
    }

    fn beside(&self) -> BoxFuture<'_, Arc<dyn Log>> {
        Box::pin(async { Arc::new(open(&self.path(), &self.clock).await) as Arc<dyn Log> })
    }

    fn begin(&self) -> BoxFuture<'_, Box<dyn OpenTransaction>> {
        (self.begin)(self)
    }

    fn now(&self) -> BoxFuture<'_, Timestamp> {
        Box::pin(std::future::ready(Timestamp::from_micros(self.clock.load(Ordering::SeqCst))))
    }

    fn pass(&self, span: Duration) -> BoxFuture<'_, ()> {
        self.clock.fetch_add(i64::try_from(span.as_micros()).unwrap(), Ordering::SeqCst);
        Box::pin(std::future::ready(()))
    }

    fn reopen(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let again = open(&self.path(), &self.clock).await;
            *self.store.lock().unwrap() = again;
        })
    }
}

/// A checked batch.
pub(crate) fn batch(envelopes: Vec<Envelope>) -> postrider_core::Result<postrider_core::enlist::Batch> {
    Limits::default().check(envelopes)
}
