//! Nodes, routes and who may act on which lane.

use std::sync::Arc;

use postrider_core::{
    lease::{LaneId, LaneStanding, Lease, Node, NodeId, NodeStanding, Reader, Roster, RouteSpec, RouteStanding, Start},
    time::Timestamp,
};

use crate::{
    records::cursor,
    state::{KnownNode, Lane, Route, State},
};

impl State {
    pub(crate) fn register(&mut self, node: &Node, routes: &[RouteSpec], now: Timestamp) {
        self.see(node, now);
        let live = self.live_nodes(now);
        for spec in routes {
            let known = self.routes.get(&spec.name);
            let mut asked = known.map(|route| route.asked.clone()).unwrap_or_default();
            let has = known.map(|route| (&*route.reader, route.lane_count()));
            let wanted = asked.hear(node.id, spec, has, &live);
            if let Some(route) = known {
                let cursors: Vec<_> = route.lanes.iter().map(|lane| cursor(lane.cursor)).collect();
                asked.note_topics(&route.reader, &wanted, &cursors, now);
            }
            self.register_route(&wanted);
            self.routes.get_mut(&spec.name).expect("it was just registered").asked = asked;
        }
    }

    fn register_route(&mut self, spec: &RouteSpec) {
        let reader = Reader { topics: spec.topics.clone(), order: spec.order, replay: None };
        let wanted = spec.lanes.max(1);
        let begin = match spec.start {
            Start::Oldest => self.records.before_oldest(),
            Start::Now => self.records.last(),
        };
        let known = self.routes.get(&spec.name);
        if known.is_some_and(|route| route.lane_count() == wanted && *route.reader == reader) {
            return;
        }
        let cursors = known.map_or_else(|| vec![begin; wanted as usize], |route| route.cursors_for(wanted));
        // One fresh epoch for all lanes fences every owner of the old ones, also when only the filter is new: an owner that
        // went on with the old one would pass over what the new one asks for.
        let epoch = self.next_epoch();
        let route = self.routes.entry(Arc::clone(&spec.name)).or_insert_with(|| Route::new(reader.clone(), None));
        route.reader = Arc::new(reader);
        route.lanes = cursors.into_iter().map(|cursor| Lane::new(cursor, epoch)).collect();
    }

    pub(crate) fn heartbeat(&mut self, node: &Node, now: Timestamp) -> Roster {
        self.see(node, now);
        let until = now.saturating_add(node.lease_life);
        for lane in self.routes.values_mut().flat_map(|route| &mut route.lanes) {
            if let Some((owner, expires_at)) = &mut lane.owner
                && *owner == node.id
            {
                *expires_at = until;
            }
        }
        let leave = self.nodes.get(&node.id).is_some_and(|known| known.leaving);
        Roster { leave, ..self.roster(now) }
    }

    pub(crate) fn retire(&mut self, node: NodeId) {
        self.nodes.remove(&node);
        for lane in self.routes.values_mut().flat_map(|route| &mut route.lanes) {
            if lane.owner.is_some_and(|(owner, _)| owner == node) {
                lane.owner = None;
            }
        }
    }

    /// A node that asks for a lane which it owns already gets it under a new epoch: the answer to its first request was
    /// lost, and since its heartbeats extend the lease nobody else could ever take the lane.
    pub(crate) fn acquire(&mut self, id: &LaneId, node: &Node, now: Timestamp) -> Option<Lease> {
        let free = self.lane_mut(id)?.owner(now).is_none_or(|owner| owner == node.id);
        if !free {
            return None;
        }
        let epoch = self.next_epoch();
        let lane = self.lane_mut(id)?;
        lane.epoch = epoch;
        lane.settled = 0;
        lane.owner = Some((node.id, now.saturating_add(node.lease_life)));
        let route = self.routes.get(&id.route)?;
        Some(Lease { lane: id.clone(), lanes: route.lane_count(), epoch, reader: Arc::clone(&route.reader) })
    }

    /// The live nodes.
    pub(crate) fn live(&self, now: Timestamp) -> impl Iterator<Item = (&NodeId, &KnownNode)> {
        self.nodes.iter().filter(move |(_, node)| now < node.seen_at.saturating_add(node.lease_life))
    }

    fn live_nodes(&self, now: Timestamp) -> Vec<NodeStanding> {
        self.live(now).map(|(id, node)| NodeStanding { id: *id, routes: node.routes.clone() }).collect()
    }

    /// A replay waits while its route is paused: both publish to the same destination.
    pub(crate) fn is_paused(&self, route: &Route) -> bool {
        let of = route.reader.replay.as_ref().and_then(|replay| self.routes.get(&replay.of));
        route.paused.is_some() || of.is_some_and(|of| of.paused.is_some())
    }

    fn see(&mut self, node: &Node, now: Timestamp) {
        let Node { name, routes, lease_life, standstills, id } = node.clone();
        let leaving = self.nodes.get(&id).is_some_and(|known| known.leaving);
        self.nodes.insert(id, KnownNode { name, routes, lease_life, standstills, seen_at: now, leaving });
    }

    fn roster(&self, now: Timestamp) -> Roster {
        let routes = self.routes.iter().filter(|(_, route)| route.reader.replay.is_none());
        let routes =
            routes.map(|(name, route)| RouteStanding { route: Arc::clone(name), topics: route.reader.topics.clone() });
        let lanes = self.lanes().map(|(name, route, number, lane)| LaneStanding {
            lane: LaneId { route: Arc::clone(name), number },
            served_by: Arc::clone(route.reader.replay.as_ref().map_or(name, |replay| &replay.of)),
            owner: lane.owner(now),
            epoch: lane.epoch,
            paused: self.is_paused(route),
        });
        Roster { nodes: self.live_nodes(now), routes: routes.collect(), lanes: lanes.collect(), leave: false }
    }
}
