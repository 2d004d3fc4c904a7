//! Where the server is, and who we are to it.

use std::{fmt, fs, path::Path};

use postrider_core::{Error, ErrorKind, Result};
use redis::{Client, ClientTlsConfig, ConnectionInfo, IntoConnectionInfo, TlsCertificates};

/// One server, with login and certificates. Secrets are never printed.
#[derive(Clone)]
pub struct Access {
    info: ConnectionInfo,
    shown: String,
    root_certificate: Option<Vec<u8>>,
    client_certificate: Option<ClientTlsConfig>,
}

impl Access {
    /// A server and the number of its database: `redis://host:6379/0`, or `rediss://host:6379/0` over TLS.
    ///
    /// # Errors
    /// If it is not such a URL, or holds a user or a password: those have a method of their own, so that a URL can be shown.
    pub fn new(url: &str) -> Result<Self> {
        let known = url.starts_with("redis://") || url.starts_with("rediss://");
        if !known {
            return Err(Error::invalid(
                "the URL of a Redis server begins with `redis://` or `rediss://`, such as `redis://host:6379/0`",
            ));
        }
        if url.contains('@') {
            return Err(Error::invalid(
                "the URL of a Redis server must not hold a user or a password; give them apart from it",
            ));
        }
        if url.contains(['?', '#']) {
            return Err(Error::invalid("the URL of a Redis server ends with the number of the database"));
        }
        let info = url
            .into_connection_info()
            .map_err(|e| Error::invalid("not the URL of a Redis server; write `redis://host:6379/0`").caused_by(e))?;
        Ok(Self { info, shown: url.to_owned(), root_certificate: None, client_certificate: None })
    }

    /// Logs in. A server before version 6, or with one password for all, has no users; then `user` is `None`.
    #[must_use]
    pub fn password(mut self, user: Option<&str>, password: &str) -> Self {
        let mut settings = self.info.redis_settings().clone().set_password(password);
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        self.info = self.info.set_redis_settings(settings);
        self
    }

    /// Trusts the certificates of a PEM file instead of those of the platform.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Result<Self> {
        self.root_certificate = Some(read_file("read the file with root certificates", path.as_ref())?);
        Ok(self)
    }

    /// Shows a certificate to the server: PEM files with the chain and with its key. Means nothing without TLS.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn client_certificate(mut self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Self> {
        let client_cert = read_file("read the file with the client certificate", certificate.as_ref())?;
        let client_key = read_file("read the file with the key of the client certificate", key.as_ref())?;
        self.client_certificate = Some(ClientTlsConfig { client_cert, client_key });
        Ok(self)
    }

    /// The server, for people.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// The client of it. Nothing is connected to.
    pub(crate) fn client(&self) -> Result<Client> {
        let bad = |e| Error::invalid("a connection to Redis cannot be set up like this").caused_by(e);
        if !self.shown.starts_with("rediss:") {
            return Client::open(self.info.clone()).map_err(bad);
        }
        // The client panics where two providers are compiled in and none is the process's default. An application that has
        // chosen one keeps it.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        }
        let certificates =
            TlsCertificates { client_tls: self.client_certificate.clone(), root_cert: self.root_certificate.clone() };
        Client::build_with_tls(self.info.clone(), certificates).map_err(bad)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Access({})", self.shown)
    }
}

fn read_file(what: &'static str, path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| Error::new(ErrorKind::NotFound, what).with("path", path.display()).caused_by(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_server_is_refused_without_its_secrets() {
        for url in [
            "",
            "host",
            "http://host",
            "redis://me:canary@host",
            "redis://:canary@host/0",
            "redis://host/x",
            "redis://host/0?x",
        ] {
            let error = Access::new(url).unwrap_err();
            assert!(!error.chain().contains("canary"), "{error}");
        }
        let access = Access::new("redis://host:1/2").unwrap().password(Some("me"), "canary");
        assert_eq!(format!("{access:?}"), "Access(redis://host:1/2)");
        assert!(access.client().is_ok());
    }
}
