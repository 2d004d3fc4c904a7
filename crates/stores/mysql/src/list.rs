//! The order list at rest: one row a batch, which has of each message its number and its size, in order.
//!
//! Places have no gaps, so a batch need not name them: its last place and its length tell all of them. Whoever reads on behind a
//! place gets entries without a gap between them, also where a view is torn (see [`crate::order`]).

use crate::{
    db::{Db, bytes, get, values},
    error::{Work, corrupt},
    order::BATCH_MAX,
    planted::Plant,
};

/// Batches that one look at the list returns at most.
const LOOK_MAX: i64 = 64;

const BEHIND: &str = "SELECT last, list FROM {p}ordering WHERE last > ? AND last < ? ORDER BY last LIMIT ?";

const BEHIND_TORN: &str = "
SELECT last, list
  FROM {p}ordering
 WHERE last > ? AND (RAND() < 0.5 OR last = (SELECT MAX(last) FROM {p}ordering))
 ORDER BY last
 LIMIT ?";

/// The batch in which a place may be is the first whose last place is not below it.
const BEFORE: &str = "SELECT last, list FROM {p}ordering WHERE last < ? ORDER BY last DESC LIMIT ?";

const AROUND: &str = "SELECT last, list FROM {p}ordering WHERE last >= ? ORDER BY last LIMIT 1";

/// One message of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its place in the log: 1, 2, 3, … without a gap.
    pub(crate) place: i64,
    /// The number of its row.
    pub(crate) seq: i64,
    /// Key, headers and payload together.
    pub(crate) bytes: u32,
}

/// Entries behind a place, up to and including `until`, in order and without a gap between them: those of a bounded number of
/// batches, and at least `most` unless there are fewer or the batches are small. Whether the first is the next one is for the
/// caller to see.
pub(crate) async fn behind(db: &mut Db, place: i64, until: i64, most: i64, plant: Plant) -> Work<Vec<Entry>> {
    let rows = if matches!(plant, Plant::TornViews | Plant::NoGapCheck) {
        db.query(BEHIND_TORN, values![place, LOOK_MAX]).await?
    } else {
        // Whichever batch the last of them is in, it ends before that.
        let end = place.saturating_add(most).saturating_add(BATCH_MAX as i64);
        db.query(BEHIND, values![place, end, LOOK_MAX]).await?
    };
    let mut entries: Vec<Entry> = Vec::new();
    for row in rows {
        let batch = decode(get(&row, 0)?, bytes(&row, 1).unwrap_or_default())?;
        let next = entries.last().map(|entry| entry.place + 1);
        if next.is_some_and(|next| batch[0].place != next) && plant != Plant::NoGapCheck {
            break;
        }
        entries.extend(batch.into_iter().filter(|entry| entry.place > place && entry.place <= until));
    }
    Ok(entries)
}

/// Entries before a place, the newest first: those of a bounded number of batches.
pub(crate) async fn before(db: &mut Db, place: i64) -> Work<Vec<Entry>> {
    let mut rows = db.query(AROUND, values![place]).await?;
    rows.extend(db.query(BEFORE, values![place, LOOK_MAX]).await?);
    let mut entries = Vec::new();
    for row in rows {
        let batch = decode(get(&row, 0)?, bytes(&row, 1).unwrap_or_default())?;
        entries.extend(batch.into_iter().rev().filter(|entry| entry.place < place));
    }
    Ok(entries)
}

/// The place of a row, if it has one: a pass over the list, which is a thousandth of the log.
pub(crate) async fn place_of(db: &mut Db, seq: i64) -> Work<Option<i64>> {
    let rows = db.query("SELECT last, list FROM {p}ordering WHERE lo <= ? AND hi >= ?", values![seq, seq]).await?;
    for row in rows {
        let batch = decode(get(&row, 0)?, bytes(&row, 1).unwrap_or_default())?;
        if let Some(entry) = batch.iter().find(|entry| entry.seq == seq) {
            return Ok(Some(entry.place));
        }
    }
    Ok(None)
}

/// Whether distinct numbers have no gap between the least and the greatest of them.
pub(crate) fn is_dense(numbers: &[i64]) -> bool {
    let (Some(least), Some(greatest)) = (numbers.iter().min(), numbers.iter().max()) else { return false };
    greatest.abs_diff(*least) + 1 == numbers.len() as u64
}

/// Bytes of one entry.
const ENTRY_BYTES: usize = 12;

pub(crate) fn encode(entries: &[(i64, u32)]) -> Vec<u8> {
    let mut list = Vec::with_capacity(entries.len() * ENTRY_BYTES);
    for (seq, bytes) in entries {
        list.extend_from_slice(&seq.to_be_bytes());
        list.extend_from_slice(&bytes.to_be_bytes());
    }
    list
}

/// The entries of a batch whose last place is `last`.
pub(crate) fn decode(last: i64, list: &[u8]) -> Work<Vec<Entry>> {
    if list.is_empty() || !list.len().is_multiple_of(ENTRY_BYTES) {
        return Err(corrupt("a batch of the order list is not what was written").into());
    }
    let first = last - i64::try_from(list.len() / ENTRY_BYTES).expect("a list is short") + 1;
    let entry = |(entry, place): (&[u8], i64)| Entry {
        place,
        seq: i64::from_be_bytes(entry[..8].try_into().expect("eight bytes")),
        bytes: u32::from_be_bytes(entry[8..].try_into().expect("four bytes")),
    };
    Ok(list.chunks_exact(ENTRY_BYTES).zip(first..).map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_survives_and_its_places_have_no_gap() {
        let entries = decode(12, &encode(&[(7, 100), (5, 0), (i64::MAX, u32::MAX)])).unwrap();
        let expected = [(10, 7, 100), (11, 5, 0), (12, i64::MAX, u32::MAX)];
        assert_eq!(entries, expected.map(|(place, seq, bytes)| Entry { place, seq, bytes }));
    }

    #[test]
    fn numbers_with_a_gap_are_told_from_those_without() {
        assert!(is_dense(&[7]) && is_dense(&[3, 1, 2]) && is_dense(&[i64::MAX, i64::MAX - 1]));
        assert!(!is_dense(&[]) && !is_dense(&[1, 3]) && !is_dense(&[i64::MIN + 1, i64::MAX]));
    }

    #[test]
    fn a_broken_list_is_refused() {
        assert!(decode(1, b"short").is_err());
        assert!(decode(1, b"").is_err());
    }
}
