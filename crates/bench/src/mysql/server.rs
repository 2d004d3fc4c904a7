//! The server that is measured, and a database of our own in it, which is dropped at the end.

use anyhow::{Context, Result};
use mysql_async::{Conn, Opts, prelude::Queryable};

use crate::{
    machine::{Watch, is_called},
    url::in_database,
};

/// The environment variable that names the server.
const VARIABLE: &str = "POSTRIDER_BENCH_MYSQL";

/// A database on a server, ours alone.
pub(crate) struct Server {
    pub(crate) url: String,
    given: String,
    database: String,
    pid: Option<u32>,
}

impl Server {
    /// Makes a fresh database on the server that the environment names.
    pub(crate) async fn connect() -> Result<Self> {
        let given = std::env::var(VARIABLE).with_context(|| {
            format!("{VARIABLE} does not name a server; `cargo xtask bench mysql` starts one and sets it")
        })?;
        let database = format!("postrider_bench_{}", std::process::id());
        let mut connection = open(&given).await?;
        connection.query_drop(format!("CREATE DATABASE {database} CHARACTER SET utf8mb4")).await?;
        let file: Option<String> = connection.query_first("SELECT @@pid_file").await?;
        connection.disconnect().await?;
        Ok(Self { url: in_database(&given, &database), given, database, pid: file.as_deref().and_then(local_server) })
    }

    /// A connection to our database.
    pub(crate) async fn connection(&self) -> Result<Conn> {
        open(&self.url).await
    }

    pub(crate) fn watch(&self) -> Watch {
        Watch::begin([self.pid])
    }

    /// Drops the database.
    pub(crate) async fn tidy(&self) -> Result<()> {
        let mut connection = open(&self.given).await?;
        connection.query_drop(format!("DROP DATABASE IF EXISTS {}", self.database)).await?;
        Ok(connection.disconnect().await?)
    }
}

async fn open(url: &str) -> Result<Conn> {
    let options = Opts::from_url(url).with_context(|| format!("{VARIABLE} is not a MySQL URL"))?;
    Conn::new(options).await.context("connect to the server")
}

/// The process of a server that runs on this machine.
fn local_server(pid_file: &str) -> Option<u32> {
    let pid = std::fs::read_to_string(pid_file).ok()?.trim().parse().ok()?;
    (is_called(pid, "mariadbd") || is_called(pid, "mysqld")).then_some(pid)
}
