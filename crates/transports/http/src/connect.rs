//! One connection: resolve, filter, connect, TLS, handshake. The addresses that passed the guard are the ones connected to.

use std::{
    fmt::Display,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use postrider_core::parked::Cause;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, timeout_at},
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::{
    guard::Guard,
    pool::Connection,
    resolve::Resolve,
    target::{Target, TargetHost},
};

/// Most bytes of a response's head.
const RESPONSE_HEAD_BYTES_MAX: usize = 32 << 10;
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;
/// How long one address may take, so that a dead one leaves time for the next.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(4);

/// Opens connections to one endpoint.
pub(crate) struct Connector {
    pub(crate) target: Target,
    pub(crate) guard: Guard,
    pub(crate) resolver: Arc<dyn Resolve>,
    /// None for plain `http`.
    pub(crate) tls: Option<TlsConnector>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Connector {
    /// A fresh connection by then, or why there is none: whoever keeps us waiting is the one that is named. Nothing of a
    /// request has been sent if this fails. Dropping the future closes what was begun.
    pub(crate) async fn connect(&self, deadline: Instant) -> Result<Connection, Cause> {
        let addresses = self.addresses(deadline).await?;
        let plain = self.reach(&addresses, deadline).await?;
        let stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(plain),
            Some(tls) => {
                let failed = |why: &dyn Display| Cause::new("tls", format!("{}: {why}", self.target));
                let secured = timeout_at(deadline, tls.connect(self.server_name()?, plain)).await;
                let secured = secured.map_err(|_| failed(&"the handshake was not answered in time"))?;
                Box::new(secured.map_err(|error| failed(&error))?)
            }
        };
        let mut builder = http1::Builder::new();
        builder.max_buf_size(RESPONSE_HEAD_BYTES_MAX).max_header_size(RESPONSE_HEAD_BYTES_MAX);
        let (sender, connection) = builder
            .handshake::<_, Full<Bytes>>(TokioIo::new(stream))
            .await
            .map_err(|e| Cause::new("connect", format!("{}: {e}", self.target)))?;
        // Its error comes back through the sender.
        let task = tokio::spawn(async move { drop(connection.await) });
        Ok(Connection::new(sender, task))
    }

    /// The addresses that may be connected to, resolved now and never again for this connection.
    async fn addresses(&self, deadline: Instant) -> Result<Vec<IpAddr>, Cause> {
        let found = match &self.target.host {
            TargetHost::Address(address) => vec![*address],
            TargetHost::Name(name) => {
                let failed = |why: &dyn Display| Cause::new("dns", format!("{name} cannot be resolved: {why}"));
                let found = timeout_at(deadline, self.resolver.resolve(name)).await;
                let found = found.map_err(|_| failed(&"no name server has answered in time"))?;
                found.map_err(|error| failed(&error))?
            }
        };
        let mut blocked = None;
        let mut allowed = Vec::new();
        for address in found {
            match self.guard.check(address) {
                Ok(()) => allowed.push(address),
                Err(class) => blocked = Some((address, class)),
            }
        }
        allowed.truncate(ADDRESSES_MAX);
        match (allowed.is_empty(), blocked) {
            (false, _) => Ok(allowed),
            (true, Some((address, class))) => {
                let (name, remedy) = (class.name(), class.remedy());
                let detail = format!("{} is at {address}, which is {name}; {remedy}", self.target);
                Err(Cause::unsent("address-blocked", detail))
            }
            (true, None) => Err(Cause::new("dns", format!("{} has no address", self.target))),
        }
    }

    async fn reach(&self, addresses: &[IpAddr], deadline: Instant) -> Result<TcpStream, Cause> {
        let mut last = Cause::new("connect", format!("{} has no address", self.target));
        for &address in addresses {
            let at = SocketAddr::new(address, self.target.port);
            match timeout_at(deadline.min(Instant::now() + ADDRESS_TIMEOUT), TcpStream::connect(at)).await {
                Ok(Ok(stream)) => {
                    // Without it a small request may wait for the acknowledgement of the one before; if it cannot be set
                    // the requests are only slower.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => last = Cause::new("connect", format!("{} at {at}: {error}", self.target)),
                Err(_) => last = Cause::new("connect-timeout", format!("{} at {at} does not answer", self.target)),
            }
        }
        Err(last)
    }

    fn server_name(&self) -> Result<ServerName<'static>, Cause> {
        match &self.target.host {
            TargetHost::Address(address) => Ok(ServerName::IpAddress((*address).into())),
            TargetHost::Name(name) => ServerName::try_from(name.clone())
                .map_err(|_| Cause::new("tls", format!("{name} is not a name that a certificate could have"))),
        }
    }
}
