//! `cargo xtask test`: everything that has to run, on a machine that has nothing but Rust; and `cargo xtask sim`.

use anyhow::Result;
use clap::Args;

use crate::{
    services,
    step::{Step, cargo},
};

/// Seeds of an ordinary run: about a minute of one core.
const SEEDS: u64 = 20_000;

/// Seeds of a quick run.
const SEEDS_QUICK: u64 = 1_000;

/// How long one test program may take: five times what the slowest needs.
const PROGRAM_SECONDS_MAX: u32 = 900;

#[derive(Args)]
pub(crate) struct Options {
    /// Fewer seeds.
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    // Stops what it started at the end of this function, however that ends.
    let _running = services::prepare()?;
    // A test that never ends must not look like one that takes long.
    let bounded = format!("target.'cfg(all())'.runner = ['timeout', '--kill-after=30', '{PROGRAM_SECONDS_MAX}']");
    cargo("test", &["test", "--workspace", "--all-features", "--config", &bounded]).run()?;
    let seeds = if options.quick { SEEDS_QUICK } else { SEEDS };
    Sim { seeds: Some(seeds), from: None, plant: None }.step().run()?;
    simulator("plants").run()
}

/// Options of the simulator.
#[derive(Args)]
pub(crate) struct Sim {
    /// How many seeds. Default: as many as `cargo xtask test` runs.
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed.
    #[arg(long)]
    from: Option<u64>,
    /// Runs with this planted mistake; the simulator must find it.
    #[arg(long)]
    plant: Option<String>,
}

impl Sim {
    pub(crate) fn step(&self) -> Step {
        let mut arguments = vec!["--seeds".to_owned(), self.seeds.unwrap_or(SEEDS).to_string()];
        arguments.extend(self.from.iter().flat_map(|from| ["--from".to_owned(), from.to_string()]));
        arguments.extend(self.plant.iter().flat_map(|plant| ["--plant".to_owned(), plant.clone()]));
        simulator("run").args(arguments)
    }
}

/// With the engine's assertions and nearly as fast as a release.
fn simulator(task: &str) -> Step {
    cargo(&format!("sim {task}"), &["run", "--profile", "sim", "-p", "postrider-sim", "--", task])
}
