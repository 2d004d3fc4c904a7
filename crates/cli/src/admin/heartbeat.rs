//! Heartbeats that the store does not take: a full disk, a right that was taken away, a file that somebody removed.
//!
//! Such a store can be read all the same, and what is read there is not wrong: no relay is alive. That this one is, and why
//! nobody hears of it, only its own process can tell.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use postrider::{
    diagnosis::{self, Finding, STORE_FAILS},
    relay::events::{Event, Observer},
};

/// What a relay says each time that it tells that it is alive.
const HEARTBEAT: &str = "heartbeat";

/// Remembers why the last heartbeat failed.
#[derive(Default)]
pub(crate) struct Heartbeats(Mutex<Option<String>>);

impl Observer for Heartbeats {
    fn observe(&self, event: &Event<'_>) {
        if let Event::StoreFailed { operation: HEARTBEAT, error } = event {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.chain());
        }
    }
}

impl Heartbeats {
    /// What to tell of a relay whose last heartbeat was taken so long ago. Until its leases have ended it may be a hiccup.
    pub(super) fn finding(&self, age: Option<Duration>, lease_life: Duration) -> Option<Finding> {
        let age = age.filter(|age| *age >= lease_life)?;
        let why = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        Some(Finding {
            route: None,
            code: STORE_FAILS,
            what: format!(
                "the store has taken no heartbeat of this relay for {}, so it has no leases and does nothing: {why}",
                diagnosis::in_words(age)
            ),
            fix: Some(
                "do what the error says, and see postrider doctor; the relay asks again by itself, and nothing is lost"
                    .to_owned(),
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use postrider::{Error, ErrorKind};

    use super::*;

    #[test]
    fn a_store_that_takes_no_heartbeat_is_named_when_the_leases_are_over() {
        let (heartbeats, life) = (Heartbeats::default(), Duration::from_secs(15));
        assert_eq!(heartbeats.finding(Some(life), life), None, "nothing has failed");
        let error = Error::new(ErrorKind::Full, "the disk is full");
        heartbeats.observe(&Event::StoreFailed { operation: "settle", error: &error });
        assert_eq!(heartbeats.finding(Some(life), life), None, "that is told of the lane");
        heartbeats.observe(&Event::StoreFailed { operation: HEARTBEAT, error: &error });
        assert_eq!(heartbeats.finding(Some(Duration::from_secs(14)), life), None, "the next may be taken");
        assert_eq!(heartbeats.finding(None, life), None, "it has not begun yet");
        let finding = heartbeats.finding(Some(life), life).unwrap();
        assert!(finding.what.ends_with("does nothing: the disk is full") && finding.code == STORE_FAILS, "{finding:?}");
    }
}
