//! What is fetched ahead for a subscriber, in the order of the stream also when deliveries got lost on their way.
//!
//! ```text
//!  fetching ──► a gap in the numbers after a lost connection ──► nothing is asked for, until `ack_wait` is over
//!     ▲                                                                                  │
//!     └───── the server sends first what was not acknowledged, in its old order ◄────────┘
//! ```
//!
//! What comes behind a gap is forgotten here. It was not acknowledged either, so it comes again behind what is missing.

use std::{mem, sync::atomic::Ordering, time::Duration};

use async_nats::{
    Client,
    jetstream::{
        Message,
        consumer::{PullConsumer, pull},
    },
};
use futures_util::{FutureExt, StreamExt};
use postrider_core::{Error, ErrorKind, Result};
use tokio::time::{Instant, sleep_until};

use crate::sequence::Sequence;

/// How much later than `ack_wait` a server may be with what it sends again.
const LATE: Duration = Duration::from_millis(500);

pub(crate) struct Fetched {
    consumer: PullConsumer,
    client: Client,
    /// How many are fetched at a time.
    prefetch: usize,
    /// `None` before the first, after an error, and while something is missing.
    messages: Option<pull::Stream>,
    sequence: Sequence,
    /// How often there was a connection when that was last looked at.
    connections: u64,
    gap: Option<Gap>,
}

/// Deliveries are missing.
enum Gap {
    /// The server may still be sending.
    Found,
    /// It sends nothing any more. At that time it will know what was not acknowledged, and goes on behind that number.
    Until(Instant, u64),
}

impl Fetched {
    pub(crate) fn new(consumer: PullConsumer, client: Client, prefetch: usize) -> Self {
        let sequence = Sequence::after(consumer.cached_info().delivered.consumer_sequence);
        let connections = connections(&client);
        Self { consumer, client, prefetch, messages: None, sequence, connections, gap: None }
    }

    /// Waits for the next message. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Message> {
        // Ends with a message before which nothing is missing, or with an error.
        loop {
            self.mend().await?;
            if self.messages.is_none() {
                let ahead = self.consumer.stream().max_messages_per_batch(self.prefetch);
                let messages = ahead.messages().await.map_err(|e| failed("fetch from the consumer").caused_by(e))?;
                self.messages = Some(messages);
            }
            let messages = self.messages.as_mut().expect("just put there");
            match messages.next().await {
                Some(Ok(message)) if self.is_next(&message) => return Ok(message),
                Some(Ok(_)) => self.lose(),
                other => {
                    // A new one is made by the next call; what was still in there comes again.
                    self.messages = None;
                    self.sequence.doubt();
                    let error = failed("receive from the consumer");
                    return Err(match other {
                        Some(Err(source)) => error.caused_by(source),
                        _ => error,
                    });
                }
            }
        }
    }

    /// The next message, if it is here. An error that matters will come again.
    pub(crate) fn ready(&mut self) -> Option<Message> {
        match self.messages.as_mut()?.next().now_or_never() {
            Some(Some(Ok(message))) if self.is_next(&message) => Some(message),
            Some(Some(Ok(_))) => {
                self.lose();
                None
            }
            _ => None,
        }
    }

    /// Ends fetching; what is here, in its order.
    pub(crate) fn end(&mut self) -> Vec<Message> {
        let Some(mut messages) = self.messages.take() else { return Vec::new() };
        std::iter::from_fn(|| messages.next().now_or_never().flatten().and_then(Result::ok)).collect()
    }

    /// Waits until the server sends again what is missing, if something is. Dropped, it goes on with the next call.
    async fn mend(&mut self) -> Result<()> {
        let (at, last) = match self.gap {
            None => return Ok(()),
            Some(Gap::Until(at, last)) => (at, last),
            Some(Gap::Found) => {
                // The client has told the server that nobody receives any more; an answer to this comes after that.
                let info = self.consumer.get_info().await.map_err(|e| failed("ask for the consumer").caused_by(e))?;
                let (at, last) = (Instant::now() + info.config.ack_wait + LATE, info.delivered.consumer_sequence);
                self.gap = Some(Gap::Until(at, last));
                (at, last)
            }
        };
        sleep_until(at).await;
        self.gap = None;
        self.sequence = Sequence::after(last);
        Ok(())
    }

    /// Whether nothing before this message is missing.
    fn is_next(&mut self, message: &Message) -> bool {
        let connections = connections(&self.client);
        if mem::replace(&mut self.connections, connections) != connections {
            self.sequence.doubt();
        }
        let Ok(info) = message.info() else { return true };
        self.sequence.follows(info.consumer_sequence, info.delivered > 1)
    }

    fn lose(&mut self) {
        self.messages = None;
        self.gap = Some(Gap::Found);
    }
}

/// How often there was a connection, the first one included.
fn connections(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}

pub(crate) fn failed(what: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, what)
}
