//! Where the servers are, and who we are to them.

use std::{fmt, fs, path::Path, time::Duration};

use lapin::{
    Connection, ConnectionProperties,
    tcp::{OwnedIdentity, OwnedTLSConfig},
    uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo},
};
use postrider_core::{Error, ErrorKind, Result, parked::Cause, percent};
use tokio::time::timeout;
use url::Url;

use crate::{error, line};

/// How often both sides say that they are there, in seconds. A half-open connection lives no longer than twice that.
const HEARTBEAT: u16 = 10;

/// The servers of one cluster, with login and certificates. Secrets are never printed.
#[derive(Clone)]
pub struct Access {
    servers: Vec<AMQPUri>,
    tls: OwnedTLSConfig,
}

impl Access {
    /// One server, or several of a cluster with commas in between, of which the first that answers is used:
    /// `amqp://host:5672/vhost`, or `amqps://host:5671/vhost` over TLS. Without a virtual host it is `/`. Whoever does not log
    /// in is `guest`, which a server accepts from its own machine alone.
    ///
    /// # Errors
    /// If it is not such a URL, or holds a user or a password: those have a method of their own, so that a URL can be shown.
    pub fn new(urls: &str) -> Result<Self> {
        let servers = urls.split(',').map(|url| check(url.trim())).collect::<Result<Vec<_>>>()?;
        Ok(Self { servers, tls: OwnedTLSConfig::default() })
    }

    /// Logs in by name and password.
    #[must_use]
    pub fn password(mut self, user: &str, password: &str) -> Self {
        for server in &mut self.servers {
            server.authority.userinfo = AMQPUserInfo { username: user.to_owned(), password: password.to_owned() };
        }
        self
    }

    /// Trusts the certificates of a PEM file beside those of the platform.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Result<Self> {
        let pem = read_file("read the file with root certificates", path.as_ref())?;
        let text = String::from_utf8(pem)
            .map_err(|_| Error::invalid("a file with certificates is not PEM").with("path", path.as_ref().display()))?;
        self.tls.cert_chain = Some(text);
        Ok(self)
    }

    /// Shows a certificate to the server: PEM files with the chain and with its key.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn client_certificate(mut self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Self> {
        let pem = read_file("read the file with the client certificate", certificate.as_ref())?;
        let key = read_file("read the file with the key of the client certificate", key.as_ref())?;
        self.tls.identity = Some(OwnedIdentity::PKCS8 { pem, key });
        Ok(self)
    }

    /// The servers, for people.
    pub(crate) fn shown(&self) -> String {
        self.servers.iter().map(show).collect::<Vec<_>>().join(", ")
    }

    /// Connects to the first server that answers, each in this time. Dropping the future leaves nothing that is used.
    pub(crate) async fn connect(&self, patience: Duration) -> Result<Connection, Cause> {
        let mut last = Cause::new("connect", "there is no server");
        for server in &self.servers {
            let properties = ConnectionProperties::default().with_connection_name("postrider".into());
            if server.scheme == AMQPScheme::AMQPS {
                choose_cryptography();
            }
            match timeout(patience, line::connect(server, properties, self.tls.clone())).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => last = error::connecting(&error, &self.shown()),
                Err(_) => last = Cause::new("connect-timeout", format!("{} does not answer", self.shown())),
            }
        }
        Err(last)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Access({})", self.shown())
    }
}

fn show(server: &AMQPUri) -> String {
    let AMQPAuthority { host, port, .. } = &server.authority;
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let vhost = percent::encode(&server.vhost).replace('/', "%2F");
    let vhost = if server.vhost == "/" { String::new() } else { format!("/{vhost}") };
    format!("{}://{host}:{port}{vhost}", server.scheme)
}

/// The client would fail where two providers are compiled in and none is the process's default. An application that has chosen
/// one keeps it.
fn choose_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    }
}

fn read_file(what: &'static str, path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| Error::new(ErrorKind::NotFound, what).with("path", path.display()).caused_by(e))
}

/// One server's URL.
fn check(text: &str) -> Result<AMQPUri> {
    let bad = |what: &'static str| Error::invalid(what);
    let url = Url::parse(text)
        .map_err(|e| bad("not the URL of a RabbitMQ server; write `amqp://host:5672/vhost`").caused_by(e))?;
    let scheme = match url.scheme() {
        "amqp" => AMQPScheme::AMQP,
        "amqps" => AMQPScheme::AMQPS,
        other => {
            return Err(bad("the URL of a RabbitMQ server begins with `amqp://` or `amqps://`").with("scheme", other));
        }
    };
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("the URL of a RabbitMQ server must not hold a user or a password; give them apart from it"));
    }
    let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
        return Err(bad("the URL of a RabbitMQ server names no host; write `amqp://host:5672/vhost`"));
    };
    if url.query().is_some() || url.fragment().is_some() {
        return Err(bad("the URL of a RabbitMQ server ends with the virtual host"));
    }
    let path = url.path().strip_prefix('/').unwrap_or_default();
    if path.contains('/') {
        return Err(bad("a virtual host is one part of the URL; write a `/` in its name as `%2f`"));
    }
    let vhost = percent::decode(path).ok_or_else(|| bad("the name of the virtual host is not UTF-8"))?;
    let port = url.port().unwrap_or_else(|| scheme.default_port());
    // Without its brackets, which belong to the URL.
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok(AMQPUri {
        scheme,
        authority: AMQPAuthority { userinfo: AMQPUserInfo::default(), host, port },
        vhost: if vhost.is_empty() { "/".to_owned() } else { vhost },
        query: AMQPQueryString { heartbeat: Some(HEARTBEAT), ..AMQPQueryString::default() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_and_what_is_left_out_is_filled_in() {
        let access = Access::new("amqp://a, amqps://b/shop,amqp://[::1]:5/%2fx").unwrap();
        assert_eq!(access.shown(), "amqp://a:5672, amqps://b:5671/shop, amqp://[::1]:5/%2Fx");
        assert_eq!(access.servers[0].vhost, "/");
        assert_eq!(Access::new("amqp://a/").unwrap().servers[0].vhost, "/");
        assert_eq!(Access::new("amqp://a/%2f").unwrap().servers[0].vhost, "/");
    }

    #[test]
    fn what_is_no_server_is_refused_without_its_secrets() {
        for url in
            ["", "a:5672", "http://a", "amqp://", "amqp://me:canary@a", "amqp://canary@a", "amqp://a/x/y", "amqp://a?x"]
        {
            let error = Access::new(url).unwrap_err();
            assert!(!error.chain().contains("canary"), "{error}");
        }
        let access = Access::new("amqp://a").unwrap().password("me", "canary");
        assert_eq!(format!("{access:?}"), "Access(amqp://a:5672)");
        assert!(access.ca_file("/no/such/file").is_err());
    }
}
