//! The subscriber: a durable pull consumer of one stream, read in the order of the stream.
//!
//! Messages are fetched ahead, up to a bound, into a buffer that outlives a `receive`, so a `receive` that is dropped takes
//! nothing with it. What is neither acknowledged nor rejected comes again when the consumer's `ack_wait` is over; the
//! [copies](crate::copies) that a server sends because a handler is slower than that are left out. A subscriber that is closed, or
//! dropped in a runtime that goes on, gives back at once what it has, and what was just on its way to it comes after `ack_wait`.
//!
//! Several subscribers of one consumer share its messages, which leaves no order over keys; one alone receives them in order.
//! The first delivery of messages is in order, also through a lost connection: if deliveries were lost with it, nothing newer
//! is [given out](crate::fetch) before the server has sent those again, which it does when `ack_wait` is over. So it is with
//! what an earlier subscriber, which has crashed or ended, had not answered: the next one begins with that. One of several that
//! share a consumer cannot tell what others have out from what was left, nor one that waits for messages from one whose host is
//! gone; so a newcomer waits for `ack_wait`, and perhaps again in its first half minute, unless it is told that it
//! [shares](SubscriberBuilder::shared). One that was rejected for later comes behind what follows it.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{Arc, Mutex as StdMutex, MutexGuard},
    time::Duration,
};

use async_nats::{
    datetime::DateTime,
    jetstream::{
        self, AckKind,
        consumer::{AckPolicy, pull},
        message::Acker,
    },
};
use futures_util::{FutureExt, future::join_all};
use postrider_core::{
    BoxFuture, Error, ErrorKind, Result, cloudevents,
    envelope::Envelope,
    transport::{Delivery, Receipt, Requeue, Subscriber},
};
use tokio::{
    runtime::Handle,
    sync::{Mutex, watch},
    task::{JoinHandle, spawn_blocking},
    time::{self, error::Elapsed},
};

use crate::{
    access::Access,
    connect::Connection,
    consumer::Source,
    copies::{Arrival, Copies, Stored},
    fetch::{Fetched, connections, failed},
    mapping,
    subject::{check_filter, check_found},
};

/// Settings of a [`NatsSubscriber`].
#[derive(Clone, Debug)]
pub struct SubscriberBuilder {
    access: Access,
    stream: String,
    consumer: String,
    prefetch: usize,
    timeout: Duration,
    declare: Option<pull::Config>,
    shared: bool,
}

impl SubscriberBuilder {
    /// How many messages are fetched ahead at most. Default 256. More of them are in memory, and come again after a crash.
    /// If handling so many takes longer than the consumer's `ack_wait`, the server sends what waits here a second time. A
    /// subscriber that is alone leaves those copies out; they cost the network. Several that [share](Self::shared) a consumer get
    /// each other's: then fetch fewer ahead, or let `ack_wait` be longer. When a subscriber begins, and after a lost connection, it
    /// may hold more than that for a moment: whatever is unanswered, which is up to the consumer's `max_ack_pending`.
    #[must_use]
    pub fn prefetch(mut self, prefetch: usize) -> Self {
        self.prefetch = prefetch.max(1);
        self
    }

    /// How long the server may take to answer. Default 10 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Makes the consumer if there is none of that name, for these subjects (none: all of the stream), from the stream's
    /// beginning. `ack_wait` is how long a delivery may stay unanswered before it comes again, and should be longer than
    /// handling what is [fetched ahead](Self::prefetch) takes. One that is there is left as it is. One that is deleted while
    /// it is received by is made again, behind what was acknowledged.
    #[must_use]
    pub fn declare(mut self, subjects: &[&str], ack_wait: Duration) -> Self {
        self.declare = Some(pull::Config {
            durable_name: Some(self.consumer.clone()),
            ack_policy: AckPolicy::Explicit,
            ack_wait,
            filter_subjects: subjects.iter().map(|&subject| subject.to_owned()).collect(),
            ..pull::Config::default()
        });
        self
    }

