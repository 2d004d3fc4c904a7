//! The relay's side: each call is one transaction, except reading, which needs none. What is called all the time (due,
//! settle) is one statement in the usual case.

use postrider_core::{
    BoxFuture, Result,
    capability::StoreCapabilities,
    lease::{LaneId, Lease, Node, NodeId, Roster, RouteSpec, Start},
    log::{Cursor, Log, Page, PageLimit, Resumed, Retention, Settlement},
    parked::{DueLimit, DuePage},
};

use crate::{MysqlStore, cursor, due, error::Fault, lease, order, purge, read, settle, wake};

/// How often a transaction is repeated that the server has rolled back because two waited for each other.
pub(crate) const REPEATS_MAX: u32 = 8;

/// Runs a piece of work in a transaction and commits it; or rolls back if it fails. Once begun it runs to its end, whether or
/// not somebody still waits.
macro_rules! transact {
    ($store:ident, $begin:ident, |$db:ident| $work:expr) => {{
        let mut repeats = 0;
        loop {
            let mut $db = $store.$begin().await?;
            let outcome = match $work.await {
                Ok(outcome) => $db.commit().await.map(|()| outcome),
                Err(fault) => {
                    $db.roll_back().await;
                    Err(fault)
                }
            };
            match outcome {
                Err(fault) if Fault::is_deadlock(&fault) && repeats < crate::log::REPEATS_MAX => repeats += 1,
                outcome => break outcome,
            }
        }
    }};
}
pub(crate) use transact;

impl Log for MysqlStore {
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities { name: "mysql", durable: true, shared: true, concurrent_writers: true, savepoints: true }
    }

    fn register<'a>(&'a self, node: &'a Node, routes: &'a [RouteSpec]) -> BoxFuture<'a, Result<()>> {
        let (store, node, routes) = (self.clone(), node.clone(), routes.to_vec());
        self.run("register", async move {
            if routes.iter().any(|spec| spec.start == Start::Now) {
                order::order_all(&store, usize::MAX).await?;
            }
            transact!(store, begin, |db| lease::register(&mut db, &node, &routes))
        })
    }

    fn heartbeat<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Result<Roster>> {
        let (store, node) = (self.clone(), node.clone());
        self.run("heartbeat", async move { transact!(store, begin, |db| lease::heartbeat(&mut db, &node)) })
    }

    fn retire(&self, node: NodeId) -> BoxFuture<'_, Result<()>> {
        let store = self.clone();
        self.run("retire", async move { transact!(store, begin, |db| lease::retire(&mut db, node)) })
    }

    fn acquire<'a>(&'a self, lane: &'a LaneId, node: &'a Node) -> BoxFuture<'a, Result<Option<Lease>>> {
        let (store, lane, node) = (self.clone(), lane.clone(), node.clone());
        self.run("acquire", async move { transact!(store, begin, |db| lease::acquire(&mut db, &lane, &node)) })
    }

    fn resume<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Resumed>> {
        let (store, lease) = (self.clone(), lease.clone());
        self.run("resume", async move { transact!(store, look, |db| settle::resume(&mut db, &lease)) })
    }

    fn read<'a>(&'a self, lease: &'a Lease, after: &'a Cursor, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        let (store, lease, after) = (self.clone(), lease.clone(), cursor::decode(after));
        self.run("read", async move { read::read(&store, &lease, after?, limit).await })
    }

    fn due<'a>(&'a self, lease: &'a Lease, limit: DueLimit) -> BoxFuture<'a, Result<DuePage>> {
        let (store, lease) = (self.clone(), lease.clone());
        self.run("due", async move {
            let nothing = due::nothing(&mut store.alone().await?, &lease).await?;
            match nothing {
                Some(nothing) => Ok(nothing),
                None => transact!(store, look, |db| due::due(&mut db, &lease, limit)),
            }
        })
    }

    fn settle<'a>(&'a self, lease: &'a Lease, settlement: &'a Settlement) -> BoxFuture<'a, Result<()>> {
        let (store, lease, settlement) = (self.clone(), lease.clone(), settlement.clone());
        self.run("settle", async move {
            if settle::touches_rows(&settlement) {
                transact!(store, begin, |db| settle::settle(&mut db, &lease, &settlement))
            } else {
                settle::settle(&mut store.alone().await?, &lease, &settlement).await
            }
        })
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<()>> {
        let (store, lease) = (self.clone(), lease.clone());
        self.run("release", async move { lease::release(&mut store.alone().await?, &lease).await })
    }

    fn finish<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<bool>> {
        let (store, lease) = (self.clone(), lease.clone());
        self.run("finish", async move { transact!(store, begin, |db| settle::finish(&mut db, &lease)) })
    }

    fn purge(&self, retention: Retention) -> BoxFuture<'_, Result<u64>> {
        let store = self.clone();
        self.run("purge", async move { transact!(store, begin, |db| purge::purge(&mut db, retention)) })
    }

    /// A commit that happens after this call, though before the future is first polled, wakes it too.
    fn hint(&self) -> BoxFuture<'_, ()> {
        let mut changes = self.0.waker.listen();
        wake::watch(self);
        Box::pin(async move {
            // The sender lives as long as the store; if it went, waiting on would be as right as returning.
            let _ = changes.changed().await;
        })
    }
}
