//! Torture: writers that hold, roll back, set savepoints, write ten thousand at once, and prepare what is resolved late; relays
//! that take lanes from each other, sleep through their leases, are killed in mid-statement or with all that they are, while the
//! log is emptied behind them. A checker compares the producers' own log with what arrived.
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

use crate::world::{Load, World};

/// One torture at a time: a second one would only slow down the first.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Longer than a relay waits for a lane, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A planted mistake is given so many runs to show itself.
const RUNS_MAX: u64 = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_made_up_or_turned_around() {
    let _alone = ALONE.lock().await;
    let seconds = setting("POSTRIDER_TORTURE_SECONDS", 6);
    let seed = setting("POSTRIDER_TORTURE_SEED", 1);
    let world = World::new(Plant::None, Load::whole(Duration::from_secs(seconds))).await;
    let verdict = torture(&world, seed).await;
    let counts = world.counts();
    println!("seed {seed}: {counts:?}, {verdict:?}");
    assert!(verdict.is_good(), "seed {seed}: {verdict:?}");
    assert!(verdict.duplicates <= counts.duplicates_max, "seed {seed}: {counts:?}, {verdict:?}");
    // How much of what happened is a matter of the machine; that the run was worth something is not. At least one of each is done
    // on purpose, whatever chance does.
    let committed = world.load.bulk + 100;
    assert!(verdict.committed > committed && verdict.rolled_back > 0, "seed {seed}: {counts:?}, {verdict:?}");
    assert!(
        counts.takes > u64::from(world.load.lanes) && counts.bulks > 0 && counts.prepared > 0,
        "seed {seed}: {counts:?}"
    );
    assert!(counts.fenced > 0 && counts.killed > 0 && counts.purged > 0, "seed {seed}: {counts:?}");
    assert!(counts.died > 0, "seed {seed}: {counts:?}");
}

/// MariaDB shows a later commit and hides an earlier one now and then, when its machine is busy. Here it does so all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn views_that_are_torn_lose_nothing_and_turn_nothing_around() {
    let _alone = ALONE.lock().await;
    let world = World::new(Plant::TornViews, Load::brief(Duration::from_secs(3))).await;
    let verdict = torture(&world, 1).await;
    let counts = world.counts();
    assert!(verdict.is_good() && verdict.committed > 100, "{counts:?}, {verdict:?}");
    assert!(verdict.duplicates <= counts.duplicates_max, "{counts:?}, {verdict:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_planted_mistake_is_caught() {
    let _alone = ALONE.lock().await;
    for plant in [Plant::IdCursor, Plant::RangeDelete, Plant::SkipLocked, Plant::OneLook, Plant::NoGapCheck] {
        let began = Instant::now();
        let mut caught = None;
        for run in 1..=RUNS_MAX {
            let world = World::new(plant, Load::brief(Duration::from_millis(1_200))).await;
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

/// Writes for as long as the load says, reads to the end, and judges.
async fn torture(world: &World, seed: u64) -> Verdict {
    let deadline = Instant::now() + world.load.time;
    let writers = (0..world::WRITERS).map(|i| tokio::spawn(writer::run(world.clone(), seed * 1_000 + i, deadline)));
    let mut writers: Vec<_> = writers.collect();
    if world.load.bulk > 0 {
        writers.push(tokio::spawn(writer::write_bulk(world.clone(), seed)));
    }
    if world.load.prepares {
        writers.push(tokio::spawn(writer::resolve_late(world.clone(), deadline)));
    }
    // One more than there are lanes, so that somebody always wants what another has.
    let relays: Vec<_> =
        (0..=world.load.lanes).map(|i| tokio::spawn(relay::run(world.clone(), seed * 100 + u64::from(i)))).collect();
    let purging = tokio::spawn(relay::purge(world.clone()));
    let is_sound = world.plant == Plant::None;
    let killing = is_sound.then(|| tokio::spawn(relay::kill_on_purpose(world.clone())));
    let dying = is_sound.then(|| tokio::spawn(relay::run_and_die(world.clone(), seed)));
    for writer in writers {
        writer.await.unwrap();
    }
    if let Some(dying) = &dying {
        // One at least has to die in every run, however long it waits for a lane.
        let began = Instant::now();
        while world.counts().died == 0 && !dying.is_finished() && began.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    world.all_is_written();
    for relay in relays {
        relay.await.unwrap();
    }
    world.all_is_read();
    if let Some(killing) = killing {
        killing.await.unwrap();
    }
    if let Some(dying) = dying {
        dying.await.unwrap();
    }
    purging.await.unwrap();
    world.verdict()
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}
