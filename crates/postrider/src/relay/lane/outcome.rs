//! Outcomes: what the publisher's answer makes of each entry.
//!
//! | outcome | the message | counts | its key |
//! |---|---|---|---|
//! | durable | done | | goes on |
//! | rejected | retries after a back-off, or is dead | yes | waits |
//! | unavailable | front of its line, and the breaker opens; or [set aside](super::aside) | no | waits |
//! | throttled | front of its line; the lane pauses | no | waits |
//! | unknown | goes again after a moment, under the same id | see below | waits |
//!
//! A message whose outcome is unknown again and again while others go through is taken for rejected; if nothing goes
//! through, for an outage. Otherwise one message that always times out would stop the lane without a cause. That outage is a
//! guess, and is told as one. An outage that the destination tells of in between begins the count anew: a broker that ends
//! again and again makes nobody pay for what was under way.

use std::time::Duration;

use postrider_core::{
    parked::{Cause, Ordinal, Parked},
    transport::{ASKED_PAUSE_MIN, Outcome, THROTTLE_MAX},
};

use super::{
    Batch, Lane, Note, Ready, Tick,
    aside::Others,
    breaker::Change,
    entry::{NIL, Source, State},
    ticks,
};
use crate::relay::planted::Plant;

/// Answers of batches that were in flight together ask for the same pause, a moment later.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Lane {
    /// A batch has come back, with one outcome for each of its messages.
    pub(crate) fn published(&mut self, now: Tick, batch: u32, outcomes: Vec<Outcome>) {
        let Some(Batch { members, sent_after }) = self.batches[batch as usize].take() else { return };
        self.in_flight -= 1;
        let durables = outcomes.iter().filter(|outcome| **outcome == Outcome::Durable).count() as u64;
        let mut answer = Answer { durables, sent_after, ..Answer::default() };
        let durables = self.counts.durable + durables;
        // The line of the last member that did not go through: those behind it in the same run were not published.
        let mut broken = NIL;
        let mut back: Vec<u32> = Vec::new();
        let mut outcomes = outcomes.into_iter();
        for &e in &members {
            let outcome = outcomes.next().unwrap_or_else(|| {
                Outcome::Unknown(Cause::new("no-outcome", "the publisher answered fewer messages than it was given"))
            });
            let l = self.entries[e].line;
            if l != NIL {
                self.lines[l].flying -= 1;
            }
            let whole_batch = self.planted(Plant::WholeBatchOnPartial) && answer.answered;
            let unknown = matches!(outcome, Outcome::Unknown(_)) && self.planted(Plant::UnknownIsDurable);
            if outcome == Outcome::Durable || whole_batch || unknown {
                answer.answered = true;
                self.durable(now, e);
                if l != NIL && l != broken {
                    self.settle_line(now, l);
                }
            } else if l != NIL && l == broken {
                back.push(e);
            } else {
                broken = l;
                if !self.failed(now, e, outcome, durables, &mut answer) {
                    back.push(e);
                }
            }
        }
        self.put_back(now, &back);
        for l in std::mem::take(&mut answer.failed) {
            self.settle_line(now, l);
        }
        self.tell_breaker(now, batch, answer);
    }

    fn durable(&mut self, now: Tick, e: u32) {
        self.counts.durable += 1;
        if !self.failing.is_empty() {
            self.failing.clear();
        }
        self.aside.goes_through(&self.entries.record(e).envelope);
        let (l, ordinal) = (self.entries[e].line, Ordinal(self.entries[e].place));
        match self.entries[e].source {
            Source::Log => {
                self.entries[e].state = State::Done;
                self.touch(now);
                return;
            }
            Source::Line => {
                self.lines[l].loaded -= 1;
                let rows = self.lines[l].rows.saturating_sub(1);
                self.lines.set_rows(l, rows);
            }
            Source::Timed => {}
        }
        self.remove.push(ordinal);
        self.drop_entry(e);
        self.touch(now);
    }

    /// Decides what a failure means. `false`: it goes back to the front of its line as if nothing had been tried. `durables`:
    /// all that ever were durable, with those of this batch.
    fn failed(&mut self, now: Tick, e: u32, outcome: Outcome, durables: u64, answer: &mut Answer) -> bool {
        let l = self.entries[e].line;
        if l != NIL {
            answer.failed.push(l);
        }
        self.entries.trouble(e).sent_after.get_or_insert(answer.sent_after);
        match outcome {
            Outcome::Durable => unreachable!("handled by the caller"),
            Outcome::Rejected(cause) => {
                answer.answered = true;
                self.rejected(now, e, cause);
                true
            }
            Outcome::Throttled(after) if after < ASKED_PAUSE_MIN => {
                // The publisher's own turns are taken; the destination has said nothing.
                self.paused_until = self.paused_until.max(now + ticks(after));
                false
            }
            Outcome::Throttled(after) => {
                answer.answered = true;
                self.throttled(now, after.min(THROTTLE_MAX));
                false
            }
            Outcome::Unavailable(cause) if self.planted(Plant::AttemptsWhileOpen) => {
                self.rejected(now, e, cause);
                true
            }
            Outcome::Unavailable(cause) => {
                let others = self.others(now, e, &cause, durables, answer.durables > 0);
                answer.answered |= others == Others::GoThrough;
                if others != Others::Unknown {
                    self.set_aside(now, e, &cause);
                    return true;
                }
                let trouble = self.entries.trouble(e);
                // Whatever nothing is known of before an outage belongs to it.
                (trouble.tried, trouble.unknowns, trouble.durables_before) = (true, 0, None);
                answer.outage.get_or_insert(Outage { cause, guessed: false });
                false
            }
            Outcome::Unknown(cause) => self.unknown(now, e, cause, answer),
        }
    }

    /// The lane rests until then. Told when it begins, and if it becomes longer by more than the moment between two answers.
    fn throttled(&mut self, now: Tick, pause: Duration) {
        let until = now + ticks(pause);
        if self.throttled_until <= now || until > self.throttled_until + ticks(TOLD_AGAIN_AFTER) {
            self.notes.push(Note::Throttled { pause });
        }
        self.throttled_until = self.throttled_until.max(until);
        self.paused_until = self.paused_until.max(until);
    }

    fn unknown(&mut self, now: Tick, e: u32, cause: Cause, answer: &mut Answer) -> bool {
        let durable = self.counts.durable;
        self.failing.insert(self.entries.record(e).envelope.id);
        let trouble = self.entries.trouble(e);
        trouble.tried = true;
        let durables_before = *trouble.durables_before.get_or_insert(durable);
        trouble.unknowns += 1;
        trouble.cause = Some(cause.clone());
        if trouble.unknowns < self.options.unknown_max {
            let wait = self.pause();
            self.entries[e].state = State::Again;
            self.set_timer(now + wait, e);
            let l = self.entries[e].line;
            if l != NIL {
                self.lines[l].barrier = e;
            }
            return true;
        }
        trouble.unknowns = 0;
        if durable > durables_before {
            let detail =
                format!("result unknown {} times while others went through; {cause}", self.options.unknown_max);
            answer.answered = true;
            self.rejected(now, e, Cause::new("result-unknown", detail));
            return true;
        }
        answer.outage.get_or_insert(Outage { cause, guessed: true });
        false
    }

    fn rejected(&mut self, now: Tick, e: u32, cause: Cause) {
        self.failing.remove(&self.entries.record(e).envelope.id);
        self.entries[e].attempts += 1;
        let attempts = self.entries[e].attempts;
        let attempts_max = self.entries.record(e).envelope.attempts_max.unwrap_or(self.options.retry.attempts_max);
        if attempts >= attempts_max {
            let blocks = self.options.on_dead == super::OnDead::Hold && self.entries[e].line != NIL;
            self.give_up(now, e, cause, blocks);
            return;
        }
        let record = self.entries.record(e).clone();
        self.notes.push(Note::Rejected { record, attempts, cause: cause.clone() });
        let random = self.chance();
        let wait = self.options.retry.wait(attempts, random);
        self.goes_again(now, e, cause, wait);
    }

    /// It goes again after a wait, and its key waits for it: from memory, or parked if the cursor gets there before.
    pub(super) fn goes_again(&mut self, now: Tick, e: u32, cause: Cause, wait: Duration) {
        let attempts = self.entries[e].attempts;
        let trouble = self.entries.trouble(e);
        (trouble.unknowns, trouble.durables_before) = (0, None);
        (trouble.cause, trouble.tried) = (Some(cause.clone()), true);
        match self.entries[e].source {
            Source::Log if self.planted(Plant::RetryToTail) && self.entries[e].line != NIL => {
                let l = self.entries[e].line;
                self.entries[e].state = State::Waiting;
                self.lines.push_back(&mut self.entries, l, e);
                return;
            }
            Source::Log => {
                self.entries[e].state = State::Retry;
                self.set_timer(now + ticks(wait), e);
            }
            Source::Line | Source::Timed => {
                self.change_row(now, e, Parked::Retrying { after: wait, attempts, cause });
            }
        }
        self.make_barrier(now, e, true);
    }

    /// The verdict. Also one that releases the key is committed before the key goes on: after a crash the next owner would
    /// otherwise try the given-up one again, behind its successors.
    fn give_up(&mut self, now: Tick, e: u32, cause: Cause, blocks: bool) {
        let (record, attempts) = (self.entries.record(e).clone(), self.entries[e].attempts);
        self.notes.push(Note::Dead { record, attempts, cause: cause.clone(), blocks });
        self.entries.trouble(e).cause = Some(cause.clone());
        match self.entries[e].source {
            Source::Log => self.entries[e].state = State::Dead { blocks },
            Source::Line | Source::Timed => self.change_row(now, e, Parked::Dead { attempts, cause, blocks }),
        }
        if self.planted(Plant::VerdictNotCommitted) && !blocks {
            return;
        }
        self.make_barrier(now, e, blocks);
    }

    /// A stored row gets a new state with the next commit; its entry stays until then.
    fn change_row(&mut self, now: Tick, e: u32, parked: Parked) {
        let (l, source) = (self.entries[e].line, self.entries[e].source);
        if l != NIL {
            let rows = self.lines[l].rows;
            let rows = match (source, parked.in_line()) {
                (Source::Timed, true) => rows + 1,
                (Source::Line, false) => rows.saturating_sub(1),
                _ => rows,
            };
            self.lines.set_rows(l, rows);
            if source == Source::Line {
                self.lines[l].loaded -= 1;
            }
        }
        let releases = !parked.in_line();
        self.change.push((Ordinal(self.entries[e].place), e, parked));
        self.entries[e].state = State::Parking { releases };
        self.touch(now);
    }

    /// From now on its key waits for this entry. `stays`: it will stand in the stored line.
    fn make_barrier(&mut self, now: Tick, e: u32, stays: bool) {
        self.touch(now);
        let l = self.entries[e].line;
        if l == NIL {
            return;
        }
        self.lines[l].barrier = e;
        if self.entries[e].source == Source::Log {
            self.forget_timed(l);
        } else {
            self.lines[l].ahead |= stays;
            self.give_line_to_store(now, l);
        }
    }

    /// The barrier is only in memory: timed rows go back to the store, where they still are, and come due again. If they
    /// waited here they could use up the room for rows, while the barrier waits for other rows to make room for it.
    fn forget_timed(&mut self, l: u32) {
        for e in self.lines.take_from(&mut self.entries, l, |source| source == Source::Timed) {
            self.forget_row(e);
        }
    }

    /// The barrier is a row of the store: what was loaded behind it is still held there and can be forgotten, and timed
    /// rows join the line's tail. Records from the log stay queued until the cursor reaches them.
    fn give_line_to_store(&mut self, now: Tick, l: u32) {
        for e in self.lines.take_from(&mut self.entries, l, |source| source == Source::Line) {
            self.active.remove(&Ordinal(self.entries[e].place));
            self.lines[l].loaded -= 1;
            self.lines[l].ahead = true;
            self.drop_entry(e);
        }
        self.join_timed(now, l);
    }

    /// In reverse, so that each lands before the one that was behind it.
    fn put_back(&mut self, now: Tick, back: &[u32]) {
        for &e in back.iter().rev() {
            self.entries[e].state = State::Waiting;
            let l = self.entries[e].line;
            if l == NIL {
                self.ready.push_back(Ready::Loose(e));
                continue;
            }
            self.lines.push_front(&mut self.entries, l, e);
        }
        let mut lines: Vec<u32> = back.iter().map(|&e| self.entries[e].line).filter(|&l| l != NIL).collect();
        lines.dedup();
        for l in lines {
            let barrier = self.lines[l].barrier;
            match self.entries.get(barrier).map(|entry| entry.state) {
                Some(State::Parking { .. }) => self.give_line_to_store(now, l),
                Some(State::Retry | State::Dead { .. }) => self.forget_timed(l),
                _ => {}
            }
        }
        if self.draining {
            self.forget_rows();
        }
    }

    fn tell_breaker(&mut self, now: Tick, batch: u32, answer: Answer) {
        let random = self.chance();
        let change = self.breaker.returned(now, batch, answer.answered, answer.outage.is_some(), random);
        let told = self.outage.clone();
        if let Some(outage) = &answer.outage {
            self.outage = Some(outage.clone());
        }
        match change {
            Change::None => {
                // One who is gone for good may first have been down for a while, and somebody has to hear of it.
                if let (Some(told), Some(outage)) = (told, answer.outage)
                    && told.cause.code() != outage.cause.code()
                    && self.breaker.is_open()
                {
                    self.notes.push(Note::OutageChanged { cause: outage.cause });
                }
            }
            Change::Opened => {
                let silent = || Cause::new("unavailable", "the destination does not answer");
                let cause = answer.outage.map_or_else(silent, |outage| outage.cause);
                self.notes.push(Note::BreakerOpened { cause });
            }
            Change::Closed => {
                self.outage = None;
                self.notes.push(Note::BreakerClosed);
            }
        }
    }

    /// Whether the sender has said that this one is worthless by now.
    #[inline]
    pub(super) fn is_expired(&self, now: Tick, e: u32) -> bool {
        self.entries[e].troubled && self.entries.trouble_of(e).is_some_and(|trouble| trouble.expires_at <= now)
    }

    /// It is not published, and leaves a record of that.
    pub(super) fn give_up_expired(&mut self, now: Tick, e: u32) {
        self.failing.remove(&self.entries.record(e).envelope.id);
        self.give_up(now, e, Cause::new("expired", "its expires_at had passed before it could be published"), false);
    }
}

/// Why nothing goes through.
#[derive(Clone, Debug)]
pub(super) struct Outage {
    pub(super) cause: Cause,
    /// The destination has not said so: nothing is known of what was sent, and nothing else went through.
    pub(super) guessed: bool,
}

/// What a batch says about the destination.
#[derive(Default)]
struct Answer {
    /// It said something about a message, or has taken another one meanwhile.
    answered: bool,
    /// It took nothing, and why.
    outage: Option<Outage>,
    /// Lines with a failure.
    failed: Vec<u32>,
    /// How many went through.
    durables: u64,
    /// How many had been durable when it was sent.
    sent_after: u64,
}
