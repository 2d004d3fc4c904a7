//! The publisher: a batch is one pipeline, and each message is durable with its own answer.

use std::{borrow::Cow, time::Duration};

use postrider_core::{
    BoxFuture, Error, Result,
    capability::PublisherCapabilities,
    log::RecordRef,
    parked::Cause,
    transport::{Outcome, Publisher},
};
use redis::{Pipeline, Value};

use crate::{access::Access, connect::Connection, error, mapping};

/// Settings of a [`RedisPublisher`].
#[derive(Clone, Debug)]
pub struct Builder {
    access: Access,
    stream: Option<String>,
    prefix: String,
    source: String,
    timeout: Duration,
    message_bytes_max: usize,
    declare: bool,
    replicas: u32,
}

impl Builder {
    /// One stream for all messages, whatever their topic. Default: the stream that is named like the topic, behind the prefix.
    #[must_use]
    pub fn stream(mut self, name: &str) -> Self {
        self.stream = Some(name.to_owned());
        self
    }

    /// What the name of every stream begins with, before the topic. Default: nothing.
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

    /// How long an answer may take, before the batch counts as not gone through. Default 10 s. Keep it below the route's
    /// `publish_timeout`.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The largest payload that is sent; a larger one is rejected. Default 8 MiB. Redis itself takes 512 MB.
    #[must_use]
    pub fn message_bytes_max(mut self, max: usize) -> Self {
        self.message_bytes_max = max;
        self
    }

    /// Lets the first message make its stream. Without it a message whose stream is not there is rejected, and where one stream
    /// is for all messages the route waits for it.
    #[must_use]
    pub fn declare(mut self) -> Self {
        self.declare = true;
        self
    }

    /// How many replicas must have a message before it is durable. Default 0: the server alone.
    #[must_use]
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// Checks the settings. Nothing is connected to; that happens with the first publish.
    ///
    /// # Errors
    /// [`Invalid`](postrider_core::ErrorKind::Invalid) if a setting is out of its range.
    pub fn build(self) -> Result<RedisPublisher> {
        if self.stream.as_ref().is_some_and(String::is_empty) {
            return Err(Error::invalid("the name of a stream must not be empty"));
        }
        if self.stream.is_some() && !self.prefix.is_empty() {
            return Err(Error::invalid("`stream` and `prefix` exclude each other: one stream has one name"));
        }
        if self.source.is_empty() {
            return Err(Error::invalid("`source` must not be empty: an event says who speaks"));
        }
        if self.timeout.is_zero() {
            return Err(Error::invalid("`timeout` must be more than nothing"));
        }
        if self.message_bytes_max > 512_000_000 {
            return Err(Error::invalid("Redis takes no more than 512 MB in one field")
                .with("message_bytes_max", self.message_bytes_max));
        }
        let connection = Connection::new(&self.access, self.timeout)?;
        Ok(RedisPublisher { connection, settings: self })
    }
}

/// Publishes to the streams of a Redis server.
pub struct RedisPublisher {
    connection: Connection,
    settings: Builder,
}

impl RedisPublisher {
    /// Sets up a publisher.
    #[must_use]
    pub fn builder(access: Access) -> Builder {
        Builder {
            access,
            stream: None,
            prefix: String::new(),
            source: "postrider".to_owned(),
            timeout: Duration::from_secs(10),
            message_bytes_max: 8 << 20,
            declare: false,
            replicas: 0,
        }
    }

