//! The embedded outbox: messages in an array of the business document itself, for servers without transactions.
//!
//! A standalone server changes one document at a time, and that is enough to change something and announce it at once:
//!
//! ```text
//! application   one write of one document: the change, and `$push` of its mail
//! collector     find documents with mail ─► a journaled write ─► append to a store's log ─► pull the mail
//! relay         from that log on as from any other
//! ```
//!
//! A relay's own state is more than one document, so it is kept in a store that has transactions: a SQLite file beside the
//! relay, or any other. The [`Collector`] carries the mail there.
//!
//! **What it promises.** Nothing is lost: mail is pulled once the log has it, and until then it stays where it is. Nothing is
//! made up: what a crash of the server could still take back is not carried on, which is what the journaled write in between
//! is for. The mail of one document stays in order, under the document's key unless a message has one of its own; what
//! several documents say under one key has no order. A crash between append and pull sends that mail twice; a pull that fails
//! does not.
//!
//! ```no_run
//! use mongodb::bson::{Document, doc};
//! use postrider_core::{enlist::Enlist, envelope::Envelope, limits::Limits};
//! use postrider_store_mongodb::embedded::{Documents, Embedded, Mail};
//!
//! # async fn example(client: &mongodb::Client) -> postrider_core::Result<()> {
//! let outbox = Embedded::default();
//! let orders = Documents::<Document>::new(&client.database("shop").collection("orders"), &outbox);
//!
//! let mut mail = Mail::new();
//! mail.append(&outbox, Limits::default().check(vec![Envelope::new("orders", "order.paid", "{}")]))?;
//! orders.update_one(doc! { "_id": "o-4711" }, doc! { "$set": { "paid": true } }, mail).await?;
//! # Ok(())
//! # }
//! ```

mod builder;
mod collector;
mod documents;
mod guard;
mod mail;
mod ownership;
mod pull;
mod sack;

use std::{fmt, sync::Arc};

use postrider_core::{Error, Result};

pub use self::{
    builder::Builder,
    collector::{Collector, Refused, Round},
    documents::Documents,
    mail::Mail,
};
pub(crate) use self::{
    documents::{mail_waits, waiting},
    guard::may_throw_away,
};

/// The array of a document unless another one is chosen.
pub const FIELD: &str = "_outbox";

/// Messages that wait in one document, unless told otherwise: each write of the document moves them all.
const MESSAGES_MAX: u32 = 100;

/// The same in bytes.
const BYTES_MAX: u32 = 1 << 20;

/// The `S` of [`Enlist<S>`](postrider_core::enlist::Enlist) for mail in documents. Cheap to clone.
#[derive(Clone)]
pub struct Embedded {
    field: Arc<str>,
    messages_max: u32,
    bytes_max: u32,
}

impl Embedded {
    /// Another name for the array.
    ///
    /// # Errors
    /// If it is empty, begins with `$` or has a dot in it.
    pub fn with_field(field: &str) -> Result<Self> {
        if field.is_empty() || field.starts_with('$') || field.contains(['.', '\0']) || field == "_id" {
            return Err(Error::invalid("mail is in a field of the document itself: a name without dots, not with `$`")
                .with("field", field.escape_debug()));
        }
        Ok(Self { field: field.into(), ..Self::default() })
    }

    /// How much may wait in one document: messages and bytes. Default 100 and 1 MiB. A write that would make it more is
    /// refused, and its change with it.
    #[must_use]
    pub fn room(mut self, messages_max: u32, bytes_max: u32) -> Self {
        (self.messages_max, self.bytes_max) = (messages_max, bytes_max);
        self
    }

    /// The name of the array.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
    }
}

impl Default for Embedded {
    fn default() -> Self {
        Self { field: FIELD.into(), messages_max: MESSAGES_MAX, bytes_max: BYTES_MAX }
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").field("field", &self.field).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_array_is_a_field_of_the_document_itself() {
        assert_eq!(Embedded::with_field("mail").unwrap().field(), "mail");
        for bad in ["", "a.b", "$mail", "_id"] {
            assert!(Embedded::with_field(bad).is_err(), "{bad:?}");
        }
    }
}
