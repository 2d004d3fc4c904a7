//! Counting what waits in the log for one route: how far an overview looks, and what it says of what it has not looked at.
//!
//! A route reads few topics of a busy log, and is paused: everything behind its cursor would be walked over with every look,
//! and whoever watches would give up waiting and take the store for dead. So a look is bounded by the records that it passes
//! over, not only by those that it finds. What it says then is careful: a count that can only be too low, and an age that can
//! only be too high. Many such routes together have a bound of their own.

use std::time::Duration;

/// Pending records are counted no further than this.
pub const PENDING_COUNT_MAX: u64 = 100_000;

/// Records behind the cursor of a route that are looked at for those that are pending, whether they match or not.
pub const PENDING_LOOK_MAX: u64 = 200_000;

/// Records that one overview looks at for all its routes and replays together.
pub const PENDING_LOOKS_MAX: u64 = 1_000_000;

/// Records that are left for a route to be looked at, whatever those before it have cost.
const PENDING_LOOK_LEAST: u64 = 10_000;

/// The looks of one overview, route by route: so many that stand still, each with much to walk over, must not make whoever asks
/// wait so long that the store is taken for dead. A route that has little before it leaves the rest to others.
///
/// ```
/// use std::time::Duration;
/// use postrider_core::admin::{PENDING_LOOK_MAX, PENDING_LOOKS_MAX, PendingLooks};
///
/// let mut looks = PendingLooks::among(50);
/// let mut looked = Vec::new();
/// for _route in 0..50 {
///     let mut pending = looks.begin();
///     looked.push((0..).take_while(|_| pending.looks_on(Duration::ZERO)).count() as u64);
///     looks.end(&pending);
/// }
/// assert_eq!((looked[0], looked[49]), (PENDING_LOOK_MAX, 10_000));
/// assert_eq!(looked.iter().sum::<u64>(), PENDING_LOOKS_MAX);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingLooks {
    left: u64,
    routes: u64,
}

impl PendingLooks {
    /// At so many routes and replays.
    #[must_use]
    pub fn among(routes: usize) -> Self {
        Self { left: PENDING_LOOKS_MAX, routes: routes as u64 }
    }

    /// The look at the next of them.
    #[must_use]
    pub fn begin(&mut self) -> Pending {
        let least = PENDING_LOOK_LEAST.min(self.left / self.routes.max(1));
        self.routes = self.routes.saturating_sub(1);
        Pending { most: PENDING_LOOK_MAX.min(self.left - least * self.routes), ..Pending::default() }
    }

    /// It is over.
    pub fn end(&mut self, pending: &Pending) {
        self.left -= pending.looked;
    }
}

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Records that match and that no cursor has passed.
    pub count: u64,
    /// The age of the oldest of those that are not scheduled for later.
    pub oldest: Option<Duration>,
    /// Whether the look ended before the log did, so that there may be more.
    pub more: bool,
    looked: u64,
    most: u64,
}

impl Default for Pending {
    fn default() -> Self {
        Self { count: 0, oldest: None, more: false, looked: 0, most: PENDING_LOOK_MAX }
    }
}

impl Pending {
    /// Whether the next record is looked at, which is so old. If not, the look is over. Was nothing found that waits, then
    /// something may wait from here on, and nothing there is older than this: that is told, for an age that is too high wakes
    /// somebody up, and one that is missing does not.
    #[must_use]
    pub fn looks_on(&mut self, age: Duration) -> bool {
        if self.looked == self.most || self.count >= PENDING_COUNT_MAX {
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
    fn what_a_route_does_not_need_is_there_for_others() {
        let look = |looks: &mut PendingLooks, records: u64| {
            let mut pending = looks.begin();
            let looked = (0..records).take_while(|_| pending.looks_on(seconds(1))).count() as u64;
            looks.end(&pending);
            (looked, pending.more)
        };
        let mut looks = PendingLooks::among(100);
        for _ in 0..90 {
            assert_eq!(look(&mut looks, 100), (100, false));
        }
        assert_eq!(look(&mut looks, u64::MAX), (PENDING_LOOK_MAX, true), "of what 90 that go on have left");
        let mut looks = PendingLooks::among(100_000);
        let looked: u64 = (0..100_000).map(|_| look(&mut looks, u64::MAX).0).sum();
        assert_eq!(looked, PENDING_LOOKS_MAX, "however many there are");
        let mut one_too_many = PendingLooks::among(0);
        assert_eq!(look(&mut one_too_many, u64::MAX), (PENDING_LOOK_MAX, true));
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
