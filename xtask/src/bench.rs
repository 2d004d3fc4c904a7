//! `cargo xtask bench`: one benchmark, optimised. With `--json`, standard output is its one JSON object and nothing else.
//!
//! `postgres`, `mysql` and `mongodb` run on the server that `POSTRIDER_BENCH_POSTGRES` and so on names, `brokers` on a
//! PostgreSQL and on the brokers (`POSTRIDER_BENCH_NATS` and so on). What is not named is started for the run and stopped
//! afterwards: databases with the durability and the memory of a server in earnest, brokers with the durability of one and the
//! settings of the tests otherwise, as small as Kafka's heap of 256 MB.

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use crate::{services, step::cargo};

#[derive(Args)]
pub(crate) struct Options {
    /// Which benchmark: `core`, `postgres`, `mysql`, `mongodb`, `brokers`.
    name: String,
    /// Smaller, for a first look.
    #[arg(long)]
    quick: bool,
    /// One JSON object on standard output.
    #[arg(long)]
    json: bool,
    /// Only these measurements of it, for example `drain,producer`.
    #[arg(long)]
    only: Option<String>,
    /// Write pictures into this directory.
    #[arg(long)]
    plots: Option<String>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let chosen = [("--quick", options.quick), ("--json", options.json)];
    let flags = chosen.into_iter().filter(|(_, on)| *on).map(|(flag, _)| flag.to_owned());
    let named = [("--only", &options.only), ("--plots", &options.plots)];
    let named = named.into_iter().filter_map(|(flag, value)| Some([flag.to_owned(), value.clone()?])).flatten();
    // Kafka's client compiles a C library, which nobody else should have to wait for.
    let with_kafka = options.name == "brokers" && options.only.as_ref().is_none_or(|only| only.contains("kafka"));
    let features: &[&str] = if with_kafka { &["--features", "kafka"] } else { &[] };
    let mut step = cargo("bench", &["run", "--release", "-p", "postrider-bench"])
        .args(features.iter().map(ToString::to_string))
        .args(["--".to_owned(), options.name.clone()])
        .args(flags)
        .args(named);
    // Stopped when it is dropped, also when the benchmark has failed.
    let servers = services::bench_servers(&options.name, options.only.as_deref())?;
    for (variable, url) in servers.iter().map(services::BenchServer::environment) {
        step = step.env(variable, url);
    }
    if !options.json {
        return step.run();
    }
    let text = step.output()?;
    let object: Value = serde_json::from_str(&text).context("the benchmark did not print one JSON object")?;
    println!("{object}");
    Ok(())
}
