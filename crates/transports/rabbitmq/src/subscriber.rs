//! The subscriber: one consumer of a queue.
//!
//! A [reader](crate::reader) fetches ahead, up to a bound, into a channel that outlives a `receive`, so a `receive` that is
//! dropped takes nothing with it. What is neither acknowledged nor rejected the server gives out again as soon as it knows
//! that the connection has ended, in the old order. After a lost connection that is everything that was out; acknowledging
//! it then fails.
//!
//! One consumer receives the messages of a queue in order. A server may learn of a lost connection later than we do, and has
//! two of us then. A queue that is [declared](SubscriberBuilder::declare) here knows one active consumer: the next one gets
//! nothing before everything that the last one had is back in its place. From another queue newer messages come first, until
//! the server learns of the loss. Several consumers that [share](SubscriberBuilder::shared) a queue have no order over keys.
//! A message that was rejected for later waits here, not with the server, and comes behind what follows it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex as StdMutex, MutexGuard},
    time::Duration,
};

use futures_util::future::join_all;
use lapin::{
    Acker,
    options::{BasicAckOptions, BasicRejectOptions},
};
use postrider_core::{
    BoxFuture, Error, ErrorKind, Result,
    envelope::Envelope,
    transport::{Delivery, Receipt, Requeue, Subscriber},
};
use tokio::{
    sync::{Mutex, mpsc},
    task::{JoinHandle, JoinSet},
    time::{Instant, timeout},
};

use crate::{
    access::Access,
    reader,
    topology::{Queue, QueueKind, Topology},
};

/// How long a message may be here, from its delivery to the end of its wait for later. A server ends a consumer that has not
/// answered a message for half an hour (`consumer_timeout`), and gives all of its messages out again: before their time.
const LATER_MAX: Duration = Duration::from_mins(25);

/// Settings of a [`RabbitmqSubscriber`].
#[derive(Clone, Debug)]
pub struct SubscriberBuilder {
    access: Access,
    queue: String,
    prefetch: u16,
    timeout: Duration,
    declare: Option<QueueKind>,
    shared: bool,
    bindings: Vec<(String, String)>,
}

impl SubscriberBuilder {
    /// How many messages may be here without an answer, fetched ahead and out with the caller, at most. Default 256. What was
    /// rejected for later counts as well while it waits.
    #[must_use]
    pub fn prefetch(mut self, prefetch: u16) -> Self {
        self.prefetch = prefetch.max(1);
        self
    }

    /// How long the server may take to answer. Default 10 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Makes the queue if there is none of that name, with `x-single-active-consumer`: of several subscribers one receives, and
    /// the others stand by. One that is there is left as it is. See [`Self::shared`].
    #[must_use]
    pub fn declare(mut self, kind: QueueKind) -> Self {
        self.declare = Some(kind);
        self
    }

    /// A queue that is [made](Self::declare) here delivers to all its consumers in turn: for several workers that need no order.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Lets the queue take messages with this routing key (or pattern) from an exchange that is there. Goes with
    /// [`declare`](Self::declare); may be called several times.
    #[must_use]
    pub fn bind(mut self, exchange: &str, routing_key: &str) -> Self {
        self.bindings.push((exchange.to_owned(), routing_key.to_owned()));
        self
    }

    /// Connects, and begins to read.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a name that cannot be one, [`ErrorKind::Unavailable`] if there is no connection,
    /// [`ErrorKind::NotFound`] if there is no such queue, [`ErrorKind::Denied`] if it may not be read.
    pub async fn subscribe(self) -> Result<RabbitmqSubscriber> {
        let names = self.bindings.iter().flat_map(|(exchange, key)| [exchange, key]);
        if self.queue.is_empty() || names.chain([&self.queue]).any(|name| name.len() > 255) {
            return Err(Error::invalid(
                "names and routing keys in RabbitMQ have at most 255 bytes, and a queue has a name",
            ));
        }
        let single_active_consumer = !self.shared;
        let queue = self.declare.map(|kind| Queue { name: self.queue.clone(), kind, single_active_consumer });
        let (sender, receiver) = mpsc::channel(usize::from(self.prefetch));
        let shared = Arc::new(Shared {
            access: self.access,
            queue: self.queue,
            prefetch: self.prefetch,
            timeout: self.timeout,
            topology: Topology { exchange: None, queue, bindings: self.bindings },
            sender: sender.downgrade(),
            state: StdMutex::default(),
        });
        let session = reader::begin(&shared).await?;
        let reading = tokio::spawn(reader::run(Arc::clone(&shared), sender, session));
        Ok(RabbitmqSubscriber { shared, receiver: Mutex::new(receiver), later: StdMutex::default(), reading })
    }
}

