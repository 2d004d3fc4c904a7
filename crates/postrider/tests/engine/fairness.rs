//! A store and a publisher that are always ready must not keep the rest of the relay from running.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use postrider::{
    Envelope, Outbox, Outcome, Relay, Route,
    core::{BoxFuture, capability::PublisherCapabilities, log::RecordRef, transport::Publisher},
    relay::RelayHandle,
};
use postrider_store_memory::{Memory, MemoryStore};

/// Takes everything at once, and asks for the end of the relay after the first batch.
#[derive(Default)]
struct AlwaysReady {
    taken: AtomicU64,
    relay: OnceLock<RelayHandle>,
}

impl Publisher for AlwaysReady {
    fn capabilities(&self) -> PublisherCapabilities {
        PublisherCapabilities {
            name: "always-ready",
            run_max: 1000,
            message_bytes_max: None,
            batch_max: None,
            batches_max: None,
        }
    }

    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        self.taken.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.relay.get().expect("set before it runs").drain();
        Box::pin(std::future::ready(vec![Outcome::Durable; batch.len()]))
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_request_to_stop_is_heard_in_the_middle_of_a_backlog() {
    const BACKLOG: u64 = 200_000;
    let store = MemoryStore::new();
    let outbox = Outbox::new(Memory);
    for _ in 0..BACKLOG / 10_000 {
        let mut tx = store.begin();
        outbox.enqueue_raw(&mut tx, (0..10_000).map(|_| Envelope::new("t", "n", "")).collect()).unwrap();
        tx.commit();
    }
    let publisher = Arc::new(AlwaysReady::default());
    let route = Route::to("r", Arc::clone(&publisher) as _);
    let relay = Relay::builder(Arc::new(store)).route(route).build().unwrap();
    publisher.relay.set(relay.handle()).unwrap();
    relay.run().await.unwrap();
    let taken = publisher.taken.load(Ordering::Relaxed);
    assert!(taken > 0 && taken < BACKLOG, "{taken} of {BACKLOG} messages went out before the request was heard");
}
