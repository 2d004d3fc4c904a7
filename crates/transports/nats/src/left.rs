//! What an earlier subscriber of the consumer has left unanswered.
//!
//! Pure. A server hands newer messages to the next subscriber at once, and the unanswered ones of the last when `ack_wait` is
//! over, or sooner if it gave them back: out of order. So who begins notes how many there are, and takes nothing newer before
//! as many have come. They may never come, because they were answered after all, or were put off for long; so whoever has to
//! refuse a newer one waits once, for `ack_wait`, and goes on with whatever comes then.

use std::collections::BTreeSet;

/// Deliveries to come before newer ones, by their numbers in the stream.
#[derive(Debug)]
pub(crate) struct Left {
    count: usize,
    /// The last message of the stream that was given out before.
    until: u64,
    come: BTreeSet<u64>,
}

impl Left {
    /// So many are unanswered, of those up to this number.
    pub(crate) fn new(count: usize, until: u64) -> Self {
        Self { count, until, come: BTreeSet::new() }
    }

    /// Notes a delivery. `false`: it is newer, and others have to come before it.
    pub(crate) fn follows(&mut self, number: u64) -> bool {
        if number <= self.until {
            self.come.insert(number);
            return true;
        }
        self.come.len() >= self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_ones_wait_until_all_have_come_and_one_that_comes_twice_counts_once() {
        let mut left = Left::new(2, 7);
        assert!(!left.follows(8));
        assert!(left.follows(5) && left.follows(5));
        assert!(!left.follows(8));
        assert!(left.follows(7));
        assert!(left.follows(8));
    }
}
