//! `mysql`: the store for MariaDB and MySQL against the usual claim, on the same server and in the same run.
//!
//! | measurement | keys |
//! |---|---|
//! | `drain` | `mysql_drain_*`, `mysql_batch_claim_*` |
//! | `producer` | `mysql_producer_*` |

mod drain;
mod producer;
mod server;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use self::server::Server;
use crate::results::{merge, rounded};

/// Every measurement, in the order in which they run.
const MEASUREMENTS: [&str; 2] = ["drain", "producer"];

/// How much of everything.
struct Sizes {
    rounds: usize,
    backlog: u64,
    slices: usize,
}

impl Sizes {
    fn new(quick: bool) -> Self {
        if quick {
            return Self { rounds: 5, backlog: 100_000, slices: 25 };
        }
        Self { rounds: 7, backlog: 200_000, slices: 75 }
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
            results["foreign_load_cores"] = json!(watch.foreign_cores());
            Ok(rounded(results))
        }
        .await;
        server.tidy().await?;
        measured
    })
}
