//! Whether deliveries have got lost on their way to us.
//!
//! Pure. A consumer numbers its deliveries, so one that is alone sees every number. What the server has sent over a connection
//! that is gone it sends again only when `ack_wait` is over, and until then it would go on with what is newer: out of order.
//! So after a lost connection the numbers are looked at. Before it they are not: subscribers that share a consumer see gaps
//! all the time, and nothing of theirs is missing.

/// The numbers of the deliveries that have come.
#[derive(Debug)]
pub(crate) struct Sequence {
    last: u64,
    /// Whether a connection was lost.
    doubtful: bool,
}

impl Sequence {
    /// The consumer has made so many deliveries before.
    pub(crate) fn after(last: u64) -> Self {
        Self { last, doubtful: false }
    }

    /// Something may have got lost.
    pub(crate) fn doubt(&mut self) {
        self.doubtful = true;
    }

    /// Notes a delivery. `false`: others before it are missing, and it must not be given out before them.
    pub(crate) fn follows(&mut self, number: u64, redelivered: bool) -> bool {
        if !self.doubtful || number <= self.last.saturating_add(1) {
            self.last = number;
            return true;
        }
        if redelivered {
            // It may be one of those that are missing, and it may not; the others still are, and newer ones have to wait.
            self.last = self.last.saturating_add(1);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_only_after_a_loss() {
        let mut sequence = Sequence::after(3);
        assert!(sequence.follows(4, false));
        assert!(sequence.follows(7, false), "another subscriber has the others");
        sequence.doubt();
        assert!(sequence.follows(8, false), "what was on its way before the loss is whole");
        assert!(!sequence.follows(11, false));
        assert!(!sequence.follows(12, false), "until that is mended");
    }

    #[test]
    fn what_comes_again_does_not_hide_what_is_missing() {
        let mut sequence = Sequence::after(3);
        sequence.doubt();
        assert!(sequence.follows(6, true), "4 and 5 are missing, or one of them is this");
        assert!(!sequence.follows(7, false));
    }

    #[test]
    fn a_server_that_has_forgotten_its_last_numbers_is_no_gap() {
        let mut sequence = Sequence::after(30);
        sequence.doubt();
        assert!(sequence.follows(21, true));
        assert!(sequence.follows(22, false));
        assert!(!sequence.follows(24, false));
    }
}
