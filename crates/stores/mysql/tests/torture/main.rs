//! Torture: writers that hold, roll back and set savepoints, and two relays that take the lane from each other, sleep through
//! their leases and are killed in mid-statement, while the log is emptied behind them. A checker compares the producers' own
//! log with what arrived.
//!
//! A torture that finds nothing proves nothing, so the same one is done to sequencers with a planted mistake, each of which it
//! must catch. Seconds by default; `POSTRIDER_TORTURE_SECONDS` makes it longer, `POSTRIDER_TORTURE_SEED` another one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../support/mod.rs"]
mod support;

mod relay;
mod world;
mod writer;

use std::time::{Duration, Instant};

use postrider_store_mysql::planted::Plant;
use postrider_testkit::checker::Verdict;

use crate::world::World;

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
    let verdict = torture(&world, seed).await;
    let (takes, fenced, killed, purged) = world.counts();
    println!("seed {seed}: {takes} takes, {fenced} fenced, {killed} killed, {purged} purged, {verdict:?}");
    assert!(verdict.is_good(), "seed {seed}: {verdict:?}");
    assert!(
        verdict.duplicates <= world.duplicates_max(),
        "seed {seed}: {} at most, {verdict:?}",
        world.duplicates_max()
    );
    // How much of what happened is a matter of the machine; that the run was worth something is not. At least one of each is done
    // on purpose, whatever chance does.
    assert!(verdict.committed > 100 && verdict.rolled_back > 0 && takes > 1, "{takes} takes, {verdict:?}");
    assert!(fenced > 0 && killed > 0 && purged > 0, "{fenced} fenced, {killed} killed, {purged} purged");
}

/// MariaDB shows a later commit and hides an earlier one now and then, when its machine is busy. Here it does so all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn views_that_are_torn_lose_nothing_and_turn_nothing_around() {
    let _alone = ALONE.lock().await;
    let world = World::new(Plant::TornViews, Duration::from_secs(3), 4).await;
    let verdict = torture(&world, 1).await;
    assert!(verdict.is_good() && verdict.committed > 100, "{verdict:?}");
    assert!(verdict.duplicates <= world.duplicates_max(), "{} at most, {verdict:?}", world.duplicates_max());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_planted_mistake_is_caught() {
    let _alone = ALONE.lock().await;
    for plant in [Plant::IdCursor, Plant::RangeDelete, Plant::SkipLocked, Plant::OneLook, Plant::NoGapCheck] {
        let began = Instant::now();
        let mut caught = None;
        for run in 1..=RUNS_MAX {
            let world = World::new(plant, Duration::from_millis(1_200), 4).await;
            let verdict = torture(&world, run).await;
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

/// Writes for as long as the world says, reads to the end, and judges.
async fn torture(world: &World, seed: u64) -> Verdict {
    let deadline = Instant::now() + world.time;
    let writers = (0..world::WRITERS).map(|i| tokio::spawn(writer::run(world.clone(), seed * 1_000 + i, deadline)));
    let writers: Vec<_> = writers.collect();
    let relays = [0, 1].map(|i| tokio::spawn(relay::run(world.clone(), seed * 100 + i)));
    let purging = tokio::spawn(relay::purge(world.clone()));
    let killing = (world.plant == Plant::None).then(|| tokio::spawn(relay::kill_on_purpose(world.clone())));
    for writer in writers {
        writer.await.unwrap();
    }
    world.all_is_written();
    for relay in relays {
        relay.await.unwrap();
    }
    world.all_is_read();
    if let Some(killing) = killing {
        killing.await.unwrap();
    }
    purging.await.unwrap();
    world.verdict()
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}
