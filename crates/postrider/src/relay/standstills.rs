//! The lanes of this node that do not move, as their drivers see them. The supervisor says it with every heartbeat.

use std::{
    collections::BTreeMap,
    mem::discriminant,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use postrider_core::{
    lease::LaneId,
    parked::Cause,
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
        let mut reason = self.reason.clone();
        if let Reason::Throttled { seconds_left: Some(left) } | Reason::Unavailable { seconds_left: Some(left), .. } =
            &mut reason
        {
            *left = left.saturating_sub(passed.as_secs());
        }
        Standstill { lane: lane.clone(), seconds: (self.still + passed).as_secs(), reason }
    }
}

/// Whether a lane that waits for something has waited for the same before: for the same kind of thing, or for the same cause.
/// A destination that answers nothing is one cause, whether its breaker has opened for it by now or not.
pub(super) fn is_same(before: &Reason, now: &Reason) -> bool {
    let same_cause = || Some(cause_of(before)?.code() == cause_of(now)?.code());
    discriminant(before) == discriminant(now) || same_cause() == Some(true)
}

fn cause_of(reason: &Reason) -> Option<&Cause> {
    match reason {
        Reason::Unavailable { cause, .. } => Some(cause),
        Reason::Message { cause, .. } => cause.as_ref(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::{envelope::MessageId, standstill::MessageState};

    use super::*;
    use crate::relay::lane::ticks;

    #[test]
    fn a_breaker_that_opens_is_no_other_cause() {
        let cause = |code: &str| Cause::new(code, "of now");
        let outage = |code: &str| Reason::Unavailable { cause: cause(code), failing: None, seconds_left: None };
        let waits = |cause: Option<Cause>| {
            let (message, state) = (MessageId::generate(), MessageState::Retry);
            Reason::Message { message, state, attempts: 0, cause }
        };
        let throttled = Reason::Throttled { seconds_left: None };
        let same = [
            (waits(Some(cause("timeout"))), outage("timeout")),
            (outage("timeout"), waits(Some(cause("timeout")))),
            (waits(None), waits(Some(cause("timeout")))),
            (outage("connect"), outage("timeout")),
        ];
        let others = [
            (waits(Some(cause("http-400"))), outage("connect")),
            (waits(None), outage("connect")),
            (outage("connect"), throttled.clone()),
            (throttled, waits(None)),
        ];
        assert!(same.iter().all(|(before, now)| is_same(before, now)));
        assert!(!others.iter().any(|(before, now)| is_same(before, now)));
    }

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
