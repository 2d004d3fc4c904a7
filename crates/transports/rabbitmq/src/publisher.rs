//! The publisher: a batch is pipelined on a channel of its own, and each message is durable with its own confirm.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant as StdInstant},
};

use futures_util::future::join_all;
use lapin::types::ShortString;
use postrider_core::{
    BoxFuture, Error, ErrorKind, Result,
    capability::PublisherCapabilities,
    log::RecordRef,
    missing::Missing,
    parked::Cause,
    transport::{Outcome, Publisher},
};
use tokio::time::{Instant, timeout_at};

use crate::{
    access::Access,
    apart,
    confirm::{self, Message, Verdict},
    connect::Connections,
    error::{self, Blame},
    mapping,
    topology::{Queue, QueueKind, Topology},
};

/// A routing key, and the name of an exchange or queue, has no more bytes than this.
const NAME_BYTES_MAX: usize = 255;
/// Every routing key, to a topic exchange.
const EVERYTHING: &str = "#";
/// Groups of messages that are sent apart from each other, each over a channel of its own, at the same time.
const APART_AT_ONCE: usize = 8;
/// How long what was not asked for rests, because others were denied and nothing went through. If that remains so, the engine
/// waits for longer by itself.
const NOT_ASKED: Duration = Duration::from_millis(100);
/// The cause of an outage: a right is missing.
const DENIED: &str = "denied";

/// Settings of a [`RabbitmqPublisher`].
#[derive(Clone, Debug)]
pub struct Builder {
    access: Access,
    exchange: String,
    routing_key: Option<String>,
    source: String,
    timeout: Duration,
    message_bytes_max: usize,
    declare: Option<(String, QueueKind)>,
}

impl Builder {
    /// The exchange that messages go to. Default: the server's default exchange, whose routing keys are the names of queues.
    #[must_use]
    pub fn exchange(mut self, name: &str) -> Self {
        self.exchange = name.to_owned();
        self
    }

    /// The routing key of every message. Default: the message's topic. With one key for all, a message that no queue takes is an
    /// outage, because none would be taken; otherwise it is rejected once no queue has taken its key for as long as `timeout`,
    /// unless one took that key before: then that queue is waited for.
    #[must_use]
    pub fn routing_key(mut self, key: &str) -> Self {
        self.routing_key = Some(key.to_owned());
        self
    }

    /// The attribute `source` of every event: who speaks. Default `postrider`.
    #[must_use]
    pub fn source(mut self, source: &str) -> Self {
        self.source = source.to_owned();
        self
    }

    /// How long the confirms of a batch may take, before what has none counts as not gone through. Default 10 s. Keep it below
    /// the route's `publish_timeout`.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The largest payload that is sent; a larger one is rejected. Default 16 MiB, what RabbitMQ 4 takes unless told otherwise.
    #[must_use]
    pub fn message_bytes_max(mut self, max: usize) -> Self {
        self.message_bytes_max = max;
        self
    }

    /// Makes what is missing of: the exchange, as a durable topic exchange; this queue; and a binding between them, by the
    /// routing key that is set or for every one. Without an exchange the queue's name becomes the routing key. What is there
    /// is left as it is. Made anew if it goes missing while messages are published: those that it would have taken wait. The
    /// queue is for any number of consumers; one that keeps to a single active one is made by its
    /// [subscriber](crate::SubscriberBuilder::declare), or by hand.
    #[must_use]
    pub fn declare(mut self, queue: &str, kind: QueueKind) -> Self {
        self.declare = Some((queue.to_owned(), kind));
        self
    }

    /// Checks the settings. Nothing is connected to; that happens with the first publish.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if a setting is out of its range.
    pub fn build(mut self) -> Result<RabbitmqPublisher> {
        if self.source.is_empty() {
            return Err(Error::invalid("`source` must not be empty: an event says who speaks"));
        }
        if self.timeout.is_zero() {
            return Err(Error::invalid("`timeout` must be more than nothing"));
        }
        let topology = self.topology()?;
        for (what, name) in [("exchange", Some(&self.exchange)), ("routing_key", self.routing_key.as_ref())] {
            if name.is_some_and(|name| name.len() > NAME_BYTES_MAX) {
                return Err(Error::invalid("a name in RabbitMQ has at most 255 bytes").with("setting", what));
            }
        }
        let connections = Connections::new(self.access.clone(), self.timeout, topology);
        Ok(RabbitmqPublisher { shared: Arc::new(Shared { connections, settings: self, missing: Missing::default() }) })
    }

