//! A server that is one process: started in the background, found again by its directory, stopped by its number.
//!
//! The directory is fresh, holds everything that the server writes and a link `program` to what was started, so that a test
//! which needs a server of its own, to kill it, can start another one. A number alone is not trusted: the process must have
//! run in that directory, or it is somebody else's.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::{fs::symlink, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::Started;
use crate::step::Step;

/// Longer than any of them takes to begin or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A fresh directory.
pub(super) fn directory(name: &str) -> Result<PathBuf> {
    // As the kernel will name it.
    let dir = std::env::temp_dir().canonicalize()?.join(format!("postrider-{name}-{}", std::process::id()));
    fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
    Ok(dir)
}

/// Starts a program and waits until it answers on its port.
pub(super) fn start(program: &Path, arguments: &[String], dir: PathBuf, port: u16, scheme: &str) -> Result<Started> {
    symlink(program, dir.join("program")).with_context(|| format!("link to {}", program.display()))?;
    let log = fs::File::create(dir.join("log"))?;
    let mut server = Command::new(program)
        .args(arguments)
        .current_dir(&dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // A Ctrl-C for this task is not one for the server.
        .process_group(0)
        .spawn()
        .with_context(|| format!("`{}` cannot be started", program.display()))?;
    let begun = Instant::now();
    // Ends with an answer, with the process, or with patience.
    while TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).is_err() {
        if let Some(status) = server.try_wait()? {
            bail!("`{}` ended at once ({status}); its log is {}", program.display(), dir.join("log").display());
        }
        if begun.elapsed() > PATIENCE {
            server.kill()?;
            bail!("`{}` does not listen on port {port}; its log is {}", program.display(), dir.join("log").display());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(Started { url: format!("{scheme}://127.0.0.1:{port}"), pid: server.id(), dir })
}

/// Stops exactly that process and removes what it wrote.
pub(super) fn stop(started: &Started) -> Result<()> {
    if is_up(started) {
        Step::new("stop", "kill").args([started.pid.to_string()]).run_aside()?;
        let begun = Instant::now();
        while is_up(started) {
            if begun.elapsed() > PATIENCE {
                bail!("process {} does not end", started.pid);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
    if started.dir.exists() {
        fs::remove_dir_all(&started.dir).with_context(|| format!("remove {}", started.dir.display()))?;
    }
    Ok(())
}

/// Whether the process that was started still is the server of that directory, in which it runs. One that has ended and
/// was not waited for runs nowhere.
pub(super) fn is_up(started: &Started) -> bool {
    fs::read_link(format!("/proc/{}/cwd", started.pid)).is_ok_and(|folder| folder == started.dir)
}
