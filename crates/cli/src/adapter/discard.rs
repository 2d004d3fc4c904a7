//! `discard`: a destination that takes everything and keeps nothing. It must be asked for by name: a route without a
//! destination is a mistake, and a message that vanishes by mistake is the worst kind.

use std::sync::Arc;

use postrider::{
    Outcome, Result,
    core::{BoxFuture, capability::PublisherCapabilities, log::RecordRef, transport::Publisher},
};

use crate::registry::Destination;

/// Opens it. There is nothing to say behind the colon.
pub(crate) fn open(_destination: &Destination<'_>) -> Result<Arc<dyn Publisher>> {
    Ok(Arc::new(Discard))
}

struct Discard;

impl Publisher for Discard {
    fn capabilities(&self) -> PublisherCapabilities {
        PublisherCapabilities {
            name: "discard",
            run_max: u32::MAX,
            message_bytes_max: None,
            batch_max: None,
            batches_max: None,
        }
    }

    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(std::future::ready(vec![Outcome::Durable; batch.len()]))
    }
}