    /// What to make.
    fn topology(&mut self) -> Result<Topology> {
        let Some((queue, kind)) = self.declare.clone() else { return Ok(Topology::default()) };
        if queue.is_empty() || queue.len() > NAME_BYTES_MAX || queue.starts_with("amq.") {
            return Err(Error::invalid("the name of a queue has 1 to 255 bytes and does not begin with `amq.`")
                .with("queue", queue.escape_debug()));
        }
        if self.exchange.is_empty() {
            // The default exchange has one binding for each queue, by its name.
            if self.routing_key.get_or_insert_with(|| queue.clone()) != &queue {
                return Err(Error::invalid(
                    "without an `exchange` the routing key is the name of the queue; set one of them, or an `exchange`",
                )
                .with("queue", queue.escape_debug()));
            }
            let queue = Queue { name: queue, kind, single_active_consumer: false };
            return Ok(Topology { queue: Some(queue), ..Topology::default() });
        }
        let key = self.routing_key.clone().unwrap_or_else(|| EVERYTHING.to_owned());
        let bindings = vec![(self.exchange.clone(), key)];
        let queue = Queue { name: queue, kind, single_active_consumer: false };
        Ok(Topology { exchange: Some(self.exchange.clone()), queue: Some(queue), bindings })
    }
}

/// Publishes to an exchange of a RabbitMQ server or cluster.
pub struct RabbitmqPublisher {
    shared: Arc<Shared>,
}

struct Shared {
    connections: Connections,
    settings: Builder,
    /// Routing keys that no queue takes, and those that one took.
    missing: Missing,
}

impl RabbitmqPublisher {
    /// Sets up a publisher.
    #[must_use]
    pub fn builder(access: Access) -> Builder {
        Builder {
            access,
            exchange: String::new(),
            routing_key: None,
            source: "postrider".to_owned(),
            timeout: Duration::from_secs(10),
            message_bytes_max: 16 << 20,
            declare: None,
        }
    }
}

