//! A snapshot of PostgreSQL's transactions, as a value.
//!
//! `sees(x)` says that transaction `x` had *ended* when the snapshot was taken; whether it committed is PostgreSQL's own
//! business when the rows are read. Snapshots of one primary are totally ordered by what they see, and the reader's whole
//! correctness rests on that. Bound as a typed `pg_snapshot`: the same text cast inside a condition would be parsed once
//! per row.

use std::{cmp::Ordering, error::Error as StdError};

use postrider_core::{Error, ErrorKind, Result};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, private::BytesMut, to_sql_checked};

/// A transaction id with its epoch: never wraps.
pub(crate) type Xid = u64;

/// `xmin:xmax:xip`: everything below `xmin` has ended, nothing from `xmax` on, and of those between all but `xip`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    xmin: Xid,
    xmax: Xid,
    /// Ascending.
    xip: Vec<Xid>,
}

impl Snapshot {
    /// Sees nothing: what a reader has settled before it began.
    pub(crate) fn empty() -> Self {
        Self { xmin: 1, xmax: 1, xip: Vec::new() }
    }

    /// Checked: `0 < xmin <= xmax`, and `xip` ascends between them.
    pub(crate) fn new(xmin: Xid, xmax: Xid, xip: Vec<Xid>) -> Result<Self> {
        let ascending = xip.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = xip.first().is_none_or(|first| *first >= xmin) && xip.last().is_none_or(|last| *last < xmax);
        if xmin == 0 || xmin > xmax || i64::try_from(xmax).is_err() || !ascending || !inside {
            return Err(Error::new(ErrorKind::Corrupt, "not a snapshot").with("xmin", xmin).with("xmax", xmax));
        }
        Ok(Self { xmin, xmax, xip })
    }

    /// Whether this transaction had ended.
    pub(crate) fn sees(&self, xid: Xid) -> bool {
        xid < self.xmin || (xid < self.xmax && self.xip.binary_search(&xid).is_err())
    }

    /// Sees only what lies below the oldest open transaction. Wrong as a target; see [`crate::planted`].
    pub(crate) fn below_xmin(&self) -> Self {
        Self { xmin: self.xmin, xmax: self.xmin, xip: Vec::new() }
    }

    pub(crate) fn xmin(&self) -> Xid {
        self.xmin
    }

    /// The first that had not ended **and** above which none had. Not "the first that had not begun": ids above it may
    /// be assigned and writing.
    pub(crate) fn xmax(&self) -> Xid {
        self.xmax
    }

    /// Those in progress below `xmax`, ascending.
    pub(crate) fn xip(&self) -> &[Xid] {
        &self.xip
    }

    /// Which of two snapshots of one primary is older. Two that see the same may compare either way.
    pub(crate) fn age(&self, other: &Self) -> Ordering {
        self.xmax.cmp(&other.xmax).then(other.xip.len().cmp(&self.xip.len())).then(self.xmin.cmp(&other.xmin))
    }
}

/// As `pg_snapshot_send` and `pg_snapshot_recv` have it: count, `xmin`, `xmax`, then the ids in progress.
impl ToSql for Snapshot {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.extend_from_slice(&i32::try_from(self.xip.len())?.to_be_bytes());
        for xid in [self.xmin, self.xmax].iter().chain(&self.xip) {
            out.extend_from_slice(&xid.to_be_bytes());
        }
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::PG_SNAPSHOT
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Snapshot {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        let (count, xids) = raw.split_first_chunk::<4>().ok_or("a snapshot is too short")?;
        let mut xids = xids.chunks_exact(8).map(|xid| Xid::from_be_bytes(xid.try_into().expect("eight bytes")));
        let (xmin, xmax) = xids.next().zip(xids.next()).ok_or("a snapshot is too short")?;
        let xip: Vec<Xid> = xids.collect();
        if usize::try_from(i32::from_be_bytes(*count)) != Ok(xip.len()) {
            return Err("a snapshot has another length than it says".into());
        }
        Ok(Self::new(xmin, xmax, xip)?)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::PG_SNAPSHOT
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// From PostgreSQL's own notation.
    pub(crate) fn snapshot(text: &str) -> Snapshot {
        let parts: Vec<&str> = text.split(':').collect();
        let xip = parts[2].split(',').filter(|xid| !xid.is_empty()).map(|xid| xid.parse().unwrap()).collect();
        Snapshot::new(parts[0].parse().unwrap(), parts[1].parse().unwrap(), xip).unwrap()
    }

    #[test]
    fn what_has_ended_is_seen() {
        let snapshot = snapshot("10:15:10,13");
        let seen: Vec<Xid> = (8..17).filter(|xid| snapshot.sees(*xid)).collect();
        assert_eq!(seen, [8, 9, 11, 12, 14]);
        assert!((1..5).all(|xid| !Snapshot::empty().sees(xid)));
    }

    #[test]
    fn snapshots_survive_the_wire() {
        for text in ["1:1:", "10:15:10,13", "4294967290:4294967300:4294967296"] {
            let (mut wire, before) = (BytesMut::new(), snapshot(text));
            before.to_sql(&Type::PG_SNAPSHOT, &mut wire).unwrap();
            assert_eq!(Snapshot::from_sql(&Type::PG_SNAPSHOT, &wire).unwrap(), before);
        }
        assert!(Snapshot::from_sql(&Type::PG_SNAPSHOT, &[0; 11]).is_err());
        assert!(
            Snapshot::from_sql(&Type::PG_SNAPSHOT, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 9])
                .is_err()
        );
    }

    #[test]
    fn impossible_snapshots_are_refused() {
        for (xmin, xmax, xip) in [(0, 1, vec![]), (5, 4, vec![]), (5, 9, vec![4]), (5, 9, vec![9]), (5, 9, vec![7, 6])]
        {
            assert!(Snapshot::new(xmin, xmax, xip.clone()).is_err(), "{xmin}:{xmax}:{xip:?}");
        }
    }

    #[test]
    fn the_older_one_sees_less() {
        let ages = ["5:9:5,7", "5:9:5", "9:9:", "9:12:9,10", "12:12:"].map(snapshot);
        for pair in ages.windows(2) {
            assert_eq!(pair[0].age(&pair[1]), Ordering::Less, "{pair:?}");
        }
        assert_eq!(ages[0].age(&ages[0]), Ordering::Equal);
    }
}
