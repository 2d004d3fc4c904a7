//! Everything that a relay tells: events for logs and metrics, and counters.
//!
//! This is a contract: tests assert it. Adapters neither log nor count what they return; it is done here, once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use postrider_core::{
    Error,
    envelope::MessageId,
    lease::{Epoch, LaneId},
    parked::Cause,
    time::Timestamp,
    transport::Outcome,
};

/// Something that happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// This node took a lane.
    LaneAcquired {
        /// The lane.
        lane: &'a LaneId,
        /// The new epoch.
        epoch: Epoch,
    },
    /// This node gave a lane back, or lost it.
    LaneEnded {
        /// The lane.
        lane: &'a LaneId,
        /// `drained`, `fenced`, `finished`, `gone` (that of a replay which is no more), `deadline`, `crashed`.
        how: &'static str,
    },
    /// The destination refused a message; it will be tried again.
    Rejected {
        /// The lane.
        lane: &'a LaneId,
        /// The message.
        id: MessageId,
        /// Attempts made.
        attempts: u32,
        /// Why.
        cause: &'a Cause,
    },
    /// A message was given up.
    Dead {
        /// The lane.
        lane: &'a LaneId,
        /// The message.
        id: MessageId,
        /// Attempts made.
        attempts: u32,
        /// Why.
        cause: &'a Cause,
        /// Whether its key waits for an operator.
        blocks: bool,
    },
    /// The destination takes nothing: the lane waits, and no attempts are counted.
    BreakerOpened {
        /// The lane.
        lane: &'a LaneId,
        /// Why.
        cause: &'a Cause,
    },
    /// The destination takes nothing still, though for another reason than the one that was last told.
    OutageChanged {
        /// The lane.
        lane: &'a LaneId,
        /// Why by now.
        cause: &'a Cause,
    },
    /// The topic, queue or stream that a message goes to takes nothing, and others of the route do: it waits with its key, the
    /// others go on, and no attempts are counted. Told when it begins, and when the reason changes.
    SetAside {
        /// The lane.
        lane: &'a LaneId,
        /// The first such message.
        id: MessageId,
        /// Why.
        cause: &'a Cause,
    },
    /// The destination answers again.
    BreakerClosed {
        /// The lane.
        lane: &'a LaneId,
    },
    /// The lane came to rest while its destination took nothing, for a pause or because its route was replaced. It keeps
    /// the lane, and begins afresh: nobody knows whether the destination would answer by now.
    BreakerForgotten {
        /// The lane.
        lane: &'a LaneId,
    },
    /// The destination asks for a pause: the lane waits, and no attempts are counted.
    Throttled {
        /// The lane.
        lane: &'a LaneId,
        /// For how long.
        pause: Duration,
    },
    /// A named limit keeps the cursor from passing a message.
    Stalled {
        /// The lane.
        lane: &'a LaneId,
        /// The first message that cannot be passed.
        id: MessageId,
        /// The limit.
        limit: &'static str,
    },
    /// The store could not do something; it is tried again.
    StoreFailed {
        /// What: `register`, `heartbeat`, `acquire`, `resume`, `read`, `due`, `settle`, `release`, `finish`, `purge`,
        /// `retire`.
        operation: &'static str,
        /// How.
        error: &'a Error,
    },
    /// The store did not know a route of this node any more: somebody has forgotten it. It was made known again, and begins
    /// where a new route begins.
    RouteForgotten {
        /// The route.
        route: &'a str,
    },
    /// A route reads topics that this node does not ask for: another one does that serves it. Told once, until it changes.
    ReadForOthers {
        /// The route.
        route: &'a str,
        /// The patterns that this node does not ask for.
        topics: &'a str,
    },
    /// Retention removed delivered records.
    Purged {
        /// How many.
        records: u64,
    },
    /// An operator has asked this node to leave: it drains, and its run ends.
    AskedToLeave,
    /// The relay has stopped.
    Stopped {
        /// How long the drain took.
        drained_in: Duration,
    },
}

/// The work itself, batch by batch: what counters and histograms are made of.
#[derive(Debug)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// A page was read.
    Read {
        /// How many records it has.
        records: usize,
        /// How long the store took.
        took: Duration,
    },
    /// A batch was handed to the publisher.
    Publishing {
        /// How many messages it has.
        messages: usize,
    },
    /// A batch has come back.
    Published {
        /// What became of each message.
        outcomes: &'a [Outcome],
        /// When each was enqueued, by the store's clock.
        enqueued_at: &'a [Timestamp],
        /// From handing over to the answer.
        took: Duration,
    },
    /// The cursor moved, or rows were changed, in one commit.
    Settled {
        /// How long the store took.
        took: Duration,
    },
}

/// Who is told. Calls come from the relay's own tasks and must not block.
pub trait Observer: Send + Sync {
    /// Something happened.
    fn observe(&self, event: &Event<'_>);

    /// A lane did a piece of its work. Called for every batch, so whatever is done here must be cheap. Default: nothing.
    fn progress(&self, lane: &LaneId, progress: &Progress<'_>) {
        let _ = (lane, progress);
    }
}

/// Tells several.
impl Observer for Vec<Arc<dyn Observer>> {
    fn observe(&self, event: &Event<'_>) {
        self.iter().for_each(|observer| observer.observe(event));
    }

