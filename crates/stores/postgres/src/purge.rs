//! Retention: emptying leaves that every reader is past and that are old enough.
//!
//! A leaf is truncated whole; nothing is deleted one by one, so there is nothing to vacuum. It may be truncated when the
//! persisted `lo` of every lane is at or behind the last number of every block that the leaf has begun: by the definition
//! of `lo` no transaction, open or still to come, can then have an unsettled row in it. A leaf that cannot be locked at
//! once, because somebody reads it, is left for the next time.

use postrider_core::log::Retention;

use crate::{
    checkpoint,
    db::{Alone, Db, unsigned},
    dialect::LEAVES,
    error::Work,
    observe,
    values::Instant,
};

/// No lane, no floor: while no route is known nothing is removed.
pub(crate) const FLOOR: &str = "
SELECT min(newest.lo)
  FROM {lane} AS lane
 CROSS JOIN LATERAL (SELECT lo
                       FROM {checkpoint} AS checkpoint
                      WHERE checkpoint.route = lane.route AND checkpoint.number = lane.number
                      ORDER BY n DESC
                      LIMIT 1) AS newest";

/// What there could be to do, by one statement: the floor, the head, and whether a lane has old checkpoints.
const WANTED: &str = "
SELECT min(newest.lo), coalesce(pg_sequence_last_value('{seq}'::regclass), 0), coalesce(bool_or(newest.has_older), false)
  FROM {lane} AS lane
 CROSS JOIN LATERAL (SELECT lo,
                            EXISTS (SELECT 1
                                      FROM {checkpoint} AS older
                                     WHERE older.route = lane.route AND older.number = lane.number
                                       AND older.n < checkpoint.n) AS has_older
                       FROM {checkpoint} AS checkpoint
                      WHERE checkpoint.route = lane.route AND checkpoint.number = lane.number
                      ORDER BY n DESC
                      LIMIT 1) AS newest";

/// Whether there could be anything to do at all. Most of the time there is not, and this is all that retention costs.
pub(crate) async fn is_wanted(on: &Alone<'_>, block_bits: u32) -> Work<bool> {
    let Some(row) = on.query_opt(WANTED, &[]).await? else { return Ok(false) };
    let Some(floor) = row.try_get::<_, Option<i64>>(0)? else { return Ok(false) };
    Ok(row.try_get(2)? || !passed(row.try_get(1)?, floor, block_bits).is_empty())
}

/// A leaf that may be emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) index: usize,
    /// The last number of the newest block that it has begun.
    last: i64,
}

/// The leaves whose begun blocks are all complete and passed, oldest first. `head` is the last number drawn.
pub(crate) fn passed(head: i64, floor: i64, block_bits: u32) -> Vec<Leaf> {
    let head_block = head >> block_bits;
    let leaves = i64::try_from(LEAVES).expect("few");
    // The leaf of the head's block is in use. The newest block of any other leaf lies at most a ring behind.
    let blocks = (head_block - leaves + 1).max(0)..head_block;
    let last = |block: i64| ((block + 1) << block_bits) - 1;
    blocks
        .filter(|block| last(*block) <= floor)
        .map(|block| Leaf { index: usize::try_from(block % leaves).expect("positive"), last: last(block) })
        .collect()
}

/// Empties the first leaf that may be, and returns how many records it had. Zero: none may be, or it was in use.
pub(crate) async fn purge(db: &Db<'_>, retention: Retention, block_bits: u32) -> Work<u64> {
    let Some(keep) = retention.keep else { return Ok(0) };
    // Readers are made and unmade under this lock.
    db.lock("readers", "").await?;
    let before = db.now().await?.saturating_sub(keep);
    for leaf in candidates(db, block_bits).await? {
        let name = format!("{{log_{}}}", leaf.index);
        let newest = format!("SELECT enqueued_at FROM {name} ORDER BY seq DESC LIMIT 1");
        let Some(row) = db.query_opt(&newest, &[]).await? else { continue };
        if row.try_get::<_, Instant>(0)?.0 > before {
            continue;
        }
        let lock = format!("SET LOCAL lock_timeout = '50ms'; LOCK TABLE ONLY {name} IN ACCESS EXCLUSIVE MODE");
        // The caller takes a timeout for an answer: the leaf is in use.
        db.batch(&lock).await?;
        // Once more, under the lock: the head may have entered the leaf's next block in between.
        if !candidates(db, block_bits).await?.contains(&leaf) {
            continue;
        }
        let records: i64 = db.query_one(&format!("SELECT count(*) FROM ONLY {name}"), &[]).await?.try_get(0)?;
        db.batch(&format!("TRUNCATE ONLY {name}")).await?;
        return Ok(records.unsigned_abs());
    }
    Ok(0)
}

async fn candidates(db: &Db<'_>, block_bits: u32) -> Work<Vec<Leaf>> {
    let floor: Option<i64> = db.query_one(FLOOR, &[]).await?.try_get(0)?;
    let Some(floor) = floor else { return Ok(Vec::new()) };
    Ok(passed(observe::last(db).await?, floor, block_bits))
}

/// Drops checkpoints that no one will ask for any more.
pub(crate) async fn tidy(db: &Db<'_>) -> Work<()> {
    for row in db.query("SELECT route, number FROM {lane} ORDER BY route, number", &[]).await? {
        checkpoint::tidy(db, row.try_get(0)?, unsigned(row.try_get(1)?)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indexes(head: i64, floor: i64) -> Vec<usize> {
        passed(head, floor, 2).into_iter().map(|leaf| leaf.index).collect()
    }

    #[test]
    fn only_complete_blocks_that_all_have_passed_are_emptied() {
        assert_eq!(indexes(0, 0), [0; 0]);
        assert_eq!(indexes(3, 3), [0; 0], "the head may be in it still");
        assert_eq!(indexes(4, 3), [0]);
        assert_eq!(indexes(12, 6), [0], "the last number of the second block is not passed");
        assert_eq!(indexes(12, 7), [0, 1]);
        assert_eq!(indexes(12, i64::MAX), [0, 1, 2]);
    }

    #[test]
    fn a_leaf_that_holds_several_blocks_waits_for_its_newest() {
        // Numbers 0 to 63 are twice round the ring of eight blocks of four. The head is in block 15, leaf 7.
        assert_eq!(indexes(62, 31), [0; 0], "every leaf has a block of the second round");
        assert_eq!(indexes(62, 39), [0, 1]);
        assert_eq!(indexes(62, i64::MAX), [0, 1, 2, 3, 4, 5, 6], "never the leaf of the head");
    }
}
