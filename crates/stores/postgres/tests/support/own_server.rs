//! A PostgreSQL of a test's own, for what cannot be tried on the shared one: TLS, settings of the whole server, standbys.
//!
//! It lives in a directory of its own and ends with the value. PostgreSQL refuses to run as root, so root hands over to the
//! user that the package made.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use postrider_testkit::fault::free_port;
use tempfile::TempDir;

/// The user that Debian's package makes.
const USER: &str = "postgres";

pub(crate) const PASSWORD: &str = "open-sesame";

pub(crate) struct OwnServer {
    dir: TempDir,
    pub(crate) port: u16,
}

impl OwnServer {
    /// A fresh one, on loopback, with these settings beyond the defaults.
    pub(crate) fn start(settings: &[(&str, &str)]) -> Self {
        Self::start_with_files(&[], settings)
    }

    /// As [`Self::start`], with files that the settings may name as `HERE/name`.
    pub(crate) fn start_with_files(files: &[(&str, &str)], settings: &[(&str, &str)]) -> Self {
        let server = Self { dir: directory(), port: free_port() };
        for (name, text) in files {
            server.file(name, text);
        }
        let secret = server.file("password", PASSWORD);
        let (data, secret) = (server.data(), secret.display().to_string());
        server.run("initdb", &["-D", &data, "-U", "postrider", "-A", "scram-sha-256", "--pwfile", &secret, "-N"]);
        server.start_with(settings);
        server
    }

    /// A standby of this one, which keeps up with it.
    pub(crate) fn standby(&self) -> Self {
        let standby = Self { dir: directory(), port: free_port() };
        let primary = format!("host=127.0.0.1 port={} user=postrider password={PASSWORD}", self.port);
        standby.run("pg_basebackup", &["-d", &primary, "-D", &standby.data(), "-R", "-X", "stream", "-c", "fast"]);
        standby.start_with(&[]);
        standby
    }

    fn start_with(&self, settings: &[(&str, &str)]) {
        let mut options = vec![
            format!("-c port={}", self.port),
            "-c listen_addresses=127.0.0.1".to_owned(),
            format!("-c unix_socket_directories={}", self.dir.path().display()),
        ];
        let here = self.dir.path().display().to_string();
        options.extend(settings.iter().map(|(name, value)| format!("-c {name}={}", value.replace("HERE", &here))));
        let log = self.dir.path().join("log").display().to_string();
        self.run("pg_ctl", &["start", "-w", "-D", &self.data(), "-l", &log, "-o", &options.join(" ")]);
    }

    /// The URL of its superuser, with parameters.
    pub(crate) fn url(&self, host: &str, parameters: &str) -> String {
        format!("postgres://postrider:{PASSWORD}@{host}:{}/postgres?{parameters}", self.port)
    }

    /// A file beside the data, for the server's eyes only.
    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).expect("write a file of the server");
        own(&path);
        path
    }

    fn data(&self) -> String {
        self.dir.path().join("data").display().to_string()
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let output = command(program).args(arguments).current_dir(self.dir.path()).stdout(Stdio::null()).output();
        let output = output.unwrap_or_else(|error| panic!("{program} cannot be run: {error}"));
        let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        assert!(output.status.success(), "{program} failed: {}{log}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        let stop = ["stop", "-m", "immediate", "-D", &self.data()].map(str::to_owned);
        let _ = command("pg_ctl").args(stop).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// The newest version's program, as a user that it accepts.
fn command(program: &str) -> Command {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL; `cargo xtask services up` installs it");
    let number = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    let newest = versions.flatten().map(|entry| entry.path()).max_by_key(number).expect("a version of PostgreSQL");
    as_user(&newest.join("bin").join(program))
}

fn as_user(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("runuser");
    command.args(["-u", USER, "--"]).arg(program);
    command
}

fn directory() -> TempDir {
    let dir = tempfile::Builder::new().prefix("postrider-test-").tempdir().expect("a directory");
    own(dir.path());
    dir
}

/// For the server and nobody else.
fn own(path: &Path) {
    if is_root() {
        let done = Command::new("chown").arg(USER).arg(path).status();
        assert!(done.is_ok_and(|status| status.success()), "chown {}", path.display());
    }
    let done = Command::new("chmod").arg("go=").arg(path).status();
    assert!(done.is_ok_and(|status| status.success()), "chmod {}", path.display());
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// A pooler in front of a server. It ends with the value.
pub(crate) struct Pooler {
    child: std::process::Child,
    pub(crate) port: u16,
    _dir: TempDir,
}

impl OwnServer {
    /// One that hands its sessions out by `transaction`, or one that does so by `session`.
    pub(crate) fn pooler(&self, by: &str) -> Pooler {
        self.pooler_with(by, "")
    }

    /// The same with more settings, one a line.
    pub(crate) fn pooler_with(&self, by: &str, more: &str) -> Pooler {
        let (dir, port) = (directory(), free_port());
        let here = dir.path().display();
        let settings = format!(
            "[databases]\npostgres = host=127.0.0.1 port={} user=postrider password={PASSWORD}\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {by}\n\
             logfile = {here}/log\nignore_startup_parameters = extra_float_digits\n{more}\n",
            self.port
        );
        let path = dir.path().join("pooler.ini");
        std::fs::write(&path, settings).expect("write the pooler's settings");
        own(&path);
        let program = Path::new("/usr/sbin/pgbouncer");
        assert!(program.exists(), "there is no pgbouncer; `cargo xtask services up` installs it");
        let mut command = as_user(program);
        let child = command.arg(&path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start the pooler");
        let pooler = Pooler { child, port, _dir: dir };
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(std::time::Instant::now() < deadline, "the pooler listens");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        pooler
    }
}

impl Pooler {
    pub(crate) fn url(&self) -> String {
        format!("postgres://postrider:{PASSWORD}@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        // `runuser` passes the signal on; killing it outright would leave the pooler behind.
        let _ = Command::new("kill").arg("-TERM").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}
