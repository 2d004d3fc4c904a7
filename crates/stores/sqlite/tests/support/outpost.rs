//! A store on a file of its own with one route on it, for what is SQLite's own.

use std::{path::PathBuf, sync::Mutex, time::Duration};

use postrider_core::{
    envelope::{Envelope, MessageId},
    lease::{LaneId, Lease, Node, NodeId, Order, RouteSpec, Start},
    log::{Cursor, Log, Page, PageLimit},
    topic::TopicFilter,
};
use postrider_store_sqlite::SqliteStore;
use rusqlite::Connection;
use tempfile::TempDir;

pub(crate) struct Outpost {
    pub(crate) store: SqliteStore,
    pub(crate) path: PathBuf,
    pub(crate) lease: Lease,
    cursor: Mutex<Cursor>,
    _folder: TempDir,
}

impl Outpost {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("outpost.db");
        let store = SqliteStore::open(&path).await.unwrap();
        let lease = take(&store).await;
        let cursor = Mutex::new(store.resume(&lease).await.unwrap().cursor);
        Self { store, path, lease, cursor, _folder: folder }
    }

    /// A connection of the application.
    pub(crate) fn connect(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }

    /// The next page, without moving on.
    pub(crate) async fn page(&self) -> Page {
        let cursor = self.cursor.lock().unwrap().clone();
        self.store.read(&self.lease, &cursor, PageLimit { records: 100_000, bytes: 1 << 30 }).await.unwrap()
    }

    /// Everything new, and moves on.
    pub(crate) async fn read_on(&self) -> Vec<MessageId> {
        let page = self.page().await;
        assert!(!page.more);
        *self.cursor.lock().unwrap() = page.end;
        page.records.iter().map(|record| record.envelope.id).collect()
    }
}

/// Registers the route `r` and takes its lane.
pub(crate) async fn take(store: &SqliteStore) -> Lease {
    let node = node();
    let (topics, order, start) = (TopicFilter::all(), Order::Key, Start::Oldest);
    store.register(&node, &[RouteSpec { name: "r".into(), topics, order, lanes: 1, start }]).await.unwrap();
    store.acquire(&LaneId { route: "r".into(), number: 0 }, &node).await.unwrap().unwrap()
}

/// A node that serves the route `r`.
pub(crate) fn node() -> Node {
    let lease_life = Duration::from_secs(3600);
    Node {
        id: NodeId::generate(),
        name: "test".to_owned(),
        routes: vec!["r".into()],
        lease_life,
        standstills: Vec::new(),
    }
}

pub(crate) fn envelopes(count: usize) -> Vec<Envelope> {
    (0..count).map(|i| Envelope::new("orders", "order.placed", format!("{i}")).with_key(format!("key-{i}"))).collect()
}

pub(crate) fn ids(envelopes: &[Envelope]) -> Vec<MessageId> {
    envelopes.iter().map(|envelope| envelope.id).collect()
}
