//! The server that is measured, and a database of our own in it, afresh for each measurement and dropped at the end.

use anyhow::{Context, Result};
use tokio_postgres::{Client, Config, NoTls};

use crate::{
    machine::{Watch, parent_of},
    url::in_database,
};

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
    /// The server that the environment names, on which there is no database of ours yet.
    pub(crate) async fn connect() -> Result<Self> {
        let url = std::env::var(VARIABLE).with_context(|| {
            format!("{VARIABLE} does not name a server; `cargo xtask bench postgres` starts one and sets it")
        })?;
        let given: Config = url.parse().with_context(|| format!("{VARIABLE} is not a PostgreSQL URL"))?;
        let database = format!("postrider_bench_{}", std::process::id());
        let client = open(&given).await?;
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
        let postmaster = u32::try_from(pid).ok().and_then(|pid| parent_of(pid, "postgres"));
        Ok(Self { given, url: in_database(&url, &database), database, postmaster })
    }

    /// Makes the database anew. With the former one the server drops all that it still had to write and to vacuum of it, and
    /// writes everything else: no measurement pays for the one before.
    pub(crate) async fn begin_afresh(&self) -> Result<()> {
        self.tidy().await?;
        open(&self.given).await?.batch_execute(&format!("CREATE DATABASE {}", self.database)).await?;
        Ok(())
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
        Watch::begin([self.postmaster])
    }

    /// Drops the database.
    pub(crate) async fn tidy(&self) -> Result<()> {
        let client = open(&self.given).await?;
        client.batch_execute(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.database)).await?;
        Ok(())
    }
}

async fn open(config: &Config) -> Result<Client> {
    let (client, connection) = config.connect(NoTls).await.context("connect to the server")?;
    // Ends with the client; whoever uses the client learns of a lost connection.
    tokio::spawn(connection);
    Ok(client)
}
