//! Where an outage is lived through: a store, a relay that publishes from it, and what was committed so far.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use postrider::{Outbox, Relay, Route, relay::RelayHandle};
use postrider_core::{
    cloudevents::Received,
    envelope::{Envelope, MessageId},
    transport::Publisher,
};
use postrider_store_sqlite::SqliteStore;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::{
    numbers::{self, KEYS, PATIENCE, ROUND, in_time},
    recorder::{Doubts, Recorder},
    told::Told,
};

/// A store, its relay, and what was committed.
pub struct Place {
    _folder: TempDir,
    path: PathBuf,
    store: SqliteStore,
    handle: RelayHandle,
    told: Arc<Told>,
    doubts: Doubts,
    running: JoinHandle<postrider::Result<()>>,
    committed: usize,
    envelope: fn(usize) -> Envelope,
    begun: Instant,
}

impl Place {
    /// A fresh store, and a relay from it to this publisher, which runs from now on.
    ///
    /// # Panics
    /// If there is no room for a file.
    pub async fn new(publisher: impl Publisher + 'static) -> Self {
        let folder = tempfile::tempdir().expect("a directory of its own");
        let path = folder.path().join("shop.db");
        let store = SqliteStore::open(&path).await.expect("open a fresh store");
        let (publisher, doubts) = Recorder::new(publisher);
        let route = Route::new("broker", publisher).breaker(Duration::from_millis(10), Duration::from_millis(100));
        let told = Arc::new(Told::default());
        let relay = Relay::builder(Arc::new(store.clone())).route(route).observer(Arc::clone(&told) as _);
        let relay = relay.build().expect("a relay with one route");
        let handle = relay.handle();
        let running = tokio::spawn(relay.run());
        Self {
            _folder: folder,
            path,
            store,
            handle,
            told,
            doubts,
            running,
            committed: 0,
            envelope: numbers::envelope,
            begun: Instant::now(),
        }
    }

    /// As above, with messages to two topics: `orders`, and one key in eight to `returns`.
    pub(crate) async fn with_two_topics(publisher: impl Publisher + 'static) -> Self {
        Self { envelope: numbers::envelope_of_two_topics, ..Self::new(publisher).await }
    }

    /// Commits a round of messages over all keys, each in its own transaction.
    pub fn enqueue(&mut self) {
        enqueue(&self.path, &self.store, self.envelope, self.committed);
        self.committed += ROUND;
        self.store.wake();
    }

    /// How many messages were committed.
    #[must_use]
    pub fn committed(&self) -> usize {
        self.committed
    }

    /// Waits until everything that was committed is delivered.
    pub async fn delivered(&self) {
        self.until("everything is delivered", || self.handle.stats().durable() == self.committed as u64).await;
    }

    /// Waits until all but the last round of the other topic is delivered, and that is set aside.
    pub(crate) async fn delivered_but_for_one_topic(&self) {
        let delivered = (self.committed - ROUND / KEYS) as u64;
        self.until("everything to the other topic is delivered", || self.handle.stats().durable() == delivered).await;
        self.until("one topic is known to take nothing", || self.told.count("aside") > 0).await;
    }

    /// How often the relay has seen that the destination is not there.
    #[must_use]
    pub fn openings(&self) -> usize {
        self.told.count("opened")
    }

    /// Waits until it has seen so as often as that.
    pub async fn opened(&self, times: usize) {
        self.until("the breaker opens", || self.openings() >= times).await;
    }

    /// Ends the relay, reads what arrived, in the order of arrival, and judges it.
    ///
    /// # Panics
    /// If something is missing, out of order, was rejected or given up, or if a message arrived more often than it can have
    /// been taken: what the broker has acknowledged must not go out twice.
    pub async fn judge(self, arrived: impl AsyncFnOnce() -> Vec<Received>) {
        let doubts = self.doubts.clone();
        self.judge_times(|id| 1 + doubts.of(id), arrived).await;
    }

    /// As above, where the broker itself never went away: no message may arrive more often than this, whatever the publisher has
    /// said of it.
    ///
    /// # Panics
    /// As above.
    pub async fn judge_copies(self, times_max: usize, arrived: impl AsyncFnOnce() -> Vec<Received>) {
        self.judge_times(|_| times_max, arrived).await;
    }

    async fn judge_times(self, times_max: impl Fn(MessageId) -> usize, arrived: impl AsyncFnOnce() -> Vec<Received>) {
        self.handle.drain();
        let ended =
            in_time(self.running).await.unwrap_or_else(|| panic!("the relay does not end: {}", self.told.shown()));
        ended.expect("the relay does not panic").expect("the relay ends well");
        let arrived = in_time(arrived()).await.expect("what has arrived can be read");
        let mut times: BTreeMap<MessageId, usize> = BTreeMap::new();
        for event in &arrived {
            *times.entry(event.envelope.id).or_default() += 1;
        }
        for (id, times) in times {
            let bound = times_max(id);
            assert!(times <= bound, "{id} arrived {times} times, and may have arrived {bound} times");
        }
        let arrived = arrived.iter().map(|event| &event.envelope);
        assert_eq!(
            numbers::first_arrivals(arrived),
            numbers::all(self.committed),
            "everything arrives, in order per key"
        );
        let paid = self.told.count("dead") + self.told.count("rejected");
        assert_eq!(paid, 0, "no message pays for an outage: {}", self.told.shown());
    }

    /// Waits until something is so, for as long as the whole scenario may take.
    async fn until(&self, what: &str, so: impl Fn() -> bool) {
        while !so() {
            assert!(
                self.begun.elapsed() < PATIENCE,
                "waited in vain until {what}; the relay told: {}",
                self.told.shown()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn enqueue(path: &Path, store: &SqliteStore, envelope: fn(usize) -> Envelope, from: usize) {
    let outbox = Outbox::new(store.dialect());
    let mut connection = rusqlite::Connection::open(path).expect("open the store's file");
    for number in from..from + ROUND {
        let envelope = envelope(number);
        let mut tx = connection.transaction().expect("begin");
        outbox.enqueue_raw(&mut tx, vec![envelope]).expect("enqueue");
        tx.commit().expect("commit");
    }
}