/// Receives from one queue.
///
/// **Order.** A queue that is [declared](SubscriberBuilder::declare) here is received from in order, also through lost
/// connections: it has one active consumer at a time. Consumers that [share](SubscriberBuilder::shared) a queue have no order
/// over keys, and what is rejected for later comes behind what follows it.
///
/// **For good.** [`Requeue::Never`] hands a message to the dead-letter exchange of the queue, as it was, if the queue has one;
/// otherwise the server drops it. A queue that is declared here has none of its own, so give it one by a policy
/// (`dead-letter-exchange`), or make the queue yourself. A quorum queue moves dead letters at most once unless the policy says
/// otherwise (`dead-letter-strategy`).
pub struct RabbitmqSubscriber {
    shared: Arc<Shared>,
    receiver: Mutex<mpsc::Receiver<Result<Item>>>,
    /// What was rejected for later waits here; to the server it is out all the while.
    later: StdMutex<JoinSet<()>>,
    reading: JoinHandle<()>,
}

/// What the reader and its subscriber share.
pub(crate) struct Shared {
    pub(crate) access: Access,
    pub(crate) queue: String,
    pub(crate) prefetch: u16,
    pub(crate) timeout: Duration,
    pub(crate) topology: Topology,
    /// Only the reader keeps the way open: who receives learns when it has ended, however that was.
    sender: mpsc::WeakSender<Result<Item>>,
    state: StdMutex<State>,
}

/// A message on its way to the caller, or out with it.
pub(crate) struct Item {
    /// The number of the connection that it came by.
    pub(crate) session: u64,
    pub(crate) envelope: Envelope,
    pub(crate) attempt: u32,
    /// When the server has delivered it.
    pub(crate) delivered_at: Instant,
    pub(crate) acker: Acker,
}

#[derive(Default)]
struct State {
    /// Counts connections. What came by an earlier one the server gives out again.
    session: u64,
    last: u64,
    /// Out with the caller.
    out: BTreeMap<u64, Item>,
}

impl State {
    fn hand_out(&mut self, item: Item) -> Delivery {
        self.last += 1;
        let delivery = Delivery { envelope: item.envelope.clone(), receipt: Receipt(self.last), attempt: item.attempt };
        self.out.insert(self.last, item);
        delivery
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panicked with the deliveries in hand")
    }

    /// A new connection: what came by the last one is void from now on.
    pub(crate) fn begin_session(&self) -> u64 {
        let mut state = self.state();
        state.session += 1;
        state.out.clear();
        state.session
    }

    fn is_current(&self, item: &Item) -> bool {
        self.state().session == item.session
    }
}

impl RabbitmqSubscriber {
    /// Sets up a subscriber of a queue.
    #[must_use]
    pub fn builder(access: Access, queue: &str) -> SubscriberBuilder {
        SubscriberBuilder {
            access,
            queue: queue.to_owned(),
            prefetch: 256,
            timeout: Duration::from_secs(10),
            declare: None,
            shared: false,
            bindings: Vec::new(),
        }
    }

    /// The client now and then never says that an answer was written to a connection that has just ended.
    async fn in_time<T>(&self, answers: impl Future<Output = T>) -> Result<T> {
        let late = |_| Error::new(ErrorKind::Unavailable, "answer a delivery: the connection does not take it in time");
        timeout(self.shared.timeout, answers).await.map_err(late)
    }

    async fn receive_some(&self, max: usize) -> Result<Vec<Delivery>> {
        let mut receiver = self.receiver.lock().await;
        // Ends with something that still counts.
        let first = loop {
            let ended = || Error::new(ErrorKind::Unavailable, "the reader of this subscriber has ended");
            let item = receiver.recv().await.ok_or_else(ended)??;
            if self.shared.is_current(&item) {
                break item;
            }
        };
        // From here on nothing waits, so nothing that was taken can be lost. An error that comes behind will come again.
        let mut taken = vec![first];
        while taken.len() < max {
            match receiver.try_recv() {
                Ok(Ok(item)) if self.shared.is_current(&item) => taken.push(item),
                Ok(Ok(_)) => {}
                _ => break,
            }
        }
        let mut state = self.shared.state();
        Ok(taken.into_iter().map(|item| state.hand_out(item)).collect())
    }
}

