//! A TCP proxy between a client and a real server, which does to connections what networks do.
//!
//! It delays, falls silent (half-open: both sides believe in the connection and nothing passes), refuses new connections,
//! closes and resets those that there are, for both sides or so that the server does not learn of it. Bytes are never lost
//! inside a connection that goes on, because TCP would not lose them either.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
};

/// What the proxy does with traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Passes everything on.
    Flowing,
    /// Passes every piece on, so much later.
    Delayed(Duration),
    /// Passes nothing on, in either direction, and closes nothing: a half-open connection. What waits goes on afterwards.
    Silent,
    /// Closes new connections at once; those that there are go on.
    Refusing,
}

/// How connections end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    Reset,
    Abandoned,
}

/// A proxy on a loopback port of its own. It ends when it is dropped, and its connections with it.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    server: Mutex<String>,
    traffic: watch::Sender<Traffic>,
    /// Every value that is sent ends all connections.
    ends: watch::Sender<End>,
    /// Every value that is sent closes what the server was left with.
    released: watch::Sender<()>,
    connections: AtomicU64,
}

impl Proxy {
    /// A proxy to this address, such as `127.0.0.1:4222`.
    ///
    /// # Panics
    /// If there is no free loopback port.
    pub async fn to(server: &str) -> Self {
        Self::at(0, server).await
    }

    /// As [`Self::to`], on this loopback port: for a server that tells its clients where to connect to.
    ///
    /// # Panics
    /// If the port is not free.
    pub async fn at(port: u16, server: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("the loopback port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let shared = Arc::new(Shared {
            server: Mutex::new(server.to_owned()),
            traffic: watch::Sender::new(Traffic::Flowing),
            ends: watch::Sender::new(End::Closed),
            released: watch::Sender::new(()),
            connections: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, accepting }
    }

    /// Where clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on.
    pub fn set(&self, traffic: Traffic) {
        self.shared.traffic.send_replace(traffic);
    }

    /// Closes all connections that there are.
    pub fn cut(&self) {
        self.shared.ends.send_replace(End::Closed);
    }

    /// Resets all connections that there are: what was under way is gone, and both sides get an error.
    pub fn reset(&self) {
        self.shared.ends.send_replace(End::Reset);
    }

    /// Resets all connections that there are on the client's side alone: the server believes in them, as it does after the
    /// client's machine was lost, until it notices by itself or they are [released](Self::release).
    pub fn abandon(&self) {
        self.shared.ends.send_replace(End::Abandoned);
    }

    /// Closes what the server was left with by [`Self::abandon`].
    pub fn release(&self) {
        self.shared.released.send_replace(());
    }

    /// Leads connections that are made from now on to another address, as a name does after a fail-over. Those that there are
    /// go on to where they lead.
    pub fn lead_to(&self, server: &str) {
        server.clone_into(&mut self.shared.server.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// How many connections have been made through it so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
        self.release();
    }
}

/// Ends when it is aborted.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        if *shared.traffic.borrow() == Traffic::Refusing {
            drop(client.set_zero_linger());
            continue;
        }
        tokio::spawn(connect(client, Arc::clone(&shared)));
    }
}

