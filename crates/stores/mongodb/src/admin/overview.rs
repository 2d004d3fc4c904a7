//! Everything on one screen, in one consistent look.
//!
//! What is pending is counted from the collection itself, so a relay that stands still cannot hide it. The scan reads no
//! payloads and is bounded, see [`Pending`].

use std::{collections::BTreeMap, time::Duration};

use mongodb::bson::{Document, doc};
use postrider_core::{
    admin::{Actor, LaneStatus, NodeStatus, Overview, ParkedCounts, Pending, PendingLooks, RouteStatus, Vitals},
    key::OrderingKey,
    parked::ParkedState,
    standstill::Standstill,
    time::Timestamp,
};

use super::readers::{Lane, Readers};
use crate::{
    cursor::{Position, Tick, timestamp},
    db::{Db, Find},
    due,
    error::Work,
    lease::{is_live, names, node_id},
    records::{at, enqueued_at, key, light},
    route::Route,
    select::Selection,
    value::{instant, is_true, long, long_opt, text},
};

/// Documents are counted no further than this; beyond, the server's own estimate is taken.
const COUNTED_MAX: i64 = 200_000;

/// Documents of one answer.
const BATCH_MAX: i64 = 5_000;

pub(super) async fn overview(db: &mut Db, aside: &mut Db, overlap: Tick) -> Work<Overview> {
    let now = db.now().await?;
    let mut readers = Readers::of(db, aside, now, overlap).await?;
    let look = Look { counts: due::counts(db).await?, now };
    let mut looks = PendingLooks::among(readers.lanes.len());
    let mut routes = Vec::new();
    for (name, route) in std::mem::take(&mut readers.routes) {
        // A replay that has ended has no lanes left, only dead rows.
        if let Some(lanes) = readers.lanes.remove(&name) {
            let pending = look.pending(db, &route, &lanes, looks.begin()).await?;
            looks.end(&pending);
            routes.push(look.route_status(db, route, lanes, pending).await?);
        }
    }
    Ok(Overview { routes, nodes: nodes(db, now).await?, records: records(db, aside).await?, at: now })
}

async fn records(db: &mut Db, aside: &mut Db) -> Work<u64> {
    let pipeline = vec![doc! { "$limit": COUNTED_MAX }, doc! { "$count": "records" }];
    let counted = db.aggregate("log", pipeline).await?.first().map_or(Ok(0), |counted| long(counted, "records"))?;
    if counted < COUNTED_MAX {
        return Ok(counted.unsigned_abs());
    }
    let estimate = aside.ask(doc! { "count": aside.names.log() }).await?;
    Ok(long(&estimate, "n")?.unsigned_abs())
}

/// The moment of the look.
struct Look {
    counts: BTreeMap<(String, String), u64>,
    now: Timestamp,
}

impl Look {
    async fn route_status(&self, db: &mut Db, route: Route, lanes: Vec<Lane>, pending: Pending) -> Work<RouteStatus> {
        let mut parked = ParkedCounts::default();
        for state in ParkedState::ALL {
            let count = self.counts.get(&(route.name.to_string(), state.name().to_owned()));
            *parked.of_mut(state) = count.copied().unwrap_or(0);
        }
        let blocking = doc! { "route": &*route.name, "in_line": true, "state": "dead" };
        let blocking = db.aggregate("parked", vec![doc! { "$match": blocking }, doc! { "$count": "rows" }]).await?;
        parked.blocking = blocking.first().map_or(Ok(0), |count| long(count, "rows"))?.unsigned_abs();
        let oldest_row = self.oldest_row(db, &route).await?;
        let lanes = lanes.iter().map(|lane| LaneStatus {
            number: lane.row.number,
            owner: lane.row.owner,
            expires_in: lane.row.expires_in,
            epoch: lane.row.epoch,
            cursor: described(&lane.row.at, lane.row.recovered),
        });
        Ok(RouteStatus {
            lanes: lanes.collect(),
            topics: route.reader.topics.to_string(),
            left: route.left,
            order: route.reader.order,
            paused: route.paused.map(|(name, reason)| Actor { name, reason }),
            pending: pending.count,
            pending_more: pending.more,
            oldest_pending_age: pending.oldest.max(oldest_row),
            parked,
            replay_of: route.reader.replay.map(|replay| replay.of),
            route: route.name,
        })
    }

