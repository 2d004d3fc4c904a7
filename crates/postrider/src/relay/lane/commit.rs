//! Commits: the cursor moves over the longest prefix of the window that is done or can be parked.

use std::{collections::HashMap, sync::Arc, time::Duration};

use postrider_core::{
    key::KeyHash,
    log::Settlement,
    parked::{BlockedKey, Cause, Parked},
};

use super::{
    Commit, Effect, Lane, Note, Settled, Tick,
    entry::{NIL, Source, State},
    ticks,
};
use crate::relay::planted::Plant;

/// The one operation on parked rows that may be under way.
pub(super) enum Control {
    Idle,
    Due,
    Counting,
    Committing(Pending),
    /// The answer was lost: the same again, then.
    Repeat(Tick, Pending),
}

impl Control {
    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }
}

pub(super) struct Pending {
    commit: Arc<Commit>,
    /// How many entries at the front of the window it passes.
    slots: usize,
    /// Entries that it parks or changes.
    parking: Vec<u32>,
}

/// What a commit can do with the entry at the end of the prefix.
enum Pass {
    /// The cursor must wait for it.
    Stop,
    /// The cursor must wait because a limit is reached.
    Limit(&'static str),
    Done,
    Park(Parked),
}

impl Lane {
    pub(super) fn control(&mut self, now: Tick, out: &mut Vec<Effect>) {
        if let Control::Repeat(at, _) = self.control {
            if now >= at
                && let Control::Repeat(_, pending) = std::mem::replace(&mut self.control, Control::Idle)
            {
                out.push(Effect::Settle(Arc::clone(&pending.commit)));
                self.control = Control::Committing(pending);
            }
            return;
        }
        if !self.control.is_idle() {
            return;
        }
        let rows_changed = !self.change.is_empty() || !self.remove.is_empty();
        let due_wanted = self.due_is_wanted(now);
        let settle = self.settle_at.is_some_and(|at| now >= at)
            || self.unsettled >= self.options.settle_every
            || self.draining
            || (due_wanted && rows_changed)
            || (self.unsettled > 0 && self.window.commit_makes_room(&self.entries));
        if settle && self.commit(now, out) {
            return;
        }
        if !self.change.is_empty() || !self.remove.is_empty() {
            return;
        }
        if self.stalled.is_some() && now >= self.recount_at && !self.draining {
            self.recount_at = now + ticks(self.options.poll_max);
            self.control = Control::Counting;
            out.push(Effect::Recount);
        } else if due_wanted {
            self.ask_for_due(now, out);
        }
    }

    /// What the store has of each key. A lane that stands still at a limit asks for it, because operators may have made
    /// room: it counts the rows that it parks itself, but nobody tells it of those that were discarded.
    pub(crate) fn recounted(&mut self, now: Tick, blocked: &[BlockedKey]) {
        self.control = Control::Idle;
        if !self.change.is_empty() || !self.remove.is_empty() {
            self.recount_at = now; // rows were changed here while the store was counting
            return;
        }
        let rows: HashMap<KeyHash, u32> = blocked.iter().map(|blocked| (blocked.key, blocked.rows)).collect();
        for l in self.lines.all() {
            if self.lines[l].barrier != NIL || self.lines[l].loaded > 0 {
                continue; // being worked on; what is known here is newer
            }
            let stored = rows.get(&self.lines[l].key).copied().unwrap_or(0);
            self.lines.set_rows(l, stored);
            if stored == 0 {
                self.lines[l].ahead = false;
                self.settle_line(now, l);
            }
        }
        self.touch(now);
    }

    pub(crate) fn recount_failed(&mut self) {
        self.control = Control::Idle;
    }

    /// When the control operations want to be looked at again.
    pub(super) fn control_at(&self) -> Tick {
        match &self.control {
            Control::Idle => {
                let due = if self.due_is_wanted(Tick::MAX) { self.due_at } else { Tick::MAX };
                let recount = if self.stalled.is_some() && !self.draining { self.recount_at } else { Tick::MAX };
                due.min(recount).min(self.settle_at.unwrap_or(Tick::MAX))
            }
            Control::Due | Control::Counting | Control::Committing(_) => Tick::MAX,
            Control::Repeat(at, _) => *at,
        }
    }

    fn commit(&mut self, now: Tick, out: &mut Vec<Effect>) -> bool {
        self.unsettled = 0;
        self.settle_at = None;
        let mut settlement = Settlement { remove: std::mem::take(&mut self.remove), ..Settlement::default() };
        let mut parking = Vec::new();
        let mut slots = self.window.count_done(&self.entries);
        let stalled_before = std::mem::take(&mut self.stalled);
        while let Some(e) = self.window.get(slots) {
            match self.pass(now, e) {
                Pass::Stop => break,
                Pass::Limit(limit) => {
                    self.stalled = Some(limit);
                    if stalled_before.is_none() || slots > 0 {
                        self.notes.push(Note::Stalled { record: self.entries.record(e).clone(), limit });
                    }
                    break;
                }
                Pass::Done => {}
                Pass::Park(parked) => {
                    parking.push(e);
                    self.park(e, parked, &mut settlement);
                }
            }
            slots += 1;
        }
        for (ordinal, e, parked) in std::mem::take(&mut self.change) {
            if e != NIL {
                parking.push(e);
            }
            settlement.change.push((ordinal, parked));
        }
        let advance = self.window.mark(slots + self.planted_overreach(slots));
        if advance.is_none() && settlement.change.is_empty() && settlement.remove.is_empty() {
            return false; // nothing can move yet; the next outcome will say so
        }
        self.counts.commits += 1;
        settlement.number = self.counts.commits;
        let commit = Arc::new(Commit { advance, settlement });
        out.push(Effect::Settle(Arc::clone(&commit)));
        self.control = Control::Committing(Pending { commit, slots, parking });
        true
    }

