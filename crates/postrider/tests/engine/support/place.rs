//! A store, the application beside it, and the store's clock.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use postrider::{
    Envelope, Outbox,
    core::{
        admin::{Actor, Overview, ParkedFilter, ParkedRow, RouteStatus, StoreAdmin},
        log::Log,
        parked::ParkedState,
        time::Timestamp,
    },
};
use postrider_store_memory::{ManualClock, Memory, MemoryStore};
use postrider_store_sqlite::SqliteStore;
use tempfile::TempDir;

type Commit = Box<dyn Fn(Vec<Envelope>) + Send + Sync>;

/// Where a test takes place.
pub(crate) struct Place {
    pub(crate) log: Arc<dyn Log>,
    pub(crate) admin: Arc<dyn StoreAdmin>,
    commit: Commit,
    clock: Option<ManualClock>,
    _folder: Option<TempDir>,
}

impl Place {
    pub(crate) fn memory() -> Self {
        Self::on_memory(MemoryStore::new(), None)
    }

    pub(crate) fn memory_by_hand() -> Self {
        let clock = ManualClock::at(Timestamp::now());
        Self::on_memory(MemoryStore::with_clock(clock.clone()), Some(clock))
    }

    pub(crate) async fn sqlite() -> Self {
        Self::on_sqlite(None).await
    }

    pub(crate) async fn sqlite_by_hand() -> Self {
        Self::on_sqlite(Some(ManualClock::at(Timestamp::now()))).await
    }

    fn on_memory(store: MemoryStore, clock: Option<ManualClock>) -> Self {
        let application = store.clone();
        let outbox = Outbox::new(Memory);
        let commit = move |envelopes| {
            let mut transaction = application.begin();
            outbox.enqueue_raw(&mut transaction, envelopes).unwrap();
            transaction.commit();
        };
        Self { log: Arc::new(store.clone()), admin: Arc::new(store), commit: Box::new(commit), clock, _folder: None }
    }

    async fn on_sqlite(clock: Option<ManualClock>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        let mut builder = SqliteStore::builder(&path);
        if let Some(clock) = clock.clone() {
            builder = builder.clock(Arc::new(move || clock.now()));
        }
        let store = builder.open().await.unwrap();
        let commit = application(&path, &store);
        Self { log: Arc::new(store.clone()), admin: Arc::new(store), commit, clock, _folder: Some(folder) }
    }

    /// Enqueues and commits.
    pub(crate) fn commit(&self, envelopes: Vec<Envelope>) {
        (self.commit)(envelopes);
    }

    /// Enqueues and commits messages by their labels.
    pub(crate) fn commit_labels(&self, labels: &[&str]) {
        self.commit(super::messages(labels));
    }

    /// The store's clock, of a place that has one to move.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.as_ref().expect("a place by hand").now()
    }

    /// Lets the store's time pass.
    pub(crate) fn pass(&self, span: Duration) {
        self.clock.as_ref().expect("a place by hand").advance(span);
    }

    pub(crate) async fn overview(&self) -> Overview {
        self.admin.overview().await.unwrap()
    }

    /// How a route is doing, once a relay has made it known.
    pub(crate) async fn status(&self, route: &str) -> RouteStatus {
        let mut found = None;
        super::until(format!("route {route} to be known"), async || {
            found = self.overview().await.routes.into_iter().find(|status| &*status.route == route);
            found.is_some()
        })
        .await;
        found.expect("just found")
    }

    /// Parked rows in a state, as labels and causes.
    pub(crate) async fn parked(&self, state: ParkedState) -> Vec<(String, String)> {
        let filter = ParkedFilter { state: Some(state), ..ParkedFilter::default() };
        let rows = self.admin.parked(&filter, None, 10_000).await.unwrap();
        let cause = |row: &ParkedRow| row.cause.as_ref().map_or(String::new(), |(code, _)| code.clone());
        rows.iter().map(|row| (String::from_utf8_lossy(&row.envelope.payload).into_owned(), cause(row))).collect()
    }

    pub(crate) async fn redrive_all(&self) -> u64 {
        self.admin.redrive(&ParkedFilter::default(), &Actor::new("tester")).await.unwrap()
    }

    /// Discards every dead row.
    pub(crate) async fn discard_dead(&self) -> u64 {
        let dead = ParkedFilter { state: Some(ParkedState::Dead), ..ParkedFilter::default() };
        self.admin.discard(&dead, &Actor::new("tester")).await.unwrap()
    }
}

/// An application with a connection of its own.
fn application(path: &Path, store: &SqliteStore) -> Commit {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.busy_timeout(Duration::from_secs(20)).unwrap();
    let connection = Mutex::new(connection);
    let outbox = Outbox::new(store.dialect());
    Box::new(move |envelopes| {
        let mut connection = connection.lock().unwrap();
        let mut transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
        outbox.enqueue_raw(&mut transaction, envelopes).unwrap();
        transaction.commit().unwrap();
    })
}
