//! [`Mail`]: what one write of a document says, gathered before the write.

use mongodb::bson::Bson;
use postrider_core::{
    Result,
    enlist::{Batch, Enlist},
    envelope::Envelope,
};

use super::Embedded;
use crate::records::fields;

/// Messages for one document, in order. An outbox enqueues into it as into a transaction; the write that takes it is the
/// commit. Dropped, it was never sent.
#[derive(Debug, Default)]
#[must_use = "mail is sent by the write that takes it"]
pub struct Mail(Vec<Envelope>);

impl Mail {
    /// Without messages.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// What they take in the document, with the names of their fields.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|envelope| envelope.weight() + envelope.topic.len() + envelope.name.len() + 128).sum()
    }

    /// As they stand in the array.
    pub(super) fn into_entries(self) -> Vec<Bson> {
        self.0.iter().map(|envelope| fields(envelope).into()).collect()
    }
}

impl Enlist<Embedded> for Mail {
    type Appended<'a> = Result<()>;

    fn append<'a>(&'a mut self, _: &'a Embedded, batch: Result<Batch>) -> Result<()> {
        self.0.extend_from_slice(batch?.envelopes());
        Ok(())
    }
}
