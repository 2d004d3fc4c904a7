//! What is PostgreSQL's own: lost sessions, plain SQL, the schema, the ring, and transactions that stay open.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../support/mod.rs"]
mod support;

mod clock;
mod enqueueing;
mod fencing;
mod floor;
mod migrating;
mod naming;
mod operating;
mod reading;
mod retention;
mod sessions;
mod set_back;
mod together;
mod waking;

use std::time::Duration;

use postrider_core::{
    enlist::Enlist,
    envelope::{Envelope, MessageId},
    lease::{LaneId, Lease, Node, NodeId, Order, RouteSpec, Start},
    log::{Cursor, Log, Page, PageLimit, Retention, Settlement},
    topic::TopicFilter,
};
use postrider_store_postgres::{Postgres, PostgresStore};

use support::{Place, batch, connect};

const WHOLE: PageLimit = PageLimit { records: 100_000, bytes: 1 << 30 };

/// One route on a store of its own, in the hands of one node.
struct Post {
    place: Place,
    store: PostgresStore,
    lease: Lease,
    cursor: Cursor,
    number: u64,
}

impl Post {
    async fn new(block_bits: u32) -> Self {
        let place = Place::new(block_bits).await;
        let store = place.store();
        let lease = take(&store, "r").await;
        let cursor = store.resume(&lease).await.unwrap().cursor;
        Self { place, store, lease, cursor, number: 0 }
    }

    async fn page(&self) -> Page {
        self.store.read(&self.lease, &self.cursor, WHOLE).await.unwrap()
    }

    async fn read_on(&mut self) -> Vec<MessageId> {
        let mut ids = Vec::new();
        loop {
            let page = self.page().await;
            ids.extend(page.records.iter().map(|record| record.envelope.id));
            self.cursor = page.end;
            if !page.more {
                return ids;
            }
        }
    }

    async fn settle(&mut self) -> postrider_core::Result<()> {
        self.number += 1;
        let settlement =
            Settlement { number: self.number, advance: Some(self.cursor.clone()), ..Settlement::default() };
        self.store.settle(&self.lease, &settlement).await
    }

    async fn commit(&self, count: usize) -> Vec<MessageId> {
        commit(&self.store.dialect(), count).await
    }

    /// Reads and settles until retention may go as far as this number, and returns what was read meanwhile. Whoever has a
    /// transaction open on this server, be it another test, keeps the bound down for a while.
    async fn until_passed(&mut self, number: i64) -> Vec<MessageId> {
        let client = connect().await;
        let passed = format!("SELECT max(lo) FROM \"{}\".checkpoint", self.place.schema());
        let deadline = std::time::Instant::now() + Duration::from_secs(120);
        let mut read = Vec::new();
        loop {
            let lo: Option<i64> = client.query_one(&passed, &[]).await.unwrap().get(0);
            if lo >= Some(number) {
                return read;
            }
            assert!(std::time::Instant::now() < deadline, "the bound is at {lo:?} and not yet at {number}");
            // Something has ended, so there is a round to be made.
            client.execute("SELECT pg_current_xact_id()", &[]).await.unwrap();
            read.extend(self.read_on().await);
            self.settle().await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Empties what may be emptied, and returns how many records that were.
    async fn purge_all(&self, retention: Retention) -> u64 {
        let mut purged = 0;
        loop {
            match self.store.purge(retention).await.unwrap() {
                0 => return purged,
                some => purged += some,
            }
        }
    }

    /// Ends the reader's session, as a crash of the server would.
    async fn end_session(&self) {
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                    WHERE application_name = 'postrider' AND query LIKE $1 AND query LIKE '%pg_visible_in_snapshot%'
                      AND pid <> pg_backend_pid()";
        let client = connect().await;
        let ended: i64 = client.query_one(sql, &[&format!("%{}%", self.place.schema())]).await.unwrap().get(0);
        assert_eq!(ended, 1, "the reader has one session");
        // Until the server has let go of what the session held.
        let held = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'postrider' AND query LIKE $1
                      AND query LIKE '%pg_visible_in_snapshot%' AND pid <> pg_backend_pid()";
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while client.query_one(held, &[&format!("%{}%", self.place.schema())]).await.unwrap().get::<_, i64>(0) > 0 {
            assert!(std::time::Instant::now() < deadline, "a terminated session ends");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

fn node() -> Node {
    let lease_life = Duration::from_secs(3600);
    Node {
        id: NodeId::generate(),
        name: "test".to_owned(),
        routes: vec!["r".into()],
        lease_life,
        standstills: Vec::new(),
    }
}

async fn take(store: &PostgresStore, route: &str) -> Lease {
    let node = node();
    let (topics, order, start) = (TopicFilter::all(), Order::Key, Start::Oldest);
    store.register(&node, &[RouteSpec { name: route.into(), topics, order, lanes: 1, start }]).await.unwrap();
    store.acquire(&LaneId { route: route.into(), number: 0 }, &node).await.unwrap().unwrap()
}

async fn commit(dialect: &Postgres, count: usize) -> Vec<MessageId> {
    let envelopes: Vec<_> = (0..count).map(|i| Envelope::new("orders", "order.placed", format!("{i}"))).collect();
    let ids = envelopes.iter().map(|envelope| envelope.id).collect();
    let mut client = connect().await;
    let mut transaction = client.transaction().await.unwrap();
    transaction.append(dialect, batch(envelopes)).await.unwrap();
    transaction.commit().await.unwrap();
    ids
}
