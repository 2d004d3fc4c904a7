//! The PostgreSQL store: a log in commit-safe order that never stalls and leaves nothing to vacuum.
//!
//! An application enqueues in its own transaction (tokio-postgres; sqlx, diesel or SeaORM with a feature) and needs only
//! [`Postgres`] for it, or plain SQL in any language. What an application does not tell by itself, [`capture`] takes from
//! its tables. A relay opens [`PostgresStore`].
//!
//! ```no_run
//! use postrider_core::{enlist::Enlist, envelope::Envelope, limits::Limits};
//! use postrider_store_postgres::{Postgres, PostgresStore};
//!
//! # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let store = PostgresStore::open("postgres://shop@localhost/shop").await?;
//!
//! let mut transaction = client.transaction().await?;
//! let batch = Limits::default().check(vec![Envelope::new("orders", "order.placed", "{}")]);
//! transaction.append(&store.dialect(), batch).await?;
//! transaction.commit().await?;
//! store.wake();
//! # Ok(())
//! # }
//! ```
//!
//! **Order.** What was committed before another message was enqueued comes first. Transactions that are truly concurrent
//! have no order, so take the lock that orders a key (its row, say) *before* you enqueue. Reading is a difference of
//! snapshots: late commits are never skipped, and no open transaction, long or prepared, holds up the messages of others.
//!
//! **What it needs.** PostgreSQL 13 or later; the primary, not a standby; for the relay a connection without a pooler in
//! between that gives sessions out by transaction: through one the log is not read, though producers may have one. With
//! `synchronous_commit = off`, or a fail-over to a standby that lags, the database itself may take back a commit whose
//! message is published already.
//!
//! **TLS.** A host that is neither loopback nor a Unix socket needs TLS with a certificate that is verified, chain and host
//! name, unless the URL says `sslmode=disable`. `require`, `verify-ca` and `verify-full` all mean the same: verified in full.
//! `prefer` and `allow` are refused, for they fall back to clear text without a word. `sslrootcert` names a PEM file of
//! authorities to trust instead of the system's (`system` is those), `sslcert` and `sslkey` what this client shows; any of
//! them asks for TLS by itself. The URL may name several hosts: the one that accepts writes is taken.
//!
//! **After a crash or fail-over of the server** every lease from before is fenced: what its owner has read may not exist
//! any more. The relay takes its lanes anew and goes on from what is persisted.
//!
//! **After a restore** into another cluster or table, transaction ids mean something else. Each lane then delivers all that
//! was not settled where the dump was made, and goes on from there; the audit record tells of it. What was delivered after
//! the dump was begun comes again. Bring the relays up when the restore is complete.
//!
//! | Feature | Brings |
//! |---|---|
//! | `sqlx` | enqueue in `sqlx::Transaction<'_, sqlx::Postgres>` |
//! | `diesel` | enqueue inside of diesel's `connection.transaction(…)`, by `enlist::DieselTransaction` |
//! | `diesel-async` | the same for diesel-async, by `enlist::DieselAsyncTransaction` |
//! | `sea-orm` | enqueue in `sea_orm::DatabaseTransaction` |
//! | `libpq` | for the tests of `diesel`: its own connection, on a libpq that is compiled along |
//! | `planted` | mistakes of the reader that the tests must find; for tests alone |
//! | `tls` (default) | encrypted connections, by rustls |

pub mod enlist;

pub mod capture;
mod debezium;
mod dialect;
mod quote;

mod ahead;
mod cursor;
mod lanes;
mod log;
mod observe;
mod origin;
mod pooler;
mod read;
mod records;
mod rounds;
mod select;
mod session;
mod silence;
mod snapshot;

mod checkpoint;
mod due;
mod floor;
mod parked;
mod purge;
mod set_back;
mod settle;

mod clock;
mod heartbeat;
mod lease;
mod route;

mod admin;

mod wake;

mod access;
mod config;
mod db;
mod error;
mod intern;
mod locked;
pub mod migrations;
pub mod planted;
mod together;
mod values;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use deadpool_postgres::{Object, Pool};
use postrider_core::{Result, lease::Lease, log::Cursor};

use crate::{
    access::Access,
    error::{Fault, Work},
    floor::Floor,
    lanes::Lanes,
    planted::Plant,
    read::Remembered,
    session::Session,
    together::Together,
};
pub use crate::{
    access::connect,
    config::Builder,
    debezium::{DebeziumOutbox, PayloadType},
    dialect::{PREFIX_BYTES_MAX, Postgres, SCHEMA, SCHEMA_BYTES_MAX},
    error::error,
    wake::{Notifier, Waker},
};
pub use postrider_core::capture::Table;

