//! What every store is measured with: messages of one size, and a whole relay that drains a backlog of them.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use postrider::{Message, Relay, Route, core::log::Log, relay::options::Options};

use crate::measure::NullPublisher;

/// Bytes of every payload.
pub(crate) const PAYLOAD_BYTES: usize = 256;

/// Records of a page and of a batch, ours and the references'.
pub(crate) const BATCH: u32 = 1000;

/// Different keys.
pub(crate) const KEYS: u64 = 1000;

/// How a drain went.
pub(crate) struct Drained {
    /// From the start of the relay to the last publish.
    pub(crate) took: Duration,
    /// From the first publish to the last.
    pub(crate) steady: Duration,
    /// When how many had been published, for a plot.
    pub(crate) progress: Vec<(Duration, u64)>,
}

/// A whole relay on a fresh route, until so many messages are published; then it drains and leaves.
pub(crate) async fn drain(log: Arc<dyn Log>, route: &str, messages: u64) -> Result<Drained> {
    let publisher = Arc::new(NullPublisher::default());
    let options = Options { keep_delivered: None, ..Options::default() };
    let route = Route::to(route, Arc::clone(&publisher) as _).page(BATCH);
    let relay = Relay::builder(log).options(options).route(route).build()?;
    let handle = relay.handle();
    let began = Instant::now();
    let running = tokio::spawn(relay.run());
    publisher.taken(messages).await;
    let took = began.elapsed();
    handle.drain();
    running.await??;
    ensure!(handle.stats().durable() == messages, "{} instead of {messages} messages", handle.stats().durable());
    let progress = publisher.progress(began);
    let first = progress.first().map_or(Duration::ZERO, |(at, _)| *at);
    Ok(Drained { took, steady: took - first, progress })
}

/// Messages per second.
pub(crate) fn rate(messages: u64, took: Duration) -> f64 {
    messages as f64 / took.as_secs_f64()
}

/// The message of a transaction: bytes of the usual size, one key a customer.
#[derive(serde::Serialize)]
pub(crate) struct OrderPlaced {
    number: u64,
    customer: String,
}

impl OrderPlaced {
    pub(crate) fn new(number: u64) -> Self {
        Self { number, customer: format!("customer-{:06}", number.wrapping_mul(7919) % KEYS) }
    }

    /// Whose order it is.
    pub(crate) fn customer(&self) -> &str {
        &self.customer
    }

    /// The number that a payload begins with.
    pub(crate) fn number(payload: &[u8]) -> Option<u64> {
        Some(u64::from_le_bytes(payload.get(..8)?.try_into().ok()?))
    }
}

impl Message for OrderPlaced {
    const NAME: &'static str = "order.placed";

    fn topic(&self) -> Cow<'_, str> {
        "orders".into()
    }

    fn key(&self) -> Option<Cow<'_, str>> {
        Some(self.customer.as_str().into())
    }

    fn encode(&self) -> postrider::Result<Vec<u8>> {
        Ok(self.number.to_le_bytes().repeat(PAYLOAD_BYTES / 8))
    }
}
