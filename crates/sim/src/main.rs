//! `postrider-sim run --seeds 20000`, `postrider-sim plants`, `postrider-sim run --from 4711 --seeds 1`.
//!
//! A failing seed is printed with the command that repeats it; with `--keep` it is also added to `kept-seeds.txt`, which
//! every longer run begins with. `POSTRIDER_SIM_TRACE=1` prints what happens in a history.

use std::{
    io::Write,
    panic::{self, AssertUnwindSafe},
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use clap::{Parser, Subcommand};
use postrider_sim::{
    check::Totals,
    history,
    plants::{ALL, Plant},
};

#[derive(Parser)]
#[command(about = "Runs the real engine through seeded histories of trouble")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs many seeds and stops with the failing ones.
    Run {
        /// How many.
        #[arg(long, default_value_t = 2000)]
        seeds: u64,
        /// The first.
        #[arg(long, default_value_t = 1)]
        from: u64,
        /// A mistake to plant.
        #[arg(long)]
        plant: Option<String>,
        /// Threads.
        #[arg(long, default_value_t = 1)]
        threads: u64,
        /// Add failing seeds to `kept-seeds.txt`.
        #[arg(long)]
        keep: bool,
    },
    /// Plants every mistake, one after the other, and shows that it is found.
    Plants {
        /// Seeds for each at most.
        #[arg(long, default_value_t = 3000)]
        seeds: u64,
    },
}

fn main() -> ExitCode {
    panic::set_hook(Box::new(|_| {}));
    match Arguments::parse().command {
        Command::Run { seeds, from, plant, threads, keep } => {
            let plant = match plant.as_deref().map(|name| ALL.iter().find(|(other, _)| *other == name)) {
                None => Plant::NONE,
                Some(Some((_, plant))) => *plant,
                Some(None) => {
                    let names: Vec<_> = ALL.iter().map(|(name, _)| *name).collect();
                    eprintln!("no such mistake; known are: {}", names.join(", "));
                    return ExitCode::from(2);
                }
            };
            run(seeds, from, plant, threads, keep)
        }
        Command::Plants { seeds } => plants(seeds),
    }
}

fn run(seeds: u64, from: u64, plant: Plant, threads: u64, keep: bool) -> ExitCode {
    let began = Instant::now();
    // A single seed is run for a close look at it, without the others.
    let kept = if seeds > 1 && plant == Plant::NONE { kept_seeds() } else { Vec::new() };
    let all: Vec<u64> = kept.into_iter().chain(from..from + seeds).collect();
    let next = AtomicUsize::new(0);
    let failures: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());
    let totals = Mutex::new(Totals::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some(&seed) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match attempt(seed, plant) {
                        Ok(more) => totals.lock().expect("not poisoned").add(&more),
                        Err(text) => failures.lock().expect("not poisoned").push((seed, text)),
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().expect("not poisoned");
    failures.sort();
    for (seed, text) in failures.iter().take(10) {
        println!("seed {seed}: {text}\n  again: POSTRIDER_SIM_TRACE=1 cargo xtask sim --from {seed} --seeds 1");
    }
    if keep && !failures.is_empty() {
        keep_seeds(failures.iter().map(|(seed, _)| *seed));
    }
    let totals = totals.into_inner().expect("not poisoned");
    let Totals { committed, delivered, duplicates, disturbances, dead, stale_writes, replayed, purged, upheavals } =
        totals;
    println!(
        "{} seeds in {:.1} s: {committed} committed, {delivered} delivered, {duplicates} duplicates, {dead} given up, \
         {replayed} replayed, {purged} purged; {disturbances} crashes, pauses and drains, {upheavals} fail-overs and lane \
         changes, {stale_writes} stale writes refused",
        all.len(),
        began.elapsed().as_secs_f64(),
    );
    println!("{} passed, {} failed", all.len() - failures.len(), failures.len());
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

const KEPT_SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/kept-seeds.txt");

fn kept_seeds() -> Vec<u64> {
    let text = std::fs::read_to_string(KEPT_SEEDS).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

fn keep_seeds(seeds: impl Iterator<Item = u64>) {
    let known = kept_seeds();
    let lines: String = seeds.filter(|seed| !known.contains(seed)).map(|seed| format!("{seed}\n")).collect();
    let file = std::fs::OpenOptions::new().append(true).create(true).open(KEPT_SEEDS);
    if let Err(error) = file.and_then(|mut file| file.write_all(lines.as_bytes())) {
        eprintln!("the failing seeds could not be kept in {KEPT_SEEDS}: {error}");
    }
}

/// One seed; every hundredth twice, because the same seed must be the same history.
fn attempt(seed: u64, plant: Plant) -> Result<Totals, String> {
    let once = || {
        panic::catch_unwind(AssertUnwindSafe(|| history::run(seed, plant))).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default();
            text.chars().take(400).collect::<String>()
        })
    };
    let outcome = once()?;
    if seed.is_multiple_of(100) && once()?.trace != outcome.trace {
        return Err("the same seed gave another history".to_owned());
    }
    Ok(outcome.totals)
}

fn plants(seeds: u64) -> ExitCode {
    let mut missed = 0;
    for (name, plant) in ALL {
        let found = (1..=seeds).find_map(|seed| attempt(seed, *plant).err().map(|text| (seed, text)));
        match found {
            Some((seed, text)) => {
                println!("{name:<28} found by seed {seed}: {}", text.chars().take(110).collect::<String>());
            }
            None => {
                missed += 1;
                println!("{name:<28} NOT FOUND in {seeds} seeds");
            }
        }
    }
    println!("{} passed, {missed} failed", ALL.len() - missed);
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
