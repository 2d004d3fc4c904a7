//! The persisted cursor: everything that must survive a lost connection, and nothing else.
//!
//! A [`Position`] is a set of facts about rows, not about time: what is settled (`base`, and `target` up to `pos`), and
//! below which number no unsettled row can appear any more (`rest`, the stragglers' own bounds). They stay true however
//! long nobody reads. `pos` never goes without its `target`: late commits below `pos` belong to a later round, and a new
//! target would pass over them.
//!
//! As bytes it is the engine's opaque [`Cursor`]. It also carries which cluster and table it counts in, because
//! transaction ids of another cluster mean nothing here, and which session of a reader made it: a snapshot that was never
//! persisted is worth nothing after a crash of the server, since the ids that it saw may be handed out again.

use bytes::Bytes;
use postrider_core::{Error, ErrorKind, Result, log::Cursor};

use crate::snapshot::{Snapshot, Xid};

/// The layout of the bytes: of a usual position, and of one in a rebase round.
const PLAIN: u8 = 1;
const REBASING: u8 = 2;

/// The cluster and the table in which a cursor counts. Both: a restore into a clone keeps the first, an upgrade the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) system: u64,
    pub(crate) table: u32,
}

impl Identity {
    /// Of a cursor that counts in no cluster: whoever loads it rebases it first.
    pub(crate) const NOWHERE: Self = Self { system: 0, table: 0 };
}

/// What was settled where other transaction ids counted, as before a restore. Kept as long as a rebase round lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    /// The round that was half done then.
    pub(crate) target: Option<(Snapshot, i64)>,
    /// Everything with a higher number is unsettled, whatever its transaction id says.
    pub(crate) hi: i64,
}

/// How far one lane is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) identity: Identity,
    /// The session that made it; 0 for one that was made by a transaction and is persisted by it.
    pub(crate) session: u64,
    /// Everything that it sees is settled.
    pub(crate) base: Snapshot,
    /// A round half done: what this snapshot sees with a number up to this one is settled too.
    pub(crate) target: Option<(Snapshot, i64)>,
    /// Read after `target` (or `base`) was taken: nothing that it sees has a higher number.
    pub(crate) hi: i64,
    /// Every transaction that `base` does not see, the stragglers apart, has all its rows above this.
    pub(crate) rest: i64,
    /// Transactions open for long, ascending, each with a bound of its own.
    pub(crate) stragglers: Vec<(Xid, i64)>,
    /// The round under way is a rebase: `base` counts where `before` does, and `target` counts here. The round delivers every
    /// visible row up to `hi` that was not settled before.
    pub(crate) before: Option<Before>,
}

impl Position {
    /// Nothing is settled.
    pub(crate) fn oldest(identity: Identity) -> Self {
        let base = Snapshot::empty();
        Self { identity, session: 0, base, target: None, hi: 0, rest: 0, stragglers: Vec::new(), before: None }
    }

    /// Begins with what commits from now on. `last` was read first, then `spent` was drawn and ended, then `base` was
    /// taken: whatever drew its id after `spent` drew its numbers above `last`, and `base.xmax` is such a one. Of those in
    /// progress nothing is known, so they are stragglers from the first number on.
    pub(crate) fn now(identity: Identity, last: i64, spent: Xid, base: Snapshot) -> Self {
        assert!(base.xmax() > spent, "a transaction that has ended is below xmax");
        let bound = |xid: &Xid| if *xid > spent { last } else { 0 };
        let stragglers = base.xip().iter().map(|xid| (*xid, bound(xid))).collect();
        Self { identity, session: 0, base, target: None, hi: last, rest: last, stragglers, before: None }
    }

    /// A single round over everything that `target` sees: a replay. Where rows of another cluster lie in the log
    /// (`restored`), over everything visible, for `target` says nothing of those.
    pub(crate) fn replay(identity: Identity, target: Snapshot, hi: i64, restored: bool) -> Self {
        let before = restored.then_some(Before { target: None, hi: 0 });
        Self { target: Some((target, 0)), hi, before, ..Self::oldest(identity) }
    }

    /// No unsettled row, of now or of later, has a number up to this one. What retention goes by.
    pub(crate) fn lo(&self) -> i64 {
        let stragglers = self.stragglers.iter().map(|(_, bound)| *bound);
        // A rebase round may find something below `rest` still, up to where it is.
        let rebased = self.target.as_ref().filter(|_| self.before.is_some()).map(|(_, pos)| *pos);
        stragglers.chain(rebased).fold(self.rest, i64::min)
    }

