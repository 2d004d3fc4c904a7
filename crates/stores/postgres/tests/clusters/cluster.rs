//! A PostgreSQL cluster of the test's own: made, crashed, followed by a standby, promoted, and gone when it is dropped.
//!
//! The programs are those of the system's package. PostgreSQL refuses to run as root, so root hands over to the package's
//! user. A crash is an immediate stop: what the server had not written is lost, as after a `kill -9`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU32, Ordering},
    },
};

use postrider_testkit::fault::free_port;
use tokio_postgres::{Client, NoTls};

/// The user that Debian's package makes.
const USER: &str = "postgres";

/// Beyond the defaults: prepared transactions, and little that runs beside the test. No `fsync`, for nobody pulls the plug.
const SETTINGS: &str = "listen_addresses=127.0.0.1 max_prepared_transactions=16 max_connections=60 fsync=off \
                        shared_buffers=32MB log_min_messages=fatal autovacuum=off";

/// A cluster. Its server is stopped and its files are removed when it is dropped.
pub(crate) struct Cluster {
    dir: PathBuf,
    port: u16,
    settings: String,
    /// Kept as long as a copy of it lives.
    template: Option<Arc<Cluster>>,
}

impl Cluster {
    /// A new one. `settings` are more of the form `name=value`. Making one takes seconds, so all of these are copies of one
    /// that was never started, with its system identifier.
    pub(crate) fn start(settings: &str) -> Self {
        static TEMPLATE: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
        let template = {
            let mut template = TEMPLATE.lock().unwrap();
            template.upgrade().unwrap_or_else(|| {
                let made = Arc::new(Self::made(""));
                *template = Arc::downgrade(&made);
                made
            })
        };
        let mut cluster = Self::nowhere(settings);
        cluster.template = Some(Arc::clone(&template));
        let copied = Command::new("cp").args(["-a", &template.data(), &cluster.data()]).status().unwrap();
        assert!(copied.success());
        cluster.up();
        cluster
    }

    /// A new one with a system identifier of its own.
    pub(crate) fn elsewhere() -> Self {
        let cluster = Self::made("");
        cluster.up();
        cluster
    }

    fn made(settings: &str) -> Self {
        let cluster = Self::nowhere(settings);
        cluster.run("initdb", &["-D", &cluster.data(), "-U", "postrider", "-A", "trust", "-E", "UTF8", "-N"]);
        cluster
    }

    /// A standby that follows this one, with this one's identifier.
    pub(crate) fn standby(&self) -> Self {
        let standby = self.copy();
        standby.up();
        standby
    }

