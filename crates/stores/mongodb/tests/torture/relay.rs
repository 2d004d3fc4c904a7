//! The relays: they take the lane, read and settle for a while, and drop everything; they sleep through their leases and go
//! on as if nothing had been; and every now and then the server has forgotten where they were. Some messages are refused at
//! first: they are parked, what their key has behind them is held, and all of it goes on from its rows.

use std::{
    collections::HashSet,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use postrider_core::{
    Result,
    envelope::MessageId,
    key::KeyHash,
    lease::{LaneId, Lease, Node},
    log::{Log, Page, PageLimit, RecordRef, Retention, Settlement},
    parked::{Cause, DueLimit, Parked},
};
use postrider_store_mongodb::MongoStore;
use postrider_testkit::random::Random;

use crate::{
    support::{node, spec},
    world::World,
};

/// Records of a page: an owner takes one of these.
const PAGES: [u32; 3] = [7, 37, 1_000];

const LEASE: Duration = Duration::from_millis(500);

/// One of so many messages is refused when it is read.
const REFUSED_EVERY: u64 = 40;

/// One of so many owners sleeps through its lease.
const SLEEPS_EVERY: u64 = 3;

/// What was answered. `None`: the set has lost its primary, and whoever asked drops everything.
fn lasts<T>(answer: Result<T>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(error) => {
            assert!(error.is_transient(), "{error:?}");
            None
        }
    }
}

/// Takes the lane again and again. Ends when all is written and read.
pub(crate) async fn run(world: World, seed: u64) {
    let mut random = Random::new(seed);
    let store = world.store().await;
    let lane = LaneId { route: "r".into(), number: 0 };
    let mut scans = 0;
    loop {
        let node = node("r", LEASE);
        if lasts(store.register(&node, &[spec("r")]).await).is_none() {
            continue;
        }
        let limit = PageLimit { records: PAGES[usize::try_from(random.below(3)).unwrap()], bytes: 1 << 20 };
        let over = own(&world, &store, &lane, &node, limit, &mut random).await == Some(true);
        lasts(store.retire(node.id).await);
        let before = std::mem::replace(&mut scans, store.recoveries());
        world.recoveries.fetch_add(scans - before, Ordering::SeqCst);
        if over || world.is_read() {
            // Whoever sleeps until somebody takes its lane need not wait for this one.
            world.all_is_read();
            return;
        }
    }
}

