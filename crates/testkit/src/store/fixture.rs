//! What an adapter brings along so that its store can be tested.

use std::{sync::Arc, time::Duration};

use postrider_core::{BoxFuture, admin::StoreAdmin, envelope::Envelope, log::Log, time::Timestamp};

/// A store that is fresh, empty, and seen by nobody else. Dropping it cleans up.
///
/// Methods panic on failure: a fixture that does not work is a failed test.
pub trait Fixture: Send + Sync + 'static {
    /// The relay's side. After [`Self::reopen`] a new one.
    fn log(&self) -> Arc<dyn Log>;

    /// The operator's side. After [`Self::reopen`] a new one.
    fn admin(&self) -> Arc<dyn StoreAdmin>;

    /// Another handle on the same store, as another process would have it, for stores that are `shared`. Default: the
    /// first handle again.
    fn beside(&self) -> BoxFuture<'_, Arc<dyn Log>> {
        Box::pin(std::future::ready(self.log()))
    }

    /// Opens a transaction of the application, which joins the outbox through the store's own `Enlist`. More than one is
    /// open at a time only where the store says `concurrent_writers`.
    fn begin(&self) -> BoxFuture<'_, Box<dyn OpenTransaction>>;

    /// The store's clock.
    fn now(&self) -> BoxFuture<'_, Timestamp>;

    /// Lets time pass by the store's clock: a manual clock jumps, others sleep. At least `span` has passed afterwards.
    fn pass(&self, span: Duration) -> BoxFuture<'_, ()>;

    /// Crashes and opens the store again, without any goodbye. Only called where the store says `durable`.
    fn reopen(&self) -> BoxFuture<'_, ()> {
        panic!("the fixture of a durable store must be able to reopen it")
    }

    /// Enqueues in one transaction and commits it.
    fn commit(&self, envelopes: Vec<Envelope>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut transaction = self.begin().await;
            transaction.append(envelopes).await;
            transaction.commit().await;
        })
    }

    /// Enqueues in one transaction and rolls it back.
    fn roll_back(&self, envelopes: Vec<Envelope>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut transaction = self.begin().await;
            transaction.append(envelopes).await;
            transaction.roll_back().await;
        })
    }
}

/// An open transaction of the application.
pub trait OpenTransaction: Send {
    /// Enqueues through the store's `Enlist`, in one batch.
    fn append(&mut self, envelopes: Vec<Envelope>) -> BoxFuture<'_, ()>;

    /// Sets a savepoint. Only called, and only once per transaction, where the store says `savepoints`.
    fn savepoint(&mut self) -> BoxFuture<'_, ()>;

    /// Rolls back to that savepoint; the transaction stays open.
    fn roll_back_to_savepoint(&mut self) -> BoxFuture<'_, ()>;

    /// Commits.
    fn commit(self: Box<Self>) -> BoxFuture<'static, ()>;

    /// Rolls everything back.
    fn roll_back(self: Box<Self>) -> BoxFuture<'static, ()>;
}