    /// What waits in the parked rows for anything but its time or an operator.
    async fn oldest_row(&self, db: &mut Db, route: &Route) -> Work<Option<Duration>> {
        let waiting = doc! { "route": &*route.name, "state": { "$in": ["retrying", "held"] } };
        let group = doc! { "_id": null, "oldest": { "$min": "$enqueued_at" } };
        let found = db.aggregate("parked", vec![doc! { "$match": waiting }, doc! { "$group": group }]).await?;
        let oldest = found.first().and_then(|found| long_opt(found, "oldest")).map(Timestamp::from_micros);
        Ok(oldest.map(|at| self.now.since(at)))
    }

    /// How many records no cursor has passed, and the age of the oldest of those that are not scheduled for later: what is
    /// above the bound of its lane, and what committed late.
    async fn pending(&self, db: &mut Db, route: &Route, lanes: &[Lane], mut pending: Pending) -> Work<Pending> {
        let mut whole = Selection::new(&route.reader, 0, 1);
        for lane in lanes {
            for document in &lane.late.documents {
                self.count(&mut pending, &mut whole, document, |id, key| {
                    route.reader.place(key, id, lane.row.number, route.lanes).1
                });
            }
        }
        let upper = route.replay_end.unwrap_or(u64::MAX);
        let mut place = lanes.iter().map(|lane| lane.bound).min().unwrap_or(u64::MAX);
        // Ends with the log, or when enough was looked at.
        loop {
            let find = Find::new(doc! { "at": { "$gt": timestamp(place), "$lte": timestamp(upper) } });
            let documents = db.find("log", find.sort(doc! { "at": 1 }).limit(BATCH_MAX).fields(light())).await?;
            for document in &documents {
                place = at(document);
                if !pending.looks_on(self.now.since(enqueued_at(document))) {
                    return Ok(pending);
                }
                self.count(&mut pending, &mut whole, document, |id, key| {
                    let open =
                        |lane: &Lane| place > lane.bound && route.reader.place(key, id, lane.row.number, route.lanes).1;
                    lanes.iter().any(open)
                });
            }
            if i64::try_from(documents.len()).is_ok_and(|count| count < BATCH_MAX) {
                return Ok(pending);
            }
        }
    }

    fn count(
        &self,
        pending: &mut Pending,
        whole: &mut Selection<'_>,
        document: &Document,
        is_open: impl FnOnce(&uuid::Uuid, Option<&[u8]>) -> bool,
    ) {
        let Some(chosen) = whole.choose(document) else { return };
        let key = key(document).map(OrderingKey::from);
        if !is_open(&chosen.id, key.as_ref().map(AsRef::as_ref)) {
            return;
        }
        let waits = instant(document, "deliver_at").is_none_or(|at| at <= self.now);
        pending.add(waits.then(|| self.now.since(chosen.enqueued_at)));
    }
}

/// For people. That history was lost stays to be seen when the scan is over.
fn described(position: &Position, recovered_at: Option<Timestamp>) -> String {
    let shown = |tick: Tick| {
        let time = timestamp(tick);
        format!("{}.{}", time.time, time.increment)
    };
    match position {
        Position::Scan { until, at, lost: false, .. } => format!("scan at {} up to {}", shown(*at), shown(*until)),
        Position::Scan { until, at, lost: true, .. } => {
            format!("scan after lost history, at {} up to {}", shown(*at), shown(*until))
        }
        Position::Stream { through, .. } => {
            let lost = recovered_at.map_or_else(String::new, |at| format!(", read anew after lost history at {at}"));
            format!("stream through {}{lost}", shown(*through))
        }
    }
}

/// The first of the index on `at`.
pub(super) async fn vitals(db: &mut Db) -> Work<Vitals> {
    let now = db.now().await?;
    let oldest = db.find("log", Find::default().sort(doc! { "at": 1 }).limit(1).fields(light())).await?;
    let age = oldest.first().map_or(Duration::ZERO, |document| now.since(enqueued_at(document)));
    Ok(Vitals { oldest_record_age: Some(age), ..Vitals::default() })
}

async fn nodes(db: &mut Db, now: Timestamp) -> Work<Vec<NodeStatus>> {
    let mut nodes = Vec::new();
    for found in db.find("node", Find::default().sort(doc! { "_id": 1 })).await? {
        if !is_live(&found, now)? {
            continue;
        }
        nodes.push(NodeStatus {
            id: node_id(&found, "_id")?,
            name: text(&found, "name")?.to_owned(),
            routes: names(&found),
            seen: now.since(Timestamp::from_micros(long(&found, "seen_at")?)),
            standstills: Standstill::decode(text(&found, "standstills")?),
            lease_life: Duration::from_micros(long(&found, "lease_life")?.unsigned_abs()),
            leaving: is_true(&found, "leaving"),
        });
    }
    Ok(nodes)
}
