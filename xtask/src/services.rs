//! What the tests need from outside: a C compiler for the bundled SQLite, libpq and librdkafka, OpenSSL for the last of
//! them, `psql`, `mariadb`, `promtool`, and servers.
//!
//! A database or broker is one entry of [`SERVICES`], and `up`, `down`, `status` and `cargo xtask test` know it from then
//! on. A server that somebody else runs is used instead where an environment variable names it; such a server is neither
//! started nor stopped here. What was started is written to [`file()`], where the tests find it.

mod kafka;
mod machine;
mod mariadb;
mod mongodb;
mod nats;
mod postgres;
mod postgres_versions;
mod process;
mod promtool;
mod rabbitmq;
mod redis;

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use clap::Subcommand;

use crate::step::{Step, root};

/// One server.
struct Service {
    name: &'static str,
    /// The environment variable that names a server to be used instead, and under which the tests find ours.
    variable: &'static str,
    up: fn() -> Result<Started>,
    down: fn(&Started) -> Result<()>,
    is_up: fn(&Started) -> bool,
}

/// A server that was started here.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Started {
    url: String,
    pid: u32,
    dir: PathBuf,
}

/// Every server that tests need, in the order in which they start.
const SERVICES: &[Service] = &[
    postgres::SERVICE,
    mariadb::SERVICE,
    mongodb::SERVICE,
    nats::SERVICE,
    redis::SERVICE,
    kafka::SERVICE,
    rabbitmq::SERVICE,
];

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
    if matches!(action, Action::Up) {
        promtool::prepare()?;
    }
    for service in SERVICES {
        match action {
            Action::Up => drop(service.start()?),
            Action::Down => service.stop()?,
            Action::Status => {}
        }
        println!("{}: {}", service.name, service.standing()?);
    }
    Ok(())
}

/// Everything that `cargo xtask test` needs: the programs, then the servers. Those that it started stop when it is dropped,
/// also when a test has failed.
pub(crate) fn prepare() -> Result<Running> {
    build_tools()?;
    psql()?;
    mariadb_client()?;
    promtool::prepare()?;
    let mut running = Running(Vec::new());
    for service in SERVICES {
        if service.start()? {
            running.0.push(service);
        }
    }
    Ok(running)
}

/// The servers that were started for one task.
pub(crate) struct Running(Vec<&'static Service>);

impl Drop for Running {
    fn drop(&mut self) {
        for service in self.0.drain(..).rev() {
            if let Err(error) = service.stop() {
                eprintln!("xtask: {} could not be stopped: {error:#}", service.name);
            }
        }
    }
}

/// PostgreSQL of another version, for the tests of the store. It is stopped when it is dropped.
pub(crate) struct OtherPostgres(Started);

/// The versions that there are.
pub(crate) const OTHER_POSTGRES: [&str; 2] = postgres_versions::VERSIONS;

impl OtherPostgres {
    pub(crate) fn start(version: &str) -> Result<Self> {
        postgres::up_of_version(version).map(Self)
    }

    /// How the tests find it.
    pub(crate) fn environment(&self) -> (&'static str, String) {
        (postgres::SERVICE.variable, self.0.url.clone())
    }
}

impl Drop for OtherPostgres {
    fn drop(&mut self) {
        if let Err(error) = (postgres::SERVICE.down)(&self.0) {
            eprintln!("xtask: PostgreSQL could not be stopped: {error:#}");
        }
    }
}

/// A server with the settings of one in earnest: durable, and with the memory that one would give it.
struct ForBench {
    /// Who needs it.
    benchmarks: &'static [&'static str],
    /// The environment variable that names a server to be used instead, and under which the benchmark finds ours.
    variable: &'static str,
    up: Up,
    /// What stops each process of it.
    service: &'static Service,
}

/// How a server is started: as one process, or as several that have one URL.
enum Up {
    One(fn() -> Result<Started>),
    Several(fn() -> Result<Vec<Started>>),
}

