//! Retention: emptying leaves that every reader is past and of which more is there than is to be kept.
//!
//! A leaf is truncated whole; nothing is deleted one by one, so there is nothing to vacuum. It may be truncated when the
//! persisted `lo` of every lane is at or behind the last number of every block that the leaf has begun: by the definition
//! of `lo` no transaction, open or still to come, can then have an unsettled row in it. Nothing is while a lane is said to
//! be past numbers that were never drawn: the sequence was set back, and what is drawn now is not what the lane has passed.
//! Once it was set forward again the rows themselves are asked: a leaf stays while it has one that a lane's base has not seen
//! ([`crate::set_back`]).
//!
//! What takes long is done before anything is locked: which leaf it is, and how many records it has, which cannot change any
//! more. Under the locks there is only the question whether all of that still holds. A leaf that cannot be locked at once,
//! because somebody reads it, is left for the next time.

use std::sync::{Mutex, PoisonError};

use deadpool_postgres::Object;
use postrider_core::log::Retention;
use tokio_postgres::Row;

use crate::{
    PostgresStore, checkpoint,
    db::{Alone, Db, unsigned},
    dialect::LEAVES,
    error::Work,
    observe,
    set_back::{self, UNSEEN},
    snapshot::Snapshot,
    values::Instant,
};

/// How far the slowest lane is, and the one that is furthest. No lane, no floor: while no route is known nothing is removed.
/// A replay that is over is beyond everything, and tells nothing.
pub(crate) const FLOOR: &str = "
SELECT min(newest.lo), max(newest.lo) FILTER (WHERE newest.lo < 9223372036854775807)
  FROM {lane} AS lane
 CROSS JOIN LATERAL (SELECT lo
                       FROM {checkpoint} AS checkpoint
                      WHERE checkpoint.route = lane.route AND checkpoint.number = lane.number
                      ORDER BY n DESC
                      LIMIT 1) AS newest";

/// What there could be to do, by one statement: the floor, whether a lane has many old checkpoints, and the head. The head is
/// asked for when the rows have been read, so no lane is beyond it.
const WANTED: &str = "
SELECT lanes.lowest, lanes.highest, lanes.has_many, coalesce(pg_sequence_last_value('{seq}'::regclass), 0)
  FROM (SELECT min(newest.lo) AS lowest,
               max(newest.lo) FILTER (WHERE newest.lo < 9223372036854775807) AS highest,
               coalesce(bool_or(newest.has_many), false) AS has_many
          FROM {lane} AS lane
         CROSS JOIN LATERAL (SELECT lo,
                                    EXISTS (SELECT 1
                                              FROM {checkpoint} AS older
                                             WHERE older.route = lane.route AND older.number = lane.number
                                               AND older.n = checkpoint.n - $1) AS has_many
                               FROM {checkpoint} AS checkpoint
                              WHERE checkpoint.route = lane.route AND checkpoint.number = lane.number
                              ORDER BY n DESC
                              LIMIT 1) AS newest) AS lanes";

/// The lanes that have so many older checkpoints, and the number of the newest. A few do no harm, and a lane without traffic
/// writes no more of them.
const UNTIDY: &str = "
SELECT lane.route, lane.number, newest.n
  FROM {lane} AS lane
 CROSS JOIN LATERAL (SELECT n
                       FROM {checkpoint} AS checkpoint
                      WHERE checkpoint.route = lane.route AND checkpoint.number = lane.number
                      ORDER BY n DESC
                      LIMIT 1) AS newest
 WHERE EXISTS (SELECT 1
                 FROM {checkpoint} AS older
                WHERE older.route = lane.route AND older.number = lane.number AND older.n = newest.n - $1)
 ORDER BY lane.route, lane.number";

/// Empties the first leaf that may be, and returns how many records it had. Zero: none may be, or it was in use. Most of the
/// time there is nothing to do, and one statement finds that out.
pub(crate) async fn purge(store: &PostgresStore, client: &mut Object, retention: Retention) -> Work<u64> {
    let (dialect, block_bits) = (&store.0.dialect, store.block_bits());
    let Some(row) = Alone::new(client, dialect).query_opt(WANTED, &[&checkpoint::OLDER_MAX]).await? else {
        return Ok(0);
    };
    if row.try_get(2)? {
        let db = Db::begin(client, dialect).await?;
        db.take_time().await?;
        tidy(&db).await?;
        db.commit().await?;
    }
    let Some(floor) = Floor::of(&row)? else { return Ok(0) };
    let head = row.try_get(3)?;
    let leaves = store.0.emptied.others(passed(head, floor, block_bits), head);
    if leaves.is_empty() || retention == Retention::default() {
        return Ok(0);
    }
    let db = Db::begin(client, dialect).await?;
    db.take_time().await?;
    let ripe = ripe(&db, &leaves, head, retention, &store.0.emptied).await?;
    db.commit().await?;
    let Some((leaf, records)) = ripe else { return Ok(0) };
    let db = Db::begin(client, dialect).await?;
    let is_emptied = empty(&db, leaf, block_bits).await?;
    db.commit().await?;
    if !is_emptied {
        return Ok(0);
    }
    store.0.emptied.note(leaf);
    Ok(records)
}

