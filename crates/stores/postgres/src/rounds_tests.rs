//! Rounds by injected observations: each shortcut that lost messages on a real server, as a case that fails with it.

use super::*;
use crate::snapshot::tests::snapshot;

const BITS: u32 = 20;

fn observed(target: &str, last: i64, next: u32) -> Observed {
    Observed { target: snapshot(target), last, next }
}

fn fresh() -> Rounds {
    Rounds::load(&Position::oldest(Identity::default()), 7)
}

/// Scans to the end of the round.
fn finish(rounds: &mut Rounds) {
    while let Some(window) = rounds.window(BITS, 8) {
        rounds.pass(window.end);
    }
}

fn after(rounds: &Rounds) -> Option<i64> {
    rounds.window(BITS, 8).map(|window| window.after)
}

fn watched(last: i64, ids: &[(u32, &str)], sequence: &[&str], still: &str) -> Watched {
    Watched {
        last,
        holders_of_ids: ids.iter().map(|(xid, holder)| (*xid, (*holder).to_owned())).collect(),
        holders_of_sequence: sequence.iter().map(|holder| (*holder).to_owned()).collect(),
        still: snapshot(still),
    }
}

#[test]
fn a_fresh_log_begins_before_the_first_number() {
    // A sequence that was never used has drawn nothing: 0, not its start value 1.
    let mut rounds = fresh();
    assert!(rounds.open(observed("10:10:", 0, 10)).unwrap());
    assert!(rounds.is_between(), "nothing to scan");
    assert!(rounds.open(observed("11:11:", 1, 11)).unwrap());
    assert_eq!(rounds.window(BITS, 8), Some(Window { leaf: 0, after: 0, end: 1 }));
}

#[test]
fn nothing_ended_is_nothing_to_do() {
    let mut rounds = fresh();
    rounds.open(observed("10:12:10", 5, 12)).unwrap();
    finish(&mut rounds);
    assert!(!rounds.open(observed("10:12:10", 9, 14)).unwrap(), "numbers drawn by open transactions are none of ours");
}

#[test]
fn an_id_above_xmax_may_be_at_work() {
    // xmax 20, though 20 and 21 are assigned: the next one is 22. Transaction 20 has drawn number 3 of 5 already.
    let mut rounds = fresh();
    rounds.open(observed("20:20:", 5, 22)).unwrap();
    finish(&mut rounds);
    // It ends; so does 30, which drew 6 to 9.
    rounds.open(observed("31:31:", 9, 31)).unwrap();
    assert!(after(&rounds) < Some(3), "the scan begins before number 3: {:?}", after(&rounds));
}

#[test]
fn a_last_number_that_is_not_drawn_yet_hides_whoever_draws_it() {
    // The number 1 is drawn. Read without the sequence's lock, while somebody draws, it may be shown as 33.
    let scan_from = |last: i64| {
        let mut rounds = fresh();
        rounds.open(observed("20:20:", last, 20)).unwrap();
        finish(&mut rounds);
        // Transaction 20 has drawn 2, others those up to 40.
        rounds.open(observed("21:21:", 40, 21)).unwrap();
        after(&rounds)
    };
    assert_eq!(scan_from(1), Some(1));
    assert!(scan_from(33) > Some(2), "nothing that is known later makes this good: {:?}", scan_from(33));
    for sql in [crate::observe::LAST, crate::observe::LOOK] {
        assert!(sql.contains("pg_sequence_last_value("), "under the lock: {sql}");
        assert!(!sql.replace("pg_sequence_last_value", "").contains("last_value"), "and only there: {sql}");
    }
}

#[test]
fn what_begins_after_a_mark_is_scanned_from_the_mark_on() {
    let mut rounds = fresh();
    rounds.open(observed("20:20:", 5, 20)).unwrap();
    finish(&mut rounds);
    rounds.open(observed("21:21:", 6, 21)).unwrap();
    assert_eq!(after(&rounds), Some(5), "nobody was at work, so everything new is above 5");
}

