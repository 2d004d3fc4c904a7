//! The relays: they take a lane, read and settle for a while, and drop everything; they sleep through their leases and go
//! on as if nothing had been; their connections are killed under them; and some are killed themselves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use mysql_async::{TxOpts, prelude::Queryable};
use postrider_core::{
    lease::{LaneId, Node, RouteSpec},
    log::{Log, PageLimit, Retention, Settlement},
};
use postrider_store_mysql::MysqlStore;
use postrider_testkit::random::Random;

use crate::{
    support::{connect, node, spec},
    world::World,
};

/// Records of a page: an owner takes one of these.
const PAGES: [u32; 3] = [7, 37, 1_000];

/// Pages that a relay reads between two settlements.
const PAGES_UNSETTLED_MAX: u32 = 10;

const LEASE: Duration = Duration::from_millis(500);

/// Registrations that fail one after the other before it is given up: there are not so many kills.
const FAILURES_MAX: u32 = 1_000;

/// Takes one lane after the other, again and again. Ends when all is written and every lane read to its end.
pub(crate) async fn run(world: World, seed: u64) {
    let store = world.store().await;
    take_turns(&world, &store, &mut Random::new(seed), None).await;
}

/// Relays that are killed, one after the other, while they have a lane: all that one does ends wherever it is, also in the
/// middle of a transaction, and its connections close without a word. Ends when everything is read.
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
                take_turns(&world, &store, &mut Random::new(seed), Some(&owns)).await;
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
        world.died.fetch_add(u64::from(owns.load(Ordering::SeqCst)), Ordering::SeqCst);
        // The others have their turns in between.
        tokio::time::sleep(2 * LEASE).await;
    }
}