impl Up {
    fn start(&self) -> Result<Vec<Started>> {
        match self {
            Self::One(up) => Ok(vec![up()?]),
            Self::Several(up) => up(),
        }
    }
}

const BENCH_SERVERS: &[ForBench] = &[
    ForBench {
        benchmarks: &["postgres", "brokers"],
        variable: "POSTRIDER_BENCH_POSTGRES",
        up: Up::One(postgres::up_for_bench),
        service: &postgres::SERVICE,
    },
    ForBench {
        benchmarks: &["mysql"],
        variable: "POSTRIDER_BENCH_MYSQL",
        up: Up::One(mariadb::up_for_bench),
        service: &mariadb::SERVICE,
    },
    ForBench {
        benchmarks: &["mongodb"],
        variable: "POSTRIDER_BENCH_MONGODB",
        up: Up::Several(mongodb::up_for_bench),
        service: &mongodb::SERVICE,
    },
    broker("POSTRIDER_BENCH_KAFKA", &kafka::SERVICE),
    broker("POSTRIDER_BENCH_NATS", &nats::SERVICE),
    broker("POSTRIDER_BENCH_RABBITMQ", &rabbitmq::SERVICE),
    broker("POSTRIDER_BENCH_REDIS", &redis::SERVICE),
];

/// Brokers are as durable for tests as in earnest.
const fn broker(variable: &'static str, service: &'static Service) -> ForBench {
    ForBench { benchmarks: &["brokers"], variable, up: Up::One(service.up), service }
}

/// The servers that a benchmark needs and the environment does not name, started; each is stopped when it is dropped. Of the
/// brokers it may be told to measure some `only`.
pub(crate) fn bench_servers(benchmark: &str, only: Option<&str>) -> Result<Vec<BenchServer>> {
    let given = |variable: &str| std::env::var_os(variable).is_some_and(|url| !url.is_empty());
    let named = |name: &str| only.is_none_or(|only| only.split(',').any(|wanted| wanted == name));
    let of_brokers = |server: &ForBench| server.benchmarks == ["brokers"];
    let missing = BENCH_SERVERS.iter().filter(|server| {
        let needed = server.benchmarks.contains(&benchmark) && (!of_brokers(server) || named(server.service.name));
        needed && !given(server.variable)
    });
    missing.map(|of| Ok(BenchServer { of, started: of.up.start()? })).collect()
}

/// A server that was started for one benchmark.
pub(crate) struct BenchServer {
    of: &'static ForBench,
    started: Vec<Started>,
}

impl BenchServer {
    /// How the benchmark finds it.
    pub(crate) fn environment(&self) -> (&'static str, String) {
        (self.of.variable, self.started.first().map(|started| started.url.clone()).unwrap_or_default())
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        for started in &self.started {
            if let Err(error) = (self.of.service.down)(started) {
                eprintln!("xtask: the server of the benchmark could not be stopped: {error:#}");
            }
        }
    }
}

impl Service {
    /// Starts it, unless it runs or somebody else's is to be used: then `false`.
    fn start(&self) -> Result<bool> {
        if self.given() || self.started()?.is_some_and(|started| (self.is_up)(&started)) {
            return Ok(false);
        }
        let started = (self.up)()?;
        self.note(Some(&started))?;
        Ok(true)
    }

    /// Stops exactly what was started here.
    fn stop(&self) -> Result<()> {
        let Some(started) = self.started()? else { return Ok(()) };
        (self.down)(&started)?;
        self.note(None)
    }

    fn standing(&self) -> Result<String> {
        if self.given() {
            return Ok(format!("the one that {} names", self.variable));
        }
        Ok(match self.started()? {
            Some(started) if (self.is_up)(&started) => format!("up (process {})", started.pid),
            _ => "down".to_owned(),
        })
    }

    fn given(&self) -> bool {
        std::env::var_os(self.variable).is_some_and(|url| !url.is_empty())
    }

    fn started(&self) -> Result<Option<Started>> {
        let path = file();
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(find(&text, self.variable))
    }

