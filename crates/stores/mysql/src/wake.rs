//! Wake-up: telling a waiting relay that something may have been committed.
//!
//! Two sources end in one signal. In the same process the application calls [`Waker::wake`] after its commit. From other
//! connections and processes nothing is pushed, so a task looks at the right end of the table of unordered messages while
//! somebody waits: often after something happened, then ever more seldom. It looks at the last place as well, for somebody else
//! may have ordered the messages before it saw them. Both are hints; the relay polls besides.
//!
//! A hint counts from the call that asks for it: ask before you read, wait after, and a commit in between is not missed.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
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

/// The newest unordered message that is committed, one end of the primary key; and the last place.
const LOOK: &str = "SELECT (SELECT MAX(p) FROM {p}pending), value FROM {p}counter WHERE name = 'place'";

/// What one look at the tables has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    newest: Option<i64>,
    last: Option<i64>,
}

impl Seen {
    /// Whether there is something new since another look. That messages are gone is not: they have places then.
    fn is_news_since(self, before: Self) -> bool {
        self.newest.is_some() && self.newest != before.newest || self.last != before.last
    }
}

/// Wakes the relays of this process. Cheap to clone, and to call: after each commit that enqueued something.
#[derive(Clone, Debug)]
pub struct Waker {
    changes: Arc<watch::Sender<u64>>,
    watched: Arc<AtomicBool>,
    /// By the last look, of whoever watched then: what happened while nobody did is news.
    seen: Arc<Mutex<Seen>>,
}

impl Waker {
    pub(crate) fn new() -> Self {
        Self { changes: Arc::new(watch::channel(0).0), watched: Arc::default(), seen: Arc::default() }
    }

    /// Says that something may have been committed. Never blocks and never fails.
    pub fn wake(&self) {
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    /// A subscription to what happens from now on. Any number may wait.
    pub(crate) fn listen(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Notes what a look has seen; `true` if it is new.
    fn note(&self, seen: Seen) -> bool {
        // Nothing that is done under the lock leaves it half done.
        let mut last = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.is_news_since(std::mem::replace(&mut *last, seen))
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
    let mut pace = WATCH_MIN;
    loop {
        tokio::time::sleep(pace).await;
        let Some(store) = store.upgrade().map(MysqlStore) else { return };
        if store.0.waker.changes.receiver_count() == 0 && store.0.waker.end_watch() {
            return;
        }
        // If the server cannot be asked, there is no hint, and the relay learns it elsewhere.
        if look(&store).await.is_ok_and(|seen| store.0.waker.note(seen)) {
            pace = WATCH_MIN;
            store.wake();
        } else {
            pace = (pace + pace / 4).min(WATCH_MAX);
        }
    }
}

async fn look(store: &MysqlStore) -> Work<Seen> {
    let row = store.alone().await?.query_one(LOOK, Vec::new()).await?;
    Ok(Seen { newest: get(&row, 0)?, last: get(&row, 1)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_wakes_and_what_is_gone_does_not() {
        let seen = |newest, last| Seen { newest, last: Some(last) };
        assert!(seen(Some(7), 3).is_news_since(seen(None, 3)), "a message was committed");
        assert!(seen(Some(7), 3).is_news_since(seen(Some(6), 3)));
        assert!(seen(None, 4).is_news_since(seen(None, 3)), "and somebody else has ordered it already");
        assert!(!seen(Some(7), 3).is_news_since(seen(Some(7), 3)));
        assert!(!seen(None, 3).is_news_since(seen(Some(7), 3)), "it was taken back");
    }
}
