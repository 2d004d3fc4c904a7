//! The store's clock: the process's, or one that tests move by hand.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use postrider_core::time::Timestamp;

/// A clock that stands still until it is told otherwise. Clones share one time.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that shows this instant.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(now.as_micros())))
    }

    /// What it shows.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }

    /// Lets time pass.
    pub fn advance(&self, span: Duration) {
        self.0.fetch_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }
}

pub(crate) enum Clock {
    /// The wall clock once, at the beginning, and the monotonic clock from there: leases must not expire because somebody
    /// sets the clock of the machine.
    Process {
        began_at: Timestamp,
        began: Instant,
    },
    Manual(ManualClock),
}

impl Clock {
    pub(crate) fn process() -> Self {
        Self::Process { began_at: Timestamp::now(), began: Instant::now() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Self::Process { began_at, began } => began_at.saturating_add(began.elapsed()),
            Self::Manual(clock) => clock.now(),
        }
    }
}
