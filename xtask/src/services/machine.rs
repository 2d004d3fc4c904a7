//! What starting a server takes from the machine: whose user it runs as, its files, a password and a port.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
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

/// As many different ports that are free just now. They lie below those that connections are given, so that none is taken
/// before its server takes it.
pub(super) fn free_ports(count: usize) -> Result<Vec<u16>> {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 20_000;
    let start = u16::try_from(RandomState::new().hash_one(0) % u64::from(COUNT)).expect("less than a count of ports");
    let ports = (0..COUNT).map(|step| FIRST + (start + step) % COUNT);
    let free: Vec<u16> = ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).take(count).collect();
    if free.len() < count {
        bail!("there is no free loopback port between {FIRST} and {}", FIRST + COUNT);
    }
    Ok(free)
}
