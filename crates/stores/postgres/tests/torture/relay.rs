//! The relays: they take the lanes, read and settle for a while, and drop everything; they sleep through their leases and go
//! on as if nothing had been; and their sessions are ended under them.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use postrider_core::{
    BoxFuture, Result,
    lease::{LaneId, Node, NodeId, Order, RouteSpec, Start},
    log::{Log, PageLimit, Retention, Settlement},
    topic::TopicFilter,
};
use postrider_store_postgres::PostgresStore;
use postrider_testkit::random::Random;
use tokio_postgres::Client;

use crate::world::World;

/// Records of a page: an owner takes one of these.
const PAGES: [u32; 3] = [37, 37, 1_000];

/// Pages that a relay reads between two settlements.
const PAGES_UNSETTLED_MAX: u64 = 10;

const LEASE: Duration = Duration::from_millis(500);

/// Where the server crashes, an owner outlives it: what it does then is what is looked at.
const LONG_LEASE: Duration = Duration::from_secs(600);

/// One relay: takes the lanes again and again, each on behalf of a node of its own. Ends when all is written and read.
pub(crate) async fn run(world: World, seed: u64) {
    let store = world.store().await;
    let lanes = world.lanes().map(|lane| {
        let seed = seed * 100 + u64::from(lane.number);
        tokio::spawn(run_lane(world.clone(), store.clone(), lane, seed))
    });
    for lane in lanes.collect::<Vec<_>>() {
        lane.await.unwrap();
    }
}

