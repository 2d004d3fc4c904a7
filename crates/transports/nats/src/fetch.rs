//! What is fetched ahead for a subscriber, in the order of the stream also when deliveries got lost on their way.
//!
//! ```text
//!  fetching ──► a gap in the numbers after a lost connection ──► nothing is asked for, until `ack_wait` is over
//!     ▲                                                                                  │
//!     └── what was not acknowledged is put into its order ◄── the server sends it first ◄┘
//! ```
//!
//! It is the same when it begins and an earlier subscriber has left messages [unanswered](crate::unanswered); and if somebody
//! still waits for messages then, it may be one whose host is gone, and what the server sends there is missing here.
//!
//! What comes behind a gap is forgotten here. It was not acknowledged either, so it comes again behind what is missing; that costs
//! it a delivery, which is why a consumer that counts them ([`Source::find`]) is refused. A server
//! that does not know yet that a connection is gone goes on sending into it, so there may be a gap behind the gap. After
//! any error the consumer is [looked for](crate::consumer) again before more is fetched: somebody may have deleted it.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::atomic::Ordering,
    time::Duration,
};

use async_nats::{
    Client,
    jetstream::{
        Message,
        consumer::{
            Info, PullConsumer,
            pull::{self, MessagesErrorKind},
        },
    },
};
use futures_util::{FutureExt, StreamExt};
use postrider_core::{Error, ErrorKind, Result};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{consumer::Source, copies::Copies, sequence::Sequence, unanswered::Unanswered};

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
    gap: Option<Gap>,
    collecting: Option<Collecting>,
    /// What was unanswered and has come again, by its number in the stream, to be given out before anything else.
    sorted: BTreeMap<u64, Message>,
}

/// What is unanswered comes again.
struct Collecting {
    unanswered: Unanswered<Message>,
    /// Whether it was waited for until the server had to know that it is.
    is_waited_for: bool,
    /// Then whatever has come is given out: the rest was answered after all, was put off for long, or is with others.
    until: Instant,
}

/// What becomes of a message that has come.
#[expect(clippy::large_enum_variant, reason = "it lives for a moment, and most are messages")]
enum Admitted {
    Next(Message),
    /// It waits for its turn.
    Kept,
    /// Others before it are missing.
    Refused,
}

