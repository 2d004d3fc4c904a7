//! A typed value with a logical name: what the application hands to the outbox.

use std::borrow::Cow;

use serde::Serialize;

use crate::error::{Error, Result};

/// A message type.
///
/// The name is logical and stable (`order.placed`); it is what consumers in any language see, and renaming the Rust type
/// does not change it.
///
/// ```
/// use std::borrow::Cow;
/// use postrider_core::message::Message;
///
/// #[derive(serde::Serialize)]
/// struct OrderPlaced { order: String, cents: u64 }
///
/// impl Message for OrderPlaced {
///     const NAME: &'static str = "order.placed";
///     fn topic(&self) -> Cow<'_, str> { "orders".into() }
///     fn key(&self) -> Option<Cow<'_, str>> { Some(self.order.as_str().into()) }
/// }
/// ```
pub trait Message: Serialize {
    /// The logical type name.
    const NAME: &'static str;

    /// Media type of what [`Self::encode`] makes.
    const CONTENT_TYPE: &'static str = "application/json";

    /// Where it goes. Routes choose by topic. Default: the name.
    fn topic(&self) -> Cow<'_, str> {
        Self::NAME.into()
    }

    /// The value whose messages must stay in order, if order matters. Default: none.
    fn key(&self) -> Option<Cow<'_, str>> {
        None
    }

    /// How often messages of this type are tried, where it differs from the route's policy. Default: as the route says.
    fn attempts_max(&self) -> Option<u32> {
        None
    }

    /// The payload. Default: JSON.
    ///
    /// # Errors
    /// If the value cannot be written.
    fn encode(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self)
            .map_err(|e| Error::invalid("message cannot be encoded as JSON").with("name", Self::NAME).caused_by(e))
    }
}
