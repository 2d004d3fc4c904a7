//! A log that counts its calls, so that a test can wait until the relay has looked, and that can withhold hints.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use postrider::core::{
    BoxFuture, Result,
    capability::StoreCapabilities,
    lease::{LaneId, Lease, Node, NodeId, Roster, RouteSpec},
    log::{Cursor, Log, Page, PageLimit, Resumed, Retention, Settlement},
    parked::{DueLimit, DuePage},
};

use tokio::sync::watch;

use super::until;

/// Clones count together.
#[derive(Clone)]
pub(crate) struct Probe(Arc<State>);

struct State {
    inner: Arc<dyn Log>,
    deaf: AtomicBool,
    slow_to_finish: AtomicBool,
    slow_to_purge: AtomicBool,
    heartbeats: watch::Sender<u64>,
    dues: AtomicU64,
}

impl Probe {
    pub(crate) fn new(inner: &Arc<dyn Log>) -> Self {
        Self(Arc::new(State {
            inner: Arc::clone(inner),
            deaf: AtomicBool::default(),
            slow_to_finish: AtomicBool::default(),
            slow_to_purge: AtomicBool::default(),
            heartbeats: watch::Sender::new(0),
            dues: AtomicU64::default(),
        }))
    }

    /// No hint comes through.
    pub(crate) fn without_hints(self) -> Self {
        self.0.deaf.store(true, Ordering::SeqCst);
        self
    }

    /// `finish` is answered only when the relay has had a heartbeat after it was done.
    pub(crate) fn slow_to_finish(self) -> Self {
        self.0.slow_to_finish.store(true, Ordering::SeqCst);
        self
    }

    /// `purge` is answered only when the relay has had a heartbeat after it was done.
    pub(crate) fn slow_to_purge(self) -> Self {
        self.0.slow_to_purge.store(true, Ordering::SeqCst);
        self
    }

    /// Waits until a due read has begun *and* ended after this call: until the one after the next has begun.
    pub(crate) async fn due_read(&self) {
        let before = self.0.dues.load(Ordering::SeqCst);
        until("two more due reads", async || self.0.dues.load(Ordering::SeqCst) >= before + 2).await;
    }

    /// Waits until the relay knows what a heartbeat that began after this call has found.
    pub(crate) async fn heartbeat(&self) {
        let mut heartbeats = self.0.heartbeats.subscribe();
        let enough = *heartbeats.borrow() + 2;
        let waited = tokio::time::timeout(super::DEADLINE, heartbeats.wait_for(|beats| *beats >= enough)).await;
        waited.expect("two more heartbeats").expect("the probe is still here");
    }
}

impl Log for Probe {
    fn capabilities(&self) -> StoreCapabilities {
        self.0.inner.capabilities()
    }

    fn register<'a>(&'a self, node: &'a Node, routes: &'a [RouteSpec]) -> BoxFuture<'a, Result<()>> {
        self.0.inner.register(node, routes)
    }

    fn heartbeat<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Result<Roster>> {
        self.0.heartbeats.send_modify(|beats| *beats += 1);
        self.0.inner.heartbeat(node)
    }

    fn retire(&self, node: NodeId) -> BoxFuture<'_, Result<()>> {
        self.0.inner.retire(node)
    }

    fn acquire<'a>(&'a self, lane: &'a LaneId, node: &'a Node) -> BoxFuture<'a, Result<Option<Lease>>> {
        self.0.inner.acquire(lane, node)
    }

    fn resume<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Resumed>> {
        self.0.inner.resume(lease)
    }

    fn read<'a>(&'a self, lease: &'a Lease, after: &'a Cursor, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        self.0.inner.read(lease, after, limit)
    }

    fn due<'a>(&'a self, lease: &'a Lease, limit: DueLimit) -> BoxFuture<'a, Result<DuePage>> {
        self.0.dues.fetch_add(1, Ordering::SeqCst);
        self.0.inner.due(lease, limit)
    }

    fn settle<'a>(&'a self, lease: &'a Lease, settlement: &'a Settlement) -> BoxFuture<'a, Result<()>> {
        self.0.inner.settle(lease, settlement)
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<()>> {
        self.0.inner.release(lease)
    }

    fn finish<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let finished = self.0.inner.finish(lease).await;
            if self.0.slow_to_finish.load(Ordering::SeqCst) {
                self.heartbeat().await;
            }
            finished
        })
    }

    fn purge(&self, retention: Retention) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            let purged = self.0.inner.purge(retention).await;
            if self.0.slow_to_purge.load(Ordering::SeqCst) {
                self.heartbeat().await;
            }
            purged
        })
    }

    fn hint(&self) -> BoxFuture<'_, ()> {
        match self.0.deaf.load(Ordering::SeqCst) {
            true => Box::pin(std::future::pending()),
            false => self.0.inner.hint(),
        }
    }
}
