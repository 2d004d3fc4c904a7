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
    process::{Child, Command, Stdio},
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

/// Links the program into the directory and starts it.
pub(super) fn start(program: &Path, arguments: &[String], dir: PathBuf, port: u16, scheme: &str) -> Result<Started> {
    symlink(program, dir.join("program")).with_context(|| format!("link to {}", program.display()))?;
    launch(program, arguments, dir, port, scheme)
}

/// Starts a program and waits until it answers on its port.
pub(super) fn launch(program: &Path, arguments: &[String], dir: PathBuf, port: u16, scheme: &str) -> Result<Started> {
    let log = fs::File::create(dir.join("log"))?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(&dir).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut server =
        in_background(&mut command).spawn().with_context(|| format!("`{}` cannot be started", program.display()))?;
    wait_until_it_listens(&mut server, program, &dir, port)?;
    Ok(Started { url: format!("{scheme}://127.0.0.1:{port}"), pid: server.id(), dir })
}

/// A Ctrl-C for this task is not one for the server.
pub(super) fn in_background(command: &mut Command) -> &mut Command {
    command.process_group(0)
}

/// Ends with an answer, with the process, or with patience.
pub(super) fn wait_until_it_listens(server: &mut Child, program: &Path, dir: &Path, port: u16) -> Result<()> {
    let begun = Instant::now();
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
    Ok(())
}

/// Stops exactly that process and removes what it wrote.
pub(super) fn stop(started: &Started) -> Result<()> {
    end(started.pid, &started.dir)?;
    remove(&started.dir)
}

/// Stops exactly the process of this number that runs in this directory, if there is one.
pub(super) fn end(pid: u32, dir: &Path) -> Result<()> {
    if !runs_in(pid, dir) {
        return Ok(());
    }
    Step::new("stop", "kill").args([pid.to_string()]).run_aside()?;
    let begun = Instant::now();
    while runs_in(pid, dir) {
        if begun.elapsed() > PATIENCE {
            bail!("process {pid} does not end");
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Removes what a server wrote.
pub(super) fn remove(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))?;
    }
    Ok(())
}

/// Whether the process that was started still is the server of that directory.
pub(super) fn is_up(started: &Started) -> bool {
    runs_in(started.pid, &started.dir)
}

/// Whether there is such a process, and this is where it runs. One that has ended and was not waited for runs nowhere.
fn runs_in(pid: u32, dir: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|folder| folder == dir)
}
