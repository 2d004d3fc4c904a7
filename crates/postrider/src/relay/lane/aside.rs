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
//! then all that comes would be parked. What it has said it of is remembered by topic and name, which lead to one destination:
//! whatever follows there once another has gone through is set aside at once; and until then it is as poor a probe as a message
//! that was tried itself.

use std::{collections::HashMap, sync::Arc, time::Duration};

use postrider_core::{
    envelope::Envelope,
    parked::{Cause, DESTINATION_UNAVAILABLE},
    retry::RetryPolicy,
};

use super::{Lane, Note, Tick, breaker, entry::Source, ticks};

/// So many destinations are remembered. Beyond that all are forgotten, and have to fail once more.
const REMEMBERED_MAX: usize = 1_000;

pub(super) struct Aside {
    pauses: RetryPolicy,
    forgotten_after: Tick,
    strikes: u32,
    /// When those that are set aside go again.
    until: Tick,
    /// The code of the cause that was told last.
    told: Option<String>,
    /// Topics and names of which the publisher has said that their destination alone takes nothing, until something goes there;
    /// and how many messages had been durable when it first said so.
    gone: HashMap<(Arc<str>, Arc<str>), u64>,
}

impl Aside {
    pub(super) fn new(first: Duration, max: Duration) -> Self {
        let pauses = breaker::pauses(first, max);
        Self { pauses, forgotten_after: ticks(max), strikes: 0, until: 0, told: None, gone: HashMap::new() }
    }

    /// Whether what goes to the same destination as this was refused, and nothing has gone there since.
    pub(super) fn is_gone(&self, envelope: &Envelope) -> bool {
        !self.gone.is_empty() && self.gone.contains_key(&leads_to(envelope))
    }

    /// The publisher says that this destination alone takes nothing, when so many are durable. How many were when it said so first.
    fn goes(&mut self, envelope: &Envelope, durables: u64) -> u64 {
        if self.gone.len() >= REMEMBERED_MAX {
            self.gone.clear();
        }
        *self.gone.entry(leads_to(envelope)).or_insert(durables)
    }

    /// Something has gone through.
    #[inline]
    pub(super) fn goes_through(&mut self, envelope: &Envelope) {
        if !self.gone.is_empty() {
            self.gone.remove(&leads_to(envelope));
        }
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

/// Routers go by these two.
fn leads_to(envelope: &Envelope) -> (Arc<str>, Arc<str>) {
    (Arc::clone(&envelope.topic), Arc::clone(&envelope.name))
}

/// What is known of the others when a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    /// One has gone through since: this destination takes nothing, and there is no outage of all.
    GoThrough,
    /// Nothing new, but a short while ago it was so, or since the destination was first found to be gone.
    WentThrough,
    Unknown,
}

impl Lane {
    /// A message was refused: whether that is known to be so of its own destination alone. `durables`: all that ever were
    /// durable, with those `beside` it in its batch, if there are any.
    pub(super) fn others(&mut self, now: Tick, e: u32, cause: &Cause, durables: u64, beside: bool) -> Others {
        let (known, is_parked) = (self.aside.is_known(now), self.entries[e].source != Source::Log);
        let is_of_one = cause.is_of_one_destination();
        let gone_since = if is_of_one { self.aside.goes(&self.entries.record(e).envelope, durables) } else { durables };
        let trouble = self.entries.trouble(e);
        let before = trouble.refused_after.replace(durables);
        let since = if is_of_one { trouble.sent_after } else { before };
        if since.is_some_and(|since| durables > since) {
            Others::GoThrough
        } else if durables > gone_since || (known && (beside || is_parked || before.is_some())) {
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
