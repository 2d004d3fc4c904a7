//! What the client and JetStream say, as outcomes and causes: by code, never by text.

use std::{error::Error as _, io, time::Duration};

use async_nats::{
    ConnectError, ConnectErrorKind,
    jetstream::{
        self, ErrorCode,
        context::{PublishError, PublishErrorKind},
    },
};
use postrider_core::{parked::Cause, transport::Outcome};

/// How long to leave a stream alone that has too much to do; it does not say.
const THROTTLED: Duration = Duration::from_secs(1);

/// What became of a publish that was not acknowledged; `None` if nobody takes the subject, which needs a closer look.
pub(crate) fn outcome(error: &PublishError, subject: &str) -> Option<Outcome> {
    Some(match error.kind() {
        PublishErrorKind::StreamNotFound => return None,
        PublishErrorKind::MaxPayloadExceeded => Outcome::Rejected(Cause::new("too-large", error)),
        PublishErrorKind::TimedOut => {
            Outcome::Unknown(Cause::new("timeout", format!("no acknowledgement in time for {subject}")))
        }
        PublishErrorKind::BrokenPipe => {
            Outcome::Unknown(Cause::new("connection-lost", "the connection ended before the acknowledgement"))
        }
        _ => match error.source().and_then(|source| source.downcast_ref::<jetstream::Error>()) {
            Some(refusal) => refused(refusal),
            None => Outcome::Unknown(Cause::new("publish", error)),
        },
    })
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
        | ErrorCode::JETSTREAM_NOT_ENABLED
        | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => Outcome::Unavailable(cause(&numbered)),
        _ => Outcome::Unknown(cause(&numbered)),
    }
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