/// Between which numbers the lanes are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    lowest: i64,
    highest: i64,
}

impl Floor {
    /// From a row that begins with the two. `None`: there is no lane, or none but replays that are over.
    fn of(row: &Row) -> Work<Option<Self>> {
        let (lowest, highest): (Option<i64>, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
        Ok(lowest.zip(highest).map(|(lowest, highest)| Self { lowest, highest }))
    }
}

/// A leaf that may be emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    index: usize,
    /// The last number of the newest block that it has begun.
    last: i64,
}

/// The leaves whose begun blocks are all complete and passed, oldest first. `head` is the last number drawn.
fn passed(head: i64, floor: Floor, block_bits: u32) -> Vec<Leaf> {
    if floor.highest > head {
        return Vec::new();
    }
    let head_block = head >> block_bits;
    let leaves = i64::try_from(LEAVES).expect("few");
    // The leaf of the head's block is in use. The newest block of any other leaf lies at most a ring behind.
    let blocks = (head_block - leaves + 1).max(0)..head_block;
    let last = |block: i64| ((block + 1) << block_bits) - 1;
    blocks
        .filter(|block| last(*block) <= floor.lowest)
        .map(|block| Leaf { index: usize::try_from(block % leaves).expect("positive"), last: last(block) })
        .collect()
}

/// The first of these leaves that need not be kept, and how many records it has. Nothing is locked, and nothing can come to a
/// leaf that all have passed but by the head, which [`empty`] looks for, or by a sequence that is set back in this very moment.
async fn ripe(
    db: &Db<'_>,
    leaves: &[Leaf],
    head: i64,
    retention: Retention,
    emptied: &Emptied,
) -> Work<Option<(Leaf, u64)>> {
    let now = db.now().await?;
    // Before the leaf is looked at: by then a lane can only have seen more.
    let base = set_back::oldest_base(set_back::lanes(&db.query(set_back::LANES, &[]).await?)?);
    for leaf in leaves {
        let name = leaf.name();
        let newest = format!("SELECT enqueued_at FROM ONLY {name} ORDER BY seq DESC LIMIT 1");
        let Some(row) = db.query_opt(&newest, &[]).await? else {
            emptied.note(*leaf);
            continue;
        };
        let newest = row.try_get::<_, Instant>(0)?.0;
        let is_old = retention.keep.is_some_and(|keep| newest <= now.saturating_sub(keep));
        let is_beyond = retention.records_max.is_some_and(|max| leaf.is_beyond(head, max));
        if is_old || is_beyond {
            let records: i64 = db.query_one(&format!("SELECT count(*) FROM ONLY {name}"), &[]).await?.try_get(0)?;
            if !is_unseen(db, *leaf, base.as_ref()).await? {
                return Ok(Some((*leaf, records.unsigned_abs())));
            }
        }
    }
    Ok(None)
}

/// Whether a leaf has a row that a lane has not seen, although it is said to be past all of them.
async fn is_unseen(db: &Db<'_>, leaf: Leaf, base: Option<&Snapshot>) -> Work<bool> {
    let Some(base) = base else { return Ok(false) };
    let sql = format!("SELECT EXISTS (SELECT 1 FROM ONLY {} WHERE {UNSEEN})", leaf.name());
    Ok(db.query_one(&sql, &[base]).await?.try_get(0)?)
}

impl Leaf {
    fn name(self) -> String {
        format!("{{log_{}}}", self.index)
    }

    /// Whether there are so many numbers behind it.
    fn is_beyond(self, head: i64, records_max: u64) -> bool {
        u64::try_from(head - self.last).is_ok_and(|behind| behind >= records_max)
    }
}

/// Empties a leaf. `false`: somebody else has, or the head has entered its next block meanwhile. While producers that enter
/// the leaf wait for the lock, nothing is scanned.
async fn empty(db: &Db<'_>, leaf: Leaf, block_bits: u32) -> Work<bool> {
    // Readers are made and unmade under this lock.
    db.lock("readers", "").await?;
    let name = leaf.name();
    // The caller takes a timeout for an answer: the leaf is in use.
    db.batch(&format!("SET LOCAL lock_timeout = '50ms'; LOCK TABLE ONLY {name} IN ACCESS EXCLUSIVE MODE")).await?;
    if !candidates(db, block_bits).await?.contains(&leaf) {
        return Ok(false);
    }
    if db.query_opt(&format!("SELECT 1 FROM ONLY {name} LIMIT 1"), &[]).await?.is_none() {
        return Ok(false);
    }
    db.batch(&format!("TRUNCATE ONLY {name}")).await?;
    Ok(true)
}

