//! The line to a server: a TCP connection that is made here and given to the client.
//!
//! The client works on a thread of its own from the first moment on, and goes on waiting for a server that says nothing when
//! nobody waits for it any more. So the line is kept in hand until the client has got through, and is hung up if it is
//! waited for no longer; then the client's thread ends, and the socket is closed.

use std::{
    io,
    net::{Shutdown, TcpStream as StdTcpStream},
    sync::{Mutex, PoisonError},
};

use async_compat::Compat;
use lapin::{
    AsyncTcpStream, Connection, ConnectionProperties, Error, Result,
    tcp::OwnedTLSConfig,
    uri::{AMQPScheme, AMQPUri},
};
use tokio::net::TcpStream;

/// Another handle of a line, by which it is hung up when it is dropped.
struct Line(Option<StdTcpStream>);

impl Line {
    /// The client has got through; the line is its own.
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(line) = &self.0 {
            // It may have ended by itself.
            drop(line.shutdown(Shutdown::Both));
        }
    }
}

/// Connects and logs in. If the future is dropped, the line is hung up.
pub(crate) async fn connect(
    server: &AMQPUri,
    properties: ConnectionProperties,
    tls: OwnedTLSConfig,
) -> Result<Connection> {
    let runtime = lapin::runtime::default_runtime()?;
    let stream = TcpStream::connect((server.authority.host.as_str(), server.authority.port)).await?.into_std()?;
    let line = Line(Some(stream.try_clone()?));
    let ready = Mutex::new(Some(Compat::new(TcpStream::from_std(stream)?)));
    // On the client's thread, where it may read the platform's certificates.
    let take = async move |server: AMQPUri, _| {
        let stream = ready.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Whoever wants another line asks for it here, not there.
        let stream = stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
        let stream = AsyncTcpStream::Plain(stream);
        Ok(match server.scheme {
            AMQPScheme::AMQP => stream,
            AMQPScheme::AMQPS => stream.into_tls(&server.authority.host, tls.as_ref()).await.map_err(Error::from)?,
        })
    };
    let connection = Connection::connector(server.clone(), runtime, take, properties).await?;
    line.keep();
    Ok(connection)
}
