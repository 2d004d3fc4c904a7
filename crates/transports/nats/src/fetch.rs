//! What is fetched ahead for a subscriber, in the order of the stream also when deliveries got lost on their way.
//!
//! ```text
//!  fetching ──► a gap in the numbers after a lost connection ──► nothing is asked for, until `ack_wait` is over
//!     ▲                                                                                  │
//!     └───── the server sends first what was not acknowledged, in its old order ◄────────┘
//! ```
//!
//! It is the same when it begins and an earlier subscriber has [left](crate::left) messages unanswered; and if somebody still
//! waits for messages then, it may be one whose host is gone, and what the server sends there is missing here.
//!
//! What comes behind a gap is forgotten here. It was not acknowledged either, so it comes again behind what is missing. A server
//! that does not know yet that a connection is gone goes on sending into it, so there may be a gap behind the gap. After
//! any error the consumer is [looked for](crate::consumer) again before more is fetched: somebody may have deleted it.

use std::{mem, sync::atomic::Ordering, time::Duration};

use async_nats::{
    Client,
    jetstream::{
        Message,
        consumer::{
            PullConsumer,
            pull::{self, MessagesErrorKind},
        },
    },
};
use futures_util::{FutureExt, StreamExt};
use postrider_core::{Error, ErrorKind, Result};
use tokio::time::{Instant, sleep_until};

use crate::{consumer::Source, copies::Copies, left::Left, sequence::Sequence};

/// How much later than `ack_wait` a server may be with what it sends again.
const LATE: Duration = Duration::from_millis(500);
/// How long the server keeps a request for messages, unless the client is told otherwise. So long it may send into a connection
/// of which it does not know that it is gone.
const REQUEST_LIVES: Duration = Duration::from_secs(30);
/// How often it is asked how far the consumer is. What was acknowledged since comes again if the consumer is deleted.
const ASK_EVERY: Duration = Duration::from_secs(60);
/// Deliveries after which a lost connection is forgotten, if not more are fetched ahead.
const SETTLED_AFTER_MIN: u64 = 1_000;

pub(crate) struct Fetched {
    source: Source,
    consumer: PullConsumer,
    /// Whether the consumer may be gone.
    suspect: bool,
    asked_at: Instant,
    client: Client,
    /// How many are fetched at a time.
    batch: usize,
    /// Whether others receive by the same consumer, so that nothing is waited for that may be theirs.
    shared: bool,
    /// `None` before the first, after an error, and while something is missing.
    messages: Option<pull::Stream>,
    sequence: Sequence,
    settled_after: u64,
    /// How often there was a connection when that was last looked at.
    connections: u64,
    /// When it was last found that one was lost, or something else went wrong.
    lost_at: Option<Instant>,
    /// What an earlier subscriber has left, until it has come.
    left: Option<Left>,
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
    /// Finds the consumer, or makes it.
    ///
    /// # Errors
    /// As [`Source::find`].
    pub(crate) async fn new(mut source: Source, client: Client, prefetch: usize, shared: bool) -> Result<Self> {
        let consumer = source.find().await?;
        let settled_after = SETTLED_AFTER_MIN.max(4 * prefetch as u64);
        let info = consumer.cached_info();
        let sequence = Sequence::after(info.delivered.consumer_sequence, settled_after);
        let is_left = info.num_ack_pending > 0 && !shared;
        // A host that is gone without a word still waits for messages, as far as the server knows.
        let is_waited_for = info.num_waiting > 0;
        let left = is_left.then(|| Left::new(info.num_ack_pending, info.delivered.stream_sequence));
        let connections = connections(&client);
        // The client asks for the next batch when no more than half of the last one is missing.
        let batch = (prefetch * 2 / 3).max(1);
        let (suspect, asked_at, lost_at, messages, gap) = (false, Instant::now(), None, None, None);
        let mut fetched = Self {
            source,
            consumer,
            suspect,
            asked_at,
            client,
            batch,
            shared,
            messages,
            sequence,
            settled_after,
            connections,
            lost_at,
            left,
            gap,
        };
        if is_waited_for {
            fetched.doubt();
        }
        Ok(fetched)
    }

