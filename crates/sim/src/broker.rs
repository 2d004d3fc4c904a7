//! The simulated destination: one publisher per node and route. It has a message before it answers; it may answer late,
//! not at all, or that it has nothing.

use std::{sync::Arc, time::Duration};

use postrider_core::{
    BoxFuture,
    capability::PublisherCapabilities,
    key::KeyHash,
    lease::NodeId,
    log::RecordRef,
    parked::Cause,
    transport::{ASKED_PAUSE_MIN, Outcome, Publisher},
};

use crate::{
    check::{passage, row_of},
    history::Sim,
    world::{WORLD, lock},
};

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    /// Nothing.
    None,
    /// It is rejected so many times.
    Times(u32),
    /// It is always rejected.
    Always,
    /// While there is trouble, nobody ever hears of it.
    Silent,
}

/// One node's connection to the destination of one route.
pub struct SimPublisher {
    /// Everything.
    pub sim: Arc<Sim>,
    /// The node, once it is known.
    pub node: Arc<std::sync::OnceLock<NodeId>>,
    /// The route.
    pub route: Arc<str>,
}

impl SimPublisher {
    fn outcome(&self, record: &RecordRef) -> Outcome {
        let sim = &self.sim;
        let passage = passage(&self.route, record);
        if sim.is_down(&self.route, record.key) {
            return Outcome::Unavailable(Cause::new("down", "connection refused"));
        }
        let poison = lock(&sim.poison)[row_of(record.envelope.id)];
        let mut random = lock(&sim.random);
        let mut tracker = lock(&sim.tracker);
        let rejections = tracker.rejections.entry(passage).or_default();
        let rejected = Outcome::Rejected(Cause::new("bad", "the destination refuses it"));
        let outcome = match poison {
            Poison::Times(times) if *rejections < times => rejected,
            Poison::Always => rejected,
            Poison::Silent if sim.troubled() => Outcome::Unknown(Cause::new("silent", "no answer")),
            _ if !sim.troubled() => Outcome::Durable,
            _ if random.chance(10) => Outcome::Throttled(pause(random.below(400_000))),
            _ if random.chance(25) => Outcome::Unknown(Cause::new("lost", "the answer was lost")),
            _ => Outcome::Durable,
        };
        *rejections += u32::from(matches!(outcome, Outcome::Rejected(_)));
        outcome
    }
}

impl Publisher for SimPublisher {
    fn capabilities(&self) -> PublisherCapabilities {
        PublisherCapabilities {
            name: "simulated",
            run_max: self.sim.scenario.run_max,
            message_bytes_max: None,
            batch_max: None,
            batches_max: None,
        }
    }

    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        let sim = Arc::clone(&self.sim);
        let node = *self.node.get().expect("set before the relay runs");
        lock(&sim.store).now = sim.clock();
        lock(&sim.tracker).publish_begins(&lock(&sim.store), &sim.scenario, node, &self.route, &batch);
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(batch.len());
        let mut arrived = Vec::new();
        let mut broken: Option<KeyHash> = None;
        for record in &batch {
            if record.key.is_some() && record.key == broken {
                outcomes.push(Outcome::Unknown(Cause::new("run", "not published behind one that failed")));
                continue;
            }
            let outcome = self.outcome(record);
            let unknown = matches!(outcome, Outcome::Unknown(_));
            if outcome == Outcome::Durable || (unknown && lock(&sim.random).chance(500)) {
                arrived.push(passage(&self.route, record));
            }
            if outcome != Outcome::Durable {
                broken = record.key;
            }
            outcomes.push(outcome);
        }
        let (there, back) = (sim.delay(), sim.delay());
        let mut late = 0;
        if sim.troubled() && lock(&sim.random).chance(20) {
            late = lock(&sim.random).below(2 * sim.scenario.publish_timeout);
        }
        if there + late + back >= sim.scenario.publish_timeout * 9 / 10 {
            outcomes
                .iter_mut()
                .for_each(|outcome| *outcome = Outcome::Unknown(Cause::new("late", "answered too late")));
        }
        {
            let mut tracker = lock(&sim.tracker);
            for (record, outcome) in batch.iter().zip(&outcomes) {
                tracker.answered(&sim.scenario, node, passage(&self.route, record), outcome);
            }
        }
        sim.trace(|| {
            let sent: Vec<_> = batch.iter().map(|r| passage(&self.route, r)).zip(&outcomes).collect();
            format!("publish by {node} after {there}+{late}+{back}: {sent:?}")
        });
        let world = sim.world.clone();
        let arriving = Arc::clone(&sim);
        sim.world.spawn(WORLD, async move {
            world.sleep(there + late).await;
            lock(&arriving.tracker).arrivals.extend(arrived);
        });
        let in_flight = InFlight { sim: Arc::clone(&sim), node, route: Arc::clone(&self.route), batch };
        Box::pin(async move {
            sim.world.sleep(there + late + back).await;
            drop(in_flight);
            outcomes
        })
    }
}

/// Takes its keys out of flight when the answer is there, or when nobody waits for it any more.
struct InFlight {
    sim: Arc<Sim>,
    node: NodeId,
    route: Arc<str>,
    batch: Vec<RecordRef>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        lock(&self.sim.tracker).publish_ends(self.node, &self.route, &self.batch);
    }
}

/// Half of them are the publisher's own, which are short; the others the destination has asked for.
fn pause(micros: u64) -> Duration {
    let pause = Duration::from_micros(micros);
    if micros < 200_000 { pause } else { ASKED_PAUSE_MIN + pause }
}
