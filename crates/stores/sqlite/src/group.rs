//! Group commit: many small transactions of an application share one commit, and with it one wait for the disk.
//!
//! One thread with one connection takes whatever is waiting, runs each piece of work in a savepoint of its own, commits
//! once, and only then answers. A piece of work that fails takes back only what it did itself. If the shared commit fails,
//! everybody in it hears so and nothing of it is there.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
    thread,
};

use postrider_core::{Error, ErrorKind, Result};
use rusqlite::{Connection, Savepoint, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use crate::{
    config,
    error::{Fault, from_rusqlite},
    wake::Waker,
};

/// Pieces of work in one commit. More would make the first wait long for the last.
const GROUP_MAX: usize = 256;

/// Pieces of work that wait. Beyond that [`GroupCommit::submit`] waits before it hands its own over.
const WAITING_MAX: usize = 1024;

/// Runs in the open transaction (`None`: there is none, and it does not run), and returns what to do when the commit is
/// answered.
type Job = Box<dyn FnOnce(Option<&mut Transaction<'_>>) -> Done + Send>;
/// `Err`: why nothing was committed.
type Done = Box<dyn FnOnce(Result<(), Arc<str>>, ErrorKind) + Send>;

/// A handle on one thread that commits for many. Cheap to clone; the thread ends with the last clone.
///
/// ```
/// use postrider_core::{enlist::Enlist, envelope::Envelope, limits::Limits};
/// use postrider_store_sqlite::{GroupCommit, SqliteStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("shop.db");
/// let store = SqliteStore::open(&path).await?;
/// let group = GroupCommit::open(&path, Some(store.waker())).await?;
/// let outbox = store.dialect();
/// let order = group.submit(move |savepoint| {
///     let batch = Limits::default().check(vec![Envelope::new("orders", "order.placed", "{}")]);
///     savepoint.append(&outbox, batch)?;
///     Ok::<_, postrider_core::Error>(4711)
/// });
/// assert_eq!(order.await?, 4711);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct GroupCommit {
    jobs: mpsc::Sender<Job>,
}

impl GroupCommit {
    /// Opens a connection and starts the thread. A waker is called after each commit.
    ///
    /// # Errors
    /// If the file cannot be opened; as [`Builder::open`](crate::Builder::open).
    pub async fn open(path: impl AsRef<Path>, waker: Option<Waker>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let file: Arc<str> = path.display().to_string().into();
        let (jobs, mut queue) = mpsc::channel::<Job>(WAITING_MAX);
        let (answer, answered) = oneshot::channel();
        thread::Builder::new()
            .name("postrider-sqlite-group".to_owned())
            .spawn(move || match config::connect(&path, config::BUSY_TIMEOUT) {
                Ok(mut connection) => {
                    let _ = answer.send(Ok(()));
                    serve(&mut connection, &mut queue, waker.as_ref(), &file);
                }
                Err(fault) => {
                    let _ = answer.send(Err(fault.into_error("open the database", &file)));
                }
            })
            .map_err(|e| Error::new(ErrorKind::Unavailable, "start a thread for group commit").caused_by(e))?;
        answered.await.map_err(|_| gone())??;
        Ok(Self { jobs })
    }

    /// Runs `work` in a savepoint, and resolves once the commit that it shares with others is durable.
    ///
    /// If the future is dropped before the work was handed over, nothing happens; after that it runs and commits all the
    /// same. `work` must not end the savepoint's transaction by SQL of its own.
    ///
    /// # Errors
    /// What `work` answers, after its savepoint is rolled back; or, as `E::from` of our error, why the commit failed. Then
    /// nothing of it is there, unless the kind is [`ErrorKind::Other`]: nobody knows.
    pub async fn submit<T, E, W>(&self, work: W) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
        W: FnOnce(&mut Savepoint<'_>) -> Result<T, E> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |transaction| {
            let outcome = transaction.map(|transaction| attempt(transaction, work));
            Box::new(move |committed, kind| {
                let outcome = match (outcome, committed) {
                    (Some(Err(error)), _) => Err(error),
                    (Some(Ok(value)), Ok(())) => Ok(value),
                    (_, Err(why)) => Err(Error::new(kind, why.to_string()).into()),
                    (None, Ok(())) => Err(gone().into()),
                };
                // Nobody may be waiting any more; what is committed is committed.
                let _ = answer.send(outcome);
            })
        });
        self.jobs.send(job).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

/// Runs one piece of work in its savepoint; a failure or a panic takes the savepoint back.
fn attempt<T, E: From<Error>>(
    transaction: &mut Transaction<'_>,
    work: impl FnOnce(&mut Savepoint<'_>) -> Result<T, E>,
) -> Result<T, E> {
    let failed = |error| E::from(from_rusqlite(error, "group commit"));
    let mut savepoint = transaction.savepoint().map_err(failed)?;
    let outcome = catch_unwind(AssertUnwindSafe(|| work(&mut savepoint))).unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Other, "the work of a group commit panicked").permanent().into())
    });
    match outcome {
        // Dropping it on failure rolls it back.
        Ok(value) => savepoint.commit().map(|()| value).map_err(failed),
        Err(error) => Err(error),
    }
}

/// Ends when every handle is gone.
fn serve(connection: &mut Connection, queue: &mut mpsc::Receiver<Job>, waker: Option<&Waker>, file: &Arc<str>) {
    while let Some(first) = queue.blocking_recv() {
        let mut done = Vec::new();
        let committed = commit(connection, first, queue, &mut done);
        let (committed, kind) = match committed {
            Ok(()) => (Ok(()), ErrorKind::Other),
            Err(fault) => {
                let error = fault.into_error("group commit", file);
                (Err(error.chain().into()), error.kind())
            }
        };
        let succeeded = committed.is_ok();
        for done in done {
            done(committed.clone(), kind);
        }
        if let Some(waker) = waker.filter(|_| succeeded) {
            waker.wake();
        }
    }
}

/// One shared transaction of what waits now, up to [`GROUP_MAX`].
fn commit(
    connection: &mut Connection,
    first: Job,
    queue: &mut mpsc::Receiver<Job>,
    done: &mut Vec<Done>,
) -> Result<(), Fault> {
    let mut transaction = match connection.transaction_with_behavior(TransactionBehavior::Immediate) {
        Ok(transaction) => transaction,
        Err(error) => {
            done.push(first(None));
            return Err(error.into());
        }
    };
    let mut next = Some(first);
    while let Some(job) = next {
        done.push(job(Some(&mut transaction)));
        // A full disk or an I/O error makes SQLite roll everything back on its own. Whatever ran next would commit by
        // itself.
        if transaction.is_autocommit() {
            return Err(Error::new(ErrorKind::Unavailable, "SQLite has rolled the shared transaction back").into());
        }
        next = if done.len() < GROUP_MAX { queue.try_recv().ok() } else { None };
    }
    Ok(transaction.commit()?)
}

fn gone() -> Error {
    Error::new(ErrorKind::Other, "the thread for group commit has ended")
}
