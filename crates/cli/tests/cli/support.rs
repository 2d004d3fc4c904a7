//! A workplace of its own for each test: a directory, the binary, and a way to wait for something to be true.

use std::{
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    str::FromStr,
    thread,
    time::{Duration, Instant},
};

use postrider::{
    Envelope, MessageId, Outbox,
    core::admin::Actor,
    sqlite::{Sqlite, migrations},
};
use postrider_testkit::checker::{self, Enqueued, Verdict};
use rusqlite::{Connection, TransactionBehavior};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::Value;

/// Far longer than anything takes; reached only by what will never happen.
const PATIENCE: Duration = Duration::from_secs(120);

/// The same for a command, of which some do a lot.
const COMMAND_PATIENCE: Duration = Duration::from_secs(300);

/// Waits until `condition` holds.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a command, which has its input piped if there is any. One that never ends is ended, and named.
#[track_caller]
pub(crate) fn to_its_end(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap_or_else(|error| {
        panic!("{command:?} runs: {error}");
    });
    // One that has heard enough need not listen to the end.
    let written = child.stdin.take().map(|mut stdin| {
        let input = input.to_vec();
        thread::spawn(move || drop(stdin.write_all(&input)))
    });
    let read = |mut pipe: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).map(|_| bytes)
        })
    };
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (stdout, stderr) = (read(Box::new(stdout)), read(Box::new(stderr)));
    let deadline = Instant::now() + COMMAND_PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("{command:?} has not ended within {COMMAND_PATIENCE:?}");
        }
        thread::sleep(Duration::from_millis(1));
    };
    if let Some(written) = written {
        written.join().unwrap();
    }
    let [stdout, stderr] = [stdout, stderr].map(|bytes| bytes.join().unwrap().unwrap());
    Output { status, stdout, stderr }
}

/// A directory in which the binary works.
pub(crate) struct Workplace {
    folder: tempfile::TempDir,
}

impl Workplace {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).unwrap();
    }

    /// The binary in this directory.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        // Whoever runs the tests may have their own.
        let said =
            |name: &str| ["POSTRIDER__", "OTEL_", "RUST_LOG", "DATABASE_URL"].iter().any(|it| name.starts_with(it));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(said)) {
            command.env_remove(name);
        }
        command
    }

    /// Runs the binary to its end.
    #[track_caller]
    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        Finished::of(&to_its_end(&mut self.command(arguments), b""))
    }

    /// What a command answers in JSON.
    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let finished = self.run(&[arguments, &["--output", "json"]].concat());
        serde_json::from_str(&finished.stdout).unwrap_or_else(|_| panic!("{arguments:?}: {finished:?}"))
    }

    /// Runs the binary with something on its standard input.
    #[track_caller]
    pub(crate) fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Finished {
        Finished::of(&to_its_end(self.command(arguments).stdin(Stdio::piped()), input))
    }

    /// Starts a daemon on `config`, which is written to a file of its own.
    pub(crate) fn daemon(&self, name: &str, config: &str) -> Daemon {
        let file = format!("{name}.toml");
        self.write(&file, config);
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path(&format!("{name}.log"))).unwrap();
        let mut command = self.command(&["run", "--config", &file]);
        Daemon { child: command.stdout(Stdio::null()).stderr(log).spawn().unwrap() }
    }

    /// The database `app.db` with its schema.
    pub(crate) fn migrated(&self) -> Producer {
        migrations::up(self.path("app.db"), &Sqlite::default(), &Actor::new("tests")).unwrap();
        self.producer()
    }

    /// An application that writes to `app.db`, which is there.
    pub(crate) fn producer(&self) -> Producer {
        Producer::new(&self.path("app.db"))
    }

    /// What arrived in a file, by message id.
    pub(crate) fn arrivals(&self, name: &str) -> Vec<MessageId> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        // A line that a kill cut in two is no arrival; what was written behind it is.
        let whole =
            |line: &str| line.match_indices('{').find_map(|(start, _)| serde_json::from_str(&line[start..]).ok());
        let ids =
            text.lines().filter_map(|line| whole(line).map(|object: Value| object["id"].as_str().unwrap().to_owned()));
        ids.map(|id| MessageId::from_str(&id).unwrap()).collect()
    }

    pub(crate) fn status(&self) -> Value {
        self.status_of("sqlite:app.db")
    }

    pub(crate) fn status_of(&self, store: &str) -> Value {
        let finished = self.run(&["status", "--store", store, "--json"]);
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        serde_json::from_str(&finished.stdout).unwrap()
    }
}

/// A run that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    pub(crate) fn of(output: &Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout.clone()).unwrap(),
            stderr: String::from_utf8(output.stderr.clone()).unwrap(),
        }
    }
}

/// A daemon that runs. It does not outlive the test.
pub(crate) struct Daemon {
    child: Child,
}

impl Daemon {
    pub(crate) fn around(child: Child) -> Self {
        Self { child }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it with SIGSTOP, and returns when it stands still.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let pid = Pid::from_child(&self.child);
        wait_until("it stands still", || {
            let state = waitpid(Some(pid), WaitOptions::UNTRACED | WaitOptions::NOHANG).unwrap();
            state.is_some_and(|(_, status)| status.stopped())
        });
    }

    /// How many bytes of its standard output nobody has read.
    pub(crate) fn output_waiting(&self) -> u64 {
        rustix::io::ioctl_fionread(self.child.stdout.as_ref().expect("a pipe")).unwrap()
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "it was alive until now");
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Whether it runs no more.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the daemon has ended", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An application that enqueues and remembers what it did.
pub(crate) struct Producer {
    connection: Connection,
    outbox: Outbox<Sqlite>,
    pub(crate) enqueued: Vec<Enqueued>,
}

impl Producer {
    fn new(path: &Path) -> Self {
        let connection = Connection::open(path).unwrap();
        connection.busy_timeout(PATIENCE).unwrap();
        Self { connection, outbox: Outbox::new(Sqlite::default()), enqueued: Vec::new() }
    }

    /// Commits `messages`, ten a transaction, spread over `keys`; then rolls one more transaction back.
    pub(crate) fn enqueue(&mut self, messages: u64, keys: u64) {
        let mut left = messages;
        while left > 0 {
            let batch = left.min(10);
            self.transaction(batch, keys, true);
            left -= batch;
        }
        self.transaction(3, keys, false);
    }

    fn transaction(&mut self, messages: u64, keys: u64, committed: bool) {
        let mut transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        for _ in 0..messages {
            let sequence = self.enqueued.len() as u64;
            let key = format!("key-{}", sequence % keys);
            let payload = format!("{{\"sequence\":{sequence}}}");
            let envelope = Envelope::new("orders.placed", "order.placed", payload).with_key(key.clone());
            self.enqueued.push(Enqueued { id: envelope.id, key: Some(key), sequence, committed });
            self.outbox.enqueue_raw(&mut transaction, vec![envelope]).unwrap();
        }
        if committed { transaction.commit().unwrap() } else { transaction.rollback().unwrap() }
    }

    pub(crate) fn verdict(&self, arrivals: &[MessageId]) -> Verdict {
        checker::check(&self.enqueued, arrivals)
    }

    /// Whether everything that was committed has arrived.
    pub(crate) fn all_arrived(&self, arrivals: &[MessageId]) -> bool {
        self.verdict(arrivals).lost == 0
    }
}
