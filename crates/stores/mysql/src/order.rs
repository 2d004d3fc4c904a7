//! The order list: giving places in the log to what is committed.
//!
//! ```text
//! enqueue:  log row  ──trigger──►  pending row (p, seq)          in the application's transaction
//! order:    pending, by p  ──►  one `ordering` row a batch        in one transaction under the lock of the last place
//! read:     ordering rows behind the cursor  ──►  log rows by primary key
//! ```
//!
//! **Why it is commit-safe.** The trigger draws `p` as the row is really inserted. If A committed before B was enqueued, A's
//! `p` is less, and a state of the database that shows B shows A. So the pick, one plain consistent read in the order of `p`,
//! has both in the right order, or A was picked before. A row whose transaction is still open is not seen and not waited for;
//! it is picked after its commit, however low its number is. One that is rolled back takes its pending row with it.
//!
//! **Who does it.** Whoever reads and finds nothing more, in any process; a task beside it while what was read is being
//! published ([`order_ahead`]); and a registration, so that a route that begins now begins behind everything that is committed.
//! The row that holds the last place is locked first, so there is one at a time, and a transaction does all of it or nothing:
//! no lease is needed and nobody can be stale. Whoever stands still with that lock loses it with its session, soon.
//!
//! What must not be done here is in [`Plant`]: a locking read with SKIP LOCKED looks row by row and not at one state, a cursor
//! over numbers passes over what commits late, and a delete by range takes what was not picked.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    MysqlStore,
    db::{Db, bytes, get, values},
    error::{Work, corrupt},
    planted::Plant,
};

/// Messages of one batch at most. Fewer than MariaDB takes in an `IN (…)` before it makes a join of it.
pub(crate) const BATCH_MAX: usize = 800;

/// Batches that one transaction writes at most: a backlog is ordered with fewer commits.
const BATCHES_MAX: usize = 4;

/// Batches that one look at the list returns at most.
const LOOK_MAX: i64 = 64;

/// Whether anything waits at all: the left end of the primary key, without a lock.
const ANY: &str = "SELECT p FROM {p}pending ORDER BY p LIMIT 1";

/// The right end.
const NEWEST: &str = "SELECT p FROM {p}pending ORDER BY p DESC LIMIT 1";

/// A plain consistent read by primary key, at READ COMMITTED: one state of the database, which waits for nobody.
const PICK: &str = "SELECT p, seq, bytes FROM {p}pending ORDER BY p LIMIT ?";

/// Slowed down, so that what it gets wrong on a large table shows on a small one.
const PICK_SKIP_LOCKED: &str = "
SELECT p, seq, bytes FROM {p}pending WHERE SLEEP(0.002) = 0 ORDER BY p LIMIT ? FOR UPDATE SKIP LOCKED";

const PICK_BY_NUMBER: &str = "
SELECT seq, seq, LENGTH(payload)
  FROM {p}log
 WHERE seq > (SELECT value FROM {p}counter WHERE name = 'planted')
 ORDER BY seq
 LIMIT ?";

/// Where no number is missing, the next so many rows are those that were picked. Four times as fast as one look-up each; a
/// range with an upper end would look at the row behind it, and wait for whoever has it.
const DELETE_DENSE: &str = "DELETE FROM {p}pending WHERE p >= ? ORDER BY p LIMIT ?";

const WRITE: &str = "
INSERT INTO {p}ordering (last, lo, hi, ordered_at, list)
VALUES (?, ?, ?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), ?)";

const BEHIND: &str = "SELECT last, list FROM {p}ordering WHERE last > ? ORDER BY last LIMIT ?";

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

/// Gives places to what is committed, a few batches. Returns how many messages have got theirs; zero: nothing waits.
pub(crate) async fn order(store: &MysqlStore) -> Work<usize> {
    if store.0.plant != Plant::IdCursor && number(store, ANY).await?.is_none() {
        return Ok(0);
    }
    let mut db = store.begin().await?;
    match order_batches(&mut db, store.0.plant).await {
        Ok(count) => {
            db.commit().await?;
            Ok(count)
        }
        Err(fault) => {
            db.roll_back().await;
            Err(fault)
        }
    }
}

/// Until everything has its place that is committed now, or `messages` have got theirs. What is committed meanwhile is not
/// waited for: under load that never ends.
pub(crate) async fn order_all(store: &MysqlStore, messages: usize) -> Work<()> {
    let Some(newest) = number(store, NEWEST).await? else { return Ok(()) };
    let mut ordered = 0;
    while ordered < messages && number(store, ANY).await?.is_some_and(|oldest| oldest <= newest) {
        ordered += order(store).await?;
    }
    Ok(())
}

