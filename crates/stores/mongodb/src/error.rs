//! What the server answers, translated into [`Error`], by its code and never by text.
//!
//! Everything in this crate fails with a [`Fault`]: the driver's own error, one that stands in an answer that is otherwise
//! good, or one of ours. It becomes an [`Error`] in one place, where the operation is known. A code that is not listed here
//! is transient: giving up on a passing fault loses more than trying once too often. Where the server itself says that another
//! run of the whole transaction may help, that counts more than the code.

use mongodb::error::{
    ErrorKind as Mongo, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT, WriteFailure,
};
use postrider_core::{Error, ErrorKind};

/// What went wrong, before it has a name.
#[derive(Debug)]
pub(crate) enum Fault {
    Mongo(mongodb::error::Error),
    /// A write that the server refused inside of an answer.
    Refused {
        code: i32,
        message: String,
    },
    Ours(Error),
}

/// The result of work on a connection.
pub(crate) type Work<T> = Result<T, Fault>;

impl From<mongodb::error::Error> for Fault {
    fn from(error: mongodb::error::Error) -> Self {
        Self::Mongo(error)
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
            Self::Mongo(error) => from_mongo(&error, operation),
            Self::Refused { code, message } => from_code(code, operation).caused_by(message),
        }
    }

    pub(crate) fn code(&self) -> Option<i32> {
        match self {
            Self::Mongo(error) => code(error),
            Self::Refused { code, .. } => Some(*code),
            Self::Ours(_) => None,
        }
    }

    /// Whether stored data is not what was written.
    pub(crate) fn is_corrupt(&self) -> bool {
        matches!(self, Self::Ours(error) if error.kind() == ErrorKind::Corrupt)
    }

    /// Whether the server has given up because its time was over.
    pub(crate) fn is_out_of_time(&self) -> bool {
        self.code() == Some(50)
    }

    /// Whether the server has rolled the transaction back and running it again at once may help. Where there is no server, the
    /// driver says so too, after it has looked for one for as long as it may: that is for the caller to wait out.
    pub(crate) fn is_conflict(&self) -> bool {
        match self {
            Self::Mongo(error) if matches!(&*error.kind, Mongo::ServerSelection { .. }) => false,
            Self::Mongo(error) => error.contains_label(TRANSIENT_TRANSACTION_ERROR),
            Self::Refused { code, .. } => *code == WRITE_CONFLICT,
            Self::Ours(_) => false,
        }
    }

    /// Whether it is not known if the commit has happened: committing again is the only safe thing.
    pub(crate) fn is_unknown_commit(&self) -> bool {
        matches!(self, Self::Mongo(error) if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT))
    }

    /// Whether the change stream cannot go on from where it is asked to: the server has forgotten what was there.
    pub(crate) fn is_lost_history(&self) -> bool {
        let code = self.code().is_some_and(|code| LOST_HISTORY.contains(&code));
        code || matches!(self, Self::Mongo(error) if error.contains_label("NonResumableChangeStreamError"))
    }
}

const WRITE_CONFLICT: i32 = 112;

/// `CappedPositionLost`, `InvalidResumeToken`, `ChangeStreamFatalError`, `ChangeStreamHistoryLost`.
const LOST_HISTORY: [i32; 4] = [136, 260, 280, 286];

