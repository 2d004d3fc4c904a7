//! Torture: many writers that hold, roll back, set savepoints, write ten thousand at once and prepare; two relays that take
//! the lanes from each other, sleep through their leases and lose their sessions; a ring that is emptied meanwhile; and a server
//! that crashes. A checker compares the producers' own log with what arrived.
//!
//! A torture that finds nothing proves nothing, so the same one is done to readers with a planted mistake, each of which it
//! must catch. Seconds by default; `POSTRIDER_TORTURE_SECONDS` makes it longer, `POSTRIDER_TORTURE_SEED` another one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../support/mod.rs"]
mod support;

#[path = "../clusters/cluster.rs"]
#[allow(dead_code, reason = "each test program uses a part of it")]
mod cluster;

mod crash;
mod relay;
mod world;
mod writer;

use std::time::{Duration, Instant};

use postrider_store_postgres::planted::Plant;
use postrider_testkit::checker::Verdict;

use crate::world::{Load, World};

/// One torture at a time: a second one would only slow down the first.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A planted mistake is given so many runs of a second or two to show itself.
const RUNS_MAX: u64 = 30;

/// The same where each run has a server of its own.
const CRASHING_RUNS_MAX: u64 = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_made_up_or_turned_around() {
    let _alone = ALONE.lock().await;
    let seconds = setting("POSTRIDER_TORTURE_SECONDS", 8);
    let seed = setting("POSTRIDER_TORTURE_SEED", 1);
    let world = World::new(Plant::None, Load::whole(Duration::from_secs(seconds))).await;
    let verdict = torture(&world, seed).await;
    relay::purge_on_purpose(&world).await;
    let counts = world.counts();
    println!("seed {seed}: {counts:?}, {verdict:?}");
    assert!(verdict.is_good(), "seed {seed}: {verdict:?}");
    assert!(verdict.duplicates <= counts.duplicates_max, "seed {seed}: {counts:?}, {verdict:?}");
    // How much of what happened is a matter of the machine; that the run was worth something is not. At least one of each is
    // done on purpose, whatever chance does.
    assert!(verdict.committed > 1_000 && counts.takes > 3 && counts.prepared > 0, "{counts:?}");
    assert!(counts.bulks > 0, "one transaction of {} messages at least: {counts:?}", world.load.bulk);
    assert!(counts.fenced > 0 && counts.killed > 0 && counts.purged > 0, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_ring_turns_while_it_is_written_and_read() {
    let _alone = ALONE.lock().await;
    // Given as long as it takes, for how fast it turns is a matter of the machine.
    let mut purged = 0;
    for run in 1..=RUNS_MAX {
        let world = World::new(Plant::None, Load::brief(Duration::from_secs(3))).await;
        let verdict = torture(&world, run).await;
        let counts = world.counts();
        println!("run {run}: {counts:?}, {verdict:?}");
        assert!(verdict.is_good() && verdict.duplicates <= counts.duplicates_max, "{counts:?}, {verdict:?}");
        // Eight leaves of 64 numbers: more than twice round.
        purged += counts.purged;
        if purged > 1_024 {
            return;
        }
    }
    panic!("in {RUNS_MAX} runs the ring did not turn");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_planted_mistake_is_caught() {
    let _alone = ALONE.lock().await;
    for plant in [
        Plant::IdCursor,
        Plant::BelowXmin,
        Plant::XmaxIsNotYetBegun,
        Plant::NextBeforeLast,
        Plant::LastBeforeTarget,
        Plant::PositionWithoutTarget,
        Plant::SequenceCache,
    ] {
        let began = Instant::now();
        let mut caught = None;
        for run in 1..=RUNS_MAX {
            let world = World::new(plant, Load::brief(Duration::from_millis(1_200))).await;
            let verdict = torture(&world, run).await;
            if is_caught(plant, &verdict) {
                caught = Some((run, verdict));
                break;
            }
        }
        let Some((run, verdict)) = caught else { panic!("{plant:?} was not caught in {RUNS_MAX} runs") };
        let Verdict { committed, lost, out_of_order, .. } = verdict;
        println!("{plant:?}: run {run}, {:?}: {lost} of {committed} lost, {out_of_order} turned", began.elapsed());
    }
}

/// The same on a server that crashes: what a reader remembers of its snapshots is worth nothing then.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_base_that_is_kept_over_a_lost_connection_is_caught() {
    let _alone = ALONE.lock().await;
    let load = Load::brief(Duration::from_millis(200));
    let world = World::crashing(Plant::None, load).await;
    let verdict = torture(&world, 1).await;
    println!("{} crashes: {:?}, {verdict:?}", world.crashes(), world.counts());
    assert!(verdict.is_good(), "{:?}, {verdict:?}", world.counts());
    // Two crashes a run. The server may have written everything down just before one of them.
    for run in 1..=CRASHING_RUNS_MAX {
        let world = World::crashing(Plant::BaseKeptOverLostConnection, load).await;
        let Verdict { committed, lost, .. } = torture(&world, run).await;
        if lost > 0 {
            return println!("run {run}: {lost} of {committed} lost");
        }
    }
    panic!("it was not caught in {CRASHING_RUNS_MAX} runs");
}

/// A horizon below the oldest transaction loses nothing, it only waits; but it turns keys around.
fn is_caught(plant: Plant, verdict: &Verdict) -> bool {
    if plant == Plant::BelowXmin { verdict.out_of_order > 0 } else { verdict.lost > 0 }
}

/// Writes for as long as the load says, reads to the end, and judges.
async fn torture(world: &World, seed: u64) -> Verdict {
    let deadline = Instant::now() + world.load.time;
    let writing = async {
        let writers =
            (0..world.load.writers).map(|i| tokio::spawn(writer::run(world.clone(), seed * 1_000 + i, deadline)));
        let large = tokio::spawn(writer::write_bulk(world.clone(), seed));
        let bystanders = world.load.bystanders.then(|| tokio::spawn(writer::stand_by(world.clone())));
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap();
        }
        large.await.unwrap();
        world.all_is_written();
        if let Some(bystanders) = bystanders {
            bystanders.await.unwrap();
        }
    };
    let relays = [0, 1].map(|i| tokio::spawn(relay::run(world.clone(), seed * 100 + i)));
    let crashes = world.crashing_server().is_some();
    let crashing = crashes.then(|| tokio::spawn(crash::crash_on_purpose(world.clone())));
    let purging = (!crashes).then(|| tokio::spawn(relay::purge(world.clone())));
    let killing = (!crashes && world.plant == Plant::None).then(|| tokio::spawn(relay::kill_on_purpose(world.clone())));
    writing.await;
    if let Some(crashing) = crashing {
        crashing.await.unwrap();
    }
    for relay in relays {
        relay.await.unwrap();
    }
    world.all_is_read();
    if let Some(killing) = killing {
        killing.await.unwrap();
    }
    if let Some(purging) = purging {
        purging.await.unwrap();
    }
    world.verdict()
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}
