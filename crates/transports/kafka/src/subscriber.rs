//! The subscriber: one member of a consumer group, over one or more topics.
//!
//! A [thread](crate::reader) reads ahead, up to a bound, into a queue that outlives a `receive`, so a `receive` that is dropped
//! takes nothing with it. What the group has on record for a partition is how far everything is answered without a gap; an
//! acknowledgement behind a message that is still out is remembered here, and comes again if this subscriber ends before.
//!
//! The members of a group share its partitions, and a key stays in one partition, so its messages are received in order, also
//! by several members. One that was rejected for later waits here and comes behind what follows it. When partitions move to
//! another member (cooperatively: only those that must), what was answered is committed first; what is out comes again there,
//! and answers to it mean nothing here any more.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError, atomic::Ordering},
    thread,
    time::Duration,
};

use postrider_core::{
    BoxFuture, Error, ErrorKind, Result,
    transport::{Delivery, Receipt, Requeue, Subscriber},
};
use rdkafka::{
    ClientConfig,
    consumer::{BaseConsumer, Consumer},
};
use tokio::{
    sync::{Mutex, mpsc},
    task::{JoinSet, spawn_blocking},
};

use crate::{
    access::Access,
    committer::Committer,
    context::Health,
    ending::{End, Ending},
    error, mapping,
    reader::{self, Client, Item, Receiving, Shared},
    topics::{self, Shape, Topic},
};

/// Settings of a [`KafkaSubscriber`].
#[derive(Clone, Debug)]
pub struct SubscriberBuilder {
    access: Access,
    group: String,
    topics: Vec<String>,
    prefetch: usize,
    timeout: Duration,
    session_timeout: Duration,
    declare: Option<(u32, Option<u32>)>,
}

impl SubscriberBuilder {
    /// How many messages are read ahead at most. Default 256. More of them are in memory, and come again after a crash.
    #[must_use]
    pub fn prefetch(mut self, prefetch: usize) -> Self {
        self.prefetch = prefetch.max(1);
        self
    }

    /// How long the cluster may take to answer, also when the subscriber is closed. Default 10 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long the group waits for a sign of life before it gives this member's partitions to others. Default 45 s. The
    /// brokers have limits of their own, by default 6 s to 30 min.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// Makes topics that are not there, with so many partitions and replicas (`None`: as many as the brokers'
    /// `default.replication.factor` says). Those that are there are left as they are.
    #[must_use]
    pub fn declare(mut self, partitions: u32, replicas: Option<u32>) -> Self {
        self.declare = Some((partitions, replicas));
        self
    }

    /// Finds the topics and joins the group. A group that is new begins with the oldest message.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] without a topic or with bad settings, [`ErrorKind::Unavailable`] if no broker answers,
    /// [`ErrorKind::NotFound`] if there is no such topic.
    pub async fn subscribe(self) -> Result<KafkaSubscriber> {
        let config = self.config()?;
        let declare = self.declare.map(|(partitions, replicas)| Shape::new(partitions, replicas)).transpose()?;
        if let Some(shape) = declare {
            // Of a group only members know; this is an ordinary client.
            topics::make(&self.access.config()?, &self.topics, shape, self.timeout).await?;
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::new(self.prefetch, &sender));
        let context = Receiving { shared: Arc::clone(&shared), health: Health::default() };
        let (names, timeout, shown) = (self.topics, self.timeout, self.access.shown());
        let joined = spawn_blocking(move || {
            let consumer: BaseConsumer<Receiving> =
                config.create_with_context(context).map_err(|e| error::setting(&e))?;
            let consumer = Ending::new(consumer);
            for name in &names {
                find(&consumer, name, timeout, declare.is_some(), &shown)?;
            }
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            consumer.subscribe(&names).map_err(|e| error::failed("subscribe to topics", e))?;
            Ok(consumer)
        });
        let interrupted = |_| Error::new(ErrorKind::Unavailable, "joining the group was interrupted");
        let consumer: Arc<Client> = Arc::new(joined.await.map_err(interrupted)??);
        let end = consumer.end();
        let no_thread = |e| Error::new(ErrorKind::Unavailable, "start the threads of a subscriber").caused_by(e);
        let committer = Committer::start(Arc::clone(&shared), Arc::clone(&consumer), timeout).map_err(no_thread)?;
        let (reading, linger) = (Arc::clone(&shared), self.session_timeout);
        // Both end with the subscriber, and the client with the last of them.
        thread::Builder::new()
            .name("kafka-reader".to_owned())
            .spawn(move || reader::run(&reading, sender, &consumer, linger))
            .map_err(no_thread)?;
        Ok(KafkaSubscriber {
            shared,
            committer,
            end,
            timeout,
            receiver: Mutex::new(receiver),
            out: StdMutex::default(),
            later: StdMutex::default(),
        })
    }