/// Stored data that does not have the shape that we wrote.
pub(crate) fn corrupt(what: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

/// Translates an error of the driver by its code, for whoever commits a transaction with messages in it. `operation` is what
/// was being done.
#[must_use]
pub fn error(error: &mongodb::error::Error, operation: &'static str) -> Error {
    from_mongo(error, operation)
}

pub(crate) fn from_mongo(error: &mongodb::error::Error, operation: &'static str) -> Error {
    let again = error.contains_label(TRANSIENT_TRANSACTION_ERROR);
    if let Some(code) = code(error) {
        let kind = if again { run_again(kind_of(code)) } else { kind_of(code) };
        return Error::new(kind, operation).with("code", code).caused_by(said(error));
    }
    let kind = match &*error.kind {
        Mongo::InvalidArgument { .. } | Mongo::InvalidTlsConfig { .. } => ErrorKind::Invalid,
        Mongo::Authentication { .. } => ErrorKind::Denied,
        Mongo::IncompatibleServer { .. } | Mongo::SessionsNotSupported => ErrorKind::Unsupported,
        Mongo::Transaction { .. } => ErrorKind::Other,
        _ => ErrorKind::Unavailable,
    };
    let kind = if again { run_again(kind) } else { kind };
    Error::new(kind, operation).caused_by(said(error))
}

/// What the driver says, and of what the server says nothing that it was told. A server that refuses repeats that: a command with
/// its documents, the values of a key. All of it stands in braces; of a command, which one it is and on which collection is kept.
pub(crate) fn said(error: &mongodb::error::Error) -> String {
    match &*error.kind {
        Mongo::Command(of) => format!("the server answers {} ({}): {}", of.code, of.code_name, cut(&of.message)),
        Mongo::Write(WriteFailure::WriteError(of)) => format!("the server answers {}: {}", of.code, cut(&of.message)),
        Mongo::Write(WriteFailure::WriteConcernError(of)) => {
            format!("the server answers {} ({}): {}", of.code, of.code_name, cut(&of.message))
        }
        // Its kind alone: the rest of it may repeat what the server was told.
        kind => kind.to_string(),
    }
}

fn cut(text: &str) -> &str {
    let Some(brace) = text.find('{') else { return text };
    let is_command = text[..brace].ends_with("to execute command ");
    let end = text[brace..].find(',').filter(|_| is_command).unwrap_or(0);
    text[..brace + end].trim_end()
}

fn code(error: &mongodb::error::Error) -> Option<i32> {
    match &*error.kind {
        Mongo::Command(command) => Some(command.code),
        Mongo::Write(WriteFailure::WriteError(write)) => Some(write.code),
        Mongo::Write(WriteFailure::WriteConcernError(concern)) => Some(concern.code),
        _ => None,
    }
}

/// The kind of an error with which the server asks for another run of the transaction. That it is not there is worth saying,
/// and cured in the same way.
fn run_again(kind: ErrorKind) -> ErrorKind {
    if kind == ErrorKind::Unavailable { kind } else { ErrorKind::Conflict }
}

/// Translates a code of the server.
pub(crate) fn from_code(code: i32, operation: &'static str) -> Error {
    Error::new(kind_of(code), operation).with("code", code)
}

fn kind_of(code: i32) -> ErrorKind {
    match code {
        // A missing collection or index.
        26 | 27 => ErrorKind::Schema,
        // Not authorised, not authenticated, in its many places; Atlas.
        13 | 18 | 31 | 33 | 8000 => ErrorKind::Denied,
        // Somebody was there first; a transaction that the server has ended.
        48 | 85 | 86 | 112 | 117 | 225 | 244 | 246 | 251 | 256 | 11000 => ErrorKind::Conflict,
        // No primary, no connection, no time, no majority.
        6 | 7 | 50 | 64 | 89 | 91 | 100 | 134 | 189 | 202 | 262 | 9001 | 10107 | 11600 | 11602 | 13435 | 13436 => {
            ErrorKind::Unavailable
        }
        121 | 2 | 9 | 14 => ErrorKind::Invalid,
        10334 | 17280 | 257 => ErrorKind::Limit,
        14031 => ErrorKind::Full,
        // No transactions, no change streams.
        20 | 115 | 263 | 40573 => ErrorKind::Unsupported,
        _ => ErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_kinds() {
        let expected = [
            (112, ErrorKind::Conflict, true),
            (251, ErrorKind::Conflict, true),
            (10107, ErrorKind::Unavailable, true),
            (64, ErrorKind::Unavailable, true),
            (13, ErrorKind::Denied, false),
            (26, ErrorKind::Schema, false),
            (121, ErrorKind::Invalid, false),
            (10334, ErrorKind::Limit, false),
            (14031, ErrorKind::Full, true),
            (40573, ErrorKind::Unsupported, false),
            (99_999, ErrorKind::Other, true),
        ];
        for (code, kind, transient) in expected {
            let error = from_code(code, "settle");
            assert_eq!((error.kind(), error.is_transient()), (kind, transient), "{code}");
        }
    }

    #[test]
    fn what_the_server_was_told_is_not_said() {
        for (text, expected) in [
            (
                "not authorized on shop to execute command { insert: \"log\", documents: [ { payload: \"x\" } ] }",
                "not authorized on shop to execute command { insert: \"log\"",
            ),
            (
                "E11000 duplicate key error index: id dup key: { id: \"x\" }",
                "E11000 duplicate key error index: id dup key:",
            ),
            ("not primary", "not primary"),
        ] {
            assert_eq!(cut(text), expected);
        }
    }

    #[test]
    fn lost_history_is_known_by_its_code() {
        let refused = |code| Fault::Refused { code, message: String::new() };
        assert!(refused(286).is_lost_history() && refused(136).is_lost_history());
        assert!(!refused(10107).is_lost_history(), "a step-down loses nothing");
        assert!(refused(112).is_conflict() && !refused(11000).is_conflict());
    }
}
