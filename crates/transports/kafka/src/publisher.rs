//! The publisher: a batch is handed to the client at once, and each message is durable with its own acknowledgement.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use postrider_core::{
    BoxFuture, Error, Result,
    capability::PublisherCapabilities,
    log::{Record, RecordRef},
    parked::Cause,
    transport::{Outcome, Publisher},
};
use rdkafka::{
    ClientConfig,
    error::RDKafkaErrorCode as Code,
    producer::{BaseRecord, Producer},
};
use tokio::{
    sync::mpsc,
    task::spawn_blocking,
    time::{Instant, timeout_at},
};

use crate::{
    access::Access,
    ailments::Ailments,
    connect::{Care, Connection, Live},
    context::{Report, Slot},
    error, mapping,
    topics::Shape,
    transaction::Transactions,
};

/// What the client is given beyond the largest message, so that it is never the one to refuse.
const OVERHEAD_BYTES: usize = 64 << 10;

/// How the client compresses what it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// With gzip.
    Gzip,
    /// With Snappy.
    Snappy,
    /// With LZ4.
    Lz4,
    /// With Zstandard.
    Zstd,
}

impl Compression {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// Settings of a [`KafkaPublisher`].
#[derive(Clone, Debug)]
pub struct Builder {
    access: Access,
    topic: Option<String>,
    prefix: String,
    source: String,
    timeout: Duration,
    linger: Duration,
    message_bytes_max: usize,
    compression: Compression,
    declare: Option<(u32, Option<u32>)>,
    transactional_id: Option<String>,
}

impl Builder {
    /// One Kafka topic for everything. Default: each message goes to the Kafka topic that is named like its own, behind the
    /// prefix.
    #[must_use]
    pub fn topic(mut self, topic: &str) -> Self {
        self.topic = Some(topic.to_owned());
        self
    }

    /// What the name of every Kafka topic begins with, before the message's topic. Default: nothing.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.to_owned();
        self
    }

    /// The attribute `source` of every event: who speaks. Default `postrider`.
    #[must_use]
    pub fn source(mut self, source: &str) -> Self {
        self.source = source.to_owned();
        self
    }

    /// How long an acknowledgement may take, the client's own repetitions included, before the message counts as not gone
    /// through. Default 10 s. Keep it below half of the route's `publish_timeout`.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long the client waits for more before it sends. Default 1 ms. More of it makes larger requests and later messages.
    #[must_use]
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// The largest message that is sent: payload, headers and key. A larger one is rejected. Default 976 KiB, which a
    /// broker takes unless it is told otherwise (`message.max.bytes`, and `max.message.bytes` of a topic).
    #[must_use]
    pub fn message_bytes_max(mut self, max: usize) -> Self {
        self.message_bytes_max = max;
        self
    }

    /// How what is sent is compressed. Default: not at all.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Makes a topic that is not there when the first message goes to it, with so many partitions and replicas (`None`: as
    /// many as the brokers' `default.replication.factor` says). One that is there is left as it is. Default: a
    /// [topic](Self::topic) for everything is waited for; a message that names a topic of its own is rejected once the topic
    /// has been missing for as long as the `timeout` is, unless it was there before: then it is waited for.
    #[must_use]
    pub fn declare(mut self, partitions: u32, replicas: Option<u32>) -> Self {
        self.declare = Some((partitions, replicas));
        self
    }

    /// Sends each batch in a transaction under this id, which no other live publisher may have: the younger one shuts the
    /// older one out. One batch is under way at a time, which costs speed. Default: no transactions.
    #[must_use]
    pub fn transactions(mut self, transactional_id: &str) -> Self {
        self.transactional_id = Some(transactional_id.to_owned());
        self
    }

