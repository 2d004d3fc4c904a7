//! Where the servers are, and who we are to them.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use async_nats::ConnectOptions;
use postrider_core::{Error, Result};
use tokio_rustls::rustls::ClientConfig;
use url::Url;

use crate::tls;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the connection is tried; the second unanswered one ends it. A half-open connection lives no longer than that.
const PING_EVERY: Duration = Duration::from_secs(5);
/// The longest wait between two attempts to connect again.
const RECONNECT_WAIT_MAX: Duration = Duration::from_secs(2);

/// The servers of one cluster, with login and certificates. Secrets are never printed.
#[derive(Clone)]
pub struct Access {
    servers: Vec<String>,
    login: Login,
    ca_file: Option<PathBuf>,
    client_certificate: Option<(PathBuf, PathBuf)>,
}

#[derive(Clone)]
enum Login {
    None,
    Password { user: String, password: String },
    Token(String),
    Credentials(String),
}

impl Access {
    /// One server, or several of a cluster with commas in between: `nats://host:4222`, or `tls://host:4222` where a
    /// connection without TLS must not be. Servers that these tell of, as a cluster does, are spoken to over TLS alone if all
    /// of these are.
    ///
    /// # Errors
    /// If it is not such a URL, or holds a user or a password: those have methods of their own, so that a URL can be shown.
    pub fn new(urls: &str) -> Result<Self> {
        let servers = urls.split(',').map(|url| check(url.trim())).collect::<Result<Vec<_>>>()?;
        Ok(Self { servers, login: Login::None, ca_file: None, client_certificate: None })
    }

    /// Logs in by name and password.
    #[must_use]
    pub fn password(mut self, user: &str, password: &str) -> Self {
        self.login = Login::Password { user: user.to_owned(), password: password.to_owned() };
        self
    }

    /// Logs in by a token.
    #[must_use]
    pub fn token(mut self, token: &str) -> Self {
        self.login = Login::Token(token.to_owned());
        self
    }

    /// Logs in by the text of a `.creds` file: a JWT and the seed of an NKey.
    #[must_use]
    pub fn credentials(mut self, credentials: &str) -> Self {
        self.login = Login::Credentials(credentials.to_owned());
        self
    }

    /// Trusts the certificates of a PEM file beside those of the platform.
    #[must_use]
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Self {
        self.ca_file = Some(path.as_ref().to_owned());
        self
    }

    /// Shows a certificate to the server: PEM files with the chain and with its key.
    #[must_use]
    pub fn client_certificate(mut self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.client_certificate = Some((certificate.as_ref().to_owned(), key.as_ref().to_owned()));
        self
    }

    /// The servers, for people.
    pub(crate) fn shown(&self) -> String {
        self.servers.join(", ")
    }

    pub(crate) fn servers(&self) -> &[String] {
        &self.servers
    }

    /// What a connection over TLS trusts and shows. Files are read here.
    ///
    /// # Errors
    /// If a certificate cannot be read.
    pub(crate) fn tls(&self) -> Result<ClientConfig> {
        let certificate = self.client_certificate.as_ref().map(|(chain, key)| (chain.as_path(), key.as_path()));
        tls::config(self.ca_file.as_deref(), certificate)
    }

    /// How to connect. A server may ask for TLS whatever its URL says.
    ///
    /// # Errors
    /// If the credentials cannot be read.
    pub(crate) fn options(&self, tls: ClientConfig) -> Result<ConnectOptions> {
        let options = ConnectOptions::new()
            .name("postrider")
            .connection_timeout(CONNECT_TIMEOUT)
            .ping_interval(PING_EVERY)
            .max_reconnects(None)
            // The client learns of other servers of the cluster without being told whether they speak TLS.
            .require_tls(self.servers.iter().all(|server| server.starts_with("tls://")))
            .reconnect_delay_callback(|attempt| {
                let attempt = u32::try_from(attempt).unwrap_or(u32::MAX);
                Duration::from_millis(50).saturating_mul(attempt).min(RECONNECT_WAIT_MAX)
            })
            .tls_client_config(tls);
        Ok(match &self.login {
            Login::None => options,
            Login::Password { user, password } => options.user_and_password(user.clone(), password.clone()),
            Login::Token(token) => options.token(token.clone()),
            Login::Credentials(text) => options
                .credentials(text)
                .map_err(|e| Error::invalid("the credentials are not those of a `.creds` file").caused_by(e))?,
        })
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Access({})", self.shown())
    }
}

/// One server's URL.
fn check(text: &str) -> Result<String> {
    let bad = |what: &'static str| Error::invalid(what);
    let url = Url::parse(text)
        .map_err(|e| bad("not the URL of a NATS server; write `nats://host:4222` or `tls://host:4222`").caused_by(e))?;
    if !matches!(url.scheme(), "nats" | "tls") {
        return Err(bad("the URL of a NATS server begins with `nats://` or `tls://`").with("scheme", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("the URL of a NATS server must not hold a user or a password; give them apart from it"));
    }
    let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
        return Err(bad("the URL of a NATS server names no host; write `nats://host:4222`"));
    };
    if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
        return Err(bad("the URL of a NATS server ends with its port; a prefix of subjects is a setting of its own"));
    }
    Ok(format!("{}://{host}:{}", url.scheme(), url.port().unwrap_or(4222)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_and_a_port_is_filled_in() {
        let access = Access::new("nats://a, tls://b:4333").unwrap();
        assert_eq!(access.shown(), "nats://a:4222, tls://b:4333");
        assert_eq!(Access::new("nats://[::1]:5").unwrap().shown(), "nats://[::1]:5");
    }

    #[test]
    fn what_is_no_server_is_refused_without_its_secrets() {
        for url in
            ["", "a:4222", "http://a", "nats://", "nats://me:canary@a", "nats://canary@a", "nats://a/x", "nats://a?x"]
        {
            let error = Access::new(url).unwrap_err();
            assert!(!error.chain().contains("canary"), "{error}");
        }
        let access = Access::new("nats://a").unwrap().password("me", "canary").token("canary");
        assert!(!format!("{access:?}").contains("canary"));
    }
}