impl Subscriber for RabbitmqSubscriber {
    fn receive(&self, max: u32) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(self.receive_some(max.max(1) as usize))
    }

    /// An acknowledgement is not answered in this protocol. One that is lost on the way means that the message comes again.
    fn acknowledge(&self, receipts: Vec<Receipt>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let items: Vec<Item> = {
                let mut state = self.shared.state();
                receipts.iter().filter_map(|receipt| state.out.remove(&receipt.0)).collect()
            };
            let answers = join_all(items.iter().map(|item| item.acker.ack(BasicAckOptions::default())));
            for answer in self.in_time(answers).await? {
                answered(answer)?;
            }
            if items.len() < receipts.len() { Err(unknown_delivery()) } else { Ok(()) }
        })
    }

    /// For good: the server drops it, or gives it to the queue's dead-letter exchange if it has one. For later: it waits here;
    /// if this subscriber or its connection ends before, the server gives it out again. That is for 25 minutes at most after the
    /// server has delivered it, earlier waits included; a longer wait is refused as [`ErrorKind::Invalid`], and the delivery is
    /// still out.
    fn reject(&self, receipt: Receipt, requeue: Requeue) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if let Requeue::After(wait) = requeue {
                let delivered_at = self.shared.state().out.get(&receipt.0).map(|item| item.delivered_at);
                check_wait(delivered_at.map_or(Duration::ZERO, |at| at.elapsed()), wait)?;
            }
            let Some(item) = self.shared.state().out.remove(&receipt.0) else { return Err(unknown_delivery()) };
            let Requeue::After(wait) = requeue else {
                return answered(self.in_time(item.acker.reject(BasicRejectOptions { requeue: false })).await?);
            };
            let again = Item { attempt: item.attempt.saturating_add(1), ..item };
            let sender = self.shared.sender.clone();
            let mut later = self.later.lock().expect("nobody panicked with what comes later in hand");
            while later.try_join_next().is_some() {}
            later.spawn(async move {
                tokio::time::sleep(wait).await;
                // Nobody receives any more: the server still has it.
                if let Some(sender) = sender.upgrade() {
                    drop(sender.send(Ok(again)).await);
                }
            });
            Ok(())
        })
    }
}

/// Whether a message that has been here for so long may wait for so much longer.
fn check_wait(age: Duration, wait: Duration) -> Result<()> {
    if wait.is_zero() || age.saturating_add(wait) <= LATER_MAX {
        return Ok(());
    }
    Err(Error::invalid(
        "a RabbitMQ server takes a message back that is kept for half an hour; let it wait for less, or schedule it",
    )
    .with("seconds", wait.as_secs())
    .with("seconds_max", LATER_MAX.saturating_sub(age).as_secs()))
}

fn answered(answer: lapin::Result<bool>) -> Result<()> {
    match answer {
        Ok(true) => Ok(()),
        Ok(false) => Err(unknown_delivery()),
        Err(error) => Err(Error::new(ErrorKind::Unavailable, "answer a delivery").caused_by(error)),
    }
}

fn unknown_delivery() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "a delivery cannot be answered: it was answered before, or its connection is gone and it comes again",
    )
}

impl Drop for RabbitmqSubscriber {
    /// The connection ends with the reader, and the server has everything again that was not answered.
    fn drop(&mut self) {
        self.reading.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_waited_before_may_wait_for_less() {
        let minutes = Duration::from_mins;
        assert!(check_wait(Duration::ZERO, LATER_MAX).is_ok());
        assert!(check_wait(minutes(20), minutes(5)).is_ok());
        let refused = check_wait(minutes(20), minutes(6)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(refused.to_string().contains("300"), "how long it still may: {refused}");
        assert!(check_wait(minutes(26), minutes(1)).is_err());
        assert!(check_wait(minutes(26), Duration::ZERO).is_ok(), "it does not wait");
    }
}
