//! Counting what waits in the log for one route: how far an overview looks, and what it says of what it has not looked at.
//!
//! A route reads few topics of a busy log, and is paused: everything behind its cursor would be walked over with every look,
//! and whoever watches would give up waiting and take the store for dead. So a look is bounded by the records that it passes
//! over, not only by those that it finds. What it says then is careful: a count that can only be too low, and an age that can
//! only be too high.

use std::time::Duration;

/// Pending records are counted no further than this.
pub const PENDING_COUNT_MAX: u64 = 100_000;

/// Records behind the cursor of a route that are looked at for those that are pending, whether they match or not.
pub const PENDING_LOOK_MAX: u64 = 200_000;

/// What a look at the log has found so far. A store takes the records behind the cursor in order, and asks before each.
///
/// ```
/// use std::time::Duration;
/// use postrider_core::admin::{PENDING_LOOK_MAX, Pending};
///
/// let mut pending = Pending::default();
/// for record in 0.. {
///     let age = Duration::from_secs(1_000_000 - record);
///     if !pending.looks_on(age) {
///         break;
///     }
///     // This route reads every tenth record of its log; they are scheduled for later.
///     if record % 10 == 0 {
///         pending.add(None);
///     }
/// }
/// assert_eq!(pending.count, PENDING_LOOK_MAX / 10);
/// assert_eq!(pending.oldest, Some(Duration::from_secs(1_000_000 - PENDING_LOOK_MAX)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Records that match and that no cursor has passed.
    pub count: u64,
    /// The age of the oldest of those that are not scheduled for later.
    pub oldest: Option<Duration>,
    /// Whether the look ended before the log did, so that there may be more.
    pub more: bool,
    looked: u64,
}

impl Pending {
    /// Whether the next record is looked at, which is so old. If not, the look is over. Was nothing found that waits, then
    /// something may wait from here on, and nothing there is older than this: that is told, for an age that is too high wakes
    /// somebody up, and one that is missing does not.
    #[must_use]
    pub fn looks_on(&mut self, age: Duration) -> bool {
        if self.looked == PENDING_LOOK_MAX || self.count >= PENDING_COUNT_MAX {
            self.oldest.get_or_insert(age);
            self.more = true;
            return false;
        }
        self.looked += 1;
        true
    }

    /// The record matches, and no cursor has passed it. `age` is that of one that waits, and nothing if it is scheduled for
    /// later.
    pub fn add(&mut self, age: Option<Duration>) {
        // Some are found before the look begins.
        self.count = PENDING_COUNT_MAX.min(self.count + 1);
        self.oldest = self.oldest.max(age);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_look_ends_with_what_it_has_passed_over() {
        let mut pending = Pending::default();
        let looked = (0..).take_while(|record| pending.looks_on(seconds(1_000_000 - record))).count();
        assert_eq!(looked as u64, PENDING_LOOK_MAX);
        assert_eq!((pending.count, pending.more), (0, true));
        assert_eq!(pending.oldest, Some(seconds(1_000_000 - PENDING_LOOK_MAX)), "what may wait is no older");
    }

    #[test]
    fn a_look_ends_with_what_it_has_counted() {
        let mut pending = Pending::default();
        while pending.looks_on(seconds(1)) {
            pending.add(Some(seconds(2)));
        }
        assert_eq!((pending.count, pending.oldest), (PENDING_COUNT_MAX, Some(seconds(2))), "what was found is exact");
    }

    #[test]
    fn a_log_that_ends_first_is_told_as_it_is() {
        let mut pending = Pending::default();
        for age in [9, 8, 7] {
            assert!(pending.looks_on(seconds(age)));
        }
        assert_eq!((pending.count, pending.oldest, pending.more), (0, None, false));
        pending.add(None);
        assert_eq!((pending.count, pending.oldest), (1, None), "scheduled for later");
        pending.add(Some(seconds(7)));
        assert_eq!((pending.count, pending.oldest), (2, Some(seconds(7))));
    }
}
