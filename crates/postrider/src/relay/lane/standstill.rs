//! What a lane waits for, for whoever asks why nothing moves. Nothing is decided by it.

use postrider_core::{
    parked::Cause,
    standstill::{MessageState, Reason},
};

use super::{Lane, Tick, entry::State};

impl Lane {
    /// What keeps the cursor where it is; `None` if there is nothing that it could pass.
    pub(crate) fn waits_for(&mut self, now: Tick) -> Option<Reason> {
        if self.breaker.is_open() {
            let failing = self.outage.as_ref().filter(|outage| outage.guessed).map(|_| self.failing.len() as u64);
            let silent = || Cause::new("unavailable", "the destination does not answer");
            let cause = self.outage.as_ref().map_or_else(silent, |outage| outage.cause.clone());
            let seconds_left = self.breaker.tries_at().map(|at| at.saturating_sub(now).div_ceil(1_000_000));
            return Some(Reason::Unavailable { cause, failing, seconds_left });
        }
        if self.throttled_until > now {
            return Some(Reason::Throttled { seconds_left: Some((self.throttled_until - now).div_ceil(1_000_000)) });
        }
        let done = self.window.count_done(&self.entries);
        let e = self.window.get(done).or_else(|| self.window.get(0))?;
        let (message, entry) = (self.entries.record(e).envelope.id, &self.entries[e]);
        if let Some(limit) = self.stalled {
            return Some(Reason::Limit { limit: limit.to_owned(), message });
        }
        let state = match entry.state {
            State::InFlight => MessageState::Answer,
            State::Again | State::Retry => MessageState::Retry,
            State::Waiting => MessageState::Turn,
            State::Dead { .. } | State::Scheduled | State::Parking { .. } | State::Done => MessageState::Commit,
        };
        let cause = self.entries.trouble_of(e).and_then(|trouble| trouble.cause.clone());
        Some(Reason::Message { message, state, attempts: entry.attempts, cause })
    }
}
