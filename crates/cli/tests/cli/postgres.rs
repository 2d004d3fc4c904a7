//! A database of its own on the test server for each test, and `psql` to work in it like a service in any language.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use postrider_testkit::service;
use serde_json::Value;

use crate::support::{Daemon, Workplace, to_its_end, wait_until};

const VARIABLE: &str = "POSTRIDER_TEST_POSTGRES";

/// The server: the one that the environment names, or the one that the workshop has started.
fn server() -> String {
    service::url(VARIABLE)
}

/// What `psql` answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) succeeded: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A session that stays open until it is told to end.
pub(crate) struct Session {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Session {
    /// Ends it; what it has not committed is rolled back.
    pub(crate) fn end(&mut self) {
        drop(self.stdin.take());
        self.child.wait().unwrap();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A database with the tables of the store, and a role that may do no more than enqueue. Both are dropped at the end.
pub(crate) struct Database {
    name: String,
    server: String,
    pub(crate) workplace: Workplace,
}

impl Database {
    /// Migrated by the binary.
    pub(crate) fn migrated() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_cli_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let database = Self { name, server: server(), workplace: Workplace::new() };
        let name = &database.name;
        // What an earlier process of the same number has left behind, if it was killed.
        psql(&database.server, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).done();
        psql(&database.server, &format!("DROP ROLE IF EXISTS {name}")).done();
        psql(&database.server, &format!("CREATE DATABASE {name}")).done();
        let up = database.workplace.run(&["migrate", "up", "--store", &database.url()]);
        assert_eq!(up.code, 0, "{up:?}");
        database
            .admin(&format!(
                "CREATE ROLE {name} LOGIN PASSWORD 'app';
                 GRANT USAGE ON SCHEMA postrider TO {name};
                 GRANT INSERT (id, topic, name, key, deliver_at, expires_at, attempts_max, headers, payload)
                    ON postrider.log TO {name};
                 GRANT USAGE ON SEQUENCE postrider.seq TO {name}"
            ))
            .done();
        database
    }

    /// As the owner.
    pub(crate) fn url(&self) -> String {
        let (server, _) = self.server.rsplit_once('/').expect("the URL names a database");
        format!("{server}/{}", self.name)
    }

    /// The role that may enqueue.
    pub(crate) fn role(&self) -> &str {
        &self.name
    }

    /// As the role that may enqueue.
    fn app_url(&self) -> String {
        let url = self.url();
        let (_, host) = url.split_once('@').expect("the URL names a user");
        format!("postgres://{}:app@{host}", self.name)
    }

    /// Runs SQL as the owner.
    pub(crate) fn admin(&self, sql: &str) -> Answer {
        psql(&self.url(), sql)
    }

    /// Shuts everybody out, or lets them in again.
    pub(crate) fn let_in(&self, open: bool) {
        let name = &self.name;
        psql(&self.server, &format!("ALTER DATABASE {name} WITH ALLOW_CONNECTIONS {open}")).done();
        if !open {
            let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname";
            psql(&self.server, &format!("{end} = '{name}'")).done();
        }
    }

    /// Runs SQL as the role that may enqueue.
    pub(crate) fn app(&self, sql: &str) -> Answer {
        psql(&self.app_url(), sql)
    }

    /// A session of the owner that has run this and stays open, with whatever transaction it has begun.
    pub(crate) fn session(&self, sql: &str) -> Session {
        let mut child = Command::new("psql")
            .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", &self.url()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("psql is installed");
        let mut stdin = child.stdin.take().expect("a pipe");
        writeln!(stdin, "{sql}\n\\echo ready").unwrap();
        stdin.flush().unwrap();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        assert!(stdout.lines().any(|line| line.unwrap() == "ready"), "it did what it was told");
        Session { child, stdin: Some(stdin) }
    }

    /// A daemon that writes every message into the file `arrivals.ndjson`.
    pub(crate) fn daemon(&self) -> Daemon {
        self.workplace.daemon(
            "run",
            &format!(
                "[store]\nurl = \"{}\"\n[[route]]\nname = \"all\"\ntransport = \"file:arrivals.ndjson\"\n",
                self.url()
            ),
        )
    }

    /// Waits for so many arrivals and returns them.
    pub(crate) fn arrivals(&self, count: usize) -> Vec<Value> {
        wait_until("they have arrived", || self.workplace.arrivals("arrivals.ndjson").len() >= count);
        let text = std::fs::read_to_string(self.workplace.path("arrivals.ndjson")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let name = &self.name;
        psql(&self.server, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
        psql(&self.server, &format!("DROP ROLE IF EXISTS {name}"));
    }
}

impl Answer {
    #[track_caller]
    pub(crate) fn done(self) -> String {
        assert!(self.succeeded, "{}", self.stderr);
        self.stdout
    }

    #[track_caller]
    pub(crate) fn refused(self) -> String {
        assert!(!self.succeeded, "it was accepted: {}", self.stdout);
        self.stderr
    }
}

/// Runs the real `psql`, statement by statement, and stops at the first error.
fn psql(url: &str, sql: &str) -> Answer {
    // Debian has it in the package `postgresql-client`.
    let mut psql = Command::new("psql");
    psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1", url]);
    let output = to_its_end(psql.env("PGCLIENTENCODING", "UTF8").stdin(Stdio::piped()), sql.as_bytes());
    Answer {
        succeeded: output.status.success(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
