//! The relay's side. What is called all the time (read, due, settle) is one command or two in the usual case; the rest is a
//! transaction, which the server ends when two meet, and which is then run again after a random while.

use std::time::Duration;

use postrider_core::{
    BoxFuture, Result,
    capability::StoreCapabilities,
    lease::{LaneId, Lease, Node, NodeId, Roster, RouteSpec},
    log::{Cursor, Log, Page, PageLimit, Resumed, Retention, Settlement},
    parked::{DueLimit, DuePage},
};

use crate::{
    MongoStore, clock,
    cursor::Position,
    due,
    error::Fault,
    lease::{self, Beginning},
    purge, read, settle, wake,
};

/// How often a transaction is run again that the server has ended because two have met.
pub(crate) const REPEATS_MAX: u32 = 60;

/// A random while, longer with each attempt: whoever meets another must not meet it again.
pub(crate) fn pause(attempt: u32) -> Duration {
    let most = (2_000_u64 << attempt.min(6)).min(100_000);
    // The low bits of a fresh id are random.
    let random = u64::try_from(uuid::Uuid::now_v7().as_u128() & u128::from(u32::MAX)).unwrap_or(0);
    Duration::from_micros(random % most)
}

/// Runs a piece of work in a transaction and commits it; or rolls back if it fails. Once begun it runs to its end, whether or
/// not somebody still waits.
macro_rules! transact {
    ($store:ident, |$db:ident| $work:expr) => {{
        let mut repeats = 0;
        loop {
            let mut $db = $store.begin().await?;
            let outcome = match $work.await {
                Ok(outcome) => $db.commit().await.map(|()| outcome),
                Err(fault) => {
                    $db.roll_back().await;
                    Err(fault)
                }
            };
            match outcome {
                Err(fault) if Fault::is_conflict(&fault) && repeats < crate::log::REPEATS_MAX => {
                    tokio::time::sleep(crate::log::pause(repeats)).await;
                    repeats += 1;
                }
                outcome => break outcome,
            }
        }
    }};
}
pub(crate) use transact;

impl Log for MongoStore {
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities { name: "mongodb", durable: true, shared: true, concurrent_writers: true, savepoints: false }
    }

    fn register<'a>(&'a self, node: &'a Node, routes: &'a [RouteSpec]) -> BoxFuture<'a, Result<()>> {
        let (store, node, routes) = (self.clone(), node.clone(), routes.to_vec());
        self.run("register", async move {
            let beginning = Beginning::of(&mut store.alone().await?, store.overlap_ticks()).await?;
            transact!(store, |db| lease::register(&mut db, &node, &routes, &beginning))
        })
    }

    fn heartbeat<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Result<Roster>> {
        let (store, node) = (self.clone(), node.clone());
        self.run("heartbeat", async move {
            let mut db = store.alone().await?;
            let now = lease::heartbeat(&mut db, &node).await?;
            let (roster, upkeep) = lease::roster(&mut store.look().await?, node.id, now).await?;
            if upkeep.ahead {
                clock::catch_up(&mut db).await?;
            }
            if upkeep.dead {
                lease::forget_dead(&mut db).await?;
            }
            Ok(roster)
        })
    }

    fn retire(&self, node: NodeId) -> BoxFuture<'_, Result<()>> {
        let store = self.clone();
        self.run("retire", async move { transact!(store, |db| lease::retire(&mut db, node)) })
    }

    fn acquire<'a>(&'a self, lane: &'a LaneId, node: &'a Node) -> BoxFuture<'a, Result<Option<Lease>>> {
        let (store, lane, node) = (self.clone(), lane.clone(), node.clone());
        self.run("acquire", async move { lease::acquire(&mut store.alone().await?, &lane, &node).await })
    }

    fn resume<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Resumed>> {
        let (store, lease) = (self.clone(), lease.clone());
        self.run("resume", async move { settle::resume(&mut store.look().await?, &lease).await })
    }

    fn read<'a>(&'a self, lease: &'a Lease, after: &'a Cursor, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        let (store, lease, after) = (self.clone(), lease.clone(), Position::decode(&after.0));
        self.run("read", async move { read::read(&store, &lease, after?, limit).await })
    }

    fn due<'a>(&'a self, lease: &'a Lease, limit: DueLimit) -> BoxFuture<'a, Result<DuePage>> {
        let (store, lease) = (self.clone(), lease.clone());
        self.run("due", async move {
            match due::nothing(&mut store.alone().await?, &lease).await? {
                Some(nothing) => Ok(nothing),
                None => due::due(&mut store.look().await?, &lease, limit).await,
            }
        })
    }

    fn settle<'a>(&'a self, lease: &'a Lease, settlement: &'a Settlement) -> BoxFuture<'a, Result<()>> {
        let (store, lease, settlement) = (self.clone(), lease.clone(), settlement.clone());
        self.run("settle", async move {
            let plant = store.0.plant;
            if settle::touches_rows(&settlement) {
                transact!(store, |db| settle::settle(&mut db, &lease, &settlement, plant))
            } else {
                settle::settle(&mut store.alone().await?, &lease, &settlement, plant).await
            }
        })
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<()>> {
        let (store, lease) = (self.clone(), lease.clone());
        self.run("release", async move { lease::release(&mut store.alone().await?, &lease).await })
    }

    fn finish<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<bool>> {
        let (store, lease) = (self.clone(), lease.clone());
        self.run("finish", async move { transact!(store, |db| settle::finish(&mut db, &lease)) })
    }

    fn purge(&self, retention: Retention) -> BoxFuture<'_, Result<u64>> {
        let store = self.clone();
        self.run("purge", async move {
            let mut aside = store.alone().await?;
            let overlap = store.overlap_ticks();
            transact!(store, |db| purge::purge(&mut db, &mut aside, retention, overlap))
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_bounded_and_differs() {
        let pauses: std::collections::HashSet<Duration> = (0..64).map(pause).collect();
        assert!(pauses.len() > 8 && pauses.iter().all(|pause| *pause < Duration::from_millis(100)), "{pauses:?}");
    }
}
