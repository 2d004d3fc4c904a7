//! Destinations that are not there, and since when.
//!
//! A queue or a stream that a message names itself may be missing because nobody has made it: then the message leads nowhere,
//! and is rejected. It may as well be missing because its server has just lost it, or is about to end, or is not ready yet: that
//! is an outage, and no message may pay for it. The answer of a broker is the same. So a transport lets the message wait until
//! the destination has been missing for a while, and rejects it then.
//!
//! Pure: the time comes from the caller.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How many destinations are remembered; with more, all are forgotten and count as missing from then on.
pub const REMEMBERED_MAX: usize = 10_000;

/// Since when destinations are missing.
///
/// ```
/// use std::time::{Duration, Instant};
/// use postrider_core::missing::Missing;
///
/// let (missing, now) = (Missing::default(), Instant::now());
/// assert_eq!(missing.note("orders", now), Duration::ZERO);
/// assert_eq!(missing.note("orders", now + Duration::from_secs(9)), Duration::from_secs(9));
/// missing.forget("orders");
/// assert_eq!(missing.note("orders", now + Duration::from_secs(10)), Duration::ZERO);
/// ```
#[derive(Debug, Default)]
pub struct Missing {
    since: Mutex<BTreeMap<String, Instant>>,
}

impl Missing {
    /// Notes that a destination is not there at this time. For how long that has been so.
    pub fn note(&self, destination: &str, now: Instant) -> Duration {
        let mut since = self.since();
        if let Some(since) = since.get(destination) {
            return now.saturating_duration_since(*since);
        }
        if since.len() >= REMEMBERED_MAX {
            since.clear();
        }
        since.insert(destination.to_owned(), now);
        Duration::ZERO
    }

    /// Notes that a destination is there.
    pub fn forget(&self, destination: &str) {
        self.since().remove(destination);
    }

    fn since(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_missing_since_it_was_first_noted_and_there_are_not_too_many() {
        let (missing, begun) = (Missing::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(missing.note("a", at(0)), Duration::ZERO);
        assert_eq!(missing.note("b", at(4)), Duration::ZERO);
        assert_eq!(missing.note("a", at(5)), Duration::from_secs(5));
        missing.forget("a");
        assert_eq!(missing.note("a", at(6)), Duration::ZERO, "it was there meanwhile");
        assert_eq!(missing.note("b", at(6)), Duration::from_secs(2), "which says nothing of others");
        for number in 0..REMEMBERED_MAX {
            missing.note(&number.to_string(), at(7));
        }
        assert!(missing.since().len() <= REMEMBERED_MAX);
    }
}