    /// Others receive by the same consumer at the same time, and order over keys is not needed: what is out when this one
    /// begins, and what it misses after a lost connection, is taken to be theirs and not waited for.
    ///
    /// A server gives each message of a consumer to whoever asks next, so two messages of a key may be with two of them at the
    /// same time, and one that comes again comes behind what follows it. And a message that waits with one of them for longer than
    /// `ack_wait` is given to another as well: both handle it. Which setting helps:
    ///
    /// | what is needed | setting |
    /// |---|---|
    /// | order per key, and several processes at work | a consumer for each, over subjects of its own ([`Self::declare`]), and none shared; a key stays within one of them if the topic says which |
    /// | order per key, and one process that another takes over from | the same consumer, and none shared: whoever begins waits for what is out |
    /// | order over everything from several, one message at a time | a consumer that was made with `max_ack_pending` 1 |
    /// | no copies while nothing fails | [`Self::prefetch`] × the time that handling takes, for less than `ack_wait` |
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Connects and finds the consumer.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if no stream or consumer can have that name, or no message those subjects;
    /// [`ErrorKind::Unavailable`] if there is no connection, [`ErrorKind::NotFound`] if there is no such stream, or no such
    /// consumer and none is to be made, [`ErrorKind::Unsupported`] if the consumer has a `max_deliver`: its server gives up
    /// messages that nobody has seen.
    pub async fn subscribe(self) -> Result<NatsSubscriber> {
        check_found("stream", &self.stream)?;
        check_found("consumer", &self.consumer)?;
        self.declare.iter().flat_map(|config| &config.filter_subjects).try_for_each(|filter| check_filter(filter))?;
        let (access, timeout) = (self.access, self.timeout);
        // It reads files.
        let connection = spawn_blocking(move || Connection::new(access, timeout, None)).await;
        let interrupted = |_| Error::new(ErrorKind::Unavailable, "setting up the connection was interrupted");
        let connection = connection.map_err(interrupted)??;
        let open = connection
            .get()
            .await
            .map_err(|cause| Error::new(ErrorKind::Unavailable, "connect to NATS").with("cause", cause))?;
        let source = Source {
            jetstream: open.jetstream.clone(),
            stream: self.stream,
            consumer: self.consumer,
            declare: self.declare,
            acknowledged: None,
        };
        let fetched = Fetched::new(source, open.client.clone(), self.prefetch, self.shared).await?;
        let out = StdMutex::new(Out::new(&fetched));
        let shared = Shared { fetched: Mutex::new(fetched), out };
        Ok(NatsSubscriber { shared: Arc::new(shared), connection, ended: watch::Sender::new(false) })
    }
}

/// Receives from one consumer.
///
/// A message that is rejected for good is answered with `+TERM`: the consumer does not get it again, and the server tells of it in
/// an advisory. It stays in its stream, unless the stream keeps messages only until they are answered.
///
/// When it is dropped inside a runtime, what it has not answered is given back, by a task of that runtime which nobody waits
/// for. If the program or the runtime ends sooner, that comes again only when the consumer's `ack_wait` is over;
/// [`Self::close`] waits until it is given back.
pub struct NatsSubscriber {
    shared: Arc<Shared>,
    connection: Connection,
    /// Whether what it has is given back, or is about to be.
    ended: watch::Sender<bool>,
}

struct Shared {
    fetched: Mutex<Fetched>,
    out: StdMutex<Out>,
}

/// What is out with the caller, in the order of delivery.
struct Out {
    last: u64,
    by_receipt: BTreeMap<u64, Held>,
    copies: Copies,
    /// When the consumer was made that the copies are of.
    consumer_made_at: DateTime,
}

/// A delivery that is out.
struct Held {
    acker: Acker,
    /// Which message it is, if the server says so.
    stored: Option<Stored>,
}

impl NatsSubscriber {
    /// Sets up a subscriber for a consumer of a stream.
    #[must_use]
    pub fn builder(access: Access, stream: &str, consumer: &str) -> SubscriberBuilder {
        SubscriberBuilder {
            access,
            stream: stream.to_owned(),
            consumer: consumer.to_owned(),
            prefetch: 256,
            timeout: Duration::from_secs(10),
            declare: None,
            shared: false,
        }
    }

