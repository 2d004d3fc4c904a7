//! The relay's side: the contract, each call one transaction under the lock.

use postrider_core::{
    BoxFuture, Result,
    capability::StoreCapabilities,
    lease::{LaneId, Lease, Node, NodeId, Roster, RouteSpec},
    log::{Cursor, Log, Page, PageLimit, Resumed, Retention, Settlement},
    parked::{DueLimit, DuePage},
    time::Timestamp,
};

use crate::{
    MemoryStore,
    records::{Selection, cursor, position},
    state::State,
};

/// How many records one purge removes at most, so that nobody waits long for the lock.
const PURGE_MAX: u64 = 10_000;

impl Log for MemoryStore {
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities { name: "memory", durable: false, shared: false, concurrent_writers: true, savepoints: true }
    }

    fn register<'a>(&'a self, node: &'a Node, routes: &'a [RouteSpec]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            routes.iter().try_for_each(RouteSpec::check)?;
            self.transact(|state, now| state.register(node, routes, now));
            self.ring();
            Ok(())
        })
    }

    fn heartbeat<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Result<Roster>> {
        Box::pin(async move { Ok(self.transact(|state, now| state.heartbeat(node, now))) })
    }

    fn retire(&self, node: NodeId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.transact(|state, _| state.retire(node));
            self.ring();
            Ok(())
        })
    }

    fn acquire<'a>(&'a self, lane: &'a LaneId, node: &'a Node) -> BoxFuture<'a, Result<Option<Lease>>> {
        Box::pin(async move { Ok(self.transact(|state, now| state.acquire(lane, node, now))) })
    }

    fn resume<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Resumed>> {
        Box::pin(async move { self.transact(|state, _| state.resume(lease)) })
    }

    fn read<'a>(&'a self, lease: &'a Lease, after: &'a Cursor, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        Box::pin(async move { self.transact(|state, now| state.read(lease, after, limit, now)) })
    }

    fn due<'a>(&'a self, lease: &'a Lease, limit: DueLimit) -> BoxFuture<'a, Result<DuePage>> {
        Box::pin(async move {
            self.transact(|state, now| {
                let route = state.fenced(lease)?;
                Ok(route.parked.due(lease.lane.number, lease.lanes, limit, now))
            })
        })
    }

    fn settle<'a>(&'a self, lease: &'a Lease, settlement: &'a Settlement) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.transact(|state, now| state.settle(lease, settlement, now)) })
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.transact(|state, _| {
                state.fenced(lease)?.lanes[lease.lane.number as usize].owner = None;
                Ok(())
            })?;
            self.ring();
            Ok(())
        })
    }

    fn finish<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move { self.transact(|state, _| state.finish(lease)) })
    }

    fn purge(&self, retention: Retention) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move { Ok(self.transact(|state, now| state.purge(retention, now))) })
    }

    /// A commit that happens after this call, though before the future is first polled, wakes it too.
    fn hint(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.bell.notified())
    }
}

impl State {
    fn resume(&mut self, lease: &Lease) -> Result<Resumed> {
        let route = self.fenced(lease)?;
        let lane = &route.lanes[lease.lane.number as usize];
        Ok(Resumed { cursor: cursor(lane.cursor), blocked: route.parked.blocked(lease.lane.number, lease.lanes) })
    }

    fn read(&mut self, lease: &Lease, after: &Cursor, limit: PageLimit, now: Timestamp) -> Result<Page> {
        let after = position(after)?;
        let lane = Some((lease.lane.number, lease.lanes));
        if lease.reader.replay.is_none() {
            let selection = Selection { reader: &lease.reader, lane, end: None };
            return Ok(self.records.read(&selection, after, limit, now, None));
        }
        // Where a replay ends stands with its lanes; one that was cancelled has none.
        let end = self.fenced(lease)?.end;
        let selection = Selection { reader: &lease.reader, lane, end };
        Ok(self.records.read(&selection, after, limit, now, Some(&lease.lane.route)))
    }

    fn settle(&mut self, lease: &Lease, settlement: &Settlement, now: Timestamp) -> Result<()> {
        let Settlement { number, advance, remove, park, change } = settlement;
        let advance = advance.as_ref().map(position).transpose()?;
        let route = self.fenced(lease)?;
        let lane = &mut route.lanes[lease.lane.number as usize];
        if *number <= lane.settled {
            return Ok(());
        }
        for ordinal in remove {
            route.parked.remove(*ordinal);
        }
        for (record, parked) in park {
            route.parked.park(record, parked, now);
        }
        for (ordinal, parked) in change {
            route.parked.change(*ordinal, parked, now);
        }
        lane.cursor = advance.unwrap_or(lane.cursor);
        lane.settled = *number;
        Ok(())
    }

    fn finish(&mut self, lease: &Lease) -> Result<bool> {
        let route = self.fenced(lease)?;
        let over = route.end.is_some() && !route.parked.any_waiting(lease.lane.number, lease.lanes);
        if over {
            let lane = &mut route.lanes[lease.lane.number as usize];
            (lane.over, lane.owner) = (true, None);
            self.drop_empty_replay(&lease.lane.route);
        }
        Ok(over)
    }

    /// A replay that has ended stays known only as long as it has dead rows, for the operator.
    pub(crate) fn drop_empty_replay(&mut self, name: &str) {
        let done = self.routes.get(name).is_some_and(|route| {
            route.end.is_some() && route.lanes.iter().all(|lane| lane.over) && route.parked.iter().next().is_none()
        });
        if done {
            self.routes.remove(name);
        }
    }

    fn purge(&mut self, retention: Retention, now: Timestamp) -> u64 {
        let least = self.lanes().map(|(_, _, _, lane)| lane.cursor).min();
        least.map_or(0, |floor| self.records.purge(floor, retention, now, PURGE_MAX))
    }
}
