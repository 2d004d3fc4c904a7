//! `postgres`: the PostgreSQL store against the usual queues, on the same server and in the same run.
//!
//! Ratios are what counts: variants take turns, each ratio is of two that ran one after the other, and the median of the
//! rounds is reported. How busy *other* processes kept the cores is reported beside them.
//!
//! | measurement | keys |
//! |---|---|
//! | `drain` | `drain_vs_*`, `relay_wal_bytes_per_message` |
//! | `growth` | `drain_5m_vs_100k`, `relay_rss_mb` |
//! | `held` | `drain_held_snapshot_vs_free`, `held_write_transaction_delay_ms` |
//! | `producer` | `producer_*`, `stored_overhead_bytes`, `producer_with_hints_vs_without` |
//! | `latency` | `latency_*` |
//! | `idle` | `idle_statements_per_second` |

mod drain;
mod fixtures;
mod growth;
mod held;
mod idle;
mod latency;
mod plots;
mod process;
mod producer;
mod references;
mod server;

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use self::plots::Traces;
pub(crate) use self::{
    fixtures::{fill, store},
    latency::{percentile, produce},
    process::relay,
    server::Server,
};
use crate::results::{merge, rounded};

/// Every measurement, in the order in which they run.
const MEASUREMENTS: [&str; 6] = ["drain", "growth", "held", "producer", "latency", "idle"];

/// How much of everything.
struct Sizes {
    rounds: usize,
    backlog: u64,
    large: u64,
    held: u64,
    held_write: Duration,
    /// Producers share the disk with the rest of the machine, whose speed wanders within seconds: many short turns tell more
    /// than a few long ones.
    slices: usize,
    latency: Duration,
    idle: Duration,
}

impl Sizes {
    fn new(quick: bool) -> Self {
        let seconds = Duration::from_secs;
        if quick {
            return Self {
                rounds: 3,
                backlog: 500_000,
                large: 1_000_000,
                held: 100_000,
                held_write: seconds(10),
                slices: 25,
                latency: seconds(4),
                idle: seconds(30),
            };
        }
        Self {
            rounds: 5,
            backlog: 500_000,
            large: 5_000_000,
            held: 500_000,
            held_write: seconds(60),
            slices: 75,
            latency: seconds(15),
            idle: seconds(120),
        }
    }
}

/// Measures what is wanted (nothing named means everything), and writes pictures if a directory is named.
pub(crate) fn run(quick: bool, only: &[String], pictures: Option<&Path>) -> Result<Value> {
    for name in only {
        ensure!(MEASUREMENTS.contains(&name.as_str()), "there is no measurement `{name}`; there are {MEASUREMENTS:?}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let server = Server::connect().await?;
        let measured = measure(&server, quick, only).await;
        server.tidy().await?;
        let (results, traces) = measured?;
        if let Some(directory) = pictures {
            plots::write(directory, &results, &traces)?;
        }
        Ok(results)
    })
}

async fn measure(server: &Server, quick: bool, only: &[String]) -> Result<(Value, Traces)> {
    let sizes = Sizes::new(quick);
    let watch = server.watch();
    let (mut results, mut traces) = (json!({ "quick": quick, "rounds": sizes.rounds }), Traces::default());
    for name in MEASUREMENTS.iter().filter(|name| only.is_empty() || only.iter().any(|wanted| wanted == *name)) {
        server.begin_afresh().await?;
        let figures = match *name {
            "drain" => drain::run(server, sizes.backlog, sizes.rounds).await?,
            "growth" => growth::run(server, sizes.large, sizes.rounds).await?,
            "held" => {
                let held = held::snapshot(server, sizes.held, sizes.rounds).await?;
                traces.held = held.curves;
                merge(&mut results, held.figures);
                held::write_transaction(server, sizes.held_write).await?
            }
            "producer" => producer::run(server, sizes.slices).await?,
            "latency" => {
                let latencies = latency::run(server, &[500, 2000], sizes.latency, sizes.rounds).await?;
                traces.latencies = latencies.distributions;
                latencies.figures
            }
            _ => idle::run(server, sizes.idle).await?,
        };
        merge(&mut results, figures);
    }
    results["foreign_load_cores"] = json!(watch.foreign_cores());
    Ok((rounded(results), traces))
}
