//! The whole way: a SQLite store, the relay, and a receiver that is down, comes back, and goes away for good.

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
        events::{Event, Observer},
        options::Options,
    },
};
use postrider_core::cloudevents::Received;
use postrider_store_sqlite::SqliteStore;
use tokio::net::{TcpListener, TcpSocket};

use support::{Receiver, local, status, until};

const KEYS: usize = 6;
const MESSAGES: usize = 60;

/// Remembers what opened the breaker, and who died.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Observer for Told {
    fn observe(&self, event: &Event<'_>) {
        let told = match event {
            Event::BreakerOpened { cause, .. } => format!("opened {}", cause.code()),
            Event::BreakerClosed { .. } => "closed".to_owned(),
            Event::Dead { cause, .. } => format!("dead {}", cause.code()),
            Event::Rejected { cause, .. } => format!("rejected {}", cause.code()),
            _ => return,
        };
        self.0.lock().unwrap().push(told);
    }
}

impl Told {
    fn has(&self, wanted: &str) -> bool {
        self.0.lock().unwrap().iter().any(|told| told == wanted)
    }
}

/// Commits all messages, round by round over the keys.
fn enqueue(path: &Path, store: &SqliteStore) {
    let outbox = Outbox::new(store.dialect());
    let mut connection = rusqlite::Connection::open(path).unwrap();
    for number in 0..MESSAGES {
        let envelope =
            Envelope::new("orders", "order.placed", number.to_string()).with_key(format!("key-{}", number % KEYS));
        let mut tx = connection.transaction().unwrap();
        outbox.enqueue_raw(&mut tx, vec![envelope]).unwrap();
        tx.commit().unwrap();
    }
}

fn route(receiver: postrider_transport_http::HttpPublisher) -> Route {
    Route::new("hooks", receiver).breaker(Duration::from_millis(10), Duration::from_millis(100))
}

/// First arrivals of each key, in order.
fn by_key(events: &[Received]) -> BTreeMap<String, Vec<usize>> {
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
async fn a_receiver_that_was_down_gets_everything_in_order_per_key() {
    // Bound but not listening: the port is ours and refuses connections.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let store = SqliteStore::open(&path).await.unwrap();
    enqueue(&path, &store);
    let told = Arc::new(Told::default());
    let publisher = local(&format!("http://{address}/"), address.port()).build().unwrap();
    let relay =
        Relay::builder(Arc::new(store)).route(route(publisher)).observer(Arc::clone(&told) as _).build().unwrap();
    let handle = relay.handle();
    let running = tokio::spawn(relay.run());

    until("the breaker opens", || told.has("opened connect")).await;
    // Every third request fails on the receiver's side once it is up: the engine sends it again, and nothing overtakes.
    let tries = Mutex::new(0);
    let receiver = Receiver::on(socket.listen(64).unwrap(), move |_| {
        let mut tries = tries.lock().unwrap();
        *tries += 1;
        status(if *tries % 3 == 0 { 500 } else { 200 })
    });
    let expected: BTreeMap<String, Vec<usize>> =
        (0..KEYS).map(|key| (format!("key-{key}"), (key..MESSAGES).step_by(KEYS).collect())).collect();
    let arrived = || by_key(&receiver.seen().iter().map(support::Seen::event).collect::<Vec<_>>());
    until("all have arrived", || handle.stats().durable() == MESSAGES as u64).await;
    assert_eq!(arrived(), expected);
    assert!(told.has("closed") && !told.0.lock().unwrap().iter().any(|told| told.starts_with("dead")), "{:?}", told.0);
    handle.drain();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_is_gone_gives_up_no_message() {
    let receiver = Receiver::answering(|_| status(410)).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let store = SqliteStore::open(&path).await.unwrap();
    enqueue(&path, &store);
    let told = Arc::new(Told::default());
    let publisher = receiver.builder().concurrency(1).build().unwrap();
    // With nobody to take what is due, a drain waits for its whole deadline.
    let options = Options { drain_deadline: Duration::from_millis(50), ..Options::default() };
    let relay = Relay::builder(Arc::new(store.clone()))
        .route(route(publisher))
        .options(options)
        .observer(Arc::clone(&told) as _)
        .build()
        .unwrap();
    let handle = relay.handle();
    let running = tokio::spawn(relay.run());
    until("the breaker opens", || told.has("opened gone")).await;
    handle.drain();
    running.await.unwrap().unwrap();
    assert_eq!(receiver.seen().len(), 1, "after the first 410 nothing goes out");

    // The operator has spoken to the receiver and starts the relay again.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let back = Receiver::on(listener, |_| status(200));
    let relay = Relay::builder(Arc::new(store)).route(route(back.builder().build().unwrap())).build().unwrap();
    let handle = relay.handle();
    let running = tokio::spawn(relay.run());
    until("all have arrived", || handle.stats().durable() == MESSAGES as u64).await;
    assert!(!told.0.lock().unwrap().iter().any(|told| told.starts_with("dead") || told.starts_with("rejected")));
    handle.drain();
    running.await.unwrap().unwrap();
}
