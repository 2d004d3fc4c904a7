//! TLS by rustls: whom to trust, who we are, and what to say when a handshake fails.
//!
//! [`Tls`] is the one connector of this store, also where there is no TLS, so that every connection has the same type.

use std::{io, path::Path, pin::Pin};

use postrider_core::{Error, Result};
use tokio_postgres::{
    Socket,
    tls::{MakeTlsConnect, TlsConnect},
};

use super::url::Ssl;

/// How connections are encrypted.
#[derive(Clone)]
pub(crate) enum Tls {
    /// Not at all.
    Off,
    #[cfg(feature = "tls")]
    Verified(tokio_postgres_rustls::MakeRustlsConnect),
}

#[cfg(feature = "tls")]
type Rustls = <tokio_postgres_rustls::MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;

/// What an encrypted connection reads and writes.
#[cfg(feature = "tls")]
pub(crate) type Stream = <tokio_postgres_rustls::MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;

/// What an encrypted connection would read and write, if there were any.
#[cfg(not(feature = "tls"))]
pub(crate) type Stream = tokio_postgres::tls::NoTlsStream;

impl Tls {
    #[cfg(not(feature = "tls"))]
    pub(super) fn verified(_ssl: &Ssl) -> Result<Self> {
        let what = "the server asks for TLS, by `sslmode` or because it is on another machine, and this program was built \
                    without it; build with the feature `tls`, or write `sslmode=disable` for clear text";
        Err(Error::new(postrider_core::ErrorKind::Unsupported, what))
    }

    /// Chain and host name are verified. The provider is named here, so that it does not matter which one the process uses
    /// for other things.
    #[cfg(feature = "tls")]
    pub(super) fn verified(ssl: &Ssl) -> Result<Self> {
        let failed = |error: rustls::Error| Error::invalid("TLS cannot be set up").caused_by(error);
        let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_root_certificates(roots(ssl.root.as_deref())?);
        let config = match (&ssl.certificate, &ssl.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(certificate), Some(key)) => {
                let chain = certificates("sslcert", certificate)?;
                builder.with_client_auth_cert(chain, private_key(key)?).map_err(|error| {
                    Error::invalid("the certificate of `sslcert` and the key of `sslkey` do not go together")
                        .with("sslcert", certificate.display())
                        .with("sslkey", key.display())
                        .caused_by(error)
                })?
            }
            (Some(_), None) => return Err(Error::invalid("`sslcert` needs `sslkey`, the key of that certificate")),
            (None, Some(_)) => return Err(Error::invalid("`sslkey` needs `sslcert`, the certificate of that key")),
        };
        Ok(Self::Verified(tokio_postgres_rustls::MakeRustlsConnect::new(config)))
    }
}

/// The authorities to trust: those of a file, or the system's.
#[cfg(feature = "tls")]
fn roots(file: Option<&Path>) -> Result<rustls::RootCertStore> {
    let mut roots = rustls::RootCertStore::empty();
    if let Some(path) = file.filter(|path| *path != Path::new("system")) {
        for certificate in certificates("sslrootcert", path)? {
            roots.add(certificate).map_err(|error| {
                Error::invalid("the file of `sslrootcert` holds something that is not a certificate authority")
                    .with("sslrootcert", path.display())
                    .caused_by(error)
            })?;
        }
        return Ok(roots);
    }
    // What of the system's store cannot be read is left out; what is needed and missing shows in the handshake.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Error::invalid(
            "the system has no certificate authorities to trust; install them (`ca-certificates`), or name a file by \
             `sslrootcert`",
        ));
    }
    Ok(roots)
}

#[cfg(feature = "tls")]
fn certificates(parameter: &'static str, path: &Path) -> Result<Vec<rustls::pki_types::CertificateDer<'static>>> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let unreadable = |error| unreadable(parameter, path, error);
    let found = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(unreadable)?;
    if found.is_empty() {
        return Err(unreadable(rustls::pki_types::pem::Error::NoItemsFound));
    }
    Ok(found)
}

#[cfg(feature = "tls")]
fn private_key(path: &Path) -> Result<rustls::pki_types::PrivateKeyDer<'static>> {
    use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
    refuse_open_key(path)?;
    PrivateKeyDer::from_pem_file(path).map_err(|error| unreadable("sslkey", path, error))
}

#[cfg(feature = "tls")]
fn unreadable(parameter: &'static str, path: &Path, error: rustls::pki_types::pem::Error) -> Error {
    Error::invalid(format!("the file of `{parameter}` cannot be read as PEM"))
        .with(parameter, path.display())
        .caused_by(error)
}

/// A key that everybody may read is everybody's. As libpq has it: the owner alone, or root's with read access for a group.
#[cfg(all(feature = "tls", unix))]
fn refuse_open_key(path: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    // One that is not there is told of when it is read.
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(()) };
    let allowed = if metadata.uid() == 0 { 0o640 } else { 0o600 };
    if metadata.mode() & 0o777 & !allowed == 0 {
        return Ok(());
    }
    Err(Error::invalid("the file of `sslkey` can be read by others; run `chmod go= ` on it")
        .with("sslkey", path.display()))
}

#[cfg(all(feature = "tls", not(unix)))]
fn refuse_open_key(_path: &Path) -> Result<()> {
    Ok(())
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Stream;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        match self {
            Self::Off => Ok(Handshake::Off),
            #[cfg(feature = "tls")]
            Self::Verified(rustls) => {
                let handshake = MakeTlsConnect::<Socket>::make_tls_connect(rustls, host);
                handshake.map(|handshake| Handshake::Verified(Box::new(handshake))).map_err(io::Error::other)
            }
        }
    }
}

/// One handshake to come.
pub(crate) enum Handshake {
    Off,
    #[cfg(feature = "tls")]
    Verified(Box<Rustls>),
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        match self {
            // Never asked for: without TLS the mode is `disable`.
            Self::Off => Box::pin(async { Err(io::Error::other("TLS is off")) }),
            #[cfg(feature = "tls")]
            Self::Verified(rustls) => Box::pin(async move { rustls.connect(socket).await }),
        }
    }
}

/// What to say of a connection that failed for its TLS, and what to do. `None`: it failed for something else.
pub(crate) fn trouble(error: &tokio_postgres::Error) -> Option<&'static str> {
    use std::error::Error as _;
    let cause = error.source()?;
    #[cfg(feature = "tls")]
    if let Some(rustls) = cause.downcast_ref::<io::Error>().and_then(|error| error.get_ref()?.downcast_ref()) {
        return Some(broken_handshake(rustls));
    }
    // The client library has no code for it. If it changes its words, the answer is less helpful and not wrong.
    (cause.to_string() == "server does not support TLS").then_some(
        "the server does not offer TLS; switch it on there (`ssl = on`), or write `sslmode=disable` for clear text",
    )
}

#[cfg(feature = "tls")]
fn broken_handshake(error: &rustls::Error) -> &'static str {
    use rustls::{CertificateError, Error};
    match error {
        // A bad signature is what an authority of the same name and another key makes of it.
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "the server's certificate is signed by nobody who is trusted here; name its authority by `sslrootcert`"
        }
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => {
            "the server's certificate is for another host; connect by a name that is in it, or have it made for this one"
        }
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "the server's certificate has expired; renew it"
        }
        Error::InvalidCertificate(_) => "the server's certificate cannot be trusted",
        Error::AlertReceived(_) => {
            "the server has ended the TLS handshake; if it asks for a certificate, name one by `sslcert` and `sslkey`"
        }
        _ => "the TLS handshake with the server has failed",
    }
}
