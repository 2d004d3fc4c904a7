//! Where lines go, and how they are made to stay. Blocking: never called on the runtime's own threads.
//!
//! A file may have several writers: two relays, or a new process beside one that was killed in the middle of a line. Each
//! batch is therefore written under an exclusive lock of the file, and begins with a look at its last byte: if that is no
//! line break, somebody left a torn line, and the batch begins with one. The lock ends with the process that holds it.
//!
//! A file that was moved away or removed is no longer where its readers look. So each batch also asks whether the path
//! still means the open file, and opens it anew if not: that is all that rotation needs.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// A destination of whole batches.
pub(crate) enum Sink {
    /// Written to by this process alone, as far as anybody can tell.
    Stream(Stream),
    /// Shared with whoever appends to the same file.
    File(SharedFile),
}

/// Standard output, or any writer.
pub(crate) struct Stream {
    /// `None`: standard output.
    writer: Option<Box<dyn Write + Send>>,
    /// Whether the last write failed, so that the stream may end in the middle of a line.
    torn: bool,
}

/// A file that is appended to.
pub(crate) struct SharedFile {
    path: PathBuf,
    file: File,
    sync: bool,
    /// Pipes and devices have no end to look at, and nothing to lock it for.
    regular: bool,
    /// As [`Stream::torn`], for those.
    torn: bool,
}

impl Sink {
    pub(crate) fn stdout() -> Self {
        Self::Stream(Stream { writer: None, torn: false })
    }

    pub(crate) fn writer(writer: Box<dyn Write + Send>) -> Self {
        Self::Stream(Stream { writer: Some(writer), torn: false })
    }

    /// Opens a file to append to, or makes it.
    pub(crate) fn file(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        let regular = file.metadata()?.is_file();
        Ok(Self::File(SharedFile { path: path.to_owned(), file, sync: true, regular, torn: false }))
    }

    pub(crate) fn set_sync(&mut self, on: bool) {
        if let Self::File(shared) = self {
            shared.sync = on;
        }
    }

    /// Writes whole lines and makes them durable. After an error some of them may be there, the last one torn.
    pub(crate) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Stream(stream) => stream.write(lines),
            Self::File(shared) => shared.write(lines),
        }
    }

    /// Makes everything durable that is not yet.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        match self {
            Self::Stream(stream) => stream.put(&[]),
            Self::File(shared) => shared.file.sync_data(),
        }
    }
}

impl Stream {
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let written = behind(self.torn, lines, |lines| self.put(lines));
        self.torn = written.is_err();
        written
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut stdout;
        let writer: &mut dyn Write = match &mut self.writer {
            Some(writer) => writer,
            None => {
                stdout = io::stdout().lock();
                &mut stdout
            }
        };
        writer.write_all(bytes)?;
        writer.flush()
    }
}

impl SharedFile {
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let locked = self.lock_where_readers_look()?;
        let written = self.append(lines);
        self.torn = written.is_err();
        if locked {
            // What is written is written; and a lock that cannot be given back ends with the file.
            let _ = self.file.unlock();
        }
        written
    }

    /// As [`lock`](Self::lock), of the file that the path means now.
    fn lock_where_readers_look(&mut self) -> io::Result<bool> {
        let mut locked = self.lock()?;
        // Ends unless somebody moves it away each time that it was opened.
        while self.regular && !is_at(&self.file, &self.path)? {
            // Closing the old one gives its lock back.
            self.file = open(&self.path)?;
            self.regular = self.file.metadata()?.is_file();
            locked = self.lock()?;
        }
        Ok(locked)
    }

    /// Waits until nobody else writes. Some file systems cannot lock; there the file must have one writer.
    fn lock(&self) -> io::Result<bool> {
        if !self.regular {
            return Ok(false);
        }
        match self.file.lock() {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let torn = if self.regular { ends_torn(&mut self.file)? } else { self.torn };
        behind(torn, lines, |lines| self.file.write_all(lines))?;
        if self.sync { self.file.sync_data() } else { Ok(()) }
    }
}

/// Writes lines behind a torn one, or as they are. The line break goes in the same write: it could be all that fits.
fn behind(torn: bool, lines: &[u8], write: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<()> {
    if torn { write(&[b"\n", lines].concat()) } else { write(lines) }
}

/// Whether a file ends in the middle of a line. Where the file is read makes no difference to where it is appended to.
fn ends_torn(file: &mut File) -> io::Result<bool> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

fn open(path: &Path) -> io::Result<File> {
    let is_new = !path.exists();
    let file = OpenOptions::new().append(true).read(true).create(true).open(path)?;
    if is_new {
        sync_directory(path)?;
    }
    Ok(file)
}

/// Whether the path still means this file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (open, there) = (file.metadata()?, std::fs::metadata(path));
    match there {
        Ok(there) => Ok((open.dev(), open.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// An open file cannot be moved or removed.
#[cfg(not(unix))]
fn is_at(_file: &File, _path: &Path) -> io::Result<bool> {
    Ok(true)
}

/// A new file survives a crash of the machine only if its directory has been synced.
fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if cfg!(unix) { File::open(parent)?.sync_all() } else { Ok(()) }
}
