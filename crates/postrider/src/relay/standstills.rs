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

#[derive(Default)]
pub(super) struct Standstills(Mutex<BTreeMap<LaneId, Standstill>>);

impl Standstills {
    /// What a lane waits for, and for how long it has; or that it moves.
    pub(super) fn set(&self, lane: &LaneId, still: Duration, reason: Option<Reason>) {
        match reason {
            Some(reason) => {
                let standstill = Standstill { lane: lane.clone(), seconds: still.as_secs(), reason };
                self.lock().insert(lane.clone(), standstill);
            }
            None => self.forget(lane),
        }
    }

    /// The lane is not ours any more, or rests.
    pub(super) fn forget(&self, lane: &LaneId) {
        self.lock().remove(lane);
    }

    pub(super) fn all(&self) -> Vec<Standstill> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<LaneId, Standstill>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
