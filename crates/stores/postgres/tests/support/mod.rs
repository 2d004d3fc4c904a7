//! A store in a schema of its own on a real server, and an application beside it.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

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
use postrider_store_postgres::{Postgres, PostgresStore};
use postrider_testkit::{
    service,
    store::{Fixture, OpenTransaction},
};
use tokio_postgres::{Client, NoTls};

const VARIABLE: &str = "POSTRIDER_TEST_POSTGRES";

/// The server: the one that the environment names, or the one that the workshop has started.
pub(crate) fn url() -> String {
    service::url(VARIABLE)
}

pub(crate) async fn connect() -> Client {
    connect_to(&url()).await
}

pub(crate) async fn connect_to(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect to the test server");
    tokio::spawn(connection);
    client
}

/// Until a session that works on this schema waits for a lock.
pub(crate) async fn until_waiting_for_a_lock(schema: &str) {
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1";
    let (watcher, pattern) = (connect().await, format!("%{schema}%"));
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while watcher.query_one(waits, &[&pattern]).await.unwrap().get::<_, i64>(0) == 0 {
        assert!(std::time::Instant::now() < deadline, "somebody waits for a lock");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A schema that is dropped at the end.
pub(crate) struct Schema(String);

impl Schema {
    pub(crate) fn fresh() -> Self {
        Self(format!("test_{}", uuid::Uuid::now_v7().simple()))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// On a thread of its own, for the test's runtime may be going down.
    pub(crate) fn clean_up_with(&self, sql: String) {
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let client = connect().await;
                client.batch_execute("SET lock_timeout = '5s'").await.expect("set");
                // A test that has failed may have left something open; its schema then stays.
                let _ = client.batch_execute(&sql).await;
            });
        });
        let _ = dropping.join();
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        self.clean_up_with(format!("DROP SCHEMA IF EXISTS \"{}\" CASCADE", self.0));
    }
}

/// Where the store is.
pub(crate) struct Place {
    store: Mutex<PostgresStore>,
    block_bits: u32,
    schema: Schema,
}

impl Place {
    pub(crate) async fn fresh(block_bits: u32) -> Arc<dyn Fixture> {
        Arc::new(Self::new(block_bits).await)
    }

    pub(crate) async fn new(block_bits: u32) -> Self {
        let schema = Schema::fresh();
        let store = Mutex::new(open(schema.name(), block_bits).await);
        Self { store, block_bits, schema }
    }

    pub(crate) fn store(&self) -> PostgresStore {
        self.store.lock().unwrap().clone()
    }

    pub(crate) fn schema(&self) -> &str {
        self.schema.name()
    }

    /// Everything that a new route would deliver, in its order.
    pub(crate) async fn delivered(&self) -> Vec<Envelope> {
        let store = self.store();
        let route = format!("route-{}", uuid::Uuid::now_v7());
        let lease_life = Duration::from_secs(3600);
        let node = Node {
            id: NodeId::generate(),
            name: route.clone(),
            routes: vec![route.as_str().into()],
            lease_life,
            standstills: Vec::new(),
        };
        let spec = RouteSpec {
            name: route.as_str().into(),
            topics: TopicFilter::all(),
            order: Order::Key,
            lanes: 1,
            start: Start::Oldest,
        };
        store.register(&node, &[spec]).await.unwrap();
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

    pub(crate) async fn another(&self) -> PostgresStore {
        open(self.schema(), self.block_bits).await
    }
}

async fn open(schema: &str, block_bits: u32) -> PostgresStore {
    let builder = PostgresStore::builder(&url()).schema(schema).block_bits(block_bits).connections_max(4);
    builder.open().await.expect("open the store")
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
        Box::pin(async move { Box::new(Application::begin(&store).await) as Box<dyn OpenTransaction> })
    }

    fn now(&self) -> BoxFuture<'_, Timestamp> {
        Box::pin(async {
            let row = connect().await.query_one("SELECT clock_timestamp()", &[]).await.unwrap();
            Timestamp::from(row.get::<_, std::time::SystemTime>(0))
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

/// A transaction of the application, on a connection of its own. tokio-postgres's transaction borrows its client, so both
/// live in a task, and the test sends it what to do.
pub(crate) struct Application(tokio::sync::mpsc::UnboundedSender<(Step, tokio::sync::oneshot::Sender<()>)>);

enum Step {
    Append(Vec<Envelope>),
    Run(&'static str),
    Commit,
    RollBack,
}

impl Application {
    pub(crate) async fn begin(store: &PostgresStore) -> Self {
        Self::begin_at(&url(), store).await
    }

    /// As whoever the URL names.
    pub(crate) async fn begin_at(url: &str, store: &PostgresStore) -> Self {
        let (steps, mut queue) = tokio::sync::mpsc::unbounded_channel();
        let (dialect, waker) = (store.dialect(), store.waker());
        let mut client = connect_to(url).await;
        tokio::spawn(async move {
            perform(&mut client, &dialect, &mut queue).await;
            waker.wake();
        });
        Self(steps)
    }

    fn step(&self, step: Step) -> BoxFuture<'static, ()> {
        let (done, wait) = tokio::sync::oneshot::channel();
        self.0.send((step, done)).expect("the transaction's task runs");
        Box::pin(async { wait.await.expect("the step succeeds") })
    }
}

async fn perform(
    client: &mut Client,
    dialect: &Postgres,
    queue: &mut tokio::sync::mpsc::UnboundedReceiver<(Step, tokio::sync::oneshot::Sender<()>)>,
) {
    let mut transaction = client.transaction().await.unwrap();
    while let Some((step, done)) = queue.recv().await {
        match step {
            Step::Append(envelopes) => transaction.append(dialect, batch(envelopes)).await.unwrap(),
            Step::Run(sql) => transaction.batch_execute(sql).await.unwrap(),
            Step::Commit => {
                transaction.commit().await.unwrap();
                return done.send(()).unwrap();
            }
            Step::RollBack => {
                transaction.rollback().await.unwrap();
                return done.send(()).unwrap();
            }
        }
        done.send(()).unwrap();
    }
}

impl OpenTransaction for Application {
    fn append(&mut self, envelopes: Vec<Envelope>) -> BoxFuture<'_, ()> {
        self.step(Step::Append(envelopes))
    }

    fn savepoint(&mut self) -> BoxFuture<'_, ()> {
        self.step(Step::Run("SAVEPOINT here"))
    }

    fn roll_back_to_savepoint(&mut self) -> BoxFuture<'_, ()> {
        self.step(Step::Run("ROLLBACK TO SAVEPOINT here"))
    }

    fn commit(self: Box<Self>) -> BoxFuture<'static, ()> {
        self.step(Step::Commit)
    }

    fn roll_back(self: Box<Self>) -> BoxFuture<'static, ()> {
        self.step(Step::RollBack)
    }
}

/// A checked batch.
pub(crate) fn batch(envelopes: Vec<Envelope>) -> Result<Batch> {
    Limits::default().check(envelopes)
}