/// `owns` says of one that is to die whether it has a lane.
async fn take_turns(world: &World, store: &MysqlStore, random: &mut Random, owns: Option<&AtomicBool>) {
    let spec = RouteSpec { lanes: world.load.lanes, ..spec("r") };
    let mut unread: Vec<u32> = (0..world.load.lanes).collect();
    let mut failed = 0;
    while !unread.is_empty() {
        let node = node("r", LEASE);
        // A connection may have been killed; then once more.
        if let Err(error) = store.register(&node, std::slice::from_ref(&spec)).await {
            failed += 1;
            assert!(failed < FAILURES_MAX, "{error:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        failed = 0;
        let limit = PageLimit { records: PAGES[usize::try_from(random.below(3)).unwrap()], bytes: 1 << 20 };
        let wanted = usize::try_from(random.below(unread.len() as u64)).unwrap();
        let lane = LaneId { route: "r".into(), number: unread[wanted] };
        let mut owning = Owning { world, store, node: &node, limit, random: &mut *random, owns };
        let is_read = owning.own(&lane).await == Some(true);
        if let Some(owns) = owns {
            owns.store(false, Ordering::SeqCst);
        }
        if is_read {
            unread.swap_remove(wanted);
        }
        let _ = store.retire(node.id).await;
    }
}

/// A relay that takes a lane.
struct Owning<'a> {
    world: &'a World,
    store: &'a MysqlStore,
    node: &'a Node,
    limit: PageLimit,
    random: &'a mut Random,
    owns: Option<&'a AtomicBool>,
}

impl Owning<'_> {
    /// Whether everything is read. `None`: the lane was not to be had.
    async fn own(&mut self, lane: &LaneId) -> Option<bool> {
        let Self { world, store, node, limit, owns, .. } = *self;
        let random = &mut *self.random;
        let Ok(Some(lease)) = store.acquire(lane, node).await else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            return None;
        };
        let takes = &world.takes[lane.number as usize];
        let take = takes.fetch_add(1, Ordering::SeqCst) + 1;
        if let Some(owns) = owns {
            owns.store(true, Ordering::SeqCst);
        }
        let mut cursor = store.resume(&lease).await.ok()?.cursor;
        let (mut number, mut pages, mut unsettled, mut beaten) = (0, 0, 0, Instant::now());
        for _ in 0..20 + random.below(200) {
            if beaten.elapsed() > LEASE / 4 {
                store.heartbeat(node).await.ok()?;
                beaten = Instant::now();
            }
            let all_written = world.is_written();
            let page = match store.read(&lease, &cursor, limit).await {
                Ok(page) => page,
                // Others have passed what comes next, and it is purged.
                Err(error) if error.is_fenced() => {
                    world.fenced.fetch_add(1, Ordering::SeqCst);
                    return Some(false);
                }
                Err(error) if error.is_transient() => return Some(false),
                Err(error) => panic!("{error:?}"),
            };
            world.arrive(page.records.iter().map(|record| record.envelope.id));
            (pages, unsettled) = (pages + 1, unsettled + page.records.len() as u64);
            world.unsettled.fetch_add(page.records.len() as u64, Ordering::SeqCst);
            let is_first = owns.is_none() && world.sleeps_on_purpose(!page.records.is_empty());
            if is_first {
                // One owner at least is fenced in every run.
                let began = Instant::now();
                while takes.load(Ordering::SeqCst) == take && began.elapsed() < PATIENCE {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            } else if random.chance(5) {
                // Longer than the lease, and then on as if nothing had been.
                tokio::time::sleep(LEASE * 3 / 2).await;
            }
            // Now and then only a part of the page counts as published; the rest comes again.
            let part = u32::try_from(random.below(page.records.len().max(1) as u64)).unwrap();
            let advance = if random.chance(50) { (page.marks)(part) } else { page.end.clone() };
            if pages >= PAGES_UNSETTLED_MAX || advance != page.end || is_first || random.chance(300) {
                number += 1;
                let settlement = Settlement { number, advance: Some(advance.clone()), ..Settlement::default() };
                let mut settled = store.settle(&lease, &settlement).await;
                // Its connection may have been killed; what is done on purpose is done all the same.
                while is_first && matches!(&settled, Err(error) if error.is_transient() && !error.is_fenced()) {
                    settled = store.settle(&lease, &settlement).await;
                }
                match settled {
                    Ok(()) if advance == page.end => {
                        world.unsettled.fetch_sub(std::mem::take(&mut unsettled), Ordering::SeqCst);
                        pages = 0;
                    }
                    Err(error) if error.is_fenced() => {
                        world.fenced.fetch_add(1, Ordering::SeqCst);
                        return Some(false);
                    }
                    Ok(()) => return Some(false),
                    Err(error) if error.is_transient() => return Some(false),
                    Err(error) => panic!("{error:?}"),
                }
            }
            cursor = page.end;
            if page.records.is_empty() {
                if all_written && !page.more {
                    return Some(true);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            if random.chance(10) {
                kill(world).await;
            }
        }
        Some(false)
    }
}

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Holds the lock that ordering needs until somebody of the relays waits for it, and kills that one, so that one at least is killed
/// in every run. Ends with it, or when everything is read.
pub(crate) async fn kill_on_purpose(world: World) {
    let killed = world.killed.load(Ordering::SeqCst);
    let mut connection = connect().await;
    let mut holding = connection.start_transaction(TxOpts::default()).await.unwrap();
    let sql = format!("SELECT value FROM {}counter WHERE name = 'place' FOR UPDATE /* {HOLDER} */", world.prefix());
    holding.query_drop(sql).await.unwrap();
    while world.killed.load(Ordering::SeqCst) == killed && !world.is_read() {
        kill(&world).await;
    }
    holding.rollback().await.unwrap();
    connection.disconnect().await.unwrap();
}

/// Whoever says so is no relay.
const HOLDER: &str = "holds it on purpose";

/// Looks that find nobody at work before it is given up.
const LOOKS_MAX: u32 = 200;

/// Kills whoever of the relays is at work on the order list or on the lane, in the middle of it.
async fn kill(world: &World) {
    let mut connection = connect().await;
    let tables =
        ["pending", "ordering", "counter", "lane"].map(|table| format!("info LIKE '%{}{table}%'", world.prefix()));
    // What the trigger does is the writers' work.
    let sql = format!(
        "SELECT id FROM information_schema.processlist
          WHERE id <> CONNECTION_ID() AND ({}) AND info NOT LIKE '%INSERT INTO {}pending%' AND info NOT LIKE '%{HOLDER}%'",
        tables.join(" OR "),
        world.prefix()
    );
    for _ in 0..LOOKS_MAX {
        // MySQL cannot show the list while the text of a statement in it is no UTF-8.
        let found: Vec<u64> = connection.query(&sql).await.unwrap_or_default();
        for id in &found {
            // It may have gone by itself.
            if connection.query_drop(format!("KILL {id}")).await.is_ok() {
                world.killed.fetch_add(1, Ordering::SeqCst);
            }
        }
        if !found.is_empty() {
            break;
        }
    }
    connection.disconnect().await.unwrap();
}

/// Removes what is delivered as soon as it may be.
pub(crate) async fn purge(world: World) {
    let store = world.store().await;
    // Ends when everything is read.
    while !world.is_read() {
        // A connection may have been killed; then another time.
        if let Ok(purged) = store.purge(Retention::by_age(Duration::ZERO)).await {
            world.purged.fetch_add(purged, Ordering::SeqCst);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // And once more, now that everything is passed that ever will be. A connection that was killed last is met here at most.
    let purged = loop {
        match store.purge(Retention::by_age(Duration::ZERO)).await {
            Ok(purged) => break purged,
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
    };
    world.purged.fetch_add(purged, Ordering::SeqCst);
}
