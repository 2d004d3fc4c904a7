//! The consumer to receive by: found, or made where that is asked for, and found or made again if somebody has deleted it.
//!
//! One that is made again goes on behind what is known to be acknowledged by all who share it, so nothing is left out; what
//! was acknowledged since that was last [asked for](Source::note) comes again. If the stream is another one, too, its numbers
//! mean nothing, and all that is in it is received.
//!
//! One that limits how often a message is delivered (`max_deliver`) is refused. A server gives up what has been sent so often
//! without a word to whoever receives, and counts what never arrived, or was [put back](crate::fetch) for the sake of order,
//! unseen: with a limit of 1 such a message is gone, and no other limit is enough for every outage. Who has handled a message often
//! enough rejects it for good.

use async_nats::{
    datetime::DateTime,
    jetstream::{
        Context, ErrorCode,
        consumer::{DeliverPolicy, Info, PullConsumer, pull},
        context::{ConsumerInfoError, ConsumerInfoErrorKind, GetStreamErrorKind},
    },
};
use postrider_core::{Error, ErrorKind, Result};

use crate::fetch::failed;

/// Where to receive from.
pub(crate) struct Source {
    pub(crate) jetstream: Context,
    pub(crate) stream: String,
    pub(crate) consumer: String,
    /// How it is made if there is none.
    pub(crate) declare: Option<pull::Config>,
    /// When the stream was made, and up to which of its numbers everything is acknowledged.
    pub(crate) acknowledged: Option<(DateTime, u64)>,
}

impl Source {
    /// Finds the consumer, or makes it. Dropping the future may leave it made.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such stream, or no such consumer and none is to be made;
    /// [`ErrorKind::Unsupported`] if it gives messages up; [`ErrorKind::Unavailable`] if the server does not say.
    pub(crate) async fn find(&mut self) -> Result<PullConsumer> {
        let stream = self.jetstream.get_stream(&self.stream).await.map_err(|e| match e.kind() {
            GetStreamErrorKind::JetStream(refusal) if refusal.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                Error::new(ErrorKind::NotFound, "find the stream to receive from; make it")
                    .with("stream", &self.stream)
                    .caused_by(e)
            }
            _ => failed("ask for the stream").with("stream", &self.stream).caused_by(e),
        })?;
        let made_at = stream.cached_info().created;
        if self.acknowledged.is_some_and(|(of, _)| of != made_at) {
            self.acknowledged = None;
        }
        let consumer: PullConsumer = match &self.declare {
            Some(config) => {
                let mut config = config.clone();
                if let Some((_, acknowledged)) = self.acknowledged.filter(|(_, acknowledged)| *acknowledged > 0) {
                    config.deliver_policy = DeliverPolicy::ByStartSequence { start_sequence: acknowledged + 1 };
                }
                let made = stream.get_or_create_consumer(&self.consumer, config).await;
                made.map_err(|e| self.about(ErrorKind::Unavailable, "find or make the consumer").caused_by(e))?
            }
            None => stream.get_consumer(&self.consumer).await.map_err(|e| self.cannot_find(e))?,
        };
        self.check(consumer.cached_info())?;
        self.acknowledged.get_or_insert((made_at, 0));
        self.note(consumer.cached_info());
        Ok(consumer)
    }

    /// Whether everything comes again until it is answered.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if not.
    pub(crate) fn check(&self, info: &Info) -> Result<()> {
        let limit = info.config.max_deliver;
        // The server says -1 for none.
        if limit <= 0 {
            return Ok(());
        }
        let advice = "receive by a consumer that gives up messages unseen; set its `max_deliver` to -1, and reject for good what was \
                      delivered often enough";
        Err(self.about(ErrorKind::Unsupported, advice).with("max_deliver", limit))
    }

    /// Notes how far the consumer is.
    pub(crate) fn note(&mut self, info: &Info) {
        if let Some((_, acknowledged)) = &mut self.acknowledged {
            *acknowledged = info.ack_floor.stream_sequence.max(*acknowledged);
        }
    }

    fn cannot_find(&self, error: async_nats::Error) -> Error {
        let missing = |e: &ConsumerInfoError| e.kind() == ConsumerInfoErrorKind::NotFound;
        let found = if error.downcast_ref::<ConsumerInfoError>().is_some_and(missing) {
            self.about(ErrorKind::NotFound, "find the consumer to receive by; make it, or ask for it to be declared")
        } else {
            self.about(ErrorKind::Unavailable, "ask for the consumer")
        };
        found.caused_by(error)
    }

    fn about(&self, kind: ErrorKind, what: &'static str) -> Error {
        Error::new(kind, what).with("stream", &self.stream).with("consumer", &self.consumer)
    }
}
