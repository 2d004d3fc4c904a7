//! The publisher: a batch is pipelined on one connection, and each message is durable with its own acknowledgement.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Duration,
};

use async_nats::jetstream::stream;
use futures_util::{StreamExt, stream::FuturesUnordered};
use postrider_core::{
    BoxFuture, Error, ErrorKind, Result,
    capability::PublisherCapabilities,
    log::RecordRef,
    parked::Cause,
    transport::{Outcome, Publisher},
};
use tokio::{
    sync::broadcast::error::RecvError,
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    access::Access,
    connect::Connection,
    error, mapping,
    subject::{check_prefix, subject},
    unclaimed::Unclaimed,
};

/// What a server takes unless it says otherwise.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Settings of a [`NatsPublisher`].
#[derive(Clone, Debug)]
pub struct Builder {
    access: Access,
    prefix: Option<String>,
    source: String,
    timeout: Duration,
    declare: Option<(String, usize)>,
}

impl Builder {
    /// What every subject begins with, before the topic and a dot. Default: nothing; the subject is the topic. Not with `$`, nor
    /// `_INBOX`: those are the server's own.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = Some(prefix.to_owned()).filter(|prefix| !prefix.is_empty());
        self
    }

    /// The attribute `source` of every event: who speaks. Default `postrider`.
    #[must_use]
    pub fn source(mut self, source: &str) -> Self {
        self.source = source.to_owned();
        self
    }

    /// How long an acknowledgement may take, before the message counts as not gone through. Default 10 s. Keep it below the
    /// route's `publish_timeout`.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Makes the stream, if there is none of that name, with so many replicas, for everything below the prefix, which has to be
    /// set for that. One that is there is left as it is.
    #[must_use]
    pub fn declare(mut self, stream: &str, replicas: usize) -> Self {
        self.declare = Some((stream.to_owned(), replicas));
        self
    }

    /// Checks the settings. Nothing is connected to; that happens with the first publish.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if a setting is out of its range, or a file that it names cannot be read.
    pub fn build(self) -> Result<NatsPublisher> {
        if let Some(prefix) = &self.prefix {
            check_prefix(prefix)?;
        }
        if self.source.is_empty() {
            return Err(Error::invalid("`source` must not be empty: an event says who speaks"));
        }
        if self.timeout.is_zero() {
            return Err(Error::invalid("`timeout` must be more than nothing"));
        }
        let declare =
            self.declare.map(|(name, replicas)| declared(&name, replicas, self.prefix.as_deref())).transpose()?;
        let connection = Connection::new(self.access, self.timeout, declare)?;
        Ok(NatsPublisher { connection, unclaimed: Unclaimed::default(), prefix: self.prefix, source: self.source })
    }
}

/// The stream to make.
fn declared(name: &str, replicas: usize, prefix: Option<&str>) -> Result<stream::Config> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if name.is_empty() || !name.chars().all(fine) {
        return Err(
            Error::invalid("the name of a stream has letters, digits, `-` and `_`").with("stream", name.escape_debug())
        );
    }
    if ![1, 3, 5].contains(&replicas) {
        return Err(Error::invalid("a stream has 1, 3 or 5 replicas").with("replicas", replicas));
    }
    let Some(prefix) = prefix else {
        return Err(Error::invalid("a stream for every subject would swallow the server's own; set a `prefix`"));
    };
    Ok(stream::Config {
        name: name.to_owned(),
        subjects: vec![format!("{prefix}.>")],
        num_replicas: replicas,
        // What is full refuses what is new instead of dropping what is old.
        discard: stream::DiscardPolicy::New,
        ..stream::Config::default()
    })
}

/// Publishes to the streams of a NATS server or cluster.
pub struct NatsPublisher {
    connection: Connection,
    unclaimed: Unclaimed,
    prefix: Option<String>,
    source: String,
}

impl NatsPublisher {
    /// Sets up a publisher.
    #[must_use]
    pub fn builder(access: Access) -> Builder {
        let (source, timeout) = ("postrider".to_owned(), Duration::from_secs(10));
        Builder { access, prefix: None, source, timeout, declare: None }
    }

