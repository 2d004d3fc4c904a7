//! The receiving half.

use std::sync::Arc;

use postrider_core::{
    BoxFuture, Result,
    transport::{Delivery, Receipt, Requeue, Subscriber},
};

use crate::queue::{Found, Queue};

/// Receives from the queue. When it is dropped, what it has not acknowledged goes to the next.
pub struct MemorySubscriber {
    queue: Arc<Queue>,
    number: u64,
}

impl MemorySubscriber {
    pub(crate) fn new(queue: Arc<Queue>) -> Self {
        let number = queue.subscribe();
        Self { queue, number }
    }
}

impl Subscriber for MemorySubscriber {
    /// Messages leave the queue in the same step in which the future is ready, so dropping it before loses nothing.
    fn receive(&self, max: u32) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(async move {
            // Ends with the first delivery.
            loop {
                let changed = self.queue.changed();
                match self.queue.take(self.number, max as usize) {
                    Found::Deliveries(deliveries) => return Ok(deliveries),
                    Found::Nothing(None) => changed.await,
                    Found::Nothing(Some(at)) => {
                        tokio::select! {
                            () = changed => {}
                            () = tokio::time::sleep_until(at) => {}
                        }
                    }
                }
            }
        })
    }

    fn acknowledge(&self, receipts: Vec<Receipt>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.queue.acknowledge(self.number, &receipts);
            Ok(())
        })
    }

    fn reject(&self, receipt: Receipt, requeue: Requeue) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.queue.reject(self.number, receipt, requeue);
            Ok(())
        })
    }
}

impl Drop for MemorySubscriber {
    fn drop(&mut self) {
        self.queue.unsubscribe(self.number);
    }
}
