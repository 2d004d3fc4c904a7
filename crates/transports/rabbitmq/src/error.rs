//! What the client and the server say, as outcomes and causes: by code, never by text.

use std::io;

use lapin::{Error, ErrorKind};
use postrider_core::{parked::Cause, transport::Outcome};

pub(crate) const NOT_FOUND: u16 = 404;
const CONTENT_TOO_LARGE: u16 = 311;
pub(crate) const ACCESS_REFUSED: u16 = 403;
const PRECONDITION_FAILED: u16 = 406;
const NOT_ALLOWED: u16 = 530;

/// The cause of an outage: there is no exchange to publish to.
pub(crate) const NO_EXCHANGE: &str = "no-exchange";

/// Why the server has ended a channel, if it was because of one message. Which one, it does not say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Blame {
    /// What one of them is like.
    Content(Cause),
    /// We may not write where one of them goes, in the words of the server: not to the exchange at all, or only not with its
    /// routing key. It has one code for both.
    RoutingKey(String),
}

/// What became of a message whose confirm did not come, where no message is to blame.
pub(crate) fn unconfirmed(error: &Error) -> Outcome {
    match code(error) {
        // One exchange for all: none of them got through, and none will before somebody makes it.
        Some(NOT_FOUND) => Outcome::Unavailable(Cause::new(NO_EXCHANGE, error)),
        Some(code) => Outcome::Unknown(Cause::new(&format!("amqp-{code}"), error)),
        None => Outcome::Unknown(Cause::new("connection-lost", error)),
    }
}

/// Whether the server has ended the channel because of one message, and why.
pub(crate) fn blame(error: &Error) -> Option<Blame> {
    match code(error)? {
        code @ (CONTENT_TOO_LARGE | PRECONDITION_FAILED) => {
            Some(Blame::Content(Cause::new(&format!("amqp-{code}"), error)))
        }
        ACCESS_REFUSED => Some(Blame::RoutingKey(error.to_string())),
        _ => None,
    }
}

/// The server's reply code, if the server has said something.
pub(crate) fn code(error: &Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

/// Why there is no connection.
pub(crate) fn connecting(error: &Error, servers: &str) -> Cause {
    let code = match error.kind() {
        ErrorKind::AuthProviderError(_) => "denied",
        ErrorKind::IOError(error) if error.kind() == io::ErrorKind::InvalidData => "tls",
        _ if matches!(code(error), Some(ACCESS_REFUSED | NOT_ALLOWED)) => "denied",
        _ => "connect",
    };
    Cause::new(code, format!("{servers}: {error}"))
}
