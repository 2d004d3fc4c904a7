//! The processes of the demonstration, as their parent sees them: started from this same binary, killed with SIGKILL, and
//! started again. A kill counts only if the process was alive and died of it.

use std::{
    fs::OpenOptions,
    io,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use super::files::Files;
use crate::exit::{Code, Failure, Outcome};

/// How often a process may end by itself with an error before the demonstration gives up.
const FAILURES_MAX: u32 = 5;

/// One process that is kept running.
pub(super) struct Process {
    name: String,
    arguments: Vec<String>,
    files: Files,
    child: Option<Child>,
    failures: u32,
}

impl Process {
    pub(super) fn new(name: String, arguments: Vec<String>, files: &Files) -> Self {
        Self { name, arguments, files: files.clone(), child: None, failures: 0 }
    }

    /// Starts it if it does not run.
    pub(super) fn keep_running(&mut self) -> Outcome<()> {
        if self.is_alive()? {
            return Ok(());
        }
        let started = self.start();
        self.child =
            Some(started.map_err(|error| {
                Failure::because(Code::Problem, format!("{} cannot be started", self.name), &error)
            })?);
        Ok(())
    }

    fn start(&self) -> io::Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(self.files.log(&self.name))?;
        Command::new(std::env::current_exe()?)
            .arg("demo-part")
            .args(&self.arguments)
            .arg("--dir")
            .arg(self.files.dir())
            // Held open: a child whose parent is gone reads its end and stops.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
    }

    /// Whether it runs. One that ended with an error is started again a few times, then that is the result.
    pub(super) fn is_alive(&mut self) -> Outcome<bool> {
        let Some(child) = &mut self.child else { return Ok(false) };
        let status = child.try_wait().map_err(|error| self.lost(&error))?;
        let Some(status) = status else { return Ok(true) };
        self.child = None;
        if !status.success() {
            self.failures += 1;
        }
        if self.failures > FAILURES_MAX {
            let log = self.files.log(&self.name);
            let message = format!("{} keeps failing ({status}); see {}", self.name, log.display());
            return Err(Failure::new(Code::Problem, message));
        }
        Ok(false)
    }

    /// Kills it with SIGKILL. `true` if it was alive and died of exactly that.
    pub(super) fn kill(&mut self) -> Outcome<bool> {
        if !self.is_alive()? {
            return Ok(false);
        }
        let Some(mut child) = self.child.take() else { return Ok(false) };
        let status = child.kill().and_then(|()| child.wait()).map_err(|error| self.lost(&error))?;
        Ok(was_killed(status))
    }

    /// Asks it to stop cleanly, and waits. `false` if it did not within `patience`, and was killed.
    pub(super) fn stop(&mut self, patience: Duration) -> Outcome<bool> {
        let Some(mut child) = self.child.take() else { return Ok(true) };
        drop(child.stdin.take());
        let deadline = Instant::now() + patience;
        loop {
            if child.try_wait().map_err(|error| self.lost(&error))?.is_some() {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                child.kill().and_then(|()| child.wait()).map_err(|error| self.lost(&error))?;
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn lost(&self, error: &io::Error) -> Failure {
        Failure::because(Code::Problem, format!("{} cannot be watched", self.name), error)
    }
}

/// Nothing is left running, whichever way the parent ends.
impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(unix)]
fn was_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    const SIGKILL: i32 = 9;
    status.signal() == Some(SIGKILL)
}

#[cfg(not(unix))]
fn was_killed(status: ExitStatus) -> bool {
    !status.success()
}