impl Shared {
    async fn publish_all(&self, batch: &[RecordRef]) -> Vec<Outcome> {
        let mut outcomes: Vec<Option<Outcome>> = vec![None; batch.len()];
        let mut messages = Vec::with_capacity(batch.len());
        for (index, record) in batch.iter().enumerate() {
            match self.message(index, record) {
                Ok(message) => messages.push(message),
                Err(cause) => outcomes[index] = Some(Outcome::Rejected(cause)),
            }
        }
        let (deadline, verdicts) = self.exchange(messages, None).await;
        let mut groups: VecDeque<Vec<usize>> = self.note(batch, verdicts, &mut outcomes).into();
        // Ends because groups become smaller each time that they are parted, and a message that is alone is not.
        while !groups.is_empty() {
            let some: Vec<Vec<usize>> = groups.drain(..groups.len().min(APART_AT_ONCE)).collect();
            for verdicts in join_all(some.iter().map(|group| self.again(batch, group, deadline))).await {
                groups.extend(self.note(batch, verdicts, &mut outcomes));
            }
            if some.len() == APART_AT_ONCE && seems_forbidden(&some, &outcomes) {
                for index in groups.drain(..).flatten() {
                    outcomes[index] = Some(Outcome::Throttled(NOT_ASKED));
                }
            }
        }
        let lost = || Outcome::Unknown(Cause::new("connection-lost", "nothing is known of this message"));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(lost)).collect()
    }

    /// Sends a group over a channel of its own, in what is left of the time.
    async fn again(&self, batch: &[RecordRef], group: &[usize], deadline: Instant) -> Vec<(usize, Verdict)> {
        let messages = group.iter().filter_map(|&index| self.message(index, &batch[index]).ok());
        self.exchange(messages.collect(), Some(deadline)).await.1
    }

    /// Notes what became of everything that went over one channel. Answers with the groups in which the rest goes again.
    fn note(
        &self,
        batch: &[RecordRef],
        verdicts: Vec<(usize, Verdict)>,
        outcomes: &mut [Option<Outcome>],
    ) -> Vec<Vec<usize>> {
        let groups = apart::groups(&verdicts, |index| self.routing_key(&batch[index]));
        for (index, verdict) in verdicts {
            if groups.is_empty() || !matches!(verdict, Verdict::Blamed(_)) {
                outcomes[index] = Some(self.outcome(&batch[index], verdict));
            }
        }
        groups
    }

    /// The message for a record, or why there is none.
    fn message<'a>(&self, index: usize, record: &'a RecordRef) -> Result<Message<'a>, Cause> {
        let (bytes, max) = (record.envelope.payload.len(), self.settings.message_bytes_max);
        if bytes > max {
            return Err(Cause::new("too-large", format!("the payload has {bytes} bytes; message_bytes_max is {max}")));
        }
        let routing_key = ShortString::try_new(self.routing_key(record))
            .map_err(|_| Cause::new("routing-key", "a routing key has at most 255 bytes"))?;
        let (properties, properties_bytes) =
            mapping::write(record, &self.settings.source).map_err(|error| Cause::new("bad-headers", error.chain()))?;
        Ok(Message { index, routing_key, properties, properties_bytes, payload: &record.envelope.payload })
    }

    /// Sends messages over a channel and waits for their confirms, until the deadline at the latest, which is counted from the
    /// channel on if there is none. Answers with the deadline.
    async fn exchange(
        &self,
        mut messages: Vec<Message<'_>>,
        deadline: Option<Instant>,
    ) -> (Instant, Vec<(usize, Verdict)>) {
        let from_now = || Instant::now() + self.connections.timeout;
        if messages.is_empty() {
            return (deadline.unwrap_or_else(from_now), Vec::new());
        }
        let late = |_| Err(Cause::new("timeout", "there was no time left to send it once more"));
        let lent = match deadline {
            Some(deadline) => timeout_at(deadline, self.connections.lend()).await.unwrap_or_else(late),
            None => self.connections.lend().await,
        };
        let deadline = deadline.unwrap_or_else(from_now);
        let lent = match lent {
            Ok(lent) => lent,
            Err(cause) => {
                let unavailable = Verdict::Told(Outcome::Unavailable(cause));
                return (deadline, messages.iter().map(|message| (message.index, unavailable.clone())).collect());
            }
        };
        let max = lent.frame_bytes_max();
        let large = messages.extract_if(.., |message| message.properties_bytes > max);
        let detail = format!("the headers have more than the {max} bytes of a frame");
        let too_large = Verdict::Told(Outcome::Rejected(Cause::new("too-large", detail)));
        let mut verdicts: Vec<_> = large.map(|message| (message.index, too_large.clone())).collect();
        let answers = confirm::send(&lent.channel, &self.settings.exchange, messages, deadline).await;
        let (state, concluded) = confirm::conclude(answers, lent.blocked());
        verdicts.extend(concluded);
        match state {
            // Something of what we have made is gone. Whoever connects makes it again.
            _ if self.settings.declare.is_some() && verdicts.iter().any(|(_, verdict)| leads_nowhere(verdict)) => {
                self.connections.give_up(&lent).await;
            }
            confirm::State::Usable => lent.give_back(),
            confirm::State::ChannelLost => {}
            confirm::State::Blocked => self.connections.set_aside(lent).await,
            confirm::State::ConnectionLost => self.connections.give_up(&lent).await,
        }
        (deadline, verdicts)
    }

    fn outcome(&self, record: &RecordRef, verdict: Verdict) -> Outcome {
        match verdict {
            Verdict::Told(outcome) => {
                if outcome == Outcome::Durable {
                    self.missing.found(self.routing_key(record));
                }
                outcome
            }
            // What we make takes everything that goes there, and one routing key leads all to the same queues: if a message is
            // not taken, the queue or its binding is gone, and that is no fault of the message.
            Verdict::Returned if self.settings.declare.is_some() || self.settings.routing_key.is_some() => {
                Outcome::Unavailable(self.unroutable(record))
            }
            // A classic queue is gone for as long as its server is, and nobody says which of the two it is; so what was taken
            // before is waited for.
            Verdict::Returned => {
                let (key, patience) = (self.routing_key(record), self.connections.timeout);
                let leads_nowhere = self.missing.leads_nowhere(key, StdInstant::now(), patience);
                let cause = self.unroutable(record);
                if leads_nowhere { Outcome::Rejected(cause) } else { Outcome::Unavailable(cause) }
            }
            Verdict::Blamed(Blame::Content(cause)) => Outcome::Rejected(cause),
            // Nobody gets through before somebody gives us the right; it is no fault of the message.
            Verdict::Blamed(Blame::RoutingKey(said)) if self.settings.routing_key.is_some() => {
                Outcome::Unavailable(Cause::new(DENIED, said))
            }
            Verdict::Blamed(Blame::RoutingKey(said)) => Outcome::Unavailable(Cause::of_one_destination(DENIED, said)),
        }
    }

    fn routing_key<'a>(&'a self, record: &'a RecordRef) -> &'a str {
        self.settings.routing_key.as_deref().unwrap_or(&record.envelope.topic)
    }

    fn unroutable(&self, record: &RecordRef) -> Cause {
        let key = self.routing_key(record);
        let place = match self.settings.exchange.as_str() {
            "" => format!("there is no queue {key}"),
            exchange => format!("no queue takes {key} from the exchange {exchange}"),
        };
        match self.settings.declare {
            Some(_) => Cause::new("unroutable", format!("{place}; what is missing is made with the next connection")),
            None if self.settings.routing_key.is_some() => Cause::new("unroutable", format!("{place}; {MAKE_ONE}")),
            None => Cause::of_one_destination("unroutable", format!("{place}; {MAKE_ONE}")),
        }
    }
}

