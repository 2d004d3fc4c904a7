//! `mongodb`: the store for MongoDB against the usual two-step claim, on the same server and in the same run.
//!
//! | measurement | keys |
//! |---|---|
//! | `drain` | `mongodb_drain_*`, `mongodb_stream_drain_*`, `mongodb_two_step_claim_*` |
//! | `producer` | `mongodb_producer_*` |
//! | `latency` | `mongodb_latency_*` |

mod drain;
mod latency;
mod producer;
mod server;

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use self::server::Server;
use crate::results::{merge, rounded};

/// Every measurement, in the order in which they run.
const MEASUREMENTS: [&str; 3] = ["drain", "producer", "latency"];

/// How much of everything.
struct Sizes {
    rounds: usize,
    backlog: u64,
    slices: usize,
    latency: Duration,
}

impl Sizes {
    fn new(quick: bool) -> Self {
        if quick {
            return Self { rounds: 3, backlog: 50_000, slices: 25, latency: Duration::from_secs(8) };
        }
        Self { rounds: 7, backlog: 200_000, slices: 75, latency: Duration::from_secs(30) }
    }
}

/// Measures what is wanted; nothing named means everything.
pub(crate) fn run(quick: bool, only: &[String]) -> Result<Value> {
    for name in only {
        ensure!(MEASUREMENTS.contains(&name.as_str()), "there is no measurement `{name}`; there are {MEASUREMENTS:?}");
    }
    let wanted = |name: &str| only.is_empty() || only.iter().any(|wanted| wanted == name);
    let sizes = Sizes::new(quick);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let server = Server::connect().await?;
        let watch = server.watch();
        let measured = async {
            let mut results = json!({ "quick": quick, "rounds": sizes.rounds });
            if wanted("drain") {
                merge(&mut results, drain::run(&server, sizes.backlog, sizes.rounds).await?);
            }
            if wanted("producer") {
                merge(&mut results, producer::run(&server, sizes.slices).await?);
            }
            if wanted("latency") {
                merge(&mut results, latency::run(&server, sizes.latency).await?);
            }
            results["foreign_load_cores"] = json!(watch.foreign_cores());
            Ok(rounded(results))
        }
        .await;
        server.tidy().await?;
        measured
    })
}
