//! What must hold. The tracker watches every publish, arrival and verdict as it happens and judges the whole at the end.
//!
//! | promise | where it is checked |
//! |---|---|
//! | C1 nothing lost | at the end: arrived, or given up with a record |
//! | C2 no ghosts | at every publish: its transaction has committed |
//! | C3 order per key | at the end, over first arrivals |
//! | C5 bounded duplicates | at the end |
//! | C6 no silent stall | at the end: in peace everything comes to rest |
//! | C7 nothing undelivered is purged | at every purge |
//! | C8 an outage kills nothing | at every verdict: enough rejections came before |
//! | lease | at every publish: the lane is the publisher's |
//! | one at a time | at every publish: nothing else of that key is in flight on that node |
//! | time | at every publish: not before `deliver_at` |
//!
//! (C4 is about consumers. Epochs of accepted writes never fall: the store asserts it.)

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use postrider::relay::OnDead;
use postrider_core::{envelope::MessageId, key::KeyHash, lease::NodeId, log::RecordRef, transport::Outcome};

use crate::{
    scenario::Scenario,
    store::{Ending, Store, is_total},
    world::Micros,
};

/// A route or replay, and a message.
type Passage = (Arc<str>, MessageId);

/// Everything that was seen.
#[derive(Default)]
pub struct Tracker {
    /// What arrived, in order.
    pub arrivals: Vec<Passage>,
    /// How often each was rejected, and how often nobody knew.
    pub rejections: HashMap<Passage, u32>,
    /// The same for unknown outcomes.
    pub unknowns: HashMap<Passage, u32>,
    /// Those of one node since the destination last said that it takes nothing.
    unknowns_in_a_row: HashMap<(NodeId, Passage), u32>,
    /// How often there were so many in a row that they may count as an attempt.
    silences: HashMap<Passage, u32>,
    /// Those that died: whether by expiring.
    pub died: HashMap<Passage, bool>,
    /// Those that an operator gave up.
    pub discarded: HashSet<Passage>,
    /// Those whose commit a fail-over took back.
    pub taken_back: HashSet<MessageId>,
    /// Replays and what they have to deliver.
    pub replays: Vec<(Arc<str>, Vec<MessageId>)>,
    /// Keys in flight, per node and route.
    in_flight: HashSet<(NodeId, Arc<str>, KeyHash)>,
    /// The latest time that the store's clock has shown.
    pub clock_max: Micros,
    /// How many duplicates the faults so far allow.
    pub duplicates_allowed: u64,
    verdicts_seen: usize,
    /// What happened, in numbers.
    pub totals: Totals,
}

/// Counts over a history.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Messages committed.
    pub committed: u64,
    /// First arrivals.
    pub delivered: u64,
    /// Further arrivals.
    pub duplicates: u64,
    /// Crashes, pauses and drains of nodes.
    pub disturbances: u64,
    /// Verdicts.
    pub dead: u64,
    /// Stale writes that were refused.
    pub stale_writes: u64,
    /// Messages delivered again by replays.
    pub replayed: u64,
    /// Records removed by retention.
    pub purged: u64,
    /// Fail-overs and changes of lanes.
    pub upheavals: u64,
}

impl Totals {
    /// Adds another history's counts.
    pub fn add(&mut self, other: &Self) {
        self.committed += other.committed;
        self.delivered += other.delivered;
        self.duplicates += other.duplicates;
        self.disturbances += other.disturbances;
        self.dead += other.dead;
        self.stale_writes += other.stale_writes;
        self.replayed += other.replayed;
        self.purged += other.purged;
        self.upheavals += other.upheavals;
    }
}

/// The row behind a message: ids are numbered.
#[must_use]
pub fn row_of(id: MessageId) -> usize {
    usize::try_from(id.0.as_u128()).expect("numbered") - 1
}

impl Tracker {
    /// A batch is handed to the broker.
    ///
    /// # Panics
    /// If it must not be.
    pub fn publish_begins(
        &mut self,
        store: &Store,
        scenario: &Scenario,
        node: NodeId,
        route: &Arc<str>,
        batch: &[RecordRef],
    ) {
        self.clock_max = self.clock_max.max(store.now);
        let mut keys = HashSet::new();
        for record in batch {
            let id = record.envelope.id;
            let reader = passage(route, record).0;
            let row = &store.rows[row_of(id)];
            let committed = matches!(row.ending, Ending::Committed(_)) || self.taken_back.contains(&id);
            assert!(committed, "ghost: {id} of {reader} is published, but its transaction is {:?}", row.ending);
            let at = row.envelope.deliver_at.map_or(0, |at| at.as_micros().cast_unsigned());
            assert!(at <= self.clock_max, "early: {id} of {reader} is published before its time");
            if scenario.leases_are_exact {
                let owns = store.owns(node, &reader, record.key, id);
                assert!(owns, "lease: {id} of {reader} is published by a node that does not own its lane");
            }
            if let Some(key) = record.key {
                keys.insert((node, reader, key));
            }
        }
        for key in keys {
            assert!(self.in_flight.insert(key.clone()), "order: two batches of one key are in flight: {key:?}");
        }
    }

