//! A large backlog against a small one, and the memory of a relay that drains a large one.

use anyhow::Result;
use serde_json::{Value, json};

use super::{fixtures, process::RelayProcess, server::Server};
use crate::{measure::median, relay::rate};

/// Messages of the small backlog.
const SMALL: u64 = 100_000;

/// Messages whose relaying is watched for memory, at most.
const MEMORY: u64 = 1_000_000;

pub(crate) async fn run(server: &Server, large: u64, rounds: usize) -> Result<Value> {
    eprintln!("growth: backlogs of {SMALL} and {large}, {rounds} rounds");
    let client = server.client().await?;
    let (few, many) = (fixtures::store(&server.url, "few").await?, fixtures::store(&server.url, "many").await?);
    fixtures::fill_log(&client, "few", SMALL).await?;
    fixtures::fill_log(&client, "many", large).await?;
    let mut ratios = Vec::new();
    for round in 0..rounds {
        let mut small = Vec::new();
        for turn in 0..2 {
            let drained = fixtures::drain(&few, &format!("before-{round}-{turn}"), SMALL).await?;
            small.push(rate(SMALL, drained.steady));
        }
        let drained = fixtures::drain(&many, &format!("round-{round}"), large).await?;
        let large = rate(large, drained.steady);
        for turn in 0..2 {
            let drained = fixtures::drain(&few, &format!("after-{round}-{turn}"), SMALL).await?;
            small.push(rate(SMALL, drained.steady));
        }
        // Around the large one, so that both met the same load of the machine.
        ratios.push(large / median(small));
    }
    let relayed = large.min(MEMORY);
    let relay = RelayProcess::start(&server.url, "many", "memory", Some(relayed)).await?;
    let resident = relay.wait().await?.peak_resident_mb;
    Ok(json!({
        "drain_5m_vs_100k": median(ratios),
        "drain_5m_messages": large,
        "relay_rss_mb": resident,
        "relay_rss_messages": relayed,
    }))
}
