//! What is remembered of lanes between two reads: one thing a lane, for the epoch under which it was learnt.
//!
//! It may be large (a page that was read ahead), so it is forgotten when the lease is over, however it ended: the next heartbeat
//! shows the lane with another epoch, without an owner, or not at all. A lane that is forgotten too soon is read from its cursor.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use postrider_core::lease::{Epoch, LaneId, Lease, Roster};

pub(crate) struct Lanes<T>(Mutex<HashMap<LaneId, (Epoch, T)>>);

impl<T> Default for Lanes<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Lanes<T> {
    /// Takes out what is remembered for this lease. What is left from a former one is forgotten.
    pub(crate) fn take(&self, lease: &Lease) -> Option<T> {
        let (epoch, remembered) = self.lanes().remove(&lease.lane)?;
        (epoch == lease.epoch).then_some(remembered)
    }

    /// What is remembered for this lease, which stays.
    pub(crate) fn get(&self, lease: &Lease) -> Option<T>
    where
        T: Copy,
    {
        self.lanes().get(&lease.lane).filter(|(epoch, _)| *epoch == lease.epoch).map(|(_, remembered)| *remembered)
    }

    pub(crate) fn remember(&self, lease: &Lease, what: T) {
        self.lanes().insert(lease.lane.clone(), (lease.epoch, what));
    }

    pub(crate) fn forget_all(&self) {
        self.lanes().clear();
    }

    /// Forgets the lanes that nobody has any more under their epoch. A lane may have been taken since the roster was made.
    pub(crate) fn keep_those_of(&self, roster: &Roster) {
        let standing = |lane: &LaneId| {
            let found = roster.lanes.binary_search_by(|standing| standing.lane.cmp(lane));
            found.ok().map(|index| &roster.lanes[index])
        };
        let is_live = |lane: &LaneId, epoch: Epoch| {
            standing(lane)
                .is_some_and(|standing| standing.epoch < epoch || (standing.epoch == epoch && standing.owner.is_some()))
        };
        self.lanes().retain(|lane, (epoch, _)| is_live(lane, *epoch));
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<LaneId, (Epoch, T)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use postrider_core::{
        lease::{LaneStanding, NodeId, Order, Reader},
        topic::TopicFilter,
    };

    use super::*;

    fn lane(number: u32) -> LaneId {
        LaneId { route: "r".into(), number }
    }

    fn lease(number: u32, epoch: u64) -> Lease {
        let reader = Arc::new(Reader { topics: TopicFilter::all(), order: Order::Key, replay: None });
        Lease { lane: lane(number), lanes: 9, epoch: Epoch(epoch), reader }
    }

    fn standing(number: u32, epoch: u64, is_owned: bool) -> LaneStanding {
        let owner = is_owned.then(NodeId::generate);
        LaneStanding { lane: lane(number), served_by: "r".into(), owner, epoch: Epoch(epoch), paused: false }
    }

    #[test]
    fn what_was_learnt_under_another_epoch_does_not_count() {
        let lanes = Lanes::default();
        lanes.remember(&lease(0, 1), 'x');
        assert_eq!((lanes.get(&lease(0, 2)), lanes.get(&lease(0, 1))), (None, Some('x')));
        assert_eq!(lanes.take(&lease(0, 2)), None);
        lanes.remember(&lease(0, 2), 'y');
        assert_eq!(lanes.take(&lease(0, 2)), Some('y'));
    }

    #[test]
    fn a_lane_is_forgotten_when_its_lease_is_over() {
        let lanes = Lanes::default();
        for number in 0..5 {
            lanes.remember(&lease(number, 5), number);
        }
        // Still had, given back, taken by another one, gone, and taken again behind the roster's back.
        let standings = vec![standing(0, 5, true), standing(1, 5, false), standing(2, 6, true), standing(4, 4, false)];
        lanes.keep_those_of(&Roster { lanes: standings, ..Roster::default() });
        let mut kept: Vec<u32> = lanes.lanes().keys().map(|lane| lane.number).collect();
        kept.sort_unstable();
        assert_eq!(kept, [0, 4]);
    }
}