/// What somebody is asked to do about a queue that is not there.
const MAKE_ONE: &str = "make one, or let the route declare it";

/// Whether all of these groups may not go where they should, and nothing else of the batch goes through: perhaps no routing key
/// would do.
fn seems_forbidden(groups: &[Vec<usize>], outcomes: &[Option<Outcome>]) -> bool {
    let denied =
        |index: &usize| matches!(&outcomes[*index], Some(Outcome::Unavailable(cause)) if cause.code() == DENIED);
    groups.iter().flatten().all(denied) && !outcomes.contains(&Some(Outcome::Durable))
}

/// Whether there was no queue for a message, or no exchange.
fn leads_nowhere(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Returned => true,
        Verdict::Told(Outcome::Unavailable(cause)) => cause.code() == error::NO_EXCHANGE,
        Verdict::Told(_) | Verdict::Blamed(_) => false,
    }
}

impl Publisher for RabbitmqPublisher {
    /// The server takes the second message of a key although it has refused the first, so one is under way at a time.
    fn capabilities(&self) -> PublisherCapabilities {
        PublisherCapabilities {
            name: "rabbitmq",
            run_max: 1,
            message_bytes_max: Some(self.shared.settings.message_bytes_max),
            batch_max: None,
            batches_max: None,
        }
    }

    /// Dropping the future leaves the batch under way, in a task of its own: a channel that is left in the middle of a message
    /// would take the whole connection with it.
    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        let count = batch.len();
        if count == 0 {
            return Box::pin(std::future::ready(Vec::new()));
        }
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let task = tokio::spawn(async move { shared.publish_all(&batch).await });
            let ended = |_| vec![Outcome::Unknown(Cause::new("publish", "the publishing task has ended")); count];
            task.await.unwrap_or_else(ended)
        })
    }

    /// Routing keys that no queue takes now are no longer waited for because one took them once.
    fn reopen(&self) {
        self.shared.missing.forget_all();
    }

    /// Closes the connection. What is durable was confirmed.
    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let failed = |what| Error::new(ErrorKind::Unavailable, what);
            let closing = tokio::time::timeout(self.shared.connections.timeout, self.shared.connections.close());
            closing
                .await
                .map_err(|_| failed("close the connection to RabbitMQ in time"))?
                .map_err(|e| failed("close the connection to RabbitMQ").caused_by(e))
        })
    }
}