/// Deliveries are missing.
enum Gap {
    /// The server may still be sending.
    Found,
    /// It sends nothing any more. At that time it will know what was not acknowledged.
    Until(Instant),
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
        // A host that is gone without a word still waits for messages, as far as the server knows.
        let is_waited_for = info.num_waiting > 0;
        let collecting = if shared { None } else { Collecting::begin(info, BTreeSet::new(), false) };
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
            gap,
            collecting,
            sorted: BTreeMap::new(),
        };
        if is_waited_for {
            fetched.doubt();
        }
        Ok(fetched)
    }

    /// Waits for the next message. Dropping the future loses nothing. `here` tells what is unanswered because the caller has
    /// it, or has put it off, by the numbers in the stream.
    pub(crate) async fn next(&mut self, here: impl Fn() -> BTreeSet<u64>) -> Result<Message> {
        // Ends with a message before which nothing is missing, or with an error.
        loop {
            self.look().await?;
            self.mend(&here).await?;
            if let Some((_, message)) = self.sorted.pop_first() {
                return Ok(message);
            }
            if self.messages.is_none() {
                let ahead = self.consumer.stream().max_messages_per_batch(self.batch);
                let messages = ahead.messages().await.map_err(|e| failed("fetch from the consumer").caused_by(e))?;
                self.messages = Some(messages);
            }
            let messages = self.messages.as_mut().expect("just put there");
            let arrived = match &self.collecting {
                None => messages.next().await,
                Some(collecting) => match timeout_at(collecting.until, messages.next()).await {
                    Ok(arrived) => arrived,
                    Err(_) => {
                        self.put_in_order();
                        continue;
                    }
                },
            };
            match arrived {
                Some(Ok(message)) => match self.admit(message) {
                    Admitted::Next(message) => return Ok(message),
                    Admitted::Kept => {}
                    Admitted::Refused => self.lose(),
                },
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
        if let Some((_, message)) = self.sorted.pop_first() {
            return Some(message);
        }
        let Some(Some(Ok(message))) = self.messages.as_mut()?.next().now_or_never() else { return None };
        match self.admit(message) {
            Admitted::Next(message) => Some(message),
            Admitted::Kept => None,
            Admitted::Refused => {
                self.lose();
                None
            }
        }
    }

    /// Ends fetching; what is here, in its order.
    pub(crate) fn end(&mut self) -> Vec<Message> {
        self.put_in_order();
        let mut here: Vec<Message> = mem::take(&mut self.sorted).into_values().collect();
        if let Some(mut messages) = self.messages.take() {
            here.extend(std::iter::from_fn(|| messages.next().now_or_never().flatten().and_then(Result::ok)));
        }
        here
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
                (self.gap, self.collecting) = (None, None);
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
    async fn mend(&mut self, here: &impl Fn() -> BTreeSet<u64>) -> Result<()> {
        let at = match self.gap {
            None => return Ok(()),
            Some(Gap::Until(at)) => at,
            Some(Gap::Found) => {
                // The client has told the server that nobody receives any more; an answer to this comes after that.
                let info = self.ask().await?;
                let at = Instant::now() + info.config.ack_wait + LATE;
                self.gap = Some(Gap::Until(at));
                at
            }
        };
        sleep_until(at).await;
        let info = self.ask().await?;
        self.gap = None;
        self.sequence.mended(info.delivered.consumer_sequence, self.was_lost_lately());
        // What is answered while this is asked is missed in vain, which costs time; the other way round it would cost order.
        self.collecting = Collecting::begin(&info, here(), true);
        Ok(())
    }

    /// What the server knows of the consumer.
    async fn ask(&mut self) -> Result<Info> {
        // It may be gone; the next call looks for it.
        self.suspect = true;
        let info = self.consumer.get_info().await.map_err(|e| failed("ask for the consumer").caused_by(e))?;
        self.source.check(&info)?;
        self.suspect = false;
        Ok(info)
    }

    /// Judges a message that has come: whether nothing before it is missing.
    fn admit(&mut self, message: Message) -> Admitted {
        let connections = connections(&self.client);
        if mem::replace(&mut self.connections, connections) != connections {
            self.doubt();
        }
        let Ok(info) = message.info() else { return Admitted::Next(message) };
        let (number, is_again) = (info.stream_sequence, info.delivered > 1);
        // What comes again while it is collected is told by its number in the stream.
        if !self.sequence.follows(info.consumer_sequence, is_again && self.collecting.is_some()) {
            return Admitted::Refused;
        }
        let may_wait = self.was_lost_lately();
        let Some(collecting) = &mut self.collecting else { return Admitted::Next(message) };
        let is_newer = collecting.unanswered.is_newer(number);
        if is_newer && (may_wait || !collecting.is_waited_for) {
            return Admitted::Refused;
        }
        collecting.keep(number, message, self.consumer.cached_info().config.ack_wait);
        if is_newer || collecting.unanswered.is_complete() {
            self.put_in_order();
        }
        Admitted::Kept
    }

    /// Whether the server may still send into a connection that is gone.
    fn was_lost_lately(&self) -> bool {
        self.lost_at.is_some_and(|lost_at| lost_at.elapsed() < REQUEST_LIVES)
    }

    /// What has come again is given out next.
    fn put_in_order(&mut self) {
        if let Some(collecting) = self.collecting.take() {
            self.sorted.append(&mut collecting.unanswered.into_come());
        }
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
        // It comes again, with what is missing.
        self.collecting = None;
        self.gap = Some(Gap::Found);
    }
}

impl Collecting {
    /// Nothing if nothing is unanswered but what is here.
    fn begin(info: &Info, here: BTreeSet<u64>, is_waited_for: bool) -> Option<Self> {
        let unanswered = Unanswered::new(info.num_ack_pending, info.delivered.stream_sequence, here);
        let until = Instant::now() + info.config.ack_wait + LATE;
        (!unanswered.is_complete()).then_some(Self { unanswered, is_waited_for, until })
    }

    fn keep(&mut self, number: u64, message: Message, ack_wait: Duration) {
        if self.unanswered.keep(number, message) {
            self.until = Instant::now() + ack_wait + LATE;
        }
    }
}

/// How often there was a connection, the first one included.
pub(crate) fn connections(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}

pub(crate) fn failed(what: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, what)
}
