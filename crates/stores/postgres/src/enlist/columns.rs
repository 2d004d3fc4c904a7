//! Envelopes as the statements bind them: one by one, or one array a column.

use postrider_core::{envelope::Envelope, headers::Headers, key::OrderingKey};
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::values::Instant;

/// Which statement a batch needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One message without a time or limits of its own.
    Plain,
    /// One message.
    One,
    /// Any number.
    Many,
}

impl Shape {
    /// `None` for a batch that needs none.
    pub(super) fn of(batch: &[Envelope]) -> Option<Self> {
        match batch {
            [] => None,
            [one] if one.deliver_at.is_none() && one.expires_at.is_none() && one.attempts_max.is_none() => {
                Some(Self::Plain)
            }
            [_] => Some(Self::One),
            _ => Some(Self::Many),
        }
    }
}

/// What a statement binds, with and without its types.
type Bound<'a> = &'a (dyn ToSql + Sync);

/// One envelope, for the statements that insert one.
pub(super) struct One<'e> {
    id: Uuid,
    topic: &'e str,
    name: &'e str,
    key: Option<&'e str>,
    deliver_at: Option<Instant>,
    expires_at: Option<Instant>,
    attempts_max: Option<i64>,
    headers: Option<&'e [u8]>,
    payload: &'e [u8],
}

impl<'e> One<'e> {
    pub(super) fn new(envelope: &'e Envelope) -> Self {
        Self {
            id: envelope.id.0,
            topic: &envelope.topic,
            name: &envelope.name,
            key: envelope.key.as_ref().map(OrderingKey::as_str),
            deliver_at: envelope.deliver_at.map(Instant),
            expires_at: envelope.expires_at.map(Instant),
            attempts_max: envelope.attempts_max.map(i64::from),
            headers: headers_or_null(&envelope.headers),
            payload: &envelope.payload,
        }
    }

    /// For [`Shape::Plain`].
    pub(super) fn bound_plain(&self) -> [(Bound<'_>, Type); 6] {
        [
            (&self.id, Type::UUID),
            (&self.topic, Type::TEXT),
            (&self.name, Type::TEXT),
            (&self.key, Type::TEXT),
            (&self.headers, Type::BYTEA),
            (&self.payload, Type::BYTEA),
        ]
    }

    /// For [`Shape::One`].
    pub(super) fn bound(&self) -> [(Bound<'_>, Type); 9] {
        [
            (&self.id, Type::UUID),
            (&self.topic, Type::TEXT),
            (&self.name, Type::TEXT),
            (&self.key, Type::TEXT),
            (&self.deliver_at, Type::TIMESTAMPTZ),
            (&self.expires_at, Type::TIMESTAMPTZ),
            (&self.attempts_max, Type::INT8),
            (&self.headers, Type::BYTEA),
            (&self.payload, Type::BYTEA),
        ]
    }
}

/// A batch, for the statement that inserts any number.
pub(super) struct Many<'e> {
    ids: Vec<Uuid>,
    topics: Vec<&'e str>,
    names: Vec<&'e str>,
    keys: Vec<Option<&'e str>>,
    deliver_at: Vec<Option<Instant>>,
    expires_at: Vec<Option<Instant>>,
    attempts_max: Vec<Option<i64>>,
    headers: Vec<Option<&'e [u8]>>,
    payloads: Vec<&'e [u8]>,
}

impl<'e> Many<'e> {
    pub(super) fn new(batch: &'e [Envelope]) -> Self {
        Self {
            ids: column(batch, |envelope| envelope.id.0),
            topics: column(batch, |envelope| &*envelope.topic),
            names: column(batch, |envelope| &*envelope.name),
            keys: column(batch, |envelope| envelope.key.as_ref().map(OrderingKey::as_str)),
            deliver_at: column(batch, |envelope| envelope.deliver_at.map(Instant)),
            expires_at: column(batch, |envelope| envelope.expires_at.map(Instant)),
            attempts_max: column(batch, |envelope| envelope.attempts_max.map(i64::from)),
            headers: column(batch, |envelope| headers_or_null(&envelope.headers)),
            payloads: column(batch, |envelope| envelope.payload.as_ref()),
        }
    }

    pub(super) fn bound(&self) -> [(Bound<'_>, Type); 9] {
        [
            (&self.ids, Type::UUID_ARRAY),
            (&self.topics, Type::TEXT_ARRAY),
            (&self.names, Type::TEXT_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.deliver_at, Type::TIMESTAMPTZ_ARRAY),
            (&self.expires_at, Type::TIMESTAMPTZ_ARRAY),
            (&self.attempts_max, Type::INT8_ARRAY),
            (&self.headers, Type::BYTEA_ARRAY),
            (&self.payloads, Type::BYTEA_ARRAY),
        ]
    }
}

/// One array a column.
pub(super) fn column<'e, T>(batch: &'e [Envelope], value: impl Fn(&'e Envelope) -> T) -> Vec<T> {
    batch.iter().map(value).collect()
}

/// No headers are no bytes.
pub(super) fn headers_or_null(headers: &Headers) -> Option<&[u8]> {
    (!headers.is_empty()).then(|| headers.encoded().as_ref())
}

#[cfg(test)]
mod tests {
    use postrider_core::time::Timestamp;

    use super::*;

    #[test]
    fn the_short_statement_is_for_messages_that_would_bind_nulls_to_the_rest_of_the_long_one() {
        let plain = Envelope::new("orders", "order.placed", "{}");
        assert_eq!(Shape::of(&[]), None);
        assert_eq!(Shape::of(std::slice::from_ref(&plain)), Some(Shape::Plain));
        assert_eq!(Shape::of(&[plain.clone(), plain.clone()]), Some(Shape::Many));
        let at = Some(Timestamp::from_micros(1));
        for more in [
            Envelope { deliver_at: at, ..plain.clone() },
            Envelope { expires_at: at, ..plain.clone() },
            Envelope { attempts_max: Some(3), ..plain },
        ] {
            assert_eq!(Shape::of(&[more]), Some(Shape::One));
        }
    }
}
