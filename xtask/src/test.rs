//! `cargo xtask test`: everything that has to run, on a machine that has nothing but Rust; and `cargo xtask sim`.

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

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

/// Tests of the PostgreSQL store that need nothing but a server, which may be of any version. `roles` are the conformance
/// cases, by roles that may do no more than they have to.
const ON_EVERY_POSTGRES: [&str; 5] = ["roles", "capture", "debezium", "pipelined", "sqlx"];

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
    for version in services::OTHER_POSTGRES {
        on_postgres(version)?;
    }
    let seeds = if options.quick { SEEDS_QUICK } else { SEEDS };
    Sim { seeds: Some(seeds), from: None, plant: None }.step().run()?;
    simulator("plants").run()
}

/// What the PostgreSQL store promises of every version, on a server of another one than the system's.
fn on_postgres(version: &str) -> Result<()> {
    let server = services::OtherPostgres::start(version)?;
    let (variable, url) = server.environment();
    for name in ON_EVERY_POSTGRES {
        let program = compiled("postgres", name)?;
        Step::new(&format!("{name} on PostgreSQL {version}"), "timeout")
            .args(["--kill-after=30".to_owned(), PROGRAM_SECONDS_MAX.to_string(), program])
            .env(variable, &url)
            .run()?;
    }
    Ok(())
}

/// A test program of a store, as `cargo test` has compiled it.
fn compiled(store: &str, name: &str) -> Result<String> {
    let arguments = ["test", "--workspace", "--all-features", "--no-run", "--message-format=json"];
    let messages = cargo("find the test", &arguments).output()?;
    let place = format!("crates/stores/{store}#");
    let found = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find(|message| {
        message["target"]["name"] == name
            && message["target"]["kind"][0] == "test"
            && message["package_id"].as_str().is_some_and(|id| id.contains(&place))
    });
    let program = found.and_then(|message| message["executable"].as_str().map(str::to_owned));
    program.with_context(|| format!("cargo has compiled no test `{name}` of the store `{store}`"))
}

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
