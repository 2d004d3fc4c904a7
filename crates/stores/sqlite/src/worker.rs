//! Threads with a connection of their own: rusqlite blocks, and nothing here may block the async runtime.
//!
//! Work crosses to a thread through a channel and its result comes back through another. Once begun, a piece of work runs to
//! its end, whether or not somebody still waits for the answer: a dropped future leaves it done or not done, never half done. A
//! look that nobody waits for any more is not begun: whoever watches a store that is slow to answer gives up and asks again,
//! and what was given up would keep the thread busy for good. The writer's thread also watches the file for other processes'
//! commits while it is idle (see [`crate::wake`]).

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use postrider_core::{Error, ErrorKind, Result, time::Timestamp};
use rusqlite::{CachedStatement, Connection};
use tokio::sync::oneshot;

use crate::{
    dialect::Sqlite,
    error::{Fault, Work},
    wake::{Pace, Waker},
};

/// How often to look whether the write lock is free.
const LOCK_LOOK_EVERY: Duration = Duration::from_micros(300);

/// A connection on its thread, with what its statements need.
pub(crate) struct Db {
    pub(crate) connection: Connection,
    pub(crate) dialect: Sqlite,
    /// How long to wait for a lock beyond what the connection waits itself.
    patience: Duration,
}

impl Db {
    pub(crate) fn new(connection: Connection, dialect: Sqlite) -> Self {
        // Every statement of this crate stays prepared.
        connection.set_prepared_statement_cache_capacity(128);
        Self { connection, dialect, patience: Duration::ZERO }
    }

    /// Waits for the write lock itself, instead of letting SQLite do it. SQLite looks again after ever longer pauses, up to a
    /// tenth of a second, and so hardly ever gets in beside a writer that commits without a pause; looking often does.
    pub(crate) fn waiting_itself(mut self, patience: Duration) -> Work<Self> {
        self.connection.busy_timeout(Duration::ZERO)?;
        self.patience = patience;
        Ok(self)
    }

    /// Prepares one of our statements, or takes it from the cache.
    pub(crate) fn statement(&self, sql: &str) -> rusqlite::Result<CachedStatement<'_>> {
        self.connection.prepare_cached(&self.dialect.render(sql))
    }

    /// Runs `work` in a write transaction and commits it, or rolls back if it fails.
    ///
    /// The transaction is immediate: it takes the one write lock at its beginning, so it never fails half-way because
    /// another writer was faster. The instant is taken under that lock, so a long wait for it makes no time wrong.
    pub(crate) fn write<T>(&self, work: impl FnOnce(&Self, Timestamp) -> Work<T>) -> Work<T> {
        self.transact("BEGIN IMMEDIATE", work)
    }

    /// Runs `work` on one consistent state of the database.
    pub(crate) fn look<T>(&self, work: impl FnOnce(&Self, Timestamp) -> Work<T>) -> Work<T> {
        self.transact("BEGIN DEFERRED", work)
    }

    /// Whether the write lock can be had within `patience`. Takes it for a moment and writes nothing.
    pub(crate) fn is_writable_within(&self, patience: Duration) -> Work<bool> {
        let usual: i64 = self.connection.pragma_query_value(None, "busy_timeout", |row| row.get(0))?;
        self.connection.busy_timeout(Duration::ZERO)?;
        let deadline = Instant::now() + patience;
        let taken = loop {
            match self.connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK").map_err(Fault::from) {
                Err(fault) if fault.is_busy() && Instant::now() < deadline => thread::sleep(LOCK_LOOK_EVERY),
                taken => break taken,
            }
        };
        self.connection.busy_timeout(Duration::from_millis(usual.unsigned_abs()))?;
        match taken {
            Err(fault) if fault.is_busy() => Ok(false),
            taken => taken.map(|()| true),
        }
    }

    /// Ends with the transaction, or when the patience is over.
    fn begin(&self, begin: &str) -> Work<()> {
        let mut statement = self.connection.prepare_cached(begin)?;
        let deadline = Instant::now() + self.patience;
        loop {
            match statement.execute([]).map_err(Fault::from) {
                Ok(_) => return Ok(()),
                Err(fault) if fault.is_busy() && Instant::now() < deadline => thread::sleep(LOCK_LOOK_EVERY),
                Err(fault) => return Err(fault),
            }
        }
    }

    /// With statements that stay prepared, unlike those of rusqlite's own transactions.
    fn transact<T>(&self, begin: &str, work: impl FnOnce(&Self, Timestamp) -> Work<T>) -> Work<T> {
        self.begin(begin)?;
        let open = Open(&self.connection);
        let outcome = work(self, self.dialect.now())?;
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        drop(open);
        Ok(outcome)
    }
}

/// Rolls back what is still open when it is dropped: after an error, a failed commit, or a panic.
struct Open<'a>(&'a Connection);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // SQLite has rolled some back on its own.
        if !self.0.is_autocommit() {
            let _ = self.0.execute_batch("ROLLBACK");
        }
    }
}

type Job = Box<dyn FnOnce(&Db) + Send>;

/// A handle on one thread. The thread ends when the last handle is gone and its work is done.
#[derive(Clone)]
pub(crate) struct Worker {
    jobs: mpsc::Sender<Job>,
    file: Arc<str>,
}

