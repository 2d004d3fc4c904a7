//! A store with a database of its own on a real replica set, and an application beside it.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod servers;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use mongodb::{
    Client, ClientSession,
    bson::{Document, doc},
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
use postrider_store_mongodb::{Builder, Mongo, MongoStore, connect};
use postrider_testkit::{
    service,
    store::{Fixture, OpenTransaction},
};

const VARIABLE: &str = "POSTRIDER_TEST_MONGODB";

/// The server: the one that the environment names, or the one that the workshop has started.
pub(crate) fn url() -> String {
    service::url(VARIABLE)
}

/// The server's program, for a test that needs one of its own.
pub(crate) fn program() -> PathBuf {
    service::program(VARIABLE, "mongod")
}

/// A client of a test's own: a client belongs to the runtime in which it was made.
pub(crate) async fn client() -> Client {
    connect(&url()).await.expect("connect to the test server")
}

/// A database that is dropped at the end.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) names: Mongo,
    pub(crate) client: Client,
    store: Mutex<MongoStore>,
}

impl Place {
    pub(crate) async fn fresh() -> Arc<dyn Fixture> {
        Arc::new(Self::new().await)
    }

    pub(crate) async fn new() -> Self {
        Self::on(&url()).await
    }

    /// On another server than the usual one.
    pub(crate) async fn on(url: &str) -> Self {
        Self::with(url, |builder| builder).await
    }

    pub(crate) async fn with(url: &str, options: impl FnOnce(Builder) -> Builder) -> Self {
        let names = Mongo::new(&format!("t{}", uuid::Uuid::now_v7().simple())).unwrap();
        let store = options(builder(url, &names)).open().await.expect("open the store");
        Self { url: url.to_owned(), client: connect(url).await.unwrap(), store: Mutex::new(store), names }
    }

    pub(crate) fn store(&self) -> MongoStore {
        self.store.lock().unwrap().clone()
    }

    pub(crate) async fn another(&self) -> MongoStore {
        builder(&self.url, &self.names).open().await.expect("open the store")
    }

    pub(crate) async fn begin(&self) -> Application {
        let mut session = self.client.start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        Application { session, store: self.store() }
    }

    /// The collection of the log, or another one of the store.
    pub(crate) fn collection(&self, name: &str) -> mongodb::Collection<Document> {
        self.client.database(self.names.database()).collection(&format!("{}{name}", self.names.prefix()))
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

impl Drop for Place {
    /// On a thread of its own, for the test's runtime may be going down.
    fn drop(&mut self) {
        let (url, database) = (self.url.clone(), self.names.database().to_owned());
        let cleaning = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                // A server that is gone has taken the database with it.
                if let Ok(client) = connect(&url).await {
                    // Not for ever: a test that has failed may leave a server that waits for its majority.
                    let gone = doc! { "dropDatabase": 1, "maxTimeMS": 20_000 };
                    let _ = client.database(&database).run_command(gone).await;
                }
            });
        });
        let _ = cleaning.join();
    }
}

pub(crate) fn builder(url: &str, names: &Mongo) -> Builder {
    MongoStore::builder(url).database(names.database()).prefix(names.prefix())
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

/// The server's clock.
pub(crate) async fn now(client: &Client) -> Timestamp {
    let hello = client.database("admin").run_command(doc! { "hello": 1 }).await.unwrap();
    Timestamp::from_micros(hello.get_datetime("localTime").unwrap().timestamp_millis() * 1_000)
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
        Box::pin(async move { Box::new(self.begin().await) as Box<dyn OpenTransaction> })
    }

    fn now(&self) -> BoxFuture<'_, Timestamp> {
        Box::pin(now(&self.client))
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

/// A transaction of the application.
pub(crate) struct Application {
    pub(crate) session: ClientSession,
    store: MongoStore,
}

impl Application {
    pub(crate) async fn commit(mut self) {
        self.session.commit_transaction().await.unwrap();
        self.store.wake();
    }
}

impl OpenTransaction for Application {
    fn append(&mut self, envelopes: Vec<Envelope>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let names = self.store.dialect();
            self.session.append(&names, batch(envelopes)).await.unwrap();
        })
    }

    fn savepoint(&mut self) -> BoxFuture<'_, ()> {
        panic!("the store says that it has no savepoints")
    }

    fn roll_back_to_savepoint(&mut self) -> BoxFuture<'_, ()> {
        panic!("the store says that it has no savepoints")
    }

    fn commit(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin((*self).commit())
    }

    fn roll_back(mut self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.session.abort_transaction().await.unwrap() })
    }
}

/// A checked batch.
pub(crate) fn batch(envelopes: Vec<Envelope>) -> Result<Batch> {
    Limits::default().check(envelopes)
}
