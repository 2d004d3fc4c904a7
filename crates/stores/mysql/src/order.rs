//! The order list: giving places in the log to what is committed.
//!
//! ```text
//! enqueue:  log row  ──trigger──►  pending row (p, seq)          in the application's transaction
//! order:    pending, by p  ──►  one `ordering` row a batch        in one transaction under the lock of the last place
//! read:     ordering rows behind the cursor  ──►  log rows by primary key
//! ```
//!
//! **Why it is commit-safe.** The trigger draws `p` as the row is really inserted. If A committed before B was enqueued, A's
//! `p` is less. So the pick, one plain consistent read in the order of `p`, has both in the right order, or A was picked before,
//! wherever a view that shows B shows A. A row whose transaction is still open is not seen and not waited for; it is picked
//! after its commit, however low its number is. One that is rolled back takes its pending row with it.
//!
//! **Torn views.** MySQL makes a view in one step. MariaDB walks through the open transactions, and does not stop those that
//! commit meanwhile: A is open when the walk comes by, commits, B (which waited for A's lock) enqueues and commits, and is gone
//! when the walk comes to where it was. That view shows B and hides A. But every later view shows A. So there the pick is followed
//! by a second look: places are given to what was picked before the first row that only the second look shows, and to
//! nothing behind it. Whatever happened before a message in that part has a lower `p` and is seen by the second look, so it is in
//! that part, too, or was picked before. The same walk may hide a batch of the order list and show the next one; whoever
//! reads tells that by the gap (see [`crate::read`]).
//!
//! **Who does it.** Whoever reads and finds nothing more, in any process; a task beside it while what was read is being
//! published ([`order_ahead`]); and a registration, so that a route that begins now begins behind everything that is committed.
//! The row that holds the last place is locked first, so there is one at a time, and a transaction does all of it or nothing:
//! no lease is needed and nobody can be stale. Whoever stands still with that lock loses it with its session, soon.
//!
//! What must not be done here is in [`Plant`]: a locking read with SKIP LOCKED looks row by row and not at one state, a cursor
//! over numbers passes over what commits late, and a delete by range takes what was not picked.

use std::sync::atomic::{AtomicBool, Ordering};

use mysql_async::Row;

use crate::{
    MysqlStore,
    db::{Db, get, values},
    error::{Work, corrupt},
    list::encode,
    planted::Plant,
};

/// Messages of one batch at most. Fewer than MariaDB takes in an `IN (…)` before it makes a join of it.
pub(crate) const BATCH_MAX: usize = 800;

/// The same where views are torn on purpose: a batch is hidden only where there are several.
const TORN_BATCH_MAX: usize = 8;

/// Batches that one transaction writes at most, where somebody waits for them. All of them are picked by one look, and looked at
/// again by one: each look begins at the left end of the table, where what was deleted lies until the server has purged it.
const BATCHES_MAX: usize = 4;

/// The same where nobody waits: a backlog is ordered with fewer looks and fewer commits.
const BATCHES_AHEAD_MAX: usize = 8;

/// So many messages that have places and are not read yet keep a reader busy while the next ones get theirs.
const AHEAD_MAX: i64 = (BATCHES_AHEAD_MAX * BATCH_MAX) as i64;

/// Fewer of them are a trickle, of which nobody knows whether it goes on.
const AHEAD_MIN: i64 = (BATCH_MAX / 2) as i64;

/// How often is picked what cannot be placed, before it is left to the next one who orders.
const PICKS_MAX: usize = 8;

/// Whether anything waits at all: the left end of the primary key, without a lock.
const ANY: &str = "SELECT p FROM {p}pending ORDER BY p LIMIT 1";

/// The right end.
const NEWEST: &str = "SELECT p FROM {p}pending ORDER BY p DESC LIMIT 1";

/// A plain consistent read by primary key, at READ COMMITTED: one view of the database, which waits for nobody.
const PICK: &str = "SELECT p, seq, bytes FROM {p}pending ORDER BY p LIMIT ?";

/// The second look, which has a view of its own: whether there is anything that was not picked, and if so, where.
const COUNT_AGAIN: &str = "SELECT COUNT(*) FROM {p}pending WHERE p <= ?";

const LOOK_AGAIN: &str = "SELECT p FROM {p}pending WHERE p <= ? ORDER BY p LIMIT ?";

/// As a torn view has it, often: something is hidden before something that is shown.
const PICK_TORN: &str = "
SELECT p, seq, bytes
  FROM {p}pending
 WHERE RAND() < 0.97 OR p = (SELECT MAX(p) FROM {p}pending)
 ORDER BY p
 LIMIT ?";

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