    /// Checks the settings. Nothing is connected to; that happens with the first publish.
    ///
    /// # Errors
    /// [`Invalid`](postrider_core::ErrorKind::Invalid) if a setting is out of its range, or a file that it names cannot be
    /// read.
    pub fn build(self) -> Result<KafkaPublisher> {
        if let Some(topic) = &self.topic {
            mapping::check_topic(topic).map_err(|cause| Error::invalid(cause.detail().to_owned()))?;
            if !self.prefix.is_empty() {
                return Err(Error::invalid("`topic` and `prefix` exclude each other: one topic has one name"));
            }
        } else if !self.prefix.is_empty() {
            mapping::check_topic(&self.prefix).map_err(|cause| Error::invalid(cause.detail().to_owned()))?;
        }
        if self.source.is_empty() {
            return Err(Error::invalid("`source` must not be empty: an event says who speaks"));
        }
        if !(Duration::from_millis(10)..=Duration::from_mins(5)).contains(&self.timeout) {
            return Err(Error::invalid("`timeout` lies between 10 ms and 5 minutes"));
        }
        if self.linger >= self.timeout || self.linger > Duration::from_secs(10) {
            return Err(Error::invalid("`linger` must be less than `timeout`, and no more than 10 s"));
        }
        if !(1_000..=100_000_000).contains(&self.message_bytes_max) {
            return Err(Error::invalid("`message_bytes_max` lies between 1 000 and 100 000 000"));
        }
        if self.transactional_id.as_ref().is_some_and(String::is_empty) {
            return Err(Error::invalid("the id of transactions must not be empty"));
        }
        let declare = self.declare.map(|(partitions, replicas)| Shape::new(partitions, replicas)).transpose()?;
        let config = self.producing()?;
        let mut alone = config.clone();
        alone.set("batch.num.messages", "1");
        let care = Care { declare, fixed: self.topic.is_some() };
        let connection = |config| Connection::new(config, self.access.shown(), self.timeout, care);
        let (together, alone) = (connection(config), connection(alone));
        let transactions = self.transactional_id.as_ref().map(|_| Transactions::default());
        Ok(KafkaPublisher { together, alone, transactions, settings: self })
    }

    /// What the client is told.
    fn producing(&self) -> Result<ClientConfig> {
        let millis = |duration: Duration| duration.as_millis().to_string();
        let mut config = self.access.config()?;
        // Before the settings that a promise rests on, which are not to be set from outside.
        if config.get("partitioner").is_none() {
            config.set("partitioner", "murmur2_random");
        }
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("message.timeout.ms", millis(self.timeout))
            .set("linger.ms", millis(self.linger))
            .set("message.max.bytes", (self.message_bytes_max + OVERHEAD_BYTES).to_string())
            .set("compression.type", self.compression.name())
            .set("allow.auto.create.topics", "false");
        if let Some(id) = &self.transactional_id {
            config.set("transactional.id", id).set("transaction.timeout.ms", millis(self.timeout * 2));
        }
        config.create_native_config().map_err(|e| error::setting(&e))?;
        Ok(config)
    }
}

/// Publishes to the topics of a Kafka cluster.
pub struct KafkaPublisher {
    pub(crate) together: Connection,
    /// Puts each message in a request of its own. A broker refuses a request as a whole because it is too large, which is
    /// the fault of one message, or of none.
    pub(crate) alone: Connection,
    transactions: Option<Transactions>,
    settings: Builder,
}

/// What the client said to one message.
pub(crate) enum Answer {
    Acknowledged,
    /// Only [concluded](Report::Concluded).
    Concluded,
    Unfit(Cause),
    Failed(Code),
}

impl Answer {
    /// Whether the broker has refused the request that the message was in because of its size.
    pub(crate) fn is_too_large(&self) -> bool {
        matches!(self, Self::Failed(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge))
    }
}

impl From<Report> for Answer {
    fn from(report: Report) -> Self {
        match report {
            Report::Acknowledged => Self::Acknowledged,
            Report::Concluded => Self::Concluded,
            Report::Failed(code) => Self::Failed(code),
        }
    }
}

impl KafkaPublisher {
    /// Sets up a publisher.
    #[must_use]
    pub fn builder(access: Access) -> Builder {
        Builder {
            access,
            topic: None,
            prefix: String::new(),
            source: "postrider".to_owned(),
            timeout: Duration::from_secs(10),
            linger: Duration::from_millis(1),
            message_bytes_max: 976 << 10,
            compression: Compression::None,
            declare: None,
            transactional_id: None,
        }
    }