async fn run_lane(world: World, store: PostgresStore, lane: LaneId, seed: u64) {
    let (mut random, routes) = (Random::new(seed), [spec(&world)]);
    let own_node = node(&world);
    loop {
        // A crash may take back that a node has retired or taken the lane. Then the lane is that of a node which still asks for it.
        let node = if world.crashing_server().is_some() { own_node.clone() } else { node(&world) };
        patiently(&world, || store.register(&node, &routes)).await.unwrap();
        if patiently(&world, || store.acquire(&lane, &node)).await.unwrap().is_none() {
            patiently(&world, || store.retire(node.id)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        let records = PAGES[usize::try_from(random.below(3)).unwrap()];
        let limit = PageLimit { records, bytes: 1 << 20 };
        let done = own(&world, &store, &lane, &node, limit, &mut random).await;
        patiently(&world, || store.retire(node.id)).await.unwrap();
        if done {
            return;
        }
        world.takes.fetch_add(1, Ordering::SeqCst);
        world.duplicates_max.fetch_add((PAGES_UNSETTLED_MAX + 1) * u64::from(records), Ordering::SeqCst);
    }
}

/// Repeats what fails because the server is gone, if it is one that crashes.
async fn patiently<'f, T>(world: &World, mut work: impl FnMut() -> BoxFuture<'f, Result<T>>) -> Result<T> {
    let began = Instant::now();
    loop {
        match work().await {
            Err(error) if world.crashing_server().is_some() && !error.is_fenced() && began.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            outcome => return outcome,
        }
    }
}

fn node(world: &World) -> Node {
    Node {
        id: NodeId::generate(),
        name: "relay".into(),
        routes: vec!["r".into()],
        lease_life: if world.crashing_server().is_some() { LONG_LEASE } else { LEASE },
        standstills: Vec::new(),
    }
}

fn spec(world: &World) -> RouteSpec {
    let lanes = world.load.lanes;
    RouteSpec { name: "r".into(), topics: TopicFilter::all(), order: Order::Key, lanes, start: Start::Oldest }
}

/// Returns whether everything is read.
async fn own(
    world: &World,
    store: &PostgresStore,
    lane: &LaneId,
    node: &Node,
    limit: PageLimit,
    random: &mut Random,
) -> bool {
    // Somebody may have been quicker, if this took longer than the lease.
    let Some(lease) = patiently(world, || store.acquire(lane, node)).await.unwrap() else { return false };
    let owners = &world.owners[lane.number as usize];
    owners.fetch_add(1, Ordering::SeqCst);
    let Ok(resumed) = patiently(world, || store.resume(&lease)).await else { return false };
    let mut cursor = resumed.cursor;
    let (mut number, mut unsettled, mut beaten) = (0, 0, Instant::now());
    for _ in 0..20 + random.below(400) {
        if beaten.elapsed() > LEASE / 4 {
            patiently(world, || store.heartbeat(node)).await.unwrap();
            beaten = Instant::now();
        }
        let all_written = world.is_written();
        let page = match patiently(world, || store.read(&lease, &cursor, limit)).await {
            Ok(page) => page,
            Err(error) if error.is_fenced() => {
                world.fenced.fetch_add(1, Ordering::SeqCst);
                return false;
            }
            // Its session was ended.
            Err(error) if error.is_transient() => return false,
            Err(error) => panic!("{error:?}"),
        };
        world.arrive(page.records.iter().map(|record| record.envelope.id));
        world.reads.fetch_add(1, Ordering::SeqCst);
        unsettled += 1;
        let is_first = world.sleeps_on_purpose(!page.records.is_empty());
        if is_first {
            until_taken(owners).await;
        } else if random.chance(2) {
            // Longer than the lease, and then on as if nothing had been.
            tokio::time::sleep(LEASE * 3 / 2).await;
        }
        // Now and then only a part of the page counts as published; the rest comes again.
        let part = u32::try_from(random.below(page.records.len().max(1) as u64)).unwrap();
        let advance = if random.chance(100) { (page.marks)(part) } else { page.end.clone() };
        if unsettled == PAGES_UNSETTLED_MAX || advance != page.end || is_first || random.chance(200) {
            number += 1;
            let settlement = Settlement { number, advance: Some(advance.clone()), ..Settlement::default() };
            match patiently(world, || store.settle(&lease, &settlement)).await {
                Ok(()) => unsettled = 0,
                Err(error) if error.is_fenced() => {
                    world.fenced.fetch_add(1, Ordering::SeqCst);
                    return false;
                }
                Err(error) => panic!("{error:?}"),
            }
            if advance != page.end {
                return false;
            }
        }
        cursor = page.end;
        if page.records.is_empty() {
            if all_written && !page.more {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if world.crashing_server().is_none() && random.chance(5) {
            end_sessions(world, &world.connect().await).await;
        }
    }
    false
}

/// Longer than anything takes on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Until somebody else has taken the lane, so that one owner at least is fenced in every run.
async fn until_taken(owners: &AtomicU64) {
    let (own, began) = (owners.load(Ordering::SeqCst), Instant::now());
    while owners.load(Ordering::SeqCst) == own && began.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Empties leaves as soon as they may be, and sooner if the store lets it.
pub(crate) async fn purge(world: World) {
    let store = world.store().await;
    // Ends when everything is read.
    while !world.is_read() {
        let purged = store.purge(Retention::by_age(Duration::ZERO)).await.unwrap();
        world.purged.fetch_add(purged, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Goes on behind the relays, once everything is read, until a leaf is emptied, so that no run goes without: what keeps the
/// bound down may be a transaction of anybody on this server. What is read here has arrived before, or is lost.
pub(crate) async fn purge_on_purpose(world: &World) {
    let (store, client, node) = (world.store().await, world.connect().await, node(world));
    store.register(&node, &[spec(world)]).await.unwrap();
    let began = Instant::now();
    let in_time = || assert!(began.elapsed() < PATIENCE, "a leaf that everybody has passed is emptied");
    let mut owned = Vec::new();
    for lane in world.lanes() {
        let lease = loop {
            if let Some(lease) = store.acquire(&lane, &node).await.unwrap() {
                break lease;
            }
            in_time();
            store.heartbeat(&node).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let cursor = store.resume(&lease).await.unwrap().cursor;
        owned.push((lease, cursor));
    }
    let limit = PageLimit { records: 10_000, bytes: 1 << 24 };
    let mut number = 0;
    while world.purged.load(Ordering::SeqCst) == 0 {
        in_time();
        store.heartbeat(&node).await.unwrap();
        // Something has ended, so there is a round to be made.
        client.execute("SELECT pg_current_xact_id()", &[]).await.unwrap();
        number += 1;
        for (lease, cursor) in &mut owned {
            *cursor = store.read(lease, cursor, limit).await.unwrap().end;
            let settlement = Settlement { number, advance: Some(cursor.clone()), ..Settlement::default() };
            store.settle(lease, &settlement).await.unwrap();
        }
        let purged = store.purge(Retention::by_age(Duration::ZERO)).await.unwrap();
        world.purged.fetch_add(purged, Ordering::SeqCst);
    }
}

/// Ends a session at least, so that one is lost in every run. Ends with it, or when everything is read.
pub(crate) async fn kill_on_purpose(world: World) {
    let client = world.connect().await;
    while world.killed.load(Ordering::SeqCst) == 0 && !world.is_read() {
        end_sessions(&world, &client).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Ends the sessions of this test's readers, as a crash or a network would.
async fn end_sessions(world: &World, client: &Client) {
    let sql = "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid))
                 FROM pg_stat_activity
                WHERE query LIKE $1 AND pid <> pg_backend_pid()
                  AND application_name = 'postrider' AND query LIKE '%pg_visible_in_snapshot%'";
    let ended: i64 = client.query_one(sql, &[&format!("%{}%", world.schema())]).await.unwrap().get(0);
    world.killed.fetch_add(ended.unsigned_abs(), Ordering::SeqCst);
}