/// So many rows without a gap are worth a statement of their own.
const DENSE_MIN: usize = 200;

/// One row a batch.
const WRITE: &str = "INSERT INTO {p}ordering (last, lo, hi, ordered_at, list) VALUES ";

const BATCH: &str = "(?, ?, ?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), ?)";

/// What came of ordering.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ordered {
    /// Messages that have got their places.
    pub(crate) messages: usize,
    /// Whether nothing was left that could have got one.
    pub(crate) is_all: bool,
}

/// Gives places to what is committed, a few batches.
pub(crate) async fn order(store: &MysqlStore) -> Work<Ordered> {
    order_some(store, BATCHES_MAX).await
}

async fn order_some(store: &MysqlStore, batches: usize) -> Work<Ordered> {
    let ahead = &store.0.ahead;
    // Where the last one left something there is no need to ask.
    let asks = !ahead.left.load(Ordering::Relaxed) && store.0.plant != Plant::IdCursor;
    if asks && number(store, ANY).await?.is_none() {
        return Ok(Ordered { messages: 0, is_all: true });
    }
    ahead.left.store(false, Ordering::Relaxed);
    let mut db = store.begin().await?;
    match order_batches(&mut db, batches, store.0.plant).await {
        Ok((ordered, last)) => {
            if ordered.messages == 0 {
                db.roll_back().await;
            } else {
                store.0.durable.commit(db, last).await?;
            }
            ahead.left.store(!ordered.is_all, Ordering::Relaxed);
            Ok(ordered)
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
        ordered += order(store).await?.messages;
    }
    Ok(())
}

async fn number(store: &MysqlStore, sql: &str) -> Work<Option<i64>> {
    store.alone().await?.query_opt(sql, Vec::new()).await?.map(|row| get(&row, 0)).transpose()
}

/// What the orderers of a process know of each other.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Whether somebody orders ahead.
    busy: AtomicBool,
    /// Whether the last one who ordered left something that waits.
    left: AtomicBool,
}

