//! Rounds: the reader's state, as a pure value. No clock, no database: what was observed comes in, what to scan comes out.
//!
//! A round takes a snapshot, the *target*, and delivers what it sees and the *base* does not, in order of numbers; then
//! the target is the base. Rounds are disjoint and cover every committed row, and happens-before is kept between and
//! within them.
//!
//! ```text
//!            observe: target, then last number, then next transaction id
//!   between ────────────────────────────────────────────────────────────► in a round ──► window, passed, window, …
//!      ▲                                                                                    │ the last number is passed
//!      └────────────────────────────── the target is the base ◄─────────────────────────────┘
//! ```
//!
//! Where a round begins to scan is the delicate part: below the numbers of everything that has *ended* since, and no
//! lower, so that a transaction that stays open costs nothing. A [`Mark`] (N, L) says that every transaction id from N on
//! has all its numbers above L. That holds only because L was read before N, and N is the id that the server would hand
//! out next; the snapshot's `xmax` will not do, for ids above it may be at work already.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use postrider_core::{Error, ErrorKind, Result};

use crate::{
    cursor::{Before, Identity, Position},
    snapshot::{Snapshot, Xid},
};

/// A transaction that is open for longer than this gets a bound of its own.
pub(crate) const STRAGGLER_AFTER: Duration = Duration::from_secs(1);

/// Every transaction id from `next` on has all its numbers above `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    next: Xid,
    last: i64,
}

/// What opens a round, read in this order.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    /// First.
    pub(crate) target: Snapshot,
    /// Second: the last number drawn, read under the sequence's lock.
    pub(crate) last: i64,
    /// Third: the transaction id that is handed out next, as the 32 bits that the server tells.
    pub(crate) next: u32,
}

/// A stretch of numbers to scan: above `after`, up to `end`, all in one leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) leaf: usize,
    pub(crate) after: i64,
    pub(crate) end: i64,
}

/// A round that is under way.
#[derive(Clone, Debug)]
struct Round {
    target: Snapshot,
    /// Nothing that the target sees is above.
    hi: i64,
    /// Everything up to here is scanned.
    at: i64,
    /// The round is a rebase: it delivers what was not settled before.
    before: Option<Before>,
}

/// What a page of a round may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filter<'a> {
    /// What the target sees and the base does not.
    Between { base: &'a Snapshot, target: &'a Snapshot },
    /// Every visible row that was not settled before a rebase.
    Rebase { base: &'a Snapshot, before: &'a Before },
}

/// What raises the bounds of stragglers, read by three statements in this order.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    /// First: the last number drawn.
    pub(crate) last: i64,
    /// Second: who holds which transaction id (32 bits), by virtual transaction, and who holds the sequence.
    pub(crate) holders_of_ids: BTreeMap<u32, String>,
    pub(crate) holders_of_sequence: BTreeSet<String>,
    /// Third: who is still open.
    pub(crate) still: Snapshot,
}

/// How far a reader is, and what it knows about open transactions.
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    identity: Identity,
    session: u64,
    base: Snapshot,
    /// Of the base.
    hi: i64,
    /// A lower bound of the numbers of every transaction in progress in the base.
    bounds: BTreeMap<Xid, i64>,
    stragglers: BTreeSet<Xid>,
    first_seen: BTreeMap<Xid, Duration>,
    /// Ascending; the first one bounds everything from the base's `xmax` on.
    marks: Vec<Mark>,
    round: Option<Round>,
}

