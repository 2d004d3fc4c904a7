//! One lane of one route, as a pure state machine: no clock, no chance, no I/O.
//!
//! What happens comes in through the inputs (a page was read, outcomes came back, a commit was answered, the lease was
//! renewed), each with the time on the owner's monotonic clock. [`Lane::poll`] turns what is possible now into
//! [`Effect`]s, and [`Lane::wake_at`] says when to poll again if nothing happens before. The [driver](super::driver) runs
//! the effects on a real store and publisher; the simulator runs the same machine through a million bad days.
//!
//! ```text
//!   page_read ─► window (log order) ─► lines (one queue a key) ─► dispatch ─► publish ─► published
//!   due_read  ───────────────────────►   rows before records                               │
//!                                                                                          ▼
//!   settled ◄── commit: the longest prefix of the window that is done or can be parked ◄── done │ retry │ dead │ again
//! ```
//!
//! The rules that keep order, each of which broke something when it was missing:
//!
//! 1. Every key that has a line in the store is `ahead` from the start, before the first record is read.
//! 2. Of one key at most one batch is in flight, and nothing goes while a failed entry (its *barrier*) waits.
//! 3. While `ahead`, nothing from the log goes; it joins the stored line when the cursor reaches it.
//! 4. Nothing is parked outside of the prefix that the commit passes. So the stored line is in log order, and what is
//!    parked is never read again. A rejected message that the prefix has not reached retries from memory.
//! 5. A verdict is committed before its key goes on, also one that releases the key.
//! 6. One *control* operation (commit or due read) at a time, and no due read while row changes are uncommitted: a due
//!    answer can never bring back a row that is done with.
//! 7. An unanswered commit is repeated as it was, under its number; nothing new is committed before it is answered.
//! 8. A drain publishes the holes before the furthest message that already went out, so that the cursor can pass it.

mod aside;
mod breaker;
mod commit;
mod dispatch;
mod due;
mod entry;
mod line;
mod outcome;
mod standstill;
mod window;

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use postrider_core::{
    envelope::MessageId,
    log::{PageLimit, Record, RecordRef, Settlement},
    parked::{BlockedKey, Cause, DueLimit, Ordinal, Parked},
    retry::RetryPolicy,
};

pub(crate) use self::window::Mark;
use self::{
    aside::Aside,
    breaker::Breaker,
    commit::Control,
    entry::{Entries, NIL, Source, State},
    line::Lines,
    outcome::Outage,
    window::Window,
};
use super::planted::Plant;

/// Microseconds on the owner's monotonic clock.
pub(crate) type Tick = u64;

pub(crate) fn ticks(duration: Duration) -> Tick {
    Tick::try_from(duration.as_micros()).unwrap_or(Tick::MAX / 4).min(Tick::MAX / 4)
}

/// How long ago that was.
pub(crate) fn since(now: Tick, then: Tick) -> Duration {
    Duration::from_micros(now.saturating_sub(then))
}

/// What becomes of a key whose head is dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnDead {
    /// The key waits until an operator redrives or discards the dead one. The default: order outlives mistakes.
    #[default]
    Hold,
    /// The key goes on without it.
    Continue,
}

#[derive(Clone, Debug)]
pub(crate) struct LaneOptions {
    pub(crate) window_records_max: u32,
    pub(crate) window_bytes_max: usize,
    pub(crate) page_records_max: u32,
    pub(crate) batch_records_max: u32,
    pub(crate) batches_max: u32,
    pub(crate) run_max: u32,
    pub(crate) settle_every: u32,
    pub(crate) settle_after: Duration,
    pub(crate) retry: RetryPolicy,
    pub(crate) on_dead: OnDead,
    pub(crate) unknown_max: u32,
    pub(crate) unknown_wait: Duration,
    pub(crate) breaker_first: Duration,
    pub(crate) breaker_max: Duration,
    pub(crate) poll_min: Duration,
    pub(crate) poll_max: Duration,
    pub(crate) due_lines: u32,
    pub(crate) due_per_line: u32,
    pub(crate) due_bytes_max: usize,
    pub(crate) held_rows_max: u32,
    pub(crate) blocked_keys_max: u32,
    pub(crate) rate: Option<u32>,
    pub(crate) seed: u64,
    pub(crate) plant: Plant,
}

/// What the driver is to do.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Read on behind the last page.
    Read { limit: PageLimit },
    /// Read parked rows that are due.
    ReadDue { limit: DueLimit },
    /// Ask again which keys have a line in the store, and how long it is.
    Recount,
    /// Hand these to the publisher.
    Publish { batch: u32, records: Vec<RecordRef> },
    /// Commit this.
    Settle(Arc<Commit>),
    /// Tell whoever listens.
    Note(Note),
    /// The lane is drained: everything that went out is settled.
    Drained,
}

