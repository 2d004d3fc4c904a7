//! From commit to consumer: producers at a fixed rate, a relay with hints, and a subscriber, all in this process.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, ensure};
use postrider::{Relay, Route, core::transport::Subscriber, relay::options::Options};

use super::broker::Broker;
use crate::{
    measure::median,
    postgres::{Server, percentile, produce, store},
    relay::OrderPlaced,
};

/// Messages per second.
const RATE: u32 = 500;

/// How long the last messages may take to arrive.
const PATIENCE: Duration = Duration::from_secs(60);

/// p50 and p99 in milliseconds.
pub(super) async fn run(
    server: &Server,
    broker: &dyn Broker,
    lasts: Duration,
    rounds: usize,
) -> Result<Vec<(&'static str, f64)>> {
    let schema = format!("{}_latency", broker.name());
    let store = store(&server.url, &schema).await?;
    let place = format!("bench-{}-latency", std::process::id());
    broker.make(&place).await?;
    let subscriber = broker.subscriber(&place).await?;
    let options = Options { keep_delivered: None, ..Options::default() };
    let route = Route::to("latency", broker.publisher(&place)?);
    let relay = Relay::builder(Arc::new(store)).options(options).route(route).build()?;
    let handle = relay.handle();
    let running = tokio::spawn(relay.run());
    let (mut p50, mut p99) = (Vec::new(), Vec::new());
    for number in 0..=rounds {
        let latencies = round(server, &schema, &subscriber, lasts).await?;
        // The first one warms up.
        if number > 0 {
            p50.push(percentile(&latencies, 0.5));
            p99.push(percentile(&latencies, 0.99));
            eprintln!("  commit to consumer at {RATE}/s: p50 {:.2} ms, p99 {:.2} ms", p50[number - 1], p99[number - 1]);
        }
    }
    handle.drain();
    running.await??;
    drop(subscriber);
    broker.remove(&place).await?;
    Ok(vec![("latency_p50_ms", median(p50)), ("latency_p99_ms", median(p99))])
}

/// Latencies in milliseconds, ascending.
async fn round(server: &Server, schema: &str, subscriber: &Arc<dyn Subscriber>, lasts: Duration) -> Result<Vec<f64>> {
    let expected = u64::from(RATE) * lasts.as_secs();
    let receiving = tokio::spawn(receive(Arc::clone(subscriber), expected));
    let committed = produce(server, schema, RATE, lasts).await?;
    ensure!(committed.len() as u64 == expected, "{} instead of {expected} messages were committed", committed.len());
    let arrived = receiving.await??;
    let mut latencies = Vec::with_capacity(committed.len());
    for (number, at) in committed {
        let arrived = arrived.get(&number).context("a message that was committed has not arrived")?;
        latencies.push(arrived.duration_since(at).unwrap_or_default().as_secs_f64() * 1000.0);
    }
    latencies.sort_by(f64::total_cmp);
    Ok(latencies)
}

/// When each of so many messages arrived.
async fn receive(subscriber: Arc<dyn Subscriber>, messages: u64) -> Result<HashMap<u64, SystemTime>> {
    let mut arrived = HashMap::new();
    while (arrived.len() as u64) < messages {
        let deliveries = tokio::time::timeout(PATIENCE, subscriber.receive(1_000)).await;
        let deliveries = deliveries.context("what was committed does not arrive")??;
        let now = SystemTime::now();
        let numbers = deliveries.iter().filter_map(|delivery| OrderPlaced::number(&delivery.envelope.payload));
        arrived.extend(numbers.map(|number| (number, now)));
        subscriber.acknowledge(deliveries.iter().map(|delivery| delivery.receipt).collect()).await?;
    }
    Ok(arrived)
}
