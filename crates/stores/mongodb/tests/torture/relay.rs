//! The relays: they take the lane, read and settle for a while, and drop everything; they sleep through their leases and go
//! on as if nothing had been; and every now and then the server has forgotten where they were. Some messages are refused at
//! first: they are parked, what their key has behind them is held, and all of it goes on from its rows. And some are killed.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
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

/// Pages that a relay reads between two settlements.
const PAGES_UNSETTLED_MAX: u64 = 10;

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
    take_turns(&world, &store, &mut random, &AtomicBool::new(false)).await;
}

/// Relays that are killed, one after the other, while they have the lane: all that one does ends wherever it is, also in the
/// middle of a transaction, which stays open. Ends when everything is read.
pub(crate) async fn run_and_die(world: World, seed: u64) {
    let mut random = Random::new(seed);
    while !world.is_read() {
        // A process, so to speak: nothing of it is left when its runtime is gone.
        let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (owns, seed) = (Arc::new(AtomicBool::new(false)), random.draw());
        let dying = process.spawn({
            let (world, owns) = (world.clone(), Arc::clone(&owns));
            async move {
                let store = world.store().await;
                take_turns(&world, &store, &mut Random::new(seed), &owns).await;
            }
        });
        while !owns.load(Ordering::SeqCst) && !dying.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if dying.is_finished() {
            // Everything is read, or it has failed.
            dying.await.unwrap();
            process.shutdown_background();
            continue;
        }
        tokio::time::sleep(Duration::from_millis(random.below(60))).await;
        process.shutdown_background();
        world.killed.fetch_add(u64::from(owns.load(Ordering::SeqCst)), Ordering::SeqCst);
        // The others have their turns in between.
        tokio::time::sleep(2 * LEASE).await;
    }
}

async fn take_turns(world: &World, store: &MongoStore, random: &mut Random, owns: &AtomicBool) {
    let lane = LaneId { route: "r".into(), number: 0 };
    loop {
        let node = node("r", LEASE);
        if lasts(store.register(&node, &[spec("r")]).await).is_none() {
            continue;
        }
        let limit = PageLimit { records: PAGES[usize::try_from(random.below(3)).unwrap()], bytes: 1 << 20 };
        let mut owning = Owning { world, store, node: &node, limit, random: &mut *random, owns };
        let over = owning.own(&lane).await == Some(true);
        owns.store(false, Ordering::SeqCst);
        lasts(store.retire(node.id).await);
        if over || world.is_read() {
            // Whoever sleeps until somebody takes its lane need not wait for this one.
            world.all_is_read();
            return;
        }
    }
}

/// A relay that takes the lane.
struct Owning<'a> {
    world: &'a World,
    store: &'a MongoStore,
    node: &'a Node,
    limit: PageLimit,
    random: &'a mut Random,
    /// Whether it has it.
    owns: &'a AtomicBool,
}

impl Owning<'_> {
    /// Whether everything is read. `None`: the lane was not to be had, or the set has lost its primary.
    async fn own(&mut self, lane: &LaneId) -> Option<bool> {
        let Self { world, store, node, limit, owns, .. } = *self;
        let random = &mut *self.random;
        let Some(lease) = lasts(store.acquire(lane, node).await)? else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            return None;
        };
        let takes = world.takes.fetch_add(1, Ordering::SeqCst);
        owns.store(true, Ordering::SeqCst);
        let sleeps_at = (takes % SLEEPS_EVERY == 1).then(|| random.below(15));
        // Somebody may have it again already.
        let resumed = store.resume(&lease).await.ok()?;
        let lines = resumed.blocked.iter().map(|blocked| blocked.key).collect();
        let mut owner = Owner { world, store, lease, lines, number: 0 };
        let (mut cursor, mut beaten) = (resumed.cursor, Instant::now());
        // Pages that are read and not settled, and their records.
        let (mut pages, mut records) = (0, 0);
        for round in 0..20 + random.below(200) {
            if beaten.elapsed() > LEASE / 4 {
                lasts(store.heartbeat(node).await)?;
                beaten = Instant::now();
            }
            if !owner.lines.is_empty() && !owner.run_due().await? {
                return Some(false);
            }
            let all_written = world.is_written();
            let scans = store.recoveries();
            let page = store.read(&owner.lease, &cursor, limit).await;
            world.recoveries.fetch_add(store.recoveries() - scans, Ordering::SeqCst);
            let page = lasts(page)?;
            let length = page.records.len() as u64;
            (pages, records) = (pages + 1, records + length);
            world.unsettled.fetch_add(length, Ordering::SeqCst);
            world.have_read(page.records.iter().map(|record| record.number));
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
            let must_settle = pages == PAGES_UNSETTLED_MAX;
            if must_settle || !whole || sleeps || !park.is_empty() || random.chance(300) {
                let settlement = Settlement { advance: Some(advance), park, ..Settlement::default() };
                if !owner.settle(settlement).await? {
                    return Some(false);
                }
                let left = if whole { 0 } else { length - u64::from(part) };
                world.unsettled.fetch_sub(records - left, Ordering::SeqCst);
                if !whole {
                    return Some(false);
                }
                (pages, records) = (0, 0);
            }
            cursor = page.end;
            if page.records.is_empty() {
                if all_written && !page.more && owner.lines.is_empty() {
                    return Some(true);
                }
                // As a relay does, so that it shares the stream that is open meanwhile.
                let _ = tokio::time::timeout(Duration::from_millis(1), store.hint()).await;
            }
        }
        Some(false)
    }
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
        // They come again if that is not known to be done.
        let count = rows().count() as u64;
        self.world.unsettled.fetch_add(count, Ordering::SeqCst);
        let settled = self.settle(Settlement { remove, ..Settlement::default() }).await?;
        if settled {
            self.world.unsettled.fetch_sub(count, Ordering::SeqCst);
        }
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
