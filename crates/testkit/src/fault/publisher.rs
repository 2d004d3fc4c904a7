//! A publisher that fails.
//!
//! Faults come from three places, the first that applies: an outage that is switched on, a script for the next messages,
//! a seeded mix. A message that suffers a fault stops its key for the rest of the batch, as the contract demands.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use postrider_core::{
    BoxFuture, Result,
    capability::PublisherCapabilities,
    key::KeyHash,
    log::RecordRef,
    parked::Cause,
    transport::{Outcome, Publisher},
};

use crate::random::Random;

/// What happens to one message.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Nothing: the inner publisher decides.
    None,
    /// This is answered, and nothing is published.
    Answer(Outcome),
    /// It is published, but the acknowledgement is lost: `Unknown` is answered.
    LostAcknowledgement,
}

/// How many messages in a thousand suffer what. The rest goes through.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mix {
    /// Rejected, not published.
    pub rejected: u64,
    /// Unavailable, not published.
    pub unavailable: u64,
    /// Throttled for a millisecond, not published.
    pub throttled: u64,
    /// Unknown, and not published.
    pub lost_message: u64,
    /// Unknown, though published.
    pub lost_acknowledgement: u64,
}

/// A publisher that fails as its handle says.
pub struct FaultyPublisher {
    inner: Arc<dyn Publisher>,
    faults: PublisherFaults,
}

impl FaultyPublisher {
    /// Wraps a publisher. No fault is switched on.
    #[must_use]
    pub fn new(inner: Arc<dyn Publisher>) -> (Self, PublisherFaults) {
        let faults = PublisherFaults::default();
        (Self { inner, faults: faults.clone() }, faults)
    }

    async fn publish_with_faults(&self, batch: Vec<RecordRef>) -> Vec<Outcome> {
        let delay = self.faults.delay();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let mut outcomes: Vec<Option<Outcome>> = vec![None; batch.len()];
        let (mut passed, mut places) = (Vec::new(), Vec::new());
        let mut stopped: Option<KeyHash> = None;
        for (place, record) in batch.into_iter().enumerate() {
            if record.key.is_some() && record.key == stopped {
                outcomes[place] = Some(unknown("behind another of its key that failed"));
                continue;
            }
            let fault = self.faults.next();
            if fault != Fault::None {
                stopped = record.key;
            }
            match fault {
                Fault::Answer(outcome) => outcomes[place] = Some(outcome),
                Fault::LostAcknowledgement => {
                    outcomes[place] = Some(unknown("the acknowledgement was lost on purpose"));
                    passed.push(record);
                    places.push(None);
                }
                Fault::None => {
                    passed.push(record);
                    places.push(Some(place));
                }
            }
        }
        if !passed.is_empty() {
            let inner = self.inner.publish(passed).await;
            for (place, outcome) in places.into_iter().zip(inner) {
                if let Some(place) = place {
                    outcomes[place] = Some(outcome);
                }
            }
        }
        outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_or_else(|| unknown("the inner publisher said nothing")))
            .collect()
    }
}

impl Publisher for FaultyPublisher {
    fn capabilities(&self) -> PublisherCapabilities {
        self.inner.capabilities()
    }

    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(self.publish_with_faults(batch))
    }

    fn reopen(&self) {
        self.inner.reopen();
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.close()
    }
}

/// Switches the faults of a [`FaultyPublisher`]. Clones switch the same ones.
#[derive(Clone, Default)]
pub struct PublisherFaults(Arc<Mutex<Plan>>);

#[derive(Default)]
struct Plan {
    outage: bool,
    script: VecDeque<Fault>,
    mix: Option<(Mix, Random)>,
    delay_max: Duration,
    delays: Option<Random>,
}

impl PublisherFaults {
    /// Begins or ends an outage: while it lasts, everything is unavailable and nothing is published.
    pub fn outage(&self, on: bool) {
        self.plan().outage = on;
    }

    /// What happens to the next messages, one fault each. Outages come first and use none of it up.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        self.plan().script.extend(faults);
    }

    /// Mixes faults in from a seed.
    pub fn mix(&self, mix: Mix, seed: u64) {
        self.plan().mix = Some((mix, Random::new(seed)));
    }

    /// Delays every batch by up to this long, drawn from a seed.
    pub fn delay_up_to(&self, delay_max: Duration, seed: u64) {
        let mut plan = self.plan();
        (plan.delay_max, plan.delays) = (delay_max, Some(Random::new(seed)));
    }

    /// Switches everything off.
    pub fn clear(&self) {
        *self.plan() = Plan::default();
    }

    fn next(&self) -> Fault {
        let mut plan = self.plan();
        if plan.outage {
            return Fault::Answer(Outcome::Unavailable(cause("outage", "an outage was switched on")));
        }
        if let Some(fault) = plan.script.pop_front() {
            return fault;
        }
        plan.mix.as_mut().map_or(Fault::None, |(mix, random)| mix.draw(random))
    }

    fn delay(&self) -> Duration {
        let mut plan = self.plan();
        let micros = u64::try_from(plan.delay_max.as_micros()).unwrap_or(u64::MAX);
        let drawn = plan.delays.as_mut().map_or(0, |random| random.below(micros.saturating_add(1)));
        Duration::from_micros(drawn)
    }

    fn plan(&self) -> std::sync::MutexGuard<'_, Plan> {
        self.0.lock().expect("nobody panicked while planning faults")
    }
}