    /// Gives back what was not answered, and waits until that is done, no longer than the `timeout`: then the next subscriber of
    /// the consumer gets it at once. Afterwards nothing more can be received or answered. If the future is dropped, or the time is
    /// over, what is not given back comes again when `ack_wait` is over.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the server does not answer in time.
    pub async fn close(&self) -> Result<()> {
        // It may be closed already.
        let Some(ending) = self.end() else { return Ok(()) };
        let in_time = matches!(ending.await, Ok(Ok(())));
        let late = || failed("give back what was not answered").with("waited_ms", self.connection.timeout.as_millis());
        in_time.then_some(()).ok_or_else(late)
    }

    /// Receives until the subscriber is closed.
    async fn receive_until_closed(&self, max: usize) -> Result<Vec<Delivery>> {
        let mut ended = self.ended.subscribe();
        tokio::select! {
            biased;
            () = async { drop(ended.wait_for(|ended| *ended).await) } => Err(failed("receive: the subscriber is closed")),
            received = self.receive_some(max) => received,
        }
    }

    async fn receive_some(&self, max: usize) -> Result<Vec<Delivery>> {
        let mut fetched = self.shared.fetched.lock().await;
        let mut taken = Vec::new();
        // Ends with one that is no copy, or with an error.
        while taken.is_empty() {
            let message = fetched.next(|| self.shared.out().unanswered()).await?;
            taken.extend(self.shared.out().take(message, &fetched));
        }
        // From here on nothing waits, so nothing that was taken can be lost.
        while taken.len() < max
            && let Some(message) = fetched.ready()
        {
            taken.extend(self.shared.out().take(message, &fetched));
        }
        Ok(taken)
    }

    /// Says that these are done with, and waits for the word of the server.
    async fn confirm(&self, held: &[Held]) -> Result<()> {
        let Some((last, others)) = held.split_last() else { return Ok(()) };
        let before = self.connections();
        let answer = async {
            for held in others {
                held.acker.ack().await?;
            }
            last.acker.double_ack().await
        };
        self.in_time("acknowledge deliveries", answer).await?;
        if !others.is_empty() && self.connections() != before {
            return Err(failed("acknowledge deliveries: the connection was lost, and some of them may come again"));
        }
        Ok(())
    }

    /// Begins to give back what was not answered. Nothing if that is done already, or if there is no runtime for it.
    fn end(&self) -> Option<JoinHandle<Result<(), Elapsed>>> {
        if self.ended.send_replace(true) {
            return None;
        }
        let runtime = Handle::try_current().ok()?;
        let (shared, client) = (Arc::clone(&self.shared), self.connection.opened().map(|open| open.client.clone()));
        let limit = self.connection.timeout;
        let giving_back = async move {
            // Who receives has it until nothing is handed out any more.
            let mut fetched = shared.fetched.lock().await;
            let out = mem::take(&mut shared.out().by_receipt);
            let mut back: Vec<Acker> = out.into_values().map(|held| held.acker).collect();
            back.extend(fetched.end().into_iter().map(|message| message.split().1));
            // The client says to the server in its own time that this one receives no more. An answer of the server comes
            // after that; what is given back before would be sent here again.
            drop(fetched.consumer().get_info().await);
            // In the old order, because the server hands them out again in the order in which it gets them back.
            for acker in &back {
                drop(acker.ack_with(AckKind::Nak(None)).await);
            }
            join_all(client.iter().map(async_nats::Client::flush)).await;
        };
        // What is not given back in time comes again when `ack_wait` is over.
        Some(runtime.spawn(time::timeout(limit, giving_back)))
    }

    /// Waits no longer than the server may take: a client that has no connection keeps what it is given, until it is full.
    async fn in_time(
        &self,
        what: &'static str,
        answer: impl Future<Output = Result<(), async_nats::Error>>,
    ) -> Result<()> {
        let limit = self.connection.timeout;
        let answer = time::timeout(limit, answer).await;
        let late = |_| failed(what).with("cause", "no answer in time").with("waited_ms", limit.as_millis());
        answer.map_err(late)?.map_err(|error| failed(what).caused_by(error))
    }

    /// How often there was a connection.
    fn connections(&self) -> u64 {
        self.connection.opened().map_or(0, |open| connections(&open.client))
    }
}

impl Shared {
    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().expect("nobody panicked with the deliveries in hand")
    }
}

impl Out {
    fn new(fetched: &Fetched) -> Self {
        let consumer_made_at = fetched.consumer().cached_info().created;
        Self { last: 0, by_receipt: BTreeMap::new(), copies: fetched.copies(), consumer_made_at }
    }

