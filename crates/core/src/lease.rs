//! Who may act on a lane.
//!
//! A lease gives one node the right to read and settle one lane for a while. Its epoch grows with every change of owner,
//! and a store accepts a write only under the current epoch: a paused owner that wakes up too late hits nothing. All
//! instants are the store's; a node only uses its own monotonic clock to stop early.

use std::{fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    Error, Result,
    admin::in_words,
    key::KeyHash,
    standstill::Standstill,
    time::Timestamp,
    topic::{TopicFilter, check_name},
};

/// One process that runs a relay. A restart is another node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub Uuid);

impl NodeId {
    /// A fresh identity.
    #[must_use]
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }

    /// A fresh identity from two random numbers (a UUID of version 8, which says nothing about its making).
    #[must_use]
    pub fn from_random(high: u64, low: u64) -> Self {
        Self(Uuid::new_v8((u128::from(high) << 64 | u128::from(low)).to_be_bytes()))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// What a node says of itself.
#[derive(Clone, Debug)]
pub struct Node {
    /// Identity.
    pub id: NodeId,
    /// A name for people: host and process.
    pub name: String,
    /// Routes that this node can serve.
    pub routes: Vec<Arc<str>>,
    /// How long its leases live without a heartbeat. Others may take over after that.
    pub lease_life: Duration,
    /// Its lanes that do not move, and why. Kept with the heartbeat, for whoever asks.
    pub standstills: Vec<Standstill>,
}

/// Grows with every owner of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// A share of a route's keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LaneId {
    /// The route, or the replay, that the lane belongs to.
    pub route: Arc<str>,
    /// From 0.
    pub number: u32,
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.route, self.number)
    }
}

/// How a route keeps order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Per ordering key; messages without a key have no order.
    #[default]
    Key,
    /// All messages of the route one after the other, as if they had one key. Such a route has one lane.
    Total,
}

/// Where a new route begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// At the oldest record that is still kept: nothing that was committed before is missed.
    #[default]
    Oldest,
    /// With what commits from now on.
    Now,
}

/// What a node asks of a store for a route.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteSpec {
    /// Its name.
    pub name: Arc<str>,
    /// Which topics it is to read, beside those that other nodes ask for.
    pub topics: TopicFilter,
    /// How it keeps order.
    pub order: Order,
    /// Into how many lanes it is split.
    pub lanes: u32,
    /// Where it begins when the store sees it for the first time.
    pub start: Start,
}

/// How many lanes a route may have.
pub const LANES_MAX: u32 = 1024;

impl RouteSpec {
    /// Refuses what no store can register, so that all of them refuse the same.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the name is none, if there are no lanes or more than
    /// [`LANES_MAX`], or several with total order.
    pub fn check(&self) -> Result<()> {
        check_name("route", &self.name)?;
        if self.lanes == 0 || self.lanes > LANES_MAX {
            return Err(Error::invalid("a route has at least one lane and no more than the limit")
                .with("route", &self.name)
                .with("lanes", self.lanes)
                .with("lanes_max", LANES_MAX));
        }
        if self.order == Order::Total && self.lanes != 1 {
            return Err(Error::invalid("a route with total order has one lane")
                .with("route", &self.name)
                .with("lanes", self.lanes));
        }
        Ok(())
    }
}

/// What a replay delivers again. Empty fields choose everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReplayFilter {
    /// Enqueued at or after this instant.
    pub since: Option<Timestamp>,
    /// Enqueued before this instant.
    pub until: Option<Timestamp>,
    /// With this ordering key.
    pub key: Option<String>,
    /// With this message name.
    pub name: Option<String>,
    /// On these topics, beside those of the route.
    pub topics: Option<TopicFilter>,
}

impl ReplayFilter {
    /// Whether it chooses a record with these properties.
    #[must_use]
    pub fn takes(&self, topic: &str, name: &str, key: Option<&str>, enqueued_at: Timestamp) -> bool {
        self.since.is_none_or(|since| enqueued_at >= since)
            && self.until.is_none_or(|until| enqueued_at < until)
            && self.key.as_deref().is_none_or(|wanted| key == Some(wanted))
            && self.name.as_deref().is_none_or(|wanted| name == wanted)
            && self.topics.as_ref().is_none_or(|topics| topics.matches(topic))
    }
}

