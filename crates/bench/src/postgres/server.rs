//! The server that is measured, a database of our own in it, and how busy the rest of the machine is meanwhile.
//!
//! Everything happens in a fresh database that is dropped at the end. If the server runs on this machine, its processes
//! are found, so that what *other* processes took from the cores can be told apart and reported.

use std::{collections::HashSet, fs, time::Instant};

use anyhow::{Context, Result};
use tokio_postgres::{Client, Config, NoTls};

/// The environment variable that names the server.
pub(crate) const VARIABLE: &str = "POSTRIDER_BENCH_POSTGRES";

/// A database on a server, ours alone.
pub(crate) struct Server {
    given: Config,
    pub(crate) url: String,
    database: String,
    postmaster: Option<u32>,
}

impl Server {
    /// Makes a fresh database on the server that the environment names.
    pub(crate) async fn connect() -> Result<Self> {
        let url = std::env::var(VARIABLE).with_context(|| {
            format!("{VARIABLE} does not name a server; `cargo xtask bench postgres` starts one and sets it")
        })?;
        let given: Config = url.parse().with_context(|| format!("{VARIABLE} is not a PostgreSQL URL"))?;
        let database = format!("postrider_bench_{}", std::process::id());
        let client = open(&given).await?;
        client.batch_execute(&format!("CREATE DATABASE {database}")).await?;
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
        let postmaster = u32::try_from(pid).ok().and_then(parent_of_a_backend);
        Ok(Self { given, url: in_database(&url, &database), database, postmaster })
    }

    /// A connection to our database.
    pub(crate) async fn client(&self) -> Result<Client> {
        open(self.given.clone().dbname(&self.database)).await
    }

    /// What is between two places of the write-ahead log.
    pub(crate) async fn wal(&self, client: &Client) -> Result<i64> {
        let row = client.query_one("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint", &[]).await?;
        Ok(row.get(0))
    }

    /// Begins to watch the machine.
    pub(crate) fn watch(&self) -> Watch {
        Watch { began: Instant::now(), ours: self.ours(), all: all_busy() }
    }

    /// Cores that processes other than this benchmark and its server used since. `None` where the system does not tell, or
    /// the server runs somewhere else.
    pub(crate) fn foreign_cores(&self, watch: &Watch) -> Option<f64> {
        let all = all_busy()? - watch.all?;
        let ours = self.ours()? - watch.ours?;
        Some(((all - ours) / watch.began.elapsed().as_secs_f64()).max(0.0))
    }

    /// Seconds of the processor that this process, its children and the server have used.
    fn ours(&self) -> Option<f64> {
        let mut trees = HashSet::from([std::process::id(), self.postmaster?]);
        let mut seconds = trees.iter().filter_map(|pid| stat(*pid)).map(|stat| stat.own + stat.reaped).sum::<f64>();
        let pids: Vec<u32> =
            fs::read_dir("/proc").ok()?.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
        // Children of children do not occur: neither a backend nor our relay starts any.
        for stat in pids.iter().filter_map(|pid| stat(*pid)) {
            if trees.contains(&stat.parent) && trees.insert(stat.pid) {
                seconds += stat.own;
            }
        }
        Some(seconds)
    }

    /// Drops the database.
    pub(crate) async fn tidy(&self) -> Result<()> {
        let client = open(&self.given).await?;
        client.batch_execute(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.database)).await?;
        Ok(())
    }
}

/// The state of the machine when watching began.
pub(crate) struct Watch {
    began: Instant,
    ours: Option<f64>,
    all: Option<f64>,
}

async fn open(config: &Config) -> Result<Client> {
    let (client, connection) = config.connect(NoTls).await.context("connect to the server")?;
    // Ends with the client; whoever uses the client learns of a lost connection.
    tokio::spawn(connection);
    Ok(client)
}

/// The same URL with another database.
fn in_database(url: &str, database: &str) -> String {
    let (before, query) = url.split_once('?').map_or((url, None), |(before, query)| (before, Some(query)));
    let scheme = before.find("://").map_or(0, |at| at + 3);
    let host_end = before[scheme..].find('/').map_or(before.len(), |at| scheme + at);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{}/{database}{query}", &before[..host_end])
}

/// The postmaster of a backend that runs on this machine.
fn parent_of_a_backend(pid: u32) -> Option<u32> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    name.starts_with("postgres").then(|| stat(pid)).flatten().map(|stat| stat.parent)
}

struct Stat {
    pid: u32,
    parent: u32,
    /// Seconds of its own.
    own: f64,
    /// Seconds of its children that have ended.
    reaped: f64,
}

/// Linux counts in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold spaces.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let seconds = |at: usize| Some(fields.get(at)?.parse::<f64>().ok()? / TICKS_PER_SECOND);
    Some(Stat {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        own: seconds(11)? + seconds(12)?,
        reaped: seconds(13)? + seconds(14)?,
    })
}

/// Seconds that all cores together were busy, without waiting for disks and without what the host took.
fn all_busy() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<f64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    let busy: f64 = [0, 1, 2, 5, 6].into_iter().filter_map(|at| fields.get(at)).sum();
    Some(busy / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_changes_its_database_and_nothing_else() {
        assert_eq!(in_database("postgres://u:p@h:1/postgres", "b"), "postgres://u:p@h:1/b");
        assert_eq!(in_database("postgres://u:p@h:1", "b"), "postgres://u:p@h:1/b");
        assert_eq!(in_database("postgres://h/x?sslmode=disable", "b"), "postgres://h/b?sslmode=disable");
    }
}
