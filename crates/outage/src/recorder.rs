//! What a publisher has said of each message: how often it may have arrived without being known to.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use postrider_core::{
    BoxFuture, Result,
    capability::PublisherCapabilities,
    envelope::MessageId,
    log::RecordRef,
    transport::{Outcome, Publisher},
};

/// Causes by which an adapter says that it had no connection, and so has sent nothing.
const UNSENT: [&str; 4] = ["connect", "connect-timeout", "dns", "disconnected"];

/// How often each message may have arrived although that is not known.
#[derive(Clone, Default)]
pub(crate) struct Doubts(Arc<Mutex<BTreeMap<MessageId, usize>>>);

impl Doubts {
    /// How often this one may have arrived, beside the one time that is known.
    pub(crate) fn of(&self, id: MessageId) -> usize {
        self.doubts().get(&id).copied().unwrap_or(0)
    }

    fn doubts(&self) -> MutexGuard<'_, BTreeMap<MessageId, usize>> {
        self.0.lock().expect("nobody panicked with the doubts in hand")
    }
}

/// A publisher whose outcomes are written down.
pub(crate) struct Recorder<P> {
    inner: P,
    doubts: Doubts,
}

impl<P: Publisher> Recorder<P> {
    pub(crate) fn new(inner: P) -> (Self, Doubts) {
        let doubts = Doubts::default();
        (Self { inner, doubts: doubts.clone() }, doubts)
    }
}

/// Whether this outcome leaves no doubt: it is known to have arrived, or known to be unsent.
fn is_sure(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Durable => true,
        Outcome::Unavailable(cause) => UNSENT.contains(&cause.code()),
        _ => false,
    }
}

impl<P: Publisher> Publisher for Recorder<P> {
    fn capabilities(&self) -> PublisherCapabilities {
        self.inner.capabilities()
    }

    /// Dropped, it leaves a doubt about all of them.
    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let ids: Vec<MessageId> = batch.iter().map(|record| record.envelope.id).collect();
            for id in &ids {
                *self.doubts.doubts().entry(*id).or_default() += 1;
            }
            let outcomes = self.inner.publish(batch).await;
            for (id, _) in ids.iter().zip(&outcomes).filter(|(_, outcome)| is_sure(outcome)) {
                *self.doubts.doubts().entry(*id).or_default() -= 1;
            }
            outcomes
        })
    }

    fn reopen(&self) {
        self.inner.reopen();
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.close()
    }
}
