//! TLS: the server's certificate must be of its host and end in a root of the platform or of a file that was named.

use std::{path::Path, sync::Arc};

use postrider_core::{Error, ErrorKind, Result};
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

/// What a connection trusts and shows. There is no way to switch the check off.
pub(crate) fn config(ca_file: Option<&Path>, certificate: Option<(&Path, &Path)>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    // Single certificates that cannot be read are the platform's business; without TLS none is needed.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for certificate in ca_file.map(certificates).transpose()?.unwrap_or_default() {
        roots.add(certificate).map_err(|e| Error::invalid("a root certificate cannot be used").caused_by(e))?;
    }
    // The provider is named, so that it does not matter which one another library has made the process's default.
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::new(ErrorKind::Other, "set up TLS").caused_by(e))?
        .with_root_certificates(roots);
    let Some((chain, key)) = certificate else { return Ok(builder.with_no_client_auth()) };
    let unreadable =
        |e| Error::invalid("the key of the client certificate is not PEM").with("path", key.display()).caused_by(e);
    let key = PrivateKeyDer::from_pem_file(key).map_err(unreadable)?;
    let config = builder.with_client_auth_cert(certificates(chain)?, key);
    config
        .map_err(|e| Error::invalid("the client certificate cannot be used").with("path", chain.display()).caused_by(e))
}

/// The certificates of a PEM file; at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bad =
        |e| Error::invalid("a file with certificates cannot be read as PEM").with("path", path.display()).caused_by(e);
    let found = CertificateDer::pem_file_iter(path).map_err(bad)?.collect::<Result<Vec<_>, _>>().map_err(bad)?;
    if found.is_empty() {
        return Err(Error::invalid("a file with certificates has none in it").with("path", path.display()));
    }
    Ok(found)
}
