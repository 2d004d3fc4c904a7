//! What an outbox accepts. Checked once, at enqueue, so that a message that no transport could carry never commits.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::{
    enlist::Batch,
    envelope::Envelope,
    error::{Error, ErrorKind, Result},
    topic::check_name,
};

/// Named limits with their defaults. Reaching one is an error of the enqueue; nothing is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Payload of one message. Default 1 MiB, what most brokers take without being asked.
    pub payload_bytes_max: usize,
    /// Encoded headers of one message. Default 16 KiB.
    pub headers_bytes_max: usize,
    /// Number of headers of one message. Default 64.
    pub headers_max: usize,
    /// Ordering key. Default 512 bytes.
    pub key_bytes_max: usize,
    /// Messages of one enqueue. Default 10 000.
    pub batch_messages_max: usize,
    /// Payloads of one enqueue together. Default 64 MiB.
    pub batch_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            payload_bytes_max: 1 << 20,
            headers_bytes_max: 16 << 10,
            headers_max: 64,
            key_bytes_max: 512,
            batch_messages_max: 10_000,
            batch_bytes_max: 64 << 20,
        }
    }
}

impl Limits {
    /// Turns envelopes into a batch that an adapter may append.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] or [`ErrorKind::Invalid`], naming the message, the limit and the size.
    pub fn check(&self, envelopes: Vec<Envelope>) -> Result<Batch> {
        if envelopes.len() > self.batch_messages_max {
            return Err(over(
                "messages of one enqueue",
                envelopes.len(),
                "batch_messages_max",
                self.batch_messages_max,
            ));
        }
        let mut bytes = 0;
        let mut ids = HashSet::with_capacity(envelopes.len());
        for envelope in &envelopes {
            if !ids.insert(envelope.id) {
                return Err(
                    Error::invalid("two messages of one enqueue have the same id").with("message_id", envelope.id)
                );
            }
            self.check_one(envelope)
                .map_err(|e| e.with("message_id", envelope.id).with("name", envelope.name.escape_debug()))?;
            bytes += envelope.payload.len();
        }
        if bytes > self.batch_bytes_max {
            return Err(over("payloads of one enqueue", bytes, "batch_bytes_max", self.batch_bytes_max));
        }
        Ok(Batch::checked(envelopes))
    }

    fn check_one(&self, envelope: &Envelope) -> Result<()> {
        check_name("topic", &envelope.topic)?;
        check_name("name", &envelope.name)?;
        let key_bytes = envelope.key.as_ref().map_or(0, |key| key.as_ref().len());
        let sizes = [
            ("payload", envelope.payload.len(), "payload_bytes_max", self.payload_bytes_max),
            ("headers", envelope.headers.encoded().len(), "headers_bytes_max", self.headers_bytes_max),
            ("ordering key", key_bytes, "key_bytes_max", self.key_bytes_max),
        ];
        for (what, bytes, limit, max) in sizes {
            if bytes > max {
                return Err(over(what, bytes, limit, max));
            }
        }
        if envelope.key.as_ref().is_some_and(|key| key.as_ref().is_empty() || key.as_ref().contains(&0)) {
            return Err(Error::invalid(
                "an ordering key must not be empty or contain NUL; leave it out if order does not matter",
            ));
        }
        let headers = envelope.headers.decode()?.len();
        if headers > self.headers_max {
            return Err(over("number of headers", headers, "headers_max", self.headers_max));
        }
        if envelope.attempts_max == Some(0) {
            return Err(Error::invalid("attempts_max of a message must be at least 1"));
        }
        if let (Some(from), Some(until)) = (envelope.deliver_at, envelope.expires_at)
            && until <= from
        {
            return Err(Error::invalid("a message that expires before it may be delivered can never arrive")
                .with("deliver_at", from)
                .with("expires_at", until));
        }
        Ok(())
    }
}

fn over(what: &'static str, size: usize, limit: &'static str, max: usize) -> Error {
    Error::new(ErrorKind::Limit, format!("{what} too large")).with("size", size).with(limit, max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{headers::Headers, time::Timestamp};

    fn refused(change: impl FnOnce(&mut Envelope)) -> String {
        let mut envelope = Envelope::new("orders", "order.placed", "{}");
        change(&mut envelope);
        Limits::default().check(vec![envelope]).unwrap_err().to_string()
    }

    #[test]
    fn every_limit_is_named_when_it_is_broken() {
        assert!(refused(|e| e.payload = vec![0; (1 << 20) + 1].into()).contains("payload_bytes_max: 1048576"));
        assert!(refused(|e| e.key = Some("k".repeat(513).into())).contains("key_bytes_max: 512"));
        let many = (0..65).map(|i| (format!("h{i}"), "v"));
        assert!(refused(|e| e.headers = Headers::new(many).unwrap()).contains("headers_max: 64"));
        let large = Headers::new([("h", "v".repeat(17 << 10))]).unwrap();
        assert!(refused(|e| e.headers = large).contains("headers_bytes_max: 16384"));
        let ten: Vec<Envelope> = (0..10).map(|_| Envelope::new("t", "n", "")).collect();
        let limits = Limits { batch_messages_max: 9, ..Limits::default() };
        assert!(limits.check(ten).unwrap_err().to_string().contains("batch_messages_max: 9"));
    }

    #[test]
    fn impossible_envelopes_are_refused() {
        assert!(refused(|e| e.topic = "a b".into()).contains("topic"));
        assert!(refused(|e| e.name = "".into()).contains("name"));
        assert!(refused(|e| e.key = Some("".into())).contains("ordering key"));
        assert!(refused(|e| e.attempts_max = Some(0)).contains("attempts_max"));
        let at = Timestamp::now();
        assert!(refused(|e| (e.deliver_at, e.expires_at) = (Some(at), Some(at))).contains("expires"));
    }

    #[test]
    fn one_id_for_two_messages_is_refused() {
        let twins = vec![Envelope::new("t", "n", "a"); 2];
        let error = Limits::default().check(twins).unwrap_err();
        assert!(error.to_string().contains("same id"), "{error}");
    }

    #[test]
    fn the_limits_themselves_are_accepted() {
        let mut envelope = Envelope::new("orders", "order.placed", vec![0; 1 << 20]).with_key("k".repeat(512));
        envelope.headers = Headers::new((0..64).map(|i| (format!("h{i}"), "v"))).unwrap();
        assert_eq!(Limits::default().check(vec![envelope]).unwrap().envelopes().len(), 1);
    }
}
