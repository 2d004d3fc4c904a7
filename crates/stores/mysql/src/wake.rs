//! Wake-up: telling a waiting relay that something may have been committed.
//!
//! Two sources end in one signal. In the same process the application calls [`Waker::wake`] after its commit. From other
//! connections and processes nothing is pushed, so a task looks at the right end of the table of unordered messages while
//! somebody waits: often after something happened, then ever more seldom. Both are hints; the relay polls besides.
//!
//! A hint counts from the call that asks for it: ask before you read, wait after, and a commit in between is not missed.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;

use crate::{Inner, MysqlStore, db::get, error::Work};

/// How soon another process's commit is noticed while things happen.
const WATCH_MIN: Duration = Duration::from_millis(5);

/// How soon another process's commit is noticed after a long silence.
const WATCH_MAX: Duration = Duration::from_millis(500);

/// The newest unordered message that is committed: one end of the primary key.
const NEWEST: &str = "SELECT MAX(p) FROM {p}pending";

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

    /// Notes that the table is watched from now on; `true` if it was not before.
    fn begin_watch(&self) -> bool {
        !self.watched.swap(true, Ordering::SeqCst)
    }

    /// Notes that the table is not watched any more, unless somebody waits: then `false`.
    fn end_watch(&self) -> bool {
        self.watched.store(false, Ordering::SeqCst);
        // Somebody may have subscribed just before the store above and found the watch still running.
        !(self.changes.receiver_count() > 0 && self.begin_watch())
    }
}

/// Watches for as long as somebody waits, unless it is done already.
pub(crate) fn watch(store: &MysqlStore) {
    if store.0.waker.begin_watch() {
        tokio::spawn(look_again_and_again(Arc::downgrade(&store.0)));
    }
}

/// Ends when nobody waits any more, or when the store is gone.
async fn look_again_and_again(store: Weak<Inner>) {
    let (mut seen, mut pace) = (None, WATCH_MIN);
    loop {
        tokio::time::sleep(pace).await;
        let Some(store) = store.upgrade().map(MysqlStore) else { return };
        if store.0.waker.changes.receiver_count() == 0 && store.0.waker.end_watch() {
            return;
        }
        // If the server cannot be asked, there is no hint, and the relay learns it elsewhere.
        let newest = newest(&store).await.unwrap_or(seen);
        if newest.is_some() && newest != seen {
            pace = WATCH_MIN;
            store.wake();
        } else {
            pace = (pace + pace / 4).min(WATCH_MAX);
        }
        seen = newest;
    }
}

async fn newest(store: &MysqlStore) -> Work<Option<i64>> {
    get(&store.alone().await?.query_one(NEWEST, Vec::new()).await?, 0)
}
