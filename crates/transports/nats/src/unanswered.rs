//! Messages that were given out and not answered, put back into the order of their stream as they come again.
//!
//! Pure. A server sends them again when `ack_wait` is over, or at once if they were given back, and in the order in which that
//! happened: a message that was sent twice already comes behind one that followed it and was sent once. And newer ones it gives
//! to whoever asks next. So it is noted how many are unanswered, and they are kept until as many have come.
//!
//! What the caller has, or has put off for later, is unanswered as well, and nobody waits for it.
//!
//! What is kept has no limit of its own, because none could keep the order: it is what the server counts as unanswered, which
//! the consumer's `max_ack_pending` limits (1000 unless it is made otherwise). More than that the server gives to nobody.

use std::collections::{BTreeMap, BTreeSet};

/// Messages to come before newer ones, by their numbers in the stream.
#[derive(Debug)]
pub(crate) struct Unanswered<M> {
    count: usize,
    /// The last message of the stream that was given out before.
    until: u64,
    here: BTreeSet<u64>,
    come: BTreeMap<u64, M>,
    /// How many of `come` are not `here` as well.
    come_from_elsewhere: usize,
}

impl<M> Unanswered<M> {
    /// So many are unanswered, of those up to this number. These of them are here.
    pub(crate) fn new(count: usize, until: u64, here: BTreeSet<u64>) -> Self {
        Self { count, until, here, come: BTreeMap::new(), come_from_elsewhere: 0 }
    }

    /// Whether it was never given out before.
    pub(crate) fn is_newer(&self, number: u64) -> bool {
        number > self.until
    }

    /// Keeps a message. Whether it is the first of that number.
    pub(crate) fn keep(&mut self, number: u64, message: M) -> bool {
        let is_first = self.come.insert(number, message).is_none();
        if is_first && !self.here.contains(&number) {
            self.come_from_elsewhere += 1;
        }
        is_first
    }

    /// Whether nothing is missing.
    pub(crate) fn is_complete(&self) -> bool {
        self.here.len() + self.come_from_elsewhere >= self.count
    }

    /// What has come, in its order.
    pub(crate) fn into_come(self) -> BTreeMap<u64, M> {
        self.come
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_order_in_which_they_come_they_wait_for_each_other() {
        let mut unanswered = Unanswered::new(3, 7, BTreeSet::new());
        assert!(unanswered.is_newer(8) && !unanswered.is_newer(7));
        assert!(unanswered.keep(7, "c") && unanswered.keep(4, "a"));
        assert!(!unanswered.keep(4, "a"), "one that comes twice counts once");
        assert!(!unanswered.is_complete());
        assert!(unanswered.keep(5, "b"));
        assert!(unanswered.is_complete());
        assert!(unanswered.into_come().into_values().eq(["a", "b", "c"]));
    }

    #[test]
    fn what_is_here_is_not_waited_for_and_may_come_again() {
        let mut unanswered = Unanswered::new(3, 7, BTreeSet::from([4, 5]));
        assert!(unanswered.keep(5, "b"), "its time was over");
        assert!(!unanswered.is_complete());
        assert!(unanswered.keep(7, "c"));
        assert!(unanswered.is_complete());
        assert!(Unanswered::<()>::new(2, 7, BTreeSet::from([4, 5])).is_complete());
    }
}
