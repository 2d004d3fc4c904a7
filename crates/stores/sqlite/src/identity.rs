//! Whether the path still means the file that is open.
//!
//! SQLite goes on in a file that was removed or replaced, where no application's messages arrive any more and nothing that
//! is settled will be found again. A relay asks with each heartbeat and says so instead; it goes on when the file is back.

use std::path::{Path, PathBuf};

use postrider_core::{Error, ErrorKind, Result};

/// The file that a store was opened with.
#[derive(Clone)]
pub(crate) struct Identity {
    path: PathBuf,
    /// `None`: the system cannot tell files apart, or the path is a URI.
    file: Option<(u64, u64)>,
}

impl Identity {
    /// Of the file that is there now.
    pub(crate) fn of(path: &Path) -> Self {
        Self { path: path.to_owned(), file: at(path) }
    }

    /// Refuses if another file is there now, or none.
    pub(crate) fn check(&self) -> Result<()> {
        if self.file.is_none() || at(&self.path) == self.file {
            return Ok(());
        }
        let message =
            "the database file was removed or replaced while it was open; bring it back, or restart what has it open";
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}

#[cfg(unix)]
fn at(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// An open file cannot be removed or replaced.
#[cfg(not(unix))]
fn at(_path: &Path) -> Option<(u64, u64)> {
    None
}
