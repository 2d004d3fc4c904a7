//! The breaker: what keeps a lane from hammering a destination that is down.
//!
//! It opens when a publish comes back `Unavailable`, waits with growing, jittered pauses and then lets a single probe
//! through with nothing else in flight. Only a probe closes it, by any answer of the destination; late answers of batches
//! sent before the opening neither close nor re-open it.

use std::time::Duration;

use postrider_core::retry::{Backoff, Jitter, RetryPolicy};

use super::Tick;

pub(super) struct Breaker {
    policy: RetryPolicy,
    open_until: Option<Tick>,
    strikes: u32,
    probe: Option<u32>,
}

impl Breaker {
    pub(super) fn new(first: Duration, max: Duration) -> Self {
        let backoff = Backoff::Exponential { first, factor: 2.0, max };
        let policy = RetryPolicy { attempts_max: u32::MAX, backoff, jitter: Jitter::Half };
        Self { policy, open_until: None, strikes: 0, probe: None }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open_until.is_some()
    }

    /// How many messages the next batch may have: all, one as a probe, or none.
    pub(super) fn allows(&self, now: Tick, batch_max: u32, in_flight: u32) -> u32 {
        match self.open_until {
            None => batch_max,
            Some(until) if now >= until && self.probe.is_none() && in_flight == 0 => 1,
            Some(_) => 0,
        }
    }

    /// When a probe may go, if that is what is being waited for.
    pub(super) fn probe_at(&self, in_flight: u32) -> Option<Tick> {
        self.open_until.filter(|_| self.probe.is_none() && in_flight == 0)
    }

    pub(super) fn sent(&mut self, batch: u32) {
        if self.is_open() {
            self.probe = Some(batch);
        }
    }

    /// A batch came back: `answered` if the destination said anything about a message, `refused` if it took nothing.
    /// Answers whether the breaker changed.
    pub(super) fn returned(&mut self, now: Tick, batch: u32, answered: bool, refused: bool, random: u64) -> Change {
        let probe = self.probe == Some(batch);
        if probe {
            self.probe = None;
        }
        if probe && answered {
            (self.open_until, self.strikes) = (None, 0);
            return Change::Closed;
        }
        if probe || (refused && self.open_until.is_none()) {
            let opened = self.open_until.is_none();
            self.strikes = self.strikes.saturating_add(1);
            self.open_until = Some(now + super::ticks(self.policy.wait(self.strikes, random)));
            return if opened { Change::Opened } else { Change::None };
        }
        Change::None
    }
}

/// What a returned batch did to the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    Opened,
    Closed,
}