/// A settlement whose cursor is still a mark.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commit {
    pub(crate) advance: Option<Mark>,
    /// Without its cursor, which the driver fills in.
    pub(crate) settlement: Settlement,
}

/// Something that is worth a line in a log or a count in a metric.
#[derive(Clone, Debug)]
pub(crate) enum Note {
    Rejected {
        record: RecordRef,
        attempts: u32,
        cause: Cause,
    },
    Dead {
        record: RecordRef,
        attempts: u32,
        cause: Cause,
        blocks: bool,
    },
    BreakerOpened {
        cause: Cause,
    },
    /// Said whenever the code of the cause is another one.
    OutageChanged {
        cause: Cause,
    },
    BreakerClosed,
    /// The destination of this message takes nothing, and others of the route go through. Said when it begins, and whenever
    /// the code of the cause is another one.
    SetAside {
        record: RecordRef,
        cause: Cause,
    },
    /// The destination asks for a pause. Said when it begins, and when it becomes a longer one.
    Throttled {
        pause: Duration,
    },
    /// A named limit keeps the cursor from passing this record. Said once until the cursor moves again.
    Stalled {
        record: RecordRef,
        limit: &'static str,
    },
}

/// How a commit was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It is committed.
    Done,
    /// Nobody knows; it is sent again.
    Perhaps,
}

/// Counted since this lane began; commits since this owner began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) durable: u64,
    pub(crate) commits: u64,
    pub(crate) parked: u64,
}

#[derive(Clone, Copy)]
enum Ready {
    Line(u32),
    Loose(u32),
}

/// What is handed to the publisher together.
struct Batch {
    members: Vec<u32>,
    /// How many had been durable by then.
    sent_after: u64,
}

pub(crate) struct Lane {
    options: LaneOptions,
    random: u64,
    valid_until: Tick,
    draining: bool,
    drained: bool,

    entries: Entries,
    lines: Lines,
    window: Window,
    ready: VecDeque<Ready>,
    timers: BTreeSet<(Tick, u32)>,

    reading: bool,
    read_at: Tick,
    /// No read before this: the store has refused one.
    refused_until: Tick,
    poll_wait: Duration,

    batches: Vec<Option<Batch>>,
    in_flight: u32,
    /// One past the last slot that was ever handed to the publisher.
    furthest: u64,
    breaker: Breaker,
    aside: Aside,
    /// What opened the breaker, or what the last probe said.
    outage: Option<Outage>,
    /// Messages of which nothing is known although they were sent, since anything last went through.
    failing: HashSet<MessageId>,
    paused_until: Tick,
    /// The same, as far as the destination has asked for it.
    throttled_until: Tick,
    tokens: dispatch::Tokens,

    control: Control,
    /// Rows in memory, by ordinal.
    active: HashSet<Ordinal>,
    remove: Vec<Ordinal>,
    /// Row changes for the next commit, with the entry that waits for it.
    change: Vec<(Ordinal, u32, Parked)>,
    unsettled: u32,
    settle_at: Option<Tick>,
    due_at: Tick,
    due_read_at: Tick,
    /// Timed rows that the last due read brought and that could not be taken.
    passed_over: u32,
    /// The limit that keeps the cursor where it is.
    stalled: Option<&'static str>,
    recount_at: Tick,
    counts: Counts,
    notes: Vec<Note>,
}

impl Lane {
    /// A fresh start, with every key that has a line in the store. `settlements`: how many this owner has made already
    /// under the same epoch, before a pause.
    pub(crate) fn new(options: LaneOptions, blocked: &[BlockedKey], valid_until: Tick, settlements: u64) -> Self {
        let window = Window::new(options.window_records_max, options.window_bytes_max, options.page_records_max);
        let breaker = Breaker::new(options.breaker_first, options.breaker_max);
        let aside = Aside::new(options.breaker_first, options.breaker_max);
        let mut lane = Self {
            random: options.seed,
            valid_until,
            draining: false,
            drained: false,
            entries: Entries::default(),
            lines: Lines::default(),
            window,
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            reading: false,
            read_at: 0,
            refused_until: 0,
            poll_wait: options.poll_min,
            batches: Vec::new(),
            in_flight: 0,
            furthest: 0,
            breaker,
            aside,
            outage: None,
            failing: HashSet::new(),
            paused_until: 0,
            throttled_until: 0,
            tokens: dispatch::Tokens::new(options.rate),
            control: Control::Idle,
            active: HashSet::new(),
            remove: Vec::new(),
            change: Vec::new(),
            unsettled: 0,
            settle_at: None,
            due_at: 0,
            due_read_at: 0,
            passed_over: 0,
            stalled: None,
            recount_at: 0,
            counts: Counts { commits: settlements, ..Counts::default() },
            notes: Vec::new(),
            options,
        };
        if !lane.planted(Plant::ForgetBlockedKeys) {
            for blocked in blocked {
                let l = lane.lines.of(blocked.key);
                lane.lines[l].ahead = true;
                lane.lines.set_rows(l, blocked.rows.max(1));
            }
        }
        lane
    }

