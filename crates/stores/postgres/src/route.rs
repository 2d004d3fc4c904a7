//! Readers of the log as rows: routes, and replays of routes.

use std::{collections::BTreeMap, sync::Arc};

use postrider_core::{
    Error, ErrorKind,
    asked::Asked,
    lease::{LaneId, Order, Reader, Replay},
    left::{Left, lane_that_passed},
    topic::TopicFilter,
};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::{
    cursor::Position,
    db::{Db, unsigned},
    error::{Work, corrupt},
    lease::LaneRow,
};

const FIND: &str = "
SELECT name, topics, ordering, lanes, paused_by, paused_reason, replay_of, replay_filter, replay_rate, asked
  FROM {route}
 WHERE name = $1";

const ALL: &str = "
SELECT name, topics, ordering, lanes, paused_by, paused_reason, replay_of, replay_filter, replay_rate, asked
  FROM {route}
 ORDER BY name";

const SAVE: &str = "
INSERT INTO {route} (name, topics, ordering, lanes, replay_of, replay_filter, replay_rate)
VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (name) DO UPDATE SET topics = $2, ordering = $3, lanes = $4";

/// A replay that has ended stays known only as long as it has dead rows, for the operator. Its name is never given again, so
/// its checkpoint goes with it: of a lane that has ended there is one left, the newest.
const DROP_EMPTY_REPLAYS: &str = "
WITH gone AS (DELETE FROM {route} AS route
               WHERE replay_of IS NOT NULL
                 AND NOT EXISTS (SELECT 1 FROM {lane} AS lane WHERE lane.route = route.name)
                 AND NOT EXISTS (SELECT 1 FROM {parked} AS row WHERE row.route = route.name)
              RETURNING name)
DELETE FROM {checkpoint} AS checkpoint
 USING gone
 CROSS JOIN LATERAL (SELECT number, n
                       FROM {checkpoint} AS ended
                      WHERE ended.route = gone.name
                      ORDER BY number DESC, n DESC
                      LIMIT 1) AS newest
 WHERE checkpoint.route = gone.name AND checkpoint.number = newest.number AND checkpoint.n = newest.n";

/// A route or replay.
pub(crate) struct Route {
    pub(crate) name: Arc<str>,
    pub(crate) lanes: u32,
    pub(crate) paused: Option<(String, Option<String>)>,
    pub(crate) reader: Reader,
    /// What it read and no longer does.
    pub(crate) left: Vec<Left>,
}

impl Route {
    pub(crate) async fn find(db: &Db<'_>, name: &str) -> Work<Option<Self>> {
        db.query_opt(FIND, &[&name]).await?.as_ref().map(Self::from_row).transpose()
    }

    /// As [`Self::find`], where it must exist.
    pub(crate) async fn get(db: &Db<'_>, name: &str) -> Work<Self> {
        Ok(Self::find(db, name).await?.ok_or_else(|| unknown("route", name))?)
    }

    /// Every route and replay by name.
    pub(crate) async fn all(db: &Db<'_>) -> Work<BTreeMap<Arc<str>, Self>> {
        let rows = db.query(ALL, &[]).await?;
        rows.iter().map(|row| Self::from_row(row).map(|route| (Arc::clone(&route.name), route))).collect()
    }

    fn from_row(row: &Row) -> Work<Self> {
        let broken = |_| corrupt("a route's settings are not the JSON that was written");
        let topics = topics(row.try_get(1)?)?;
        let order = match row.try_get(2)? {
            "key" => Order::Key,
            "total" => Order::Total,
            _ => return Err(corrupt("a route has an unknown order").into()),
        };
        let replay = match row.try_get::<_, Option<&str>>(6)? {
            None => None,
            Some(of) => Some(Replay {
                of: of.into(),
                filter: serde_json::from_str(row.try_get(7)?).map_err(broken)?,
                rate: row.try_get::<_, Option<i64>>(8)?.map(unsigned),
            }),
        };
        let reason: Option<String> = row.try_get(5)?;
        Ok(Self {
            name: row.try_get::<_, &str>(0)?.into(),
            lanes: unsigned(row.try_get(3)?),
            paused: row.try_get::<_, Option<String>>(4)?.map(|by| (by, reason)),
            reader: Reader { topics, order, replay },
            left: Asked::decode_left(row.try_get(9)?),
        })
    }

    /// The lane that had passed a row when the route let go of its topic, if one had. What was noted before the database was
    /// set back or moved says nothing of the rows of now.
    pub(crate) fn passed_once(
        &self,
        lanes: Option<&Vec<LaneRow>>,
        (xid, seq): (u64, i64),
        topic: &str,
        key: Option<&[u8]>,
        id: &Uuid,
    ) -> Option<(LaneId, bool)> {
        if self.left.is_empty() || self.reader.topics.matches(topic) {
            return None;
        }
        let counts_here = |at: &Position| lanes?.first().map(|lane| lane.position.identity == at.identity);
        let number = lane_that_passed(&self.left, topic, key, id, |cursor| {
            Position::decode(cursor).is_ok_and(|at| counts_here(&at) == Some(true) && at.has_settled(xid, seq))
        })?;
        Some((LaneId { route: Arc::clone(&self.name), number }, true))
    }

    /// Writes it. Only topics, order and lanes of one that exists change.
    pub(crate) async fn save(&self, db: &Db<'_>) -> Work<()> {
        let replay = self.reader.replay.as_ref();
        let order = match self.reader.order {
            Order::Key => "key",
            Order::Total => "total",
        };
        let topics = serde_json::to_string(&self.reader.topics).expect("a topic filter is JSON");
        let of = replay.map(|replay| &*replay.of);
        let filter = replay.map(|replay| serde_json::to_string(&replay.filter).expect("a replay filter is JSON"));
        let rate = replay.and_then(|replay| replay.rate).map(i64::from);
        let lanes = i64::from(self.lanes);
        db.execute(SAVE, &[&&*self.name, &topics, &order, &lanes, &of, &filter, &rate]).await?;
        Ok(())
    }
}

pub(crate) async fn drop_empty_replays(db: &Db<'_>) -> Work<()> {
    db.execute(DROP_EMPTY_REPLAYS, &[]).await?;
    Ok(())
}

pub(crate) fn topics(stored: &str) -> Work<TopicFilter> {
    Ok(serde_json::from_str(stored).map_err(|_| corrupt("a route's topics are not the JSON that was written"))?)
}

pub(crate) fn unknown(what: &'static str, name: &str) -> Error {
    Error::new(ErrorKind::NotFound, "there is no such route or replay").with(what, name.escape_debug())
}
