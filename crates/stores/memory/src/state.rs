//! Everything the store knows, and the look-ups that its sides share.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use postrider_core::{
    Error, ErrorKind, Result,
    admin::{Actor, AuditEntry},
    asked::Asked,
    lease::{Epoch, LaneId, Lease, NodeId, Reader},
    standstill::Standstill,
    time::Timestamp,
};

use crate::{parked::ParkedRows, records::Records};

/// The whole store.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) records: Records,
    /// Routes and replays, by name.
    pub(crate) routes: BTreeMap<Arc<str>, Route>,
    pub(crate) nodes: BTreeMap<NodeId, KnownNode>,
    pub(crate) audit: Vec<AuditEntry>,
    pub(crate) replays_begun: u64,
    last_epoch: u64,
}

/// A route, or a replay: both read the log and park rows.
pub(crate) struct Route {
    pub(crate) reader: Arc<Reader>,
    /// What the nodes that serve it have asked for.
    pub(crate) asked: Asked,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) paused: Option<Actor>,
    /// For a replay: the position of its last record.
    pub(crate) end: Option<u64>,
    pub(crate) parked: ParkedRows,
}

/// One lane: its cursor, and who may move it.
pub(crate) struct Lane {
    pub(crate) cursor: u64,
    pub(crate) epoch: Epoch,
    pub(crate) owner: Option<(NodeId, Timestamp)>,
    /// Number of the last settlement in this epoch.
    pub(crate) settled: u64,
    /// Whether a replay has ended here. Such a lane is not shown and holds nothing up.
    pub(crate) over: bool,
}

/// A node as it last spoke of itself.
pub(crate) struct KnownNode {
    pub(crate) name: String,
    pub(crate) routes: Vec<Arc<str>>,
    pub(crate) lease_life: Duration,
    pub(crate) standstills: Vec<Standstill>,
    pub(crate) seen_at: Timestamp,
    /// Whether an operator has asked it to leave.
    pub(crate) leaving: bool,
}

impl State {
    /// An epoch that no lane has ever had. One count for the whole store, so that not even a route that is forgotten and
    /// made known again, or a number of lanes that shrinks and grows, gives an epoch out twice.
    pub(crate) fn next_epoch(&mut self) -> Epoch {
        self.last_epoch += 1;
        Epoch(self.last_epoch)
    }

    /// Every lane that still has work: all of them but those where a replay has ended.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = (&Arc<str>, &Route, u32, &Lane)> {
        self.routes.iter().flat_map(|(name, route)| {
            route.lanes().filter(|(_, lane)| !lane.over).map(move |(number, lane)| (name, route, number, lane))
        })
    }

    pub(crate) fn lane_mut(&mut self, id: &LaneId) -> Option<&mut Lane> {
        self.routes.get_mut(&id.route)?.lanes.get_mut(id.number as usize).filter(|lane| !lane.over)
    }

    /// The route of a lease, if the lease still counts.
    pub(crate) fn fenced(&mut self, lease: &Lease) -> Result<&mut Route> {
        let current = self.lane_mut(&lease.lane).is_some_and(|lane| lane.epoch == lease.epoch);
        if !current {
            return Err(Error::fenced().with("lane", &lease.lane).with("epoch", lease.epoch.0));
        }
        Ok(self.routes.get_mut(&lease.lane.route).expect("its lane was just found"))
    }

    pub(crate) fn route_mut(&mut self, name: &str) -> Result<&mut Route> {
        self.routes.get_mut(name).ok_or_else(|| unknown("route", name))
    }
}

impl Route {
    pub(crate) fn new(reader: Reader, end: Option<u64>) -> Self {
        let (asked, parked) = (Asked::default(), ParkedRows::default());
        Self { reader: Arc::new(reader), asked, lanes: Vec::new(), paused: None, end, parked }
    }

    /// Lanes with their numbers.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = (u32, &Lane)> {
        (0..).zip(&self.lanes)
    }

    pub(crate) fn lane_count(&self) -> u32 {
        u32::try_from(self.lanes.len()).expect("made from a u32")
    }

    /// Where so many lanes begin that take the place of these: as many stay where they are, others begin at the least.
    pub(crate) fn cursors_for(&self, lanes: u32) -> Vec<u64> {
        let cursors: Vec<u64> = self.lanes.iter().map(|lane| lane.cursor).collect();
        if lanes == self.lane_count() {
            return cursors;
        }
        let least = cursors.into_iter().min().expect("a route has at least one lane");
        vec![least; lanes as usize]
    }

    /// Whether this is a replay of that route.
    pub(crate) fn is_replay_of(&self, route: &str) -> bool {
        self.reader.replay.as_ref().is_some_and(|replay| *replay.of == *route)
    }
}

impl Lane {
    pub(crate) fn new(cursor: u64, epoch: Epoch) -> Self {
        Self { cursor, epoch, owner: None, settled: 0, over: false }
    }

    /// The owner, if its lease has not expired.
    pub(crate) fn owner(&self, now: Timestamp) -> Option<NodeId> {
        self.owner.filter(|(_, until)| now < *until).map(|(node, _)| node)
    }
}

/// The answer to a name that nobody knows.
pub(crate) fn unknown(what: &'static str, name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("no such {what}")).with(what, name)
}