    /// Without a rebase round that is half done: what it has delivered counts as unsettled again.
    pub(crate) fn before_rebase(self) -> Self {
        match self.before {
            Some(Before { target, hi }) => Self { target, hi, before: None, ..self },
            None => self,
        }
    }

    /// The same for a reader that never begins another round.
    pub(crate) fn replay_lo(&self) -> i64 {
        self.target.as_ref().map_or(i64::MAX, |(_, pos)| *pos)
    }

    /// Whether a visible row is settled.
    pub(crate) fn has_settled(&self, xid: Xid, seq: i64) -> bool {
        let sees = |half: &Option<(Snapshot, i64)>| half.as_ref().is_some_and(|(t, pos)| seq <= *pos && t.sees(xid));
        match &self.before {
            // A row that was restored carries an id of another cluster, which `base` says nothing of.
            None => seq <= self.lo() || self.base.sees(xid) || sees(&self.target),
            Some(before) => {
                self.target.as_ref().is_some_and(|(_, pos)| seq <= *pos)
                    || (seq <= before.hi && (self.base.sees(xid) || sees(&before.target)))
            }
        }
    }

    /// Whether a replay that is here reads a row at all: it reads what its target sees, and once it is over, that is its base.
    pub(crate) fn is_in_replay(&self, xid: Xid, seq: i64) -> bool {
        let is_seen = || self.target.as_ref().map_or(&self.base, |(target, _)| target).sees(xid);
        seq <= self.hi && (self.before.is_some() || is_seen())
    }

    /// Where all of these lanes have settled everything: the place at which other lanes may begin in their stead.
    ///
    /// The oldest base counts. What the lanes have settled beyond it is kept as far as *all* of them have: under the
    /// oldest of their targets (a lane with a younger base has settled all of that base), up to the least position.
    ///
    /// # Errors
    /// Snapshots of two clusters cannot be compared, so lanes that are being rebased have no least place.
    pub(crate) fn least(lanes: &[Self]) -> Result<Option<Self>> {
        if lanes.iter().any(|lane| lane.before.is_some() || lane.identity != lanes[0].identity) {
            return Err(Error::invalid(
                "the number of lanes cannot change while a route is rebased, as after a restore; run a relay with the \
                 former number until `postrider status` tells of no rebase any more",
            ));
        }
        Ok(Self::least_of_comparable(lanes))
    }

    fn least_of_comparable(lanes: &[Self]) -> Option<Self> {
        let least = lanes.iter().min_by(|one, other| one.base.age(&other.base))?;
        let mut common: Option<(Snapshot, i64, i64)> = None;
        for lane in lanes {
            let (beyond, pos) = match &lane.target {
                _ if lane.base != least.base => (&lane.base, i64::MAX),
                Some((target, pos)) => (target, *pos),
                None => return Some(Self { session: 0, target: None, ..least.clone() }),
            };
            common = Some(match common {
                None => (beyond.clone(), pos, lane.hi),
                Some((target, least, hi)) if target.age(beyond).is_le() => (target, least.min(pos), hi),
                Some((_, least, _)) => (beyond.clone(), least.min(pos), lane.hi),
            });
        }
        let (target, pos, hi) = common?;
        Some(Self { session: 0, target: Some((target, pos.min(hi))), hi, ..least.clone() })
    }

    /// As bytes: the same position always has the same.
    pub(crate) fn encode(&self) -> Cursor {
        let mut out = vec![if self.before.is_some() { REBASING } else { PLAIN }];
        out.extend_from_slice(&self.identity.system.to_be_bytes());
        out.extend_from_slice(&self.identity.table.to_be_bytes());
        out.extend_from_slice(&self.session.to_be_bytes());
        put_snapshot(&mut out, &self.base);
        put_round(&mut out, self.target.as_ref());
        put(&mut out, self.hi.cast_unsigned());
        put(&mut out, self.rest.cast_unsigned());
        put(&mut out, self.stragglers.len() as u64);
        for (xid, bound) in &self.stragglers {
            put(&mut out, *xid);
            put(&mut out, bound.cast_unsigned());
        }
        if let Some(before) = &self.before {
            put(&mut out, before.hi.cast_unsigned());
            put_round(&mut out, before.target.as_ref());
        }
        Cursor(out.into())
    }

