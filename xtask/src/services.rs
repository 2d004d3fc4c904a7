//! What the tests need from outside: a C compiler for the bundled SQLite, and servers.
//!
//! The list of servers is empty so far: everything runs inside the test processes. A database or broker is added as one
//! entry of [`SERVICES`], and `up`, `down`, `status` and `cargo xtask test` know it from then on.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use clap::Subcommand;

use crate::step::Step;

/// One server.
struct Service {
    name: &'static str,
    up: fn() -> Result<()>,
    down: fn() -> Result<()>,
    is_up: fn() -> bool,
}

/// Every server that tests need, in the order in which they start.
const SERVICES: &[Service] = &[];

#[derive(Subcommand)]
pub(crate) enum Action {
    /// Installs and starts what is missing.
    Up,
    /// Stops what was started.
    Down,
    /// Says what runs.
    Status,
}

pub(crate) fn run(action: &Action) -> Result<()> {
    if SERVICES.is_empty() {
        println!("no services: the tests need none so far");
    }
    for service in SERVICES {
        match action {
            Action::Up if !(service.is_up)() => (service.up)()?,
            Action::Down if (service.is_up)() => (service.down)()?,
            Action::Up | Action::Down | Action::Status => {}
        }
        println!("{}: {}", service.name, if (service.is_up)() { "up" } else { "down" });
    }
    Ok(())
}

/// Everything that `cargo xtask test` needs: the compiler, then the servers.
pub(crate) fn prepare() -> Result<()> {
    c_compiler()?;
    for service in SERVICES.iter().filter(|service| !(service.is_up)()) {
        (service.up)()?;
    }
    Ok(())
}

fn c_compiler() -> Result<()> {
    if ["cc", "clang", "gcc"].into_iter().any(answers) {
        return Ok(());
    }
    if !answers("apt-get") {
        bail!("there is no C compiler, which the bundled SQLite needs; install one (`cc`, `gcc` or `clang`)");
    }
    let install = ["apt-get", "install", "--yes", "build-essential"].map(str::to_owned);
    let (program, arguments) = if answers("sudo") { ("sudo", &install[..]) } else { ("apt-get", &install[1..]) };
    Step::new("install a C compiler", program).args(arguments.iter().cloned()).run()
}

fn answers(program: &str) -> bool {
    let quiet = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}
