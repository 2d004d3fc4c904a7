//! The SQLite store: the embedded default. A log, its cursors, leases and parked rows in one file, beside the
//! application's own tables.
//!
//! An application enqueues in its own transaction (rusqlite, or sqlx with the feature `sqlx`) and needs only [`Sqlite`] for
//! it, or plain SQL in any language. A relay opens [`SqliteStore`], in the same process or another one on the same machine.
//!
//! ```
//! use postrider_core::{admin::StoreAdmin, enlist::Enlist, envelope::Envelope, limits::Limits};
//! use postrider_store_sqlite::SqliteStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("shop.db");
//! let store = SqliteStore::open(&path).await?;
//!
//! let mut connection = rusqlite::Connection::open(&path)?;
//! let mut transaction = connection.transaction()?;
//! let batch = Limits::default().check(vec![Envelope::new("orders", "order.placed", "{}")]);
//! transaction.append(&store.dialect(), batch)?;
//! transaction.commit()?;
//! store.wake();
//!
//! assert_eq!(store.overview().await?.records, 1);
//! # Ok(())
//! # }
//! ```
//!
//! | Feature | Brings |
//! |---|---|
//! | `sqlx` | enqueue in `sqlx::Transaction<'_, sqlx::Sqlite>` |

pub mod enlist;

mod dialect;

mod cursor;
mod log;
mod read;
mod select;

mod due;
mod parked;
mod purge;
mod settle;

mod lease;
mod route;

mod admin;

mod group;
mod wake;

mod config;
mod error;
mod identity;
pub mod migrations;
mod worker;

use std::{fmt, path::Path, sync::Arc};

use postrider_core::Result;

pub use crate::{
    config::Builder,
    dialect::{Clock, PREFIX, PREFIX_BYTES_MAX, Sqlite},
    error::error,
    group::GroupCommit,
    wake::Waker,
};
use crate::{identity::Identity, worker::Worker};

/// A handle on one store. Cheap to clone; its threads end when the last clone is dropped.
///
/// One thread writes, one keeps leases alive, one reads for the relay, and one looks for operators, so that none waits for
/// the others longer than SQLite itself asks for. A heartbeat above all: commits that wait for somebody's long transaction,
/// one lane's after the other's, must not cost the node its leases.
#[derive(Clone)]
pub struct SqliteStore {
    writer: Worker,
    keeper: Worker,
    reader: Worker,
    inspector: Worker,
    dialect: Sqlite,
    waker: Waker,
    file: Arc<str>,
    identity: Identity,
}

impl SqliteStore {
    /// Opens a store with the default options, and makes the file if there is none. See [`Builder::open`].
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder(path).open().await
    }

    /// Options for a store.
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder::new(path.as_ref())
    }

    /// What an application needs to enqueue into this store.
    #[must_use]
    pub fn dialect(&self) -> Sqlite {
        self.dialect.clone()
    }

    /// Wakes the relays of this process; see [`Waker`].
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// A handle that does nothing but wake, for an application to keep.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// The file, as it was named when opening.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("file", &self.file).field("dialect", &self.dialect).finish_non_exhaustive()
    }
}
