//! The envelope: a message on its way. The relay moves it and never looks inside the payload.

use std::{fmt, str::FromStr, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    error::{Error, Result},
    headers::Headers,
    key::OrderingKey,
    time::Timestamp,
};

/// Stable over every retry, replay and node, so that brokers and inboxes can recognise a duplicate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MessageId(pub Uuid);

impl MessageId {
    /// A fresh id (UUID version 7). Its time is for people to read; order never comes from it.
    #[must_use]
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for MessageId {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Uuid::parse_str(text).map(Self).map_err(|e| Error::invalid("not a message id (a UUID)").caused_by(e))
    }
}

/// What travels.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    /// Identity.
    pub id: MessageId,
    /// Where to: what routes choose by.
    pub topic: Arc<str>,
    /// Logical type name of the message.
    pub name: Arc<str>,
    /// What must stay in order with its like.
    pub key: Option<OrderingKey>,
    /// Text beside the payload.
    pub headers: Headers,
    /// Opaque bytes.
    pub payload: Bytes,
    /// Not before this instant, by the store's clock.
    pub deliver_at: Option<Timestamp>,
    /// Worthless from this instant on: parked as dead with the cause `expired` instead of being published.
    pub expires_at: Option<Timestamp>,
    /// Attempts before it is dead, where it differs from the route's policy.
    pub attempts_max: Option<u32>,
}

impl Envelope {
    /// An envelope with a fresh id and nothing optional.
    #[must_use]
    pub fn new(topic: &str, name: &str, payload: impl Into<Bytes>) -> Self {
        Self {
            id: MessageId::generate(),
            topic: topic.into(),
            name: name.into(),
            key: None,
            headers: Headers::default(),
            payload: payload.into(),
            deliver_at: None,
            expires_at: None,
            attempts_max: None,
        }
    }

    /// The same with an ordering key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<OrderingKey>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// What it costs to keep this envelope in memory, roughly: what the byte windows of the relay count.
    #[must_use]
    pub fn weight(&self) -> usize {
        let key = self.key.as_ref().map_or(0, |key| key.as_ref().len());
        self.payload.len() + self.headers.encoded().len() + key + size_of::<Self>()
    }
}