    fn config(&self) -> Result<ClientConfig> {
        if self.topics.is_empty() {
            return Err(Error::invalid("a subscriber needs at least one topic"));
        }
        for topic in &self.topics {
            mapping::check_topic(topic).map_err(|cause| Error::invalid(cause.detail().to_owned()))?;
        }
        if self.group.is_empty() {
            return Err(Error::invalid("a consumer group has a name"));
        }
        let mut config = self.access.config()?;
        // Before the settings that a promise rests on, which are not to be set from outside.
        if config.get("auto.offset.reset").is_none() {
            config.set("auto.offset.reset", "earliest");
        }
        config
            .set("group.id", &self.group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", self.session_timeout.as_millis().to_string())
            .set("queued.min.messages", self.prefetch.to_string())
            .set("queued.max.messages.kbytes", "16384")
            // After having as much as it may, the client would not fetch again for a second.
            .set("fetch.queue.backoff.ms", "5")
            .set("allow.auto.create.topics", "false");
        config.create_native_config().map_err(|e| error::setting(&e))?;
        Ok(config)
    }
}

/// Sees to it that a topic is there. Blocks.
fn find(consumer: &BaseConsumer<Receiving>, name: &str, timeout: Duration, just_made: bool, shown: &str) -> Result<()> {
    let how = if just_made { topics::wait_for } else { topics::look_up };
    let unreachable = |code| {
        let cause = consumer.context().health.cause(code, shown);
        Error::new(ErrorKind::Unavailable, "connect to Kafka").with("cause", cause)
    };
    match how(consumer.client(), name, timeout).map_err(unreachable)? {
        Topic::There | Topic::Lagging(_) | Topic::Unwell(_) => Ok(()),
        Topic::Missing => Err(Error::new(
            ErrorKind::NotFound,
            "find the topic to receive from; make it, or ask for it to be declared",
        )
        .with("topic", name)),
        Topic::Refused(code) => {
            Err(Error::new(ErrorKind::Unavailable, "receive from a topic").with("topic", name).caused_by(code))
        }
    }
}

/// Receives as one member of a group.
///
/// Kafka has no place for dead letters: a message that is rejected for good counts as answered, and the group's offset passes it.
/// It stays in its topic.
///
/// When it is dropped, it leaves the group on a thread of its own, which nobody waits for: the group gives its partitions to
/// others as soon as it has heard of that. A program that ends sooner is missed only after the
/// [session timeout](SubscriberBuilder::session_timeout); [`Self::close`] waits until the group knows.
pub struct KafkaSubscriber {
    shared: Arc<Shared>,
    committer: Committer,
    end: End,
    timeout: Duration,
    receiver: Mutex<mpsc::UnboundedReceiver<Result<Item>>>,
    out: StdMutex<Out>,
    /// What was rejected for later waits here; for the group it is not done with.
    later: StdMutex<JoinSet<()>>,
}

/// What is out with the caller.
#[derive(Default)]
struct Out {
    last: u64,
    by_receipt: BTreeMap<u64, Item>,
}

impl KafkaSubscriber {
    /// Sets up a subscriber of a group over these topics of Kafka.
    #[must_use]
    pub fn builder<T: AsRef<str>>(
        access: Access,
        group: &str,
        topics: impl IntoIterator<Item = T>,
    ) -> SubscriberBuilder {
        SubscriberBuilder {
            access,
            group: group.to_owned(),
            topics: topics.into_iter().map(|topic| topic.as_ref().to_owned()).collect(),
            prefetch: 256,
            timeout: Duration::from_secs(10),
            session_timeout: Duration::from_secs(45),
            declare: None,
        }
    }