async fn candidates(db: &Db<'_>, block_bits: u32) -> Work<Vec<Leaf>> {
    let Some(floor) = Floor::of(&db.query_one(FLOOR, &[]).await?)? else { return Ok(Vec::new()) };
    // Behind the floor, so that no lane can be beyond it.
    Ok(passed(observe::last(db).await?, floor, block_bits))
}

/// Drops checkpoints that no one will ask for any more.
async fn tidy(db: &Db<'_>) -> Work<()> {
    let (lanes, mut locked) = (db.query(UNTIDY, &[&checkpoint::OLDER_MAX]).await?, None);
    for lane in &lanes {
        let route: &str = lane.try_get(0)?;
        if locked.replace(route) != Some(route) {
            checkpoint::lock_to_tidy(db, route).await?;
        }
        checkpoint::tidy(db, route, unsigned(lane.try_get(1)?), lane.try_get(2)?).await?;
    }
    Ok(())
}

/// Which leaves are known to be empty, so that nobody asks again: one that all have passed stays so until the head comes
/// round to it.
#[derive(Debug, Default)]
pub(crate) struct Emptied(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The last number drawn, when it was asked for.
    head: i64,
    /// The last number of a leaf that was found empty.
    leaves: [Option<i64>; LEAVES],
}

impl Emptied {
    /// Those that are not known to be empty.
    fn others(&self, mut leaves: Vec<Leaf>, head: i64) -> Vec<Leaf> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if head < known.head {
            // The sequence was set back: the same numbers are drawn once more.
            known.leaves = [None; LEAVES];
        }
        known.head = head;
        leaves.retain(|leaf| known.leaves[leaf.index] != Some(leaf.last));
        leaves
    }

    fn note(&self, leaf: Leaf) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).leaves[leaf.index] = Some(leaf.last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indexes(head: i64, floor: i64) -> Vec<usize> {
        let floor = Floor { lowest: floor, highest: floor };
        passed(head, floor, 2).into_iter().map(|leaf| leaf.index).collect()
    }

    #[test]
    fn only_complete_blocks_that_all_have_passed_are_emptied() {
        assert_eq!(indexes(0, 0), [0; 0]);
        assert_eq!(indexes(3, 3), [0; 0], "the head may be in it still");
        assert_eq!(indexes(4, 3), [0]);
        assert_eq!(indexes(12, 6), [0], "the last number of the second block is not passed");
        assert_eq!(indexes(12, 7), [0, 1]);
        assert_eq!(indexes(12, 12), [0, 1, 2]);
    }

    #[test]
    fn a_leaf_that_holds_several_blocks_waits_for_its_newest() {
        // Numbers 0 to 63 are twice round the ring of eight blocks of four. The head is in block 15, leaf 7.
        assert_eq!(indexes(62, 31), [0; 0], "every leaf has a block of the second round");
        assert_eq!(indexes(62, 39), [0, 1]);
        assert_eq!(indexes(62, 62), [0, 1, 2, 3, 4, 5, 6], "never the leaf of the head");
    }

    #[test]
    fn nothing_is_emptied_while_a_lane_is_past_what_was_drawn() {
        assert_eq!(indexes(62, 63), [0; 0]);
        assert_eq!(indexes(62, i64::MAX), [0; 0]);
        assert_eq!(
            passed(62, Floor { lowest: 39, highest: 63 }, 2),
            [],
            "nor if another lane knows of the new numbers"
        );
        assert_eq!(passed(62, Floor { lowest: 39, highest: 62 }, 2).len(), 2);
    }

    #[test]
    fn a_leaf_is_beyond_the_newest_when_so_many_numbers_lie_behind_it() {
        let leaf = Leaf { index: 0, last: 3 };
        assert!(leaf.is_beyond(13, 10) && leaf.is_beyond(4, 0));
        assert!(!leaf.is_beyond(12, 10) && !leaf.is_beyond(i64::MAX, u64::MAX));
    }

    #[test]
    fn an_empty_leaf_is_asked_for_again_when_the_head_has_come_round_or_went_back() {
        let (emptied, first) = (Emptied::default(), Leaf { index: 0, last: 3 });
        let others = |leaf: Leaf, head| emptied.others(vec![leaf], head).len();
        assert_eq!(others(first, 10), 1);
        emptied.note(first);
        assert_eq!(others(first, 20), 0);
        assert_eq!(others(Leaf { index: 0, last: 35 }, 40), 1, "the next block of the leaf");
        assert_eq!(others(first, 8), 1, "the same numbers, once more");
    }
}
