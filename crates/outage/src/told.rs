//! What a relay tells of an outage: when it saw one, and which messages paid for it.

use std::sync::{Mutex, MutexGuard};

use postrider::relay::events::{Event, Observer};

/// Remembers what opened the breaker, and what was set aside, rejected or given up.
#[derive(Default)]
pub(crate) struct Told {
    lines: Mutex<Vec<String>>,
}

impl Observer for Told {
    fn observe(&self, event: &Event<'_>) {
        let told = match event {
            Event::BreakerOpened { cause, .. } => format!("opened {}", cause.code()),
            Event::SetAside { cause, .. } => format!("aside {}", cause.code()),
            Event::Dead { cause, .. } => format!("dead {}", cause.code()),
            Event::Rejected { cause, .. } => format!("rejected {}", cause.code()),
            _ => return,
        };
        self.lines().push(told);
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

    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().expect("nobody panicked while telling")
    }
}
