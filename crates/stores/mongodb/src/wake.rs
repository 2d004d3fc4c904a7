//! Wake-up: telling a waiting relay that something may have been committed.
//!
//! Two sources end in one signal. In the same process the application calls [`Waker::wake`] after its commit. For all others
//! one change stream is open while somebody waits: one for the whole process, however many lanes and handles it has
//! ([`crate::shared`]), for every open stream makes the server read its whole history once more. What it has is kept for a
//! while, and lanes that are at the end of the log read that ([`crate::recent`]). Both are hints; the relay polls besides.
//!
//! A hint counts from the call that asks for it: ask before you read, wait after, and a commit in between is not missed. A
//! stream that has just been opened wakes everybody once, for it cannot know what was committed before it.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;

use mongodb::Client;

use crate::{
    MongoStore,
    db::Db,
    dialect::Mongo,
    error::Work,
    seen::Seen,
    shared::Shared,
    stream::{Tail, Tailed},
};

/// How long one request to the server waits for something to happen.
const WATCH_STEP: Duration = Duration::from_secs(1);

/// So many steps without anybody who waits, and the stream is closed.
const IDLE_STEPS: u32 = 30;

/// How soon a stream that broke is opened again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

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

    fn is_waited_for(&self) -> bool {
        self.changes.receiver_count() > 0
    }

    /// Notes that the log is watched from now on; `true` if it was not before.
    fn begin_watch(&self) -> bool {
        !self.watched.swap(true, Ordering::SeqCst)
    }

    /// Notes that the log is not watched any more, and wakes those who wait, so that one of them sees to it.
    fn stop_watch(&self) {
        self.watched.store(false, Ordering::SeqCst);
        self.wake();
    }

    /// Notes that the log is not watched any more, unless somebody waits: then `false`.
    fn end_watch(&self) -> bool {
        self.watched.store(false, Ordering::SeqCst);
        // Somebody may have subscribed just before the store above and found the watch still running.
        !(self.is_waited_for() && self.begin_watch())
    }
}

/// Watches for as long as somebody waits, unless it is done already.
pub(crate) fn watch(store: &MongoStore) {
    let shared = &store.0.shared;
    if shared.waker.begin_watch() {
        let stream = Stream {
            shared: Arc::downgrade(shared),
            waker: shared.waker.clone(),
            client: store.0.client.clone(),
            names: store.0.dialect.clone(),
            seen: Arc::clone(&shared.seen),
            watches: true,
        };
        tokio::spawn(stream.watch());
    }
}

/// The stream goes over the connections of the handle that was the first to wait, and serves all of them.
struct Stream {
    shared: Weak<Shared>,
    waker: Waker,
    client: Client,
    names: Mongo,
    seen: Arc<Seen>,
    watches: bool,
}

/// Where the runtime of the handle that began it has ended, another one begins again.
impl Drop for Stream {
    fn drop(&mut self) {
        if self.watches {
            self.waker.stop_watch();
        }
    }
}

impl Stream {
    /// Ends when nobody has waited for a while, or when the last handle is gone.
    async fn watch(mut self) {
        while self.shared.strong_count() > 0 {
            // If the server cannot be asked, there is no hint, and the relay learns it elsewhere.
            let broke = self.open().await.is_err();
            if !self.waker.is_waited_for() && self.waker.end_watch() {
                self.watches = false;
                return;
            }
            if broke {
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        }
    }

    /// Opens a stream and follows it until it breaks, or nobody waits any more.
    async fn open(&self) -> Work<()> {
        let mut db = Db::alone(&self.client, &self.names, &self.seen).await?;
        let (mut tail, begin) = Tail::open(&mut db).await?;
        // The handles must be able to go while the stream is open.
        let Some(number) = self.shared.upgrade().map(|shared| {
            let number = shared.recent.number();
            shared.recent.add(number, Vec::new(), begin);
            number
        }) else {
            tail.close(&db);
            return Ok(());
        };
        self.waker.wake();
        let followed = self.follow(&mut db, &mut tail, number).await;
        if let Some(shared) = self.shared.upgrade() {
            shared.recent.end(number);
        }
        tail.close(&db);
        followed
    }

    /// What comes is kept before anybody is woken, so that whoever is finds it.
    async fn follow(&self, db: &mut Db, tail: &mut Tail, number: u64) -> Work<()> {
        let mut idle = 0;
        while idle < IDLE_STEPS {
            let Tailed { events, token, ended } = tail.next(db, WATCH_STEP).await?;
            let Some(shared) = self.shared.upgrade() else { return Ok(()) };
            let came = !events.is_empty() || ended.is_some();
            let joined = shared.recent.add(number, events, token);
            if let Some(end) = ended {
                // Whoever reads behind it asks for itself, and is told.
                shared.recent.end(number);
                self.waker.wake();
                return Err(end.into());
            }
            if came {
                self.waker.wake();
                idle = 0;
            } else if !self.waker.is_waited_for() {
                idle += 1;
            }
            if !joined {
                return Ok(());
            }
        }
        Ok(())
    }
}
