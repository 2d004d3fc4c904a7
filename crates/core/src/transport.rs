//! Transports: how an envelope leaves, and how it arrives.
//!
//! An adapter translates between envelopes and one broker's client. It decides no policy: retries, breakers, timeouts and
//! telemetry are the engine's.

use std::{fmt, time::Duration};

use crate::{
    BoxFuture, capability::PublisherCapabilities, envelope::Envelope, error::Result, log::RecordRef, parked::Cause,
};

/// The longest pause that a destination can ask for: one answer must not stop a route for ever.
pub const THROTTLE_MAX: Duration = Duration::from_hours(24);

/// The shortest pause that a destination asks for. A shorter one is the publisher's own: its room or its turns are taken at
/// the moment, the destination was not asked, and nobody is told that it had wished for it.
pub const ASKED_PAUSE_MIN: Duration = Duration::from_secs(1);

/// What became of one message.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The destination has it for good. Only this settles a message.
    Durable,
    /// The destination refuses this message; others may go through. Counts as an attempt.
    Rejected(Cause),
    /// The destination cannot be reached or takes nothing at all. Never counts as an attempt.
    Unavailable(Cause),
    /// The destination asks for a pause, of [`THROTTLE_MAX`] at most; or the publisher itself does, for less than
    /// [`ASKED_PAUSE_MIN`]. Never counts as an attempt.
    Throttled(Duration),
    /// Nobody knows: it may have arrived. It is published again under the same id.
    Unknown(Cause),
}

impl Outcome {
    /// The stable name, for logs and metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Durable => "durable",
            Self::Rejected(_) => "rejected",
            Self::Unavailable(_) => "unavailable",
            Self::Throttled(_) => "throttled",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// The sending half of a transport.
pub trait Publisher: Send + Sync {
    /// What this transport can do.
    fn capabilities(&self) -> PublisherCapabilities;

    /// Publishes a batch and returns one outcome per message, in the order of the batch.
    ///
    /// Messages of one key stand next to each other. If the transport's `run_max` is more than 1, several of them may: they
    /// must be published in order, and after the first that is not durable none of that key may be published; those are
    /// answered with `Unknown`, `Unavailable` or `Throttled`. Several batches may be under way at the same time, but never
    /// two with the same key. Dropping the future means `Unknown` for all.
    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>>;

    /// An operator has resumed the route after a pause: what was concluded about destinations is asked anew. One that was given
    /// up, because it said that it is gone for good, may be tried again; one that is [missing](crate::missing) and was there
    /// before is not waited for any longer for that. Most conclude nothing and have nothing to do.
    fn reopen(&self) {}

    /// Flushes and closes. Called once, after the last publish.
    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Names a delivery to the subscriber that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Receipt(pub u64);

/// An envelope that arrived.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// What travelled.
    pub envelope: Envelope,
    /// What to acknowledge or reject it by.
    pub receipt: Receipt,
    /// How often it has been delivered, this time included, as far as the broker knows.
    pub attempt: u32,
}

/// What shall become of a rejected delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// Deliver it again, not before this much time has passed.
    After(Duration),
    /// Do not deliver it again.
    Never,
}

/// The receiving half of a transport.
pub trait Subscriber: Send + Sync {
    /// Waits for deliveries and returns between 1 and `max` of them, those of one key in order. Dropping the future loses
    /// nothing. What is neither acknowledged nor rejected is delivered again, at the latest to the next subscriber.
    fn receive(&self, max: u32) -> BoxFuture<'_, Result<Vec<Delivery>>>;

    /// Says that these are done with.
    fn acknowledge(&self, receipts: Vec<Receipt>) -> BoxFuture<'_, Result<()>>;

    /// Says that this one is not.
    fn reject(&self, receipt: Receipt, requeue: Requeue) -> BoxFuture<'_, Result<()>>;
}

impl fmt::Debug for dyn Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Publisher({})", self.capabilities().name)
    }
}