    /// The batch has come back, or was given up.
    pub fn publish_ends(&mut self, node: NodeId, route: &Arc<str>, batch: &[RecordRef]) {
        for record in batch {
            if let Some(key) = record.key {
                self.in_flight.remove(&(node, passage(route, record).0, key));
            }
        }
    }

    /// What the broker says of a message. An outage in between begins the count of unknown outcomes anew.
    pub fn answered(&mut self, scenario: &Scenario, node: NodeId, passage: Passage, outcome: &Outcome) {
        let in_a_row = self.unknowns_in_a_row.entry((node, passage.clone())).or_default();
        match outcome {
            Outcome::Unavailable(_) => *in_a_row = 0,
            Outcome::Unknown(_) => {
                *in_a_row += 1;
                if *in_a_row == scenario.unknown_max {
                    *in_a_row = 0;
                    *self.silences.entry(passage.clone()).or_default() += 1;
                }
                *self.unknowns.entry(passage).or_default() += 1;
            }
            _ => {}
        }
    }

    /// A node's life is over, and with it what it had in flight.
    pub fn forget(&mut self, node: NodeId) {
        self.in_flight.retain(|(other, _, _)| *other != node);
    }

    /// After every write to the store.
    ///
    /// # Panics
    /// If a message died without enough rejections.
    pub fn settled(&mut self, store: &Store, scenario: &Scenario) {
        self.clock_max = self.clock_max.max(store.now);
        for (route, id, attempts, cause) in &store.verdicts[self.verdicts_seen..] {
            let passage = (Arc::clone(route), *id);
            let expired = cause.code() == "expired";
            self.totals.dead += 1;
            *self.died.entry(passage.clone()).or_default() |= expired;
            if expired {
                let at = store.rows[row_of(*id)].envelope.expires_at.expect("it has one").as_micros().cast_unsigned();
                assert!(
                    at <= self.clock_max.max(store.now) + scenario.clock_slack,
                    "{id} of {route} expired too early"
                );
                continue;
            }
            let rejections = self.rejections.get(&passage).copied().unwrap_or(0);
            let unknowns = self.silences.get(&passage).copied().unwrap_or(0);
            let most = store.rows[row_of(*id)].envelope.attempts_max.unwrap_or(scenario.attempts_max);
            assert!(
                *attempts >= most && rejections + unknowns >= most,
                "{id} of {route} died after {rejections} rejections and {unknowns} times of silence, not {most}"
            );
        }
        self.verdicts_seen = store.verdicts.len();
    }

    /// Retention has removed rows.
    ///
    /// # Panics
    /// If one of them was still needed.
    pub fn purged(&mut self, store: &Store, rows: &[usize]) {
        let arrived: HashSet<&Passage> = self.arrivals.iter().collect();
        self.totals.purged += rows.len() as u64;
        for &row in rows {
            let row = &store.rows[row];
            let live = store.routes.iter().filter(|(_, route)| route.until.is_none());
            for (name, _) in live.filter(|(_, route)| route.promised.contains(&&*row.envelope.topic)) {
                let passage = (Arc::clone(name), row.envelope.id);
                let kept = store.routes[name].by_id.contains_key(&row.envelope.id);
                let done = arrived.contains(&passage) || kept || self.discarded.contains(&passage);
                assert!(done, "retention removed {} of {name}, which was not delivered", row.envelope.id);
            }
        }
    }

    /// Whether everything has come to rest.
    #[must_use]
    pub fn at_rest(&self, store: &Store) -> bool {
        let parked = store.routes.values().any(|route| !route.parked.is_empty());
        let replaying = store.routes.keys().any(|name| name.contains('#'));
        if parked || replaying {
            return false;
        }
        let arrived: HashSet<&Passage> = self.arrivals.iter().collect();
        self.expected(store).iter().all(|passage| arrived.contains(passage) || self.discarded.contains(passage))
    }