#[test]
fn an_open_transaction_costs_nothing_until_it_ends() {
    let mut rounds = fresh();
    // Transaction 10 is open and may have drawn any number up to 100.
    rounds.open(observed("10:12:10", 100, 12)).unwrap();
    finish(&mut rounds);
    for i in 0..5 {
        let xid = 12 + i;
        rounds.open(observed(&format!("10:{}:10", xid + 1), 101 + i64::from(xid), xid + 1)).unwrap();
        assert!(after(&rounds) >= Some(100), "round {i} scans only what is new: {:?}", after(&rounds));
        finish(&mut rounds);
    }
    rounds.open(observed("17:17:", 200, 17)).unwrap();
    assert_eq!(after(&rounds), Some(0), "when it ends, everything since it began is scanned once");
}

#[test]
fn a_round_ends_with_its_last_number() {
    let mut rounds = fresh();
    rounds.open(observed("10:10:", 50, 10)).unwrap();
    rounds.pass(20);
    assert!(!rounds.is_between(), "a short page is not the end");
    let inside = rounds.position();
    assert_eq!(inside.target, Some((snapshot("10:10:"), 20)), "a position inside of a round goes with its target");
    assert_eq!(inside.base, Snapshot::empty());
    rounds.pass(50);
    let end = rounds.position();
    assert_eq!((end.base, end.target, end.hi), (snapshot("10:10:"), None, 50));
}

#[test]
fn windows_follow_the_ring() {
    let mut rounds = fresh();
    rounds.open(observed("10:10:", 40, 10)).unwrap();
    let mut seen = Vec::new();
    while let Some(window) = rounds.window(2, 8) {
        seen.push((window.leaf, window.after + 1, window.end));
        rounds.pass(window.end);
    }
    assert_eq!(seen[..3], [(0, 1, 3), (1, 4, 7), (2, 8, 11)]);
    assert_eq!(seen[8..], [(0, 32, 35), (1, 36, 39), (2, 40, 40)]);
}

#[test]
fn a_half_done_round_goes_on_with_its_own_target() {
    let mut rounds = fresh();
    rounds.open(observed("10:14:11", 50, 14)).unwrap();
    rounds.pass(30);
    let again = Rounds::load(&rounds.position(), 8);
    let filter = Filter::Between { base: &Snapshot::empty(), target: &snapshot("10:14:11") };
    assert_eq!(again.filter(), Some(filter));
    assert_eq!(after(&again), Some(30));
    // Transaction 11 commits number 7, below the position, while the round is half done: it belongs to the next round.
    let mut again = again;
    finish(&mut again);
    again.open(observed("15:15:", 60, 15)).unwrap();
    assert!(after(&again) < Some(7), "{:?}", after(&again));
}

#[test]
fn a_load_knows_what_was_persisted_and_no_more() {
    let mut rounds = fresh();
    rounds.open(observed("10:12:10", 100, 12)).unwrap();
    finish(&mut rounds);
    rounds.open(observed("10:40:10,30", 300, 40)).unwrap();
    finish(&mut rounds);
    let position = rounds.position();
    let mut again = Rounds::load(&position, 8);
    again.open(observed("10:50:10,30", 400, 50)).unwrap();
    assert_eq!(after(&again), Some(position.rest), "new transactions are above `rest`");
    assert_eq!(again.position().session, 8);
}

#[test]
fn a_straggler_keeps_its_bound_apart() {
    let mut rounds = fresh();
    rounds.open(observed("9:9:", 100, 9)).unwrap();
    finish(&mut rounds);
    rounds.open(observed("9:12:9", 110, 12)).unwrap();
    finish(&mut rounds);
    assert!(!rounds.has_stragglers(Duration::from_secs(1)), "it was first seen just now");
    assert!(rounds.has_stragglers(Duration::from_secs(3)));
    rounds.open(observed("9:15:9", 200, 15)).unwrap();
    finish(&mut rounds);
    let position = rounds.position();
    assert_eq!((position.rest, position.stragglers.clone(), position.lo()), (200, vec![(9, 100)], 100));
    let mut again = Rounds::load(&position, 8);
    again.open(observed("9:16:9", 210, 16)).unwrap();
    assert_eq!(after(&again), Some(200), "a restart does not forget the single bounds");
    finish(&mut again);
    again.open(observed("17:17:", 220, 17)).unwrap();
    assert_eq!(after(&again), Some(100));
}

