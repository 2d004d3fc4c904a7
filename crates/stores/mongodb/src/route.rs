//! Readers of the log as documents: routes, and replays of routes.

use std::{collections::BTreeMap, sync::Arc};

use mongodb::bson::{Bson, Document, doc};
use postrider_core::{
    Error, ErrorKind,
    asked::Asked,
    lease::{Order, Reader, Replay},
    left::Left,
    topic::TopicFilter,
};

use crate::{
    cursor::{Tick, timestamp},
    db::{Db, Find, Update},
    error::{Work, corrupt},
    lease::Beginning,
    value::{int, long_opt, narrow, point, text, text_opt},
};

/// A route or replay.
pub(crate) struct Route {
    pub(crate) name: Arc<str>,
    pub(crate) lanes: u32,
    pub(crate) paused: Option<(String, Option<String>)>,
    pub(crate) reader: Reader,
    /// For a replay: the point up to which it reads.
    pub(crate) replay_end: Option<Tick>,
    /// What it read and no longer does.
    pub(crate) left: Vec<Left>,
}

impl Route {
    pub(crate) async fn find(db: &mut Db, name: &str) -> Work<Option<Self>> {
        db.find_one("route", doc! { "_id": name }).await?.as_ref().map(Self::from_document).transpose()
    }

    /// As [`Self::find`], where it must exist.
    pub(crate) async fn get(db: &mut Db, name: &str) -> Work<Self> {
        Ok(Self::find(db, name).await?.ok_or_else(|| unknown("route", name))?)
    }

    /// Every route and replay by name.
    pub(crate) async fn all(db: &mut Db) -> Work<BTreeMap<Arc<str>, Self>> {
        let documents = db.find("route", Find::default()).await?;
        documents.iter().map(|found| Self::from_document(found).map(|route| (Arc::clone(&route.name), route))).collect()
    }

    /// The route through whose publisher it goes.
    pub(crate) fn served_by(&self) -> &Arc<str> {
        self.reader.replay.as_ref().map_or(&self.name, |replay| &replay.of)
    }

    fn from_document(document: &Document) -> Work<Self> {
        let broken = |_| corrupt("a route's settings are not the JSON that was written");
        let topics: TopicFilter = serde_json::from_str(text(document, "topics")?).map_err(broken)?;
        let order = match text(document, "ordering")? {
            "key" => Order::Key,
            "total" => Order::Total,
            _ => return Err(corrupt("a route has an unknown order").into()),
        };
        let replay = match text_opt(document, "replay_of") {
            None => None,
            Some(of) => Some(Replay {
                of: of.into(),
                filter: serde_json::from_str(text(document, "replay_filter")?).map_err(broken)?,
                rate: long_opt(document, "replay_rate").map(narrow),
            }),
        };
        let reason = text_opt(document, "paused_reason").map(ToOwned::to_owned);
        Ok(Self {
            name: text(document, "_id")?.into(),
            lanes: int(document, "lanes")?,
            paused: text_opt(document, "paused_by").map(|by| (by.to_owned(), reason)),
            reader: Reader { topics, order, replay },
            replay_end: point(document, "replay_end"),
            left: Asked::decode_left(text_opt(document, "asked")),
        })
    }

    /// Writes it. Only topics, order and lanes of one that exists change: which collection it has begun with it keeps, so that
    /// another of the same name is noticed (see [`reads`]).
    pub(crate) async fn save(&self, db: &mut Db, beginning: &Beginning) -> Work<()> {
        let order = match self.reader.order {
            Order::Key => "key",
            Order::Total => "total",
        };
        let topics = serde_json::to_string(&self.reader.topics).expect("a topic filter is JSON");
        let mut first = doc! { "ordinals": 0_i64, "beat": 0_i64 };
        if let Some(log) = &beginning.log {
            first.insert("log", log);
        }
        if let Some(replay) = &self.reader.replay {
            first.insert("replay_of", &*replay.of);
            first.insert("replay_filter", serde_json::to_string(&replay.filter).expect("a replay filter is JSON"));
            first.insert("replay_rate", replay.rate.map(i64::from));
            first.insert("replay_end", self.replay_end.map(timestamp));
        }
        let now = doc! { "topics": topics, "ordering": order, "lanes": i64::from(self.lanes) };
        let change = doc! { "$set": now, "$setOnInsert": first };
        db.update("route", Update::one(doc! { "_id": &*self.name }, change).or_insert()).await?;
        Ok(())
    }
}

/// Which collection a route reads, as it was when the route was made or last rebased. `None`: nobody knew.
pub(crate) async fn reads(db: &mut Db, route: &str) -> Work<Option<Bson>> {
    let found = db.find("route", Find::new(doc! { "_id": route }).fields(doc! { "log": 1 })).await?;
    Ok(found.into_iter().next().and_then(|mut found| found.remove("log")))
}

/// What the nodes that serve a route have asked for, as it is stored.
pub(crate) async fn asked(db: &mut Db, route: &str) -> Work<Option<String>> {
    let found = db.find("route", Find::new(doc! { "_id": route }).fields(doc! { "asked": 1 })).await?;
    Ok(found.first().and_then(|found| text_opt(found, "asked")).map(ToOwned::to_owned))
}

/// Replays that have ended and have no rows left. Such a replay stays known only as long as it has dead rows, for the
/// operator.
pub(crate) async fn drop_empty_replays(db: &mut Db) -> Work<()> {
    for name in ended_replays(db).await? {
        if db.find_one("parked", doc! { "route": &name }).await?.is_none() {
            db.delete("route", doc! { "_id": name }).await?;
        }
    }
    Ok(())
}

/// Replays that have no lanes any more.
pub(crate) async fn ended_replays(db: &mut Db) -> Work<Vec<String>> {
    let mut ended = Vec::new();
    let replays = Find::new(doc! { "replay_of": { "$exists": true } }).fields(doc! { "_id": 1 });
    for replay in db.find("route", replays).await? {
        let name = text(&replay, "_id")?;
        if db.find_one("lane", doc! { "route": name }).await?.is_none() {
            ended.push(name.to_owned());
        }
    }
    Ok(ended)
}

pub(crate) fn unknown(what: &'static str, name: &str) -> Error {
    Error::new(ErrorKind::NotFound, "there is no such route or replay").with(what, name.escape_debug())
}
