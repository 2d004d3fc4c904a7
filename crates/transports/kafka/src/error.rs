//! What the client and the brokers say, as outcomes and causes: by code, never by text.

use std::time::Duration;

use postrider_core::{Error, ErrorKind, parked::Cause, transport::Outcome};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// How long to leave a cluster alone whose quota is exceeded.
const QUOTA: Duration = Duration::from_secs(1);

/// How long to wait for room in the client's own queue.
const ROOM: Duration = Duration::from_millis(100);

/// What became of a message that was not acknowledged.
pub(crate) fn outcome(code: Code, topic: &str) -> Outcome {
    let cause = |name: &str| Cause::new(name, format!("{topic}: {code}"));
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            Outcome::Rejected(cause("too-large"))
        }
        Code::InvalidTopic => Outcome::Rejected(cause("bad-topic")),
        // Something about one message.
        Code::InvalidRecord | Code::InvalidTimestamp | Code::PolicyViolation | Code::UnsupportedForMessageFormat => {
            Outcome::Rejected(cause(&numbered(code)))
        }
        Code::ThrottlingQuotaExceeded => Outcome::Throttled(QUOTA),
        Code::QueueFull => Outcome::Throttled(ROOM),
        Code::LeaderNotAvailable | Code::NotLeaderForPartition => Outcome::Unavailable(cause("no-leader")),
        Code::NotEnoughReplicas | Code::NotEnoughReplicasAfterAppend | Code::ISRInsufficient => {
            Outcome::Unavailable(cause("replicas"))
        }
        Code::Authentication | Code::SaslAuthenticationFailed => Outcome::Unavailable(cause("denied")),
        // Nothing would go through; it ends when the cluster is well again, or somebody lets us in. A right that is missing is
        // one that somebody took or forgot: it is no fault of the messages, which would all be given up for it.
        Code::AllBrokersDown
        | Code::BrokerNotAvailable
        | Code::ReplicaNotAvailable
        | Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::CoordinatorLoadInProgress
        | Code::CoordinatorNotAvailable
        | Code::NotCoordinator
        | Code::UnsupportedCompressionType => Outcome::Unavailable(cause(&numbered(code))),
        // The client was put away, or shut out, before it came to that; or the transaction that it was in came to nothing.
        Code::PurgeQueue => Outcome::Unavailable(cause("not-sent")),
        // Brokers say so as well while they learn of a new topic.
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition => {
            Outcome::Unknown(cause("no-topic"))
        }
        // What is wrong with a message has a code of its own: time runs out because some broker cannot be reached or is slow.
        Code::MessageTimedOut | Code::RequestTimedOut => Outcome::Unavailable(cause("timeout")),
        Code::BrokerTransportFailure | Code::NetworkException | Code::PurgeInflight => {
            Outcome::Unknown(cause("connection-lost"))
        }
        _ => Outcome::Unknown(cause(&numbered(code))),
    }
}

/// Why it is not known whether a message is stored that the client only concludes to be.
pub(crate) fn concluded(topic: &str) -> Cause {
    Cause::new("not-acknowledged", format!("{topic}: no broker has said that it has it, only that it has a later one"))
}

/// The code's number, as a stable name. Negative ones are the client's own.
pub(crate) fn numbered(code: Code) -> String {
    match code as i32 {
        own if own < 0 => format!("rdkafka{own}"),
        number => format!("kafka-{number}"),
    }
}

/// Why there is no connection.
pub(crate) fn connecting(code: Code, reason: &str) -> Cause {
    let name = match code {
        Code::Authentication | Code::SaslAuthenticationFailed => "denied".to_owned(),
        Code::SSL => "tls".to_owned(),
        Code::Resolve => "dns".to_owned(),
        Code::BrokerTransportFailure | Code::AllBrokersDown => "connect".to_owned(),
        Code::OperationTimedOut | Code::RequestTimedOut => "connect-timeout".to_owned(),
        other => numbered(other),
    };
    Cause::new(&name, reason)
}

/// A setting that the client does not take. Its value may be a secret and is not repeated.
pub(crate) fn setting(error: &KafkaError) -> Error {
    match error {
        KafkaError::ClientConfig(_, _, name, _) => {
            Error::invalid("librdkafka does not know this property, or does not take its value")
                .with("property", name.escape_debug())
        }
        KafkaError::ClientCreation(text) => {
            Error::invalid("a client of Kafka cannot be set up like this").with("cause", text)
        }
        other => Error::invalid("a client of Kafka cannot be set up like this").with("cause", other),
    }
}

/// A failure of a call that may go better later.
pub(crate) fn failed(what: &'static str, error: KafkaError) -> Error {
    Error::new(ErrorKind::Unavailable, what).caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(code: Code) -> String {
        let outcome = outcome(code, "orders");
        match &outcome {
            Outcome::Rejected(cause) | Outcome::Unavailable(cause) | Outcome::Unknown(cause) => {
                format!("{} {}", outcome.name(), cause.code())
            }
            other => other.name().to_owned(),
        }
    }

    #[test]
    fn a_code_is_a_message_s_fault_or_an_outage_or_nobody_knows() {
        for (code, expected) in [
            (Code::MessageSizeTooLarge, "rejected too-large"),
            (Code::InvalidTopic, "rejected bad-topic"),
            (Code::TopicAuthorizationFailed, "unavailable kafka-29"),
            (Code::InvalidRecord, "rejected kafka-87"),
            (Code::NotEnoughReplicas, "unavailable replicas"),
            (Code::LeaderNotAvailable, "unavailable no-leader"),
            (Code::ClusterAuthorizationFailed, "unavailable kafka-31"),
            (Code::SaslAuthenticationFailed, "unavailable denied"),
            (Code::ThrottlingQuotaExceeded, "throttled"),
            (Code::QueueFull, "throttled"),
            (Code::MessageTimedOut, "unavailable timeout"),
            (Code::BrokerTransportFailure, "unknown connection-lost"),
            (Code::KafkaStorageError, "unknown kafka-56"),
            (Code::Fatal, "unknown rdkafka-150"),
        ] {
            assert_eq!(shown(code), expected, "{code:?}");
        }
    }

    #[test]
    fn a_quota_takes_longer_than_a_queue_that_is_full() {
        assert_eq!(outcome(Code::ThrottlingQuotaExceeded, "orders"), Outcome::Throttled(Duration::from_secs(1)));
        assert_eq!(outcome(Code::QueueFull, "orders"), Outcome::Throttled(Duration::from_millis(100)));
    }
}