/// A reader with transaction 9 as a straggler at 100, and 110 numbers drawn.
fn with_straggler() -> Rounds {
    let mut rounds = fresh();
    rounds.open(observed("9:9:", 100, 9)).unwrap();
    finish(&mut rounds);
    rounds.open(observed("9:12:9", 110, 12)).unwrap();
    finish(&mut rounds);
    rounds.has_stragglers(Duration::ZERO);
    assert!(rounds.has_stragglers(STRAGGLER_AFTER));
    rounds
}

#[test]
fn one_that_has_drawn_nothing_is_raised() {
    let mut rounds = with_straggler();
    rounds.raise(&watched(500, &[(9, "3/1")], &[], "9:12:9"));
    assert_eq!(rounds.position().stragglers, [(9, 500)]);
    rounds.raise(&watched(400, &[(9, "3/1")], &[], "9:12:9"));
    assert_eq!(rounds.position().stragglers, [(9, 500)], "a bound never falls");
}

#[test]
fn one_that_holds_the_sequence_is_not_raised() {
    let mut rounds = with_straggler();
    rounds.raise(&watched(500, &[(9, "3/1")], &["3/1"], "9:12:9"));
    assert_eq!(rounds.position().stragglers, [(9, 100)]);
}

#[test]
fn a_list_that_shows_a_commit_half_done_raises_nothing() {
    // The lock on the sequence is gone, the one on the id is still there, and the transaction has committed.
    let mut rounds = with_straggler();
    rounds.raise(&watched(500, &[(9, "3/1")], &[], "12:12:"));
    assert_eq!(rounds.position().stragglers, [(9, 100)]);
}

#[test]
fn a_holder_without_a_known_id_stops_raising() {
    let mut rounds = with_straggler();
    rounds.raise(&watched(500, &[(9, "3/1")], &["4/1"], "9:12:9"));
    assert_eq!(rounds.position().stragglers, [(9, 100)]);
    rounds.raise(&watched(500, &[], &[], "9:12:9"));
    assert_eq!(rounds.position().stragglers, [(9, 100)], "one that is not listed is not raised either");
}

#[test]
fn the_next_id_is_widened_across_four_billion() {
    let edge = 1_u64 << 32;
    let target = Snapshot::new(edge - 3, edge - 1, vec![]).unwrap();
    assert_eq!(widen(&target, u32::MAX), edge - 1);
    assert_eq!(widen(&target, 3), edge + 3);
    let target = Snapshot::new(edge, edge + 5, vec![]).unwrap();
    assert_eq!(widen(&target, 9), edge + 9);
}