    /// Waits for the next message. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Message> {
        // Ends with a message before which nothing is missing, or with an error.
        loop {
            self.look().await?;
            self.mend().await?;
            if self.messages.is_none() {
                let ahead = self.consumer.stream().max_messages_per_batch(self.batch);
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
                    self.doubt();
                    self.suspect = true;
                    if matches!(&other, Some(Err(error)) if error.kind() == MessagesErrorKind::ConsumerDeleted) {
                        // Looking for it tells more.
                        continue;
                    }
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

    /// The consumer that is received by.
    pub(crate) fn consumer(&self) -> &PullConsumer {
        &self.consumer
    }

    /// Notes for the copies that this consumer sends. No more are on their way than after a lost connection.
    pub(crate) fn copies(&self) -> Copies {
        Copies::new(self.consumer.cached_info().config.ack_wait, self.settled_after)
    }

    /// Looks for the consumer if it may be gone, and asks now and then how far it is. Dropped, it goes on with the next call.
    async fn look(&mut self) -> Result<()> {
        if self.suspect {
            let found = self.source.find().await?;
            let (old, new) = (self.consumer.cached_info(), found.cached_info());
            if old.created != new.created {
                // Its numbers begin anew, and what the old one has not sent again it sends first.
                self.sequence = Sequence::after(new.delivered.consumer_sequence, self.settled_after);
                (self.gap, self.left) = (None, None);
            }
            self.consumer = found;
            self.suspect = false;
        } else if self.asked_at.elapsed() >= ASK_EVERY {
            self.asked_at = Instant::now();
            // Without an answer what was known before holds.
            if let Ok(info) = self.consumer.get_info().await {
                self.source.note(&info);
            }
        }
        Ok(())
    }

    /// Waits until the server sends again what is missing, if something is. Dropped, it goes on with the next call.
    async fn mend(&mut self) -> Result<()> {
        let (at, last) = match self.gap {
            None => return Ok(()),
            Some(Gap::Until(at, last)) => (at, last),
            Some(Gap::Found) => {
                // The client has told the server that nobody receives any more; an answer to this comes after that.
                // It may be gone; the next call looks for it.
                self.suspect = true;
                let info = self.consumer.get_info().await.map_err(|e| failed("ask for the consumer").caused_by(e))?;
                self.suspect = false;
                let (at, last) = (Instant::now() + info.config.ack_wait + LATE, info.delivered.consumer_sequence);
                self.gap = Some(Gap::Until(at, last));
                (at, last)
            }
        };
        sleep_until(at).await;
        (self.gap, self.left) = (None, None);
        self.sequence.mended(last, self.lost_at.is_some_and(|lost_at| lost_at.elapsed() < REQUEST_LIVES));
        Ok(())
    }

    /// Whether nothing before this message is missing.
    fn is_next(&mut self, message: &Message) -> bool {
        let connections = connections(&self.client);
        if mem::replace(&mut self.connections, connections) != connections {
            self.doubt();
        }
        let Ok(info) = message.info() else { return true };
        if self.left.as_mut().is_some_and(|left| !left.follows(info.stream_sequence)) {
            return false;
        }
        self.sequence.follows(info.consumer_sequence, info.delivered > 1)
    }

    /// Deliveries may have got lost, or may still do.
    fn doubt(&mut self) {
        if self.shared {
            return;
        }
        self.lost_at = Some(Instant::now());
        self.sequence.doubt();
    }

    fn lose(&mut self) {
        self.messages = None;
        self.gap = Some(Gap::Found);
    }
}

/// How often there was a connection, the first one included.
pub(crate) fn connections(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}

pub(crate) fn failed(what: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, what)
}
