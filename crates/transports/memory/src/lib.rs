//! An in-process transport: a publisher and subscribers over one bounded queue.
//!
//! For tests, for trying things out, and for handlers in the relay's own process. A message is durable once it is in the
//! queue; nothing survives the process, and a relay that publishes here relies on that.
//!
//! The queue holds `capacity` messages, those that were received and not yet acknowledged included. A message that finds it
//! full is answered with [`Throttled`](postrider_core::transport::Outcome::Throttled), as is everything behind it in its
//! batch: nothing is dropped, and the relay comes back.
//!
//! ```
//! use postrider_transport_memory::MemoryTransport;
//!
//! let transport = MemoryTransport::new(1_000);
//! let publisher = transport.publisher();
//! let subscriber = transport.subscriber();
//! ```

mod publisher;
mod queue;
mod subscriber;

use std::sync::Arc;

pub use publisher::MemoryPublisher;
pub use subscriber::MemorySubscriber;

use queue::Queue;

/// A queue in memory. Clones share it.
#[derive(Clone)]
pub struct MemoryTransport(Arc<Queue>);

impl MemoryTransport {
    /// An empty queue for this many messages; at least one.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Queue::new(capacity.max(1))))
    }

    /// The sending half. Any number may be used at the same time.
    #[must_use]
    pub fn publisher(&self) -> MemoryPublisher {
        MemoryPublisher(Arc::clone(&self.0))
    }

    /// A receiving half. Several share the messages between them, which leaves no order over keys; one alone receives
    /// them in order.
    #[must_use]
    pub fn subscriber(&self) -> MemorySubscriber {
        MemorySubscriber::new(Arc::clone(&self.0))
    }

    /// How many messages are in the queue, those that are not yet acknowledged included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether everything has been acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
