//! The memory store keeps every promise of a store.

use std::{sync::Arc, time::Duration};

use postrider_core::{
    BoxFuture, admin::StoreAdmin, enlist::Enlist, envelope::Envelope, limits::Limits, log::Log, time::Timestamp,
};
use postrider_store_memory::{ManualClock, Memory, MemoryStore, MemoryTransaction, Savepoint};
use postrider_testkit::store::{Fixture, OpenTransaction};

mod manual_clock {
    use super::*;

    async fn fresh() -> Arc<dyn Fixture> {
        let clock = ManualClock::at(Timestamp::now());
        Arc::new(MemoryFixture { store: MemoryStore::with_clock(clock.clone()), clock: Some(clock) })
    }

    postrider_testkit::store_conformance!(fresh);
}

mod process_clock {
    use super::*;

    async fn fresh() -> Arc<dyn Fixture> {
        Arc::new(MemoryFixture { store: MemoryStore::new(), clock: None })
    }

    postrider_testkit::store_conformance!(fresh);
}

struct MemoryFixture {
    store: MemoryStore,
    clock: Option<ManualClock>,
}

impl Fixture for MemoryFixture {
    fn log(&self) -> Arc<dyn Log> {
        Arc::new(self.store.clone())
    }

    fn admin(&self) -> Arc<dyn StoreAdmin> {
        Arc::new(self.store.clone())
    }

    fn begin(&self) -> BoxFuture<'_, Box<dyn OpenTransaction>> {
        let open = Open { transaction: self.store.begin(), savepoint: None };
        Box::pin(async move { Box::new(open) as Box<dyn OpenTransaction> })
    }

    fn now(&self) -> BoxFuture<'_, Timestamp> {
        Box::pin(async { self.store.now() })
    }

    fn pass(&self, span: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            match &self.clock {
                Some(clock) => clock.advance(span),
                None => tokio::time::sleep(span).await,
            }
        })
    }
}

struct Open {
    transaction: MemoryTransaction,
    savepoint: Option<Savepoint>,
}

impl OpenTransaction for Open {
    fn append(&mut self, envelopes: Vec<Envelope>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.transaction.append(&Memory, Limits::default().check(envelopes)).expect("append a batch");
        })
    }

    fn savepoint(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.savepoint = Some(self.transaction.savepoint()) })
    }

    fn roll_back_to_savepoint(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.transaction.roll_back_to(self.savepoint.expect("a savepoint was set")) })
    }

    fn commit(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async { self.transaction.commit() })
    }

    fn roll_back(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async { self.transaction.roll_back() })
    }
}