    async fn publish_all(&self, batch: Vec<RecordRef>) -> Vec<Outcome> {
        let mut outcomes: Vec<Option<Outcome>> =
            batch.iter().map(|record| self.unfit(record).map(Outcome::Rejected)).collect();
        if let Err(cause) = self.publish_fit(&batch, &mut outcomes).await {
            for outcome in outcomes.iter_mut().filter(|outcome| outcome.is_none()) {
                *outcome = Some(Outcome::Unavailable(cause.clone()));
            }
        }
        let unanswered = || Outcome::Unknown(Cause::new("timeout", "the client has not answered"));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unanswered)).collect()
    }

    /// Publishes what has no outcome yet.
    ///
    /// # Errors
    /// Why nothing can be sent at all.
    async fn publish_fit(&self, batch: &[RecordRef], outcomes: &mut [Option<Outcome>]) -> Result<(), Cause> {
        let names: BTreeSet<Cow<'_, str>> = open(outcomes).into_iter().map(|index| self.topic(&batch[index])).collect();
        if names.is_empty() {
            return Ok(());
        }
        let live = self.together.get()?;
        let refused = self.together.refused(&live, &names).await?;
        if !refused.is_empty() {
            for index in open(outcomes) {
                outcomes[index] = refused.get(&*self.topic(&batch[index])).cloned();
            }
        }
        if let Some(transactions) = &self.transactions {
            return transactions.publish(self, &live, batch, outcomes).await;
        }
        let mut answers = self.exchange(&live, batch, &open(outcomes)).await;
        let again = self.again_alone(batch, &mut answers).await;
        // Those that could not go again have no outcome yet; what is known of the others counts.
        answers.retain(|(_, answer)| again.is_ok() || !answer.is_too_large());
        self.conclude(&live, batch, answers, outcomes).await;
        again
    }

    /// Hands messages to the client and waits for its answer to each.
    pub(crate) async fn exchange(&self, live: &Live, batch: &[RecordRef], which: &[usize]) -> Vec<(usize, Answer)> {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let mut answers = BTreeMap::new();
        for &index in which {
            if let Err(answer) = self.send(live, &batch[index], Slot { index, answers: sender.clone() }) {
                answers.insert(index, answer);
            }
        }
        drop(sender);
        // Ends with the last answer. The client has one for each message, at the latest when its time is over.
        let deadline = Instant::now() + self.settings.timeout * 2;
        while let Ok(Some((index, report))) = timeout_at(deadline, receiver.recv()).await {
            answers.insert(index, report.into());
        }
        let of = |index| (index, answers.remove(&index).unwrap_or(Answer::Failed(Code::MessageTimedOut)));
        which.iter().copied().map(of).collect()
    }

    fn send(&self, live: &Live, record: &Record, slot: Slot) -> Result<(), Answer> {
        let headers = mapping::headers(record, &self.settings.source)
            .map_err(|error| Answer::Unfit(Cause::new("bad-headers", error.chain())))?;
        let topic = self.topic(record);
        let mut message: BaseRecord<'_, str, [u8], Box<Slot>> =
            BaseRecord::with_opaque_to(&topic, Box::new(slot)).payload(&record.envelope.payload[..]).headers(headers);
        if let Some(key) = &record.envelope.key {
            message = message.key(key.as_str());
        }
        live.producer()
            .send(message)
            .map_err(|(error, _)| Answer::Failed(error.rdkafka_error_code().unwrap_or(Code::InvalidTopic)))
    }

    /// What was refused because a request was too large is sent once more, each in a request of its own.
    ///
    /// # Errors
    /// Why that cannot be done.
    async fn again_alone(&self, batch: &[RecordRef], answers: &mut Vec<(usize, Answer)>) -> Result<(), Cause> {
        let large = answers.iter().filter(|(_, answer)| answer.is_too_large());
        let again: Vec<usize> = large.map(|(index, _)| *index).collect();
        if again.is_empty() {
            return Ok(());
        }
        let live = self.alone.get()?;
        answers.retain(|(_, answer)| !answer.is_too_large());
        answers.extend(self.exchange(&live, batch, &again).await);
        self.retire_if_failed(&self.alone, &live);
        Ok(())
    }

    /// Makes outcomes of answers.
    pub(crate) async fn conclude(
        &self,
        live: &Arc<Live>,
        batch: &[RecordRef],
        answers: Vec<(usize, Answer)>,
        outcomes: &mut [Option<Outcome>],
    ) {
        let mut ailments = Ailments::default();
        for (index, answer) in answers {
            let code = match answer {
                Answer::Acknowledged => {
                    outcomes[index] = Some(Outcome::Durable);
                    continue;
                }
                Answer::Concluded => {
                    outcomes[index] = Some(Outcome::Unknown(error::concluded(&self.topic(&batch[index]))));
                    continue;
                }
                Answer::Unfit(cause) => {
                    outcomes[index] = Some(Outcome::Rejected(cause));
                    continue;
                }
                Answer::Failed(code) => code,
            };
            let topic = self.topic(&batch[index]);
            let mut outcome = error::outcome(code, &topic);
            match code {
                // The client repeats what may go better by itself, so this may have a reason that it does not tell.
                Code::MessageTimedOut => {
                    if ailments.is_open(&topic) {
                        ailments.note(&topic, self.together.ailment(live, &topic).await);
                    }
                    outcome = ailments.of(&topic).unwrap_or(outcome);
                }
                Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition => live.forget(&topic),
                _ => {}
            }
            outcomes[index] = Some(outcome);
        }
        self.retire_if_failed(&self.together, live);
    }

    /// An idempotent producer that has lost count says so and takes nothing more.
    fn retire_if_failed(&self, connection: &Connection, live: &Arc<Live>) {
        if live.producer().client().fatal_error().is_some() {
            connection.retire(live);
        }
    }

    /// Why a message cannot be sent, whatever the cluster says.
    fn unfit(&self, record: &Record) -> Option<Cause> {
        let envelope = &record.envelope;
        let key = envelope.key.as_ref().map_or(0, |key| key.as_str().len());
        let (bytes, max) =
            (envelope.payload.len() + envelope.headers.encoded().len() + key, self.settings.message_bytes_max);
        if bytes > max {
            return Some(Cause::new("too-large", format!("it has {bytes} bytes; message_bytes_max is {max}")));
        }
        mapping::check_topic(&self.topic(record)).err()
    }

    /// The Kafka topic of a record.
    pub(crate) fn topic<'a>(&'a self, record: &'a Record) -> Cow<'a, str> {
        match &self.settings.topic {
            Some(topic) => Cow::Borrowed(topic),
            None if self.settings.prefix.is_empty() => Cow::Borrowed(&record.envelope.topic),
            None => Cow::Owned(format!("{}{}", self.settings.prefix, record.envelope.topic)),
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.settings.timeout
    }
}

