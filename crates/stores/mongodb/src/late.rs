//! What a scan leaves to the stream: messages below the point up to which it goes, whose transactions were open at that point
//! and have committed since.
//!
//! A page of a scan shows what is committed when the page is read, and so a part of such a transaction perhaps, the later part:
//! the place of the earlier one is passed already. The stream behind the point has the whole of it, in order. So after each page
//! the stream is asked what has committed since the point, up to the moment of the page, and that is left out of it.
//!
//! What was found for a lane is kept with where the stream was by then, so that each page asks for what is new alone. Nothing
//! here is the only copy of anything: whoever finds nothing kept asks from the point on.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use mongodb::bson::{Document, doc};
use postrider_core::lease::LaneId;

use crate::{
    cursor::{Onward, Position, Tick},
    db::Db,
    error::Work,
    records::at,
    stream::{Followed, LATE_MAX, Question, follow},
};

/// More than so many of one lane are not kept; its next page asks for them anew.
const KEPT_MAX: usize = 1_000_000;

/// Which messages are left to the stream.
pub(crate) type Numbers = Arc<HashSet<Number>>;

/// Which message it is: its `at`, and a hash of its `_id`, for a client that has filled in the `at` may have done so twice.
pub(crate) type Number = (Tick, u128);

pub(crate) fn number(document: &Document) -> Number {
    let id = document.get("_id").map(|id| doc! { "": id }.to_vec().unwrap_or_default());
    (at(document), xxhash_rust::xxh3::xxh3_128(&id.unwrap_or_default()))
}

/// What is known for each lane that scans.
#[derive(Default)]
pub(crate) struct Late(Mutex<HashMap<LaneId, Known>>);

#[derive(Clone)]
struct Known {
    /// The point up to which the scan goes.
    until: Tick,
    numbers: Numbers,
    /// Where the stream goes on.
    onward: Onward,
    /// Everything that was committed up to here is known.
    through: Tick,
}

/// What a scan is to leave out.
pub(crate) enum Left {
    Out(Numbers),
    /// The server has forgotten what came behind the point, or the collection itself ended.
    Unknown(Followed),
}

impl Late {
    /// What was committed behind `until` and up to `seen`, and is not above it. Behind `over` nothing more can come: whatever was
    /// open at `until` has ended by then.
    pub(crate) async fn of(&self, db: &mut Db, lane: &LaneId, until: Tick, seen: Tick, over: Tick) -> Work<Left> {
        let known = self.lock().get(lane).filter(|known| known.until == until).cloned();
        let known = known.unwrap_or_else(|| Known {
            until,
            numbers: Numbers::default(),
            onward: Position::behind(until).onward(),
            through: until,
        });
        if known.through >= seen || known.through >= over {
            return Ok(Left::Out(known.numbers));
        }
        let Known { mut numbers, onward: from, .. } = known;
        let question = Question { from, events_max: LATE_MAX, late: Some(until), after: Some(seen), until: None };
        let (found, onward) = match follow(db, question).await? {
            Followed::ToItsEnd { found, onward } => (found, onward),
            unknown => return Ok(Left::Unknown(unknown)),
        };
        if !found.is_empty() {
            Arc::make_mut(&mut numbers).extend(found.iter().map(number));
        }
        if numbers.len() <= KEPT_MAX {
            let known = Known { until, numbers: Arc::clone(&numbers), onward, through: seen };
            self.lock().insert(lane.clone(), known);
        }
        Ok(Left::Out(numbers))
    }

    /// The lane scans no more.
    pub(crate) fn forget(&self, lane: &LaneId) {
        self.lock().remove(lane);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<LaneId, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
