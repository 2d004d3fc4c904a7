//! `brokers`: relaying from PostgreSQL to each broker with confirms, against a bare producer on the same client library.
//!
//! The bare producer sends the same messages, made beforehand, as fast as the client can pipeline them, and waits for every
//! confirm. It does that in several ways (one task or more, a channel each where there are channels, a steady window or bursts;
//! Redis has its pipelines), and the best one of each round counts. It reads nothing, keeps no order and survives nothing; it
//! is the limit of what a relay over this client could reach. Both take turns, each on a stream or queue of its own, and the
//! median of the paired ratios is reported. What a relay has published is received again and checked: everything, in order per
//! key.
//!
//! | measurement | keys |
//! |---|---|
//! | each broker's name | `…_relay_vs_bare`, `…_relay_messages_per_second`, `…_bare_messages_per_second`, `…_latency_p50_ms`, `…_latency_p99_ms` |

mod broker;
#[cfg(feature = "kafka")]
mod kafka;
mod latency;
mod nats;
mod rabbitmq;
mod redis;
mod throughput;

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use self::broker::Broker;
use crate::{postgres::Server, results::rounded};

/// Every broker, in the order in which they are measured.
const BROKERS: &[&dyn Broker] = &[
    &rabbitmq::RABBITMQ,
    &nats::NATS,
    &redis::REDIS,
    #[cfg(feature = "kafka")]
    &kafka::KAFKA,
];

/// How much of everything.
struct Sizes {
    rounds: usize,
    /// How long a bare producer should take, about.
    round: Duration,
    latency: Duration,
}

impl Sizes {
    fn new(quick: bool) -> Self {
        let seconds = Duration::from_secs;
        if quick {
            return Self { rounds: 3, round: seconds(2), latency: seconds(4) };
        }
        Self { rounds: 5, round: seconds(5), latency: seconds(15) }
    }
}

/// Measures what is wanted; nothing named means every broker.
pub(crate) fn run(quick: bool, only: &[String]) -> Result<Value> {
    let names: Vec<&str> = BROKERS.iter().map(|broker| broker.name()).collect();
    for name in only {
        ensure!(names.contains(&name.as_str()), "there is no broker `{name}`; there are {names:?}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let server = Server::connect().await?;
        let measured = measure(&server, quick, only).await;
        server.tidy().await?;
        measured
    })
}

async fn measure(server: &Server, quick: bool, only: &[String]) -> Result<Value> {
    let sizes = Sizes::new(quick);
    let mut results = json!({ "quick": quick, "rounds": sizes.rounds });
    for broker in BROKERS.iter().filter(|broker| only.is_empty() || only.iter().any(|name| name == broker.name())) {
        server.begin_afresh().await?;
        for figures in [
            throughput::run(server, *broker, sizes.round, sizes.rounds).await?,
            latency::run(server, *broker, sizes.latency, sizes.rounds).await?,
        ] {
            for (key, value) in figures {
                results[format!("{}_{key}", broker.name())] = json!(value);
            }
        }
    }
    Ok(rounded(results))
}
