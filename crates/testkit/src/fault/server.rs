//! A server as a process that a test may kill: started on a port of its own, killed without a word or asked to end, started
//! again on the same data.
//!
//! What the workshop has started is shared by all tests; one that a test kills must be its own.

use std::{
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::free_port;

/// Longer than any server takes to begin or to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server that was started here. It is killed when this is dropped.
pub struct Server {
    program: PathBuf,
    arguments: Vec<String>,
    address: SocketAddr,
    process: Option<Child>,
}

impl Server {
    /// Starts a program with the arguments that `arguments` makes of a free port, and waits until it listens.
    ///
    /// # Panics
    /// If it cannot be started, or ends, or does not listen.
    #[must_use]
    pub fn start(program: &Path, arguments: impl FnOnce(u16) -> Vec<String>) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let arguments = arguments(address.port());
        let mut server = Self { program: program.to_owned(), arguments, address, process: None };
        server.restart();
        server
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Kills it with SIGKILL: it can neither finish nor flush anything.
    ///
    /// # Panics
    /// If the process cannot be waited for.
    pub fn kill(&mut self) {
        if let Some(process) = &mut self.process {
            drop(process.kill());
            process.wait().expect("a process that was killed ends");
        }
        self.process = None;
    }

    /// Asks it to end, with SIGTERM, and waits until it has.
    ///
    /// # Panics
    /// If it cannot be asked, or does not end.
    pub fn stop(&mut self) {
        // Ours until it has ended: should it not, it is killed with this.
        let Some(process) = &mut self.process else { return };
        let asked = Command::new("kill").arg(process.id().to_string()).status();
        assert!(asked.is_ok_and(|status| status.success()), "ask {} to end", self.program.display());
        let begun = Instant::now();
        while process.try_wait().expect("ask for a process").is_none() {
            assert!(begun.elapsed() < PATIENCE, "{} does not end", self.program.display());
            thread::sleep(Duration::from_millis(10));
        }
        self.process = None;
    }

    /// Starts it again, with the same arguments on the same port, and waits until it listens.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub fn restart(&mut self) {
        self.kill();
        let process = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("start {}: {error}", self.program.display()));
        let process = self.process.insert(process);
        let begun = Instant::now();
        while TcpStream::connect_timeout(&self.address, PATIENCE).is_err() {
            let ended = process.try_wait().expect("ask for a process");
            assert!(ended.is_none(), "{} ended at once: {ended:?}", self.program.display());
            assert!(begun.elapsed() < PATIENCE, "{} does not listen on {}", self.program.display(), self.address);
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
