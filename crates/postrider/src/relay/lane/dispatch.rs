//! Dispatch: from the ready queue into batches, in order per key.

use super::{Batch, Effect, Lane, Ready, Tick, breaker::Allowed, entry::NIL, entry::Source, entry::State};
use crate::relay::planted::Plant;

impl Lane {
    pub(super) fn dispatch(&mut self, now: Tick, out: &mut Vec<Effect>) {
        if now < self.paused_until {
            return;
        }
        while self.in_flight < self.options.batches_max && !self.ready.is_empty() {
            let tokens = self.tokens.available(now);
            if tokens == 0 {
                return;
            }
            let most = match self.breaker.allows(now, self.in_flight) {
                Allowed::Everything => self.options.batch_records_max,
                Allowed::Probe => {
                    self.put_untried_first(now);
                    1
                }
                Allowed::UntriedProbe if self.put_untried_first(now) => 1,
                Allowed::UntriedProbe | Allowed::Nothing => return,
            };
            let most = most.min(tokens);
            let members = self.gather(now, most);
            if members.is_empty() {
                return;
            }
            self.tokens.take(u32::try_from(members.len()).expect("no more than the batch"));
            let mut records = Vec::with_capacity(members.len());
            let untried = self.is_new(members[0]);
            for &e in &members {
                let entry = &mut self.entries[e];
                entry.state = State::InFlight;
                if entry.source == Source::Log {
                    self.furthest = self.furthest.max(entry.place + 1);
                }
                records.push(self.entries.record(e).clone());
            }
            let batch = self.batch_number(members);
            self.in_flight += 1;
            self.breaker.sent(batch, untried);
            out.push(Effect::Publish { batch, records });
        }
    }

    /// What has failed already is a poor probe: it may be to blame itself. Answers whether there is another.
    fn put_untried_first(&mut self, now: Tick) -> bool {
        let Some(place) = self.ready.iter().position(|&ready| self.is_untried(now, ready)) else { return false };
        let ready = self.ready.remove(place).expect("it was found there");
        self.ready.push_front(ready);
        true
    }

    /// Whether something waits that could go as a probe and was not tried yet.
    pub(super) fn untried_is_ready(&self, now: Tick) -> bool {
        self.ready.iter().any(|&ready| self.is_untried(now, ready))
    }

    fn is_untried(&self, now: Tick, ready: Ready) -> bool {
        let may = |e| self.is_new(e) && !self.held_back_by_drain(e) && !self.is_expired(now, e);
        match ready {
            Ready::Loose(e) => may(e),
            Ready::Line(l) => {
                let line = &self.lines[l];
                line.head != NIL && line.barrier == NIL && self.may_go(l, line.head) && may(line.head)
            }
        }
    }

    /// Neither it nor another that goes to the same destination was refused.
    fn is_new(&self, e: u32) -> bool {
        !self.entries.was_tried(e) && !self.aside.is_gone(&self.entries.record(e).envelope)
    }

    /// Up to `most` entries: single ones, and of each line as many from its front as may ride together.
    fn gather(&mut self, now: Tick, most: u32) -> Vec<u32> {
        let most = most as usize;
        let mut members = Vec::with_capacity(most.min(self.ready.len() * self.options.run_max as usize));
        while members.len() < most {
            match self.ready.pop_front() {
                None => break,
                Some(Ready::Loose(e)) if self.held_back_by_drain(e) => {}
                Some(Ready::Loose(e)) if self.is_expired(now, e) => self.give_up_expired(now, e),
                Some(Ready::Loose(e)) => members.push(e),
                Some(Ready::Line(l)) => {
                    self.lines[l].ready = false;
                    let run = (self.options.run_max as usize).min(most - members.len());
                    for _ in 0..run {
                        let line = &self.lines[l];
                        let e = line.head;
                        if e == NIL || line.barrier != NIL || !self.may_go(l, e) || self.held_back_by_drain(e) {
                            break;
                        }
                        if self.is_expired(now, e) {
                            // Its verdict makes it the barrier of its key: not while others of the key are in flight, whose
                            // slots lie before it.
                            if self.lines[l].flying == 0 {
                                self.lines.pop_front(&self.entries, l);
                                self.give_up_expired(now, e);
                            }
                            break;
                        }
                        self.lines.pop_front(&self.entries, l);
                        self.lines[l].flying += 1;
                        members.push(e);
                    }
                }
            }
        }
        members
    }

    /// While draining only holes go out: what lies before something that went out already.
    #[inline]
    fn held_back_by_drain(&self, e: u32) -> bool {
        self.draining
            && (self.entries[e].source != Source::Log
                || self.entries[e].place >= self.furthest
                || self.planted(Plant::DrainLeavesHoles))
    }

    fn batch_number(&mut self, members: Vec<u32>) -> u32 {
        let free = self.batches.iter().position(Option::is_none).unwrap_or_else(|| {
            self.batches.push(None);
            self.batches.len() - 1
        });
        self.batches[free] = Some(Batch { members, sent_after: self.counts.durable });
        u32::try_from(free).expect("a handful of batches")
    }
}

/// A token bucket with a tenth of a second of burst: how many messages may go now under the route's rate.
pub(super) struct Tokens {
    rate: Option<u32>,
    /// Millionths of a message.
    level: u64,
    filled_at: Tick,
}

impl Tokens {
    pub(super) fn new(rate: Option<u32>) -> Self {
        Self { rate, level: 0, filled_at: 0 }
    }

    fn available(&mut self, now: Tick) -> u32 {
        let Some(rate) = self.rate else { return u32::MAX };
        let burst = (u64::from(rate) / 10).max(1) * 1_000_000;
        let gained = now.saturating_sub(self.filled_at).saturating_mul(u64::from(rate));
        self.level = self.level.saturating_add(gained).min(burst);
        self.filled_at = now;
        u32::try_from(self.level / 1_000_000).unwrap_or(u32::MAX)
    }

    fn take(&mut self, messages: u32) {
        if self.rate.is_some() {
            self.level = self.level.saturating_sub(u64::from(messages) * 1_000_000);
        }
    }

    /// When the next whole message is in the bucket.
    pub(super) fn next_at(&self) -> Tick {
        match self.rate {
            Some(rate) if self.level < 1_000_000 => {
                self.filled_at + (1_000_000 - self.level).div_ceil(u64::from(rate.max(1)))
            }
            _ => 0,
        }
    }
}
