//! TLS: the certificate must be of the URL's host and end in a root of the platform or of a file that was named.
//!
//! There is no way to switch the check off. An endpoint with a certificate of its own is reached by naming that
//! certificate, or the authority that made it.

use std::{path::Path, sync::Arc};

use postrider_core::{Error, ErrorKind, Result};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, pem::PemObject},
    },
};

/// Which certificates are the end of a chain.
#[derive(Clone, Debug)]
pub(crate) struct Roots {
    pub(crate) system: bool,
    pub(crate) pem: Vec<Vec<u8>>,
}

impl Default for Roots {
    fn default() -> Self {
        Self { system: true, pem: Vec::new() }
    }
}

/// Certificates in a file.
pub(crate) fn read_pem(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            _ => ErrorKind::Unavailable,
        };
        Error::new(kind, "read the file with root certificates").with("path", path.display()).caused_by(error)
    })
}

/// A connector that trusts these roots and speaks HTTP/1.1.
pub(crate) fn connector(roots: &Roots) -> Result<TlsConnector> {
    let mut store = RootCertStore::empty();
    if roots.system {
        // Single certificates that cannot be read are the platform's business as long as others can.
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    for pem in &roots.pem {
        let bad = |what: &'static str| Error::invalid(what).with("setting", "ca_file");
        let mut count = 0;
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|e| bad("a root certificate is not PEM").caused_by(e))?;
            store.add(certificate).map_err(|e| bad("a root certificate cannot be used").caused_by(e))?;
            count += 1;
        }
        if count == 0 {
            return Err(bad("the file with root certificates has no certificate in it"));
        }
    }
    if store.is_empty() {
        return Err(Error::invalid(
            "no root certificates are known: install those of the platform (`ca-certificates`) or name a `ca_file`",
        ));
    }
    // The provider is named, so that it does not matter which one another library has made the process's default.
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::new(ErrorKind::Other, "set up TLS").caused_by(e))?
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
