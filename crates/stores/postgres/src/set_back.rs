//! A sequence that was set back: what it is noticed by, what is to be done, and what must not be lost by it.
//!
//! Numbers are drawn in ascending order, and everything that a reader passes over rests on that. Whoever sets the log's
//! sequence back lets messages have numbers that readers have passed. While it stands back that is seen, and nobody reads.
//! Once it was set forward again only the rows themselves tell: they lie below what a lane has read (`rest`), and its base
//! has not seen their transaction, which cannot be otherwise. Such rows are looked for where it costs little: when a lane
//! is begun from its cursor, when a leaf is about to be emptied, and by the doctor.
//!
//! In a log that was restored, rows carry ids of another cluster, and nothing follows from them. There a lane that has seen the
//! sequence stand back is rebased without a look.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use postrider_core::{Error, ErrorKind, lease::LaneId};
use tokio_postgres::{Row, types::ToSql};

use crate::{
    cursor::{Identity, Position, stored},
    dialect::{LEAVES, Postgres},
    error::Work,
    snapshot::Snapshot,
};

/// How long whoever begins with a lane looks for such rows, in milliseconds. A log that is too large for it is read on
/// without. For a lane that has seen the sequence stand back there is no limit.
pub(crate) const LOOK_MILLIS: u32 = 1_000;

/// Where each lane is.
pub(crate) const LANES: &str = "
SELECT lane.route, route.replay_of IS NOT NULL, newest.cursor
  FROM {lane} AS lane
  JOIN {route} AS route ON route.name = lane.route
 CROSS JOIN LATERAL (SELECT cursor
                       FROM {checkpoint} AS checkpoint
                      WHERE checkpoint.route = lane.route AND checkpoint.number = lane.number
                      ORDER BY n DESC
                      LIMIT 1) AS newest
 ORDER BY lane.route, lane.number";

/// The highest number in the log: one end of each leaf's index.
pub(crate) const HIGHEST: &str = "
SELECT coalesce(greatest((SELECT max(seq) FROM {log_0}), (SELECT max(seq) FROM {log_1}), (SELECT max(seq) FROM {log_2}),
                         (SELECT max(seq) FROM {log_3}), (SELECT max(seq) FROM {log_4}), (SELECT max(seq) FROM {log_5}),
                         (SELECT max(seq) FROM {log_6}), (SELECT max(seq) FROM {log_7})), 0)";

/// A lane of [`LANES`].
pub(crate) struct Lane {
    pub(crate) route: String,
    pub(crate) is_replay: bool,
    pub(crate) position: Position,
}

pub(crate) fn lanes(rows: &[Row]) -> Work<Vec<Lane>> {
    let lane = |row: &Row| {
        let position = Position::decode(&stored(row.try_get(2)?))?;
        Ok(Lane { route: row.try_get(0)?, is_replay: row.try_get(1)?, position })
    };
    rows.iter().map(lane).collect()
}

/// The highest number that is known to have been drawn: of what is stored, and of what was read and is gone since.
pub(crate) fn highest(stored: i64, lanes: &[Lane]) -> i64 {
    lanes.iter().map(|lane| lane.position.hi).fold(stored, i64::max)
}

/// What puts the sequence right, to be pasted as it is.
pub(crate) fn setval(dialect: &Postgres, highest: i64) -> String {
    format!("SELECT setval('{}', {highest})", dialect.render("{seq}"))
}

/// For a reader that has read further than numbers are drawn.
pub(crate) fn error(dialect: &Postgres, last: i64, highest: i64) -> Error {
    let message = format!(
        "the numbers of the log went back, so new messages would take those of old ones; stop the producers, run \
         `{}`, then `postrider route rebase`",
        setval(dialect, highest)
    );
    Error::new(ErrorKind::Corrupt, message).with("last", last).with("highest", highest)
}

/// Lanes that have seen the sequence stand back, and have not been begun anew since.
#[derive(Debug, Default)]
pub(crate) struct Noticed(Mutex<BTreeSet<LaneId>>);

impl Noticed {
    pub(crate) fn note(&self, lane: &LaneId) {
        self.lanes().insert(lane.clone());
    }

    pub(crate) fn by(&self, lane: &LaneId) -> bool {
        self.lanes().contains(lane)
    }

    /// The lane has looked, or was rebased.
    pub(crate) fn forget(&self, lane: &LaneId) {
        self.lanes().remove(lane);
    }

    fn lanes(&self) -> MutexGuard<'_, BTreeSet<LaneId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a row of the log is that a base, `$1`, has not seen, although its transaction has ended here. The ids come first: of
/// rows that are old, nothing else is asked.
pub(crate) const UNSEEN: &str = "tx >= pg_snapshot_xmin($1) AND NOT pg_visible_in_snapshot(tx, $1) \
                                 AND pg_visible_in_snapshot(tx, pg_current_snapshot())";

/// Rows that a lane would never read.
pub(crate) struct PassedOver {
    base: Snapshot,
    rest: i64,
    /// Those that may have rows further below.
    stragglers: Vec<String>,
}

impl PassedOver {
    /// `None`: of such a lane nothing can be said, or nothing is passed yet.
    pub(crate) fn of(position: &Position, here: Identity) -> Option<Self> {
        let Position { identity, base, rest, stragglers, before, .. } = position;
        let stragglers = stragglers.iter().map(|(xid, _)| xid.to_string()).collect();
        (*identity == here && before.is_none() && *rest > 0).then(|| Self {
            base: base.clone(),
            rest: *rest,
            stragglers,
        })
    }

    /// Whether there is one. A look through all that the log keeps.
    pub(crate) fn sql() -> String {
        let of_leaf = |leaf: usize| {
            format!(
                "EXISTS (SELECT 1 FROM {{log_{leaf}}} WHERE seq <= $2 AND {UNSEEN} AND tx::text <> ALL ($3::text[]))"
            )
        };
        format!("SELECT {}", (0..LEAVES).map(of_leaf).collect::<Vec<_>>().join("\n    OR "))
    }

    /// What [`Self::sql`] binds.
    pub(crate) fn parameters(&self) -> [&(dyn ToSql + Sync); 3] {
        [&self.base, &self.rest, &self.stragglers]
    }
}

/// What everything in a leaf must have been seen by before it is emptied: the oldest base. A rebase counts here with its
/// target, and a replay reads nothing but what was there when it was made. `None`: nobody waits for anything.
pub(crate) fn oldest_base(lanes: Vec<Lane>) -> Option<Snapshot> {
    let base = |lane: Lane| match lane.position {
        Position { before: Some(_), target: Some((target, _)), .. } => target,
        Position { base, .. } => base,
    };
    lanes.into_iter().filter(|lane| !lane.is_replay).map(base).min_by(Snapshot::age)
}
