//! The subscriber: a durable pull consumer of one stream, read in the order of the stream.
//!
//! Messages are fetched ahead, up to a bound, into a buffer that outlives a `receive`, so a `receive` that is dropped takes
//! nothing with it. What is neither acknowledged nor rejected comes again when the consumer's `ack_wait` is over; a
//! subscriber that is dropped gives back at once what it has, and what was just on its way to it comes after `ack_wait`.
//!
//! Several subscribers of one consumer share its messages, which leaves no order over keys; one alone receives them in order.
//! The first delivery of messages is in order, also through a lost connection: if deliveries were lost with it, nothing newer
//! is [given out](crate::fetch) before the server has sent those again, which it does when `ack_wait` is over. So it is with
//! what an earlier subscriber, which has crashed or ended, had not answered: the next one begins with that. One of several that
//! share a consumer cannot tell what others have out from what was left, nor one that waits for messages from one whose host is
//! gone; so a newcomer waits for `ack_wait`, and perhaps again in its first half minute, unless it is told that it
//! [shares](SubscriberBuilder::shared). One that was rejected for later comes behind what follows it.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Mutex as StdMutex, MutexGuard},
    time::Duration,
};

use async_nats::jetstream::{
    self, AckKind,
    consumer::{AckPolicy, pull},
    message::Acker,
};
use futures_util::future::join_all;
use postrider_core::{
    BoxFuture, Error, ErrorKind, Result, cloudevents,
    envelope::Envelope,
    transport::{Delivery, Receipt, Requeue, Subscriber},
};
use tokio::{runtime::Handle, sync::Mutex, task::spawn_blocking, time};

use crate::{
    access::Access,
    connect::Connection,
    consumer::Source,
    fetch::{Fetched, connections, failed},
    mapping,
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
    /// beginning. `ack_wait` is how long a delivery may stay unanswered before it comes again. One that is there is left as
    /// it is. One that is deleted while it is received by is made again, behind what was acknowledged.
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
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Connects and finds the consumer.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if there is no connection, [`ErrorKind::NotFound`] if there is no such stream, or no such
    /// consumer and none is to be made.
    pub async fn subscribe(self) -> Result<NatsSubscriber> {
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
        let shared = Shared { fetched: Mutex::new(fetched), out: StdMutex::default() };
        Ok(NatsSubscriber { shared: Arc::new(shared), connection })
    }
}

/// Receives from one consumer. When it is dropped inside a runtime, what it has not answered is given back.
pub struct NatsSubscriber {
    shared: Arc<Shared>,
    connection: Connection,
}

struct Shared {
    fetched: Mutex<Fetched>,
    out: StdMutex<Out>,
}

/// What is out with the caller, in the order of delivery.
#[derive(Default)]
struct Out {
    last: u64,
    by_receipt: BTreeMap<u64, Acker>,
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

    async fn receive_some(&self, max: usize) -> Result<Vec<Delivery>> {
        let mut fetched = self.shared.fetched.lock().await;
        let mut taken = vec![fetched.next().await?];
        // From here on nothing waits, so nothing that was taken can be lost.
        while taken.len() < max
            && let Some(message) = fetched.ready()
        {
            taken.push(message);
        }
        let mut out = self.shared.out();
        Ok(taken.into_iter().map(|message| out.hand_out(message)).collect())
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
    fn hand_out(&mut self, message: jetstream::Message) -> Delivery {
        let (attempt, identity) = match message.info() {
            Ok(info) => (u32::try_from(info.delivered).unwrap_or(u32::MAX).max(1), info.stream_sequence.to_string()),
            Err(_) => (1, String::new()),
        };
        let (message, acker) = message.split();
        self.last += 1;
        self.by_receipt.insert(self.last, acker);
        Delivery { envelope: envelope(message, &identity), receipt: Receipt(self.last), attempt }
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
        Box::pin(self.receive_some(max.max(1) as usize))
    }

    /// The server takes the acknowledgements of a connection in order, so the last one is confirmed for all, unless the
    /// connection has changed in between. If the future is dropped or fails, some may come again.
    fn acknowledge(&self, receipts: Vec<Receipt>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let mut ackers: Vec<Acker> = {
                let mut out = self.shared.out();
                receipts.iter().filter_map(|receipt| out.by_receipt.remove(&receipt.0)).collect()
            };
            let Some(last) = ackers.pop() else { return Ok(()) };
            let before = self.connections();
            let answer = async {
                for acker in &ackers {
                    acker.ack().await?;
                }
                last.double_ack().await
            };
            self.in_time("acknowledge deliveries", answer).await?;
            if !ackers.is_empty() && self.connections() != before {
                return Err(failed("acknowledge deliveries: the connection was lost, and some of them may come again"));
            }
            Ok(())
        })
    }

    fn reject(&self, receipt: Receipt, requeue: Requeue) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let Some(acker) = self.shared.out().by_receipt.remove(&receipt.0) else { return Ok(()) };
            let kind = match requeue {
                Requeue::After(Duration::ZERO) => AckKind::Nak(None),
                Requeue::After(wait) => AckKind::Nak(Some(wait)),
                Requeue::Never => AckKind::Term,
            };
            self.in_time("reject a delivery", acker.double_ack_with(kind)).await
        })
    }
}

impl Drop for NatsSubscriber {
    fn drop(&mut self) {
        let Ok(runtime) = Handle::try_current() else { return };
        let (shared, client) = (Arc::clone(&self.shared), self.connection.opened().map(|open| open.client.clone()));
        let (out, limit) = (mem::take(&mut self.shared.out().by_receipt), self.connection.timeout);
        // What is not given back in time comes again when `ack_wait` is over.
        runtime.spawn(time::timeout(limit, async move {
            let mut back: Vec<Acker> = out.into_values().collect();
            let mut fetched = shared.fetched.lock().await;
            back.extend(fetched.end().into_iter().map(|message| message.split().1));
            // The client says to the server in its own time that this one receives no more. An answer of the server comes
            // after that; what is given back before would be sent here again.
            drop(fetched.consumer().get_info().await);
            // In the old order, because the server hands them out again in the order in which it gets them back.
            for acker in &back {
                drop(acker.ack_with(AckKind::Nak(None)).await);
            }
            join_all(client.iter().map(async_nats::Client::flush)).await;
        }));
    }
}
