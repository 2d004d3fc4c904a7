//! What the server answers, translated into [`Error`], by its number and never by text.
//!
//! Everything in this crate fails with a [`Fault`]: the client's own error or one of ours. It becomes an [`Error`] in one
//! place, where the operation is known. A number that is not listed here is transient: giving up on a passing fault loses
//! more than trying once too often.

use postrider_core::{Error, ErrorKind};

/// A lock that was not to be had in time.
const LOCK_TIMEOUT: u16 = 1205;

/// How long is waited for one, by the settings of our sessions; an operator's change waits for less.
const LOCK_SECONDS: u32 = 50;

/// What went wrong, before it has a name.
#[derive(Debug)]
pub(crate) enum Fault {
    Mysql(mysql_async::Error),
    Ours(Error),
}

/// The result of work on a connection.
pub(crate) type Work<T> = Result<T, Fault>;

impl From<mysql_async::Error> for Fault {
    fn from(error: mysql_async::Error) -> Self {
        Self::Mysql(error)
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
            Self::Mysql(error) if is_lock_timeout(&error) => {
                let what = "somebody keeps a lock; `postrider doctor` tells who, if anything waits for it by then";
                let told = Error::new(ErrorKind::Unavailable, what).with("to", operation);
                told.with("waited_seconds_max", LOCK_SECONDS).with("code", LOCK_TIMEOUT).caused_by(error)
            }
            Self::Mysql(error) => from_mysql(error, operation),
        }
    }

    /// Whether somebody else has kept a lock for too long.
    pub(crate) fn is_lock_timeout(&self) -> bool {
        matches!(self, Self::Mysql(error) if is_lock_timeout(error))
    }

    /// Whether the server has rolled the transaction back because two waited for each other.
    pub(crate) fn is_deadlock(&self) -> bool {
        matches!(self, Self::Mysql(mysql_async::Error::Server(error)) if error.code == 1213)
    }
}

fn is_lock_timeout(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(error) if error.code == LOCK_TIMEOUT)
}

/// Stored data that does not have the shape that we wrote.
pub(crate) fn corrupt(what: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

/// Translates an error of mysql_async by its number, for whoever commits a transaction with messages in it. `operation` is
/// what was being done.
#[must_use]
pub fn error(error: mysql_async::Error, operation: &'static str) -> Error {
    from_mysql(error, operation)
}

pub(crate) fn from_mysql(error: mysql_async::Error, operation: &'static str) -> Error {
    match &error {
        mysql_async::Error::Server(server) => from_number(server.code, operation).caused_by(error),
        mysql_async::Error::Url(_) => Error::new(ErrorKind::Invalid, operation).caused_by(error),
        _ => Error::new(ErrorKind::Unavailable, operation).caused_by(error),
    }
}

/// Translates a number of the server.
pub(crate) fn from_number(number: u16, operation: &'static str) -> Error {
    let kind = match number {
        // A missing table or column, a missing routine.
        1146 | 1054 | 1305 => ErrorKind::Schema,
        // Access denied, in its many places; a read-only server.
        1044 | 1045 | 1142 | 1143 | 1227 | 1290 | 1370 | 1419 | 1698 | 1792 | 1836 => ErrorKind::Denied,
        1049 => ErrorKind::NotFound,
        // A deadlock, a lock that was not to be had, a row that was there first.
        1213 | 1062 | 1020 => ErrorKind::Conflict,
        1205 | 1040 | 1053 | 1129 | 1203 | 1226 | 1317 | 1927 => ErrorKind::Unavailable,
        // A packet larger than the server takes, a value too long for its column.
        1153 | 1406 => ErrorKind::Limit,
        1021 | 1114 | 1041 => ErrorKind::Full,
        1048 | 1264 | 1292 | 1366 | 1364 | 3140 => ErrorKind::Invalid,
        1034 | 1194 | 1712 => ErrorKind::Corrupt,
        _ => ErrorKind::Other,
    };
    Error::new(kind, operation).with("code", number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_was_not_to_be_had_tells_how_long_it_was_waited_for() {
        let fault = |code| {
            let (message, state) = ("Lock wait timeout exceeded".to_owned(), "HY000".to_owned());
            Fault::from(mysql_async::Error::Server(mysql_async::ServerError { code, message, state }))
        };
        let told = fault(LOCK_TIMEOUT).into_error("pause");
        assert_eq!(told.kind(), ErrorKind::Unavailable);
        assert!(told.to_string().contains("waited_seconds_max: 50") && told.to_string().contains("pause"), "{told}");
        assert!(!fault(1213).into_error("pause").to_string().contains("waited"), "only then");
        for setting in ["SESSION lock_wait_timeout", "innodb_lock_wait_timeout"] {
            for settings in [crate::config::OWN_SESSION, crate::config::PATIENT] {
                assert!(settings.contains(&format!("{setting} = {LOCK_SECONDS}")), "{setting}");
            }
        }
    }

    #[test]
    fn numbers_become_kinds() {
        let expected = [
            (1213, ErrorKind::Conflict, true),
            (1205, ErrorKind::Unavailable, true),
            (1146, ErrorKind::Schema, false),
            (1045, ErrorKind::Denied, false),
            (1290, ErrorKind::Denied, false),
            (1049, ErrorKind::NotFound, false),
            (1153, ErrorKind::Limit, false),
            (1021, ErrorKind::Full, true),
            (9999, ErrorKind::Other, true),
        ];
        for (number, kind, transient) in expected {
            let error = from_number(number, "settle");
            assert_eq!((error.kind(), error.is_transient()), (kind, transient), "{number}");
        }
    }
}
