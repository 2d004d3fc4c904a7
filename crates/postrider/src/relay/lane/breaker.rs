//! The breaker: what keeps a lane from hammering a destination that is down.
//!
//! It opens when a publish comes back `Unavailable`, or when nothing is ever known of what was sent. It waits with growing,
//! jittered pauses and then lets a single probe through with nothing else in flight. Only a probe closes it, by any answer of
//! the destination; late answers of batches sent before the opening neither close nor re-open it.
//!
//! A message that failed before and fails again says nothing new about the others: perhaps it is bad itself, or only its own
//! topic or queue is gone. So the pauses are counted twice. That of messages which were tried already grows with every probe;
//! that of others only when one of them was the probe. A few such messages on a quiet route thus keep themselves waiting for
//! long, and nobody else.

use std::time::Duration;

use postrider_core::retry::{Backoff, Jitter, RetryPolicy};

use super::Tick;

pub(super) struct Breaker {
    pauses: RetryPolicy,
    /// When any message may be the probe.
    open_until: Option<Tick>,
    strikes: u32,
    /// When one may that was not tried yet; never later than any.
    untried_at: Tick,
    untried_strikes: u32,
    probe: Option<Probe>,
}

#[derive(Clone, Copy)]
struct Probe {
    batch: u32,
    untried: bool,
}

/// What may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allowed {
    Everything,
    Probe,
    /// A probe, if it is a message that was not tried yet.
    UntriedProbe,
    Nothing,
}

/// Ever longer ones, while a destination takes nothing.
pub(super) fn pauses(first: Duration, max: Duration) -> RetryPolicy {
    let backoff = Backoff::Exponential { first, factor: 2.0, max };
    RetryPolicy { attempts_max: u32::MAX, backoff, jitter: Jitter::Half }
}

impl Breaker {
    pub(super) fn new(first: Duration, max: Duration) -> Self {
        let pauses = pauses(first, max);
        Self { pauses, open_until: None, strikes: 0, untried_at: 0, untried_strikes: 0, probe: None }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open_until.is_some()
    }

    pub(super) fn allows(&self, now: Tick, in_flight: u32) -> Allowed {
        match self.open_until {
            None => Allowed::Everything,
            Some(_) if self.probe.is_some() || in_flight > 0 => Allowed::Nothing,
            Some(until) if now >= until => Allowed::Probe,
            Some(_) if now >= self.untried_at => Allowed::UntriedProbe,
            Some(_) => Allowed::Nothing,
        }
    }

    /// When a probe may go, if that is what is being waited for. `untried_is_there` is asked only if it matters.
    pub(super) fn probe_at(&self, in_flight: u32, untried_is_there: impl FnOnce() -> bool) -> Option<Tick> {
        let until = self.open_until.filter(|_| self.probe.is_none() && in_flight == 0)?;
        Some(if self.untried_at < until && untried_is_there() { self.untried_at } else { until })
    }

    /// When it lets anything through again, if it is open and no probe is under way: for people.
    pub(super) fn tries_at(&self) -> Option<Tick> {
        self.open_until.filter(|_| self.probe.is_none())
    }

    /// A batch goes out. `untried`: its first message was not tried before.
    pub(super) fn sent(&mut self, batch: u32, untried: bool) {
        if self.is_open() {
            self.probe = Some(Probe { batch, untried });
        }
    }

    /// A batch came back: `answered` if the destination said anything about a message, `refused` if it took nothing.
    /// Answers whether the breaker changed.
    pub(super) fn returned(&mut self, now: Tick, batch: u32, answered: bool, refused: bool, random: u64) -> Change {
        let probe = self.probe.filter(|probe| probe.batch == batch);
        if probe.is_some() {
            self.probe = None;
        }
        if probe.is_some() && answered {
            (self.open_until, self.strikes, self.untried_strikes) = (None, 0, 0);
            return Change::Closed;
        }
        let opened = self.open_until.is_none();
        if probe.is_none() && !(refused && opened) {
            return Change::None;
        }
        self.strikes = self.strikes.saturating_add(1);
        self.open_until = Some(now + super::ticks(self.pauses.wait(self.strikes, random)));
        if opened || probe.is_some_and(|probe| probe.untried) {
            self.untried_strikes = self.untried_strikes.saturating_add(1);
            self.untried_at = now + super::ticks(self.pauses.wait(self.untried_strikes, random));
        }
        if opened { Change::Opened } else { Change::None }
    }
}

/// What a returned batch did to the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    Opened,
    Closed,
}