/// One connection, until one side closes it or it is ended here.
async fn connect(client: TcpStream, shared: Arc<Shared>) {
    let (mut ends, mut released) = (shared.ends.subscribe(), shared.released.subscribe());
    let address = shared.server.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let Ok(server) = TcpStream::connect(&address).await else {
        drop(client.set_zero_linger());
        return;
    };
    shared.connections.fetch_add(1, Ordering::Relaxed);
    // What is small must not wait for what comes later; only the proxy decides on delays.
    drop(client.set_nodelay(true));
    drop(server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let end = tokio::select! {
        _ = pass(&mut from_client, &mut to_server, shared.traffic.subscribe()) => End::Closed,
        _ = pass(&mut from_server, &mut to_client, shared.traffic.subscribe()) => End::Closed,
        _ = ends.changed() => *ends.borrow_and_update(),
    };
    if end == End::Closed {
        return;
    }
    drop(from_client.as_ref().set_zero_linger());
    // Dropped, a half would first say that nothing more comes, and the reset would be an ordinary end.
    to_client.forget();
    drop(from_client);
    if end == End::Abandoned {
        // Ends when it is let go, or with the proxy. A later end of connections is not for this one, which has no client.
        drop(released.changed().await);
        return;
    }
    drop(from_server.as_ref().set_zero_linger());
    to_server.forget();
}

/// One direction, until it ends.
async fn pass(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    mut traffic: watch::Receiver<Traffic>,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        // Ends when the traffic flows again; dropped when the connection is ended meanwhile.
        loop {
            let now = *traffic.borrow_and_update();
            match now {
                Traffic::Silent => drop(traffic.changed().await),
                Traffic::Delayed(wait) => break tokio::time::sleep(wait).await,
                Traffic::Flowing | Traffic::Refusing => break,
            }
        }
        to.write_all(&buffer[..length]).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// A server that says everything twice.
    async fn echo() -> (Proxy, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::to(&listener.local_addr().unwrap().to_string()).await;
        let serving = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    drop(tokio::io::copy(&mut from, &mut to).await);
                });
            }
        });
        (proxy, serving)
    }

    async fn say(stream: &mut TcpStream) -> io::Result<u8> {
        stream.write_u8(7).await?;
        stream.read_u8().await
    }

    #[tokio::test]
    async fn what_flows_passes_and_what_is_delayed_passes_later() {
        let (proxy, _serving) = echo().await;
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(say(&mut stream).await.unwrap(), 7);
        let wait = Duration::from_millis(20);
        proxy.set(Traffic::Delayed(wait));
        let begun = Instant::now();
        assert_eq!(say(&mut stream).await.unwrap(), 7);
        assert!(begun.elapsed() >= 2 * wait, "both directions are delayed");
        assert_eq!(proxy.connections(), 1);
    }

    #[tokio::test]
    async fn silence_passes_nothing_and_loses_nothing() {
        let (proxy, _serving) = echo().await;
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(say(&mut stream).await.unwrap(), 7);
        proxy.set(Traffic::Silent);
        stream.write_u8(9).await.unwrap();
        let silent = tokio::time::timeout(Duration::from_millis(50), stream.read_u8()).await;
        assert!(silent.is_err(), "nothing passes, and the connection is not closed");
        proxy.set(Traffic::Flowing);
        assert_eq!(stream.read_u8().await.unwrap(), 9);
    }

    #[tokio::test]
    async fn a_cut_ends_the_stream_and_a_reset_is_an_error() {
        let (proxy, _serving) = echo().await;
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(say(&mut stream).await.unwrap(), 7);
        proxy.cut();
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0, "the end of the stream");
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(say(&mut stream).await.unwrap(), 7);
        proxy.reset();
        let error = stream.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn of_an_abandoned_connection_only_the_client_learns() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::to(&listener.local_addr().unwrap().to_string()).await;
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        client.write_u8(7).await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), 7);
        proxy.abandon();
        assert_eq!(client.read(&mut [0; 1]).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        let mut byte = [0; 1];
        let silent = tokio::time::timeout(Duration::from_millis(50), server.read(&mut byte)).await;
        assert!(silent.is_err(), "the server still believes in it");
        proxy.release();
        assert_eq!(server.read(&mut byte).await.unwrap(), 0, "now it has learned");
    }

    #[tokio::test]
    async fn a_refused_connection_gets_no_answer_and_others_go_on() {
        let (proxy, _serving) = echo().await;
        let mut before = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(say(&mut before).await.unwrap(), 7);
        proxy.set(Traffic::Refusing);
        let refused = match TcpStream::connect(proxy.address()).await {
            Ok(mut stream) => say(&mut stream).await.map(drop),
            Err(error) => Err(error),
        };
        assert!(refused.is_err());
        assert_eq!(say(&mut before).await.unwrap(), 7);
    }
}
