//! From commit to publish: producers at a fixed rate here, the relay in another process, hints after each commit.
//!
//! A message counts from the moment at which its `COMMIT` is sent to that at which the publisher is called with it. Both are
//! read from the clock of the machine that both processes share. Producers keep a schedule, and do not wait for the relay. A
//! message that was never published counts as one that was published when the relay was asked to end: it took that long at
//! least, and a relay that stands still must not look like a fast one.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use postrider::{
    Outbox,
    postgres::{Notifier, Postgres, enlist::Prepared},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{fixtures, process::RelayProcess, server::Server};
use crate::{measure::median, relay::OrderPlaced};

/// What was committed so shortly before the relay was asked to end may be left to the next owner.
const LEFT_BEHIND_MAX: Duration = Duration::from_secs(1);

/// Connections that produce.
const CONNECTIONS: u32 = 16;

/// p50 and p99 at each rate, and every latency of the last round, for a plot.
pub(crate) struct Latencies {
    pub(crate) figures: Value,
    pub(crate) distributions: Vec<(u32, Vec<f64>)>,
}

pub(crate) async fn run(server: &Server, rates: &[u32], lasts: Duration, rounds: usize) -> Result<Latencies> {
    eprintln!("latency: {rates:?} messages/s for {lasts:?}, {rounds} rounds");
    fixtures::store(&server.url, "latency").await?;
    let mut figures = json!({});
    let mut p50: HashMap<u32, Vec<f64>> = HashMap::new();
    let mut p99: HashMap<u32, Vec<f64>> = HashMap::new();
    let mut distributions = Vec::new();
    for round in 0..rounds {
        for rate in rates {
            let latencies = at_rate(server, "latency", *rate, lasts).await?;
            let (middle, high) = (percentile(&latencies, 0.5), percentile(&latencies, 0.99));
            eprintln!("  {rate} messages/s: p50 {middle:.2} ms, p99 {high:.2} ms");
            p50.entry(*rate).or_default().push(middle);
            p99.entry(*rate).or_default().push(high);
            if round + 1 == rounds {
                distributions.push((*rate, latencies));
            }
        }
    }
    for rate in rates {
        figures[format!("latency_{rate}_p50_ms")] = json!(median(p50[rate].clone()));
        figures[format!("latency_{rate}_p99_ms")] = json!(median(p99[rate].clone()));
    }
    Ok(Latencies { figures, distributions })
}

/// Latencies in milliseconds, ascending.
pub(crate) async fn at_rate(server: &Server, schema: &str, rate: u32, lasts: Duration) -> Result<Vec<f64>> {
    let relay = RelayProcess::start(&server.url, schema, "latency", None).await?;
    let committed = produce(server, schema, rate, lasts).await?;
    let ended_at = SystemTime::now();
    let published = relay.finish().await?.published.into_iter().collect();
    let (latencies, missing) = latencies(&committed, &published, ended_at);
    if missing > 0 {
        eprintln!("  {missing} of {} messages were not published before the relay was asked to end", committed.len());
    }
    ensure!(!latencies.is_empty(), "nothing arrived");
    Ok(latencies)
}

/// Milliseconds from commit to publish, ascending, and how many messages among them were never published.
fn latencies(
    committed: &[(u64, SystemTime)],
    published: &HashMap<u64, SystemTime>,
    ended_at: SystemTime,
) -> (Vec<f64>, usize) {
    let (mut latencies, mut missing) = (Vec::with_capacity(committed.len()), 0);
    for (number, at) in committed {
        let until = |end: SystemTime| end.duration_since(*at).unwrap_or_default();
        let took = match published.get(number) {
            Some(published) => until(*published),
            None if until(ended_at) <= LEFT_BEHIND_MAX => continue,
            None => {
                missing += 1;
                until(ended_at)
            }
        };
        latencies.push(took.as_secs_f64() * 1000.0);
    }
    latencies.sort_by(f64::total_cmp);
    (latencies, missing)
}

/// Numbers of messages and when their commit was sent.
pub(crate) async fn produce(
    server: &Server,
    schema: &str,
    rate: u32,
    lasts: Duration,
) -> Result<Vec<(u64, SystemTime)>> {
    let store = Postgres::new(schema, "")?;
    let notifier = Notifier::connect(&server.url, &store)?;
    let outbox = Outbox::new(store.clone());
    let first = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64;
    let every = Duration::from_secs(1) * CONNECTIONS / rate;
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = server.client().await?;
        let prepared = Prepared::new(&client, &store).await?;
        connections.push((client, prepared));
    }
    let began = Instant::now();
    let work = (0..CONNECTIONS).zip(connections).map(|(connection, (mut client, prepared))| {
        let (outbox, notifier) = (outbox.clone(), notifier.clone());
        async move {
            let mut committed = Vec::new();
            let mut next = began + every * connection / CONNECTIONS;
            while next < began + lasts {
                tokio::time::sleep_until(next).await;
                next += every;
                let number = first + u64::from(connection) + committed.len() as u64 * u64::from(CONNECTIONS);
                let transaction = client.transaction().await?;
                outbox.enqueue(&mut prepared.on(&transaction), &OrderPlaced::new(number)).await?;
                let at = SystemTime::now();
                transaction.commit().await?;
                notifier.notify();
                committed.push((number, at));
            }
            Ok::<_, anyhow::Error>(committed)
        }
    });
    Ok(try_join_all(work).await?.into_iter().flatten().collect())
}

/// Of values that ascend.
pub(crate) fn percentile(values: &[f64], share: f64) -> f64 {
    let index = ((values.len() - 1) as f64 * share).round() as usize;
    values[index]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_that_stands_still_is_slow() {
        let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let committed: Vec<_> = (0..60).map(|second| (second, at(second))).collect();
        // Nothing goes on from second 5 on.
        let published = (0..5).map(|second| (second, at(second) + Duration::from_millis(2))).collect();
        let (latencies, missing) = latencies(&committed, &published, at(60));
        assert_eq!((missing, latencies.len()), (54, 59), "the one of the last second may be left behind");
        assert_eq!((latencies[0], latencies.last()), (2.0, Some(&55_000.0)));
    }
}
