//! Whether deliveries have got lost on their way to us.
//!
//! Pure. A consumer numbers its deliveries, so one that is alone sees every number. What the server has sent over a connection
//! that is gone it sends again only when `ack_wait` is over, and until then it would go on with what is newer: out of order.
//! So after a lost connection the numbers are looked at.
//!
//! Subscribers that share a consumer see gaps all the time, and nothing of theirs is missing. Who sees one while nothing was
//! lost is not alone, and looks no more; order is not promised to those who share. Who then sees many numbers in a row is
//! alone again. Soon after a loss a gap says nothing about others: it may be what the server still sends into the connection
//! that is gone.

/// So many numbers in a row, and nobody else takes any.
const ALONE_AFTER: u64 = 1_000;

/// The numbers of the deliveries that have come.
#[derive(Debug)]
pub(crate) struct Sequence {
    last: u64,
    /// Whether a connection was lost.
    doubtful: bool,
    /// How many must come in a row before this subscriber counts as alone.
    shared: u64,
    /// How many must come before a gap says something about others.
    unsettled: u64,
    /// That number after a loss: more than can be on its way into a connection that is gone.
    settled_after: u64,
}

impl Sequence {
    /// The consumer has made so many deliveries before. A loss is over after so many more.
    pub(crate) fn after(last: u64, settled_after: u64) -> Self {
        Self { last, doubtful: false, shared: 0, unsettled: 0, settled_after }
    }

    /// What was missing has been waited for; before that the consumer had made so many deliveries. While the server may still
    /// send into the connection that is gone, more may be missing.
    pub(crate) fn mended(&mut self, last: u64, doubtful: bool) {
        self.last = last;
        self.doubtful = doubtful;
        self.unsettled = self.settled_after;
    }

    /// Something may have got lost.
    pub(crate) fn doubt(&mut self) {
        self.doubtful = true;
        self.unsettled = self.settled_after;
    }

    /// Notes a delivery. `false`: others before it are missing, and it must not be given out before them. One that is `awaited`
    /// comes again while such are collected, and is not given out before all have come.
    pub(crate) fn follows(&mut self, number: u64, awaited: bool) -> bool {
        let is_settled = self.unsettled == 0;
        if number <= self.last.saturating_add(1) {
            self.shared = self.shared.saturating_sub(1);
            return self.goes(number);
        }
        if self.shared > 0 || !self.doubtful {
            if is_settled {
                self.shared = ALONE_AFTER;
            }
            return self.goes(number);
        }
        if awaited {
            // It may be one of those that are missing, and it may not; the others still are, and newer ones have to wait.
            return self.goes(self.last.saturating_add(1));
        }
        false
    }

    fn goes(&mut self, last: u64) -> bool {
        self.last = last;
        self.unsettled = self.unsettled.saturating_sub(1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_only_after_a_loss() {
        let mut sequence = Sequence::after(3, 2);
        assert!(sequence.follows(4, false));
        sequence.doubt();
        assert!(sequence.follows(5, false), "what was on its way before the loss is whole");
        assert!(!sequence.follows(8, false));
        assert!(!sequence.follows(9, false), "until that is mended");
        sequence.mended(12, false);
        assert!(sequence.follows(13, false));
    }

    #[test]
    fn who_shares_a_consumer_misses_nothing_after_a_loss() {
        let mut sequence = Sequence::after(3, 2);
        assert!(sequence.follows(7, false), "another subscriber has the others");
        sequence.doubt();
        assert!(sequence.follows(11, false) && sequence.follows(12, false) && sequence.follows(20, false));
        sequence.mended(20, false);
        sequence.doubt();
        assert!(sequence.follows(30, false), "and still shares it");
    }

    #[test]
    fn what_is_sent_into_a_connection_that_is_gone_does_not_look_like_another_subscriber() {
        let mut sequence = Sequence::after(3, 2);
        sequence.doubt();
        assert!(!sequence.follows(6, false));
        sequence.mended(8, false);
        assert!(sequence.follows(10, true), "the server has sent 9 into the old connection since");
        sequence.doubt();
        assert!(!sequence.follows(12, false), "so this one still is alone");
        sequence.mended(12, false);
        for number in [13, 14, 16] {
            assert!(sequence.follows(number, false));
        }
        sequence.doubt();
        assert!(sequence.follows(18, false), "long after the loss a gap is another subscriber's");
    }

    #[test]
    fn who_is_alone_again_looks_again() {
        let mut sequence = Sequence::after(3, 2);
        assert!(sequence.follows(5, false));
        for number in 6..=ALONE_AFTER + 5 {
            assert!(sequence.follows(number, false));
        }
        sequence.doubt();
        assert!(!sequence.follows(ALONE_AFTER + 7, false));
    }

    #[test]
    fn what_gets_lost_while_the_lost_is_waited_for_is_waited_for_as_well() {
        let mut sequence = Sequence::after(3, 2);
        sequence.doubt();
        assert!(!sequence.follows(6, false));
        sequence.mended(8, true);
        assert!(sequence.follows(9, true));
        assert!(!sequence.follows(12, false), "10 and 11 went into the old connection");
        sequence.mended(12, true);
        assert!(sequence.follows(13, true) && sequence.follows(14, false));
    }

    #[test]
    fn what_comes_again_does_not_hide_what_is_missing() {
        let mut sequence = Sequence::after(3, 2);
        sequence.doubt();
        assert!(sequence.follows(6, true), "4 and 5 are missing, or one of them is this");
        assert!(!sequence.follows(7, false));
    }

    #[test]
    fn a_server_that_has_forgotten_its_last_numbers_is_no_gap() {
        let mut sequence = Sequence::after(30, 2);
        sequence.doubt();
        assert!(sequence.follows(21, true));
        assert!(sequence.follows(22, false));
        assert!(!sequence.follows(24, false));
    }
}
