//! The publisher: a batch becomes lines, the lines one write.

use std::{
    io::Write,
    path::Path,
    sync::{Arc, Mutex},
};

use postrider_core::{
    BoxFuture, Error, ErrorKind, Result,
    capability::PublisherCapabilities,
    key::KeyHash,
    log::RecordRef,
    parked::Cause,
    transport::{Outcome, Publisher},
};

use crate::{error, line::write_line, sink::Sink};

/// Writes messages as lines of JSON.
pub struct NdjsonPublisher {
    name: &'static str,
    sink: Arc<Mutex<Sink>>,
}

impl NdjsonPublisher {
    /// Writes to standard output. Durable means flushed: what a pipe does with it is out of sight.
    #[must_use]
    pub fn stdout() -> Self {
        Self::to("stdout", Sink::stdout())
    }

    /// Appends to a file, which is made if it is not there, and syncs every batch to disk. Others may append to it at the
    /// same time. A torn last line, as a crash leaves it, is completed by a line break with the next write, whoever makes
    /// it. A file that was moved away or removed is made anew with the next batch: to rotate it, move it away.
    ///
    /// # Errors
    /// If the file cannot be opened for appending, or its directory not be synced.
    pub fn file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Ok(Self::to("file", Sink::file(path).map_err(|e| error::open(path, e))?))
    }

    /// Writes to anything. Durable means flushed.
    #[must_use]
    pub fn writer(writer: impl Write + Send + 'static) -> Self {
        Self::to("writer", Sink::writer(Box::new(writer)))
    }

    /// Whether a file is synced to disk before a message counts as durable. Default yes. Without it a crash of the machine,
    /// though not of the process, can lose messages that the relay has settled.
    #[must_use]
    pub fn sync(self, on: bool) -> Self {
        self.sink.lock().expect("nobody panicked while writing").set_sync(on);
        self
    }

    fn to(name: &'static str, sink: Sink) -> Self {
        Self { name, sink: Arc::new(Mutex::new(sink)) }
    }

    /// Runs one blocking step on a thread where blocking is allowed. It runs to its end even if nobody waits for it.
    async fn blocking<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Sink) -> T + Send + 'static,
    ) -> Result<T, tokio::task::JoinError> {
        let sink = Arc::clone(&self.sink);
        tokio::task::spawn_blocking(move || act(&mut sink.lock().expect("nobody panicked while writing"))).await
    }
}

impl Publisher for NdjsonPublisher {
    /// A batch is one write, so its order is kept however many of one key it has.
    fn capabilities(&self) -> PublisherCapabilities {
        PublisherCapabilities {
            name: self.name,
            run_max: u32::MAX,
            message_bytes_max: None,
            batch_max: None,
            batches_max: None,
        }
    }

    /// A failed write makes the whole batch unavailable, though some of its lines may be there: they come again.
    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let (lines, mut outcomes) = lines_of(&batch);
            if lines.is_empty() {
                return outcomes;
            }
            let failed = match self.blocking(move |sink| sink.write(&lines)).await {
                Ok(Ok(())) => return outcomes,
                Ok(Err(error)) => Outcome::Unavailable(error::cause(&error)),
                Err(_) => Outcome::Unknown(Cause::new("write-interrupted", "the runtime stopped while writing")),
            };
            for outcome in outcomes.iter_mut().filter(|outcome| **outcome == Outcome::Durable) {
                *outcome = failed.clone();
            }
            outcomes
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let closed = self.blocking(Sink::close).await;
            let failed = |message| Error::new(ErrorKind::Unavailable, message);
            closed
                .map_err(|e| failed("the runtime stopped while closing").caused_by(e))?
                .map_err(|e| failed("flush what was written").caused_by(e))
        })
    }
}

/// The lines of a batch, and what becomes of each message if they can be written. A message whose headers cannot be read
/// is rejected, and stops its key for the rest of the batch.
fn lines_of(batch: &[RecordRef]) -> (Vec<u8>, Vec<Outcome>) {
    let mut lines = Vec::new();
    let mut stopped: Option<KeyHash> = None;
    let outcomes = batch.iter().map(|record| {
        if record.key.is_some() && record.key == stopped {
            return Outcome::Unknown(Cause::new(
                "behind-a-rejected",
                "the message before it of the same key was rejected",
            ));
        }
        match write_line(&mut lines, record) {
            Ok(()) => Outcome::Durable,
            Err(error) => {
                stopped = record.key;
                Outcome::Rejected(Cause::new("bad-headers", error))
            }
        }
    });
    let outcomes = outcomes.collect();
    (lines, outcomes)
}
