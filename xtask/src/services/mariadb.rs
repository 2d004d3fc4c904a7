//! MariaDB from the system's package, on a data directory and a loopback port of its own.
//!
//! The package's own instance is left alone. MariaDB does not run as root unless told to, so root hands over to the user that
//! the package made. The server leaves writing through to the disk to the system: a test's data need not survive a power cut.

use std::{
    fs,
    io::Read,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{
    Service, Started, answers, install,
    machine::{free_port, is_root, own, password},
};
use crate::step::Step;

pub(super) const SERVICE: Service = Service { name: "mariadb", variable: "POSTRIDER_TEST_MYSQL", up, down, is_up };

/// The user that Debian's package makes.
const USER: &str = "mysql";

/// Where the package puts the server.
const PROGRAM: &str = "/usr/sbin/mariadbd";

/// How long the server may take to begin or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Many connections for tests in parallel; one file for all tables, since the tests make and drop thousands; and the disk
/// written to once a second.
const SETTINGS: &[&str] = &[
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--skip-log-bin",
    "--max-connections=400",
    "--innodb-buffer-pool-size=256M",
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-file-per-table=OFF",
    "--innodb-doublewrite=OFF",
    // As MySQL 8 does: numbers of a statement are reserved ahead of its rows.
    "--innodb-autoinc-lock-mode=2",
    "--table-open-cache=4000",
];

/// A server in earnest: every commit on the disk, and memory for what is measured.
const BENCH_SETTINGS: &[&str] = &[
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--skip-log-bin",
    "--innodb-buffer-pool-size=1G",
    "--innodb-log-file-size=1G",
    "--innodb-flush-log-at-trx-commit=1",
];

fn up() -> Result<Started> {
    up_with(SETTINGS)
}

/// A server for one benchmark.
pub(super) fn up_for_bench() -> Result<Started> {
    up_with(BENCH_SETTINGS)
}

fn up_with(settings: &[&str]) -> Result<Started> {
    // The tests enqueue with the client like a service in any language.
    if !Path::new(PROGRAM).exists() || !answers("mariadb") {
        install("MariaDB", "mariadb-server")?;
    }
    let dir = directory()?;
    let (data, socket) = (dir.join("data"), dir.join("socket"));
    let (password, port) = (password()?, free_port()?);
    // Grants are made when the server begins: nobody can connect before.
    let first = dir.join("first.sql");
    let sql = format!(
        "CREATE USER 'postrider'@'127.0.0.1' IDENTIFIED BY '{password}';\n\
         GRANT ALL ON *.* TO 'postrider'@'127.0.0.1' WITH GRANT OPTION;\n\
         CREATE DATABASE postrider CHARACTER SET utf8mb4;\n"
    );
    fs::write(&first, sql)?;
    own(&first, USER)?;
    let install_db = [
        format!("--datadir={}", data.display()),
        // Whoever starts a server beside this one would throw its temporary tables away, were they all in one directory.
        format!("--tmpdir={}", dir.display()),
        "--skip-test-db".to_owned(),
        "--auth-root-authentication-method=socket".to_owned(),
    ];
    server("mariadb-install-db").args(["--no-defaults".to_owned()]).args(install_db).output()?;
    let mut arguments = vec!["--no-defaults".to_owned()];
    arguments.extend(settings.iter().map(|setting| (*setting).to_owned()));
    arguments.extend([
        format!("--datadir={}", data.display()),
        format!("--tmpdir={}", dir.display()),
        format!("--socket={}", socket.display()),
        format!("--pid-file={}", dir.join("pid").display()),
        format!("--log-error={}", dir.join("log.err").display()),
        format!("--port={port}"),
        format!("--init-file={}", first.display()),
    ]);
    start(arguments)?;
    let pid = wait_for_server(&dir, port)?;
    fs::remove_file(&first)?;
    Ok(Started { url: format!("mysql://postrider:{password}@127.0.0.1:{port}/postrider"), pid, dir })
}

/// In the background, and not a child that this program would have to wait for.
fn start(arguments: Vec<String>) -> Result<()> {
    let mut command = if is_root() {
        let mut command = Command::new("runuser");
        command.args(["-u", USER, "--", PROGRAM]);
        command
    } else {
        Command::new(PROGRAM)
    };
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("start mariadbd")?;
    Ok(())
}

/// Until it greets. It writes the file with its process id before that.
fn wait_for_server(dir: &Path, port: u16) -> Result<u32> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let pid = fs::read_to_string(dir.join("pid")).ok().and_then(|text| text.trim().parse().ok());
        if let Some(pid) = pid
            && greets(port)
        {
            return Ok(pid);
        }
        if Instant::now() > deadline {
            let log = fs::read_to_string(dir.join("log.err")).unwrap_or_default();
            bail!("MariaDB does not answer after {} s; its log says:\n{log}", PATIENCE.as_secs());
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Whether somebody who connects is spoken to. The server listens before it has run its first statements, for which it needs
/// their file, and speaks to nobody until then.
fn greets(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let patient = stream.set_read_timeout(Some(Duration::from_secs(1))).is_ok();
    patient && stream.read(&mut [0]).is_ok_and(|read| read > 0)
}

fn down(started: &Started) -> Result<()> {
    if is_up(started) {
        Step::new("stop MariaDB", "kill").args(["-TERM".to_owned(), started.pid.to_string()]).run_aside()?;
        let deadline = Instant::now() + PATIENCE;
        while is_up(started) {
            if Instant::now() > deadline {
                bail!("MariaDB (process {}) does not end", started.pid);
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
    if started.dir.exists() {
        fs::remove_dir_all(&started.dir).with_context(|| format!("remove {}", started.dir.display()))?;
    }
    Ok(())
}

/// Whether the process that was started still is the server of that directory.
fn is_up(started: &Started) -> bool {
    let command = fs::read(format!("/proc/{}/cmdline", started.pid)).unwrap_or_default();
    let data = format!("--datadir={}", started.dir.join("data").display());
    command.split(|byte| *byte == 0).any(|argument| argument == data.as_bytes())
}

/// One of the server's programs, as a user that it accepts.
fn server(program: &str) -> Step {
    if is_root() {
        return Step::new(program, "runuser").args(["-u", USER, "--", program].map(str::to_owned));
    }
    Step::new(program, program)
}

/// A fresh directory that the server may write to.
fn directory() -> Result<PathBuf> {
    let dir = std::env::temp_dir().join(format!("postrider-mariadb-{}", std::process::id()));
    fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
    own(&dir, USER)?;
    Ok(dir)
}
