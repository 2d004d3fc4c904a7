//! What SQLite answers, translated into [`Error`], by result code and never by text.
//!
//! Everything behind this crate's threads fails with a [`Fault`]: either SQLite's own error or one of ours. It becomes an
//! [`Error`] in one place, where the operation and the file are known, so that every message names both. A code that is
//! not listed here is transient: giving up on a passing fault loses more than trying once too often.

use postrider_core::{Error, ErrorKind};
use rusqlite::ffi;

/// What went wrong on one of the store's threads, before it has a name and a place.
#[derive(Debug)]
pub(crate) enum Fault {
    Sqlite(rusqlite::Error),
    Ours(Error),
}

/// The result of work on one of the store's threads.
pub(crate) type Work<T> = Result<T, Fault>;

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

impl Fault {
    /// The error that a caller sees. `operation` is what was being done, `file` where, as its user wrote it. What is wrong
    /// with a question rather than with the file does not name it.
    pub(crate) fn into_error(self, operation: &'static str, file: &str) -> Error {
        match self {
            Self::Ours(error) => match error.kind() {
                ErrorKind::Fenced | ErrorKind::NotFound | ErrorKind::Invalid | ErrorKind::Limit => error,
                _ => error.with("file", file),
            },
            Self::Sqlite(error) => from_rusqlite(error, operation).with("file", file),
        }
    }

    /// Whether somebody else held the lock for too long.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Self::Sqlite(error) if code_of(error).is_some_and(|code| code & 0xff == ffi::SQLITE_BUSY))
    }
}

/// Stored data that does not have the shape that we wrote.
pub(crate) fn corrupt(what: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

/// Translates an error of rusqlite by its code, for whoever commits a transaction with messages in it. `operation` is what
/// was being done.
#[must_use]
pub fn error(error: rusqlite::Error, operation: &'static str) -> Error {
    from_rusqlite(error, operation)
}

pub(crate) fn from_rusqlite(error: rusqlite::Error, operation: &'static str) -> Error {
    use rusqlite::Error as E;
    if let Some(code) = code_of(&error) {
        return from_code(code, operation).caused_by(error);
    }
    let kind = match &error {
        E::FromSqlConversionFailure(..)
        | E::IntegralValueOutOfRange(..)
        | E::Utf8Error(..)
        | E::InvalidColumnType(..) => ErrorKind::Corrupt,
        E::QueryReturnedNoRows => ErrorKind::NotFound,
        E::NulError(_) | E::InvalidPath(_) | E::ToSqlConversionFailure(_) => ErrorKind::Invalid,
        E::SqliteSingleThreadedMode => ErrorKind::Unsupported,
        _ => ErrorKind::Other,
    };
    Error::new(kind, operation).caused_by(error)
}

/// Translates one of SQLite's (extended) result codes.
pub(crate) fn from_code(code: i32, operation: &'static str) -> Error {
    let error = match code {
        // The transaction read an older state than the one it wants to write on: only a new transaction can help.
        ffi::SQLITE_BUSY_SNAPSHOT => Error::new(ErrorKind::Conflict, operation),
        _ => match code & 0xff {
            ffi::SQLITE_BUSY
            | ffi::SQLITE_LOCKED
            | ffi::SQLITE_PROTOCOL
            | ffi::SQLITE_CANTOPEN
            | ffi::SQLITE_IOERR
            | ffi::SQLITE_NOMEM
            | ffi::SQLITE_INTERRUPT
            | ffi::SQLITE_ABORT => Error::new(ErrorKind::Unavailable, operation),
            ffi::SQLITE_FULL => Error::new(ErrorKind::Full, operation),
            ffi::SQLITE_READONLY | ffi::SQLITE_PERM | ffi::SQLITE_AUTH => Error::new(ErrorKind::Denied, operation),
            ffi::SQLITE_CORRUPT => Error::new(ErrorKind::Corrupt, operation),
            // Whatever was being done: nothing can be done with it.
            ffi::SQLITE_NOTADB => Error::new(ErrorKind::Corrupt, "the file is not a SQLite database"),
            ffi::SQLITE_SCHEMA => Error::new(ErrorKind::Schema, operation).transient(),
            ffi::SQLITE_TOOBIG => Error::new(ErrorKind::Limit, operation),
            ffi::SQLITE_CONSTRAINT | ffi::SQLITE_MISMATCH => Error::new(ErrorKind::Invalid, operation),
            ffi::SQLITE_NOLFS => Error::new(ErrorKind::Unsupported, operation),
            ffi::SQLITE_MISUSE | ffi::SQLITE_RANGE | ffi::SQLITE_INTERNAL => {
                Error::new(ErrorKind::Other, operation).permanent()
            }
            _ => Error::new(ErrorKind::Other, operation),
        },
    };
    error.with("code", code)
}

/// The extended result code, if SQLite itself answered.
pub(crate) fn code_of(error: &rusqlite::Error) -> Option<i32> {
    match error {
        rusqlite::Error::SqliteFailure(inner, _) | rusqlite::Error::SqlInputError { error: inner, .. } => {
            Some(inner.extended_code)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_kinds() {
        let expected = [
            (ffi::SQLITE_BUSY, ErrorKind::Unavailable, true),
            (ffi::SQLITE_BUSY_SNAPSHOT, ErrorKind::Conflict, true),
            (ffi::SQLITE_BUSY_RECOVERY, ErrorKind::Unavailable, true),
            (ffi::SQLITE_LOCKED, ErrorKind::Unavailable, true),
            (ffi::SQLITE_IOERR_READ, ErrorKind::Unavailable, true),
            (ffi::SQLITE_FULL, ErrorKind::Full, true),
            (ffi::SQLITE_READONLY, ErrorKind::Denied, false),
            (ffi::SQLITE_READONLY_DIRECTORY, ErrorKind::Denied, false),
            (ffi::SQLITE_CORRUPT, ErrorKind::Corrupt, false),
            (ffi::SQLITE_CORRUPT_INDEX, ErrorKind::Corrupt, false),
            (ffi::SQLITE_NOTADB, ErrorKind::Corrupt, false),
            (ffi::SQLITE_CONSTRAINT_CHECK, ErrorKind::Invalid, false),
            (ffi::SQLITE_TOOBIG, ErrorKind::Limit, false),
            (ffi::SQLITE_MISUSE, ErrorKind::Other, false),
            (0x7777, ErrorKind::Other, true),
        ];
        for (code, kind, transient) in expected {
            let error = from_code(code, "settle");
            assert_eq!((error.kind(), error.is_transient()), (kind, transient), "{code}");
        }
    }

    #[test]
    fn an_error_names_the_operation_and_the_file() {
        let inner = rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None);
        let error = Fault::from(inner).into_error("settle", "/data/shop.db");
        assert_eq!(error.to_string(), "settle (code: 13, file: /data/shop.db)");
        assert!(error.chain().contains("full"), "{}", error.chain());
        let inner = rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_NOTADB), None);
        let error = Fault::from(inner).into_error("open", "notes.txt");
        assert_eq!(error.to_string(), "the file is not a SQLite database (code: 26, file: notes.txt)");
        let ours = Fault::from(corrupt("a counter is missing")).into_error("settle", "shop.db");
        assert_eq!(ours.to_string(), "a counter is missing (file: shop.db)");
        let fenced = Fault::from(Error::fenced()).into_error("settle", "shop.db");
        assert!(!fenced.to_string().contains("shop.db"), "{fenced}");
    }
}
