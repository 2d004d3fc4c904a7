//! The whole way through a bad network and a broker that is killed: a SQLite store, the relay, and a real Redis server.
//! Nothing is lost, order is kept per key, and no message pays for an outage with an attempt.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use postrider::{
    Envelope, Outbox, Relay, Route,
    relay::{
        RelayHandle,
        events::{Event, Observer},
    },
};
use postrider_core::cloudevents::Received;
use postrider_store_sqlite::SqliteStore;
use postrider_testkit::fault::{Proxy, Server, Traffic};
use postrider_transport_redis::{Access, RedisPublisher};

use support::{Own, program, until, url};

const KEYS: usize = 8;
const ROUND: usize = 80;

/// Remembers what opened the breaker, and who paid for it.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Observer for Told {
    fn observe(&self, event: &Event<'_>) {
        let told = match event {
            Event::BreakerOpened { cause, .. } => format!("opened {}", cause.code()),
            Event::Dead { cause, .. } => format!("dead {}", cause.code()),
            Event::Rejected { cause, .. } => format!("rejected {}", cause.code()),
            _ => return,
        };
        self.0.lock().unwrap().push(told);
    }
}

impl Told {
    fn count(&self, start: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|told| told.starts_with(start)).count()
    }
}

/// A store, a relay that publishes from it, and what was committed so far.
struct Place {
    _folder: tempfile::TempDir,
    path: std::path::PathBuf,
    store: SqliteStore,
    handle: RelayHandle,
    told: Arc<Told>,
    running: tokio::task::JoinHandle<postrider::Result<()>>,
    committed: usize,
}

impl Place {
    async fn new(url: &str, own: &Own) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shop.db");
        let store = SqliteStore::open(&path).await.unwrap();
        // Short, so that a connection that says nothing is noticed soon.
        let publisher = RedisPublisher::builder(Access::new(url).unwrap())
            .prefix(&own.prefix)
            .timeout(Duration::from_millis(500))
            .build()
            .unwrap();
        let route = Route::new("broker", publisher).breaker(Duration::from_millis(10), Duration::from_millis(100));
        let told = Arc::new(Told::default());
        let relay =
            Relay::builder(Arc::new(store.clone())).route(route).observer(Arc::clone(&told) as _).build().unwrap();
        let handle = relay.handle();
        let running = tokio::spawn(relay.run());
        Self { _folder: folder, path, store, handle, told, running, committed: 0 }
    }

    /// Commits a round of messages over all keys, each in its own transaction.
    fn enqueue(&mut self) {
        enqueue(&self.path, &self.store, self.committed);
        self.committed += ROUND;
        self.store.wake();
    }

    async fn delivered(&self) {
        until("everything is delivered", || self.handle.stats().durable() == self.committed as u64).await;
    }

    async fn opened(&self, times: usize) {
        until("the breaker opens", || self.told.count("opened") >= times).await;
    }

    /// Ends the relay and judges what arrived.
    async fn judge(self, arrived: &[Received]) {
        self.handle.drain();
        self.running.await.unwrap().unwrap();
        let expected: BTreeMap<String, Vec<usize>> =
            (0..KEYS).map(|key| (format!("key-{key}"), (key..self.committed).step_by(KEYS).collect())).collect();
        assert_eq!(first_arrivals(arrived), expected, "everything arrives, in order per key");
        assert_eq!(self.told.count("dead") + self.told.count("rejected"), 0, "{:?}", self.told.0);
    }
}

fn enqueue(path: &Path, store: &SqliteStore, from: usize) {
    let outbox = Outbox::new(store.dialect());
    let mut connection = rusqlite::Connection::open(path).unwrap();
    for number in from..from + ROUND {
        let envelope =
            Envelope::new("orders", "order.placed", number.to_string()).with_key(format!("key-{}", number % KEYS));
        let mut tx = connection.transaction().unwrap();
        outbox.enqueue_raw(&mut tx, vec![envelope]).unwrap();
        tx.commit().unwrap();
    }
}

/// First arrivals of each key, in order.
fn first_arrivals(events: &[Received]) -> BTreeMap<String, Vec<usize>> {
    let mut arrived: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for event in events {
        let number: usize = std::str::from_utf8(&event.envelope.payload).unwrap().parse().unwrap();
        let line = arrived.entry(event.envelope.key.as_ref().unwrap().to_string()).or_default();
        if !line.contains(&number) {
            line.push(number);
        }
    }
    arrived
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_network_loses_nothing_and_keeps_the_order() {
    let own = Own::new();
    let proxy = Proxy::to(url().trim_start_matches("redis://")).await;
    let mut place = Place::new(&format!("redis://{}", proxy.address()), &own).await;
    place.enqueue();
    place.delivered().await;
    for round in 1..=3 {
        // Cut while messages are under way.
        proxy.set(Traffic::Delayed(Duration::from_millis(5)));
        place.enqueue();
        proxy.cut();
        place.enqueue();
        proxy.reset();
        proxy.set(Traffic::Flowing);
        place.delivered().await;
        // Half-open: nobody answers, and nobody says so.
        let before = place.told.count("opened");
        proxy.set(Traffic::Silent);
        place.enqueue();
        place.opened(before + 1).await;
        proxy.set(Traffic::Refusing);
        proxy.reset();
        proxy.set(Traffic::Flowing);
        place.delivered().await;
        assert_eq!(place.committed, ROUND * (1 + 3 * round));
    }
    let arrived = own.events().await;
    place.judge(&arrived).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_loses_nothing_that_was_acknowledged() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().display().to_string();
    let mut server = Server::start(&program(), |port| {
        ["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir", &folder, "--appendonly", "yes", "--save", ""]
            .map(str::to_owned)
            .to_vec()
    });
    let url = format!("redis://{}", server.address());
    let own = Own::on(&url);
    let mut place = Place::new(&url, &own).await;
    for round in 1..=3 {
        place.enqueue();
        place.delivered().await;
        server.kill();
        place.enqueue();
        place.opened(round).await;
        server.restart();
        place.delivered().await;
    }
    assert!(place.told.count("opened") >= 3, "{:?}", place.told.0);
    let arrived = own.events().await;
    place.judge(&arrived).await;
}