async fn number(store: &MysqlStore, sql: &str) -> Work<Option<i64>> {
    store.alone().await?.query_opt(sql, Vec::new()).await?.map(|row| get(&row, 0)).transpose()
}

/// Orders what comes next while somebody is busy with what was read; one at a time in a process. That it does not get to it, or
/// fails, costs nothing but time: whoever reads then does it.
pub(crate) fn order_ahead(store: &MysqlStore) {
    if store.0.ordering_ahead.swap(true, Ordering::AcqRel) {
        return;
    }
    let store = store.clone();
    tokio::spawn(async move {
        let done = Done(&store.0.ordering_ahead);
        let _ = order(&store).await;
        drop(done);
    });
}

/// Also when the task is dropped with its runtime.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

async fn order_batches(db: &mut Db, plant: Plant) -> Work<usize> {
    // First the lock, then the look: whoever had it before has committed and what they picked is gone.
    let last = db.lock("place").await?;
    let mut ordered = 0;
    for _ in 0..BATCHES_MAX {
        let count = order_batch(db, last + ordered, plant).await?;
        ordered += i64::try_from(count).expect("a batch is short");
        if count < BATCH_MAX {
            break;
        }
    }
    if ordered > 0 {
        db.draw("place", ordered).await?;
    }
    Ok(usize::try_from(ordered).expect("a few batches"))
}

/// One batch behind the place `last`.
async fn order_batch(db: &mut Db, last: i64, plant: Plant) -> Work<usize> {
    let pick = match plant {
        Plant::SkipLocked => PICK_SKIP_LOCKED,
        Plant::IdCursor => PICK_BY_NUMBER,
        Plant::None | Plant::RangeDelete => PICK,
    };
    let mut picked: Vec<(i64, i64, u32)> = Vec::new();
    for row in db.query(pick, values![BATCH_MAX as u64]).await? {
        picked.push((get(&row, 0)?, get(&row, 1)?, u32::try_from(get::<i64>(&row, 2)?).unwrap_or(u32::MAX)));
    }
    let (Some(lo), Some(hi)) =
        (picked.iter().map(|(_, seq, _)| *seq).min(), picked.iter().map(|(_, seq, _)| *seq).max())
    else {
        return Ok(0);
    };
    let count = i64::try_from(picked.len()).expect("a batch is short");
    let sizes: Vec<(i64, u32)> = picked.iter().map(|(_, seq, bytes)| (*seq, *bytes)).collect();
    db.execute(WRITE, values![last + count, lo, hi, encode(&sizes)]).await?;
    match plant {
        Plant::IdCursor => {
            db.execute("UPDATE {p}counter SET value = ? WHERE name = 'planted'", values![hi]).await?;
        }
        _ => remove(db, &picked, plant).await?,
    }
    Ok(picked.len())
}

/// Exactly what was picked, without waiting for what was not.
async fn remove(db: &mut Db, picked: &[(i64, i64, u32)], plant: Plant) -> Work<()> {
    if plant == Plant::RangeDelete {
        let (first, last) = (picked[0].0, picked[picked.len() - 1].0);
        db.execute("DELETE FROM {p}pending WHERE p BETWEEN ? AND ?", values![first, last]).await?;
        return Ok(());
    }
    let numbers: Vec<i64> = picked.iter().map(|(p, _, _)| *p).collect();
    let removed = if is_dense(&numbers) {
        db.execute(DELETE_DENSE, values![numbers[0], numbers.len() as u64]).await?
    } else {
        db.delete("pending", "p", numbers).await?
    };
    if removed != picked.len() as u64 {
        // Somebody else has ordered them although we have the lock: better nothing than twice.
        return Err(corrupt("what was picked for the order list is not there any more").into());
    }
    Ok(())
}

/// Entries behind a place, up to and including `until`, in order: those of a bounded number of batches.
pub(crate) async fn behind(db: &mut Db, place: i64, until: i64) -> Work<Vec<Entry>> {
    let mut entries = Vec::new();
    for row in db.query(BEHIND, values![place, LOOK_MAX]).await? {
        let batch = decode(get(&row, 0)?, bytes(&row, 1).unwrap_or_default())?;
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

fn encode(entries: &[(i64, u32)]) -> Vec<u8> {
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
