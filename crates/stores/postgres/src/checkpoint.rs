//! Checkpoints: the cursors at rest, and the fence.
//!
//! The newest checkpoint of a lane (the one with the greatest `n`) is its cursor, the number of the last settlement and
//! the epoch under which it was written. Nothing is ever updated. Whoever writes the next one takes `n + 1`, and so does
//! everything that changes a lane's epoch or ends the lane: of two that began from the same checkpoint, the primary key
//! lets one through. That is the whole fence; a settlement needs no lock and writes one small row.
//!
//! **Nobody looks at the low end.** What was deleted stays in the index while anybody holds an old snapshot, millions of entries
//! a day, and whoever began below would pass all of them. The numbers of a lane follow one upon the other, and whoever deletes
//! deletes all that is older in one transaction; so whether there is an older one, and where the last of them is, shows at the
//! high end.

use postrider_core::{
    Error,
    lease::{Epoch, LaneId, Lease},
    log::Cursor,
};

use crate::{
    cursor::stored,
    db::{Db, Execute},
    error::Work,
};

/// One entry from the end of one range of the primary key.
const NEWEST: &str = "
SELECT epoch, settled, lo, cursor
  FROM {checkpoint}
 WHERE route = $1 AND number = $2
 ORDER BY n DESC
 LIMIT 1";

/// The next one of a lane. A cursor that a reader made counts only as long as that reader's session lives: it holds an
/// exclusive lock on the session's number. After a crash of the server the snapshot in it may see transactions that have
/// not happened yet.
const SETTLE: &str = "
INSERT INTO {checkpoint} (route, number, n, epoch, settled, lo, cursor)
SELECT $1, $2, newest.n + 1, newest.epoch, $4, coalesce($6, newest.lo), coalesce($5, newest.cursor)
  FROM (SELECT n, epoch, settled, lo, cursor
          FROM {checkpoint}
         WHERE route = $1 AND number = $2
         ORDER BY n DESC
         LIMIT 1) AS newest
 WHERE newest.epoch = $3 AND newest.settled < $4
   AND ($5::bytea IS NULL OR $5 = newest.cursor OR $7::bigint = 0 OR NOT pg_try_advisory_xact_lock_shared($7))";

/// A new epoch begins its count of settlements anew. An epoch is greater than every former one, and also than those that a
/// fail-over may have lost: it is taken from the clock as well.
const BEGIN: &str = "
INSERT INTO {checkpoint} (route, number, n, epoch, settled, lo, cursor)
SELECT $1, $2, coalesce(newest.n, 0) + 1,
       greatest(coalesce(newest.epoch, 0) + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), 0, $3, $4
  FROM (SELECT 1) AS lane
  LEFT JOIN LATERAL (SELECT n, epoch
                       FROM {checkpoint}
                      WHERE route = $1 AND number = $2
                      ORDER BY n DESC
                      LIMIT 1) AS newest ON true
RETURNING epoch";

/// The same of a lane that goes on where it is. One statement, which sees one newest checkpoint: a settlement that comes between
/// would otherwise be undone by a cursor that was read before it.
const GO_ON: &str = "
INSERT INTO {checkpoint} (route, number, n, epoch, settled, lo, cursor)
SELECT $1, $2, newest.n + 1,
       greatest(newest.epoch + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), 0, newest.lo, newest.cursor
  FROM (SELECT n, epoch, lo, cursor
          FROM {checkpoint}
         WHERE route = $1 AND number = $2
         ORDER BY n DESC
         LIMIT 1) AS newest
RETURNING epoch, n";

/// Some of the older ones: one short range of the primary key.
const TIDY: &str = "
DELETE FROM {checkpoint}
 WHERE route = $1 AND number = $2 AND n >= $3 AND n < $4";

/// How many of them are deleted at first. Each time twice as many, so that what was deleted long ago is passed for no longer
/// than it takes to delete what there is.
const TIDY_FIRST: i64 = 16;

/// How many of them a lane has when retention tidies up behind it.
pub(crate) const OLDER_MAX: i64 = 16;

/// A lane's cursor at rest.
pub(crate) struct Checkpoint {
    pub(crate) epoch: Epoch,
    pub(crate) settled: u64,
    pub(crate) lo: i64,
    pub(crate) cursor: Cursor,
}

