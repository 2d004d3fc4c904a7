//! What lies where: one directory, left behind to look at. Nothing that was there before is touched.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::exit::{Code, Failure, Outcome};

/// The directory of one run.
#[derive(Clone, Debug)]
pub(crate) struct Files(PathBuf);

impl Files {
    /// Makes the directory; one that is given must be new or empty.
    pub(super) fn create(dir: Option<&Path>) -> Outcome<Self> {
        let dir = dir.map_or_else(fresh, Path::to_path_buf);
        let shown = dir.display();
        let failed =
            |error: io::Error| Failure::because(Code::Usage, format!("the directory {shown} cannot be used"), &error);
        fs::create_dir_all(&dir).map_err(failed)?;
        if fs::read_dir(&dir).map_err(failed)?.next().is_some() {
            let message =
                format!("the directory {shown} is not empty; the demonstration wants a new one, to spoil nothing");
            return Err(Failure::usage(message));
        }
        dir.canonicalize().map(Self).map_err(failed)
    }

    /// The directory of a run that has begun.
    pub(super) fn of(dir: &Path) -> Self {
        Self(dir.to_path_buf())
    }

    pub(super) fn dir(&self) -> &Path {
        &self.0
    }

    /// Orders and outbox, in one database.
    pub(super) fn database(&self) -> PathBuf {
        self.0.join("orders.db")
    }

    /// What arrived, one message a line.
    pub(super) fn arrivals(&self) -> PathBuf {
        self.0.join("arrivals.ndjson")
    }

    /// Orders that this service rolled back, one id a line.
    pub(super) fn rolled_back(&self, service: u32) -> PathBuf {
        self.0.join(format!("rolled-back-{service}.txt"))
    }

    /// What a process had to say.
    pub(super) fn log(&self, process: &str) -> PathBuf {
        self.0.join(format!("{process}.log"))
    }
}

fn fresh() -> PathBuf {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    std::env::temp_dir().join(format!("postrider-demo-{seconds}-{}", std::process::id()))
}
