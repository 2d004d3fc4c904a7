//! What PostgreSQL answers, translated into [`Error`], by SQLSTATE and never by text.
//!
//! Everything in this crate fails with a [`Fault`]: the client's own error or one of ours. It becomes an [`Error`] in one
//! place, where the operation is known. A code that is not listed here is transient: giving up on a passing fault loses
//! more than trying once too often.

use deadpool_postgres::PoolError;
use postrider_core::{Error, ErrorKind};
use tokio_postgres::error::SqlState;

use crate::{access, pooler};

/// What went wrong, before it has a name.
#[derive(Debug)]
pub(crate) enum Fault {
    Postgres(tokio_postgres::Error),
    Pool(PoolError),
    /// There was no answer in time; the connection is not to be used again.
    Silent,
    Ours(Error),
}

/// The result of work on a connection.
pub(crate) type Work<T> = Result<T, Fault>;

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

impl From<PoolError> for Fault {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) => Self::Postgres(error),
            other => Self::Pool(other),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

impl Fault {
    /// The error that a caller sees. `operation` is what was being done.
    pub(crate) fn into_error(self, operation: &'static str) -> Error {
        match self {
            Self::Ours(error) => error,
            Self::Postgres(error) => from_postgres(error, operation),
            Self::Pool(error) => Error::new(ErrorKind::Unavailable, operation).caused_by(error),
            Self::Silent => Error::new(ErrorKind::Unavailable, "the server does not answer").with("to", operation),
        }
    }

    /// Whether somebody else inserted the same key first.
    pub(crate) fn is_unique_violation(&self) -> bool {
        matches!(self, Self::Postgres(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION))
    }

    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, Self::Silent)
    }

    /// Whether the server has ended a statement that took too long.
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self, Self::Postgres(error) if error.code() == Some(&SqlState::QUERY_CANCELED))
    }

    /// Whether a lock was not to be had in time.
    pub(crate) fn is_lock_timeout(&self) -> bool {
        matches!(self, Self::Postgres(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
    }
}

/// Stored data that does not have the shape that we wrote.
pub(crate) fn corrupt(what: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

/// Translates an error of tokio-postgres by its SQLSTATE, for whoever commits a transaction with messages in it.
/// `operation` is what was being done.
#[must_use]
pub fn error(error: tokio_postgres::Error, operation: &'static str) -> Error {
    from_postgres(error, operation)
}

pub(crate) fn from_postgres(error: tokio_postgres::Error, operation: &'static str) -> Error {
    match error.code() {
        Some(code) => from_code(code.code(), operation).caused_by(error),
        // No answer of the server: the connection failed, or the answer could not be read.
        None => match access::trouble(&error) {
            Some(what) => Error::new(ErrorKind::Denied, what).with("to", operation).caused_by(error),
            None => Error::new(ErrorKind::Unavailable, operation).caused_by(error),
        },
    }
}

/// Translates an SQLSTATE.
pub(crate) fn from_code(code: &str, operation: &'static str) -> Error {
    // A statement that was prepared is there twice, or not at all: the session is not the one that it was prepared on.
    if matches!(code, "42P05" | "26000") {
        return pooler::refused().with("to", operation).with("code", code);
    }
    let kind = match code {
        // Missing table, column, function, schema.
        "42P01" | "42703" | "42883" | "3F000" => ErrorKind::Schema,
        // Insufficient privilege.
        "42501" => ErrorKind::Denied,
        "40001" | "40P01" | "23505" => ErrorKind::Conflict,
        // A read-only transaction is what a standby answers, and it may be on its way to be the primary. Who was idle for too
        // long has lost the connection. A database that lets nobody in is in no state to do so (55000).
        "25006" | "25P03" | "55000" | "55P03" | "57014" => ErrorKind::Unavailable,
        "54000" => ErrorKind::Limit,
        _ => match &code[..2.min(code.len())] {
            "08" | "57" | "58" => ErrorKind::Unavailable,
            "28" => ErrorKind::Denied,
            "3D" => ErrorKind::NotFound,
            "22" | "23" => ErrorKind::Invalid,
            "XX" => ErrorKind::Corrupt,
            _ => match code {
                "53100" => ErrorKind::Full,
                "53000" | "53200" | "53300" | "53400" => ErrorKind::Unavailable,
                _ => ErrorKind::Other,
            },
        },
    };
    let error = Error::new(kind, operation).with("code", code);
    if code == "42501" {
        return error.with("fix", WHO_MAY);
    }
    error
}

/// For a role that was refused: which one would not be.
const WHO_MAY: &str = "connect as a role that may; of those of `postrider migrate roles`, app enqueues in transactions of \
                       its application and nowhere else, viewer looks without headers and payloads, and relay does all that \
                       relays and operators do, `postrider enqueue` with it";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_kinds() {
        let expected = [
            ("08006", ErrorKind::Unavailable, true),
            ("57P01", ErrorKind::Unavailable, true),
            ("53100", ErrorKind::Full, true),
            ("53300", ErrorKind::Unavailable, true),
            ("40001", ErrorKind::Conflict, true),
            ("40P01", ErrorKind::Conflict, true),
            ("55P03", ErrorKind::Unavailable, true),
            ("25006", ErrorKind::Unavailable, true),
            ("25P03", ErrorKind::Unavailable, true),
            ("55000", ErrorKind::Unavailable, true),
            ("28P01", ErrorKind::Denied, false),
            ("42501", ErrorKind::Denied, false),
            ("42P01", ErrorKind::Schema, false),
            ("23514", ErrorKind::Invalid, false),
            ("3D000", ErrorKind::NotFound, false),
            ("XX001", ErrorKind::Corrupt, false),
            ("P0001", ErrorKind::Other, true),
            ("", ErrorKind::Other, true),
        ];
        for (code, kind, transient) in expected {
            let error = from_code(code, "settle");
            assert_eq!((error.kind(), error.is_transient()), (kind, transient), "{code}");
        }
    }

    #[test]
    fn a_statement_that_another_session_has_prepared_tells_of_a_pooler() {
        for code in ["42P05", "26000"] {
            let error = from_code(code, "open the store");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{code}");
            for part in ["a pooler in between", "pool in session mode", "open the store", code] {
                assert!(error.to_string().contains(part), "{part}: {error}");
            }
        }
    }
}
