//! Everybody who reads the log, and how far they are with a message.
//!
//! A message is passed by a lane if its `at` is not above the lane's bound and its transaction did not commit late. Which ones
//! did is asked of the change stream, once for each different cursor; mostly there are none. Somebody waits for the answer, so all
//! of them together may take [`LATE_PATIENCE`]. Those that are nearest to the end of the log come first: they are quick to answer,
//! and one that is far behind leaves them their time.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Instant,
};

use mongodb::bson::Document;
use postrider_core::{lease::LaneId, left::lane_that_passed, log::Cursor, time::Timestamp};
use uuid::Uuid;

use crate::{
    cursor::{Position, Tick},
    db::Db,
    error::Work,
    lease::{self, LaneRow},
    records::at,
    route::Route,
    stream::{self, LATE_PATIENCE},
};

/// Routes and replays with their lanes.
pub(super) struct Readers {
    pub(super) routes: BTreeMap<Arc<str>, Route>,
    pub(super) lanes: HashMap<Arc<str>, Vec<Lane>>,
}

/// A lane, and what is before it although it is below its bound.
pub(super) struct Lane {
    pub(super) row: LaneRow,
    pub(super) bound: Tick,
    pub(super) late: Arc<Late>,
}

/// Messages whose transactions committed late.
#[derive(Default)]
pub(super) struct Late {
    pub(super) documents: Vec<Document>,
    numbers: HashSet<Tick>,
}

/// What a message is to its readers.
pub(super) struct About<'a> {
    pub(super) number: Tick,
    pub(super) id: &'a Uuid,
    pub(super) topic: &'a str,
    pub(super) name: &'a str,
    pub(super) key: Option<&'a str>,
    pub(super) enqueued_at: Timestamp,
}

impl Readers {
    /// `aside` is for the stream, which cannot be asked at a point in time of the past.
    pub(super) async fn of(db: &mut Db, aside: &mut Db, now: Timestamp, overlap: Tick) -> Work<Self> {
        let routes = Route::all(db).await?;
        let rows = lease::lanes(db, now).await?;
        // A replay reads the collection alone.
        let is_replay = |name: &str| routes.get(name).is_some_and(|route| route.reader.replay.is_some());
        let live = rows.iter().filter(|(name, _)| !is_replay(name)).flat_map(|(_, rows)| rows);
        let live: Vec<Position> = live.map(|row| row.at.clone()).collect();
        let known = standings(aside, &live, overlap).await?;
        let mut lanes: HashMap<Arc<str>, Vec<Lane>> = HashMap::new();
        for (name, rows) in rows {
            let is_replay = is_replay(&name);
            let lane = |row: LaneRow| {
                let found = known.get(&*row.at.encode().0).filter(|_| !is_replay).cloned();
                let (bound, late) = found.unwrap_or_else(|| (row.at.bound(), Arc::default()));
                Lane { row, bound, late }
            };
            lanes.insert(name, rows.into_iter().map(lane).collect());
        }
        Ok(Self { routes, lanes })
    }

    /// The lanes that a message belongs to, and whether each has passed it.
    pub(super) fn passed(&self, about: &About<'_>) -> Vec<(LaneId, bool)> {
        let mut passed = Vec::new();
        for route in self.routes.values() {
            let in_time = route.replay_end.is_none_or(|end| about.number <= end);
            if !in_time || !route.reader.reads(about.topic, about.name, about.key, about.enqueued_at) {
                passed.extend(passed_once(route, about));
                continue;
            }
            for lane in self.lanes.get(&route.name).into_iter().flatten() {
                if route.reader.place(about.key.map(str::as_bytes), about.id, lane.row.number, route.lanes).1 {
                    let lane_id = LaneId { route: Arc::clone(&route.name), number: lane.row.number };
                    passed.push((lane_id, lane.has_passed(about.number)));
                }
            }
        }
        passed
    }
}

impl Lane {
    pub(super) fn has_passed(&self, number: Tick) -> bool {
        number <= self.bound && !self.late.numbers.contains(&number)
    }
}

/// The lane that had passed a message when the route let go of its topic, if one had. The stream is not asked who committed
/// late: it would be read from then to now with every look, and only a transaction that was open in that very moment can
/// have.
fn passed_once(route: &Route, about: &About<'_>) -> Option<(LaneId, bool)> {
    if route.reader.topics.matches(about.topic) {
        return None;
    }
    let has_passed = |cursor: &Cursor| Position::decode(&cursor.0).is_ok_and(|at| about.number <= at.bound());
    let key = about.key.map(str::as_bytes);
    let number = lane_that_passed(&route.left, about.topic, key, about.id, has_passed)?;
    Some((LaneId { route: Arc::clone(&route.name), number }, true))
}

/// Up to where each different cursor has passed everything but what committed late, by how the cursor is written. Where the server
/// has forgotten what did, or there is no time left to ask, everything within the overlap counts as not passed.
async fn standings(aside: &mut Db, positions: &[Position], overlap: Tick) -> Work<HashMap<Vec<u8>, (Tick, Arc<Late>)>> {
    let until = Instant::now() + LATE_PATIENCE;
    let different: HashMap<Vec<u8>, &Position> = positions.iter().map(|at| (at.encode().0.to_vec(), at)).collect();
    let mut nearest_first: Vec<(Vec<u8>, &Position)> = different.into_iter().collect();
    nearest_first.sort_by_key(|(_, position)| std::cmp::Reverse(position.horizon()));
    let mut known = HashMap::new();
    for (cursor, position) in nearest_first {
        let standing = match stream::late(aside, position, None, until).await? {
            Some(documents) => {
                let numbers = documents.iter().map(at).collect();
                (position.bound(), Arc::new(Late { documents, numbers }))
            }
            None => (position.scan_from(overlap), Arc::default()),
        };
        known.insert(cursor, standing);
    }
    Ok(known)
}
