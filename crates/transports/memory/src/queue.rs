//! The queue between the halves: what is ready, what comes later, what is out with a subscriber.
//!
//! ```text
//!  publish ──► ready ──► out with a subscriber ──► acknowledged, or rejected for good: gone
//!                ▲                │ rejected for later
//!                ├─ its time ── later ◄─┘
//!                └─ the subscriber is gone: back to the front, in the old order
//! ```

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use postrider_core::{
    envelope::Envelope,
    transport::{Delivery, Receipt, Requeue},
};
use tokio::{sync::Notify, time::Instant};

pub(crate) struct Queue {
    capacity: usize,
    state: Mutex<State>,
    /// Rung when something becomes ready, or is to become ready later.
    bell: Notify,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Item>,
    later: BTreeMap<(Instant, u64), Item>,
    /// By receipt, so in the order of delivery; with the subscriber that has it.
    out: BTreeMap<u64, (u64, Item)>,
    last_receipt: u64,
    last_subscriber: u64,
}

struct Item {
    envelope: Envelope,
    /// How often it has been delivered.
    deliveries: u32,
}

/// What a receive found.
pub(crate) enum Found {
    Deliveries(Vec<Delivery>),
    /// Nothing yet; something comes by itself at this instant, if at all.
    Nothing(Option<Instant>),
}

impl Queue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, state: Mutex::default(), bell: Notify::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.state().len()
    }

    /// Takes as many as there is room for, from the front, in one step; says how many.
    pub(crate) fn push(&self, envelopes: Vec<Envelope>) -> usize {
        let mut state = self.state();
        let room = self.capacity.saturating_sub(state.len());
        let taken = envelopes.len().min(room);
        state.ready.extend(envelopes.into_iter().take(taken).map(|envelope| Item { envelope, deliveries: 0 }));
        drop(state);
        if taken > 0 {
            self.bell.notify_waiters();
        }
        taken
    }

    pub(crate) fn subscribe(&self) -> u64 {
        let mut state = self.state();
        state.last_subscriber += 1;
        state.last_subscriber
    }

    /// Hands out up to `max` messages, in one step.
    pub(crate) fn take(&self, subscriber: u64, max: usize) -> Found {
        let mut state = self.state();
        state.ripen();
        let count = max.max(1).min(state.ready.len());
        if count == 0 {
            return Found::Nothing(state.later.first_key_value().map(|((at, _), _)| *at));
        }
        let items: Vec<Item> = state.ready.drain(..count).collect();
        Found::Deliveries(items.into_iter().map(|item| state.hand_out(subscriber, item)).collect())
    }

    /// Resolves when something may have become ready; created before looking, it misses nothing.
    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.bell.notified()
    }

    /// Takes deliveries off the queue. Receipts that are not out with this subscriber are skipped.
    pub(crate) fn acknowledge(&self, subscriber: u64, receipts: &[Receipt]) {
        let mut state = self.state();
        for receipt in receipts {
            state.take_back(subscriber, *receipt);
        }
    }

    /// Puts a delivery back for later, or takes it off the queue.
    pub(crate) fn reject(&self, subscriber: u64, receipt: Receipt, requeue: Requeue) {
        let mut state = self.state();
        let Some(item) = state.take_back(subscriber, receipt) else { return };
        if let Requeue::After(wait) = requeue {
            state.later.insert((later_by(wait), receipt.0), item);
            drop(state);
            self.bell.notify_waiters();
        }
    }

    /// Puts back what a subscriber still has, in the old order, before everything else.
    pub(crate) fn unsubscribe(&self, subscriber: u64) {
        let mut state = self.state();
        let had: Vec<u64> =
            state.out.iter().filter(|(_, (by, _))| *by == subscriber).map(|(receipt, _)| *receipt).collect();
        for receipt in had.into_iter().rev() {
            if let Some(item) = state.take_back(subscriber, Receipt(receipt)) {
                state.ready.push_front(item);
            }
        }
        drop(state);
        self.bell.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panicked inside the queue")
    }
}

impl State {
    fn len(&self) -> usize {
        self.ready.len() + self.later.len() + self.out.len()
    }

    /// Moves what has become due to the front: it was there before everything that is ready.
    fn ripen(&mut self) {
        let still_later = self.later.split_off(&(Instant::now(), u64::MAX));
        let due = std::mem::replace(&mut self.later, still_later);
        for item in due.into_values().rev() {
            self.ready.push_front(item);
        }
    }

    fn hand_out(&mut self, subscriber: u64, mut item: Item) -> Delivery {
        item.deliveries += 1;
        self.last_receipt += 1;
        let receipt = Receipt(self.last_receipt);
        let delivery = Delivery { envelope: item.envelope.clone(), receipt, attempt: item.deliveries };
        self.out.insert(self.last_receipt, (subscriber, item));
        delivery
    }

    fn take_back(&mut self, subscriber: u64, receipt: Receipt) -> Option<Item> {
        let (by, _) = self.out.get(&receipt.0)?;
        if *by != subscriber {
            return None;
        }
        self.out.remove(&receipt.0).map(|(_, item)| item)
    }
}

/// The instant so far from now; an unthinkably long wait ends in thirty years.
fn later_by(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or_else(|| now + Duration::from_hours(30 * 365 * 24))
}
