//! What a node with nothing to do costs: statements per second, counted on the wire.
//!
//! The relay's connections go through a proxy of ours that reads the protocol and counts what asks the server to do
//! something: `Query` and `Execute`. That is exact, needs no extension of the server, and misses nothing, be it a heartbeat,
//! a poll, a look at parked rows or retention.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
};
use tokio_postgres::{Config, config::Host};

use super::{fixtures, process::RelayProcess, server::Server};

/// How long a relay is left alone first: it begins with looking around.
const SETTLE: Duration = Duration::from_secs(10);

/// Lanes of the idle node. What it costs must not depend on them.
const LANES: u32 = 8;

pub(crate) async fn run(server: &Server, watch: Duration) -> Result<Value> {
    eprintln!("idle: {watch:?}");
    fixtures::store(&server.url, "idle").await?;
    let proxy = Proxy::start(&server.url).await?;
    let relay = RelayProcess::start_with(&proxy.url, "idle", "idle", LANES, None).await?;
    tokio::time::sleep(SETTLE).await;
    let before = proxy.statements.load(Ordering::Relaxed);
    tokio::time::sleep(watch).await;
    let statements = proxy.statements.load(Ordering::Relaxed) - before;
    relay.finish().await?;
    Ok(json!({
        "idle_statements_per_second": statements as f64 / watch.as_secs_f64(),
        "idle_lanes": LANES,
        "idle_seconds": watch.as_secs(),
    }))
}

struct Proxy {
    url: String,
    statements: Arc<AtomicU64>,
}

impl Proxy {
    /// Ends with the runtime.
    async fn start(url: &str) -> Result<Self> {
        let config: Config = url.parse()?;
        let Some(Host::Tcp(host)) = config.get_hosts().first() else {
            bail!("statements are counted on a TCP connection; name the server by host and port");
        };
        let server = format!("{host}:{}", config.get_ports().first().unwrap_or(&5432));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = through(url, &listener.local_addr()?.to_string())?;
        let statements = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&statements);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                let _ = client.set_nodelay(true).and(server.set_nodelay(true));
                let ((from_client, mut to_client), (mut from_server, to_server)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(count(from_client, to_server, Arc::clone(&counter)));
                tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            }
        });
        Ok(Self { url, statements })
    }
}

/// The same URL by way of another address, in the clear.
fn through(url: &str, address: &str) -> Result<String> {
    let (scheme, rest) = url.split_once("://").context("a URL has a scheme")?;
    let (rest, _) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let user = authority.rsplit_once('@').map(|(user, _)| format!("{user}@")).unwrap_or_default();
    Ok(format!("{scheme}://{user}{address}/{path}?sslmode=disable"))
}

/// Hands the messages of a client on, and counts those that ask for something to be done.
async fn count(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, statements: Arc<AtomicU64>) -> std::io::Result<()> {
    // The first message has no type: it opens the connection.
    let mut message = Vec::new();
    let mut typed = false;
    loop {
        message.clear();
        let kind = if typed { Some(from.read_u8().await?) } else { None };
        let length = from.read_u32().await?;
        message.extend(kind);
        message.extend_from_slice(&length.to_be_bytes());
        let head = message.len();
        message.resize(head + (length as usize).saturating_sub(4), 0);
        from.read_exact(&mut message[head..]).await?;
        if matches!(kind, Some(b'Q' | b'E')) {
            statements.fetch_add(1, Ordering::Relaxed);
        }
        to.write_all(&message).await?;
        typed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_goes_by_way_of_the_proxy() {
        let url = through("postgres://u:p@db:5432/bench?x=y", "127.0.0.1:99").unwrap();
        assert_eq!(url, "postgres://u:p@127.0.0.1:99/bench?sslmode=disable");
    }
}