#[test]
fn ids_or_numbers_that_went_back_are_refused() {
    let mut rounds = fresh();
    rounds.open(observed("30:30:", 50, 30)).unwrap();
    finish(&mut rounds);
    assert_eq!(rounds.open(observed("20:20:", 60, 20)).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(rounds.open(observed("31:31:", 49, 31)).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(rounds.open(observed("31:31:", 51, 31)).unwrap());
}

#[test]
fn marks_stay_few() {
    let mut rounds = fresh();
    for i in 1..1_000_u32 {
        rounds.open(observed(&format!("{i}:{i}:"), i64::from(i), i + 3)).unwrap();
        finish(&mut rounds);
        assert!(rounds.marks() <= 8, "{}", rounds.marks());
    }
}

/// A position of another cluster: all that 30 saw up to number 40 is settled, and half of a round behind it.
fn elsewhere() -> Position {
    let identity = Identity { system: 1, table: 1 };
    let (base, target) = (snapshot("30:30:"), Some((snapshot("36:36:"), 38)));
    Position { base, target, hi: 40, rest: 20, ..Position::oldest(identity) }
}

const HERE: Identity = Identity { system: 2, table: 2 };

fn rebase(position: &Position, target: &str, last: i64, next: u32, stored: Option<(i64, i64)>) -> Result<Rounds> {
    Rounds::rebase(position, HERE, 9, Rebase { observed: observed(target, last, next), stored })
}

#[test]
fn a_rebase_scans_all_that_is_stored_and_ends_with_its_own_target() {
    let mut rounds = rebase(&elsewhere(), "5:7:5", 50, 8, Some((11, 48))).unwrap();
    assert_eq!(after(&rounds), Some(10));
    let before = Before { target: elsewhere().target, hi: 40 };
    assert_eq!(rounds.filter(), Some(Filter::Rebase { base: &snapshot("30:30:"), before: &before }));
    rounds.pass(30);
    let inside = rounds.position();
    assert_eq!((inside.identity, inside.before.as_ref(), inside.lo()), (HERE, Some(&before), 30));
    for mut rounds in [rounds, Rounds::load(&inside, 10)] {
        assert_eq!(after(&rounds), Some(30), "a restart goes on where it was, with the same target");
        finish(&mut rounds);
        let end = rounds.position();
        assert_eq!((end.base, end.target, end.hi, end.before), (snapshot("5:7:5"), None, 50, None));
        assert_eq!(end.rest, 40, "who was open here may have drawn anything above what was drawn there");
        rounds.open(observed("8:8:", 60, 8)).unwrap();
        assert_eq!(after(&rounds), Some(40));
    }
}

#[test]
fn a_rebase_of_an_empty_log_is_over_at_once() {
    let rounds = rebase(&elsewhere(), "7:7:", 40, 7, None).unwrap();
    assert!(rounds.is_between());
    assert_eq!((rounds.position().base, rounds.position().rest), (snapshot("7:7:"), 40));
}

#[test]
fn a_rebase_is_refused_while_numbers_are_behind() {
    let error = rebase(&elsewhere(), "7:7:", 39, 7, None).unwrap_err();
    assert!(error.to_string().contains("highest: 40"), "{error}");
    let error = rebase(&elsewhere(), "7:7:", 45, 7, Some((11, 48))).unwrap_err();
    assert!(error.to_string().contains("highest: 48"), "{error}");
}

#[test]
fn a_rebase_that_was_asked_for_knows_no_bounds() {
    let position = Position { identity: Identity::NOWHERE, ..elsewhere() };
    let mut rounds = rebase(&position, "5:7:5", 50, 8, Some((11, 48))).unwrap();
    finish(&mut rounds);
    assert_eq!(rounds.position().rest, 0, "numbers had gone back: who is open may have drawn any");
}

#[test]
fn a_rebase_within_a_rebase_begins_again_from_what_was_settled_before_both() {
    let mut first = rebase(&elsewhere(), "5:7:5", 50, 8, Some((11, 48))).unwrap();
    first.pass(30);
    let again = Rounds::rebase(
        &first.position(),
        Identity { system: 3, table: 3 },
        10,
        Rebase { observed: observed("4:4:", 55, 4), stored: Some((11, 52)) },
    );
    let again = again.unwrap();
    assert_eq!(after(&again), Some(10));
    let before = Before { target: elsewhere().target, hi: 40 };
    assert_eq!(again.filter(), Some(Filter::Rebase { base: &snapshot("30:30:"), before: &before }));
}

/// Histories of transactions that begin, draw, end and are read at any moment, with restarts and crashes of the server:
/// nothing is lost, whatever the order.
#[test]
fn no_history_loses_a_message() {
    for seed in 1..400 {
        let lost = History::run(seed, None);
        assert!(lost.is_empty(), "seed {seed}: {lost:?}");
    }
}

/// The histories prove something only if they find what is known to be wrong.
#[test]
fn every_shortcut_loses_a_message_in_some_history() {
    for mistake in Mistake::ALL {
        let found = (1..400).find(|seed| !History::run(*seed, Some(mistake)).is_empty());
        assert!(found.is_some(), "{mistake:?} loses nothing in any history: they prove too little");
    }
}

/// Shortcuts, each of which lost messages on a real server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// The snapshot's `xmax` is taken for the next id.
    XmaxIsNotYetBegun,
    /// The next id is read before the last number.
    NextBeforeLast,
    /// The last number is read before the snapshot.
    LastBeforeTarget,
    /// A round that was half done goes on with a new target.
    PositionWithoutTarget,
    /// The base in memory is used after a crash of the server.
    BaseKeptOverCrash,
    /// A bound is raised by a list of locks alone, without asking afterwards who is still open.
    RaisedByListAlone,
    /// A cursor over numbers.
    IdCursor,
}

impl Mistake {
    const ALL: [Self; 7] = [
        Self::XmaxIsNotYetBegun,
        Self::NextBeforeLast,
        Self::LastBeforeTarget,
        Self::PositionWithoutTarget,
        Self::BaseKeptOverCrash,
        Self::RaisedByListAlone,
        Self::IdCursor,
    ];
}

/// What a crash of the server does not take away.
#[derive(Clone, Default)]
struct Server {
    next: Xid,
    last: i64,
    /// Transactions in progress, with the numbers that they drew.
    open: BTreeMap<Xid, Vec<i64>>,
    committed: Vec<(Xid, i64)>,
    ended_max: Xid,
}

/// A server with transactions, as far as the reader can see it, and a reader.
struct History {
    random: u64,
    mistake: Option<Mistake>,
    server: Server,
    /// As of the last thing that was persisted: what a crash goes back to.
    flushed: Server,
    persisted: Position,
    /// Numbers with the transactions that they were delivered of: a crash may hand out both again.
    delivered: BTreeSet<(Xid, i64)>,
    /// One that is just committing: its lock on the sequence is gone, its id is still listed.
    committing: Option<Xid>,
}

impl History {
    /// Runs one history to its end and returns what was committed and never delivered.
    fn run(seed: u64, mistake: Option<Mistake>) -> Vec<(Xid, i64)> {
        let server = Server { next: 5, ended_max: 4, ..Server::default() };
        let mut history = Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            mistake,
            flushed: server.clone(),
            server,
            persisted: Position::oldest(Identity::default()),
            delivered: BTreeSet::new(),
            committing: None,
        };
        let mut rounds = fresh();
        for _ in 0..600 {
            history.work();
            if history.below(4) == 0 {
                rounds = history.read(rounds);
            }
        }
        while let Some(xid) = history.server.open.keys().next().copied() {
            history.end(xid);
        }
        // Nothing happens any more. Two rounds: the one that may be under way, and one that sees the end.
        for _ in 0..2 {
            if rounds.is_between() {
                let (target, last, next) = (history.snapshot(), history.server.last, short(history.server.next));
                if rounds.open(Observed { target, last, next }).is_err() {
                    break;
                }
            }
            while !rounds.is_between() {
                history.scan(&mut rounds, 64);
            }
        }
        let delivered = &history.delivered;
        history.server.committed.iter().copied().filter(|row| !delivered.contains(row)).collect()
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    fn any_open(&mut self) -> Option<Xid> {
        let index = usize::try_from(self.below(self.server.open.len().max(1) as u64)).unwrap();
        self.server.open.keys().nth(index).copied()
    }

    /// One step of some transaction.
    fn work(&mut self) {
        match self.below(4) {
            0 if self.server.open.len() < 6 => {
                self.server.open.insert(self.server.next, Vec::new());
                self.server.next += 1;
            }
            1 => {
                if let Some(xid) = self.any_open() {
                    self.end(xid);
                }
            }
            _ => {
                if let Some(xid) = self.any_open() {
                    self.server.last += 1;
                    self.server.open.get_mut(&xid).unwrap().push(self.server.last);
                }
            }
        }
    }

    /// Some steps, between two statements of the reader.
    fn bustle(&mut self) {
        for _ in 0..self.below(6) {
            self.work();
        }
    }

    fn end(&mut self, xid: Xid) {
        let drawn = self.server.open.remove(&xid).unwrap();
        self.server.ended_max = self.server.ended_max.max(xid);
        if self.below(5) > 0 {
            self.server.committed.extend(drawn.into_iter().map(|seq| (xid, seq)));
        }
    }

    fn snapshot(&self) -> Snapshot {
        let xmax = self.server.ended_max + 1;
        let xip: Vec<Xid> = self.server.open.keys().copied().filter(|xid| *xid < xmax).collect();
        Snapshot::new(xip.first().copied().unwrap_or(xmax), xmax, xip).unwrap()
    }

    /// Three statements in their order, with work between them; or in another order, if that is the mistake.
    fn observe(&mut self) -> Observed {
        let early = self.server.last;
        self.bustle();
        let target = self.snapshot();
        self.bustle();
        let next_early = short(self.server.next);
        self.bustle();
        let last = if self.makes(Mistake::LastBeforeTarget) { early } else { self.server.last };
        self.bustle();
        let next = match self.mistake {
            Some(Mistake::XmaxIsNotYetBegun) => short(target.xmax()),
            Some(Mistake::NextBeforeLast) => next_early,
            _ => short(self.server.next),
        };
        self.bustle();
        Observed { target, last, next }
    }

    /// A part of a round, and now and then a restart from what was persisted, or a crash of the server.
    fn read(&mut self, mut rounds: Rounds) -> Rounds {
        if rounds.is_between() {
            let observed = self.observe();
            if rounds.open(observed).is_err() {
                // Refused is not lost, but there is nothing more to see either.
                return rounds;
            }
        }
        let pages = self.below(4);
        for _ in 0..pages {
            let room = 1 + self.below(5);
            self.scan(&mut rounds, usize::try_from(room).unwrap());
        }
        if self.below(3) == 0 {
            self.raise(&mut rounds);
        }
        match self.below(12) {
            0 | 1 => {
                self.persist(&rounds);
                self.restart()
            }
            2..=4 => {
                self.persist(&rounds);
                rounds
            }
            5 => self.crash(rounds),
            _ => rounds,
        }
    }

    /// The write of a cursor carries everything before it to the disk.
    fn persist(&mut self, rounds: &Rounds) {
        self.persisted = Position::decode(&rounds.position().encode()).unwrap();
        self.flushed = self.server.clone();
    }

    fn restart(&mut self) -> Rounds {
        let position = self.persisted.clone();
        if self.makes(Mistake::PositionWithoutTarget)
            && let Some((_, pos)) = position.target.clone()
        {
            let target = (self.snapshot(), pos.min(self.server.last));
            return Rounds::load(&Position { target: Some(target), hi: self.server.last, ..position }, 1);
        }
        Rounds::load(&position, 1)
    }

    /// Everything since the last flush is as if it had never been, and open transactions are rolled back.
    fn crash(&mut self, rounds: Rounds) -> Rounds {
        self.server = self.flushed.clone();
        let open = std::mem::take(&mut self.server.open);
        if let Some(highest) = open.keys().next_back() {
            self.server.ended_max = self.server.ended_max.max(*highest);
        }
        // What was delivered of commits that were taken back is a ghost that nobody can prevent, and no delivery of others.
        let kept: BTreeSet<(Xid, i64)> = self.server.committed.iter().copied().collect();
        self.delivered.retain(|row| kept.contains(row));
        if self.makes(Mistake::BaseKeptOverCrash) {
            return rounds;
        }
        // What was delivered and not persisted comes again.
        let persisted = self.persisted.clone();
        self.delivered.retain(|(xid, seq)| persisted.has_settled(*xid, *seq));
        self.restart()
    }

    fn scan(&mut self, rounds: &mut Rounds, room: usize) {
        let Some(window) = rounds.window(3, 8) else { return };
        let Some(Filter::Between { base, target }) = rounds.filter() else { panic!("no rebase here") };
        let by_number = self.makes(Mistake::IdCursor);
        let is_new = |xid: Xid| by_number || (!base.sees(xid) && target.sees(xid));
        let mut rows: Vec<(i64, Xid)> = self
            .server
            .committed
            .iter()
            .filter(|(xid, seq)| *seq > window.after && *seq <= window.end && is_new(*xid))
            .map(|(xid, seq)| (*seq, *xid))
            .collect();
        rows.sort_unstable();
        let full = rows.len() > room;
        rows.truncate(room);
        for (seq, xid) in &rows {
            let first = self.delivered.insert((*xid, *seq));
            assert!(first || self.mistake.is_some(), "{seq} twice");
        }
        rounds.pass(if full { rows[room - 1].0 } else { window.end });
        if by_number && rounds.is_between() {
            // Goes on behind the last number, whatever is still open.
            let last = self.server.last;
            *rounds = Rounds::load(&Position { hi: last, rest: last, ..rounds.position() }, 1);
            rounds.forget_bounds(last);
        }
    }

    /// Between rounds, as the store does it.
    fn raise(&mut self, rounds: &mut Rounds) {
        while !rounds.is_between() {
            self.scan(rounds, 64);
        }
        rounds.has_stragglers(Duration::ZERO);
        rounds.has_stragglers(STRAGGLER_AFTER);
        let last = self.server.last;
        self.work();
        // One is committing: its lock on the sequence goes first, the one on its id last.
        self.committing = if self.below(2) == 0 { self.any_open() } else { None };
        let holders_of_ids = self.server.open.keys().map(|xid| (short(*xid), xid.to_string())).collect();
        let committing = self.committing;
        let drew = self.server.open.iter().filter(|(xid, drawn)| !drawn.is_empty() && Some(**xid) != committing);
        let holders_of_sequence = drew.map(|(xid, _)| xid.to_string()).collect();
        if let Some(xid) = self.committing.take() {
            self.end(xid);
        }
        self.work();
        let still = if self.makes(Mistake::RaisedByListAlone) { Snapshot::empty() } else { self.snapshot() };
        rounds.raise(&Watched { last, holders_of_ids, holders_of_sequence, still });
    }
}

#[test]
fn an_idle_log_is_known_by_one_look() {
    let mut rounds = fresh();
    rounds.open(observed("20:20:", 5, 20)).unwrap();
    finish(&mut rounds);
    assert!(rounds.has_nothing_for(&snapshot("20:20:"), 9), "nothing has ended");
    assert!(rounds.has_nothing_for(&snapshot("25:25:"), 5), "others came and went, and drew nothing");
    assert!(!rounds.has_nothing_for(&snapshot("25:25:"), 6), "somebody drew a number");
    assert!(!rounds.has_nothing_for(&snapshot("15:15:"), 5), "ids went back, and that must be said");
    assert!(!rounds.has_nothing_for(&snapshot("25:25:"), 4), "numbers went back, and that must be said");
}

#[test]
fn a_late_commit_is_never_taken_for_idleness() {
    // 18 is open, and 20 is at work above xmax; each may have drawn any of the five numbers.
    let mut rounds = fresh();
    rounds.open(observed("18:20:18", 5, 21)).unwrap();
    finish(&mut rounds);
    assert!(!rounds.has_nothing_for(&snapshot("18:21:18"), 5), "20 has ended, and its number may be 3");
    let mut rounds = fresh();
    rounds.open(observed("18:20:18", 5, 20)).unwrap();
    finish(&mut rounds);
    assert!(rounds.has_nothing_for(&snapshot("18:22:18"), 5), "20 and 21 began later and drew nothing");
    assert!(!rounds.has_nothing_for(&snapshot("22:22:"), 5), "18 has ended, and its number may be 3");
}