impl Rounds {
    /// From what was persisted, and nothing else. A round that was half done goes on with *its* target.
    pub(crate) fn load(position: &Position, session: u64) -> Self {
        let Position { identity, base, target, hi, rest, stragglers, before, .. } = position.clone();
        let own: BTreeMap<Xid, i64> = stragglers.into_iter().collect();
        // In a rebase the base is another cluster's.
        let open = if before.is_some() { &[] } else { base.xip() };
        let bounds = open.iter().map(|xid| (*xid, own.get(xid).copied().unwrap_or(rest))).collect();
        let stragglers = own.into_keys().filter(|xid| base.xip().binary_search(xid).is_ok()).collect();
        let marks = vec![Mark { next: 0, last: rest }];
        let first_seen = BTreeMap::new();
        let mut rounds = Self { identity, session, base, hi, bounds, stragglers, first_seen, marks, round: None };
        if let Some((target, pos)) = target {
            let at = if before.is_some() { pos } else { rounds.start(&target, hi).max(pos).min(hi) };
            rounds.round = Some(Round { target, hi, at, before });
            rounds.close();
        }
        rounds
    }

    /// From a cursor that counts in another cluster or table: a round over every row that was not settled there. Numbers
    /// went on, so a number says whether the old snapshots know a row; no old id is ever compared with a new snapshot.
    ///
    /// # Errors
    /// If numbers went back: then a number says nothing.
    pub(crate) fn rebase(position: &Position, identity: Identity, session: u64, found: Rebase) -> Result<Self> {
        let highest = found.highest(position);
        let Rebase { observed: Observed { target, last, next }, stored } = found;
        if last < highest {
            return Err(went_back(last, highest));
        }
        let position = position.clone().before_rebase();
        // Whoever was open here when the target was taken drew above everything that was drawn there. A cursor that counts
        // nowhere knows no such bound: an operator asked for the rebase, perhaps because numbers had gone back.
        let floor = if position.identity == Identity::NOWHERE { 0 } else { position.hi };
        let at = stored.map_or(last, |(lowest, _)| lowest - 1);
        let before = Before { target: position.target, hi: position.hi };
        let mut rounds = Self {
            identity,
            session,
            base: position.base,
            hi: position.hi,
            bounds: BTreeMap::new(),
            stragglers: BTreeSet::new(),
            first_seen: BTreeMap::new(),
            marks: vec![Mark { next: 0, last: floor }],
            round: None,
        };
        rounds.mark(Mark { next: widen(&target, next), last });
        rounds.round = Some(Round { target, hi: last, at, before: Some(before) });
        rounds.close();
        Ok(rounds)
    }

    /// Whether a round would deliver nothing and change nothing that counts. `last` was read after `target` was taken.
    ///
    /// Nothing was drawn since the last round, nobody who was open then has ended, and whoever began since has all numbers
    /// above what was drawn: so there is no row that `target` sees and the base does not. The base stays as it is, which is
    /// always right. An idle reader asks this over and over, and one statement is enough for it.
    pub(crate) fn has_nothing_for(&self, target: &Snapshot, last: i64) -> bool {
        if *target == self.base {
            return true;
        }
        target.xmax() >= self.base.xmax()
            && last == self.hi
            && !self.base.xip().iter().any(|xid| target.sees(*xid))
            && self.bound(self.base.xmax()) >= last
    }

    /// Whether more was read than is drawn, if this is the last number: it was set back.
    pub(crate) fn is_beyond(&self, last: i64) -> bool {
        last < self.hi
    }

    pub(crate) fn is_between(&self) -> bool {
        self.round.is_none()
    }

