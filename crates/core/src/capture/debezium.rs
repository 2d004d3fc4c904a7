//! The outbox table that Debezium's event router reads, captured as it is.
//!
//! An application that writes such a table goes on as before; each row that it inserts becomes a message in the same
//! transaction. Our state lies beside the table and nothing in it is ever updated or deleted, so that a connector can go on
//! reading it too, and the habit of deleting a row in the transaction that inserted it changes nothing.

use super::{Capture, Operation, Payload};
use crate::error::Result;

/// Where Debezium sends what it finds, unless it is told otherwise.
pub const TOPIC: &str = "outbox.event.${aggregatetype}";

impl Capture {
    /// A table with the columns `id`, `aggregatetype`, `aggregateid`, `type` and `payload`: message id, the last part of the
    /// topic ([`DEBEZIUM_TOPIC`](super::DEBEZIUM_TOPIC)), key, name and payload. Other columns can be added as
    /// [headers](Capture::header), and a table that calls its columns otherwise is described with the other methods.
    ///
    /// # Errors
    /// If the table is not written as `schema.table`.
    pub fn debezium(table: &str) -> Result<Self> {
        let capture = Self::new(table, TOPIC)?.id("id")?.key("aggregateid")?;
        Ok(capture.payload(Payload::Column("payload".to_owned()))?.on_insert(Operation::named("${type}")?))
    }

    /// Other topics.
    ///
    /// # Errors
    /// If it is not a [`Template`](super::Template).
    pub fn topic(mut self, topic: &str) -> Result<Self> {
        self.topic = super::Template::parse(topic)?;
        Ok(self)
    }
}
