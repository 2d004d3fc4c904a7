//! The relay's side. What is called all the time (read, due, settle) is one command or two in the usual case; the rest is a
//! transaction, which the server ends when two meet, and which is then run again after a random while.

use std::time::{Duration, Instant};

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

/// For how long a transaction is run again that the server has ended because two have met.
pub(crate) const REPEATED_FOR: Duration = Duration::from_secs(5);

/// The same for the takeover of a lane. Whoever beats for others must not wait for a transaction whose process has died.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);

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
    ($store:ident, |$db:ident| $work:expr) => {
        transact!($store, crate::log::REPEATED_FOR, |$db| $work)
    };
    ($store:ident, $repeated_for:expr, |$db:ident| $work:expr) => {{
        let (mut repeats, began) = (0, std::time::Instant::now());
        // Ends with an outcome, or when it has been repeated for long enough.
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
                Err(fault) if Fault::is_conflict(&fault) && began.elapsed() < $repeated_for => {
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
            let mut db = store.alone().await?;
            let beginning = Beginning::of(&mut db, store.overlap_ticks()).await?;
            let asked_at = Instant::now();
            let now = transact!(store, |db| lease::register(&mut db, &node, &routes, &beginning))?;
            store.0.shared.pace.note(asked_at, now);
            if clock::rows_are_ahead(&mut db).await? {
                clock::catch_up(&mut db).await?;
            }
            Ok(())
        })
    }

    fn heartbeat<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Result<Roster>> {
        let (store, node) = (self.clone(), node.clone());
        self.run("heartbeat", async move {
            let mut db = store.alone().await?.within(lease::beat_patience(&node));
            let asked_at = Instant::now();
            let now = lease::heartbeat(&mut db, &node).await?;
            store.0.shared.pace.note(asked_at, now);
            let (roster, upkeep) = lease::roster(&mut store.look().await?, node.id, now).await?;
            if upkeep.ahead {
                clock::catch_up(&mut db).await?;
            }
            // By a clock that has leapt, those who live may look dead.
            if upkeep.dead && !store.0.shared.pace.has_leapt_within(node.lease_life) {
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
        self.run("acquire", async move {
            let mut db = store.alone().await?.within(lease::PATIENCE);
            let Some(epoch) = lease::claim(&mut db, &lane, &node, &store.0.shared.pace).await? else { return Ok(None) };
            let taken = transact!(store, TAKEN_WITHIN, |db| lease::take(&mut db, &lane, &node, epoch));
            match taken {
                Ok(true) => lease::given(&mut db, &lane, epoch).await,
                Ok(false) => Ok(None),
                Err(fault) if fault.is_conflict() => Err(lease::is_held(&lane).into()),
                Err(fault) => Err(fault),
            }
        })
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
        self.run("release", async move {
            let mut db = store.alone().await?.within(lease::PATIENCE);
            lease::release(&mut db, &lease).await
        })
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
        let mut changes = self.0.shared.waker.listen();
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
