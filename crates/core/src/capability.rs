//! What a store or transport can do, as plain data: the engine chooses its way by it, the conformance suites choose their
//! cases by it, and the command line prints it.

use serde::Serialize;

/// What a store can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StoreCapabilities {
    /// The product: `sqlite`, `memory`.
    pub name: &'static str,
    /// Whether a commit survives the process.
    pub durable: bool,
    /// Whether several processes can share it.
    pub shared: bool,
    /// Whether transactions can be open at the same time, so that they commit in another order than they began.
    pub concurrent_writers: bool,
    /// Whether a savepoint can be rolled back inside a transaction.
    pub savepoints: bool,
}

/// What a publisher can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PublisherCapabilities {
    /// The product: `stdout`, `file`, `memory`, `handler`.
    pub name: &'static str,
    /// How many messages of one key may ride in one batch. More than 1 promises their order, and that none is published
    /// after the first that is not durable. With 1, a hot key goes at one message per round trip.
    pub run_max: u32,
    /// The largest message that it carries, if there is a limit.
    pub message_bytes_max: Option<usize>,
    /// How many messages one publish may have, if fewer than the route would give it. A transport that makes a round trip
    /// of each message says 1, so that a slow one delays nothing but its own key.
    pub batch_max: Option<u32>,
    /// How many publishes may be under way at the same time, if fewer than the route would start.
    pub batches_max: Option<u32>,
}
