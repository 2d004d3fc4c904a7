//! What the operating system says, in our words. By kind, never by text.

use std::{
    io::{self, ErrorKind as Io},
    path::Path,
};

use postrider_core::{Error, ErrorKind, parked::Cause};

/// Why nothing could be written.
pub(crate) fn cause(error: &io::Error) -> Cause {
    Cause::new(code(error.kind()), error)
}

/// Why a file could not be opened.
pub(crate) fn open(path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        Io::PermissionDenied | Io::ReadOnlyFilesystem => ErrorKind::Denied,
        Io::StorageFull | Io::QuotaExceeded => ErrorKind::Full,
        Io::NotFound => ErrorKind::NotFound,
        Io::IsADirectory | Io::InvalidInput | Io::InvalidFilename => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, "open the file to write messages to").with("path", path.display()).caused_by(error)
}

fn code(kind: Io) -> &'static str {
    match kind {
        Io::StorageFull => "disk-full",
        Io::QuotaExceeded => "quota-exceeded",
        Io::FileTooLarge => "file-too-large",
        Io::PermissionDenied => "permission-denied",
        Io::ReadOnlyFilesystem => "read-only",
        Io::BrokenPipe => "broken-pipe",
        Io::NotFound => "not-found",
        _ => "write-failed",
    }
}
