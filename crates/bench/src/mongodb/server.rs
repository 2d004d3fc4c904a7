//! The server that is measured, a replica set of any size, and a database of our own in it, which is dropped at the end.

use anyhow::{Context, Result};
use mongodb::{Client, Database, bson::doc, options::ClientOptions};

use crate::{
    machine::{Watch, is_called},
    url::in_database,
};

/// The environment variable that names the server.
const VARIABLE: &str = "POSTRIDER_BENCH_MONGODB";

/// A database on a server, ours alone.
pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) client: Client,
    database: String,
    /// Of each member; `None` if one runs on another machine.
    pids: Vec<Option<u32>>,
}

impl Server {
    /// A fresh database on the server that the environment names. Everything that is written waits for the journals of a
    /// majority, ours and the references'. The pool has a connection for each of the sixteen sessions and to spare: the driver's
    /// ten would be what is measured.
    pub(crate) async fn connect() -> Result<Self> {
        let given = std::env::var(VARIABLE).with_context(|| {
            format!("{VARIABLE} does not name a server; `cargo xtask bench mongodb` starts one and sets it")
        })?;
        let database = format!("postrider_bench_{}", std::process::id());
        let url = in_database(&given, &database);
        let url = format!("{url}{}w=majority&journal=true&maxPoolSize=32", if url.contains('?') { '&' } else { '?' });
        let client = Client::with_uri_str(&url).await.context("connect to the server")?;
        let pids = pids(&url).await?;
        Ok(Self { url, client, database, pids })
    }

    pub(crate) fn name(&self) -> &str {
        &self.database
    }

    pub(crate) fn database(&self) -> Database {
        self.client.database(&self.database)
    }

    pub(crate) fn watch(&self) -> Watch {
        Watch::begin(self.pids.iter().copied())
    }

    /// Drops the database.
    pub(crate) async fn tidy(&self) -> Result<()> {
        Ok(self.database().drop().await?)
    }
}

/// The processes that the URL names, each asked by itself.
async fn pids(url: &str) -> Result<Vec<Option<u32>>> {
    let options = ClientOptions::parse(url).await?;
    let mut pids = Vec::new();
    for host in &options.hosts {
        let mut one = options.clone();
        one.hosts = vec![host.clone()];
        (one.repl_set_name, one.direct_connection) = (None, Some(true));
        let member = Client::with_options(one)?;
        let status = member.database("admin").run_command(doc! { "serverStatus": 1 }).await;
        let status = status.with_context(|| format!("ask {host} for its status"))?;
        let pid = status.get_i64("pid").ok().and_then(|pid| u32::try_from(pid).ok());
        pids.push(pid.filter(|pid| is_called(*pid, "mongod")));
    }
    Ok(pids)
}