    fn progress(&self, lane: &LaneId, progress: &Progress<'_>) {
        self.iter().for_each(|observer| observer.progress(lane, progress));
    }
}

/// From here on people should hear of a pause that a destination asks for.
const LONG_PAUSE: Duration = Duration::from_secs(10);

/// Writes every event as a line of `tracing`, under the target `postrider::relay`.
#[derive(Clone, Copy, Debug)]
pub struct TracingObserver;

impl Observer for TracingObserver {
    fn observe(&self, event: &Event<'_>) {
        use tracing::{debug, info, warn};
        const TARGET: &str = "postrider::relay";
        match event {
            Event::LaneAcquired { lane, epoch } => info!(target: TARGET, %lane, epoch = epoch.0, "lane acquired"),
            Event::LaneEnded { lane, how: how @ ("deadline" | "crashed" | "fenced") } => {
                warn!(target: TARGET, %lane, how, "lane ended; what it had not settled may be published again");
            }
            Event::LaneEnded { lane, how } => info!(target: TARGET, %lane, how, "lane ended"),
            Event::Rejected { lane, id, attempts, cause } => {
                debug!(target: TARGET, %lane, %id, attempts, %cause, "message rejected, will be tried again");
            }
            Event::Dead { lane, id, attempts, cause, blocks } => {
                warn!(target: TARGET, %lane, %id, attempts, %cause, blocks, "message given up");
            }
            Event::BreakerOpened { lane, cause } => {
                warn!(target: TARGET, %lane, %cause, "nothing goes through; the lane waits, no attempts are counted");
            }
            Event::OutageChanged { lane, cause } => {
                warn!(target: TARGET, %lane, %cause, "still nothing goes through, for another reason than before");
            }
            Event::SetAside { lane, id, cause } => {
                warn!(target: TARGET, %lane, %id, %cause, "one destination takes nothing, others do; its messages wait");
            }
            Event::BreakerClosed { lane } => info!(target: TARGET, %lane, "destination answers again"),
            Event::BreakerForgotten { lane } => {
                info!(target: TARGET, %lane, "lane rests; its destination took nothing, and is asked anew when it goes on");
            }
            Event::Throttled { lane, pause } if *pause >= LONG_PAUSE => {
                let until = Timestamp::now().saturating_add(*pause);
                warn!(target: TARGET, %lane, ?pause, %until, "the destination asks for a pause; the lane waits until then");
            }
            Event::Throttled { lane, pause } => {
                debug!(target: TARGET, %lane, ?pause, "the destination asks for a pause");
            }
            Event::Stalled { lane, id, limit } => {
                warn!(target: TARGET, %lane, %id, limit, "a limit keeps the cursor from passing this message");
            }
            Event::StoreFailed { operation, error } => {
                warn!(target: TARGET, operation, error = error.chain(), "the store failed; it is tried again");
            }
            Event::RouteForgotten { route } => {
                warn!(
                    target: TARGET, route,
                    "the route was forgotten in the store while this relay has it; it is made known again as a new one"
                );
            }
            Event::ReadForOthers { route, topics } => {
                warn!(
                    target: TARGET, route, topics,
                    "another process serves this route and asks for topics that this one does not name: they are read here \
                     too, until nobody asks for them any more"
                );
            }
            Event::Purged { records } => debug!(target: TARGET, records, "delivered records removed"),
            Event::AskedToLeave => info!(target: TARGET, "an operator has asked this node to leave; draining"),
            Event::Stopped { drained_in } => info!(target: TARGET, ?drained_in, "relay stopped"),
        }
    }
}

/// Counters since the relay started, over all its lanes.
#[derive(Debug, Default)]
pub struct Stats {
    pub(crate) durable: AtomicU64,
    pub(crate) publishes: AtomicU64,
    pub(crate) settles: AtomicU64,
    pub(crate) dead: AtomicU64,
    pub(crate) fenced: AtomicU64,
    pub(crate) lanes: AtomicU64,
    /// Microseconds on the runtime's clock, and one: 0 is never.
    pub(crate) heartbeat_at: AtomicU64,
    pub(crate) undrained: AtomicU64,
}

impl Stats {
    /// Messages that a destination has for good.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Relaxed)
    }

    /// Batches handed to publishers.
    #[must_use]
    pub fn publishes(&self) -> u64 {
        self.publishes.load(Ordering::Relaxed)
    }

    /// Commits to the store.
    #[must_use]
    pub fn settles(&self) -> u64 {
        self.settles.load(Ordering::Relaxed)
    }

    /// Messages given up.
    #[must_use]
    pub fn dead(&self) -> u64 {
        self.dead.load(Ordering::Relaxed)
    }

    /// Lanes lost to another owner.
    #[must_use]
    pub fn fenced(&self) -> u64 {
        self.fenced.load(Ordering::Relaxed)
    }

    /// Lanes that did not finish what was in flight before the drain deadline passed: the next owner publishes it again.
    /// Counted when the relay stops.
    #[must_use]
    pub fn undrained(&self) -> u64 {
        self.undrained.load(Ordering::Relaxed)
    }

    /// Lanes that this node owns now.
    #[must_use]
    pub fn lanes(&self) -> u64 {
        self.lanes.load(Ordering::Relaxed)
    }
}
