//! How far a long piece of work is, on standard error, and only where a person looks at it.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

/// More often than this nobody can read it.
const EVERY: Duration = Duration::from_millis(100);

/// A line that is written over.
pub(crate) struct Progress {
    what: &'static str,
    total: u64,
    shown_at: Option<Instant>,
    visible: bool,
}

impl Progress {
    pub(crate) fn new(what: &'static str, total: u64) -> Self {
        Self { what, total, shown_at: None, visible: std::io::stderr().is_terminal() }
    }

    pub(crate) fn at(&mut self, done: u64) {
        let soon = self.shown_at.is_some_and(|at| at.elapsed() < EVERY);
        if !self.visible || soon {
            return;
        }
        self.shown_at = Some(Instant::now());
        let of = if self.total > 0 { format!(" of {}", self.total) } else { String::new() };
        // That nobody sees it is no reason to stop.
        let _ = write!(std::io::stderr(), "\r{} {done}{of}\u{1b}[K", self.what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.visible && self.shown_at.is_some() {
            let _ = write!(std::io::stderr(), "\r\u{1b}[K");
        }
    }
}
