//! What a relay tells of an outage: when it saw one, which messages paid for it, and which had to go again.

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering},
};

use postrider::relay::events::{Event, Observer, Progress};
use postrider_core::{lease::LaneId, transport::Outcome};

/// Remembers what opened the breaker, what was rejected or given up, and how many publishes did not come back as durable.
#[derive(Default)]
pub(crate) struct Told {
    lines: Mutex<Vec<String>>,
    doubtful: AtomicUsize,
}

impl Observer for Told {
    fn observe(&self, event: &Event<'_>) {
        let told = match event {
            Event::BreakerOpened { cause, .. } => format!("opened {}", cause.code()),
            Event::Dead { cause, .. } => format!("dead {}", cause.code()),
            Event::Rejected { cause, .. } => format!("rejected {}", cause.code()),
            _ => return,
        };
        self.lines().push(told);
    }

    fn progress(&self, _: &LaneId, progress: &Progress<'_>) {
        if let Progress::Published { outcomes, .. } = progress {
            let doubtful = outcomes.iter().filter(|outcome| !matches!(outcome, Outcome::Durable)).count();
            self.doubtful.fetch_add(doubtful, Ordering::SeqCst);
        }
    }
}

impl Told {
    /// How many lines begin so.
    pub(crate) fn count(&self, start: &str) -> usize {
        self.lines().iter().filter(|told| told.starts_with(start)).count()
    }

    /// All of it, for people.
    pub(crate) fn shown(&self) -> String {
        self.lines().join(", ")
    }

    /// How many messages were handed over and did not come back as durable: each of them may arrive twice.
    pub(crate) fn doubtful(&self) -> usize {
        self.doubtful.load(Ordering::SeqCst)
    }

    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().expect("nobody panicked while telling")
    }
}
