//! Set aside: messages whose own destination takes nothing, while others of the route go through.
//!
//! A route can lead to many topics, queues or streams, and one of them can be gone, or be forbidden, for days. That is an
//! outage, so it spends no attempts; but the breaker must not stay open for it, or the others would wait as well. Such a
//! message waits like a rejected one, with its key, and is parked when the cursor reaches it. All that are set aside go again
//! at common moments, which lie ever further apart for as long as any of them fails.
//!
//! A single refusal does not tell an outage of one destination from that of all: a broker that goes down in the middle of a
//! batch has taken some of it. So the first ones open the breaker, and what is refused again after others went through is set
//! aside. While that is known of the lane, what is refused beside others of the same batch is set aside at once, what is
//! refused alone the second time, and what is parked stays so.
//!
//! Where the publisher says that it is the [one destination](Cause::of_one_destination), it is enough that another has gone
//! through since the message was first sent. Its word alone is not: a server that has lost everything says it of every one, and
//! then all that comes would be parked.

use std::time::Duration;

use postrider_core::{
    parked::{Cause, DESTINATION_UNAVAILABLE},
    retry::RetryPolicy,
};

use super::{Lane, Note, Tick, breaker, entry::Source, ticks};

pub(super) struct Aside {
    pauses: RetryPolicy,
    forgotten_after: Tick,
    strikes: u32,
    /// When those that are set aside go again.
    until: Tick,
    /// The code of the cause that was told last.
    told: Option<String>,
}

impl Aside {
    pub(super) fn new(first: Duration, max: Duration) -> Self {
        let pauses = breaker::pauses(first, max);
        Self { pauses, forgotten_after: ticks(max), strikes: 0, until: 0, told: None }
    }

    /// Whether some destination of the lane was known to take nothing a short while ago.
    fn is_known(&self, now: Tick) -> bool {
        self.strikes > 0 && now <= self.until.saturating_add(self.forgotten_after)
    }

    /// One more is refused: when to try again.
    fn refused(&mut self, now: Tick, random: u64) -> Tick {
        if !self.is_known(now) {
            (self.strikes, self.told) = (0, None);
        }
        if self.strikes == 0 || now >= self.until {
            self.strikes = self.strikes.saturating_add(1);
            self.until = now + ticks(self.pauses.wait(self.strikes, random));
        }
        self.until
    }
}

/// What is known of the others when a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    /// One has gone through since: this destination takes nothing, and there is no outage of all.
    GoThrough,
    /// Nothing new, but a short while ago it was so.
    WentThrough,
    Unknown,
}

impl Lane {
    /// A message was refused: whether that is known to be so of its own destination alone. `durables`: all that ever were
    /// durable, with those `beside` it in its batch, if there are any.
    pub(super) fn others(&mut self, now: Tick, e: u32, cause: &Cause, durables: u64, beside: bool) -> Others {
        let (known, is_parked) = (self.aside.is_known(now), self.entries[e].source != Source::Log);
        let trouble = self.entries.trouble(e);
        let before = trouble.refused_after.replace(durables);
        let since = if cause.is_of_one_destination() { trouble.sent_after } else { before };
        if since.is_some_and(|since| durables > since) {
            Others::GoThrough
        } else if known && (beside || is_parked || before.is_some()) {
            Others::WentThrough
        } else {
            Others::Unknown
        }
    }

    pub(super) fn set_aside(&mut self, now: Tick, e: u32, cause: &Cause) {
        let random = self.chance();
        let again_at = self.aside.refused(now, random);
        if self.aside.told.as_deref() != Some(cause.code()) {
            self.aside.told = Some(cause.code().to_owned());
            self.notes.push(Note::SetAside { record: self.entries.record(e).clone(), cause: cause.clone() });
        }
        let cause = Cause::new(DESTINATION_UNAVAILABLE, cause.to_string());
        self.goes_again(now, e, cause, Duration::from_micros(again_at - now));
    }
}
