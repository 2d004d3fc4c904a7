//! A store in memory: the reference implementation of the contracts, for tests and for trying things out.
//!
//! One mutex guards everything, and a transaction appends when it commits, so log order is commit order and a plain
//! position serves as cursor. Nothing survives the process. Where another store is unsure what a contract means, it can
//! look here first: the rules stand here without a database between the lines.
//!
//! ```
//! use postrider_core::{enlist::Enlist, envelope::Envelope, limits::Limits};
//! use postrider_store_memory::{Memory, MemoryStore};
//!
//! let store = MemoryStore::new();
//! let mut transaction = store.begin();
//! let batch = Limits::default().check(vec![Envelope::new("orders", "order.placed", "{}")]);
//! transaction.append(&Memory, batch)?;
//! transaction.commit();
//! # Ok::<(), postrider_core::Error>(())
//! ```

mod enlist;

mod log;
mod records;

mod lease;

mod parked;

mod admin;

mod clock;
mod state;

use std::sync::{Arc, Mutex};

use postrider_core::time::Timestamp;
use tokio::sync::Notify;

pub use clock::ManualClock;
pub use enlist::{Memory, MemoryTransaction, Savepoint};

use clock::Clock;
use state::State;

/// A store in memory. Clones share one store.
#[derive(Clone)]
pub struct MemoryStore(Arc<Inner>);

struct Inner {
    clock: Clock,
    state: Mutex<State>,
    /// Rung after every commit and every change that a relay may be waiting for.
    bell: Notify,
}

impl MemoryStore {
    /// An empty store that goes by the clock of this process.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Clock::process())
    }

    /// An empty store whose time passes only when the clock is told so.
    #[must_use]
    pub fn with_clock(clock: ManualClock) -> Self {
        Self::with(Clock::Manual(clock))
    }

    /// Opens a transaction. Any number may be open at the same time; they commit in any order.
    pub fn begin(&self) -> MemoryTransaction {
        MemoryTransaction::new(self.clone())
    }

    /// The store's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    fn with(clock: Clock) -> Self {
        Self(Arc::new(Inner { clock, state: Mutex::default(), bell: Notify::new() }))
    }

    /// Runs one transaction of our own: everything under the lock is one atomic step.
    fn transact<T>(&self, act: impl FnOnce(&mut State, Timestamp) -> T) -> T {
        let mut state = self.0.state.lock().expect("nobody panicked inside the store");
        // Inside the lock, so that time never runs backwards from one transaction to the next.
        act(&mut state, self.0.clock.now())
    }

    fn ring(&self) {
        self.0.bell.notify_waiters();
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryStore")
    }
}