/// The places of what has no outcome yet.
pub(crate) fn open(outcomes: &[Option<Outcome>]) -> Vec<usize> {
    outcomes.iter().enumerate().filter(|(_, outcome)| outcome.is_none()).map(|(index, _)| index).collect()
}

impl Publisher for KafkaPublisher {
    /// A broker takes the second message of a key although it has refused the first, so one is under way at a time.
    fn capabilities(&self) -> PublisherCapabilities {
        PublisherCapabilities {
            name: "kafka",
            run_max: 1,
            message_bytes_max: Some(self.settings.message_bytes_max),
            batch_max: None,
            batches_max: self.transactions.as_ref().map(|_| 1),
        }
    }

    /// Dropping the future leaves what was handed to the client under way; the brokers may take it.
    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(self.publish_all(batch))
    }

    fn reopen(&self) {
        self.together.reopen();
    }

    /// There is nothing of ours in the client, unless a publish was dropped: what is durable was acknowledged.
    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            for live in [self.together.take(), self.alone.take()].into_iter().flatten() {
                let timeout = self.settings.timeout;
                let flushed = spawn_blocking(move || live.producer().flush(timeout)).await;
                if let Ok(Err(error)) = flushed {
                    return Err(error::failed("send what the client still has", error));
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder() -> Builder {
        KafkaPublisher::builder(Access::new("kafka://127.0.0.1:9").unwrap())
    }

    #[test]
    fn settings_out_of_their_range_are_refused() {
        assert!(builder().build().is_ok());
        for bad in [
            builder().topic("a/b"),
            builder().prefix("a b"),
            builder().topic("a").prefix("b"),
            builder().source(""),
            builder().timeout(Duration::ZERO),
            builder().timeout(Duration::from_secs(301)),
            builder().linger(Duration::from_secs(20)),
            builder().message_bytes_max(1),
            builder().message_bytes_max(1 << 30),
            builder().declare(0, None),
            builder().transactions(""),
        ] {
            assert!(bad.build().is_err());
        }
    }

    /// As the client itself understands what it is told.
    #[test]
    fn the_client_repeats_safely_and_waits_for_all_replicas_and_has_no_transactions_unless_asked_to() {
        for transactional in [false, true] {
            let builder = if transactional { builder().transactions("relay-1") } else { builder() };
            let config = builder.producing().unwrap();
            let native = config.create_native_config().unwrap();
            let held = |name: &str| native.get(name).unwrap();
            assert_eq!((held("enable.idempotence").as_str(), held("acks").as_str()), ("true", "-1"), "-1 is all");
            assert_eq!(held("partitioner"), "murmur2_random");
            assert_eq!(config.get("transactional.id"), transactional.then_some("relay-1"));
            let publisher = builder.build().unwrap();
            assert_eq!(publisher.capabilities().batches_max, transactional.then_some(1));
        }
    }

    #[test]
    fn every_compression_is_compiled_in() {
        for compression in
            [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd]
        {
            builder().compression(compression).build().unwrap();
        }
    }
}
