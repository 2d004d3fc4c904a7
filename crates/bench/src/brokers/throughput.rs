//! A relay against the bare producer, round by round, and a check of what the relay has published.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use postrider::{
    Relay, Route,
    core::{key::OrderingKey, transport::Subscriber},
    postgres::PostgresStore,
    relay::options::Options,
};

use super::broker::{Broker, NAME, TOPIC};
use crate::{
    measure::median,
    postgres::{Server, fill, store},
    relay::rate,
};

/// Different keys. Of one key a relay has one message under way at a time.
const KEYS: u64 = 10_000;

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// The ratio, and both rates.
pub(super) async fn run(
    server: &Server,
    broker: &dyn Broker,
    round: Duration,
    rounds: usize,
) -> Result<Vec<(&'static str, f64)>> {
    let messages = broker.messages_per_second() * round.as_secs();
    eprintln!("{}: {messages} messages, {rounds} rounds", broker.name());
    let schema = format!("{}_throughput", broker.name());
    let store = store(&server.url, &schema).await?;
    fill_log(server, &schema, messages).await?;
    let mut run: Vec<(f64, f64)> = Vec::new();
    for number in 0..=rounds {
        let place = format!("bench-{}-{number}", std::process::id());
        let bare = on_fresh(broker, &place, async |place| broker.bare(place, messages).await).await?;
        let relayed = on_fresh(broker, &place, async |place| relay(broker, &store, place, messages).await).await?;
        let rate = |took| rate(messages, took);
        // The first one warms up.
        if number > 0 {
            eprintln!("  relay {:.0}, bare {:.0} messages/s", rate(relayed), rate(bare));
            run.push((rate(relayed), rate(bare)));
        }
    }
    let median_of = |value: fn(&(f64, f64)) -> f64| median(run.iter().map(value).collect());
    Ok(vec![
        ("relay_vs_bare", median_of(|(relay, bare)| relay / bare)),
        ("relay_messages_per_second", median_of(|(relay, _)| *relay)),
        ("bare_messages_per_second", median_of(|(_, bare)| *bare)),
    ])
}

/// Does something on an empty stream or queue, and removes that, also after a failure.
async fn on_fresh(
    broker: &dyn Broker,
    place: &str,
    measure: impl AsyncFnOnce(&str) -> Result<Duration>,
) -> Result<Duration> {
    broker.make(place).await?;
    let measured = measure(place).await;
    broker.remove(place).await?;
    measured
}

/// Messages whose payload begins with their number, in the order of the log.
async fn fill_log(server: &Server, schema: &str, messages: u64) -> Result<()> {
    let client = server.client().await?;
    let sql = format!(
        "INSERT INTO {schema}.log (id, topic, name, key, payload)
         SELECT gen_random_uuid(), '{TOPIC}', '{NAME}', 'customer-' || lpad((n * 7919 % {KEYS})::text, 6, '0'),
                int8send(n) || decode(repeat(md5(n::text), 15), 'hex') || decode(left(md5(n::text), 16), 'hex')
           FROM generate_series($1::bigint, $2::bigint) AS n"
    );
    fill(&client, &sql, messages).await?;
    for leaf in 0..8 {
        client.batch_execute(&format!("VACUUM ANALYZE {schema}.log_{leaf}")).await?;
    }
    Ok(())
}

/// A whole relay on a fresh route, until everything is durable. Then what arrived is checked.
async fn relay(broker: &dyn Broker, store: &PostgresStore, place: &str, messages: u64) -> Result<Duration> {
    let options = Options { keep_delivered: None, ..Options::default() };
    let route = Route::to(place, broker.publisher(place)?);
    let relay = Relay::builder(Arc::new(store.clone())).options(options).route(route).build()?;
    let handle = relay.handle();
    let began = Instant::now();
    let running = tokio::spawn(relay.run());
    while handle.stats().durable() < messages {
        ensure!(began.elapsed() < PATIENCE, "only {} of {messages} are published", handle.stats().durable());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = began.elapsed();
    handle.drain();
    running.await??;
    check(&*broker.subscriber(place).await?, messages).await?;
    Ok(took)
}

/// Everything once, and in order per key.
async fn check(subscriber: &dyn Subscriber, messages: u64) -> Result<()> {
    let mut last: HashMap<OrderingKey, u64> = HashMap::new();
    let mut arrived = 0;
    while arrived < messages {
        let deliveries = tokio::time::timeout(PATIENCE, subscriber.receive(1_000)).await;
        let deliveries = deliveries.context("what was published does not arrive")??;
        arrived += deliveries.len() as u64;
        for delivery in &deliveries {
            let number = delivery.envelope.payload.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
            let (number, key) = number.zip(delivery.envelope.key.clone()).context("not one of our messages")?;
            let before = last.insert(key, number);
            ensure!(before < Some(number), "message {number} came behind {before:?} of its key");
        }
        subscriber.acknowledge(deliveries.iter().map(|delivery| delivery.receipt).collect()).await?;
    }
    Ok(())
}
