//! From commit to publish: producers at a fixed rate, and a relay that hears of them through the server alone.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use postrider::{
    Outbox, Relay, Route,
    core::{
        BoxFuture,
        capability::PublisherCapabilities,
        log::RecordRef,
        transport::{Outcome, Publisher},
    },
    mongodb::{Mongo, MongoStore},
};
use serde_json::{Value, json};

use super::server::Server;
use crate::relay::OrderPlaced;

const PREFIX: &str = "latency_";
const PER_SECOND: u64 = 500;

/// Producers that share the rate: one waits for its commit while others begin.
const PRODUCERS: u64 = 10;

/// How long a relay is left alone with its producers first.
const WARM_UP: Duration = Duration::from_secs(2);

/// How long the last messages may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn run(server: &Server, lasts: Duration) -> Result<Value> {
    eprintln!("latency: {PER_SECOND} messages/s for {lasts:?}");
    let store = MongoStore::builder(&server.url).prefix(PREFIX).open().await?;
    let publisher = Arc::new(Clock::default());
    let relay = Relay::builder(Arc::new(store)).route(Route::to("latency", Arc::clone(&publisher) as _)).build()?;
    let handle = relay.handle();
    let running = tokio::spawn(relay.run());
    let until = Instant::now() + WARM_UP + lasts;
    let producers: Vec<_> = (0..PRODUCERS).map(|first| tokio::spawn(produce(server.into(), first, until))).collect();
    let mut committed = HashMap::new();
    for producer in producers {
        committed.extend(producer.await??);
    }
    let began = Instant::now();
    while publisher.count() < committed.len() {
        ensure!(began.elapsed() < PATIENCE, "{} of {} messages arrived", publisher.count(), committed.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    handle.drain();
    running.await??;
    let published = publisher.published.lock().unwrap_or_else(PoisonError::into_inner);
    let warm = until - lasts;
    let mut millis: Vec<f64> = committed
        .iter()
        .filter(|(_, at)| **at >= warm)
        .filter_map(|(number, at)| Some(published.get(number)?.saturating_duration_since(*at).as_secs_f64() * 1_000.0))
        .collect();
    millis.sort_by(f64::total_cmp);
    let at = |share: f64| millis[((millis.len() - 1) as f64 * share) as usize];
    Ok(json!({ "mongodb_latency_500_p50_ms": at(0.5), "mongodb_latency_500_p99_ms": at(0.99) }))
}

/// What a producer needs of the server.
struct Access {
    client: mongodb::Client,
    database: String,
}

impl From<&Server> for Access {
    fn from(server: &Server) -> Self {
        Self { client: server.client.clone(), database: server.name().to_owned() }
    }
}

/// Enqueues at its share of the rate; when each commit was asked for.
async fn produce(access: Access, first: u64, until: Instant) -> Result<Vec<(u64, Instant)>> {
    let outbox = Outbox::new(Mongo::with_prefix(&access.database, PREFIX)?);
    let mut session = access.client.start_session().await?;
    let mut ticks = tokio::time::interval(Duration::from_secs(PRODUCERS) / u32::try_from(PER_SECOND)?);
    let (mut number, mut committed) = (first, Vec::new());
    while Instant::now() < until {
        ticks.tick().await;
        session.start_transaction().await?;
        outbox.enqueue(&mut session, &OrderPlaced::new(number)).await?;
        committed.push((number, Instant::now()));
        session.commit_transaction().await?;
        number += PRODUCERS;
    }
    Ok(committed)
}

/// Notes when each message was to be published.
#[derive(Default)]
struct Clock {
    published: Mutex<HashMap<u64, Instant>>,
}

impl Clock {
    fn count(&self) -> usize {
        self.published.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Publisher for Clock {
    fn capabilities(&self) -> PublisherCapabilities {
        PublisherCapabilities {
            name: "clock",
            run_max: 64,
            message_bytes_max: None,
            batch_max: None,
            batches_max: None,
        }
    }

    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        let now = Instant::now();
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        for number in batch.iter().filter_map(|record| OrderPlaced::number(&record.envelope.payload)) {
            published.entry(number).or_insert(now);
        }
        drop(published);
        Box::pin(std::future::ready(vec![Outcome::Durable; batch.len()]))
    }
}
