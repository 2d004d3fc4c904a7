//! Destinations that are not there: whether that is an outage, or a message that leads nowhere.
//!
//! A queue or a stream that a message names itself may be missing because nobody has made it: then the message leads nowhere,
//! and is rejected. It may as well be missing because its server has lost it, is about to end, or is not ready yet: that is an
//! outage, and no message may pay for it. The answer of a broker is the same. So a transport goes by what it has seen:
//!
//! | the destination | its messages |
//! |---|---|
//! | was there before, as far as this publisher knows | wait until it is there again, however long that takes |
//! | was never there, and has been missing for less than the patience | wait: somebody may be about to make it |
//! | was never there, and has been missing for longer | lead nowhere |
//!
//! What was seen is in memory, so a publisher that is made during an outage has only its patience; and whoever gives a
//! destination up for good, while messages still name it, has the transport [forget](Missing::forget_all) that it was there.
//!
//! Pure: the time comes from the caller.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How many destinations are remembered of each kind, those that were there and those that are missing; with more, all of that
/// kind are forgotten, and count as never seen, or as missing from then on.
pub const REMEMBERED_MAX: usize = 10_000;

/// Which destinations were there, and since when others are missing.
///
/// ```
/// use std::time::{Duration, Instant};
/// use postrider_core::missing::Missing;
///
/// let (missing, now, patience) = (Missing::default(), Instant::now(), Duration::from_secs(10));
/// assert!(!missing.leads_nowhere("orders", now, patience));
/// assert!(missing.leads_nowhere("orders", now + patience, patience));
/// missing.found("orders");
/// assert!(!missing.leads_nowhere("orders", now + 100 * patience, patience));
/// ```
#[derive(Debug, Default)]
pub struct Missing {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    there: BTreeSet<String>,
    since: BTreeMap<String, Instant>,
}

impl Missing {
    /// Notes that a destination is not there at this time. Whether its messages lead nowhere: it was never there, and has been
    /// missing for so long.
    pub fn leads_nowhere(&self, destination: &str, now: Instant, patience: Duration) -> bool {
        let mut known = self.known();
        if known.there.contains(destination) {
            return false;
        }
        if known.since.len() >= REMEMBERED_MAX && !known.since.contains_key(destination) {
            known.since.clear();
        }
        let since = *known.since.entry(destination.to_owned()).or_insert(now);
        now.saturating_duration_since(since) >= patience
    }

    /// Notes that a destination is there.
    pub fn found(&self, destination: &str) {
        let mut known = self.known();
        // Asked for with every message, so the usual case makes no copy of the name.
        if known.there.contains(destination) {
            return;
        }
        if known.there.len() >= REMEMBERED_MAX {
            known.there.clear();
        }
        known.there.insert(destination.to_owned());
        known.since.remove(destination);
    }

    /// Nobody knows whether a destination is there; its time is counted anew.
    pub fn doubt(&self, destination: &str) {
        self.known().since.remove(destination);
    }

    /// Forgets everything: what is missing now has its patience, whether it was there before or not.
    pub fn forget_all(&self) {
        *self.known() = Known::default();
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    #[test]
    fn what_was_never_there_leads_nowhere_when_it_has_been_missing_for_long_enough() {
        let (missing, begun) = (Missing::default(), Instant::now());
        let leads_nowhere =
            |name: &str, seconds| missing.leads_nowhere(name, begun + Duration::from_secs(seconds), PATIENCE);
        assert!(!leads_nowhere("a", 0) && !leads_nowhere("b", 4) && !leads_nowhere("a", 4));
        assert!(leads_nowhere("a", 5));
        assert!(!leads_nowhere("b", 5), "which says nothing of others");
        missing.doubt("a");
        assert!(!leads_nowhere("a", 6), "its time is counted anew");
        assert!(leads_nowhere("a", 11));
    }

    #[test]
    fn what_was_there_is_waited_for_until_that_is_forgotten() {
        let (missing, begun) = (Missing::default(), Instant::now());
        let leads_nowhere = |seconds| missing.leads_nowhere("a", begun + Duration::from_secs(seconds), PATIENCE);
        assert!(!leads_nowhere(0));
        missing.found("a");
        assert!(!leads_nowhere(1) && !leads_nowhere(1_000_000));
        missing.doubt("a");
        assert!(!leads_nowhere(2_000_000), "it was there all the same");
        missing.forget_all();
        assert!(!leads_nowhere(3_000_000), "its time is counted from here");
        assert!(leads_nowhere(3_000_005));
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let (missing, now) = (Missing::default(), Instant::now());
        for number in 0..=REMEMBERED_MAX {
            missing.found(&format!("there {number}"));
            missing.leads_nowhere(&format!("missing {number}"), now, PATIENCE);
        }
        let known = missing.known();
        assert!(known.there.len() <= REMEMBERED_MAX && known.since.len() <= REMEMBERED_MAX);
    }
}
