//! Certificates for a server that a test starts: an authority of its own, and one that nobody knows.

use std::{fs, path::Path};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// What a test expects of every step.
const EXPECTED: &str = "a certificate is made and written";

/// An authority in `ca.pem`, certificates of it for the server in `server.pem` and for a client in `client.pem`, and one for a
/// client that it does not know in `stranger.pem`; keys beside them in `….key`.
///
/// # Panics
/// If they cannot be made or written.
pub fn certificates(folder: &Path) {
    let authority = |name: &str| {
        let mut params = CertificateParams::new(Vec::new()).expect(EXPECTED);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Another name than the certificates have, or they would look like ones that sign themselves.
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect(EXPECTED);
        let certificate = params.self_signed(&key).expect(EXPECTED).pem();
        (certificate, Issuer::new(params, key))
    };
    let ((ours, known), (_, unknown)) = (authority("an authority of our own"), authority("another one"));
    fs::write(folder.join("ca.pem"), ours).expect(EXPECTED);
    for (name, issuer) in [("server", &known), ("client", &known), ("stranger", &unknown)] {
        let key = KeyPair::generate().expect(EXPECTED);
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect(EXPECTED);
        fs::write(folder.join(format!("{name}.pem")), params.signed_by(&key, issuer).expect(EXPECTED).pem())
            .expect(EXPECTED);
        fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).expect(EXPECTED);
    }
}