    /// The inverse of [`Self::encode`].
    pub(crate) fn decode(cursor: &Cursor) -> Result<Self> {
        let mut rest = Rest(&cursor.0);
        rest.position().filter(|_| rest.0.is_empty()).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "not a cursor of the PostgreSQL store").with("bytes", cursor.0.len())
        })
    }

    /// For people.
    pub(crate) fn describe(&self, last: i64) -> String {
        match &self.target {
            Some((_, pos)) if self.before.is_some() => {
                format!("record {pos} of {} in a rebase, {last} drawn", self.hi)
            }
            _ if self.identity == Identity::NOWHERE => format!("to be rebased behind record {}, {last} drawn", self.hi),
            Some((_, pos)) => format!("record {pos} of {} in a round, {last} drawn", self.hi),
            None => format!("all that ended before transaction {}, {last} drawn", self.base.xmin()),
        }
    }
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(0x80 | (value & 0x7f) as u8);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_round(out: &mut Vec<u8>, round: Option<&(Snapshot, i64)>) {
    out.push(u8::from(round.is_some()));
    if let Some((target, pos)) = round {
        put_snapshot(out, target);
        put(out, pos.cast_unsigned());
    }
}

/// Ids lie close together, so their distances are written.
fn put_snapshot(out: &mut Vec<u8>, snapshot: &Snapshot) {
    put(out, snapshot.xmin());
    put(out, snapshot.xmax() - snapshot.xmin());
    put(out, snapshot.xip().len() as u64);
    let mut last = snapshot.xmin();
    for xid in snapshot.xip() {
        put(out, xid - last);
        last = *xid;
    }
}

/// What is still to be decoded.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn position(&mut self) -> Option<Position> {
        let is_rebasing = match self.byte()? {
            PLAIN => false,
            REBASING => true,
            _ => return None,
        };
        let identity = Identity { system: u64::from_be_bytes(self.fixed()?), table: u32::from_be_bytes(self.fixed()?) };
        let session = u64::from_be_bytes(self.fixed()?);
        let base = self.snapshot()?;
        let target = self.round()?;
        let (hi, rest) = (self.number()?, self.number()?);
        let count = self.varint()?;
        let stragglers = (0..count).map(|_| Some((self.varint()?, self.number()?))).collect::<Option<_>>()?;
        let before = match is_rebasing {
            true => Some(Before { hi: self.number()?, target: self.round()? }),
            false => None,
        };
        Some(Position { identity, session, base, target, hi, rest, stragglers, before })
    }

    fn round(&mut self) -> Option<Option<(Snapshot, i64)>> {
        Some(match self.byte()? {
            0 => None,
            _ => Some((self.snapshot()?, self.number()?)),
        })
    }

    fn snapshot(&mut self) -> Option<Snapshot> {
        let xmin = self.varint()?;
        let xmax = xmin.checked_add(self.varint()?)?;
        let count = self.varint()?;
        let mut last = xmin;
        let mut xip = Vec::new();
        for _ in 0..count {
            last = last.checked_add(self.varint()?)?;
            xip.push(last);
        }
        Snapshot::new(xmin, xmax, xip).ok()
    }

    fn number(&mut self) -> Option<i64> {
        self.varint()?.try_into().ok()
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, behind) = self.0.split_first()?;
        self.0 = behind;
        Some(*first)
    }

    fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, behind) = self.0.split_first_chunk()?;
        self.0 = behind;
        Some(*first)
    }
}