    fn expected(&self, store: &Store) -> Vec<Passage> {
        let mut expected = Vec::new();
        for (name, route) in store.routes.iter().filter(|(_, route)| route.until.is_none()) {
            let committed = store.rows.iter().filter(|row| matches!(row.ending, Ending::Committed(_)));
            for row in committed.filter(|row| route.promised.contains(&&*row.envelope.topic)) {
                expected.push((Arc::clone(name), row.envelope.id));
            }
        }
        expected
    }

    /// The judgement at the end.
    ///
    /// # Panics
    /// With what is wrong.
    pub fn judge(&mut self, store: &Store, scenario: &Scenario) {
        let mut first: HashMap<&Passage, usize> = HashMap::new();
        let mut duplicates = 0;
        for (place, passage) in self.arrivals.iter().enumerate() {
            let replay = passage.0.contains('#');
            self.totals.replayed += u64::from(replay);
            if first.contains_key(passage) {
                duplicates += u64::from(!replay);
            } else {
                first.insert(passage, place);
            }
        }
        for passage in self.expected(store) {
            self.totals.committed += 1;
            let parked = store.routes[&passage.0].by_id.get(&passage.1);
            assert!(
                first.contains_key(&passage) || self.discarded.contains(&passage),
                "lost: {} never arrived at {} (parked row: {parked:?}, row {:?})",
                passage.1,
                passage.0,
                store.rows[row_of(passage.1)].ending
            );
            assert!(
                parked.is_none(),
                "stuck: {} of {} is parked for ever: {:?}",
                passage.1,
                passage.0,
                store.routes[&passage.0].parked
            );
        }
        self.totals.delivered += first.len() as u64;
        self.totals.duplicates += duplicates;
        self.totals.stale_writes += store.stale_writes;
        self.judge_order(store, scenario, &first);
        if scenario.duplicates_are_bounded {
            let allowed = self.duplicates_allowed
                + store.takeovers * scenario.lane_in_memory()
                + self.unknowns.values().map(|n| u64::from(*n)).sum::<u64>();
            assert!(duplicates <= allowed, "{duplicates} duplicates, but the faults explain no more than {allowed}");
        }
        if scenario.fail_overs == 0 {
            for (name, messages) in &self.replays {
                for id in messages {
                    let passage = (Arc::clone(name), *id);
                    let done = first.contains_key(&passage) || self.died.contains_key(&passage);
                    assert!(done, "replay {name} did not deliver {id}");
                }
            }
        }
    }

    fn judge_order(&self, store: &Store, scenario: &Scenario, first: &HashMap<&Passage, usize>) {
        for (name, route) in store.routes.iter().filter(|(_, route)| route.until.is_none()) {
            let mut lines: HashMap<&str, Vec<(u64, usize)>> = HashMap::new();
            let mut all = Vec::new();
            for (index, row) in store.rows.iter().enumerate() {
                let Ending::Committed(commit) = row.ending else { continue };
                let passage = (Arc::clone(name), row.envelope.id);
                let released =
                    self.died.get(&passage).is_some_and(|expired| *expired || scenario.on_dead == OnDead::Continue);
                // What came to be read later, and not from the start, has no order among what had gone before.
                let unpromised = !route.promised.contains(&&*row.envelope.topic);
                let late = row.envelope.deliver_at.is_some() || unpromised;
                let exempt = late || self.discarded.contains(&passage) || released;
                let Some(place) = first.get(&passage).filter(|_| !exempt) else { continue };
                if is_total(&route.reader) {
                    all.push((*place, row.enqueued_after, commit, index));
                } else if let Some(key) = &row.envelope.key {
                    lines.entry(key.as_str()).or_default().push((commit, index));
                }
            }
            // Without a lock of their own transactions may run at the same time; then they have no order.
            for (place, enqueued_after, _, later) in &all {
                let before = |other: &&(usize, u64, u64, usize)| other.2 < *enqueued_after && other.0 > *place;
                let wrong = all.iter().find(before).map(|other| other.3);
                assert!(
                    wrong.is_none(),
                    "order: row {later} of {name} came before {wrong:?}, committed before it began"
                );
            }
            for (key, mut rows) in lines {
                rows.sort_unstable();
                let place = |row: &(u64, usize)| first[&(Arc::clone(name), store.rows[row.1].envelope.id)];
                for pair in rows.windows(2) {
                    assert!(
                        place(&pair[0]) < place(&pair[1]),
                        "order: key {key:?} of {name}: row {} came before row {}, which had committed earlier",
                        pair[1].1,
                        pair[0].1
                    );
                }
            }
        }
    }
}

/// The reader that a record is published for, and its message.
#[must_use]
pub fn passage(route: &Arc<str>, record: &RecordRef) -> Passage {
    (record.replay.clone().unwrap_or_else(|| Arc::clone(route)), record.envelope.id)
}