    async fn publish_all(&self, batch: Vec<RecordRef>) -> Vec<Outcome> {
        if batch.is_empty() {
            return Vec::new();
        }
        // Before anything is sent, so that no loss and no refusal after it is missed.
        let (mut losses, mut refusals) = (self.connection.losses(), self.connection.refusals());
        let open = match self.connection.get().await {
            Ok(open) => open,
            Err(cause) => return vec![Outcome::Unavailable(cause); batch.len()],
        };
        let deadline = Instant::now() + self.connection.timeout;
        let mut outcomes: Vec<Option<Outcome>> = vec![None; batch.len()];
        let mut acknowledgements = FuturesUnordered::new();
        // What is awaited, by place in the batch.
        let mut awaited: BTreeMap<usize, String> = BTreeMap::new();
        let mut unclaimed: BTreeMap<usize, String> = BTreeMap::new();
        // Whether the connection was lost, and why the rest of the batch is not sent.
        let (mut lost, mut unsent): (bool, Option<Cause>) = (false, None);
        for (index, record) in batch.iter().enumerate() {
            if let Some(cause) = &unsent {
                outcomes[index] = Some(Outcome::Unavailable(cause.clone()));
                continue;
            }
            let subject = match subject(self.prefix.as_deref(), &record.envelope.topic) {
                Ok(subject) => subject,
                Err(cause) => {
                    outcomes[index] = Some(Outcome::Rejected(cause));
                    continue;
                }
            };
            let message = match mapping::write(record, &self.source, &subject) {
                Ok(message) => message,
                Err(error) => {
                    outcomes[index] = Some(Outcome::Rejected(Cause::new("bad-headers", error.chain())));
                    continue;
                }
            };
            // A client that is full takes nothing more, and one that was lost keeps what it is given and sends it late.
            let sent = tokio::select! {
                biased;
                _ = losses.changed() => {
                    lost = true;
                    unsent = Some(Cause::new("disconnected", "the connection was lost before this one was sent"));
                    None
                }
                sent = timeout_at(deadline, open.jetstream.send_publish(subject.clone(), message)) => {
                    if sent.is_err() {
                        unsent = Some(Cause::new("timeout", "the connection does not take it in time"));
                    }
                    sent.ok()
                }
            };
            match sent {
                Some(Ok(acknowledgement)) => {
                    let acknowledgement = acknowledgement.into_future();
                    acknowledgements.push(async move { (index, acknowledgement.await) });
                    awaited.insert(index, subject);
                }
                Some(Err(error)) => outcomes[index] = error::outcome(&error, &subject),
                None => outcomes[index] = unsent.clone().map(Outcome::Unavailable),
            }
        }
        // Ends when nothing is awaited any more, or at the deadline.
        while !awaited.is_empty() {
            tokio::select! {
                biased;
                next = acknowledgements.next() => {
                    let Some((index, answer)) = next else { break };
                    // One that was refused meanwhile is awaited no more.
                    let Some(subject) = awaited.remove(&index) else { continue };
                    let outcome = answer.map_or_else(|e| error::outcome(&e, &subject), |_| Some(Outcome::Durable));
                    match &outcome {
                        Some(Outcome::Durable) => self.unclaimed.found(&subject),
                        Some(_) => {}
                        None => drop(unclaimed.insert(index, subject)),
                    }
                    outcomes[index] = outcome;
                }
                refused = refusals.recv() => match refused {
                    Ok(refused) => {
                        for (index, subject) in awaited.extract_if(.., |_, subject| *subject == refused) {
                            outcomes[index] = Some(Outcome::Unavailable(error::denied(&subject)));
                        }
                    }
                    // Those that were missed are silent, which is an outage as well.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => break,
                },
                () = async { if !lost { drop(losses.changed().await) } } => break,
                () = sleep_until(deadline) => {
                    for (index, subject) in mem::take(&mut awaited) {
                        outcomes[index] = Some(error::late(&subject));
                    }
                }
            }
        }
        if !unclaimed.is_empty() {
            let subjects: BTreeSet<String> = unclaimed.values().cloned().collect();
            let known = self.unclaimed.outcomes(&self.connection, open, subjects, deadline).await;
            for (index, subject) in unclaimed {
                outcomes[index] = known.get(&subject).cloned();
            }
        }
        let lost =
            || Outcome::Unknown(Cause::new("connection-lost", "the connection was lost before the acknowledgement"));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(lost)).collect()
    }
}

impl Publisher for NatsPublisher {
    /// A stream takes the second message of a key although it has refused the first, so one is under way at a time.
    fn capabilities(&self) -> PublisherCapabilities {
        let told = self.connection.opened().map(|open| open.client.server_info().max_payload).filter(|max| *max > 0);
        PublisherCapabilities {
            name: "nats",
            run_max: 1,
            message_bytes_max: Some(told.unwrap_or(MESSAGE_BYTES_MAX)),
            batch_max: None,
            batches_max: None,
        }
    }

    /// Dropping the future leaves what was sent under way; the stream may take it.
    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(self.publish_all(batch))
    }

    fn reopen(&self) {
        self.unclaimed.reopen();
    }

    /// Writes out what is still in the client's buffer. There is nothing of ours in it: what is durable was acknowledged.
    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let Some(open) = self.connection.opened() else { return Ok(()) };
            if self.connection.get().await.is_err() {
                return Ok(());
            }
            let flushed = tokio::time::timeout(self.connection.timeout, open.client.flush()).await;
            let failed = |what| Error::new(ErrorKind::Unavailable, what);
            flushed
                .map_err(|_| failed("flush the connection to NATS in time"))?
                .map_err(|e| failed("flush the connection to NATS").caused_by(e))
        })
    }
}