    /// Opens a round. `false`: nothing has ended since the base, and there is nothing to scan.
    ///
    /// # Errors
    /// If transaction ids went back: the base means nothing in this cluster.
    pub(crate) fn open(&mut self, observed: Observed) -> Result<bool> {
        assert!(self.round.is_none(), "one round at a time");
        let Observed { target, last, next } = observed;
        if target == self.base {
            return Ok(false);
        }
        if target.xmax() < self.base.xmax() {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "transaction ids went back, so the cursor means nothing here any more; `postrider route rebase` makes it \
                 good, and nothing is lost by it",
            )
            .with("xmax", target.xmax())
            .with("cursor_xmax", self.base.xmax()));
        }
        if self.is_beyond(last) {
            return Err(went_back(last, self.hi));
        }
        self.mark(Mark { next: widen(&target, next), last });
        let at = self.start(&target, last);
        self.round = Some(Round { target, hi: last, at, before: None });
        self.close();
        Ok(true)
    }

    /// The lowest bound of what has ended between the base and the target. What is still open costs nothing.
    fn start(&self, target: &Snapshot, hi: i64) -> i64 {
        let ended = self.base.xip().iter().filter(|xid| target.sees(**xid)).map(|xid| self.bounds[xid]);
        let begun = (target.xmax() > self.base.xmax()).then(|| self.bound(self.base.xmax()));
        ended.chain(begun).min().unwrap_or(hi).min(hi)
    }

    /// The numbers of this transaction, if it was not in progress in the base, are above this.
    fn bound(&self, xid: Xid) -> i64 {
        self.marks.iter().rev().find(|mark| mark.next <= xid).expect("the first mark bounds all").last
    }

    fn mark(&mut self, mark: Mark) {
        let newest = *self.marks.last().expect("never empty");
        if mark.next > newest.next {
            self.marks.push(mark);
        } else if mark.next == newest.next && mark.last > newest.last {
            // The same id with a later number: the stronger of two true statements.
            self.marks.pop();
            self.marks.push(mark);
        }
    }

    /// What to scan next. `None`: between rounds.
    pub(crate) fn window(&self, block_bits: u32, leaves: usize) -> Option<Window> {
        let round = self.round.as_ref()?;
        let block = (round.at + 1) >> block_bits;
        let end = (((block + 1) << block_bits) - 1).min(round.hi);
        let leaf = usize::try_from(block).expect("numbers are positive") % leaves;
        Some(Window { leaf, after: round.at, end })
    }

    /// What the round delivers.
    pub(crate) fn filter(&self) -> Option<Filter<'_>> {
        let (base, round) = (&self.base, self.round.as_ref()?);
        Some(match &round.before {
            None => Filter::Between { base, target: &round.target },
            Some(before) => Filter::Rebase { base, before },
        })
    }

    /// Everything up to `at` is scanned. The round ends with its last number, not with a page that is short.
    pub(crate) fn pass(&mut self, at: i64) {
        let round = self.round.as_mut().expect("in a round");
        assert!(at >= round.at && at <= round.hi, "a scan goes forward, and no further than its round");
        round.at = at;
        self.close();
    }

    /// Ends the round if all of it is scanned: the target is the base.
    fn close(&mut self) {
        let Some(Round { target, hi, .. }) = self.round.take_if(|round| round.at >= round.hi) else { return };
        self.bounds = target
            .xip()
            .iter()
            .map(|xid| (*xid, self.bounds.get(xid).copied().unwrap_or_else(|| self.bound(*xid))))
            .collect();
        self.stragglers.retain(|xid| self.bounds.contains_key(xid));
        self.first_seen.retain(|xid, _| self.bounds.contains_key(xid));
        let kept = self.marks.iter().rposition(|mark| mark.next <= target.xmax()).expect("the first mark bounds all");
        self.marks.drain(..kept);
        (self.base, self.hi) = (target, hi);
    }

    /// Where the reader is now.
    pub(crate) fn position(&self) -> Position {
        self.at(self.round.as_ref().map(|round| (round.target.clone(), round.at)))
    }

    /// The same, inside the round. Valid for every number that was scanned in it.
    fn at(&self, target: Option<(Snapshot, i64)>) -> Position {
        let before = self.round.as_ref().and_then(|round| round.before.as_ref());
        let stragglers = |xid: &Xid| self.stragglers.contains(xid);
        let others = self.bounds.iter().filter(|(xid, _)| !stragglers(xid)).map(|(_, bound)| *bound);
        Position {
            identity: self.identity,
            session: self.session,
            base: self.base.clone(),
            target,
            hi: self.round.as_ref().map_or(self.hi, |round| round.hi),
            rest: match before {
                // The base's `xmax` is another cluster's, so no mark bounds it.
                Some(_) => self.marks[0].last,
                None => others.fold(self.bound(self.base.xmax()), i64::min),
            },
            before: before.cloned(),
            stragglers: self.bounds.iter().filter(|(xid, _)| stragglers(xid)).map(|(x, b)| (*x, *b)).collect(),
        }
    }

    /// Whether it is time to look at what has been open for long. `now` counts from any fixed instant.
    pub(crate) fn has_stragglers(&mut self, now: Duration) -> bool {
        for xid in self.base.xip() {
            self.first_seen.entry(*xid).or_insert(now);
        }
        let old = self.first_seen.iter().filter(|(_, since)| now.saturating_sub(**since) >= STRAGGLER_AFTER);
        self.stragglers.extend(old.map(|(xid, _)| *xid));
        !self.stragglers.is_empty()
    }

    /// Raises the bounds of stragglers that have drawn no number so far.
    ///
    /// `nextval` locks the sequence before it draws and keeps the lock to the end of its transaction. One without that
    /// lock has therefore drawn nothing up to `last`, **if** it was still open after the list was made: at commit the lock
    /// on the sequence goes first and the one on the id last, so a list alone may show a transaction that has committed as
    /// one that has drawn nothing.
    pub(crate) fn raise(&mut self, watched: &Watched) {
        let known: BTreeSet<&String> = watched.holders_of_ids.values().collect();
        if watched.holders_of_sequence.iter().any(|holder| !known.contains(holder)) {
            // Somebody draws whose id is not known: be content with the old bounds.
            return;
        }
        for xid in &self.stragglers {
            let holder = watched.holders_of_ids.get(&short(*xid));
            let drew_nothing = holder.is_some_and(|holder| !watched.holders_of_sequence.contains(holder));
            if let Some(bound) = self.bounds.get_mut(xid)
                && drew_nothing
                && !watched.still.sees(*xid)
            {
                *bound = watched.last.max(*bound);
            }
        }
    }

    /// The mistake of a cursor over numbers, in a round that was just opened: what lies below the last one is passed over.
    pub(crate) fn skip_known_numbers(&mut self) {
        if let Some(round) = &mut self.round {
            round.at = self.hi.max(round.at);
        }
        self.close();
    }

    /// The mistake of a cursor over numbers: whatever is open is taken to draw above this.
    #[cfg(test)]
    fn forget_bounds(&mut self, last: i64) {
        self.bounds.values_mut().for_each(|bound| *bound = last);
    }

    /// How many marks are held.
    #[cfg(test)]
    fn marks(&self) -> usize {
        self.marks.len()
    }
}

impl Rebase {
    /// The highest number that was drawn, as far as the log and a cursor know.
    pub(crate) fn highest(&self, position: &Position) -> i64 {
        self.stored.map_or(0, |(_, highest)| highest).max(position.hi)
    }
}

/// What a rebase is made from, read in this order.
#[derive(Clone, Debug)]
pub(crate) struct Rebase {
    pub(crate) observed: Observed,
    /// The lowest and the highest number in the log.
    pub(crate) stored: Option<(i64, i64)>,
}

/// What to do about it, [`crate::set_back`] knows, and asks before a round is opened.
fn went_back(last: i64, highest: i64) -> Error {
    Error::new(ErrorKind::Corrupt, "the numbers of the log went back").with("last", last).with("highest", highest)
}

/// The next transaction id in full. The server tells 32 bits; the id lies less than 2^32 above the snapshot's `xmax`.
fn widen(target: &Snapshot, next: u32) -> Xid {
    target.xmax() + u64::from(next.wrapping_sub(short(target.xmax())))
}

#[allow(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
fn short(xid: Xid) -> u32 {
    xid as u32
}

#[cfg(test)]
#[path = "rounds_tests.rs"]
mod tests;