    /// Hands a message out, unless it is a copy that nobody needs.
    fn take(&mut self, message: jetstream::Message, fetched: &Fetched) -> Option<Delivery> {
        let made_at = fetched.consumer().cached_info().created;
        if mem::replace(&mut self.consumer_made_at, made_at) != made_at {
            // What a new consumer sends again it is meant to send again.
            self.copies = fetched.copies();
        }
        let (attempt, stored) = match message.info() {
            Ok(info) => {
                (u32::try_from(info.delivered).unwrap_or(u32::MAX).max(1), Some((info.stream_sequence, info.published)))
            }
            Err(_) => (1, None),
        };
        match stored.map_or(Arrival::HandOut, |stored| self.copies.arrives(stored)) {
            Arrival::HandOut => {}
            Arrival::LeaveOut => return None,
            Arrival::AcknowledgeAgain => {
                // Nothing may wait here. If the client is full, the next copy is as good.
                drop(message.ack().now_or_never());
                return None;
            }
        }
        let identity = stored.map(|(number, _)| number.to_string()).unwrap_or_default();
        let (message, acker) = message.split();
        self.last += 1;
        self.by_receipt.insert(self.last, Held { acker, stored });
        Some(Delivery { envelope: envelope(message, &identity), receipt: Receipt(self.last), attempt })
    }

    /// What the server counts as unanswered and need not send again: out with the caller, or put off. By the numbers in the stream.
    fn unanswered(&self) -> BTreeSet<u64> {
        let out = self.by_receipt.values().filter_map(|held| held.stored).map(|(number, _)| number);
        out.chain(self.copies.put_off()).collect()
    }

    /// Notes that these are done with, if the server has said so; otherwise they may come again.
    fn answered(&mut self, held: &[Held], is_known: bool) {
        for stored in held.iter().filter_map(|held| held.stored) {
            if is_known {
                self.copies.done(stored);
            } else {
                self.copies.doubt(stored);
            }
        }
    }
}

/// What travelled. What is no CloudEvent is not thrown away: the consumer decides.
fn envelope(message: async_nats::Message, identity: &str) -> Envelope {
    let event = message.headers.as_ref().and_then(|headers| mapping::read(headers, message.payload.clone()).ok());
    let envelope = event.and_then(|event| event.into_envelope().ok());
    envelope.unwrap_or_else(|| cloudevents::foreign(&message.subject, identity, message.payload))
}

impl Subscriber for NatsSubscriber {
    fn receive(&self, max: u32) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(self.receive_until_closed(max.max(1) as usize))
    }

    /// The server takes the acknowledgements of a connection in order, so the last one is confirmed for all, unless the
    /// connection has changed in between. If the future is dropped or fails, some may come again.
    fn acknowledge(&self, receipts: Vec<Receipt>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let held: Vec<Held> = {
                let mut out = self.shared.out();
                receipts.iter().filter_map(|receipt| out.by_receipt.remove(&receipt.0)).collect()
            };
            let answer = self.confirm(&held).await;
            self.shared.out().answered(&held, answer.is_ok());
            answer
        })
    }

    fn reject(&self, receipt: Receipt, requeue: Requeue) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let (held, kind) = {
                let mut out = self.shared.out();
                let Some(held) = out.by_receipt.remove(&receipt.0) else { return Ok(()) };
                let kind = match requeue {
                    Requeue::After(Duration::ZERO) => AckKind::Nak(None),
                    Requeue::After(wait) => AckKind::Nak(Some(wait)),
                    Requeue::Never => AckKind::Term,
                };
                // The server counts from when it hears of it, which is later.
                if let (Requeue::After(wait), Some(stored)) = (requeue, held.stored) {
                    out.copies.later(stored, wait);
                }
                (held, kind)
            };
            let answer = self.in_time("reject a delivery", held.acker.double_ack_with(kind)).await;
            if answer.is_err() || matches!(requeue, Requeue::Never) {
                self.shared.out().answered(&[held], answer.is_ok());
            }
            answer
        })
    }
}

impl Drop for NatsSubscriber {
    fn drop(&mut self) {
        drop(self.end());
    }
}
