//! The application's side: a transaction of the memory store, which an outbox can join.
//!
//! What is enqueued waits in the transaction and is appended to the log in one step at commit. Dropping the transaction
//! rolls it back.

use postrider_core::{
    Result,
    enlist::{Batch, Enlist},
    envelope::Envelope,
    time::Timestamp,
};

use crate::MemoryStore;

/// What an outbox is made of for this store: nothing but a name, since there is only one log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory;

/// An open transaction. Dropping it rolls it back.
#[must_use = "a transaction that is not committed is rolled back"]
pub struct MemoryTransaction {
    store: MemoryStore,
    enqueued: Vec<(Envelope, Timestamp)>,
}

/// A place in a transaction to which it can be rolled back.
#[derive(Clone, Copy, Debug)]
pub struct Savepoint(usize);

impl MemoryTransaction {
    pub(crate) fn new(store: MemoryStore) -> Self {
        Self { store, enqueued: Vec::new() }
    }

    /// Remembers this place.
    pub fn savepoint(&mut self) -> Savepoint {
        Savepoint(self.enqueued.len())
    }

    /// Takes back what was enqueued since then.
    pub fn roll_back_to(&mut self, savepoint: Savepoint) {
        self.enqueued.truncate(savepoint.0);
    }

    /// Makes everything visible at once.
    pub fn commit(self) {
        if self.enqueued.is_empty() {
            return;
        }
        self.store.transact(|state, _| state.records.append(self.enqueued));
        self.store.ring();
    }

    /// Takes everything back.
    pub fn roll_back(self) {}
}

impl Enlist<Memory> for MemoryTransaction {
    type Appended<'a> = Result<()>;

    fn append<'a>(&'a mut self, _: &'a Memory, batch: Result<Batch>) -> Result<()> {
        let enqueued_at = self.store.now();
        self.enqueued.extend(batch?.envelopes().iter().map(|envelope| (envelope.clone(), enqueued_at)));
        Ok(())
    }
}

impl std::fmt::Debug for MemoryTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryTransaction {{ enqueued: {} }}", self.enqueued.len())
    }
}
