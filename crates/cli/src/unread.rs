//! Why a store cannot be read: the codes that `postrider doctor` and `/healthz` have for it.

use crate::exit::Code;

/// Why nothing comes of looking at a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// What is there is broken, or something else than a store.
    Corrupt,
    /// It is not there, or does not answer.
    Unreachable,
    /// It answers, and refuses.
    Refused,
    /// Anything else.
    Failed,
}

impl Unread {
    /// By what a command would end with.
    pub(crate) fn of(code: Code, is_corrupt: bool) -> Self {
        match code {
            _ if is_corrupt => Self::Corrupt,
            Code::Unreachable => Self::Unreachable,
            Code::Refused => Self::Refused,
            _ => Self::Failed,
        }
    }

    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::Corrupt => "store-corrupt",
            Self::Unreachable => "store-unreachable",
            Self::Refused => "store-refused",
            Self::Failed => "store-failed",
        }
    }
}
