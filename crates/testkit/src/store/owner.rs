//! A hand-driven owner of one lane: what the cases use in the place of a relay.

use std::{sync::Arc, time::Duration};

use postrider_core::{
    Result,
    envelope::{Envelope, MessageId},
    lease::{LaneId, Lease, Node, NodeId, Order, RouteSpec, Start},
    log::{Cursor, Log, Page, PageLimit, Record, RecordRef, Settlement},
    parked::{Cause, DueLimit, DuePage, Ordinal, Parked},
    topic::TopicFilter,
};

use super::Fixture;

/// Long enough that it is never over by accident.
pub const HOUR: Duration = Duration::from_hours(1);
/// Short enough to wait for.
pub const SHORT: Duration = Duration::from_millis(40);
/// What to let pass so that [`SHORT`] is over.
pub const LONGER: Duration = Duration::from_millis(60);

/// A page as large as anybody wants.
pub const WHOLE: PageLimit = PageLimit { records: 10_000, bytes: 1 << 30 };
/// A due read as large as anybody wants.
pub const ALL_DUE: DueLimit = DueLimit { lines: 1_000, per_line: 1_000, bytes: 1 << 30 };

/// One lane in the hands of one node.
pub struct Owner {
    log: Arc<dyn Log>,
    /// The node that owns it.
    pub node: Node,
    /// The lease.
    pub lease: Lease,
    /// How far this owner has read. Moving it is not settling.
    pub cursor: Cursor,
    /// The number of the last settlement.
    pub number: u64,
}

impl Owner {
    /// Registers a route on a node of its own and takes its lane 0.
    pub async fn of(store: &dyn Fixture, route: &RouteSpec) -> Self {
        let node = node(&[&route.name], HOUR);
        store.log().register(&node, std::slice::from_ref(route)).await.expect("register a route");
        Self::take(store, &node, &route.name, 0).await
    }

    /// Takes a lane that must be free.
    pub async fn take(store: &dyn Fixture, node: &Node, route: &str, number: u32) -> Self {
        let log = store.log();
        let lane = lane(route, number);
        let lease = log.acquire(&lane, node).await.expect("acquire a lane");
        let lease = lease.unwrap_or_else(|| panic!("lane {lane} is free, so acquire must give it"));
        let cursor = log.resume(&lease).await.expect("resume a lane").cursor;
        Self { log, node: node.clone(), lease, cursor, number: 0 }
    }

    /// One page behind the owner's cursor. The cursor stays.
    pub async fn page(&self, limit: PageLimit) -> Page {
        self.log.read(&self.lease, &self.cursor, limit).await.expect("read a page")
    }

    /// Reads until the store says that there is no more, page by page, and moves the owner's cursor along.
    pub async fn read(&mut self, limit: PageLimit) -> Vec<RecordRef> {
        let mut records = Vec::new();
        // Ends when the store has no more; a store that says "more" for ever is stopped here and told so.
        for _ in 0..100_000 {
            let page = self.page(limit).await;
            let length = u32::try_from(page.records.len()).expect("a page is small");
            records.extend((0..length).map(|i| RecordRef::new(&page.records, i)));
            self.cursor = page.end;
            if !page.more {
                return records;
            }
        }
        panic!("the store says `more` again and again but a read never reaches the end of the log");
    }

    /// Everything new, as message ids.
    pub async fn ids(&mut self) -> Vec<MessageId> {
        ids(self.read(WHOLE).await.iter().map(|record| &**record))
    }

    /// Settles with the next number.
    pub async fn settle(&mut self, settlement: Settlement) -> Result<()> {
        self.number += 1;
        self.log.settle(&self.lease, &Settlement { number: self.number, ..settlement }).await
    }

    /// Moves the stored cursor to where this owner has read.
    pub async fn advance(&mut self) {
        let advance = Some(self.cursor.clone());
        self.settle(Settlement { advance, ..Settlement::default() }).await.expect("advance the cursor");
    }

    /// Commits envelopes, reads them, and passes them by parking each as told. The store must have nothing else unread.
    pub async fn park(&mut self, store: &dyn Fixture, rows: Vec<(Envelope, Parked)>) {
        let (envelopes, states): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let expected: Vec<_> = envelopes.iter().map(|e| e.id).collect();
        store.commit(envelopes).await;
        let records = self.read(WHOLE).await;
        assert_eq!(ids(records.iter().map(|r| &**r)), expected, "what was just committed is read, in order");
        let settlement = Settlement {
            advance: Some(self.cursor.clone()),
            park: records.into_iter().zip(states).collect(),
            ..Settlement::default()
        };
        self.settle(settlement).await.expect("park records");
    }

    /// Changes rows.
    pub async fn change(&mut self, change: Vec<(Ordinal, Parked)>) {
        self.settle(Settlement { change, ..Settlement::default() }).await.expect("change rows");
    }

    /// Removes rows.
    pub async fn remove(&mut self, remove: Vec<Ordinal>) {
        self.settle(Settlement { remove, ..Settlement::default() }).await.expect("remove rows");
    }

    /// What is due now.
    pub async fn due(&self) -> DuePage {
        self.due_within(ALL_DUE).await
    }

    /// What is due now, within a limit.
    pub async fn due_within(&self, limit: DueLimit) -> DuePage {
        self.log.due(&self.lease, limit).await.expect("read due rows")
    }
}

/// A node that can serve these routes.
#[must_use]
pub fn node(routes: &[&str], lease_life: Duration) -> Node {
    let id = NodeId::generate();
    Node {
        id,
        name: format!("node-{id}"),
        routes: routes.iter().map(|&r| r.into()).collect(),
        lease_life,
        standstills: Vec::new(),
    }
}

/// A route that reads everything from the beginning, in order of key, in one lane.
#[must_use]
pub fn route(name: &str) -> RouteSpec {
    RouteSpec { name: name.into(), topics: TopicFilter::all(), order: Order::Key, lanes: 1, start: Start::Oldest }
}

/// A lane by name.
#[must_use]
pub fn lane(route: &str, number: u32) -> LaneId {
    LaneId { route: route.into(), number }
}

/// An envelope without a key.
#[must_use]
pub fn keyless() -> Envelope {
    Envelope::new("orders.placed", "order.placed", "{}")
}

/// An envelope with a key.
#[must_use]
pub fn keyed(key: &str) -> Envelope {
    keyless().with_key(key)
}

/// So many envelopes, each with a key of its own.
#[must_use]
pub fn several(count: usize) -> Vec<Envelope> {
    (0..count).map(|i| keyed(&format!("key-{i}"))).collect()
}

/// The ids of records.
pub fn ids<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<MessageId> {
    records.into_iter().map(|record| record.envelope.id).collect()
}

/// The ids of envelopes.
#[must_use]
pub fn ids_of(envelopes: &[Envelope]) -> Vec<MessageId> {
    envelopes.iter().map(|envelope| envelope.id).collect()
}

/// Retrying after a while, with one attempt made.
#[must_use]
pub fn retrying(after: Duration) -> Parked {
    Parked::Retrying { after, attempts: 1, cause: cause() }
}

/// Dead after ten attempts.
#[must_use]
pub fn dead(blocks: bool) -> Parked {
    Parked::Dead { attempts: 10, cause: cause(), blocks }
}

/// A cause.
#[must_use]
pub fn cause() -> Cause {
    Cause::new("test-cause", "the test says so")
}