    async fn publish_all(&self, batch: Vec<RecordRef>) -> Vec<Outcome> {
        let mut outcomes: Vec<Option<Outcome>> = vec![None; batch.len()];
        let mut pipeline = Pipeline::with_capacity(batch.len() + 1);
        let mut sent = Vec::with_capacity(batch.len());
        for (index, record) in batch.iter().enumerate() {
            match self.command(record) {
                Ok(command) => {
                    pipeline.add_command(command);
                    sent.push(index);
                }
                Err(cause) => outcomes[index] = Some(Outcome::Rejected(cause)),
            }
        }
        if !sent.is_empty() {
            match self.exchange(pipeline).await {
                Ok((answers, replicated)) => {
                    for (index, answer) in sent.into_iter().zip(answers) {
                        outcomes[index] = Some(self.conclude(&batch[index], answer, replicated));
                    }
                }
                Err(outcome) => sent.into_iter().for_each(|index| outcomes[index] = Some(outcome.clone())),
            }
        }
        let unanswered =
            || Outcome::Unknown(Cause::new("bad-response", "the server has answered less than it was asked"));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unanswered)).collect()
    }

    /// The command for a record, or why there is none.
    fn command(&self, record: &RecordRef) -> Result<redis::Cmd, Cause> {
        let (bytes, max) = (record.envelope.payload.len(), self.settings.message_bytes_max);
        if bytes > max {
            return Err(Cause::new("too-large", format!("the payload has {bytes} bytes; message_bytes_max is {max}")));
        }
        mapping::write(record, &self.settings.source, &self.stream(record), self.settings.declare)
            .map_err(|error| Cause::new("bad-headers", error.chain()))
    }

    /// The stream of a record.
    fn stream<'a>(&'a self, record: &'a RecordRef) -> Cow<'a, str> {
        match &self.settings.stream {
            Some(stream) => Cow::Borrowed(stream),
            None => Cow::Owned(format!("{}{}", self.settings.prefix, record.envelope.topic)),
        }
    }

    /// Sends a pipeline. The answers to its messages, and whether enough replicas have them; or what became of all of them.
    async fn exchange(&self, mut pipeline: Pipeline) -> Result<(Vec<Value>, bool), Outcome> {
        let mut using = self.connection.get().await.map_err(Outcome::Unavailable)?;
        let replicas = self.settings.replicas;
        if replicas > 0 {
            // Half of the time, so that the answer still comes in time.
            let wait = u64::try_from(self.settings.timeout.as_millis() / 2).unwrap_or(u64::MAX).max(1);
            pipeline.cmd("WAIT").arg(replicas).arg(wait);
        }
        let commands = pipeline.len();
        let mut answers = match using.connection.send_packed_commands(&pipeline, 0, commands).await {
            Ok(answers) => answers,
            Err(error) => {
                self.connection.lost(&using).await;
                return Err(error::unanswered(&error));
            }
        };
        if answers.iter().any(error::is_of_the_wrong_server) {
            self.connection.lost(&using).await;
        }
        let replicated =
            replicas == 0 || matches!(answers.pop(), Some(Value::Int(have)) if have >= i64::from(replicas));
        Ok((answers, replicated))
    }

    fn conclude(&self, record: &RecordRef, answer: Value, replicated: bool) -> Outcome {
        match answer {
            Value::BulkString(_) | Value::SimpleString(_) if replicated => Outcome::Durable,
            // It is written and will be again. Replicas that are missing are an outage, and no message may pay for it.
            Value::BulkString(_) | Value::SimpleString(_) => Outcome::Unavailable(Cause::new(
                "replicas",
                format!("fewer than {} replicas have it in time", self.settings.replicas),
            )),
            Value::Nil => {
                let stream = self.stream(record);
                let detail = format!("there is no stream {stream}; make it, or let the route declare it");
                let cause = Cause::new("no-stream", detail);
                // With one stream for all, none would get through, and no message is at fault.
                if self.settings.stream.is_some() { Outcome::Unavailable(cause) } else { Outcome::Rejected(cause) }
            }
            Value::ServerError(error) => error::refused(&error),
            _ => Outcome::Unknown(Cause::new("bad-response", "the server's answer is not that of XADD")),
        }
    }
}

impl Publisher for RedisPublisher {
    /// Redis takes the second message of a key although it has refused the first, so one is under way at a time.
    fn capabilities(&self) -> PublisherCapabilities {
        PublisherCapabilities {
            name: "redis",
            run_max: 1,
            message_bytes_max: Some(self.settings.message_bytes_max),
            batch_max: None,
            batches_max: None,
        }
    }

    /// Dropping the future leaves what was sent under way; the server may take it.
    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(self.publish_all(batch))
    }
}
