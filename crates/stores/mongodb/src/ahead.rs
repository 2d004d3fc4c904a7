//! What a stream had beyond the page that it was asked for.
//!
//! To open a stream far behind the end of the log is dear, however few events it is asked for: one was measured to take more
//! than half as long as a thousand. So more is asked for than fits into a page, and the rest waits here for the lane's next
//! read, which mostly begins where the last one ended. One that begins elsewhere asks anew. Nothing here is the only copy of
//! anything, and nothing goes stale: what was committed stays committed. So what would be too much is not kept
//! ([`BYTES_MAX`]), and what nobody has come for is dropped ([`KEPT_FOR`]).

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use mongodb::bson::Document;
use postrider_core::lease::LaneId;

use crate::{cursor::Position, stream::weight};

/// What nobody has asked for in so long belongs to a lane that has gone elsewhere.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// Bytes that wait here for all lanes of a process together. A lane whose rest does not fit asks for it anew.
const BYTES_MAX: usize = 64 << 20;

/// Messages, each with the position behind it.
#[derive(Default)]
pub(crate) struct Rest {
    messages: VecDeque<(Arc<Document>, Position)>,
    bytes: usize,
}

impl Rest {
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The messages, in order.
    pub(crate) fn documents(&self) -> impl Iterator<Item = &Document> {
        self.messages.iter().map(|(document, _)| &**document)
    }

    pub(crate) fn push_back(&mut self, document: Arc<Document>, behind: Position) {
        self.bytes += weight(&document);
        self.messages.push_back((document, behind));
    }

    /// Puts back what does not fit into a page.
    pub(crate) fn push_front(&mut self, document: Arc<Document>, behind: Position) {
        self.bytes += weight(&document);
        self.messages.push_front((document, behind));
    }

    pub(crate) fn pop_front(&mut self) -> Option<(Arc<Document>, Position)> {
        let (document, behind) = self.messages.pop_front()?;
        self.bytes -= weight(&document);
        Some((document, behind))
    }
}

/// The rest of each lane.
#[derive(Default)]
pub(crate) struct Ahead(Arc<Mutex<Lanes>>);

#[derive(Default)]
struct Lanes {
    kept: HashMap<LaneId, Kept>,
    /// Whether a task looks after the deadline.
    swept: bool,
}

struct Kept {
    /// Where it goes on.
    from: Position,
    rest: Rest,
    since: Instant,
}

impl Lanes {
    fn bytes(&self) -> usize {
        self.kept.values().map(|kept| kept.rest.bytes).sum()
    }

    fn drop_old(&mut self, older_than: Duration) {
        self.kept.retain(|_, kept| kept.since.elapsed() < older_than);
    }
}

impl Ahead {
    /// What the lane has behind this very position.
    pub(crate) fn take(&self, lane: &LaneId, from: &Position) -> Option<Rest> {
        let kept = lock(&self.0, |lanes| lanes.kept.remove(lane))?;
        (kept.from == *from).then_some(kept.rest)
    }

    /// Keeps it for the lane's next read, if there is room.
    pub(crate) fn keep(&self, lane: &LaneId, from: Position, rest: Rest) {
        let since = Instant::now();
        let begin = lock(&self.0, |lanes| {
            lanes.kept.remove(lane);
            if rest.is_empty() || lanes.bytes() + rest.bytes > BYTES_MAX {
                return false;
            }
            lanes.kept.insert(lane.clone(), Kept { from, rest, since });
            !std::mem::replace(&mut lanes.swept, true)
        });
        if begin {
            tokio::spawn(sweep(Arc::downgrade(&self.0), KEPT_FOR));
        }
    }
}

/// Drops what is older than that, also where nobody keeps or takes anything any more. Ends when nothing is left, or the store
/// is gone.
async fn sweep(lanes: Weak<Mutex<Lanes>>, older_than: Duration) {
    loop {
        tokio::time::sleep(older_than).await;
        let Some(lanes) = lanes.upgrade() else { return };
        let over = lock(&lanes, |lanes| {
            lanes.drop_old(older_than);
            lanes.swept = !lanes.kept.is_empty();
            !lanes.swept
        });
        if over {
            return;
        }
    }
}

fn lock<T>(lanes: &Mutex<Lanes>, work: impl FnOnce(&mut Lanes) -> T) -> T {
    work(&mut lanes.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    fn lane(number: u32) -> LaneId {
        LaneId { route: "r".into(), number }
    }

    fn rest(bytes: usize) -> Rest {
        let mut rest = Rest::default();
        rest.push_back(Arc::new(doc! { "payload": "x".repeat(bytes) }), Position::behind(2));
        rest
    }

    fn taken(ahead: &Ahead, number: u32, from: u64) -> Option<usize> {
        ahead.take(&lane(number), &Position::behind(from)).map(|rest| rest.documents().count())
    }

    #[tokio::test]
    async fn only_who_goes_on_where_it_ended_gets_the_rest() {
        let ahead = Ahead::default();
        ahead.keep(&lane(0), Position::behind(1), rest(1));
        assert_eq!(taken(&ahead, 0, 1), Some(1));
        assert_eq!(taken(&ahead, 0, 1), None, "it is taken");
        ahead.keep(&lane(0), Position::behind(1), rest(1));
        assert_eq!(taken(&ahead, 0, 2), None, "another place");
        assert_eq!(taken(&ahead, 0, 1), None, "whoever was elsewhere does not come back");
    }

    #[tokio::test]
    async fn what_would_be_too_much_is_not_kept() {
        let ahead = Ahead::default();
        ahead.keep(&lane(0), Position::behind(1), rest(BYTES_MAX / 2));
        ahead.keep(&lane(1), Position::behind(1), rest(BYTES_MAX / 2));
        assert_eq!(taken(&ahead, 1, 1), None, "both together are too much");
        ahead.keep(&lane(0), Position::behind(1), rest(BYTES_MAX / 2));
        assert_eq!(taken(&ahead, 0, 1), Some(1), "a lane makes room for itself");
        ahead.keep(&lane(1), Position::behind(1), rest(BYTES_MAX / 2));
        assert_eq!(taken(&ahead, 1, 1), Some(1), "what is taken leaves room");
    }

    #[test]
    fn a_rest_knows_its_weight() {
        let mut rest = rest(1_000);
        let whole = rest.bytes;
        let (document, behind) = rest.pop_front().unwrap();
        assert!(whole >= 1_000 && rest.bytes == 0 && rest.is_empty());
        rest.push_front(document, behind);
        assert_eq!(rest.bytes, whole);
    }

    #[tokio::test]
    async fn what_nobody_comes_for_is_dropped() {
        let ahead = Ahead::default();
        ahead.keep(&lane(0), Position::behind(1), rest(1));
        sweep(Arc::downgrade(&ahead.0), Duration::from_nanos(1)).await;
        assert_eq!(taken(&ahead, 0, 1), None);
    }
}
