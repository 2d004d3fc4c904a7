//! What the client and the server say, as outcomes and causes: by code, never by text.

use std::{error::Error as _, io, sync::Arc};

use postrider_core::{parked::Cause, transport::Outcome};
use redis::{ErrorKind, RedisError, ServerError, Value};

/// Codes that say something about one message, or the stream that it goes to.
const REJECTED: [&str; 1] = ["WRONGTYPE"];

/// Codes that say that nothing goes through at the moment. A right that is missing is one that somebody took or forgot: it is
/// no fault of the messages, which would all be given up for it.
const UNAVAILABLE: [&str; 16] = [
    "OOM",
    "READONLY",
    "LOADING",
    "BUSY",
    "MISCONF",
    "NOREPLICAS",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MOVED",
    "ASK",
    "NOAUTH",
    "NOPERM",
    "WRONGPASS",
    "UNKILLABLE",
    "EXECABORT",
];

/// Codes of a server that is not the one to speak to, or not any more: a primary that became a replica, and one that does not
/// know who we are. It goes on saying so to this connection, while the address may lead to another server by now.
const LEFT: [&str; 5] = ["READONLY", "MASTERDOWN", "LOADING", "NOAUTH", "WRONGPASS"];

/// Whether an answer says that the connection leads to the wrong server.
pub(crate) fn is_of_the_wrong_server(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if LEFT.contains(&error.code()))
}

/// What became of an entry that the server has refused.
pub(crate) fn refused(error: &ServerError) -> Outcome {
    let code = error.code();
    let cause = Cause::new(&format!("redis-{}", code.to_ascii_lowercase()), error);
    match code {
        code if REJECTED.contains(&code) => Outcome::Rejected(cause),
        code if UNAVAILABLE.contains(&code) => Outcome::Unavailable(cause),
        _ => Outcome::Unknown(cause),
    }
}

/// What became of entries whose answers have not come. A server that says nothing says nothing to anybody: an outage. A
/// connection that ends may have ended because of one of them.
pub(crate) fn unanswered(error: &RedisError) -> Outcome {
    if error.is_timeout() {
        Outcome::Unavailable(Cause::new("timeout", error))
    } else {
        Outcome::Unknown(Cause::new("connection-lost", error))
    }
}

/// Why there is no connection.
pub(crate) fn connecting(error: &RedisError, shown: &str) -> Cause {
    let code = match error.kind() {
        ErrorKind::AuthenticationFailed => "denied",
        _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => "denied",
        _ if error.is_timeout() => "connect-timeout",
        _ if is_tls(error) => "tls",
        _ => "connect",
    };
    Cause::new(code, format!("{shown}: {error}"))
}

/// Whether one side did not like the other's certificate, or does not speak TLS. The client hands the error of its TLS library
/// on inside of an I/O error.
fn is_tls(error: &RedisError) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>());
    let io = source.and_then(|source| source.downcast_ref::<io::Error>());
    matches!(io.and_then(io::Error::get_ref), Some(inner) if inner.is::<rustls::Error>())
}