    // ---- inputs: reading and the lease --------------------------------------------------------------------------

    /// The read that was asked for has returned. `moved`: the page's end is another cursor than the one read from.
    pub(crate) fn page_read(&mut self, now: Tick, records: &Arc<Vec<Record>>, moved: bool, more: bool) {
        self.reading = false;
        if self.draining {
            return; // the driver's cursor ran ahead, the persisted one did not
        }
        if !records.is_empty() || moved {
            let length = u32::try_from(records.len()).expect("no more than was asked for");
            self.window.begin_page(length, records.iter().map(|record| record.envelope.weight()).sum());
            for index in 0..length {
                self.take_in(now, RecordRef::new(records, index));
            }
        }
        if moved && records.is_empty() {
            let soon = self.options.settle_after.max(Duration::from_secs(1));
            self.settle_by(now + ticks(soon)); // nothing waits for it but retention
        }
        if more || !records.is_empty() {
            self.poll_wait = self.options.poll_min;
        }
        self.read_at = if more { now } else { self.later(now, self.poll_wait) };
        self.poll_wait = (self.poll_wait * 2).min(self.options.poll_max);
    }

    #[inline]
    fn take_in(&mut self, now: Tick, record: RecordRef) {
        let (key, later, expires_in) = (record.key, record.wait > Duration::ZERO, record.expires_in);
        let slot = self.window.next_slot();
        let l = if later { NIL } else { key.map_or(NIL, |key| self.lines.of(key)) };
        let e = self.entries.add(record, Source::Log, slot, l, 0);
        if let Some(left) = expires_in {
            self.entries.trouble(e).expires_at = now.saturating_add(ticks(left));
        }
        self.window.push(e);
        if later {
            self.entries[e].state = State::Scheduled;
            self.touch(now);
        } else if l == NIL {
            self.ready.push_back(Ready::Loose(e));
        } else {
            self.lines.push_back(&mut self.entries, l, e);
            self.wake_line(now, l);
        }
    }

    /// The store could not be read. It is asked again soon, but not before this pause is over, whatever hints come.
    pub(crate) fn read_failed(&mut self, now: Tick, pause: Duration) {
        self.reading = false;
        self.refused_until = now + ticks(pause);
        self.read_at = self.refused_until + self.pause();
    }

    /// Something may have been committed.
    pub(crate) fn hint(&mut self, now: Tick) {
        self.read_at = self.read_at.min(now.max(self.refused_until));
        self.poll_wait = self.options.poll_min;
        // An operator may have redriven something; but a busy log hints all the time.
        self.due_at = self.due_at.min(self.due_read_at + ticks(Duration::from_secs(1)));
    }

    /// The lease is good until then, counted from before the heartbeat was sent, and with a third of its life to spare.
    pub(crate) fn renewed(&mut self, valid_until: Tick) {
        self.valid_until = valid_until;
    }

    /// Stop reading, publish the holes, commit, and report [`Effect::Drained`].
    pub(crate) fn drain(&mut self, now: Tick) {
        if self.draining {
            return;
        }
        self.draining = true;
        self.forget_rows();
        self.touch(now);
    }

    // ---- effects ------------------------------------------------------------------------------------------------

