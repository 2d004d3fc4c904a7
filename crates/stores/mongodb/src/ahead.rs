//! What a stream had beyond the page that it was asked for.
//!
//! To open a stream far behind the end of the log is dear, however few events it is asked for: one was measured to take more
//! than half as long as a thousand. So more is asked for than fits into a page, and the rest waits here for the lane's next
//! read, which mostly begins where the last one ended. One that begins elsewhere asks anew. Nothing here is the only copy of
//! anything, and nothing goes stale: what was committed stays committed.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use mongodb::bson::Document;
use postrider_core::lease::LaneId;

use crate::cursor::Position;

/// What nobody has asked for in so long belongs to a lane that has gone elsewhere.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// Messages, each with the position behind it.
pub(crate) type Rest = VecDeque<(Document, Position)>;

/// The rest of each lane.
#[derive(Default)]
pub(crate) struct Ahead(Mutex<HashMap<LaneId, Kept>>);

struct Kept {
    /// Where it goes on.
    from: Position,
    rest: Rest,
    since: Instant,
}

impl Ahead {
    /// What the lane has behind this very position.
    pub(crate) fn take(&self, lane: &LaneId, from: &Position) -> Option<Rest> {
        let kept = self.lanes(|lanes| lanes.remove(lane))?;
        (kept.from == *from).then_some(kept.rest)
    }

    pub(crate) fn keep(&self, lane: &LaneId, from: Position, rest: Rest) {
        let since = Instant::now();
        self.lanes(|lanes| {
            lanes.retain(|_, kept| kept.since.elapsed() < KEPT_FOR);
            if !rest.is_empty() {
                lanes.insert(lane.clone(), Kept { from, rest, since });
            }
        });
    }

    fn lanes<T>(&self, work: impl FnOnce(&mut HashMap<LaneId, Kept>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_goes_on_where_it_ended_gets_the_rest() {
        let (ahead, lane) = (Ahead::default(), LaneId { route: "r".into(), number: 0 });
        let (here, there) = (Position::behind(1), Position::behind(2));
        let rest = || Rest::from([(Document::new(), there.clone())]);
        ahead.keep(&lane, here.clone(), rest());
        assert_eq!(ahead.take(&lane, &here).map(|rest| rest.len()), Some(1));
        assert_eq!(ahead.take(&lane, &here), None, "it is taken");
        ahead.keep(&lane, here.clone(), rest());
        assert_eq!(ahead.take(&lane, &there), None, "another place");
        assert_eq!(ahead.take(&lane, &here), None, "whoever was elsewhere does not come back");
    }
}