impl Mix {
    fn draw(&self, random: &mut Random) -> Fault {
        let mut drawn = random.below(1000);
        let choices = [
            (self.rejected, Fault::Answer(Outcome::Rejected(cause("faulty", "rejected on purpose")))),
            (self.unavailable, Fault::Answer(Outcome::Unavailable(cause("faulty", "unavailable on purpose")))),
            (self.throttled, Fault::Answer(Outcome::Throttled(Duration::from_millis(1)))),
            (self.lost_message, Fault::Answer(unknown("the message was lost on purpose"))),
            (self.lost_acknowledgement, Fault::LostAcknowledgement),
        ];
        for (share, fault) in choices {
            if drawn < share {
                return fault;
            }
            drawn -= share;
        }
        Fault::None
    }
}

fn unknown(detail: &str) -> Outcome {
    Outcome::Unknown(cause("faulty", detail))
}

fn cause(code: &str, detail: &str) -> Cause {
    Cause::new(code, detail)
}

#[cfg(test)]
mod tests {
    use postrider_core::{envelope::Envelope, envelope::MessageId, log::Record, time::Timestamp};

    use super::*;

    /// Remembers what it was given.
    #[derive(Default)]
    struct Recorder(Mutex<Vec<MessageId>>);

    impl Publisher for Recorder {
        fn capabilities(&self) -> PublisherCapabilities {
            PublisherCapabilities {
                name: "recorder",
                run_max: 100,
                message_bytes_max: None,
                batch_max: None,
                batches_max: None,
            }
        }
        fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
            self.0.lock().unwrap().extend(batch.iter().map(|record| record.envelope.id));
            Box::pin(std::future::ready(vec![Outcome::Durable; batch.len()]))
        }
    }

    fn batch(keys: &[&str]) -> Vec<RecordRef> {
        let record = |key: &&str| {
            let envelope = Envelope::new("t", "n", "").with_key(*key);
            let key = Some(KeyHash::of(key.as_bytes()));
            let (wait, enqueued_at) = (Duration::ZERO, Timestamp::from_micros(0));
            RecordRef::single(Record { envelope, key, enqueued_at, wait, expires_in: None, replay: None, number: 0 })
        };
        keys.iter().map(record).collect()
    }

    fn names(outcomes: &[Outcome]) -> Vec<&str> {
        outcomes.iter().map(Outcome::name).collect()
    }

    #[tokio::test]
    async fn a_lost_acknowledgement_publishes_and_stops_its_key() {
        let recorder = Arc::new(Recorder::default());
        let (publisher, faults) = FaultyPublisher::new(Arc::clone(&recorder) as Arc<dyn Publisher>);
        faults.script([Fault::None, Fault::LostAcknowledgement]);
        let batch = batch(&["a", "a", "a", "b"]);
        let ids: Vec<_> = batch.iter().map(|record| record.envelope.id).collect();
        let outcomes = publisher.publish(batch).await;
        assert_eq!(names(&outcomes), ["durable", "unknown", "unknown", "durable"]);
        assert_eq!(*recorder.0.lock().unwrap(), [ids[0], ids[1], ids[3]], "the one behind the fault is not published");
    }

    #[tokio::test]
    async fn an_outage_takes_nothing_until_it_is_over() {
        let recorder = Arc::new(Recorder::default());
        let (publisher, faults) = FaultyPublisher::new(Arc::clone(&recorder) as Arc<dyn Publisher>);
        faults.outage(true);
        assert_eq!(names(&publisher.publish(batch(&["a", "b"])).await), ["unavailable", "unavailable"]);
        assert!(recorder.0.lock().unwrap().is_empty());
        faults.outage(false);
        assert_eq!(names(&publisher.publish(batch(&["a", "b"])).await), ["durable", "durable"]);
    }

    #[tokio::test]
    async fn a_mix_is_the_same_for_the_same_seed_and_shows_every_kind() {
        let mix = Mix { rejected: 100, unavailable: 100, throttled: 100, lost_message: 100, lost_acknowledgement: 100 };
        let run = || async {
            let recorder = Arc::new(Recorder::default());
            let (publisher, faults) = FaultyPublisher::new(Arc::clone(&recorder) as Arc<dyn Publisher>);
            faults.mix(mix, 7);
            let mut seen = Vec::new();
            for i in 0..200 {
                seen.extend(names(&publisher.publish(batch(&[&format!("k{i}")])).await).into_iter().map(str::to_owned));
            }
            let published = recorder.0.lock().unwrap().len();
            (seen, published)
        };
        let (one, two) = (run().await, run().await);
        assert_eq!(one, two);
        for kind in ["durable", "rejected", "unavailable", "throttled", "unknown"] {
            assert!(one.0.iter().any(|outcome| outcome == kind), "{kind}");
        }
        let durable = one.0.iter().filter(|outcome| *outcome == "durable").count();
        assert!(one.1 > durable, "some were published though their acknowledgement was lost");
    }
}
