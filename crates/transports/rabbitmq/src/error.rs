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

/// What became of a message whose confirm did not come.
pub(crate) fn unconfirmed(error: &Error) -> Outcome {
    match code(error) {
        // One exchange for all: none of them got through, and none will before somebody makes it or gives us the right.
        Some(NOT_FOUND) => Outcome::Unavailable(Cause::new(NO_EXCHANGE, error)),
        Some(ACCESS_REFUSED) => Outcome::Unavailable(Cause::new("denied", error)),
        Some(code) => Outcome::Unknown(Cause::new(&format!("amqp-{code}"), error)),
        None => Outcome::Unknown(Cause::new("connection-lost", error)),
    }
}

/// Whether the server has ended the channel because of what one message is like, and why. Which one, it does not say.
pub(crate) fn blames_a_message(error: &Error) -> Option<Cause> {
    let code = code(error).filter(|code| [CONTENT_TOO_LARGE, PRECONDITION_FAILED].contains(code))?;
    Some(Cause::new(&format!("amqp-{code}"), error))
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
