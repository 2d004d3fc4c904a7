//! The network between a node and the store: every call takes time on both ways and can be late, lost before it was
//! applied, lost after it was applied, or given up for lost and applied all the same.

use std::sync::Arc;

use postrider_core::{
    BoxFuture, Result,
    capability::StoreCapabilities,
    lease::{LaneId, Lease, Node, NodeId, Roster, RouteSpec},
    log::{Cursor, Log, Page, PageLimit, Resumed, Retention, Settlement},
    parked::{DueLimit, DuePage},
};
use tokio::sync::oneshot;

use crate::{
    history::Sim,
    plants::StorePlant,
    store::{Store, unreachable},
    world::{Micros, WORLD, lock},
};

/// One node's connection to the store.
pub struct SimLog {
    /// Everything.
    pub sim: Arc<Sim>,
    /// How far this node's wall clock is off. Only a planted mistake looks at it.
    pub skew: Micros,
}

enum Fate {
    Answered,
    LostBefore,
    LostAfter,
    /// Answered with an error, and applied this much later.
    Late(Micros),
}

impl SimLog {
    fn call<T, F>(&self, what: String, apply: F) -> BoxFuture<'static, Result<T>>
    where
        T: Send + std::fmt::Debug + 'static,
        F: FnOnce(&mut Store) -> Result<T> + Send + 'static,
    {
        let sim = Arc::clone(&self.sim);
        let (there, back) = (sim.delay(), sim.delay());
        let fate = sim.fate();
        sim.trace(|| format!("call {what}"));
        let (sender, receiver) = oneshot::channel();
        let world = sim.world.clone();
        world.clone().spawn(WORLD, async move {
            world.sleep(there).await;
            match fate {
                Fate::LostBefore => {
                    world.sleep(back).await;
                    let _ = sender.send(Err(unreachable()));
                }
                Fate::Late(late) => {
                    let _ = sender.send(Err(unreachable()));
                    world.sleep(late).await;
                    let result = sim.write(apply);
                    sim.trace(|| format!("late {what} -> {result:?}"));
                }
                Fate::Answered | Fate::LostAfter => {
                    let result = sim.write(apply);
                    sim.trace(|| format!("{what} -> {result:?}"));
                    world.sleep(back).await;
                    let lost = matches!(fate, Fate::LostAfter);
                    let _ = sender.send(if lost { Err(unreachable()) } else { result });
                }
            }
        });
        Box::pin(async move { receiver.await.unwrap_or_else(|_| Err(unreachable())) })
    }

    /// What leases are counted by: the store's clock, unless a mistake is planted.
    fn clock(&self) -> impl Fn(&Store) -> Micros + Send + 'static {
        let skew = self.skew;
        move |store| if store.plant == StorePlant::NodeClock { store.now + skew } else { store.now }
    }
}

impl Sim {
    fn fate(&self) -> Fate {
        if !self.troubled() {
            return Fate::Answered;
        }
        let mut random = lock(&self.random);
        match random.below(1000) {
            0..15 => Fate::LostBefore,
            15..30 => Fate::LostAfter,
            30..36 => Fate::Late(random.below(1_500_000)),
            _ => Fate::Answered,
        }
    }

    /// Does something in the store and looks at what it did.
    pub fn write<T>(&self, apply: impl FnOnce(&mut Store) -> Result<T>) -> Result<T> {
        let mut store = lock(&self.store);
        store.now = self.clock();
        let result = apply(&mut store);
        lock(&self.tracker).settled(&store, &self.scenario);
        result
    }
}

impl Log for SimLog {
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            name: "simulated",
            durable: true,
            shared: true,
            concurrent_writers: true,
            savepoints: false,
        }
    }

    fn register<'a>(&'a self, node: &'a Node, routes: &'a [RouteSpec]) -> BoxFuture<'a, Result<()>> {
        let (node, routes) = (node.clone(), routes.to_vec());
        self.call(self.sim.describe(|| format!("register {:?}", node.id)), move |store| {
            store.register(&node, &routes);
            Ok(())
        })
    }

    fn heartbeat<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Result<Roster>> {
        let (node, clock) = (node.clone(), self.clock());
        self.call(self.sim.describe(|| format!("heartbeat {:?}", node.id)), move |store| {
            Ok(store.heartbeat(&node, clock(store)))
        })
    }

    fn retire(&self, node: NodeId) -> BoxFuture<'_, Result<()>> {
        self.call(self.sim.describe(|| format!("retire {node:?}")), move |store| {
            store.retire(node);
            Ok(())
        })
    }

    fn acquire<'a>(&'a self, lane: &'a LaneId, node: &'a Node) -> BoxFuture<'a, Result<Option<Lease>>> {
        let (lane, node, clock) = (lane.clone(), node.clone(), self.clock());
        self.call(self.sim.describe(|| format!("acquire {lane} {:?}", node.id)), move |store| {
            Ok(store.acquire(&lane, &node, clock(store)))
        })
    }

    fn resume<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Resumed>> {
        let lease = lease.clone();
        self.call(self.sim.describe(|| format!("resume {} {:?}", lease.lane, lease.epoch)), move |store| {
            store.resume(&lease)
        })
    }

    fn read<'a>(&'a self, lease: &'a Lease, after: &'a Cursor, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        let (lease, after) = (lease.clone(), after.clone());
        self.call(self.sim.describe(|| format!("read {} {:?}", lease.lane, lease.epoch)), move |store| {
            store.read(&lease, &after, limit)
        })
    }

    fn due<'a>(&'a self, lease: &'a Lease, limit: DueLimit) -> BoxFuture<'a, Result<DuePage>> {
        let lease = lease.clone();
        self.call(self.sim.describe(|| format!("due {} {:?}", lease.lane, lease.epoch)), move |store| {
            store.due(&lease, limit)
        })
    }

    fn settle<'a>(&'a self, lease: &'a Lease, settlement: &'a Settlement) -> BoxFuture<'a, Result<()>> {
        let (lease, settlement) = (lease.clone(), settlement.clone());
        self.call(
            self.sim.describe(|| format!("settle {} {:?} {settlement:?}", lease.lane, lease.epoch)),
            move |store| store.settle(&lease, &settlement),
        )
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<()>> {
        let lease = lease.clone();
        self.call(self.sim.describe(|| format!("release {} {:?}", lease.lane, lease.epoch)), move |store| {
            store.release(&lease)
        })
    }

    fn finish<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<bool>> {
        let lease = lease.clone();
        self.call(self.sim.describe(|| format!("finish {} {:?}", lease.lane, lease.epoch)), move |store| {
            store.finish(&lease)
        })
    }

    fn purge(&self, retention: Retention) -> BoxFuture<'_, Result<u64>> {
        let sim = Arc::clone(&self.sim);
        self.call(self.sim.describe(|| "purge".to_owned()), move |store| {
            let gone = store.purge(retention.keep);
            lock(&sim.tracker).purged(store, &gone);
            Ok(gone.len() as u64)
        })
    }

    fn hint(&self) -> BoxFuture<'_, ()> {
        let sim = Arc::clone(&self.sim);
        Box::pin(async move { sim.hints.notified().await })
    }
}
