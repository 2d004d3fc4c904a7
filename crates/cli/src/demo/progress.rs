//! What is shown while the demonstration works: one line that is rewritten on a terminal, a few lines elsewhere. Always on
//! standard error.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

/// How often the line on a terminal is rewritten at most.
const REWRITE_EVERY: Duration = Duration::from_millis(100);

/// Lines elsewhere: one for every so many parts of the work.
const PARTS: u32 = 4;

pub(super) struct Progress {
    orders: u32,
    kills: u32,
    terminal: bool,
    shown_at: Option<Instant>,
    shown_part: u32,
}

impl Progress {
    pub(super) fn new(orders: u32, kills: u32) -> Self {
        Self { orders, kills, terminal: std::io::stderr().is_terminal(), shown_at: None, shown_part: 0 }
    }

    pub(super) fn show(&mut self, committed: u32, delivered: u32, kills: u32, elapsed: Duration) {
        let line = self.line(committed, delivered, kills, elapsed);
        let part = u32::try_from(u64::from(delivered) * u64::from(PARTS) / u64::from(self.orders)).unwrap_or(PARTS);
        let mut stderr = std::io::stderr();
        // Nobody is harmed by a line that cannot be shown.
        if self.terminal && self.shown_at.is_none_or(|at| at.elapsed() >= REWRITE_EVERY) {
            self.shown_at = Some(Instant::now());
            let _ = write!(stderr, "\r\x1b[2K{line}");
        } else if !self.terminal && part > self.shown_part {
            self.shown_part = part;
            let _ = writeln!(stderr, "{line}");
        }
    }

    /// Clears the line, so that the report begins on a clean one.
    pub(super) fn end(&self) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }

    fn line(&self, committed: u32, delivered: u32, kills: u32, elapsed: Duration) -> String {
        let Self { orders, kills: planned, .. } = self;
        let seconds = elapsed.as_secs_f64();
        format!("committed {committed}/{orders}   delivered {delivered}   killed {kills}/{planned}   {seconds:.1} s")
    }
}
