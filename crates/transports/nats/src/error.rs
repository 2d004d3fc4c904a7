//! What the client and JetStream say, as outcomes and causes: by code, never by text, but for the name of one cause, for which
//! there is no code ([`refused_subject`]).

use std::{error::Error as _, io, time::Duration};

use async_nats::{
    ConnectError, ConnectErrorKind, SubjectError,
    jetstream::{
        self, ErrorCode,
        context::{PublishError, PublishErrorKind},
    },
};
use postrider_core::{parked::Cause, transport::Outcome};

use crate::subject::bad;

/// How long to leave a stream alone that has too much to do; it does not say.
const THROTTLED: Duration = Duration::from_secs(1);

/// What became of a publish that was not acknowledged; `None` if nobody takes the subject, which needs a closer look.
pub(crate) fn outcome(error: &PublishError, subject: &str) -> Option<Outcome> {
    Some(match error.kind() {
        PublishErrorKind::StreamNotFound => return None,
        PublishErrorKind::MaxPayloadExceeded => Outcome::Rejected(Cause::new("too-large", error)),
        PublishErrorKind::TimedOut => late(subject),
        PublishErrorKind::BrokenPipe => {
            Outcome::Unknown(Cause::new("connection-lost", "the connection ended before the acknowledgement"))
        }
        _ => match error.source() {
            // The client's own rule; it may become stricter than ours.
            Some(source) if source.is::<SubjectError>() => Outcome::Rejected(bad(subject, "the client refuses it")),
            source => match source.and_then(|source| source.downcast_ref::<jetstream::Error>()) {
                Some(refusal) => refused(refusal),
                None => Outcome::Unknown(Cause::new("publish", error)),
            },
        },
    })
}

/// What became of a publish without an answer. A server that is paused, and a stream that is losing its majority, say nothing.
/// What is wrong with a message they say; no message may pay for silence.
pub(crate) fn late(subject: &str) -> Outcome {
    Outcome::Unavailable(Cause::new("timeout", format!("no acknowledgement in time for {subject}")))
}

/// What a stream's refusal means.
fn refused(error: &jetstream::Error) -> Outcome {
    let code = error.error_code();
    // The code's own text tells no more than its number; the description may name the stream.
    let cause = |name: &str| Cause::new(name, error);
    let numbered = format!("jetstream-{}", code.0);
    match code {
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => {
            Outcome::Rejected(cause("too-large"))
        }
        ErrorCode::STREAM_TOO_MANY_REQUESTS => Outcome::Throttled(THROTTLED),
        // Nothing would go through; it ends when somebody makes room, or the cluster has a leader again.
        ErrorCode::STREAM_STORE_FAILED
        | ErrorCode::STREAM_SEALED
        | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
        | ErrorCode::INSUFFICIENT_RESOURCES
        | ErrorCode::STORAGE_RESOURCES_EXCEEDED
        | ErrorCode::MEMORY_RESOURCES_EXCEEDED
        | ErrorCode::CLUSTER_NOT_AVAILABLE
        | ErrorCode::CLUSTER_NOT_ACTIVE
        | ErrorCode::CLUSTER_NOT_LEADER
        | ErrorCode::CLUSTER_NOT_ASSIGNED
        | ErrorCode::CLUSTER_INCOMPLETE
        | ErrorCode::CLUSTER_NO_PEERS
        | ErrorCode::STREAM_OFFLINE
        | ErrorCode::JETSTREAM_NOT_ENABLED
        | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
        // An earlier copy of this very message waits for the stream's majority: nothing is wrong with it, and the next answer
        // will be that it is a duplicate.
        | ErrorCode::STREAM_DUPLICATE_MESSAGE_CONFLICT => Outcome::Unavailable(cause(&numbered)),
        _ => Outcome::Unknown(cause(&numbered)),
    }
}

/// What the server says, on the connection and not to the message, when we may not publish to a subject. The protocol has no
/// numbers: these words are its code, and the subject stands behind them in quotes. The client hands them on as a text, and the
/// server tells a user's rights (`$SYS.REQ.USER.INFO`) only to one that has the right to ask. Without them the answer is silence,
/// which is an outage all the same.
const MAY_NOT_PUBLISH: &str = "permissions violation for publish to ";

/// The subject that the server did not let us publish to, if that is what it says.
pub(crate) fn refused_subject(said: &str) -> Option<&str> {
    let (words, subject) = said.split_at_checked(MAY_NOT_PUBLISH.len())?;
    let subject = subject.trim().trim_matches('"');
    (words.eq_ignore_ascii_case(MAY_NOT_PUBLISH) && !subject.is_empty()).then_some(subject)
}

