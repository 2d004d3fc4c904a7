//! Readers of the log as rows: routes, and replays of routes.

use std::sync::Arc;

use postrider_core::{
    Error, ErrorKind,
    asked::Asked,
    lease::{LaneId, Order, Reader, Replay},
    left::{Left, lane_that_passed},
    log::Cursor,
    topic::TopicFilter,
};
use rusqlite::{OptionalExtension, Row, params};
use uuid::Uuid;

use crate::{
    cursor,
    error::{Work, corrupt},
    worker::Db,
};

/// Columns of a route, in the order in which [`Route::from_row`] expects them.
pub(crate) const ROUTE: &str = "name, topics, ordering, lanes, paused_by, paused_reason, replay_of, replay_filter, replay_rate, replay_end, \
     asked";

/// By primary key.
const FIND: &str = "
SELECT name, topics, ordering, lanes, paused_by, paused_reason, replay_of, replay_filter, replay_rate, replay_end,
       asked
  FROM {p}route
 WHERE name = ?1";

const SAVE: &str = "
INSERT INTO {p}route (name, topics, ordering, lanes, replay_of, replay_filter, replay_rate, replay_end)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
    ON CONFLICT (name) DO UPDATE SET topics = ?2, ordering = ?3, lanes = ?4";

/// A replay that has ended stays known only as long as it has dead rows, for the operator.
const DROP_EMPTY_REPLAYS: &str = "
DELETE FROM {p}route
 WHERE replay_of IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM {p}lane AS lane WHERE lane.route = {p}route.name)
   AND NOT EXISTS (SELECT 1 FROM {p}parked AS row WHERE row.route = {p}route.name)";

/// One more of the numbers that are never given twice.
const COUNT: &str = "UPDATE {p}counter SET value = value + ?2 WHERE name = ?1 RETURNING value";

/// A route or replay.
pub(crate) struct Route {
    pub(crate) name: Arc<str>,
    pub(crate) lanes: u32,
    pub(crate) paused: Option<(String, Option<String>)>,
    pub(crate) reader: Reader,
    pub(crate) replay_end: Option<i64>,
    /// What it read and no longer does.
    pub(crate) left: Vec<Left>,
}

impl Route {
    pub(crate) fn find(db: &Db, name: &str) -> Work<Option<Self>> {
        let mut statement = db.statement(FIND)?;
        let mut rows = statement.query([name])?;
        rows.next()?.map(Self::from_row).transpose()
    }

    /// As [`Self::find`], where it must exist.
    pub(crate) fn get(db: &Db, name: &str) -> Work<Self> {
        Ok(Self::find(db, name)?.ok_or_else(|| unknown("route", name))?)
    }

    /// From a row that begins with [`ROUTE`].
    pub(crate) fn from_row(row: &Row<'_>) -> Work<Self> {
        let broken = |_| corrupt("a route's settings are not the JSON that was written");
        let topics: TopicFilter = serde_json::from_str(&row.get::<_, String>(1)?).map_err(broken)?;
        let order = match row.get::<_, String>(2)?.as_str() {
            "key" => Order::Key,
            "total" => Order::Total,
            _ => return Err(corrupt("a route has an unknown order").into()),
        };
        let replay = match row.get::<_, Option<String>>(6)? {
            None => None,
            Some(of) => Some(Replay {
                of: of.into(),
                filter: serde_json::from_str(&row.get::<_, String>(7)?).map_err(broken)?,
                rate: row.get(8)?,
            }),
        };
        let reason: Option<String> = row.get(5)?;
        Ok(Self {
            name: row.get::<_, String>(0)?.into(),
            lanes: row.get(3)?,
            paused: row.get::<_, Option<String>>(4)?.map(|by| (by, reason)),
            reader: Reader { topics, order, replay },
            replay_end: row.get(9)?,
            left: Asked::decode_left(row.get::<_, Option<String>>(10)?.as_deref()),
        })
    }

    /// Writes it. Only topics, order and lanes of one that exists change.
    pub(crate) fn save(&self, db: &Db) -> Work<()> {
        let replay = self.reader.replay.as_ref();
        let order = match self.reader.order {
            Order::Key => "key",
            Order::Total => "total",
        };
        db.statement(SAVE)?.execute(params![
            &*self.name,
            serde_json::to_string(&self.reader.topics).expect("a topic filter is JSON"),
            order,
            self.lanes,
            replay.map(|replay| &*replay.of),
            replay.map(|replay| serde_json::to_string(&replay.filter).expect("a replay filter is JSON")),
            replay.and_then(|replay| replay.rate),
            self.replay_end,
        ])?;
        Ok(())
    }

    /// The lane that had passed a record when the route let go of its topic, if one had.
    pub(crate) fn passed_once(&self, seq: i64, topic: &str, key: Option<&[u8]>, id: &Uuid) -> Option<(LaneId, bool)> {
        if self.reader.topics.matches(topic) {
            return None;
        }
        let has_passed = |at: &Cursor| cursor::decode(at).is_ok_and(|at| seq <= at);
        let number = lane_that_passed(&self.left, topic, key, id, has_passed)?;
        Some((LaneId { route: Arc::clone(&self.name), number }, true))
    }

    /// The route whose publisher serves it.
    pub(crate) fn served_by(&self) -> &Arc<str> {
        self.reader.replay.as_ref().map_or(&self.name, |replay| &replay.of)
    }
}

pub(crate) fn drop_empty_replays(db: &Db) -> Work<()> {
    db.statement(DROP_EMPTY_REPLAYS)?.execute([])?;
    Ok(())
}

/// Draws `count` numbers and returns the last of them.
pub(crate) fn draw(db: &Db, counter: &str, count: i64) -> Work<i64> {
    let value = db.statement(COUNT)?.query_row(params![counter, count], |row| row.get(0)).optional()?;
    Ok(value.ok_or_else(|| corrupt("a counter is missing"))?)
}

pub(crate) fn unknown(what: &'static str, name: &str) -> Error {
    Error::new(ErrorKind::NotFound, "there is no such route or replay").with(what, name.escape_debug())
}