    /// A standby that has this one's data as they are now, and has not been started.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self::nowhere(&self.settings);
        let port = self.port.to_string();
        let from = ["-h", "127.0.0.1", "-p", &port, "-U", "postrider"];
        copy.run("pg_basebackup", &[&from[..], &["-D", &copy.data(), "-R", "-X", "stream", "-c", "fast"]].concat());
        copy
    }

    fn nowhere(settings: &str) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("postrider-cluster-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::SeqCst));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).unwrap();
        if is_root() {
            assert!(Command::new("chown").arg(USER).arg(&dir).status().unwrap().success());
        }
        let port = free_port();
        Self { dir, port, settings: settings.to_owned(), template: None }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postrider@127.0.0.1:{}/postgres", self.port)
    }

    pub(crate) async fn connect(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// Starts the server and waits until it answers.
    pub(crate) fn up(&self) {
        let settings =
            format!("{SETTINGS} {} port={} unix_socket_directories={}", self.settings, self.port, self.dir());
        let options: String = settings.split_whitespace().map(|setting| format!(" -c {setting}")).collect();
        let log = self.dir.join("log").display().to_string();
        self.run("pg_ctl", &["start", "-w", "-D", &self.data(), "-l", &log, "-o", &options]);
    }

    /// Stops the server in an instant. It recovers when it is started again.
    pub(crate) fn crash(&self) {
        self.run("pg_ctl", &["stop", "-w", "-m", "immediate", "-D", &self.data()]);
    }

    /// Stops the server in order.
    pub(crate) fn down(&self) {
        self.run("pg_ctl", &["stop", "-w", "-m", "fast", "-D", &self.data()]);
    }

    /// Makes a primary of a standby.
    pub(crate) fn promote(&self) {
        self.run("pg_ctl", &["promote", "-w", "-D", &self.data()]);
    }

    /// Has the address of another one, which is down, from now on.
    pub(crate) fn take_over_address(&mut self, other: &Self) {
        self.port = other.port;
    }

    /// Restarts with another counter of transaction ids. What there is, is frozen first, so that no row lies in the future.
    pub(crate) fn set_next_xid(&self, epoch: u32, xid: u32) {
        let port = self.port.to_string();
        self.run("vacuumdb", &["-h", "127.0.0.1", "-p", &port, "-U", "postrider", "--all", "--freeze", "-q"]);
        self.down();
        let (epoch, next, oldest) =
            (epoch.to_string(), xid.to_string(), xid.saturating_sub(1 << 20).max(3).to_string());
        self.run("pg_resetwal", &["-e", &epoch, "-x", &next, "-u", &oldest, "-D", &self.data()]);
        // A segment holds 2^20 transactions in 2^18 bytes; the server expects the one of the next id to be there.
        let segment = self.dir.join("data/pg_xact").join(format!("{:04X}", xid >> 20));
        if !segment.exists() {
            fs::write(&segment, vec![0; 1 << 18]).unwrap();
            if is_root() {
                assert!(Command::new("chown").arg(USER).arg(&segment).status().unwrap().success());
            }
        }
        self.up();
    }

    /// Everything as one archive, and from one.
    pub(crate) fn dump(&self, to: &str) {
        self.run("pg_dump", &["-d", &self.url(), "-Fc", "-f", to]);
    }

    pub(crate) fn restore(&self, from: &str) {
        self.run("pg_restore", &["-d", &self.url(), "--exit-on-error", from]);
    }

    /// What `pg_upgrade` makes of another one, which is down. This one has a system identifier of its own.
    pub(crate) fn upgraded_from(old: &Self) -> Self {
        let new = Self::made("");
        let (programs, data) = (programs().display().to_string(), old.data());
        let (from, to) = (old.port.to_string(), new.port.to_string());
        let programs = ["-b", &programs, "-B", &programs];
        let rest = ["-d", &data, "-D", &new.data(), "-p", &from, "-P", &to, "-U", "postrider", "-s", &new.dir()];
        new.run("pg_upgrade", &[&programs[..], &rest[..]].concat());
        new.up();
        new
    }

    /// A file name that the server's user may write.
    pub(crate) fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn dir(&self) -> String {
        self.dir.display().to_string()
    }

    fn data(&self) -> String {
        self.dir.join("data").display().to_string()
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let path = programs().join(program);
        let mut command = if is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", USER, "--"]).arg(path);
            command
        } else {
            Command::new(path)
        };
        let log = fs::File::create(std::env::temp_dir().join(format!("{}.{program}", self.name()))).unwrap();
        let done =
            command.args(arguments).current_dir(&self.dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let status = done.status().unwrap();
        let told = std::env::temp_dir().join(format!("{}.{program}", self.name()));
        let text = fs::read_to_string(&told).unwrap_or_default();
        let _ = fs::remove_file(told);
        assert!(status.success(), "{program} {arguments:?}: {text}");
    }

    fn name(&self) -> String {
        self.dir.file_name().unwrap().to_string_lossy().into_owned()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.dir.join("data/postmaster.pid").exists() && !std::thread::panicking() {
            self.crash();
        } else if let Ok(noted) = fs::read_to_string(self.dir.join("data/postmaster.pid")) {
            // A test that fails must not hide why: the server is ended by its own number, and nothing is asserted.
            let pid = noted.lines().next().unwrap_or_default();
            let _ = Command::new("kill").args(["-QUIT", pid]).status();
        }
        let _ = fs::remove_dir_all(&self.dir);
        self.template = None;
    }
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    id.stdout.trim_ascii() == b"0"
}

/// The newest version's programs.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("the package `postgresql` is installed");
    let number = |path: &Path| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    let newest = versions.flatten().map(|entry| entry.path()).filter(|path| number(path).is_some());
    newest.max_by_key(|path| number(path)).expect("a version of PostgreSQL").join("bin")
}
