//! One error for every contract: what kind, whether another attempt may help, what was being done, and with what.
//!
//! Callers ask [`Error::kind`] and [`Error::is_transient`] and match no strings. An adapter maps the codes of its client
//! library in one place; a code that it does not know is transient, because giving up on a passing fault loses more than
//! trying once too often. Messages never contain payloads or secrets.

use std::{borrow::Cow, error::Error as StdError, fmt};

/// `std::result::Result` with our [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as far as a caller can act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input breaks a rule: a bad name, a malformed value, an option out of range.
    Invalid,
    /// A named limit is reached; the message says which one and how large it is.
    Limit,
    /// The lease's epoch is not the current one any more. Nothing was written.
    Fenced,
    /// Another writer was there first; the operation may be repeated on the new state.
    Conflict,
    /// What was asked for does not exist.
    NotFound,
    /// The server, file or broker cannot be reached or is busy.
    Unavailable,
    /// The other side refuses: privileges, a read-only file, authentication.
    Denied,
    /// No room: a full disk, an exhausted quota. Nothing is lost; the operation succeeds once there is room.
    Full,
    /// The schema is missing, older, newer, or changed by somebody else.
    Schema,
    /// Stored data does not have the shape that we wrote.
    Corrupt,
    /// The operation is not supported here; the message says what to use instead.
    Unsupported,
    /// Anything else.
    Other,
}

impl ErrorKind {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Invalid,
        Self::Limit,
        Self::Fenced,
        Self::Conflict,
        Self::NotFound,
        Self::Unavailable,
        Self::Denied,
        Self::Full,
        Self::Schema,
        Self::Corrupt,
        Self::Unsupported,
        Self::Other,
    ];

    /// What it means, for a table that people read.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Invalid => "the input breaks a rule: a bad name, a malformed value, an option out of range",
            Self::Limit => "a named limit is reached; the message says which one and how large it is",
            Self::Fenced => "another owner has the lane; nothing was written",
            Self::Conflict => "another writer was there first; it may be repeated",
            Self::NotFound => "what was asked for does not exist",
            Self::Unavailable => "the server, file or broker cannot be reached or is busy",
            Self::Denied => "the other side refuses: privileges, a read-only file, authentication",
            Self::Full => "no room: a full disk, an exhausted quota; it succeeds once there is room",
            Self::Schema => "the schema is missing, older, newer, or changed by somebody else",
            Self::Corrupt => "stored data does not have the shape that was written",
            Self::Unsupported => "not supported here; the message says what to use instead",
            Self::Other => "anything else",
        }
    }

    /// The stable lower-case name, used in logs and in machine-readable output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Limit => "limit",
            Self::Fenced => "fenced",
            Self::Conflict => "conflict",
            Self::NotFound => "not-found",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::Full => "full",
            Self::Schema => "schema",
            Self::Corrupt => "corrupt",
            Self::Unsupported => "unsupported",
            Self::Other => "other",
        }
    }

    /// Whether an error of this kind is worth another attempt unless the adapter says otherwise.
    fn transient_by_default(self) -> bool {
        matches!(self, Self::Conflict | Self::Unavailable | Self::Full | Self::Other)
    }
}

/// An error with its kind, retryability, context and source.
///
/// ```
/// use postrider_core::{Error, ErrorKind};
/// let error = Error::new(ErrorKind::Limit, "payload is too large").with("bytes", 2_000_000).with("bytes_max", 1_048_576);
/// assert_eq!(error.to_string(), "payload is too large (bytes: 2000000, bytes_max: 1048576)");
/// assert!(!error.is_transient());
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    transient: bool,
    message: Cow<'static, str>,
    facts: Vec<(&'static str, String)>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// A new error. `message` is lower case, without a full stop: what was being done, or what is wrong.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        let transient = kind.transient_by_default();
        Self(Box::new(Inner { kind, transient, message: message.into(), facts: Vec::new(), source: None }))
    }

    /// Shorthand for [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// The answer to a stale owner: its epoch is over and nothing was written.
    #[must_use]
    pub fn fenced() -> Self {
        Self::new(ErrorKind::Fenced, "the lease is held under another epoch; nothing was written")
    }

    /// Adds a fact, such as a message id or a path.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.0.facts.push((name, value.to_string()));
        self
    }

    /// Adds the error below this one.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Says that another attempt may help, whatever the kind suggests.
    #[must_use]
    pub fn transient(mut self) -> Self {
        self.0.transient = true;
        self
    }

    /// Says that another attempt cannot help, whatever the kind suggests.
    #[must_use]
    pub fn permanent(mut self) -> Self {
        self.0.transient = false;
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same operation may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.0.transient
    }

    /// Whether a newer owner has taken the lane.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.0.kind == ErrorKind::Fenced
    }

    /// This error and all that caused it, outermost first, joined by `: `.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = self.source();
        while let Some(error) = next {
            text.push_str(": ");
            text.push_str(&error.to_string());
            next = error.source();
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        for (i, (name, value)) in self.0.facts.iter().enumerate() {
            write!(f, "{}{name}: {value}", if i == 0 { " (" } else { ", " })?;
        }
        if !self.0.facts.is_empty() {
            f.write_str(")")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind.name(), self.chain())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|e| e as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_names_every_cause() {
        let low = Error::new(ErrorKind::Full, "database or disk is full").with("code", 13);
        let high = Error::new(ErrorKind::Full, "settle lane").with("lane", "orders/0").caused_by(low);
        assert_eq!(high.chain(), "settle lane (lane: orders/0): database or disk is full (code: 13)");
        assert!(high.is_transient());
        assert!(!high.permanent().is_transient());
    }
}