impl Checkpoint {
    /// The newest one of a lane, be the lane there or not.
    pub(crate) async fn newest(db: &Db<'_>, route: &str, number: u32) -> Work<Option<Self>> {
        let row = db.query_opt(NEWEST, &[&route, &i64::from(number)]).await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(Self {
            epoch: epoch(row.try_get(0)?),
            settled: row.try_get::<_, i64>(1)?.cast_unsigned(),
            lo: row.try_get(2)?,
            cursor: stored(row.try_get(3)?),
        }))
    }

    /// The newest one, if this lease is the current one.
    pub(crate) async fn of(db: &Db<'_>, lease: &Lease) -> Work<Self> {
        let newest = Self::newest(db, &lease.lane.route, lease.lane.number).await?;
        Ok(newest.filter(|newest| newest.epoch == lease.epoch).ok_or_else(Error::fenced)?)
    }
}

/// Where a settlement moves the cursor.
pub(crate) struct Advance<'a> {
    pub(crate) cursor: &'a Cursor,
    pub(crate) session: u64,
    pub(crate) lo: i64,
}

/// Writes the next checkpoint. `false`: the lease is not the current one, the number is over, or the cursor's session is.
pub(crate) async fn settle(on: &impl Execute, lease: &Lease, number: u64, advance: Option<&Advance<'_>>) -> Work<bool> {
    let LaneId { route, number: lane } = &lease.lane;
    let cursor = advance.map(|advance| advance.cursor.0.as_ref());
    let lo = advance.map(|advance| advance.lo);
    let session = advance.map_or(0, |advance| advance.session).cast_signed();
    let written = on
        .execute(
            SETTLE,
            &[
                &&**route,
                &i64::from(*lane),
                &lease.epoch.0.cast_signed(),
                &number.cast_signed(),
                &cursor,
                &lo,
                &session,
            ],
        )
        .await?;
    Ok(written == 1)
}

/// Begins a new epoch of a lane, at this cursor.
pub(crate) async fn begin(db: &Db<'_>, route: &str, number: u32, lo: i64, cursor: &Cursor) -> Work<Epoch> {
    let row = db.query_one(BEGIN, &[&route, &i64::from(number), &lo, &cursor.0.as_ref()]).await?;
    Ok(epoch(row.try_get(0)?))
}

/// Begins a new epoch of a lane, where it is. `None`: it has no checkpoint.
///
/// # Errors
/// A unique violation if somebody else has written a checkpoint meanwhile: the transaction is repeated.
pub(crate) async fn go_on(db: &Db<'_>, route: &str, number: u32) -> Work<Option<Begun>> {
    let Some(row) = db.query_opt(GO_ON, &[&route, &i64::from(number)]).await? else { return Ok(None) };
    Ok(Some(Begun { epoch: epoch(row.try_get(0)?), n: row.try_get(1)? }))
}

/// A new epoch, and the number of the checkpoint that began it: the lane's newest.
pub(crate) struct Begun {
    pub(crate) epoch: Epoch,
    n: i64,
}

/// Ends a lane: whoever still holds a lease on it is fenced. Its cursor stays, in case the lane comes back, and nothing else
/// does: nobody tidies up behind a lane that is not there.
pub(crate) async fn end(db: &Db<'_>, route: &str, number: u32) -> Work<()> {
    if let Some(newest) = go_on(db, route, number).await? {
        lock_to_tidy(db, route).await?;
        tidy(db, route, number, newest.n).await?;
    }
    Ok(())
}

/// To be taken before [`tidy`]: two that did it at once, each with slices of its own, could wait for each other in a circle.
/// Whoever has several routes takes them by name.
pub(crate) async fn lock_to_tidy(db: &Db<'_>, route: &str) -> Work<()> {
    db.lock("tidy", route).await
}

/// Drops what no one will ask for any more: all that are older than the lane's newest, `n`. From there downward, and in one
/// transaction, so that none is left below a gap.
pub(crate) async fn tidy(db: &Db<'_>, route: &str, number: u32, n: i64) -> Work<()> {
    let (mut end, mut count) = (n, TIDY_FIRST);
    // Ends with the oldest: below it there is nothing to delete.
    loop {
        let begin = end.saturating_sub(count);
        let deleted = db.execute(TIDY, &[&route, &i64::from(number), &begin, &end]).await?;
        if deleted < count.unsigned_abs() {
            return Ok(());
        }
        (end, count) = (begin, count.saturating_mul(2));
    }
}

fn epoch(stored: i64) -> Epoch {
    Epoch(stored.cast_unsigned())
}
