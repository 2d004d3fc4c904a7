//! The publisher: a batch is one pipeline, and each message is durable with its own answer.

use std::{
    borrow::Cow,
    time::{Duration, Instant},
};

use postrider_core::{
    BoxFuture, Error, Result,
    capability::PublisherCapabilities,
    log::RecordRef,
    missing::Missing,
    parked::Cause,
    transport::{Outcome, Publisher},
};
use redis::{Pipeline, Value};

use crate::{
    access::Access,
    connect::{Connection, Using},
    error, mapping,
    replicas::Replicas,
    reply,
};

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

    /// Lets the first message make its stream. Without it a message whose stream was never there is rejected when that has been
    /// so for as long as `timeout`. A stream that took messages of this publisher is waited for, and so is one that is for all.
    #[must_use]
    pub fn declare(mut self) -> Self {
        self.declare = true;
        self
    }

    /// How many replicas must have a message before it is durable. Default 0: the server alone. With replicas one batch is under
    /// way at a time, because waiting for them holds up the connection.
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
        let replicas = Replicas::new(self.replicas, self.timeout);
        Ok(RedisPublisher { connection, replicas, missing: Missing::default(), settings: self })
    }
}

/// Publishes to the streams of a Redis server.
pub struct RedisPublisher {
    connection: Connection,
    replicas: Replicas,
    /// Streams that are not there, and those that were.
    missing: Missing,
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
        let mut left = Vec::with_capacity(batch.len());
        for (index, record) in batch.iter().enumerate() {
            match self.command(record) {
                Ok(command) => left.push((index, command)),
                Err(cause) => outcomes[index] = Some(Outcome::Rejected(cause)),
            }
        }
        if !left.is_empty()
            && let Err((outcome, left)) = self.exchange(&batch, left, &mut outcomes).await
        {
            left.into_iter().for_each(|index| outcomes[index] = Some(outcome.clone()));
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

    /// Sends what is left of a batch, and concludes from the answers. Or what became of all for which there is none, and which
    /// those are.
    async fn exchange(
        &self,
        batch: &[RecordRef],
        mut left: Vec<(usize, redis::Cmd)>,
        outcomes: &mut [Option<Outcome>],
    ) -> Result<(), (Outcome, Vec<usize>)> {
        let all = |left: &[(usize, redis::Cmd)]| left.iter().map(|(index, _)| *index).collect::<Vec<_>>();
        let Some(_turn) = self.replicas.turn().await else { return Err((self.too_few(), all(&left))) };
        let mut using = self.connection.get().await.map_err(|cause| (Outcome::Unavailable(cause), all(&left)))?;
        let there = self.replicated_before(&mut using, batch, &all(&left)).await;
        let there = there.map_err(|outcome| (outcome, all(&left)))?;
        left.retain(|(index, _)| !there.contains(index));
        for index in there {
            outcomes[index] = Some(Outcome::Durable);
        }
        if left.is_empty() {
            return Ok(());
        }
        let mut pipeline = Pipeline::with_capacity(left.len() + 1);
        let (left, commands): (Vec<usize>, Vec<redis::Cmd>) = left.into_iter().unzip();
        for command in commands {
            pipeline.add_command(command);
        }
        self.replicas.ask(&mut pipeline);
        let mut answers = match self.ask(&mut using, &pipeline).await {
            Ok(answers) => answers,
            Err(outcome) => return Err((outcome, left)),
        };
        let replicated = self.replicas.have_it(answers.get(left.len()));
        self.replicas.note(using.number, replicated);
        answers.truncate(left.len());
        for (index, answer) in left.into_iter().zip(answers) {
            outcomes[index] = Some(self.conclude(&using, &batch[index], answer, replicated));
        }
        Ok(())
    }

    /// Makes sure that there are enough replicas, where that is in doubt. Which of these are written already, by an attempt
    /// for which there were too few; the others are not.
    async fn replicated_before(
        &self,
        using: &mut Using,
        batch: &[RecordRef],
        left: &[usize],
    ) -> Result<Vec<usize>, Outcome> {
        let streams: Vec<Cow<'_, str>> = left.iter().map(|index| self.stream(&batch[*index])).collect();
        let messages: Vec<_> = streams.iter().zip(left).map(|(stream, index)| (&**stream, &*batch[*index])).collect();
        let Some((asking, places)) = self.replicas.before(using.number, &messages) else { return Ok(Vec::new()) };
        let answers = self.ask(using, &asking).await?;
        let enough = self.replicas.have_it(answers.first());
        self.replicas.note(using.number, enough);
        if !enough {
            // A server that has become a replica itself says no instead of a number, and the address may lead to another.
            if !matches!(answers.first(), Some(Value::Int(_))) {
                self.connection.lost(using).await;
            }
            return Err(self.too_few());
        }
        let mut there = Vec::new();
        for (place, answer) in places.into_iter().zip(answers.into_iter().skip(1)) {
            let (stream, record) = messages[place];
            self.replicas.forget(stream, record);
            if !reply::entries(answer).is_empty() {
                there.push(left[place]);
            }
        }
        Ok(there)
    }

    /// Sends a pipeline. Its answers, or what became of everything in it.
    async fn ask(&self, using: &mut Using, pipeline: &Pipeline) -> Result<Vec<Value>, Outcome> {
        let answers = match using.connection.send_packed_commands(pipeline, 0, pipeline.len()).await {
            Ok(answers) => answers,
            Err(error) => {
                self.connection.lost(using).await;
                return Err(error::unanswered(&error));
            }
        };
        if answers.iter().any(error::is_of_the_wrong_server) {
            self.connection.lost(using).await;
        }
        Ok(answers)
    }

    fn conclude(&self, using: &Using, record: &RecordRef, answer: Value, replicated: bool) -> Outcome {
        match answer {
            Value::BulkString(_) | Value::SimpleString(_) => {
                let stream = self.stream(record);
                self.missing.found(&stream);
                if replicated {
                    return Outcome::Durable;
                }
                // It is written, and looked for again. Replicas that are missing are an outage, and no message may pay for it.
                if let Some(entry) = reply::text(answer) {
                    self.replicas.remember(using.number, &stream, record, entry);
                }
                self.too_few()
            }
            Value::Nil => {
                let stream = self.stream(record);
                let detail = format!("there is no stream {stream}; make it, or let the route declare it");
                // With one stream for all, none would get through, and no message is at fault. Nor is one at fault for a server
                // that was started without its data.
                if self.settings.stream.is_some() {
                    return Outcome::Unavailable(Cause::new("no-stream", detail));
                }
                let cause = Cause::of_one_destination("no-stream", detail);
                let leads_nowhere = self.missing.leads_nowhere(&stream, Instant::now(), self.settings.timeout);
                if leads_nowhere { Outcome::Rejected(cause) } else { Outcome::Unavailable(cause) }
            }
            Value::ServerError(error) => match error::refused(&error) {
                // As with a stream that is missing: the name is the route's, and none would get through.
                Outcome::Rejected(cause) if self.settings.stream.is_some() => Outcome::Unavailable(cause),
                outcome => outcome,
            },
            _ => Outcome::Unknown(Cause::new("bad-response", "the server's answer is not that of XADD")),
        }
    }

    fn too_few(&self) -> Outcome {
        let detail = format!("fewer than {} replicas have it in time", self.replicas.wanted());
        Outcome::Unavailable(Cause::new("replicas", detail))
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

    /// Streams that are missing now are no longer waited for because they were there once.
    fn reopen(&self) {
        self.missing.forget_all();
    }
}
