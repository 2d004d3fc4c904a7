//! The relays: they take the lane, read and settle for a while, and drop everything; they sleep through their leases and go
//! on as if nothing had been; and every now and then the server has forgotten where they were.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use postrider_core::{
    Result,
    lease::{LaneId, Node},
    log::{Log, PageLimit, Retention, Settlement},
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
    loop {
        let node = node("r", LEASE);
        if lasts(store.register(&node, &[spec("r")]).await).is_none() {
            continue;
        }
        let limit = PageLimit { records: PAGES[usize::try_from(random.below(3)).unwrap()], bytes: 1 << 20 };
        let over = own(&world, &store, &lane, &node, limit, &mut random).await == Some(true);
        lasts(store.retire(node.id).await);
        if over || world.is_read() {
            world.recoveries.fetch_add(store.recoveries(), Ordering::SeqCst);
            return;
        }
    }
}

/// Whether everything is read. `None`: the lane was not to be had.
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
    world.takes.fetch_add(1, Ordering::SeqCst);
    // Somebody may have it again already.
    let mut cursor = store.resume(&lease).await.ok()?.cursor;
    let (mut number, mut beaten) = (0, Instant::now());
    for _ in 0..20 + random.below(200) {
        if beaten.elapsed() > LEASE / 4 {
            lasts(store.heartbeat(node).await)?;
            beaten = Instant::now();
        }
        let all_written = world.is_written();
        let page = lasts(store.read(&lease, &cursor, limit).await)?;
        world.arrive(page.records.iter().map(|record| record.envelope.id));
        if random.chance(5) {
            // Longer than the lease, and then on as if nothing had been.
            tokio::time::sleep(LEASE * 3 / 2).await;
        }
        // Now and then only a part of the page counts as published; the rest comes again.
        let part = u32::try_from(random.below(page.records.len().max(1) as u64)).unwrap();
        let advance = if random.chance(50) { (page.marks)(part) } else { page.end.clone() };
        if advance != page.end || random.chance(300) {
            number += 1;
            let settlement = Settlement { number, advance: Some(advance.clone()), ..Settlement::default() };
            match store.settle(&lease, &settlement).await {
                Ok(()) if advance == page.end => {}
                Ok(()) => return Some(false),
                Err(error) if error.is_fenced() => {
                    world.fenced.fetch_add(1, Ordering::SeqCst);
                    return Some(false);
                }
                Err(error) => {
                    lasts::<()>(Err(error));
                    return Some(false);
                }
            }
        }
        cursor = page.end;
        if page.records.is_empty() {
            if all_written && !page.more {
                return Some(true);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    Some(false)
}

/// Removes what is delivered as soon as it may be.
pub(crate) async fn purge(world: World) {
    let store = world.store().await;
    // Ends when everything is read.
    while !world.is_read() {
        let purged = lasts(store.purge(Retention { keep: Some(Duration::ZERO) }).await);
        world.purged.fetch_add(purged.unwrap_or(0), Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