/// As an operator would say it: `since …, key 4711`, or `all`.
impl fmt::Display for ReplayFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.since.map(|since| format!("since {since}")),
            self.until.map(|until| format!("until {until}")),
            self.key.as_ref().map(|key| format!("key {key}")),
            self.name.as_ref().map(|name| format!("name {name}")),
            self.topics.as_ref().map(|topics| format!("topics {topics}")),
        ];
        f.write_str(&in_words(parts))
    }
}

/// How to read the log for one route or replay: kept with the lease, so that a read needs no look-up.
#[derive(Clone, Debug, PartialEq)]
pub struct Reader {
    /// Topics of the route.
    pub topics: TopicFilter,
    /// How the route keeps order.
    pub order: Order,
    /// For a replay: which route's publisher it uses and what it reads.
    pub replay: Option<Replay>,
}

/// The part of a [`Reader`] that only a replay has.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// The route through which the records are published again: mostly the one whose records they are.
    pub of: Arc<str>,
    /// Which records.
    pub filter: ReplayFilter,
    /// Messages per second at most.
    pub rate: Option<u32>,
}

impl Reader {
    /// Whether the route or replay reads a record with these properties, in whichever lane.
    #[must_use]
    pub fn reads(&self, topic: &str, name: &str, key: Option<&str>, enqueued_at: Timestamp) -> bool {
        let replayed = self.replay.as_ref().is_none_or(|replay| replay.filter.takes(topic, name, key, enqueued_at));
        replayed && self.topics.matches(topic)
    }

    /// The key under which a record is kept in order, and whether lane `number` of `lanes` has it. Records without a key
    /// are spread by their id, so that lanes share them.
    #[must_use]
    pub fn place(&self, key: Option<&[u8]>, id: &Uuid, number: u32, lanes: u32) -> (Option<KeyHash>, bool) {
        let hash = match self.order {
            Order::Total => Some(KeyHash::TOTAL),
            Order::Key => key.map(KeyHash::of),
        };
        if lanes <= 1 {
            return (hash, true);
        }
        let spread = hash.unwrap_or_else(|| KeyHash::of(id.as_bytes()));
        (hash, spread.lane(lanes) == number)
    }
}

/// The right to act on a lane, and what it takes to do so.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The lane.
    pub lane: LaneId,
    /// How many lanes its route has.
    pub lanes: u32,
    /// Under which every write is made.
    pub epoch: Epoch,
    /// How the log is read for this lane.
    pub reader: Arc<Reader>,
}

/// What a heartbeat learns: who is there and who owns what, in one consistent look.
#[derive(Clone, Debug, Default)]
pub struct Roster {
    /// The live nodes, this one included.
    pub nodes: Vec<NodeStanding>,
    /// Every route, ordered by name. No replays.
    pub routes: Vec<RouteStanding>,
    /// Every lane of every route and unfinished replay, ordered by [`LaneId`].
    pub lanes: Vec<LaneStanding>,
    /// Whether an operator has asked the node whose heartbeat this is to leave.
    pub leave: bool,
}

/// A live node as the store sees it.
#[derive(Clone, Debug)]
pub struct NodeStanding {
    /// Identity.
    pub id: NodeId,
    /// Routes that it can serve.
    pub routes: Vec<Arc<str>>,
}

/// A route as the store sees it.
#[derive(Clone, Debug)]
pub struct RouteStanding {
    /// Its name.
    pub route: Arc<str>,
    /// What is read for all nodes that serve it.
    pub topics: TopicFilter,
}

/// A lane as the store sees it.
#[derive(Clone, Debug)]
pub struct LaneStanding {
    /// The lane.
    pub lane: LaneId,
    /// The route whose publisher serves it: the lane's own, or the one that a replay belongs to.
    pub served_by: Arc<str>,
    /// Its owner, if the lease has not expired.
    pub owner: Option<NodeId>,
    /// Its current epoch.
    pub epoch: Epoch,
    /// Whether an operator has paused the route.
    pub paused: bool,
}
