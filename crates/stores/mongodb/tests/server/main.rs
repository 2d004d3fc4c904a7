//! What depends on the server: plain inserts of other languages, migrations that race or are switched off, sessions without a
//! transaction, units of work that are run again, a collection that is dropped, and the counter-examples that the reader was
//! made for.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../support/mod.rs"]
mod support;

mod enqueueing;
mod lanes;
mod migrating;
mod operating;
mod reading;
mod replaced;
mod sharing;
mod shown;
mod units_of_work;

use std::time::Duration;

use postrider_core::{
    envelope::Envelope,
    lease::{LaneId, Lease},
    log::{Cursor, Log, PageLimit, Settlement},
};
use postrider_store_mongodb::MongoStore;

use support::{node, spec};

const HOUR: Duration = Duration::from_hours(1);

fn names(envelopes: &[Envelope]) -> Vec<&str> {
    envelopes.iter().map(|envelope| &*envelope.name).collect()
}

fn named(name: &str) -> Envelope {
    Envelope::new("t", name, "{}").with_key("k")
}

/// A lane in the hands of a test.
struct Reader {
    store: MongoStore,
    lease: Lease,
    cursor: Cursor,
    number: u64,
}

impl Reader {
    async fn of(store: &MongoStore, route: &str) -> Self {
        let node = node(route, HOUR);
        store.register(&node, &[spec(route)]).await.unwrap();
        let lane = LaneId { route: route.into(), number: 0 };
        let lease = store.acquire(&lane, &node).await.unwrap().expect("the lane is free");
        let cursor = store.resume(&lease).await.unwrap().cursor;
        Self { store: store.clone(), lease, cursor, number: 0 }
    }

    /// One page, and the cursor moves along.
    async fn page(&mut self, records: u32) -> (Vec<Envelope>, bool) {
        let page = self.store.read(&self.lease, &self.cursor, PageLimit { records, bytes: 1 << 30 }).await.unwrap();
        self.cursor = page.end;
        (page.records.iter().map(|record| record.envelope.clone()).collect(), page.more)
    }

    /// All that there is.
    async fn rest(&mut self, records: u32) -> Vec<Envelope> {
        let mut all = Vec::new();
        loop {
            let (some, more) = self.page(records).await;
            all.extend(some);
            if !more {
                return all;
            }
        }
    }

    async fn settle(&mut self) {
        self.number += 1;
        let advance = Some(self.cursor.clone());
        let settlement = Settlement { number: self.number, advance, ..Settlement::default() };
        self.store.settle(&self.lease, &settlement).await.unwrap();
    }
}
