//! When to kill whom: pure arithmetic. Half of the kills hit services, spread over the orders that are committed; half hit
//! relays, spread over the messages that have arrived. So each happens in the middle of the victim's own work, on fast
//! machines and on slow ones.

/// Kills that are still to come of one kind of process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    /// Progress at which each is due, ascending; the next is the last element.
    left: Vec<u32>,
    /// Progress when the last kill happened.
    last: u32,
}

impl Schedule {
    /// `kills` of them, spread evenly over `work`.
    pub(super) fn new(kills: u32, work: u32) -> Self {
        let share = |i: u32| u64::from(work) * u64::from(i) / u64::from(kills + 1);
        let left = (1..=kills).rev().map(|i| u32::try_from(share(i)).unwrap_or(work).max(1)).collect();
        Self { left, last: 0 }
    }

    /// Whether it is time to kill one. Something must have been done since the last kill: to kill a process that has not
    /// begun proves nothing.
    pub(super) fn is_due(&self, progress: u32) -> bool {
        self.left.last().is_some_and(|due| progress >= *due) && progress > self.last
    }

    /// Notes that a kill happened.
    pub(super) fn happened(&mut self, progress: u32) {
        self.left.pop();
        self.last = progress;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(kills: u32, work: u32) -> Vec<u32> {
        let mut schedule = Schedule::new(kills, work);
        let mut times = Vec::new();
        for progress in 0..work {
            if schedule.is_due(progress) {
                schedule.happened(progress);
                times.push(progress);
            }
        }
        times
    }

    #[test]
    fn kills_are_spread_over_the_work() {
        assert_eq!(times(4, 1000), [200, 400, 600, 800]);
        assert_eq!(times(0, 1000), [0; 0]);
    }

    #[test]
    fn more_kills_than_work_leave_some_out() {
        assert_eq!(times(6, 3), [1, 2]);
        assert_eq!(times(3, 1), [0; 0]);
    }

    #[test]
    fn nobody_is_killed_twice_for_the_same_work() {
        let mut schedule = Schedule::new(3, 8);
        assert!(schedule.is_due(7));
        schedule.happened(7);
        assert!(!schedule.is_due(7) && schedule.is_due(8));
    }
}
