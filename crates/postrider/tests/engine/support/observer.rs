//! Remembers what a relay tells.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use postrider::{
    MessageId,
    relay::events::{Event, Observer},
};

/// An event that can be kept and compared. Causes are their codes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Seen {
    LaneAcquired(String),
    LaneEnded(String, &'static str),
    Rejected(MessageId, u32, String),
    Dead { id: MessageId, attempts: u32, cause: String, blocks: bool },
    BreakerOpened(String),
    OutageChanged(String),
    SetAside(MessageId, String),
    BreakerClosed,
    BreakerForgotten,
    Throttled(Duration),
    Stalled(MessageId, &'static str),
    StoreFailed(&'static str),
    RouteForgotten(String),
    ReadForOthers(String, String),
    Purged(u64),
    AskedToLeave,
    Stopped,
}

/// Clones remember together.
#[derive(Clone, Default)]
pub(crate) struct Observed(Arc<Mutex<Vec<Seen>>>);

impl Observed {
    pub(crate) fn all(&self) -> Vec<Seen> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, wanted: impl Fn(&Seen) -> bool) -> usize {
        self.all().iter().filter(|seen| wanted(seen)).count()
    }

    pub(crate) fn has(&self, wanted: &Seen) -> bool {
        self.count(|seen| seen == wanted) > 0
    }
}

impl Observer for Observed {
    fn observe(&self, event: &Event<'_>) {
        let seen = match event {
            Event::LaneAcquired { lane, .. } => Seen::LaneAcquired(lane.to_string()),
            Event::LaneEnded { lane, how } => Seen::LaneEnded(lane.to_string(), how),
            Event::Rejected { id, attempts, cause, .. } => Seen::Rejected(*id, *attempts, cause.code().to_owned()),
            Event::Dead { id, attempts, cause, blocks, .. } => {
                Seen::Dead { id: *id, attempts: *attempts, cause: cause.code().to_owned(), blocks: *blocks }
            }
            Event::BreakerOpened { cause, .. } => Seen::BreakerOpened(cause.code().to_owned()),
            Event::OutageChanged { cause, .. } => Seen::OutageChanged(cause.code().to_owned()),
            Event::SetAside { id, cause, .. } => Seen::SetAside(*id, cause.code().to_owned()),
            Event::BreakerClosed { .. } => Seen::BreakerClosed,
            Event::BreakerForgotten { .. } => Seen::BreakerForgotten,
            Event::Throttled { pause, .. } => Seen::Throttled(*pause),
            Event::Stalled { id, limit, .. } => Seen::Stalled(*id, limit),
            Event::StoreFailed { operation, .. } => Seen::StoreFailed(operation),
            Event::RouteForgotten { route } => Seen::RouteForgotten((*route).to_owned()),
            Event::ReadForOthers { route, topics } => Seen::ReadForOthers((*route).to_owned(), (*topics).to_owned()),
            Event::Purged { records } => Seen::Purged(*records),
            Event::AskedToLeave => Seen::AskedToLeave,
            Event::Stopped { .. } => Seen::Stopped,
            other => panic!("an event that the tests do not know: {other:?}"),
        };
        self.0.lock().unwrap().push(seen);
    }
}
