//! What this process knows to have happened: the greatest point in the time of the cluster that an answer has told it.
//!
//! A new primary has everything that a majority was told of, but for a moment it does not yet know that a majority has it,
//! and what it shows to a majority read is older. A relay that had settled something would then find the lane as it was
//! before. So every read that decides something says how far its answer must reach at least, and the server waits until it
//! does. Only what was acknowledged counts here: a write whose answer was lost may never have been.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::cursor::Tick;

/// Shared by all that one store does. Begins with nothing seen.
#[derive(Debug, Default)]
pub(crate) struct Seen(AtomicU64);

impl Seen {
    /// Notes an answer that cannot be taken back any more.
    pub(crate) fn note(&self, time: Tick) {
        self.0.fetch_max(time, Ordering::AcqRel);
    }

    /// How far a read must reach; `None` if nothing was seen yet.
    pub(crate) fn newest(&self) -> Option<Tick> {
        Some(self.0.load(Ordering::Acquire)).filter(|time| *time > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_never_less_again() {
        let seen = Seen::default();
        assert_eq!(seen.newest(), None);
        seen.note(7);
        seen.note(5);
        assert_eq!(seen.newest(), Some(7));
    }
}