    fn pass(&self, now: Tick, e: u32) -> Pass {
        let entry = &self.entries[e];
        let trouble = self.entries.trouble_of(e);
        let cause =
            || trouble.and_then(|t| t.cause.clone()).unwrap_or_else(|| Cause::new("unknown", "no cause was given"));
        let parked = match entry.state {
            State::Done => return Pass::Done,
            State::Scheduled => return Pass::Park(Parked::Scheduled { after: self.entries.record(e).wait }),
            State::Dead { .. } if self.planted(Plant::DeadHeadBlocksSilently) => return Pass::Stop,
            State::Dead { blocks } => Parked::Dead { attempts: entry.attempts, cause: cause(), blocks },
            State::Retry => {
                let after = Duration::from_micros(trouble.map_or(0, |t| t.due.saturating_sub(now)));
                Parked::Retrying { after, attempts: entry.attempts, cause: cause() }
            }
            State::Waiting if self.waits_behind_stored(entry.line) => Parked::Held,
            _ => return Pass::Stop,
        };
        if entry.line == NIL || !parked.in_line() {
            return Pass::Park(parked);
        }
        let rows = self.lines[entry.line].rows;
        if rows >= self.options.held_rows_max {
            return Pass::Limit("held_rows_max");
        }
        if rows == 0 && self.lines.blocked >= self.options.blocked_keys_max {
            return Pass::Limit("blocked_keys_max");
        }
        Pass::Park(parked)
    }

    /// Whether records of this line may pass the cursor by joining the stored line. Not behind an entry that clears in a
    /// moment: one whose outcome is unknown, or a verdict that releases the key.
    fn waits_behind_stored(&self, l: u32) -> bool {
        if l == NIL {
            return false;
        }
        let line = &self.lines[l];
        if line.barrier == NIL {
            return line.ahead;
        }
        match self.entries[line.barrier].state {
            State::Retry | State::Dead { blocks: true } | State::Parking { releases: false } => true,
            State::Parking { releases: true } | State::Dead { blocks: false } => line.ahead,
            _ => false,
        }
    }

    fn park(&mut self, e: u32, parked: Parked, settlement: &mut Settlement) {
        let l = self.entries[e].line;
        if self.entries[e].state == State::Waiting {
            self.lines.unlink(&mut self.entries, l, e);
        }
        self.entries[e].state = State::Parking { releases: !parked.in_line() };
        self.counts.parked += 1;
        if l != NIL && parked.in_line() {
            let rows = self.lines[l].rows;
            self.lines.set_rows(l, rows + 1);
            self.lines[l].ahead = true;
        }
        if self.planted(Plant::HeldNotParked) && parked == Parked::Held {
            return;
        }
        settlement.park.push((self.entries.record(e).clone(), parked));
    }

    /// How far the planted mistake of marking before the outcome moves the cursor too far.
    fn planted_overreach(&self, slots: usize) -> usize {
        if !self.planted(Plant::MarkBeforeSend) {
            return 0;
        }
        let sent = |e: u32| matches!(self.entries[e].state, State::InFlight | State::Done);
        (slots..).map_while(|i| self.window.get(i)).take_while(|&e| sent(e)).count()
    }

    /// The commit that was under way has been answered.
    pub(crate) fn settled(&mut self, now: Tick, answer: Settled) {
        match std::mem::replace(&mut self.control, Control::Idle) {
            Control::Committing(pending) => match answer {
                Settled::Done => self.committed(now, pending),
                Settled::Perhaps => {
                    let at = now + self.pause();
                    self.control = Control::Repeat(at, pending);
                }
            },
            other => self.control = other,
        }
    }

    fn committed(&mut self, now: Tick, pending: Pending) {
        let Pending { commit, slots, parking } = pending;
        let settlement = &commit.settlement;
        for ordinal in settlement.change.iter().map(|(ordinal, _)| ordinal).chain(&settlement.remove) {
            self.active.remove(ordinal);
        }
        self.expect_due(now, settlement);
        let mut lines = Vec::new();
        for e in parking {
            let l = self.entries[e].line;
            if l != NIL {
                if self.lines[l].barrier == e {
                    self.lines[l].barrier = NIL;
                }
                lines.push(l);
            }
            if self.entries[e].source != Source::Log {
                self.drop_entry(e);
            }
        }
        let mut passed = Vec::with_capacity(slots);
        self.window.pass(slots, |e| passed.push(e));
        for e in passed {
            if self.entries[e].troubled {
                self.drop_entry(e);
            } else {
                self.entries.drop(e);
            }
        }
        for l in lines {
            self.settle_line(now, l);
        }
    }

    /// Removed or changed rows may have made another row the head of its line: look at once. Else when the first of those
    /// just parked comes due.
    fn expect_due(&mut self, now: Tick, settlement: &Settlement) {
        if !settlement.remove.is_empty() || !settlement.change.is_empty() {
            self.due_at = now;
        }
        for (_, parked) in &settlement.park {
            let after = match parked {
                Parked::Scheduled { after } | Parked::Retrying { after, .. } => *after,
                Parked::Held => Duration::ZERO, // the row that it was held behind may have been discarded meanwhile
                Parked::Dead { .. } => continue,
            };
            self.due_at = self.due_at.min(now + ticks(after).max(1_000));
        }
    }
}
