//! Torture: writers that hold, roll back and are ended by the server, and two relays that take the lane from each other, sleep
//! through their leases, forget where they were, park what is refused, and drop everything in mid-read, while the log is
//! emptied behind them; on servers of their own, members and relays that are killed. A checker compares the producers' own log
//! with what arrived.
//!
//! A torture that finds nothing proves nothing, so the same one is done to readers with a planted mistake, each of which it
//! must catch. Seconds by default; `POSTRIDER_TORTURE_SECONDS` makes it longer, `POSTRIDER_TORTURE_SEED` another one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../support/mod.rs"]
mod support;

mod relay;
mod world;
mod writer;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use postrider_store_mongodb::planted::Plant;
use postrider_testkit::checker::Verdict;

use crate::{support::servers::ReplicaSet, world::World};

/// One torture at a time: a second one would only slow down the first.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A planted mistake is given so many runs to show itself.
const RUNS_MAX: u64 = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_made_up_or_turned_around() {
    let _alone = ALONE.lock().await;
    let seconds = setting("POSTRIDER_TORTURE_SECONDS", 6);
    let seed = setting("POSTRIDER_TORTURE_SEED", 1);
    let world = World::new(Plant::None, Duration::from_secs(seconds), 30).await;
    let verdict = torture(&world, seed, || world.counts().are_complete()).await;
    let counts = world.counts();
    println!("seed {seed}: {counts:?}, {verdict:?}");
    assert!(verdict.is_good(), "seed {seed}: {verdict:?}");
    assert!(verdict.duplicates <= counts.duplicates_max, "seed {seed}: {counts:?}, {verdict:?}");
    // How much of what happened is a matter of the machine; that the run was worth something is not. It goes on until everything
    // has happened once.
    assert!(verdict.committed > 100 && verdict.rolled_back > 0, "{verdict:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_planted_mistake_is_caught() {
    let _alone = ALONE.lock().await;
    for plant in [Plant::AtCursor, Plant::NoOverlap] {
        let began = Instant::now();
        let mut caught = None;
        for run in 1..=RUNS_MAX {
            let world = World::new(plant, Duration::from_millis(1_500), 30).await;
            let verdict = torture(&world, run, || true).await;
            if !verdict.is_good() {
                caught = Some((run, verdict));
                break;
            }
        }
        let Some((run, verdict)) = caught else { panic!("{plant:?} was not caught in {RUNS_MAX} runs") };
        let Verdict { committed, lost, out_of_order, .. } = verdict;
        println!("{plant:?}: run {run}, {:?}: {lost} of {committed} lost, {out_of_order} turned", began.elapsed());
    }
}

/// The members of a set end what a process has left open after so long: a killed relay leaves its transaction, and with it the
/// lane.
const BRIEF_TRANSACTIONS: [&str; 2] = ["--setParameter", "transactionLifetimeLimitSeconds=2"];

/// On a set of three members: the primary steps down or is killed again and again while everybody works, and so are relays.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fail_overs_under_load_lose_nothing() {
    let _alone = ALONE.lock().await;
    let seconds = setting("POSTRIDER_TORTURE_SECONDS", 12);
    let seed = setting("POSTRIDER_TORTURE_SEED", 1);
    let mut set = ReplicaSet::start_with(&BRIEF_TRANSACTIONS).await;
    let world = World::on(&set.url(), Plant::None, Duration::from_secs(seconds), 30).await;
    let (faults, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let failing = tokio::spawn({
        let (faults, over) = (Arc::clone(&faults), Arc::clone(&over));
        async move {
            // Ends when everything is written.
            while !over.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(1_000)).await;
                if faults.load(Ordering::SeqCst) % 2 == 0 {
                    set.step_down().await;
                } else {
                    set.kill_primary().await;
                }
                faults.fetch_add(1, Ordering::SeqCst);
            }
            // The set stays until everything is read.
            set
        }
    });
    let faults = || faults.load(Ordering::SeqCst);
    // A step-down and a kill at least, however long they take.
    let is_enough = || {
        let counts = world.counts();
        let enough = faults() > 1 && counts.killed > 1 && counts.are_complete();
        over.store(enough, Ordering::SeqCst);
        enough
    };
    let dying = tokio::spawn(relay::run_and_die(world.clone(), seed));
    let verdict = torture(&world, seed, is_enough).await;
    dying.await.unwrap();
    let _set = failing.await.unwrap();
    let counts = world.counts();
    println!("{} fail-overs, {counts:?}, {verdict:?}", faults());
    assert!(verdict.is_good(), "seed {seed}: {verdict:?}");
    assert!(verdict.duplicates <= counts.duplicates_max, "seed {seed}: {counts:?}, {verdict:?}");
    assert!(verdict.committed > 100, "{verdict:?}");
}

/// Longer than a torture takes beyond its time, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// Writes for as long as the world says and until it is enough, reads to the end, and judges.
async fn torture(world: &World, seed: u64, is_enough: impl Fn() -> bool) -> Verdict {
    let verdict = tokio::time::timeout(world.time + PATIENCE, tortured(world, seed, is_enough)).await;
    verdict.unwrap_or_else(|_| panic!("seed {seed}: it does not end: {:?}, {:?}", world.counts(), world.verdict()))
}

async fn tortured(world: &World, seed: u64, is_enough: impl Fn() -> bool) -> Verdict {
    let deadline = Instant::now() + world.time;
    let writers = (0..world::WRITERS).map(|i| tokio::spawn(writer::run(world.clone(), seed * 1_000 + i)));
    let writers: Vec<_> = writers.collect();
    let relays = [0, 1].map(|i| tokio::spawn(relay::run(world.clone(), seed * 100 + i)));
    let purging = tokio::spawn(relay::purge(world.clone()));
    // Ends with the time if it was enough by then, and otherwise as soon as it is.
    while Instant::now() < deadline || !is_enough() {
        // A task that has failed is told of when it is waited for.
        if writers.iter().chain(&relays).any(tokio::task::JoinHandle::is_finished) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.enough_is_written();
    for writer in writers {
        writer.await.unwrap();
    }
    world.all_is_written();
    for relay in relays {
        relay.await.unwrap();
    }
    world.all_is_read();
    purging.await.unwrap();
    world.verdict()
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}
