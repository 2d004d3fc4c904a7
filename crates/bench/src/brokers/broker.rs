//! What a broker must offer to be measured, and the message that is sent to it.

use std::{ops::Range, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use postrider::core::{
    BoxFuture,
    transport::{Publisher, Subscriber},
};

use crate::relay::PAYLOAD_BYTES;

/// Messages that a bare producer has under way at most, as many as a relay may have.
pub(crate) const UNDER_WAY: usize = 8_000;
/// Messages of one burst, as a relay has in a batch.
pub(crate) const BURST: usize = 1_000;
/// Tasks of a bare producer that has several, as a relay has batches under way.
pub(crate) const TASKS: usize = UNDER_WAY / BURST;
/// Where all messages go.
pub(crate) const TOPIC: &str = "orders";
/// What they are called.
pub(crate) const NAME: &str = "order.placed";

/// A broker.
pub(crate) trait Broker: Sync {
    /// As the transport is called.
    fn name(&self) -> &'static str;

    /// Messages per second that a bare producer makes, about, on a small machine: how much is measured follows from it.
    fn messages_per_second(&self) -> u64;

    /// Makes a stream or queue of this name, empty.
    fn make<'a>(&'a self, place: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Removes it with everything in it.
    fn remove<'a>(&'a self, place: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Publishes to it, through Postrider.
    fn publisher(&self, place: &str) -> Result<Arc<dyn Publisher>>;

    /// Receives from it, through Postrider.
    fn subscriber<'a>(&'a self, place: &'a str) -> BoxFuture<'a, Result<Arc<dyn Subscriber>>>;

    /// Publishes so many messages to it, through the client library alone, and waits for every confirm: in each of several
    /// ways, of which the [`best`] counts.
    fn bare<'a>(&'a self, place: &'a str, messages: u64) -> BoxFuture<'a, Result<Duration>>;
}

/// How long a bare producer takes at best. Which way of using a client is the fastest depends on the machine, and a relay that
/// is measured against a slow one looks good for nothing.
pub(crate) fn best(ways: &[(&str, Duration)]) -> Result<Duration> {
    let shown: Vec<String> = ways.iter().map(|(name, took)| format!("{took:.2?} {name}")).collect();
    eprintln!("  bare: {}", shown.join(", "));
    ways.iter().map(|(_, took)| *took).min().context("a bare producer has a way to publish")
}

/// The share of each task of so many.
pub(crate) fn shares(numbers: &Range<u64>, tasks: usize) -> Vec<Range<u64>> {
    let size = (numbers.end - numbers.start).div_ceil(tasks.max(1) as u64).max(1);
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    numbers.clone().step_by(size).map(|from| from..numbers.end.min(from + size as u64)).collect()
}

/// Where a broker's server is.
pub(crate) fn url(variable: &str) -> Result<String> {
    let url = std::env::var(variable).ok().filter(|url| !url.is_empty());
    url.with_context(|| {
        format!("{variable} does not name a server; `cargo xtask bench brokers` starts one and sets it")
    })
}

/// The attributes of a message, as the transports send them: what a bare producer sends beside the payload.
pub(crate) fn attributes(number: u64) -> [(&'static str, String); 8] {
    [
        ("specversion", "1.0".to_owned()),
        ("id", id(number)),
        ("source", "postrider".to_owned()),
        ("type", NAME.to_owned()),
        ("subject", "customer-000000".to_owned()),
        ("time", "2026-11-15T20:24:41.000250Z".to_owned()),
        ("partitionkey", "customer-000000".to_owned()),
        ("topic", TOPIC.to_owned()),
    ]
}

/// As long as a message id.
pub(crate) fn id(number: u64) -> String {
    format!("00000000-0000-7000-8000-{number:012}")
}

/// A payload of the usual size.
pub(crate) fn payload() -> Vec<u8> {
    vec![b'x'; PAYLOAD_BYTES]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_everything_once() {
        for (numbers, tasks) in [(0..10, 3), (5..6, 8), (0..8, 8), (0..0, 2), (3..1_000, 8)] {
            let shares = shares(&numbers, tasks);
            assert!(shares.len() <= tasks, "{shares:?}");
            assert_eq!(shares.into_iter().flatten().collect::<Vec<_>>(), numbers.collect::<Vec<_>>());
        }
    }
}
