//! Where lines go, and how they are made to stay. Blocking: never called on the runtime's own threads.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

/// A destination of whole batches.
pub(crate) struct Sink {
    target: Target,
    /// Whether the last write failed, so that the destination may end in the middle of a line.
    torn: bool,
}

enum Target {
    Stdout,
    File { file: File, sync: bool },
    Writer(Box<dyn Write + Send>),
}

impl Sink {
    pub(crate) fn stdout() -> Self {
        Self { target: Target::Stdout, torn: false }
    }

    pub(crate) fn writer(writer: Box<dyn Write + Send>) -> Self {
        Self { target: Target::Writer(writer), torn: false }
    }

    /// Opens a file to append to, or makes it.
    pub(crate) fn file(path: &Path) -> io::Result<Self> {
        let is_new = !path.exists();
        let mut file = OpenOptions::new().append(true).read(true).create(true).open(path)?;
        let torn = ends_torn(&mut file)?;
        if is_new {
            sync_directory(path)?;
        }
        Ok(Self { target: Target::File { file, sync: true }, torn })
    }

    pub(crate) fn set_sync(&mut self, on: bool) {
        if let Target::File { sync, .. } = &mut self.target {
            *sync = on;
        }
    }

    /// Writes whole lines and makes them durable. After an error some of them may be there, the last one torn.
    pub(crate) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let written = self.try_write(lines);
        self.torn = written.is_err();
        written
    }

    fn try_write(&mut self, lines: &[u8]) -> io::Result<()> {
        // In the same write as the lines: the line break alone could be all that fits.
        let repaired;
        let lines = match self.torn {
            true => {
                repaired = [b"\n", lines].concat();
                &repaired
            }
            false => lines,
        };
        match &mut self.target {
            Target::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(lines)?;
                stdout.flush()
            }
            Target::File { file, sync } => {
                file.write_all(lines)?;
                if *sync { file.sync_data() } else { Ok(()) }
            }
            Target::Writer(writer) => {
                writer.write_all(lines)?;
                writer.flush()
            }
        }
    }

    /// Makes everything durable that is not yet.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        match &mut self.target {
            Target::Stdout => io::stdout().flush(),
            Target::File { file, .. } => file.sync_data(),
            Target::Writer(writer) => writer.flush(),
        }
    }
}

/// Whether a file ends in the middle of a line.
fn ends_torn(file: &mut File) -> io::Result<bool> {
    // Pipes and devices have no end to look at.
    if !file.metadata()?.is_file() || file.seek(SeekFrom::End(0))? == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// A new file survives a crash of the machine only if its directory has been synced.
fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if cfg!(unix) { File::open(parent)?.sync_all() } else { Ok(()) }
}
