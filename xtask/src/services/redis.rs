//! Redis from the system's packages, with an append-only file in a directory of its own.
//!
//! The package `redis-server` would start a server on this machine, and all that it has beyond `redis-tools` is the name
//! under which the program is a server. So the tools are installed, and that name is given beside what is built.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::{Service, Started, answers, install, machine, process, target};

pub(super) const SERVICE: Service =
    Service { name: "redis", variable: "POSTRIDER_TEST_REDIS", up, down: process::stop, is_up: process::is_up };

/// The program under the name that the tools give it.
const UNDER_ANOTHER_NAME: &str = "/usr/bin/redis-check-rdb";

fn up() -> Result<Started> {
    let program = program()?;
    let dir = process::directory("redis")?;
    let port = machine::free_port()?;
    let shown = dir.display().to_string();
    let arguments =
        ["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir", &shown, "--appendonly", "yes", "--save", ""]
            .map(str::to_owned);
    process::start(&program, &arguments, dir, port, "redis")
}

fn program() -> Result<PathBuf> {
    let installed = Path::new("/usr/bin/redis-server");
    if installed.exists() && answers("redis-server") {
        return Ok(installed.to_owned());
    }
    if !Path::new(UNDER_ANOTHER_NAME).exists() {
        install("Redis", "redis-tools")?;
    }
    let place = target().join("tools/redis-server");
    if !place.exists() {
        fs::create_dir_all(target().join("tools"))?;
        symlink(UNDER_ANOTHER_NAME, &place).context("give the program the name of a server")?;
    }
    Ok(place)
}
