//! The store for MongoDB 6.0 or later, on a replica set: a log in commit-safe order by the change stream, with the collection
//! as the truth.
//!
//! An application enqueues in its own multi-document transaction and needs only [`Mongo`] for it, or a plain insert in any
//! language. A relay opens [`MongoStore`].
//!
//! ```no_run
//! use postrider_core::{enlist::Enlist, envelope::Envelope, limits::Limits};
//! use postrider_store_mongodb::MongoStore;
//!
//! # async fn example(client: &mongodb::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let store = MongoStore::open("mongodb://localhost/shop").await?;
//!
//! let mut session = client.start_session().await?;
//! session.start_transaction().await?;
//! let batch = Limits::default().check(vec![Envelope::new("orders", "order.placed", "{}")]);
//! session.append(&store.dialect(), batch).await?;
//! session.commit_transaction().await?;
//! store.wake();
//! # Ok(())
//! # }
//! ```
//!
//! A transaction here is ended by the server when it meets another one, and has to be run again; [`UnitOfWork`] does that, and
//! gives collections that cannot forget their session.
//!
//! **Order.** What was committed before another message was enqueued comes first; transactions that are truly concurrent have
//! no order, so touch the document that orders a key *before* you enqueue. How that is kept is in the module `read` of this
//! crate: the change stream is read, and where the server has forgotten its history, the collection is scanned.
//!
//! **What it needs.** A replica set, of one member if need be; a standalone server is refused. Its own writes wait for the
//! journals of a majority, its reads see nothing that can be rolled back, whatever the client is set to. What the application
//! commits is as durable as its own write concern; a message is delivered only once a majority has it.
//!
//! | Feature | Brings |
//! |---|---|
//! | `planted` | mistakes of the reader that the tests must find; for tests alone |
//! | `srv` (default) | `mongodb+srv` URLs |

pub mod embedded;
pub mod enlist;
pub mod work;

mod dialect;

mod ahead;
mod cursor;
mod late;
mod log;
mod quiet;
mod read;
mod recent;
mod records;
mod select;
mod stream;

mod due;
mod parked;
mod purge;
mod settle;

mod clock;
mod lease;
mod route;

mod admin;

mod wake;

mod config;
mod db;
mod error;
pub mod migrations;
pub mod planted;
mod seen;
mod server;
mod shared;
mod value;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use mongodb::Client;
use postrider_core::{BoxFuture, Error, ErrorKind, Result};

use crate::{
    ahead::Ahead,
    cursor::{Tick, seconds},
    db::Db,
    error::Work,
    late::Late,
    planted::Plant,
    quiet::Quiet,
    shared::Shared,
};
pub use crate::{
    config::{Builder, connect},
    dialect::{Mongo, PREFIX, PREFIX_BYTES_MAX},
    error::error,
    wake::Waker,
    work::UnitOfWork,
};

/// A handle on one store. Cheap to clone; its connections close when the last clone is dropped, but for the stream that it has
/// opened, if other handles of the process wait for that.
#[derive(Clone)]
pub struct MongoStore(Arc<Inner>);

struct Inner {
    client: Client,
    dialect: Mongo,
    shared: Arc<Shared>,
    overlap: Duration,
    plant: Plant,
    forget_every: u32,
    idle_seconds: u64,
    ahead: Ahead,
    late: Late,
    quiet: Quiet,
    reads: AtomicU32,
    recoveries: AtomicU64,
}

impl MongoStore {
    /// Opens a store with the default options. See [`Builder::open`].
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub async fn open(url: &str) -> Result<Self> {
        Self::builder(url).open().await
    }

    /// Options for a store.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    /// What an application needs to enqueue into this store.
    #[must_use]
    pub fn dialect(&self) -> Mongo {
        self.0.dialect.clone()
    }

    /// Runs transactions with a client of the application's, and wakes the relays of this process after each.
    #[must_use]
    pub fn unit_of_work(&self, client: &Client) -> UnitOfWork {
        UnitOfWork::new(client, &self.0.dialect).waking(&self.0.shared.waker)
    }

    /// Wakes the relays of this process; see [`Waker`].
    pub fn wake(&self) {
        self.0.shared.waker.wake();
    }

    /// A handle that does nothing but wake, for an application to keep.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.0.shared.waker.clone()
    }

    /// How often this handle had to scan the collection because the server had forgotten its history.
    #[must_use]
    pub fn recoveries(&self) -> u64 {
        self.0.recoveries.load(Ordering::Relaxed)
    }

    /// How far before a lane's cursor a scan begins; see [`Builder::overlap`].
    #[must_use]
    pub fn overlap(&self) -> Duration {
        self.0.overlap
    }

    /// As if an answer had told of everything up to this point of the cluster's time, for a test of what follows an election.
    #[cfg(feature = "planted")]
    pub fn has_seen(&self, time: mongodb::bson::Timestamp) {
        self.0.shared.seen.note(cursor::tick(time));
    }

    fn overlap_ticks(&self) -> Tick {
        seconds(self.0.overlap.as_secs())
    }

    /// Whether this read is to find its history lost, as a test wants it.
    fn forgets(&self) -> bool {
        let every = self.0.forget_every;
        every > 0 && self.0.reads.fetch_add(1, Ordering::Relaxed) % every == every - 1
    }

    /// Commands that are transactions of their own.
    async fn alone(&self) -> Work<Db> {
        Db::alone(&self.0.client, &self.0.dialect, &self.0.shared.seen).await
    }

    /// On one consistent state of the database, and without changing it.
    async fn look(&self) -> Work<Db> {
        Db::look(&self.0.client, &self.0.dialect, &self.0.shared.seen).await
    }

    async fn begin(&self) -> Work<Db> {
        Db::begin(&self.0.client, &self.0.dialect, &self.0.shared.seen).await
    }

    /// Runs a piece of work to its end, whether or not somebody still waits for it: a dropped future leaves it done or not
    /// done, and no transaction open.
    fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Work<T>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T>> {
        let work = tokio::spawn(work);
        Box::pin(async move {
            match work.await {
                Ok(outcome) => outcome.map_err(|fault| fault.into_error(operation)),
                Err(failed) => Err(Error::new(ErrorKind::Other, "the store's task has failed")
                    .with("operation", operation)
                    .caused_by(failed)),
            }
        })
    }
}

impl fmt::Debug for MongoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoStore").field("dialect", &self.0.dialect).finish_non_exhaustive()
    }
}
