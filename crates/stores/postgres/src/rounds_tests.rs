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
    assert_eq!(again.snapshots(), Some((&Snapshot::empty(), &snapshot("10:14:11"))));
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

/// Histories of transactions that begin, draw, end and are read at any moment: nothing is lost, whatever the order.
#[test]
fn no_history_loses_a_message() {
    for seed in 1..400_u64 {
        History::run(seed);
    }
}

/// A server with transactions, as far as the reader can see it.
struct History {
    random: u64,
    next: Xid,
    last: i64,
    open: BTreeMap<Xid, Vec<i64>>,
    committed: Vec<(Xid, i64)>,
    ended_max: Xid,
    delivered: BTreeSet<i64>,
}

impl History {
    fn run(seed: u64) {
        let mut history = Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            next: 5,
            last: 0,
            open: BTreeMap::new(),
            committed: Vec::new(),
            ended_max: 4,
            delivered: BTreeSet::new(),
        };
        let mut rounds = fresh();
        for _ in 0..600 {
            history.work();
            if history.below(4) == 0 {
                rounds = history.read(rounds);
            }
        }
        while let Some(xid) = history.open.keys().next().copied() {
            history.end(xid);
        }
        // Nothing happens any more. Two rounds: the one that may be under way, and one that sees the end.
        for _ in 0..2 {
            if rounds.is_between() {
                let (target, last, next) = (history.snapshot(), history.last, short(history.next));
                rounds.open(Observed { target, last, next }).unwrap();
            }
            while !rounds.is_between() {
                history.scan(&mut rounds, 64);
            }
        }
        let committed: BTreeSet<i64> = history.committed.iter().map(|(_, seq)| *seq).collect();
        assert_eq!(history.delivered, committed, "seed {seed}");
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    fn any_open(&mut self) -> Option<Xid> {
        let index = usize::try_from(self.below(self.open.len().max(1) as u64)).unwrap();
        self.open.keys().nth(index).copied()
    }

    /// One step of some transaction.
    fn work(&mut self) {
        match self.below(4) {
            0 if self.open.len() < 6 => {
                self.open.insert(self.next, Vec::new());
                self.next += 1;
            }
            1 => {
                if let Some(xid) = self.any_open() {
                    self.end(xid);
                }
            }
            _ => {
                if let Some(xid) = self.any_open() {
                    self.last += 1;
                    self.open.get_mut(&xid).unwrap().push(self.last);
                }
            }
        }
    }

    fn end(&mut self, xid: Xid) {
        let drawn = self.open.remove(&xid).unwrap();
        self.ended_max = self.ended_max.max(xid);
        if self.below(5) > 0 {
            self.committed.extend(drawn.into_iter().map(|seq| (xid, seq)));
        }
    }

    fn snapshot(&self) -> Snapshot {
        let xmax = self.ended_max + 1;
        let xip: Vec<Xid> = self.open.keys().copied().filter(|xid| *xid < xmax).collect();
        Snapshot::new(xip.first().copied().unwrap_or(xmax), xmax, xip).unwrap()
    }

    /// A part of a round, with work between all of its statements, and now and then a restart from what was persisted.
    fn read(&mut self, mut rounds: Rounds) -> Rounds {
        if rounds.is_between() {
            let target = self.snapshot();
            self.work();
            let last = self.last;
            self.work();
            let next = short(self.next);
            self.work();
            rounds.open(Observed { target, last, next }).unwrap();
        }
        let pages = self.below(4);
        for _ in 0..pages {
            let room = 1 + self.below(5);
            self.scan(&mut rounds, usize::try_from(room).unwrap());
        }
        if self.below(3) == 0 {
            self.raise(&mut rounds);
        }
        if self.below(6) == 0 {
            Rounds::load(&Position::decode(&rounds.position().encode()).unwrap(), 1)
        } else {
            rounds
        }
    }

    fn scan(&mut self, rounds: &mut Rounds, room: usize) {
        let Some(window) = rounds.window(3, 8) else { return };
        let (base, target) = rounds.snapshots().unwrap();
        let inside = |seq: i64| seq > window.after && seq <= window.end;
        let mut rows: Vec<i64> = self
            .committed
            .iter()
            .filter(|(xid, seq)| inside(*seq) && !base.sees(*xid) && target.sees(*xid))
            .map(|(_, seq)| *seq)
            .collect();
        rows.sort_unstable();
        let full = rows.len() > room;
        rows.truncate(room);
        for seq in &rows {
            assert!(self.delivered.insert(*seq), "{seq} twice");
        }
        rounds.pass(if full { rows[room - 1] } else { window.end });
    }

    fn raise(&mut self, rounds: &mut Rounds) {
        rounds.has_stragglers(Duration::ZERO);
        rounds.has_stragglers(STRAGGLER_AFTER);
        let last = self.last;
        self.work();
        let holders_of_ids = self.open.keys().map(|xid| (short(*xid), xid.to_string())).collect();
        let drew = self.open.iter().filter(|(_, drawn)| !drawn.is_empty());
        let holders_of_sequence = drew.map(|(xid, _)| xid.to_string()).collect();
        self.work();
        let still = self.snapshot();
        if rounds.is_between() {
            rounds.raise(&Watched { last, holders_of_ids, holders_of_sequence, still });
        }
    }
}
