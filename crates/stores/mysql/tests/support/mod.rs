//! A store with tables of its own on a real server, and an application beside it.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod servers;
pub(crate) mod workload;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mysql_async::{Conn, Transaction, TxOpts, prelude::Queryable};
use postrider_core::{
    BoxFuture, Result,
    admin::StoreAdmin,
    enlist::{Batch, Enlist},
    envelope::Envelope,
    lease::{LaneId, Node, NodeId, Order, RouteSpec, Start},
    limits::Limits,
    log::{Log, PageLimit},
    time::Timestamp,
    topic::TopicFilter,
};
use postrider_store_mysql::{Builder, MysqlStore};
use postrider_testkit::{
    service,
    store::{Fixture, OpenTransaction},
};

const VARIABLE: &str = "POSTRIDER_TEST_MYSQL";

/// The server: the one that the environment names, or the one that the workshop has started.
pub(crate) fn url() -> String {
    service::url(VARIABLE)
}

pub(crate) async fn connect() -> Conn {
    Conn::from_url(url()).await.expect("connect to the test server")
}

/// Runs something on the server on a thread of its own, for the test's runtime may be going down.
pub(crate) fn clean_up(sql: Vec<String>) {
    let cleaning = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut connection = connect().await;
            let _ = connection.query_drop("SET lock_wait_timeout = 5").await;
            for sql in sql {
                // A test that has failed may have left something open; its tables then stay.
                let _ = connection.query_drop(sql).await;
            }
            let _ = connection.disconnect().await;
        });
    });
    let _ = cleaning.join();
}

/// A prefix whose tables are dropped at the end.
pub(crate) struct Tables(String);

impl Tables {
    pub(crate) fn fresh() -> Self {
        Self(format!("t{}_", uuid::Uuid::now_v7().simple()))
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.0
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        let names =
            ["migration", "pending", "log", "ordering", "counter", "route", "lane", "node", "parked", "audit", "keys"];
        let tables: Vec<String> = names.iter().map(|name| format!("{}{name}", self.0)).collect();
        clean_up(vec![format!("DROP TABLE IF EXISTS {}", tables.join(", "))]);
    }
}

/// Where the store is.
pub(crate) struct Place {
    store: Mutex<MysqlStore>,
    tables: Tables,
}

impl Place {
    pub(crate) async fn fresh() -> Arc<dyn Fixture> {
        Arc::new(Self::new().await)
    }

    pub(crate) async fn new() -> Self {
        let tables = Tables::fresh();
        let store = Mutex::new(builder(tables.prefix()).open().await.expect("open the store"));
        Self { store, tables }
    }

    pub(crate) fn store(&self) -> MysqlStore {
        self.store.lock().unwrap().clone()
    }

    pub(crate) fn prefix(&self) -> &str {
        self.tables.prefix()
    }

    pub(crate) async fn another(&self) -> MysqlStore {
        builder(self.prefix()).open().await.expect("open the store")
    }

    /// Everything that a new route would deliver, in its order.
    pub(crate) async fn delivered(&self) -> Vec<Envelope> {
        let store = self.store();
        let route = format!("route-{}", uuid::Uuid::now_v7());
        let node = node(&route, Duration::from_secs(3600));
        store.register(&node, &[spec(&route)]).await.unwrap();
        let lane = LaneId { route: route.as_str().into(), number: 0 };
        let lease = store.acquire(&lane, &node).await.unwrap().expect("the lane is free");
        let mut cursor = store.resume(&lease).await.unwrap().cursor;
        let mut delivered = Vec::new();
        loop {
            let page = store.read(&lease, &cursor, PageLimit { records: 100_000, bytes: 1 << 30 }).await.unwrap();
            delivered.extend(page.records.iter().map(|record| record.envelope.clone()));
            cursor = page.end;
            if !page.more {
                return delivered;
            }
        }
    }
}

pub(crate) fn builder(prefix: &str) -> Builder {
    MysqlStore::builder(&url()).prefix(prefix).connections_max(4)
}

pub(crate) fn node(route: &str, lease_life: Duration) -> Node {
    Node {
        id: NodeId::generate(),
        name: route.to_owned(),
        routes: vec![route.into()],
        lease_life,
        standstills: Vec::new(),
    }
}

pub(crate) fn spec(route: &str) -> RouteSpec {
    let (topics, order, start) = (TopicFilter::all(), Order::Key, Start::Oldest);
    RouteSpec { name: route.into(), topics, order, lanes: 1, start }
}

impl Fixture for Place {
    fn log(&self) -> Arc<dyn Log> {
        Arc::new(self.store())
    }

    fn admin(&self) -> Arc<dyn StoreAdmin> {
        Arc::new(self.store())
    }

    fn beside(&self) -> BoxFuture<'_, Arc<dyn Log>> {
        Box::pin(async { Arc::new(self.another().await) as Arc<dyn Log> })
    }

    fn begin(&self) -> BoxFuture<'_, Box<dyn OpenTransaction>> {
        let store = self.store();
        Box::pin(async move { Box::new(Application::begin(store).await) as Box<dyn OpenTransaction> })
    }

    fn now(&self) -> BoxFuture<'_, Timestamp> {
        Box::pin(async {
            let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
            let micros: Option<i64> = connect().await.query_first(sql).await.unwrap();
            Timestamp::from_micros(micros.unwrap())
        })
    }

    fn pass(&self, span: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(span))
    }

    fn reopen(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let again = self.another().await;
            *self.store.lock().unwrap() = again;
        })
    }
}

/// Whether the next commit wakes the relays of its process.
static TELLS: AtomicBool = AtomicBool::new(false);

/// A transaction of the application, on a connection of its own.
pub(crate) struct Application {
    transaction: Transaction<'static>,
    store: MysqlStore,
}

impl Application {
    pub(crate) async fn begin(store: MysqlStore) -> Self {
        let pool = mysql_async::Pool::from_url(url()).unwrap();
        let transaction = pool.start_transaction(TxOpts::default()).await.unwrap();
        Self { transaction, store }
    }

    async fn run(&mut self, sql: &'static str) {
        self.transaction.query_drop(sql).await.unwrap();
    }
}

impl OpenTransaction for Application {
    fn append(&mut self, envelopes: Vec<Envelope>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let dialect = self.store.dialect();
            self.transaction.append(&dialect, batch(envelopes)).await.unwrap();
        })
    }

    fn savepoint(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.run("SAVEPOINT here"))
    }

    fn roll_back_to_savepoint(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.run("ROLLBACK TO SAVEPOINT here"))
    }

    /// Every other one as an application does that is another process: nobody is told.
    fn commit(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.transaction.commit().await.unwrap();
            if TELLS.fetch_xor(true, Ordering::SeqCst) {
                self.store.wake();
            }
        })
    }

    fn roll_back(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.transaction.rollback().await.unwrap() })
    }
}

/// A checked batch.
pub(crate) fn batch(envelopes: Vec<Envelope>) -> Result<Batch> {
    Limits::default().check(envelopes)
}
