//! The lanes of this node that do not move, as their drivers see them. The supervisor says it with every heartbeat.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use postrider_core::{
    lease::LaneId,
    standstill::{Reason, Standstill},
};

use super::lane::{Tick, since};

#[derive(Default)]
pub(super) struct Standstills(Mutex<BTreeMap<LaneId, Said>>);

/// What the driver of a lane has said.
struct Said {
    at: Tick,
    still: Duration,
    reason: Reason,
}

impl Standstills {
    /// What a lane waits for at this time, and for how long it has; or that it moves.
    pub(super) fn set(&self, lane: &LaneId, at: Tick, still: Duration, reason: Option<Reason>) {
        match reason {
            Some(reason) => {
                self.lock().insert(lane.clone(), Said { at, still, reason });
            }
            None => self.forget(lane),
        }
    }

    /// The lane is not ours any more, or rests.
    pub(super) fn forget(&self, lane: &LaneId) {
        self.lock().remove(lane);
    }

    /// As it is now: drivers speak when a heartbeat has been answered, and the next one is sent seconds later.
    pub(super) fn all(&self, now: Tick) -> Vec<Standstill> {
        self.lock().iter().map(|(lane, said)| said.aged(lane, now)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<LaneId, Said>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Said {
    fn aged(&self, lane: &LaneId, now: Tick) -> Standstill {
        let passed = since(now, self.at);
        let reason = match &self.reason {
            Reason::Throttled { seconds_left: Some(left) } => {
                Reason::Throttled { seconds_left: Some(left.saturating_sub(passed.as_secs())) }
            }
            other => other.clone(),
        };
        Standstill { lane: lane.clone(), seconds: (self.still + passed).as_secs(), reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::lane::ticks;

    #[test]
    fn what_was_said_is_told_as_it_is_when_it_is_told() {
        let lane = LaneId { route: "billing".into(), number: 0 };
        let said = Standstills::default();
        let reason = Reason::Throttled { seconds_left: Some(60) };
        said.set(&lane, ticks(Duration::from_secs(7)), Duration::from_secs(2), Some(reason));
        let told = said.all(ticks(Duration::from_secs(10))).remove(0);
        assert_eq!((told.seconds, told.reason), (5, Reason::Throttled { seconds_left: Some(57) }));
        let told = said.all(ticks(Duration::from_secs(1000))).remove(0);
        assert_eq!(told.reason, Reason::Throttled { seconds_left: Some(0) }, "it is over, and not yet said");
    }
}