/// Orders what comes next while somebody is busy with what was read, of which so many have places; one at a time in a
/// process. Where there is much there is probably more. That it does not get to it, or fails, costs nothing but time: whoever
/// reads then does it.
pub(crate) fn order_ahead(store: &MysqlStore, places: i64) {
    if !(AHEAD_MIN..AHEAD_MAX).contains(&places) || store.0.ahead.busy.swap(true, Ordering::AcqRel) {
        return;
    }
    let store = store.clone();
    tokio::spawn(async move {
        let done = Done(&store.0.ahead.busy);
        let _ = order_some(&store, BATCHES_AHEAD_MAX).await;
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

/// With the last place that was given.
async fn order_batches(db: &mut Db, batches: usize, plant: Plant) -> Work<(Ordered, i64)> {
    // First the lock, then the look: whoever had it before has committed and what they picked is gone.
    let begin = db.lock("place").await?;
    // One that looks slowly on purpose looks at little.
    let most = if plant == Plant::SkipLocked { BATCH_MAX } else { batches * batch_max(plant) };
    for _ in 0..PICKS_MAX {
        let mut picked = pick(db, most, plant).await?;
        if picked.is_empty() {
            // A view that hides what is there is as good as one from before it was committed.
            return Ok((Ordered { messages: 0, is_all: true }, begin));
        }
        let certain = certain(db, &picked, plant).await?;
        if certain == 0 {
            continue;
        }
        let is_all = picked.len() < most && certain == picked.len();
        picked.truncate(certain);
        let last = write(db, begin, &picked, plant).await?;
        return Ok((Ordered { messages: certain, is_all }, last));
    }
    Ok((Ordered::default(), begin))
}

/// A message that waits for its place.
#[derive(Clone, Copy, Debug)]
struct Picked {
    p: i64,
    seq: i64,
    bytes: u32,
}

fn batch_max(plant: Plant) -> usize {
    if matches!(plant, Plant::TornViews | Plant::NoGapCheck) { TORN_BATCH_MAX } else { BATCH_MAX }
}

/// Some that wait, in the order of `p`.
async fn pick(db: &mut Db, most: usize, plant: Plant) -> Work<Vec<Picked>> {
    let pick = match plant {
        Plant::SkipLocked => PICK_SKIP_LOCKED,
        Plant::IdCursor => PICK_BY_NUMBER,
        Plant::TornViews | Plant::OneLook => PICK_TORN,
        Plant::None | Plant::RangeDelete | Plant::NoGapCheck => PICK,
    };
    let rows = db.query(pick, values![most as u64]).await?;
    let picked = |row: &Row| {
        let bytes = u32::try_from(get::<i64>(row, 2)?).unwrap_or(u32::MAX);
        Ok(Picked { p: get(row, 0)?, seq: get(row, 1)?, bytes })
    };
    rows.iter().map(picked).collect()
}

/// How many of those that were picked may get their places: those before the first that only a second look shows. Nobody takes
/// any of them away meanwhile, for we have the lock.
async fn certain(db: &mut Db, picked: &[Picked], plant: Plant) -> Work<usize> {
    let looks_again = match plant {
        Plant::None => db.is_mariadb(),
        Plant::TornViews => true,
        // Each of these picks once.
        Plant::SkipLocked | Plant::IdCursor | Plant::RangeDelete | Plant::OneLook | Plant::NoGapCheck => false,
    };
    let Some(greatest) = picked.last().filter(|_| looks_again).map(|picked| picked.p) else { return Ok(picked.len()) };
    let count: i64 = get(&db.query_one(COUNT_AGAIN, values![greatest]).await?, 0)?;
    if usize::try_from(count).is_ok_and(|count| count == picked.len()) {
        return Ok(picked.len());
    }
    let rows = db.query(LOOK_AGAIN, values![greatest, picked.len() as u64]).await?;
    let there: Vec<i64> = rows.iter().map(|row| get(row, 0)).collect::<Work<_>>()?;
    Ok(common(picked, &there))
}

/// How many of both are the same, from the beginning.
fn common(picked: &[Picked], there: &[i64]) -> usize {
    picked.iter().zip(there).take_while(|(picked, there)| picked.p == **there).count()
}

/// Gives them the places behind `begin`, and returns the last of those.
async fn write(db: &mut Db, begin: i64, picked: &[Picked], plant: Plant) -> Work<i64> {
    let (mut last, mut rows, mut list) = (begin, Vec::new(), Vec::new());
    for batch in picked.chunks(batch_max(plant)) {
        let (lo, hi) = (batch.iter().map(|picked| picked.seq).min(), batch.iter().map(|picked| picked.seq).max());
        let sizes: Vec<(i64, u32)> = batch.iter().map(|picked| (picked.seq, picked.bytes)).collect();
        last += i64::try_from(batch.len()).expect("a batch is short");
        rows.push(BATCH);
        list.extend(values![last, lo, hi, encode(&sizes)]);
    }
    db.execute(&format!("{WRITE}{}", rows.join(", ")), list).await?;
    if plant == Plant::IdCursor {
        let read = picked.iter().map(|picked| picked.seq).max();
        db.execute("UPDATE {p}counter SET value = ? WHERE name = 'planted'", values![read]).await?;
    } else {
        remove(db, picked, plant).await?;
    }
    db.execute("UPDATE {p}counter SET value = ? WHERE name = 'place'", values![last]).await?;
    Ok(last)
}

/// Exactly what was picked, without waiting for what was not.
async fn remove(db: &mut Db, picked: &[Picked], plant: Plant) -> Work<()> {
    if plant == Plant::RangeDelete {
        let (first, last) = (picked[0].p, picked[picked.len() - 1].p);
        db.execute("DELETE FROM {p}pending WHERE p BETWEEN ? AND ?", values![first, last]).await?;
        return Ok(());
    }
    let numbers: Vec<i64> = picked.iter().map(|picked| picked.p).collect();
    let (mut removed, mut rest) = (0, Vec::new());
    for dense in numbers.chunk_by(|one, next| one + 1 == *next) {
        if dense.len() < DENSE_MIN && dense.len() < numbers.len() {
            rest.extend_from_slice(dense);
        } else {
            removed += db.execute(DELETE_DENSE, values![dense[0], dense.len() as u64]).await?;
        }
    }
    if !rest.is_empty() {
        removed += db.delete("pending", "p", rest).await?;
    }
    if removed != picked.len() as u64 {
        // Somebody else has ordered them although we have the lock: better nothing than twice.
        return Err(corrupt("what was picked for the order list is not there any more").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_the_second_look_shows_ends_what_gets_places() {
        let picked: Vec<Picked> = [2, 3, 5, 9].map(|p| Picked { p, seq: p, bytes: 0 }).to_vec();
        for (there, expected) in
            [(&[2, 3, 5, 9][..], 4), (&[1, 2, 3, 5], 0), (&[2, 3, 4, 5], 2), (&[2, 3, 5, 8], 3), (&[2, 3], 2), (&[], 0)]
        {
            assert_eq!(common(&picked, there), expected, "{there:?}");
        }
    }
}
