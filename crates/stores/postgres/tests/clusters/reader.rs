//! One route in the hands of one node, on a server of the test's own, and an application that enqueues.

use std::time::{Duration, Instant};

use postrider_core::{
    ErrorKind, Result,
    enlist::Enlist,
    envelope::{Envelope, MessageId},
    lease::{LaneId, Lease, Node, NodeId, Order, RouteSpec, Start},
    limits::Limits,
    log::{Cursor, Log, PageLimit, Settlement},
    topic::TopicFilter,
};
use postrider_store_postgres::{PostgresStore, planted::Plant};
use tokio_postgres::{Client, NoTls};

pub(crate) const SMALL: PageLimit = PageLimit { records: 3, bytes: 1 << 20 };
pub(crate) const WHOLE: PageLimit = PageLimit { records: 100_000, bytes: 1 << 30 };

/// A reader, always of the schema `postrider`.
pub(crate) struct Reader {
    pub(crate) store: PostgresStore,
    pub(crate) lease: Lease,
    pub(crate) cursor: Cursor,
    node: Node,
    spec: RouteSpec,
    number: u64,
}

impl Reader {
    /// Opens the store and takes the lane, in the place of whoever had it.
    pub(crate) async fn open(url: &str) -> Self {
        Self::planted(url, Plant::None).await
    }

    pub(crate) async fn planted(url: &str, plant: Plant) -> Self {
        let store = PostgresStore::builder(url).connections_max(2).block_bits(6).plant(plant).open().await.unwrap();
        Self::take(store, "r").await
    }

    pub(crate) async fn take(store: PostgresStore, route: &str) -> Self {
        let node = node(route);
        let (topics, order, start) = (TopicFilter::all(), Order::Key, Start::Oldest);
        let spec = RouteSpec { name: route.into(), topics, order, lanes: 1, start };
        store.register(&node, std::slice::from_ref(&spec)).await.unwrap();
        // Whoever had the lane before is gone.
        for standing in store.heartbeat(&node).await.unwrap().lanes {
            if let Some(owner) = standing.owner.filter(|_| &*standing.lane.route == route) {
                store.retire(owner).await.unwrap();
            }
        }
        let lease = store.acquire(&LaneId { route: route.into(), number: 0 }, &node).await.unwrap().unwrap();
        let cursor = store.resume(&lease).await.unwrap().cursor;
        Self { store, lease, cursor, node, spec, number: 0 }
    }

    /// Takes the lane anew, as a relay does that was fenced or has lost its connection.
    pub(crate) async fn again(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Err(error) = self.try_again().await {
            assert!(error.is_transient() && Instant::now() < deadline, "{error:?}");
        }
    }

    pub(crate) async fn try_again(&mut self) -> Result<()> {
        self.lease = self.store.acquire(&self.lease.lane, &self.node).await?.expect("a node gets again what it owns");
        self.cursor = self.store.resume(&self.lease).await?.cursor;
        self.number = 0;
        Ok(())
    }

    pub(crate) async fn register(&self) -> Result<()> {
        self.store.register(&self.node, std::slice::from_ref(&self.spec)).await
    }

    pub(crate) async fn heartbeat(&self) -> Result<()> {
        self.store.heartbeat(&self.node).await.map(drop)
    }

    pub(crate) async fn page(&mut self, limit: PageLimit) -> Result<(Vec<MessageId>, bool)> {
        let page = self.store.read(&self.lease, &self.cursor, limit).await?;
        self.cursor = page.end;
        Ok((page.records.iter().map(|record| record.envelope.id).collect(), page.more))
    }

    /// Everything that there is, in small pages.
    pub(crate) async fn read_on(&mut self) -> Vec<MessageId> {
        let mut ids = Vec::new();
        loop {
            let (read, more) = self.page(SMALL).await.unwrap();
            ids.extend(read);
            if !more {
                return ids;
            }
        }
    }

    /// Reads on after a crash of the server: if the cursor is not the persisted one, it is fenced and the lane is taken anew.
    pub(crate) async fn recover(&mut self) -> Vec<MessageId> {
        let read = patiently(async || self.store.read(&self.lease, &self.cursor, WHOLE).await).await;
        if let Err(error) = read {
            assert!(error.is_fenced(), "{error:?}");
            self.again().await;
        }
        self.read_on().await
    }

    pub(crate) async fn settle(&mut self) -> Result<()> {
        self.number += 1;
        let (number, advance) = (self.number, Some(self.cursor.clone()));
        self.store.settle(&self.lease, &Settlement { number, advance, ..Settlement::default() }).await
    }
}

impl Reader {
    /// Whatever a settlement holds, under the next number.
    pub(crate) async fn settle_all(&mut self, settlement: Settlement) {
        self.number += 1;
        self.store.settle(&self.lease, &Settlement { number: self.number, ..settlement }).await.unwrap();
    }
}

/// A node that serves one route.
pub(crate) fn node(route: &str) -> Node {
    Node {
        id: NodeId::generate(),
        name: "n".into(),
        routes: vec![route.into()],
        lease_life: Duration::from_secs(3600),
        standstills: Vec::new(),
    }
}

/// Repeats what fails because a server or connection is gone, until it gives an answer.
async fn patiently<T>(mut work: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match work().await {
            Err(error) if error.kind() == ErrorKind::Unavailable && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            other => return other,
        }
    }
}

/// Commits messages of one transaction.
pub(crate) async fn commit(url: &str, count: usize) -> Vec<MessageId> {
    let (mut client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut transaction = client.transaction().await.unwrap();
    let ids = append(&mut transaction, count).await;
    transaction.commit().await.unwrap();
    ids
}

/// Commits some messages of keys that have never been there, and some without one.
pub(crate) async fn commit_keyed(url: &str) {
    let (mut client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut transaction = client.transaction().await.unwrap();
    let keyless = (0..2).map(|_| Envelope::new("orders", "order.placed", "{}"));
    let keyed = (0..6).map(|_| {
        let envelope = Envelope::new("orders", "order.placed", "{}");
        let key = envelope.id.to_string();
        envelope.with_key(key.as_str())
    });
    let envelopes = keyless.chain(keyed).collect();
    let dialect = postrider_store_postgres::Postgres::default();
    transaction.append(&dialect, Limits::default().check(envelopes)).await.unwrap();
    transaction.commit().await.unwrap();
}

pub(crate) async fn append(transaction: &mut tokio_postgres::Transaction<'_>, count: usize) -> Vec<MessageId> {
    let envelopes: Vec<_> = (0..count).map(|_| Envelope::new("orders", "order.placed", "{}")).collect();
    let ids = envelopes.iter().map(|envelope| envelope.id).collect();
    let dialect = postrider_store_postgres::Postgres::default();
    transaction.append(&dialect, Limits::default().check(envelopes)).await.unwrap();
    ids
}

/// One number, asked of the server.
pub(crate) async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// Transactions that do nothing but take an id.
pub(crate) async fn spend_ids(client: &Client, count: u32) {
    let sql = format!("DO $$ BEGIN FOR i IN 1..{count} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$");
    client.batch_execute(&sql).await.unwrap();
}