/// Whether everything is read. `None`: the lane was not to be had, or the set has lost its primary.
async fn own(
    world: &World,
    store: &MongoStore,
    lane: &LaneId,
    node: &Node,
    limit: PageLimit,
    random: &mut Random,
) -> Option<bool> {
    let Some(lease) = lasts(store.acquire(lane, node).await)? else {
        tokio::time::sleep(Duration::from_millis(5)).await;
        return None;
    };
    let takes = world.takes.fetch_add(1, Ordering::SeqCst);
    let sleeps_at = (takes % SLEEPS_EVERY == 1).then(|| random.below(15));
    // Somebody may have it again already.
    let resumed = store.resume(&lease).await.ok()?;
    let lines = resumed.blocked.iter().map(|blocked| blocked.key).collect();
    let mut owner = Owner { world, store, lease, lines, number: 0 };
    let (mut cursor, mut beaten) = (resumed.cursor, Instant::now());
    for round in 0..20 + random.below(200) {
        if beaten.elapsed() > LEASE / 4 {
            lasts(store.heartbeat(node).await)?;
            beaten = Instant::now();
        }
        if !owner.lines.is_empty() && !owner.run_due().await? {
            return Some(false);
        }
        let all_written = world.is_written();
        let page = lasts(store.read(&owner.lease, &cursor, limit).await)?;
        let (arrived, park) = owner.divide(&page);
        world.arrive(arrived.into_iter());
        let sleeps = sleeps_at == Some(round);
        if sleeps {
            // Longer than the lease, and then on as if nothing had been.
            until_taken(world).await;
        }
        // Now and then only a part of the page counts as published; the rest comes again. What is parked is passed.
        let part = u32::try_from(random.below(page.records.len().max(1) as u64)).unwrap();
        let advance = if park.is_empty() && random.chance(50) { (page.marks)(part) } else { page.end.clone() };
        let whole = advance == page.end;
        if !whole || sleeps || !park.is_empty() || random.chance(300) {
            let settlement = Settlement { advance: Some(advance), park, ..Settlement::default() };
            if !owner.settle(settlement).await? || !whole {
                return Some(false);
            }
        }
        cursor = page.end;
        if page.records.is_empty() {
            if all_written && !page.more && owner.lines.is_empty() {
                return Some(true);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    Some(false)
}

/// Until somebody else has taken the lane, so that an owner who sleeps is fenced, whatever chance does. Ends with it, or when the
/// other has read everything, or after a while: then it was no sleep that anybody has noticed.
async fn until_taken(world: &World) {
    let takes = || world.takes.load(Ordering::SeqCst);
    let (own, began) = (takes(), Instant::now());
    while takes() == own && !world.is_read() && began.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Longer than a takeover takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// An owner of the lane.
struct Owner<'a> {
    world: &'a World,
    store: &'a MongoStore,
    lease: Lease,
    /// Keys that have parked rows: what the log has of them is held.
    lines: HashSet<KeyHash>,
    number: u64,
}

impl Owner<'_> {
    /// What arrives of a page, and what is parked.
    fn divide(&mut self, page: &Page) -> (Vec<MessageId>, Vec<(RecordRef, Parked)>) {
        let (mut arrived, mut park) = (Vec::new(), Vec::new());
        for (index, record) in (0..).zip(page.records.iter()) {
            let key = record.key.unwrap();
            let refused = self.world.read.fetch_add(1, Ordering::SeqCst) % REFUSED_EVERY == REFUSED_EVERY - 1;
            if self.lines.contains(&key) {
                park.push((RecordRef::new(&page.records, index), Parked::Held));
            } else if refused {
                let (after, cause) = (Duration::from_millis(20), Cause::new("refused", "at first"));
                park.push((RecordRef::new(&page.records, index), Parked::Retrying { after, attempts: 1, cause }));
                self.lines.insert(key);
            } else {
                arrived.push(record.envelope.id);
            }
        }
        (arrived, park)
    }

    /// Delivers the rows whose time has come. `Some(false)`: the lane is somebody else's.
    async fn run_due(&mut self) -> Option<bool> {
        let limit = DueLimit { lines: 100, per_line: 50, bytes: 1 << 20 };
        let page = match self.store.due(&self.lease, limit).await {
            Err(error) if error.is_fenced() => return Some(false),
            answer => lasts(answer)?,
        };
        if page.lines.is_empty() {
            return Some(true);
        }
        let rows = || page.lines.iter().flat_map(|line| &line.rows);
        self.world.arrive(rows().map(|row| row.record.envelope.id));
        let remove = rows().map(|row| row.ordinal).collect();
        let settled = self.settle(Settlement { remove, ..Settlement::default() }).await?;
        for line in page.lines.iter().filter(|line| settled && !line.more) {
            self.lines.remove(&line.key);
        }
        Some(settled)
    }

    /// `Some(false)`: the lane is somebody else's. `None`: it is not known what became of it.
    async fn settle(&mut self, settlement: Settlement) -> Option<bool> {
        self.number += 1;
        let parked = settlement.park.len() as u64;
        match self.store.settle(&self.lease, &Settlement { number: self.number, ..settlement }).await {
            Ok(()) => {
                self.world.parked.fetch_add(parked, Ordering::SeqCst);
                Some(true)
            }
            Err(error) if error.is_fenced() => {
                self.world.fenced.fetch_add(1, Ordering::SeqCst);
                Some(false)
            }
            Err(error) => lasts(Err(error)),
        }
    }
}

/// Removes what is delivered as soon as it may be.
pub(crate) async fn purge(world: World) {
    let store = world.store().await;
    // Ends when everything is read.
    while !world.is_read() {
        let purged = lasts(store.purge(Retention::by_age(Duration::ZERO)).await);
        world.purged.fetch_add(purged.unwrap_or(0), Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