/// Why nothing goes through on a subject. A right that is missing is one that somebody took or forgot: it is no fault of the
/// messages, which would all be given up for it.
pub(crate) fn denied(subject: &str) -> Cause {
    Cause::new("denied", format!("the user may not publish to {subject}; give it the right"))
}

/// Why there is no connection.
pub(crate) fn connecting(error: &ConnectError, servers: &str) -> Cause {
    let code = match error.kind() {
        ConnectErrorKind::Dns => "dns",
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => "denied",
        ConnectErrorKind::TimedOut => "connect-timeout",
        ConnectErrorKind::Tls => "tls",
        _ if is_tls(error) => "tls",
        _ => "connect",
    };
    Cause::new(code, format!("{servers}: {error}"))
}

/// Whether one side did not like the other's certificate. The client hands the error of its TLS library on as one of I/O.
fn is_tls(error: &ConnectError) -> bool {
    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    matches!(io.and_then(io::Error::get_ref), Some(inner) if inner.is::<tokio_rustls::rustls::Error>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What becomes of a message to which a stream says this.
    fn said(code: u64) -> Outcome {
        let refusal = json!({ "code": 400, "err_code": code, "description": "no" });
        let refusal: jetstream::Error = serde_json::from_value(refusal).unwrap();
        outcome(&PublishError::with_source(PublishErrorKind::Other, refusal), "orders").unwrap()
    }

    #[test]
    fn a_code_is_a_message_s_fault_or_an_outage_or_nobody_knows() {
        for code in [10_054, 10_097] {
            assert!(matches!(said(code), Outcome::Rejected(cause) if cause.code() == "too-large"), "{code}");
        }
        let outages = [
            10_002, 10_004, 10_005, 10_006, 10_007, 10_008, 10_009, 10_023, 10_028, 10_039, 10_047, 10_076, 10_077,
            10_109, 10_118, 10_158,
        ];
        for code in outages {
            let expected = format!("jetstream-{code}");
            assert!(matches!(said(code), Outcome::Unavailable(cause) if cause.code() == expected), "{code}");
        }
        for code in [10_003, 10_071, 0] {
            let expected = format!("jetstream-{code}");
            assert!(matches!(said(code), Outcome::Unknown(cause) if cause.code() == expected), "{code}");
        }
    }

    #[test]
    fn a_stream_with_too_many_requests_is_left_alone_for_a_moment() {
        assert_eq!(said(10_167), Outcome::Throttled(Duration::from_secs(1)));
    }

    #[test]
    fn what_the_client_says_by_itself_is_told_apart() {
        let told = |kind| outcome(&PublishError::new(kind), "orders");
        assert_eq!(told(PublishErrorKind::StreamNotFound), None, "that needs a closer look");
        let expected = [
            (PublishErrorKind::MaxPayloadExceeded, "rejected too-large"),
            (PublishErrorKind::TimedOut, "unavailable timeout"),
            (PublishErrorKind::BrokenPipe, "unknown connection-lost"),
            (PublishErrorKind::Other, "unknown publish"),
        ];
        for (kind, expected) in expected {
            let outcome = told(kind).unwrap();
            let (Outcome::Rejected(cause) | Outcome::Unavailable(cause) | Outcome::Unknown(cause)) = &outcome else {
                panic!("{kind:?} is {outcome:?}");
            };
            assert_eq!(format!("{} {}", outcome.name(), cause.code()), expected, "{kind:?}");
        }
    }

    #[test]
    fn a_subject_that_the_client_refuses_is_its_message_s_fault() {
        let error = PublishError::with_source(PublishErrorKind::Other, SubjectError::InvalidFormat);
        assert!(matches!(outcome(&error, "a b"), Some(Outcome::Rejected(cause)) if cause.code() == "bad-subject"));
    }

    #[test]
    fn a_right_that_is_missing_is_known_by_the_words_of_the_protocol() {
        let said = "Permissions Violation for Publish to \"shop.orders\"";
        assert_eq!(refused_subject(said), Some("shop.orders"));
        assert_eq!(refused_subject(&said.to_lowercase().replace('"', "")), Some("shop.orders"));
        for other in
            ["", "Permissions Violation for Publish to ", "Permissions Violation for Subscription to \"a\"", "é"]
        {
            assert_eq!(refused_subject(other), None);
        }
    }
}
