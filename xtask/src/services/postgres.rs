//! PostgreSQL from the system's package, on a data directory and a loopback port of its own.
//!
//! The package's own cluster is left alone. PostgreSQL refuses to run as root, so root hands over to the user that the
//! package made. The server does without `fsync`: a test's data need not survive a power cut.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::{
    Service, Started, install,
    machine::{free_port, is_root, own, password},
    postgres_versions,
};
use crate::step::Step;

pub(super) const SERVICE: Service = Service { name: "postgres", variable: "POSTRIDER_TEST_POSTGRES", up, down, is_up };

/// The user that Debian's package makes.
const USER: &str = "postgres";

/// For the tests of what happens with a pooler in between. They start it themselves.
const POOLER: &str = "/usr/sbin/pgbouncer";

/// Beyond the defaults: prepared transactions for the tests of them, many connections for tests in parallel, no fsync.
const SETTINGS: [(&str, &str); 8] = [
    ("listen_addresses", "127.0.0.1"),
    ("max_prepared_transactions", "64"),
    ("max_connections", "400"),
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("shared_buffers", "256MB"),
    ("max_wal_size", "4GB"),
    ("log_min_messages", "error"),
];

/// For benchmarks: as durable as in earnest, with the memory that a server of that size would be given. Everything else,
/// vacuum above all, as it comes.
const BENCH_SETTINGS: [(&str, &str); 4] =
    [("listen_addresses", "127.0.0.1"), ("max_connections", "200"), ("shared_buffers", "1GB"), ("max_wal_size", "8GB")];

fn up() -> Result<Started> {
    if !Path::new(POOLER).exists() {
        install("PgBouncer", "pgbouncer")?;
    }
    up_in(directory("postgres")?, &installed()?, &SETTINGS)
}

/// A server for one benchmark.
pub(super) fn up_for_bench() -> Result<Started> {
    up_in(directory("postgres-bench")?, &installed()?, &BENCH_SETTINGS)
}

/// A server of another version, for tests.
pub(super) fn up_of_version(version: &str) -> Result<Started> {
    let dir = directory(&format!("postgres-{version}"))?;
    let programs = postgres_versions::unpack(version, &dir.join("program"))?;
    up_in(dir, &programs, &SETTINGS)
}

/// The programs of the system's version.
fn installed() -> Result<PathBuf> {
    if let Some(programs) = programs() {
        return Ok(programs);
    }
    install("PostgreSQL", "postgresql")?;
    programs().context("the package `postgresql` brought no `initdb` below /usr/lib/postgresql")
}

fn up_in(dir: PathBuf, programs: &Path, settings: &[(&str, &str)]) -> Result<Started> {
    let password = password()?;
    let secret = dir.join("password");
    fs::write(&secret, &password)?;
    own(&secret, USER)?;
    let data = dir.join("data").display().to_string();
    let initdb = ["-D", &data, "-U", "postrider", "-A", "password", "--pwfile", &secret.display().to_string()]
        .map(str::to_owned);
    server(programs, "initdb")
        .args(initdb)
        .args(["-E", "UTF8", "--locale", "C.UTF-8", "-N"].map(str::to_owned))
        .output()?;
    let port = free_port()?;
    let mut settings: Vec<String> = settings.iter().map(|(name, value)| format!("-c {name}={value}")).collect();
    settings.push(format!("-c port={port}"));
    settings.push(format!("-c unix_socket_directories={}", dir.display()));
    let log = dir.join("log").display().to_string();
    let start = ["start", "-w", "-D", &data, "-l", &log, "-o", &settings.join(" ")].map(str::to_owned);
    server(programs, "pg_ctl").args(start).run_aside()?;
    let pid = fs::read_to_string(dir.join("data/postmaster.pid"))
        .context("the server runs but has left no postmaster.pid")?
        .lines()
        .next()
        .and_then(|line| line.parse().ok())
        .context("postmaster.pid does not begin with a number")?;
    Ok(Started { url: format!("postgres://postrider:{password}@127.0.0.1:{port}/postgres"), pid, dir })
}

fn down(started: &Started) -> Result<()> {
    if is_up(started) {
        let unpacked = Some(started.dir.join("program/bin")).filter(|programs| programs.exists());
        let programs = unpacked.or_else(programs).context("the server's own programs are gone")?;
        let data = started.dir.join("data").display().to_string();
        server(&programs, "pg_ctl").args(["stop", "-w", "-m", "fast", "-D", &data].map(str::to_owned)).run_aside()?;
    }
    if started.dir.exists() {
        fs::remove_dir_all(&started.dir).with_context(|| format!("remove {}", started.dir.display()))?;
    }
    Ok(())
}

/// Whether the process that was started still is the server of that directory.
fn is_up(started: &Started) -> bool {
    let running = fs::read_to_string(started.dir.join("data/postmaster.pid")).unwrap_or_default();
    let noted = running.lines().next().is_some_and(|line| line.parse() == Ok(started.pid));
    noted && Path::new("/proc").join(started.pid.to_string()).exists()
}

/// The newest version's programs.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let number = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    let mut found: Vec<PathBuf> =
        versions.flatten().map(|entry| entry.path()).filter(|p| number(p).is_some()).collect();
    found.sort_by_key(number);
    found.into_iter().rev().map(|path| path.join("bin")).find(|bin| bin.join("initdb").exists())
}

/// One of the server's programs, as a user that it accepts.
fn server(programs: &Path, program: &str) -> Step {
    let path = programs.join(program);
    if is_root() {
        let arguments = ["-u", USER, "--", &path.display().to_string()].map(str::to_owned);
        return Step::new(program, "runuser").args(arguments);
    }
    Step::new(program, path)
}

/// A fresh directory that the server may write to.
fn directory(name: &str) -> Result<PathBuf> {
    let dir = std::env::temp_dir().join(format!("postrider-{name}-{}", std::process::id()));
    fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
    own(&dir, USER)?;
    Ok(dir)
}
