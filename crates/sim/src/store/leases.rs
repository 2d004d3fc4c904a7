//! Nodes of the simulated store: what they ask for, what they own, and who is refused.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use postrider_core::{
    Error, Result,
    asked::Asked,
    envelope::MessageId,
    key::KeyHash,
    lease::{Epoch, LaneId, LaneStanding, Lease, Node, NodeId, NodeStanding, Reader, Roster, RouteSpec, RouteStanding},
};

use super::{LaneState, Place, RouteState, Store, TOPICS, micros};
use crate::{plants::StorePlant, world::Micros};

impl Store {
    /// `Log::register`.
    pub fn register(&mut self, node: &Node, specs: &[RouteSpec]) {
        self.nodes.insert(node.id, (node.routes.clone(), self.now + micros(node.lease_life)));
        let live = self.live();
        for asks in specs {
            let known = self.routes.get(&asks.name);
            let mut asked = known.map(|route| route.asked.clone()).unwrap_or_default();
            let has = known.map(|route| (&*route.reader, u32::try_from(route.lanes.len()).expect("few")));
            let mut spec = asked.hear(node.id, asks, has, &live);
            let wanted = spec.topics.clone();
            if self.plant == StorePlant::OwnTopicsOnly {
                spec = asks.clone();
            }
            let reader = Arc::new(Reader { topics: spec.topics.clone(), order: spec.order, replay: None });
            let fresh = |epoch, place| LaneState { epoch, owner: None, expires_at: 0, place, settled: (0, 0) };
            let route = self.routes.entry(Arc::clone(&spec.name)).or_insert_with(|| RouteState {
                reader: Arc::clone(&reader),
                asked: Asked::default(),
                promised: TOPICS.to_vec(),
                paused: false,
                lanes: Vec::new(),
                parked: BTreeMap::new(),
                by_id: HashMap::new(),
                until: None,
            });
            route.asked = asked;
            route.promised.retain(|topic| wanted.matches(topic));
            if *route.reader != *reader {
                route.reader = reader; // nobody may go on with the old filter
                for lane in &mut route.lanes {
                    (lane.epoch, lane.owner) = (lane.epoch + 1, None);
                }
            }
            if route.lanes.len() != spec.lanes as usize {
                let epoch = route.lanes.iter().map(|lane| lane.epoch).max().unwrap_or(0) + 1;
                let places = route.lanes.iter().map(|lane| lane.place);
                let begin = if self.plant == StorePlant::GreatestCursor {
                    places.max_by_key(|place| (place.base, place.target, place.after))
                } else {
                    least(places)
                };
                route.lanes = (0..spec.lanes).map(|_| fresh(epoch, begin.unwrap_or_default())).collect();
            }
        }
    }

    /// `Log::heartbeat`. `clock` is the store's own, unless a mistake is planted.
    pub fn heartbeat(&mut self, node: &Node, clock: Micros) -> Roster {
        let life = micros(node.lease_life);
        self.nodes.insert(node.id, (node.routes.clone(), self.now + life));
        let now = self.now;
        self.nodes.retain(|_, (_, until)| *until > now);
        let mut lanes = Vec::new();
        for (name, route) in &mut self.routes {
            let served_by =
                route.reader.replay.as_ref().map_or_else(|| Arc::clone(name), |replay| Arc::clone(&replay.of));
            for (number, lane) in (0..).zip(&mut route.lanes) {
                if lane.owner == Some(node.id) {
                    lane.expires_at = clock + life;
                }
                lanes.push(LaneStanding {
                    lane: LaneId { route: Arc::clone(name), number },
                    served_by: Arc::clone(&served_by),
                    owner: lane.owner.filter(|_| lane.expires_at > clock),
                    epoch: Epoch(lane.epoch),
                    paused: route.paused,
                });
            }
        }
        let paused: BTreeSet<_> =
            self.routes.iter().filter(|(_, r)| r.paused).map(|(name, _)| Arc::clone(name)).collect();
        for lane in &mut lanes {
            lane.paused |= paused.contains(&lane.served_by);
        }
        let routes = self.routes.iter().filter(|(_, route)| route.reader.replay.is_none());
        let routes =
            routes.map(|(name, route)| RouteStanding { route: Arc::clone(name), topics: route.reader.topics.clone() });
        Roster { nodes: self.live(), routes: routes.collect(), lanes, leave: false }
    }

    /// The nodes that count as alive.
    fn live(&self) -> Vec<NodeStanding> {
        let live = self.nodes.iter().filter(|(_, (_, until))| *until > self.now);
        live.map(|(id, (routes, _))| NodeStanding { id: *id, routes: routes.clone() }).collect()
    }

    /// `Log::acquire`.
    pub fn acquire(&mut self, id: &LaneId, node: &Node, clock: Micros) -> Option<Lease> {
        let now = self.now;
        let route = self.routes.get_mut(&id.route)?;
        let lanes = u32::try_from(route.lanes.len()).ok()?;
        let reader = Arc::clone(&route.reader);
        let lane = route.lanes.get_mut(id.number as usize)?;
        if lane.owner.is_some_and(|owner| owner != node.id) && lane.expires_at > clock {
            return None;
        }
        self.takeovers += u64::from(lane.owner.is_some());
        lane.epoch = (lane.epoch + 1).max(now);
        lane.owner = Some(node.id);
        lane.expires_at = clock + micros(node.lease_life);
        Some(Lease { lane: id.clone(), lanes, epoch: Epoch(lane.epoch), reader })
    }

    /// Whether that node owns a lane of this route now, for the checks.
    #[must_use]
    pub fn owns(&self, node: NodeId, route: &str, key: Option<KeyHash>, id: MessageId) -> bool {
        let Some(route) = self.routes.get(route) else { return false };
        let lanes = u32::try_from(route.lanes.len()).unwrap_or(1);
        let spread = key.unwrap_or_else(|| KeyHash::of(id.0.as_bytes()));
        let lane = &route.lanes[spread.lane(lanes) as usize];
        lane.owner == Some(node) && lane.expires_at > self.now
    }

    /// `Log::retire`.
    pub fn retire(&mut self, node: NodeId) {
        self.nodes.remove(&node);
        for lane in self.routes.values_mut().flat_map(|route| &mut route.lanes) {
            if lane.owner == Some(node) {
                lane.owner = None;
            }
        }
    }

    /// `Log::release`.
    pub fn release(&mut self, lease: &Lease) -> Result<()> {
        self.fence(lease)?;
        self.lane_mut(lease)?.owner = None;
        Ok(())
    }

    pub(super) fn fence(&mut self, lease: &Lease) -> Result<()> {
        let current = self.lane_mut(lease)?.epoch;
        if current != lease.epoch.0 && self.plant != StorePlant::NoEpochCheck {
            self.stale_writes += 1;
            return Err(Error::fenced());
        }
        Ok(())
    }

    pub(super) fn lane_mut(&mut self, lease: &Lease) -> Result<&mut LaneState> {
        let route = self.routes.get_mut(&lease.lane.route);
        route.and_then(|route| route.lanes.get_mut(lease.lane.number as usize)).ok_or_else(Error::fenced)
    }
}

/// The place that has passed only what all of them have passed.
fn least(places: impl Iterator<Item = Place> + Clone) -> Option<Place> {
    let base = places.clone().map(|place| place.base).min()?;
    // A page under way is given up: its target may be no other lane's.
    let low = places.map(|place| place.low).min()?;
    Some(Place { base, target: 0, after: 0, low })
}