    /// Everything that is possible now.
    pub(crate) fn poll(&mut self, now: Tick, out: &mut Vec<Effect>) {
        if now >= self.valid_until || self.drained {
            return; // neither publish nor write on a lease that may be over; `renewed` comes first
        }
        while let Some(&(at, e)) = self.timers.first() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            self.come_back(now, e);
        }
        self.dispatch(now, out);
        if !self.draining
            && !self.reading
            && now >= self.read_at
            && let Some(limit) = self.window.room()
        {
            self.reading = true;
            out.push(Effect::Read { limit });
        }
        self.control(now, out);
        out.extend(self.notes.drain(..).map(Effect::Note));
        if self.draining && self.all_that_went_out_is_settled(now) {
            self.drained = true;
            out.push(Effect::Drained);
        }
    }

    /// When to poll again if nothing else happens.
    pub(crate) fn wake_at(&self, now: Tick) -> Tick {
        if now >= self.valid_until || self.drained {
            return Tick::MAX; // anything else would spin until the next heartbeat
        }
        let mut at = self.timers.first().map_or(Tick::MAX, |timer| timer.0);
        if !self.reading && !self.draining && self.window.room().is_some() {
            at = at.min(self.read_at);
        }
        if !self.ready.is_empty() && self.in_flight < self.options.batches_max {
            let probe = self.breaker.probe_at(self.in_flight, || self.untried_is_ready(now));
            let open = if self.breaker.is_open() { probe.unwrap_or(Tick::MAX) } else { now };
            at = at.min(open.max(self.paused_until).max(self.tokens.next_at()));
        }
        at = at.min(self.control_at());
        at.max(now + 1)
    }

    /// Nothing in memory and nothing under way but perhaps a read.
    pub(crate) fn idle(&self) -> bool {
        self.window.is_empty() && self.in_flight == 0 && self.active.is_empty() && self.control.is_idle()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether the destination takes nothing, as far as this machine knows.
    pub(crate) fn breaker_is_open(&self) -> bool {
        self.breaker.is_open()
    }

    fn all_that_went_out_is_settled(&self, now: Tick) -> bool {
        self.in_flight == 0
            && self.control.is_idle()
            && self.change.is_empty()
            && self.remove.is_empty()
            && (self.window.first_slot() >= self.furthest
                || self.nothing_can_be_saved(now)
                || self.planted(Plant::DrainLeavesHoles))
    }

    /// The destination takes nothing, so holes cannot be published, and behind them is nothing that arrived and would be
    /// published twice. To wait would only keep whoever stops the relay waiting.
    fn nothing_can_be_saved(&self, now: Tick) -> bool {
        let takes_nothing = self.breaker.is_open() || now < self.paused_until;
        takes_nothing && !self.window.iter().any(|e| self.entries[e].state == State::Done)
    }

    // ---- lines --------------------------------------------------------------------------------------------------

    /// Puts a line into the ready queue if its first entry may go. If it may not, a commit can perhaps park it.
    #[inline]
    fn wake_line(&mut self, now: Tick, l: u32) {
        let line = &self.lines[l];
        if line.ready || line.head == NIL || line.flying > 0 {
            return;
        }
        if line.barrier != NIL || !self.may_go(l, line.head) {
            self.touch(now);
            return;
        }
        self.lines[l].ready = true;
        self.ready.push_back(Ready::Line(l));
    }

    /// Rows of the stored line always may; what follows them must wait until all of those are in memory.
    #[inline]
    fn may_go(&self, l: u32, e: u32) -> bool {
        self.entries[e].source == Source::Line || !self.lines[l].ahead
    }

    #[inline]
    fn settle_line(&mut self, now: Tick, l: u32) {
        self.wake_line(now, l);
        self.lines.forget_if_empty(l);
    }

    /// A timer fired: an `Again`, or a `Retry` that was not parked yet, goes to the front of its line.
    fn come_back(&mut self, now: Tick, e: u32) {
        if !matches!(self.entries[e].state, State::Again | State::Retry) {
            return; // parked meanwhile
        }
        self.entries[e].state = State::Waiting;
        let l = self.entries[e].line;
        if l != NIL {
            debug_assert_eq!(self.lines[l].barrier, e, "what failed is the barrier");
            self.lines[l].barrier = NIL;
        }
        if self.draining && self.entries[e].source != Source::Log {
            self.forget_row(e);
            if l != NIL {
                self.settle_line(now, l);
            }
            return;
        }
        if l == NIL {
            self.ready.push_back(Ready::Loose(e));
            return;
        }
        self.lines.push_front(&mut self.entries, l, e);
        self.wake_line(now, l);
    }

    fn set_timer(&mut self, at: Tick, e: u32) {
        self.entries.trouble(e).due = at;
        self.timers.insert((at, e));
    }

    fn drop_entry(&mut self, e: u32) {
        if let Some(trouble) = self.entries.trouble_of(e) {
            self.timers.remove(&(trouble.due, e));
        }
        self.entries.drop(e);
    }

    // ---- small things -------------------------------------------------------------------------------------------

    /// After a wait; the longest one ends at a moment that the idle lanes of a node have in common, so that a store can
    /// answer all of them at once.
    fn later(&self, now: Tick, wait: Duration) -> Tick {
        let longest = ticks(self.options.poll_max).max(1);
        if wait < self.options.poll_max { now + ticks(wait) } else { (now / longest + 1) * longest }
    }

    /// Something changed that a commit could write.
    #[inline]
    fn touch(&mut self, now: Tick) {
        if self.unsettled == 0 {
            self.settle_by(now + ticks(self.options.settle_after));
        }
        self.unsettled += 1;
    }

    fn settle_by(&mut self, at: Tick) {
        self.settle_at = Some(self.settle_at.map_or(at, |earlier| earlier.min(at)));
    }

    fn chance(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A short jittered pause after a store's hiccup.
    fn pause(&mut self) -> Tick {
        let most = ticks(self.options.unknown_wait).max(2);
        most / 2 + self.chance() % most
    }

    fn planted(&self, plant: Plant) -> bool {
        cfg!(feature = "planted") && self.options.plant == plant
    }
}

#[cfg(test)]
mod tests;
