//! What starting a server takes from the machine: whose user it runs as, its files, a password and a port.

use std::{
    fs, io,
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::step::Step;

/// Servers refuse to run as root.
pub(super) fn is_root() -> bool {
    let id = Command::new("id").arg("-u").stderr(Stdio::null()).output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Gives a file to the server's user, and to nobody else.
pub(super) fn own(path: &Path, user: &str) -> Result<()> {
    let path = path.display().to_string();
    if is_root() {
        Step::new("chown", "chown").args([user.to_owned(), path.clone()]).run_aside()?;
    }
    Step::new("chmod", "chmod").args(["go=".to_owned(), path]).run_aside()
}

/// One that nobody can guess.
pub(super) fn password() -> Result<String> {
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid").context("draw a password")?;
    Ok(uuid.trim().to_owned())
}

/// A port that is free just now.
pub(super) fn free_port() -> Result<u16> {
    free_ports(1).map(|ports| ports[0])
}

/// As many different ports that are free just now.
pub(super) fn free_ports(count: usize) -> Result<Vec<u16>> {
    // All of them are held until the last is found, so that none is found twice.
    let listeners: io::Result<Vec<TcpListener>> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    let ports: io::Result<Vec<u16>> =
        listeners.and_then(|all| all.iter().map(|one| Ok(one.local_addr()?.port())).collect());
    match ports {
        Ok(ports) => Ok(ports),
        Err(error) => bail!("there is no free loopback port: {error}"),
    }
}