/// How long it may take until a reader's session stands.
const SESSION_PATIENCE: Duration = Duration::from_mins(1);

/// A handle on one store. Cheap to clone; its connections close when the last clone is dropped.
///
/// One connection reads the log for all lanes of this process, one listens for hints, and a small pool does the rest. For a
/// moment there is one more: when the one that reads is made, which asks whether a pooler stands between, and when somebody waits
/// for a lock, whose holder is looked for.
#[derive(Clone)]
pub struct PostgresStore(Arc<Inner>);

struct Inner {
    pool: Pool,
    access: Access,
    dialect: Postgres,
    block_bits: u32,
    raise: bool,
    plant: Plant,
    opened_at: Instant,
    session: Mutex<Option<Arc<Session>>>,
    /// Held by whoever makes a new session.
    connecting: tokio::sync::Mutex<()>,
    lanes: Lanes<Remembered>,
    /// Lanes that found no parked row to wait for, and will look again at about the same moment.
    due_looks: Together<due::Question, Option<due::Looked>>,
    next_due_looks: Lanes<due::NextLook>,
    /// How low each lane begins to look for due rows.
    floors: Lanes<Floor>,
    /// Held by whoever puts right what a clock that went back has left.
    catching_up: tokio::sync::Mutex<()>,
    /// What need not be counted again.
    answers: admin::Answers,
    /// What retention need not look at.
    emptied: purge::Emptied,
    /// Which lanes have seen the log's sequence stand back.
    set_back: set_back::Noticed,
    waker: Waker,
}

impl PostgresStore {
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
    pub fn dialect(&self) -> Postgres {
        self.0.dialect.clone()
    }

    /// Wakes the relays of this process; see [`Waker`].
    pub fn wake(&self) {
        self.0.waker.wake();
    }

    /// A handle that does nothing but wake, for an application to keep.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.0.waker.clone()
    }

    /// Announces commits to the relays of other processes; see [`Notifier`]. Must be called on a tokio runtime.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        Notifier::start(self.0.access.clone(), &self.0.dialect)
    }

    async fn client(&self) -> Work<Object> {
        Ok(self.0.pool.get().await?)
    }

    /// Works with a connection of the pool, for so long at most.
    async fn in_time<T>(&self, patience: Duration, work: impl AsyncFnOnce(&mut Object) -> Work<T>) -> Work<T> {
        let mut client = self.client().await?;
        let outcome = db::in_time(Some(patience), work(&mut client)).await;
        self.give_back(client, outcome)
    }

    /// Gives a connection back to the pool. One that did not answer in time is closed, and so are those that wait in the pool,
    /// for they lead to the same place. The server is told: while a session waits for a lock, it does not notice that nobody
    /// waits for it any more.
    fn give_back<T>(&self, client: Object, outcome: Work<T>) -> Work<T> {
        if outcome.as_ref().is_err_and(Fault::is_silence) {
            let (access, silent) = (self.0.access.clone(), Object::take(client).cancel_token());
            tokio::spawn(async move { access.cancel(silent).await });
            self.0.pool.retain(|_, _| false);
        }
        outcome
    }

    /// The reader's session; a new one if the former is over. Whoever comes meanwhile waits for it.
    async fn session(&self) -> Work<Arc<Session>> {
        if let Some(live) = self.live_session() {
            return Ok(live);
        }
        let _others_wait = self.0.connecting.lock().await;
        if let Some(live) = self.live_session() {
            return Ok(live);
        }
        *self.current_session() = None;
        let connecting = Session::connect(&self.0.access, &self.0.dialect, self.0.plant);
        let new = db::in_time(Some(SESSION_PATIENCE), connecting).await?;
        *self.current_session() = Some(Arc::clone(&new));
        Ok(new)
    }

    /// The reader's session, if there is one that lives.
    fn live_session(&self) -> Option<Arc<Session>> {
        self.current_session().clone().filter(|session| !session.is_over())
    }

    fn current_session(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        self.0.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out what is remembered of a lane, if it is for this cursor.
    fn remembered(&self, lease: &Lease, session: &Session, after: &Cursor) -> Option<Remembered> {
        self.0.lanes.take(lease).filter(|lane| lane.is_for(session, after))
    }

    fn remember(&self, lease: &Lease, lane: Remembered) {
        self.0.lanes.remember(lease, lane);
    }

    fn block_bits(&self) -> u32 {
        self.0.block_bits
    }

    fn raises(&self) -> bool {
        self.0.raise
    }

    fn age(&self) -> Duration {
        self.0.opened_at.elapsed()
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("dialect", &self.0.dialect).finish_non_exhaustive()
    }
}
