//! Where a subscriber lives through an outage: a publisher that is sure to get its messages through, a handler that
//! acknowledges whatever it receives, and what has arrived so far.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use postrider_core::{
    envelope::Envelope,
    transport::{Outcome, Publisher, Subscriber},
};
use postrider_testkit::transport::record;
use tokio::task::JoinHandle;

use crate::numbers::{self, KEYS, PATIENCE, ROUND, in_time};

/// How many messages the handler takes at a time.
const TAKEN_MAX: u32 = 16;

/// A publisher, a subscriber with its handler, and what has arrived.
pub struct Receiver {
    publisher: Box<dyn Publisher>,
    handling: JoinHandle<()>,
    seen: Arc<Seen>,
    published: usize,
    /// How often the publish of each message was repeated, so that the broker may have it more than once.
    repeated: BTreeMap<usize, usize>,
    disturbed: usize,
    begun: Instant,
}

/// What the handler has seen.
#[derive(Default)]
struct Seen {
    envelopes: Mutex<Vec<Envelope>>,
    /// How often each message came after an acknowledgement of it had gone through.
    acknowledged: Mutex<BTreeMap<usize, usize>>,
    errors: Mutex<Vec<String>>,
}

impl Receiver {
    /// Receives from now on.
    pub(crate) fn new(publisher: impl Publisher + 'static, subscriber: impl Subscriber + 'static) -> Self {
        let seen = Arc::new(Seen::default());
        let handling = tokio::spawn(handle(subscriber, Arc::clone(&seen)));
        Self {
            publisher: Box::new(publisher),
            handling,
            seen,
            published: 0,
            repeated: BTreeMap::new(),
            disturbed: 0,
            begun: Instant::now(),
        }
    }

    /// Publishes a round of messages over all keys, each of a key when the one before it is durable.
    pub(crate) async fn publish(&mut self) {
        for from in (self.published..self.published + ROUND).step_by(KEYS) {
            let mut left: Vec<Envelope> = (from..from + KEYS).map(numbers::envelope).collect();
            // Ends when all are durable.
            while !left.is_empty() {
                let publishing = self.publisher.publish(left.iter().map(record).collect());
                let outcomes = in_time(publishing).await.filter(|_| self.begun.elapsed() < PATIENCE);
                let outcomes =
                    outcomes.unwrap_or_else(|| panic!("a message cannot be published: {}", self.seen.shown()));
                let mut durable = outcomes.iter().map(|outcome| *outcome == Outcome::Durable);
                left.retain(|_| !durable.next().unwrap_or(false));
                for envelope in &left {
                    *self.repeated.entry(numbers::number(envelope)).or_default() += 1;
                }
            }
        }
        self.published += ROUND;
    }

    /// From now on something goes wrong; what is out may come again.
    pub(crate) fn disturb(&mut self) {
        self.disturbed += 1;
    }

    /// How many messages have arrived, each counted once.
    pub(crate) fn count(&self) -> usize {
        self.seen.envelopes().iter().map(numbers::number).collect::<BTreeSet<_>>().len()
    }

    /// Waits until more than so many have.
    pub(crate) async fn more_than(&self, count: usize) {
        self.until("more arrives", || self.count() > count).await;
    }

    /// Waits until everything that was published has.
    pub(crate) async fn arrived(&self) {
        self.until("everything arrives", || self.count() == self.published).await;
    }

    /// Waits until something is so, for as long as the whole scenario may take.
    pub(crate) async fn until(&self, what: &str, so: impl Fn() -> bool) {
        while !so() {
            let (have, of) = (self.count(), self.published);
            let told = || format!("{have} of {of} have arrived; the subscriber told: {}", self.seen.shown());
            assert!(self.begun.elapsed() < PATIENCE, "waited in vain until {what}: {}", told());
            assert!(!self.handling.is_finished(), "the handler has ended: {}", told());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends the subscriber and judges what arrived. `out_max` is how many messages the subscriber may have fetched ahead.
    ///
    /// # Panics
    /// If something is missing, out of order, or came again more often than it may.
    pub fn judge(self, out_max: usize) {
        self.handling.abort();
        let seen = self.seen.envelopes();
        let arrivals = numbers::first_arrivals(seen.iter());
        assert_eq!(arrivals, numbers::all(self.published), "everything arrives, in order per key");
        let again = seen.len() - self.published;
        // Fetched ahead, with the handler, and with the answer to the one before.
        let bound = self.disturbed * (out_max + 2 * TAKEN_MAX as usize) + self.repeated.values().sum::<usize>();
        assert!(again <= bound, "{again} came again; no more than {bound} may");
    }

    /// As [`Self::judge`], and more strictly: what was acknowledged never comes again. That is so where an acknowledgement waits
    /// for the word of the server, and the server has kept what it knew. RabbitMQ gives no such word, a member of a Kafka group
    /// is told nothing of partitions that it has lost, and a NATS server that is killed forgets the last ones.
    ///
    /// # Panics
    /// As [`Self::judge`], or if something that was acknowledged came again without having been published again.
    pub fn judge_acknowledged(self, out_max: usize) {
        for (number, again) in &*self.seen.acknowledged() {
            let published_again = self.repeated.get(number).copied().unwrap_or(0);
            assert!(*again <= published_again, "{number} was acknowledged and came again, {again} times");
        }
        self.judge(out_max);
    }
}

impl Seen {
    fn envelopes(&self) -> MutexGuard<'_, Vec<Envelope>> {
        self.envelopes.lock().expect("nobody panicked with what was seen in hand")
    }

    fn acknowledged(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.acknowledged.lock().expect("nobody panicked with what was acknowledged in hand")
    }

    fn errors(&self) -> MutexGuard<'_, Vec<String>> {
        self.errors.lock().expect("nobody panicked with what was told in hand")
    }

    /// The last errors, for people.
    fn shown(&self) -> String {
        let errors = self.errors();
        errors[errors.len().saturating_sub(10)..].join(", ")
    }
}

/// Receives until it is aborted. What was not acknowledged, because that failed, may come again.
async fn handle(subscriber: impl Subscriber, seen: Arc<Seen>) {
    loop {
        match subscriber.receive(TAKEN_MAX).await {
            Ok(deliveries) => {
                let receipts = deliveries.iter().map(|delivery| delivery.receipt).collect();
                let numbers: Vec<usize> =
                    deliveries.iter().map(|delivery| numbers::number(&delivery.envelope)).collect();
                for number in &numbers {
                    seen.acknowledged().entry(*number).and_modify(|again| *again += 1);
                }
                seen.envelopes().extend(deliveries.into_iter().map(|delivery| delivery.envelope));
                match subscriber.acknowledge(receipts).await {
                    Ok(()) => {
                        let mut acknowledged = seen.acknowledged();
                        for number in numbers {
                            acknowledged.entry(number).or_default();
                        }
                    }
                    Err(error) => seen.errors().push(error.chain()),
                }
            }
            Err(error) => {
                seen.errors().push(error.chain());
                // An outage is no reason to ask without a pause.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}
