//! Readers of the log as rows: routes, and replays of routes.

use std::{collections::BTreeMap, sync::Arc};

use mysql_async::Row;
use postrider_core::{
    Error, ErrorKind,
    asked::Asked,
    lease::{LaneId, Order, Reader, Replay},
    left::{Left, lane_that_passed},
    log::Cursor,
    topic::TopicFilter,
};
use uuid::Uuid;

use crate::{
    cursor,
    db::{Db, get, values},
    error::{Work, corrupt},
};

/// The columns of a route, as [`Route::from_row`] wants them.
const COLUMNS: &str = "name, topics, ordering, lanes, paused_by, paused_reason, replay_of, replay_filter, replay_rate, replay_end, \
     asked";

const SAVE: &str = "
INSERT INTO {p}route (name, topics, ordering, lanes, replay_of, replay_filter, replay_rate, replay_end)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON DUPLICATE KEY UPDATE topics = VALUES(topics), ordering = VALUES(ordering), lanes = VALUES(lanes)";

/// Replays that have ended and have no rows left. Such a replay stays known only as long as it has dead rows, for the
/// operator.
const EMPTY_REPLAYS: &str = "
SELECT name
  FROM {p}route AS route
 WHERE replay_of IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM {p}lane AS lane WHERE lane.route = route.name)
   AND NOT EXISTS (SELECT 1 FROM {p}parked AS parked WHERE parked.route = route.name)";

/// A route or replay.
pub(crate) struct Route {
    pub(crate) name: Arc<str>,
    pub(crate) lanes: u32,
    pub(crate) paused: Option<(String, Option<String>)>,
    pub(crate) reader: Reader,
    /// For a replay: the place of the last record that it reads.
    pub(crate) replay_end: Option<i64>,
    /// What it read and no longer does.
    pub(crate) left: Vec<Left>,
}

impl Route {
    pub(crate) async fn find(db: &mut Db, name: &str) -> Work<Option<Self>> {
        let sql = format!("SELECT {COLUMNS} FROM {{p}}route WHERE name = ?");
        db.query_opt(&sql, values![name]).await?.as_ref().map(Self::from_row).transpose()
    }

    /// As [`Self::find`], where it must exist.
    pub(crate) async fn get(db: &mut Db, name: &str) -> Work<Self> {
        Ok(Self::find(db, name).await?.ok_or_else(|| unknown("route", name))?)
    }

    /// Every route and replay by name.
    pub(crate) async fn all(db: &mut Db) -> Work<BTreeMap<Arc<str>, Self>> {
        let rows = db.query(&format!("SELECT {COLUMNS} FROM {{p}}route ORDER BY name"), Vec::new()).await?;
        rows.iter().map(|row| Self::from_row(row).map(|route| (Arc::clone(&route.name), route))).collect()
    }

    /// The route through whose publisher it goes.
    pub(crate) fn served_by(&self) -> &Arc<str> {
        self.reader.replay.as_ref().map_or(&self.name, |replay| &replay.of)
    }

    /// The lane that had passed a record when the route let go of its topic, if one had.
    pub(crate) fn passed_once(&self, place: i64, topic: &str, key: Option<&[u8]>, id: &Uuid) -> Option<(LaneId, bool)> {
        if self.reader.topics.matches(topic) {
            return None;
        }
        let has_passed = |at: &Cursor| cursor::decode(at).is_ok_and(|at| place <= at);
        let number = lane_that_passed(&self.left, topic, key, id, has_passed)?;
        Some((LaneId { route: Arc::clone(&self.name), number }, true))
    }

    fn from_row(row: &Row) -> Work<Self> {
        let broken = |_| corrupt("a route's settings are not the JSON that was written");
        let topics: TopicFilter = serde_json::from_str(&get::<String>(row, 1)?).map_err(broken)?;
        let order = match get::<String>(row, 2)?.as_str() {
            "key" => Order::Key,
            "total" => Order::Total,
            _ => return Err(corrupt("a route has an unknown order").into()),
        };
        let replay = match get::<Option<String>>(row, 6)? {
            None => None,
            Some(of) => Some(Replay {
                of: of.into(),
                filter: serde_json::from_str(&get::<String>(row, 7)?).map_err(broken)?,
                rate: get(row, 8)?,
            }),
        };
        let reason: Option<String> = get(row, 5)?;
        Ok(Self {
            name: get::<String>(row, 0)?.into(),
            lanes: get(row, 3)?,
            paused: get::<Option<String>>(row, 4)?.map(|by| (by, reason)),
            reader: Reader { topics, order, replay },
            replay_end: get(row, 9)?,
            left: Asked::decode_left(get::<Option<String>>(row, 10)?.as_deref()),
        })
    }

    /// Writes it. Only topics, order and lanes of one that exists change.
    pub(crate) async fn save(&self, db: &mut Db) -> Work<()> {
        let replay = self.reader.replay.as_ref();
        let order = match self.reader.order {
            Order::Key => "key",
            Order::Total => "total",
        };
        let topics = serde_json::to_string(&self.reader.topics).expect("a topic filter is JSON");
        let of = replay.map(|replay| replay.of.to_string());
        let filter = replay.map(|replay| serde_json::to_string(&replay.filter).expect("a replay filter is JSON"));
        let rate = replay.and_then(|replay| replay.rate);
        let values = values![&*self.name, topics, order, self.lanes, of, filter, rate, self.replay_end];
        db.execute(SAVE, values).await?;
        Ok(())
    }
}

pub(crate) async fn drop_empty_replays(db: &mut Db) -> Work<()> {
    for row in db.query(EMPTY_REPLAYS, Vec::new()).await? {
        db.execute("DELETE FROM {p}route WHERE name = ?", values![get::<String>(&row, 0)?]).await?;
    }
    Ok(())
}

pub(crate) fn unknown(what: &'static str, name: &str) -> Error {
    Error::new(ErrorKind::NotFound, "there is no such route or replay").with(what, name.escape_debug())
}
