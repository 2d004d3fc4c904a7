//! The relay's side: each call crosses to one of the store's threads and is one transaction there.

use postrider_core::{
    BoxFuture, Result,
    capability::StoreCapabilities,
    lease::{LaneId, Lease, Node, NodeId, Roster, RouteSpec},
    log::{Cursor, Log, Page, PageLimit, Resumed, Retention, Settlement},
    parked::{DueLimit, DuePage},
};

use crate::{SqliteStore, cursor, due, lease, purge, read, settle};

impl Log for SqliteStore {
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            name: "sqlite",
            durable: true,
            shared: true,
            // There is one writer at a time.
            concurrent_writers: false,
            savepoints: true,
        }
    }

    fn register<'a>(&'a self, node: &'a Node, routes: &'a [RouteSpec]) -> BoxFuture<'a, Result<()>> {
        let (node, routes) = (node.clone(), routes.to_vec());
        Box::pin(self.keeper.run("register", move |db| db.write(|db, now| lease::register(db, &node, &routes, now))))
    }

    fn heartbeat<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Result<Roster>> {
        let (node, identity) = (node.clone(), self.identity.clone());
        Box::pin(self.keeper.run("heartbeat", move |db| {
            identity.check()?;
            db.write(|db, now| lease::heartbeat(db, &node, now))
        }))
    }

    fn retire(&self, node: NodeId) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.keeper.run("retire", move |db| db.write(|db, _| lease::retire(db, node))))
    }

    fn acquire<'a>(&'a self, lane: &'a LaneId, node: &'a Node) -> BoxFuture<'a, Result<Option<Lease>>> {
        let (lane, node) = (lane.clone(), node.clone());
        Box::pin(self.keeper.run("acquire", move |db| db.write(|db, now| lease::acquire(db, &lane, &node, now))))
    }

    fn resume<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Resumed>> {
        let lease = lease.clone();
        Box::pin(self.reader.run("resume", move |db| {
            db.look(|db, _| {
                let cursor = cursor::encode(settle::passed(db, &lease)?);
                Ok(Resumed { cursor, blocked: due::blocked(db, &lease)? })
            })
        }))
    }

    fn read<'a>(&'a self, lease: &'a Lease, after: &'a Cursor, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        let (lease, after) = (lease.clone(), cursor::decode(after));
        Box::pin(self.reader.run("read", move |db| read::read(db, &lease, after?, limit)))
    }

    fn due<'a>(&'a self, lease: &'a Lease, limit: DueLimit) -> BoxFuture<'a, Result<DuePage>> {
        let lease = lease.clone();
        Box::pin(self.reader.run("due", move |db| db.look(|db, now| due::due(db, &lease, limit, now))))
    }

    fn settle<'a>(&'a self, lease: &'a Lease, settlement: &'a Settlement) -> BoxFuture<'a, Result<()>> {
        let (lease, settlement) = (lease.clone(), settlement.clone());
        Box::pin(self.writer.run("settle", move |db| db.write(|db, now| settle::settle(db, &lease, &settlement, now))))
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<()>> {
        let lease = lease.clone();
        Box::pin(self.keeper.run("release", move |db| db.write(|db, _| lease::release(db, &lease))))
    }

    fn finish<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<bool>> {
        let lease = lease.clone();
        Box::pin(self.writer.run("finish", move |db| db.write(|db, _| settle::finish(db, &lease))))
    }

    fn purge(&self, retention: Retention) -> BoxFuture<'_, Result<u64>> {
        Box::pin(self.writer.run("purge", move |db| db.write(|db, now| purge::purge(db, retention, now))))
    }

    /// A commit that happens after this call, though before the future is first polled, wakes it too.
    fn hint(&self) -> BoxFuture<'_, ()> {
        let mut changes = self.waker.listen();
        if self.waker.begin_watch() {
            self.writer.nudge();
        }
        Box::pin(async move {
            // The sender lives as long as the store; if it went, waiting on would be as right as returning.
            let _ = changes.changed().await;
        })
    }
}