impl Worker {
    /// Starts a thread. `waker` makes it the one that watches the file.
    pub(crate) fn start(role: &'static str, file: &Arc<str>, db: Db, waker: Option<Waker>) -> Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        // Before there is a handle: a thread that starts late must not take somebody's commit for where it began.
        let version = waker.as_ref().and_then(|_| data_version(&db));
        thread::Builder::new()
            .name(format!("postrider-sqlite-{role}"))
            .spawn(move || match waker {
                Some(waker) => serve_and_watch(&db, &queue, &waker, version),
                None => serve(&db, &queue),
            })
            .map_err(|e| Error::new(ErrorKind::Unavailable, "start a thread of the store").caused_by(e))?;
        Ok(Self { jobs, file: Arc::clone(file) })
    }

    /// Runs `work` on the thread. Dropping the future does not stop it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Db) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |db| {
            // Nobody may be waiting any more; the work is done all the same.
            let _ = answer.send(work(db));
        });
        self.send(operation, job, answered).await
    }

    /// As [`run`](Self::run), of work that changes nothing. It is not begun if the future was dropped before its turn came: so
    /// of any number that were given up, one at most is still at work.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Db) -> Work<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |db| {
            if !answer.is_closed() {
                let _ = answer.send(work(db));
            }
        });
        self.send(operation, job, answered).await
    }

    async fn send<T>(&self, operation: &'static str, job: Job, answered: oneshot::Receiver<Work<T>>) -> Result<T> {
        let gone = || Error::new(ErrorKind::Other, "the store's thread has failed").with("operation", operation);
        self.jobs.send(job).map_err(|_| gone().with("file", &self.file))?;
        let outcome = answered.await.map_err(|_| gone().with("file", &self.file))?;
        outcome.map_err(|fault: Fault| fault.into_error(operation, &self.file))
    }

    /// Makes a sleeping thread look at its queue, and with it at the file.
    pub(crate) fn nudge(&self) {
        let _ = self.jobs.send(Box::new(|_| {}));
    }
}

/// Ends when every handle is gone.
fn serve(db: &Db, queue: &mpsc::Receiver<Job>) {
    while let Ok(job) = queue.recv() {
        perform(db, job);
    }
}

/// As [`serve`], and looks at the file whenever it has been idle for a while and somebody waits.
fn serve_and_watch(db: &Db, queue: &mpsc::Receiver<Job>, waker: &Waker, mut version: Option<i64>) {
    let mut pace = Pace::new();
    loop {
        let job = if waker.has_listeners() || !waker.end_watch() {
            match queue.recv_timeout(pace.interval()) {
                Ok(job) => Some(job),
                Err(mpsc::RecvTimeoutError::Timeout) => None,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        } else {
            match queue.recv() {
                Ok(job) => Some(job),
                Err(mpsc::RecvError) => return,
            }
        };
        let idle = job.is_none();
        if let Some(job) = job {
            perform(db, job);
        }
        let seen = data_version(db);
        if seen != version {
            version = seen;
            pace.quicken();
            waker.wake();
        } else if idle {
            pace.slacken();
        }
    }
}

/// A panic costs its own caller an answer, not everybody the thread; an open transaction is rolled back on the way.
fn perform(db: &Db, job: Job) {
    let _ = catch_unwind(AssertUnwindSafe(|| job(db)));
}

/// Changes whenever another connection has committed. `None` if the file cannot be asked just now.
fn data_version(db: &Db) -> Option<i64> {
    db.connection.prepare_cached("PRAGMA data_version").ok()?.query_row([], |row| row.get(0)).ok()
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        sync::atomic::{AtomicU32, Ordering},
        task::Poll,
    };

    use super::*;

    fn worker() -> Worker {
        let db = Db::new(Connection::open_in_memory().unwrap(), Sqlite::default());
        Worker::start("test", &Arc::from("memory"), db, None).unwrap()
    }

    /// Sends the work, and waits for its answer no longer.
    async fn asked_and_given_up(asked: impl Future<Output = Result<()>>) {
        let mut asked = Box::pin(asked);
        let answer = poll_fn(|context| Poll::Ready(asked.as_mut().poll(context))).await;
        assert!(answer.is_pending());
    }

    /// Each scrape of a store that is slow to answer gives up its look and the next one asks again.
    #[tokio::test]
    async fn looks_that_were_given_up_do_not_pile_up() {
        let worker = worker();
        let (begun, is_begun) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        let slow = tokio::spawn({
            let worker = worker.clone();
            async move {
                let work = move |_: &Db| {
                    begun.send(()).unwrap();
                    ends.recv().unwrap();
                    Ok(())
                };
                worker.look("a slow look", work).await
            }
        });
        while is_begun.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
        let done = Arc::new(AtomicU32::new(0));
        let counted = |done: &Arc<AtomicU32>| {
            let done = Arc::clone(done);
            move |_: &Db| {
                done.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        };
        for _ in 0..5 {
            asked_and_given_up(worker.look("a look that is given up", counted(&done))).await;
        }
        asked_and_given_up(worker.run("a write that is given up", counted(&done))).await;
        end.send(()).unwrap();
        slow.await.unwrap().unwrap();
        worker.look("a look that is waited for", counted(&done)).await.unwrap();
        assert_eq!(done.load(Ordering::SeqCst), 2, "the write is done all the same, and of the looks the last one");
    }
}