    /// Whether reading stands still, because as much is read ahead as may be and nobody receives it.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.shared.paused.load(Ordering::Acquire)
    }

    /// Commits what was answered, leaves the group, and waits until both are done, no longer than the `timeout`: then the group
    /// has given the partitions to others. What is out comes again there. Afterwards nothing more can be received or answered.
    /// If the future is dropped, or the time is over, the end goes on as after a drop.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the cluster does not answer in time.
    pub async fn close(&self) -> Result<()> {
        self.stop();
        let ended = tokio::time::timeout(self.timeout, self.end.clone().wait()).await;
        ended.map_err(|_| {
            Error::new(ErrorKind::Unavailable, "leave the group: the cluster does not answer")
                .with("waited_ms", self.timeout.as_millis())
        })
    }

    /// The threads end, and with them the client.
    fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.changed();
        self.committer.end();
    }

    async fn receive_some(&self, max: usize) -> Result<Vec<Delivery>> {
        let mut receiver = self.receiver.lock().await;
        let ended = || Error::new(ErrorKind::Unavailable, "the reader of this subscriber has ended");
        // Ends with a message that still is ours, or with an error.
        let first = loop {
            let next = receiver.recv().await.ok_or_else(ended)?;
            let item = next.inspect_err(|_| self.shared.heard())?;
            if let Some(item) = self.ours(item) {
                break item;
            }
        };
        // From here on nothing waits, so nothing that was taken can be lost. An error that comes behind will come again.
        let mut taken = vec![first];
        while taken.len() < max {
            match receiver.try_recv() {
                Ok(Ok(item)) => taken.extend(self.ours(item)),
                Ok(Err(_)) => {
                    self.shared.heard();
                    break;
                }
                Err(_) => break,
            }
        }
        let mut out = self.out();
        let deliveries = taken.into_iter().map(|item| out.hand_out(item)).collect();
        self.shared.changed();
        Ok(deliveries)
    }

    /// Takes a message off the queue, unless its partition is somebody else's by now.
    fn ours(&self, item: Item) -> Option<Item> {
        let mut state = self.shared.state();
        state.waiting = state.waiting.saturating_sub(1);
        state.offsets.has(&item.spot).then_some(item)
    }

    /// Notes that deliveries are done with, and commits as far as that goes.
    async fn finish(&self, receipts: &[Receipt]) -> Result<()> {
        {
            let (mut out, mut state) = (self.out(), self.shared.state());
            for item in receipts.iter().filter_map(|receipt| out.by_receipt.remove(&receipt.0)) {
                state.offsets.done(&item.spot);
            }
        }
        self.shared.changed();
        self.committer.commit().await
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Out {
    fn hand_out(&mut self, item: Item) -> Delivery {
        self.last += 1;
        let delivery = Delivery { envelope: item.envelope.clone(), receipt: Receipt(self.last), attempt: item.attempt };
        self.by_receipt.insert(self.last, item);
        delivery
    }
}

impl Subscriber for KafkaSubscriber {
    fn receive(&self, max: u32) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(self.receive_some(max.max(1) as usize))
    }

    /// What cannot be committed because an earlier message of its partition is out, is committed with that one. If the future
    /// is dropped or fails, the next acknowledgement commits it, or it comes again.
    fn acknowledge(&self, receipts: Vec<Receipt>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.finish(&receipts).await })
    }

    /// For later: it waits here, and nothing behind it is committed. If this subscriber ends before, the next one gets it.
    fn reject(&self, receipt: Receipt, requeue: Requeue) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let Requeue::After(wait) = requeue else { return self.finish(&[receipt]).await };
            let Some(item) = self.out().by_receipt.remove(&receipt.0) else { return Ok(()) };
            let again = Item { attempt: item.attempt.saturating_add(1), ..item };
            let shared = Arc::clone(&self.shared);
            let mut later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
            while later.try_join_next().is_some() {}
            later.spawn(async move {
                tokio::time::sleep(wait).await;
                shared.hand_over(again);
            });
            Ok(())
        })
    }
}

impl Drop for KafkaSubscriber {
    fn drop(&mut self) {
        self.stop();
    }
}