/// A cursor as the database keeps it.
pub(crate) fn stored(bytes: &[u8]) -> Cursor {
    Cursor(Bytes::copy_from_slice(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tests::snapshot;

    fn at(base: &str, target: Option<(&str, i64)>, hi: i64) -> Position {
        Position {
            identity: Identity { system: 7_000_000_000_000_000_001, table: 16_400 },
            session: 99,
            base: snapshot(base),
            target: target.map(|(text, pos)| (snapshot(text), pos)),
            hi,
            rest: 3,
            stragglers: vec![(11, 2), (13, 8)],
            before: None,
        }
    }

    fn rebasing(pos: i64) -> Position {
        let before = Before { target: Some((snapshot("12:18:13"), 17)), hi: 30 };
        Position { before: Some(before), ..at("10:15:10,13", Some(("3:4:", pos)), 50) }
    }

    #[test]
    fn a_position_survives_and_a_foreign_cursor_is_refused() {
        let positions = [
            Position::oldest(Identity::default()),
            at("10:15:10,13", None, 20),
            at("10:15:10,13", Some(("12:18:13", 17)), i64::MAX),
            rebasing(20),
        ];
        for position in positions {
            let cursor = position.encode();
            assert_eq!(Position::decode(&cursor).unwrap(), position);
            for cut in 0..cursor.0.len() {
                assert!(Position::decode(&Cursor(cursor.0.slice(..cut))).is_err(), "cut at {cut}");
            }
        }
        assert!(Position::decode(&Cursor("another store's".into())).is_err());
        assert!(Position::decode(&Cursor(Bytes::from([&[1][..], &[0xff; 60]].concat()))).is_err());
    }

    #[test]
    fn five_hundred_open_transactions_are_a_small_cursor() {
        let xip: Vec<Xid> = (0..500).map(|i| 7_000_000 + 3 * i).collect();
        let base = Snapshot::new(7_000_000, 7_002_000, xip).unwrap();
        let position = Position { base, ..Position::oldest(Identity::default()) };
        assert!(position.encode().0.len() < 600, "{} bytes", position.encode().0.len());
    }

    #[test]
    fn retention_waits_for_stragglers() {
        assert_eq!(at("10:15:10,13", None, 20).lo(), 2);
        assert_eq!(Position { stragglers: vec![], ..at("10:15:10,13", None, 20) }.lo(), 3);
    }

    #[test]
    fn what_is_settled_needs_its_target() {
        let position = at("10:15:10,13", Some(("12:18:13", 17)), 30);
        assert!(position.has_settled(11, 29), "the base sees it");
        assert!(position.has_settled(10, 17), "the target sees it, up to the position");
        assert!(!position.has_settled(10, 18), "behind the position");
        assert!(!position.has_settled(13, 5), "committed late, below the position: another round's");
    }

    #[test]
    fn a_rebase_asks_the_old_snapshots_of_old_rows_alone() {
        let position = rebasing(20);
        assert!(position.has_settled(11, 25), "the old base sees it");
        assert!(position.has_settled(10, 17) && !position.has_settled(10, 21), "the old round was half done");
        assert!(!position.has_settled(11, 31), "above what was drawn then, the old base says nothing");
        assert!(position.has_settled(999, 20), "delivered by the rebase round, whatever its id");
    }

    #[test]
    fn lanes_that_are_rebased_have_no_least() {
        let plain = at("10:15:10,13", None, 20);
        assert!(Position::least(&[plain.clone(), rebasing(20)]).is_err());
        let elsewhere = Position { identity: Identity::NOWHERE, ..plain.clone() };
        assert!(Position::least(&[plain, elsewhere.clone()]).is_err());
        assert!(Position::least(&[elsewhere.clone(), elsewhere]).unwrap().is_some(), "all of them wait to be rebased");
    }

    #[test]
    fn a_new_route_knows_nothing_of_open_transactions() {
        let position = Position::now(Identity::default(), 40, 20, snapshot("18:23:18,21"));
        assert_eq!((position.rest, position.lo()), (40, 0));
        assert_eq!(position.stragglers, [(18, 0), (21, 40)]);
    }

    #[test]
    fn the_least_of_one_lane_is_that_lane() {
        for one in [at("10:15:10,13", None, 20), at("10:15:10,13", Some(("12:18:13", 17)), 30)] {
            assert_eq!(Position::least(std::slice::from_ref(&one)).unwrap(), Some(Position { session: 0, ..one }));
        }
        assert_eq!(Position::least(&[]).unwrap(), None);
    }

    #[test]
    fn the_least_claims_nothing_that_one_lane_has_not_settled() {
        let bases = ["5:5:", "5:9:5,7", "9:12:9,10", "12:12:", "12:20:13"];
        let mut lanes = Vec::new();
        for (i, base) in bases.iter().enumerate() {
            lanes.push(at(base, None, 10));
            for target in &bases[i + 1..] {
                lanes.extend([2, 6].map(|pos| at(base, Some((target, pos)), 10)));
            }
        }
        for one in &lanes {
            for other in &lanes {
                let least = Position::least(&[one.clone(), other.clone()]).unwrap().unwrap();
                for (xid, seq) in (1..22).flat_map(|xid| (1..10).map(move |seq| (xid, seq))) {
                    if least.has_settled(xid, seq) {
                        assert!(
                            one.has_settled(xid, seq) && other.has_settled(xid, seq),
                            "({xid}, {seq}) is settled in {least:?} but not in both of {one:?} and {other:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_least_keeps_what_all_lanes_have_settled() {
        // One lane is at its end; the other has done a part of a round that it began later.
        let (ahead, behind) = (at("12:12:", None, 10), at("5:5:", Some(("12:20:13", 6)), 14));
        let least = Position::least(&[ahead, behind]).unwrap().unwrap();
        assert!(least.has_settled(7, 6) && !least.has_settled(7, 7));
    }
}
