//! Servers of a test's own: to kill, and to set the clock of.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use mysql_async::{Conn, prelude::Queryable};
use postrider_testkit::fault::Server;

/// Where the package puts the server.
const PROGRAM: &str = "/usr/sbin/mariadbd";

/// A server that writes every commit through and gives numbers as MariaDB does. All that it has is in the directory.
pub(crate) fn start(dir: &Path) -> Server {
    started(dir, Path::new(PROGRAM), Vec::new())
}

/// The same with a clock that can be set while it runs.
pub(crate) fn start_with_clock(dir: &Path) -> (Server, Clock) {
    let clock = Clock(dir.join("clock"));
    clock.set(0);
    let said = [
        format!("LD_PRELOAD={}", faketime().display()),
        format!("FAKETIME_TIMESTAMP_FILE={}", clock.0.display()),
        "FAKETIME_NO_CACHE=1".to_owned(),
        // The clock that counts from nowhere goes on as it is.
        "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
        PROGRAM.to_owned(),
    ];
    (started(dir, Path::new("/usr/bin/env"), said.into()), clock)
}

/// The clock of a server: how far it is from that of the machine.
pub(crate) struct Clock(PathBuf);

impl Clock {
    /// From now on it is ahead by so many seconds, or behind.
    pub(crate) fn set(&self, seconds: i64) {
        // Whole or not at all: the server looks at it all the time.
        let new = self.0.with_extension("new");
        std::fs::write(&new, format!("{seconds:+}\n")).unwrap();
        std::fs::rename(&new, &self.0).unwrap();
    }
}

/// The library that shows a program another time, where distributions put it.
fn faketime() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").unwrap().map(|entry| entry.unwrap().path());
    let library = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|library| library.exists());
    library.expect("libfaketime is missing: `cargo xtask services up` installs it")
}

/// A program that becomes the server, with arguments before those of the server.
fn started(dir: &Path, program: &Path, before: Vec<String>) -> Server {
    let data = format!("--datadir={}", dir.join("data").display());
    // A server that starts throws away what looks like a temporary table there, whoever's it is.
    let own = dir.join("temporary");
    std::fs::create_dir(&own).unwrap();
    let temporary = format!("--tmpdir={}", own.display());
    let as_root = is_root().then_some("--user=root");
    let installed = Command::new("mariadb-install-db")
        .args(["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal", &data, &temporary])
        .args(as_root)
        .stdout(Stdio::null())
        .status();
    assert!(installed.is_ok_and(|status| status.success()), "mariadb-install-db runs");
    let socket = dir.join("socket").display().to_string();
    Server::start(program, |port| {
        let settings = ["--no-defaults", "--bind-address=127.0.0.1", "--skip-log-bin", "--innodb-buffer-pool-size=64M"];
        // What is killed must be still at once: writes that the kernel does for a process can outlive it, and were seen to land
        // in the files of the server that had taken its place.
        let chosen =
            ["--innodb-flush-log-at-trx-commit=1", "--innodb-autoinc-lock-mode=1", "--innodb-use-native-aio=OFF"];
        let places = [data.clone(), temporary.clone(), format!("--socket={socket}"), format!("--port={port}")];
        let fixed = settings.into_iter().chain(chosen).chain(as_root).map(str::to_owned);
        before.into_iter().chain(fixed).chain(places).collect()
    })
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n")
}

/// A new database on it, as a URL.
pub(crate) async fn database(server: &Server) -> String {
    let url = format!("mysql://root@127.0.0.1:{}", server.address().port());
    let mut first = Conn::from_url(&url).await.unwrap();
    first.query_drop("CREATE DATABASE shop CHARACTER SET utf8mb4").await.unwrap();
    format!("{url}/shop")
}
