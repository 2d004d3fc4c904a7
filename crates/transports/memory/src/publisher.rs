//! The sending half.

use std::{sync::Arc, time::Duration};

use postrider_core::{
    BoxFuture, Result,
    capability::PublisherCapabilities,
    envelope::Envelope,
    headers::Headers,
    log::RecordRef,
    parked::Cause,
    transport::{Outcome, Publisher},
};

use crate::queue::Queue;

/// What a full queue asks the relay to wait: long enough to let a consumer run, too short to be noticed.
const FULL_WAIT: Duration = Duration::from_millis(5);

/// Publishes into the queue.
#[derive(Clone)]
pub struct MemoryPublisher(pub(crate) Arc<Queue>);

impl Publisher for MemoryPublisher {
    /// A batch goes in under one lock, so its order is kept however many of one key it has.
    fn capabilities(&self) -> PublisherCapabilities {
        PublisherCapabilities {
            name: "memory",
            run_max: u32::MAX,
            message_bytes_max: None,
            batch_max: None,
            batches_max: None,
        }
    }

    /// The longest part of the batch that fits goes in; what is behind it is asked to come again. The future never waits,
    /// so dropping it means all or nothing.
    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let mut envelopes = Vec::with_capacity(batch.len());
            let mut refused = None;
            for record in &batch {
                match travelling(record) {
                    Ok(envelope) => envelopes.push(envelope),
                    Err(error) => {
                        refused = Some(Outcome::Rejected(Cause::new("bad-headers", error)));
                        break;
                    }
                }
            }
            let offered = envelopes.len();
            let taken = self.0.push(envelopes);
            let mut outcomes = vec![Outcome::Durable; taken];
            outcomes.extend(refused.filter(|_| taken == offered));
            outcomes.resize(batch.len(), Outcome::Throttled(FULL_WAIT));
            outcomes
        })
    }
}

/// The envelope as a subscriber gets it: a replay is marked by a header, since nothing else travels beside it.
fn travelling(record: &RecordRef) -> Result<Envelope> {
    let mut envelope = record.envelope.clone();
    if record.replay.is_some() {
        let pairs: serde_json::Map<_, _> =
            record.headers()?.into_iter().map(|(name, value)| (name, value.into())).collect();
        envelope.headers = Headers::from_encoded(serde_json::Value::Object(pairs).to_string().into());
    }
    Ok(envelope)
}