    /// Replaces what the file says of this service.
    fn note(&self, started: Option<&Started>) -> Result<()> {
        let path = file();
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut lines: Vec<String> =
            text.lines().filter(|line| !line.starts_with(self.variable)).map(str::to_owned).collect();
        if let Some(Started { url, pid, dir }) = started {
            let variable = self.variable;
            lines.push(format!("{variable}={url}"));
            lines.push(format!("{variable}_PID={pid}"));
            lines.push(format!("{variable}_DIR={}", dir.display()));
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }
}

/// Where the started servers are noted: lines of `NAME=value`.
fn file() -> PathBuf {
    target().join("services.env")
}

/// Where things are built.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

fn find(text: &str, variable: &str) -> Option<Started> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    Some(Started {
        url: value(variable)?.to_owned(),
        pid: value(&format!("{variable}_PID"))?.parse().ok()?,
        dir: value(&format!("{variable}_DIR"))?.into(),
    })
}

/// What compiling everything takes beside Rust.
pub(crate) fn build_tools() -> Result<()> {
    c_compiler()?;
    openssl()
}

fn c_compiler() -> Result<()> {
    let cplusplus = ["c++", "clang++", "g++"].into_iter().any(answers);
    if ["cc", "clang", "gcc"].into_iter().any(answers) && cplusplus && answers("make") {
        return Ok(());
    }
    if !answers("apt-get") {
        bail!(
            "there are no C and C++ compilers with `make`, which the bundled SQLite and librdkafka need; install them \
             (`gcc` and `g++`, or `clang`)"
        );
    }
    install("a C compiler", "build-essential")
}

/// The headers, for librdkafka. Found by pkg-config, as the build of it does.
fn openssl() -> Result<()> {
    let found = Command::new("pkg-config").args(["--exists", "openssl"]).stderr(Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    if !answers("apt-get") {
        bail!("pkg-config finds no OpenSSL, which the feature `kafka` needs; install its headers and pkg-config");
    }
    install("the headers of OpenSSL", "libssl-dev")?;
    if !answers("pkg-config") {
        install("pkg-config", "pkg-config")?;
    }
    Ok(())
}

/// The tests enqueue with it like a service in any language. The server's package brings it, but the server may be
/// somebody else's.
fn psql() -> Result<()> {
    if answers("psql") {
        return Ok(());
    }
    if !answers("apt-get") {
        bail!("there is no `psql`, which the tests enqueue with; install PostgreSQL's client programs");
    }
    install("psql", "postgresql-client")
}

/// As [`psql`], for MariaDB and MySQL.
fn mariadb_client() -> Result<()> {
    if answers("mariadb") {
        return Ok(());
    }
    if !answers("apt-get") {
        bail!("there is no `mariadb`, which the tests enqueue with; install MariaDB's client program");
    }
    install("the client of MariaDB", "mariadb-client")
}

/// Installs a package of the system.
fn install(what: &str, package: &str) -> Result<()> {
    let name = format!("install {what}");
    privileged(&name, &["update"])?;
    privileged(&name, &["install", "--yes", package])
}

/// Calls `apt-get` with the right to change the system.
fn privileged(name: &str, arguments: &[&str]) -> Result<()> {
    let sudo = answers("sudo");
    let (program, first) = if sudo { ("sudo", Some("apt-get")) } else { ("apt-get", None) };
    let arguments = first.iter().chain(arguments).map(ToString::to_string).collect::<Vec<_>>();
    Step::new(name, program).env("DEBIAN_FRONTEND", "noninteractive").args(arguments).run_aside()
}

fn answers(program: &str) -> bool {
    let quiet = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_started_server_is_found_again() {
        let text = "OTHER=x\nPG=postgres://u:p@h:1/d\nPG_PID=42\nPG_DIR=/x/y\n";
        let started = Started { url: "postgres://u:p@h:1/d".to_owned(), pid: 42, dir: "/x/y".into() };
        assert_eq!(find(text, "PG"), Some(started));
        assert_eq!(find("PG=postgres://u:p@h:1/d\n", "PG"), None, "half a note is none");
    }
}
