//! Wake-up: telling a waiting relay that something may have been committed.
//!
//! Two sources end in one signal. In the same process the application calls [`Waker::wake`] after its commit. From other
//! connections and processes nothing is pushed, so the writer thread looks at `PRAGMA data_version` while it is idle and
//! somebody waits: about every millisecond after something happened, then ever more seldom. Its own writes do not change
//! that number, so a relay does not wake itself with what it settles, only with a heartbeat. Both are hints; the relay polls
//! besides.
//!
//! A hint counts from the call that asks for it: ask before you read, wait after, and a commit in between is not missed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;

/// How soon another process's commit is noticed while things happen.
pub(crate) const WATCH_MIN: Duration = Duration::from_millis(1);

/// How soon another process's commit is noticed after a long silence.
pub(crate) const WATCH_MAX: Duration = Duration::from_millis(50);

/// Wakes the relays of this process. Cheap to clone, and to call: after each commit that enqueued something.
#[derive(Clone, Debug)]
pub struct Waker {
    changes: Arc<watch::Sender<u64>>,
    watched: Arc<AtomicBool>,
}

impl Waker {
    pub(crate) fn new() -> Self {
        Self { changes: Arc::new(watch::channel(0).0), watched: Arc::default() }
    }

    /// Says that something may have been committed. Never blocks and never fails.
    pub fn wake(&self) {
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    /// A subscription to what happens from now on. Any number may wait.
    pub(crate) fn listen(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether anybody waits.
    pub(crate) fn has_listeners(&self) -> bool {
        self.changes.receiver_count() > 0
    }

    /// Notes that the file is watched from now on; `true` if it was not before.
    pub(crate) fn begin_watch(&self) -> bool {
        !self.watched.swap(true, Ordering::SeqCst)
    }

    /// Notes that the file is not watched any more, unless somebody waits: then `false`.
    pub(crate) fn end_watch(&self) -> bool {
        // Somebody may have subscribed just before and found the watch still running: a swap, unlike a store, sees that.
        self.watched.swap(false, Ordering::SeqCst);
        !(self.has_listeners() && self.begin_watch())
    }
}

/// The adaptive interval between two looks at the file.
#[derive(Debug)]
pub(crate) struct Pace(Duration);

impl Pace {
    pub(crate) fn new() -> Self {
        Self(WATCH_MIN)
    }

    pub(crate) fn interval(&self) -> Duration {
        self.0
    }

    /// Something happened: look again soon.
    pub(crate) fn quicken(&mut self) {
        self.0 = WATCH_MIN;
    }

    /// Nothing happened: the interval grows by a quarter, so that it takes about 200 ms of silence to reach the longest.
    pub(crate) fn slacken(&mut self) {
        self.0 = (self.0 + self.0 / 4).min(WATCH_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watch_slows_down_in_silence_and_never_beyond_its_limit() {
        let mut pace = Pace::new();
        let mut silence = Duration::ZERO;
        while pace.interval() < WATCH_MAX {
            silence += pace.interval();
            pace.slacken();
        }
        assert!(silence > Duration::from_millis(100) && silence < Duration::from_millis(400), "{silence:?}");
        pace.slacken();
        assert_eq!(pace.interval(), WATCH_MAX);
        pace.quicken();
        assert_eq!(pace.interval(), WATCH_MIN);
    }

    #[test]
    fn the_watch_ends_only_when_nobody_waits() {
        let waker = Waker::new();
        let listener = waker.listen();
        assert!(waker.begin_watch());
        assert!(!waker.begin_watch(), "it runs already");
        assert!(!waker.end_watch(), "somebody waits");
        drop(listener);
        assert!(waker.end_watch());
        assert!(waker.begin_watch());
    }
}
