//! `cargo xtask bench`: one benchmark, optimised. With `--json`, standard output is its one JSON object and nothing else.

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use crate::step::cargo;

#[derive(Args)]
pub(crate) struct Options {
    /// Which benchmark, for example `core`.
    name: String,
    /// Smaller, for a first look.
    #[arg(long)]
    quick: bool,
    /// One JSON object on standard output.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let chosen = [("--quick", options.quick), ("--json", options.json)];
    let flags = chosen.into_iter().filter(|(_, on)| *on).map(|(flag, _)| flag.to_owned());
    let step = cargo("bench", &["run", "--release", "-p", "postrider-bench", "--", &options.name]).args(flags);
    if !options.json {
        return step.run();
    }
    let text = step.output()?;
    let object: Value = serde_json::from_str(&text).context("the benchmark did not print one JSON object")?;
    println!("{object}");
    Ok(())
}
