//! How a command ends: a code that scripts can rely on, and the chain of causes for people.

use std::{error::Error as StdError, fmt, process::ExitCode};

use postrider::{Error, ErrorKind};

/// The table of exit codes, as `--help` prints it.
pub(crate) const TABLE: &str = "\
Exit codes:
  0  done
  1  a problem was found: the demonstration failed, something was not there, or the store failed half-way
  2  usage or configuration: an argument or the file is wrong; nothing was done, except by a daemon that was at work when it found out
  3  the store cannot be reached: no such file, no database, or locked for too long
  4  refused: a limit, a read-only file, a password or a role without the right, or a schema of another version";

/// An exit code of [`TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Done = 0,
    Problem = 1,
    Usage = 2,
    Unreachable = 3,
    Refused = 4,
}

impl Code {
    /// What an error of this kind ends with.
    pub(crate) fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Invalid => Self::Usage,
            ErrorKind::Unavailable | ErrorKind::Corrupt => Self::Unreachable,
            ErrorKind::Limit | ErrorKind::Denied | ErrorKind::Schema | ErrorKind::Unsupported => Self::Refused,
            _ => Self::Problem,
        }
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// What a command returns.
pub(crate) type Outcome<T = Code> = Result<T, Failure>;

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    chain: Vec<String>,
    /// Whether what is there is broken, or something else than it should be.
    corrupt: bool,
}

impl Failure {
    /// A failure without a cause below it.
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, chain: vec![message.into()], corrupt: false }
    }

    /// A failure with what caused it.
    pub(crate) fn because(code: Code, message: impl Into<String>, cause: &dyn StdError) -> Self {
        let mut chain = vec![message.into()];
        chain.extend(causes(cause));
        Self { code, chain, corrupt: false }
    }

    /// Wrong arguments or configuration.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    pub(crate) fn code(&self) -> Code {
        self.code
    }

    /// Whether what is there is broken, or something else than it should be.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.corrupt
    }
}

/// Outermost first, one per line.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut links = self.chain.iter();
        if let Some(first) = links.next() {
            write!(f, "error: {first}")?;
        }
        links.try_for_each(|cause| write!(f, "\n  because: {cause}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let corrupt = error.kind() == ErrorKind::Corrupt;
        Self { code: Code::of(error.kind()), chain: causes(&error), corrupt }
    }
}

fn causes(error: &dyn StdError) -> Vec<String> {
    let mut chain = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        chain.push(cause.to_string());
        next = cause.source();
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_chain_is_printed() {
        let low = Error::new(ErrorKind::Denied, "attempt to write a readonly database");
        let failure = Failure::from(Error::new(ErrorKind::Denied, "open the database").caused_by(low));
        assert_eq!(failure.code(), Code::Refused);
        assert_eq!(failure.to_string(), "error: open the database\n  because: attempt to write a readonly database");
    }

    #[test]
    fn kinds_have_the_documented_codes() {
        let expected = [
            (ErrorKind::Invalid, Code::Usage),
            (ErrorKind::Limit, Code::Refused),
            (ErrorKind::Unavailable, Code::Unreachable),
            (ErrorKind::Corrupt, Code::Unreachable),
            (ErrorKind::Schema, Code::Refused),
            (ErrorKind::Denied, Code::Refused),
            (ErrorKind::NotFound, Code::Problem),
            (ErrorKind::Full, Code::Problem),
        ];
        for (kind, code) in expected {
            assert_eq!(Code::of(kind), code, "{kind:?}");
        }
    }
}
