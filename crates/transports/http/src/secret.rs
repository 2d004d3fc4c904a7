//! Keys of Standard Webhooks, which never print themselves.
//!
//! | text | is | used by |
//! |---|---|---|
//! | `whsec_` and Base64 of 24 to 64 bytes | a shared secret, HMAC-SHA-256, signatures `v1` | sender and receiver |
//! | `whsk_` and Base64 of 32 bytes (seed) or 64 (seed and public key) | an ed25519 signing key, signatures `v1a` | sender |
//! | `whpk_` and Base64 of 32 bytes | its public key | receiver |

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use hmac::{Hmac, KeyInit, Mac};
use postrider_core::{Error, Result};
use sha2::Sha256;

/// Fewest bytes of a shared secret, by the specification.
const SECRET_BYTES_MIN: usize = 24;
/// Most bytes of a shared secret, by the specification.
const SECRET_BYTES_MAX: usize = 64;

/// What a sender signs with: `whsec_…` or `whsk_…`. Prints as its kind and nothing more.
#[derive(Clone)]
pub struct Secret(Kind);

#[derive(Clone)]
enum Kind {
    Shared(Vec<u8>),
    Signing(Box<SigningKey>),
}

impl Secret {
    /// Reads a secret as it is handed out. Space around it, as a file has it, does not matter.
    ///
    /// # Errors
    /// If it is neither `whsec_` nor `whsk_`, not Base64, or of the wrong length. The error does not repeat it.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        if let Some(coded) = text.strip_prefix("whsec_") {
            return Ok(Self(Kind::Shared(shared(coded)?)));
        }
        if let Some(coded) = text.strip_prefix("whsk_") {
            return Ok(Self(Kind::Signing(Box::new(signing(&decode("whsk_", coded)?)?))));
        }
        let message = if text.starts_with("whpk_") {
            "a public key (`whpk_`) cannot sign; the sender needs the signing key (`whsk_`)"
        } else {
            "a webhook secret begins with `whsec_` (shared secret) or `whsk_` (ed25519 signing key)"
        };
        Err(Error::invalid(message))
    }

    /// What a receiver checks this secret's signatures with.
    #[must_use]
    pub fn verify_key(&self) -> VerifyKey {
        VerifyKey(match &self.0 {
            Kind::Shared(bytes) => Check::Shared(bytes.clone()),
            Kind::Signing(key) => Check::Public(Box::new(key.verifying_key())),
        })
    }

    /// One entry of `webhook-signature`.
    pub(crate) fn sign(&self, signed: &Signed<'_>) -> String {
        match &self.0 {
            Kind::Shared(secret) => format!("v1,{}", BASE64.encode(tag(secret, signed).finalize().into_bytes())),
            Kind::Signing(key) => format!("v1a,{}", BASE64.encode(key.sign(&signed.to_vec()).to_bytes())),
        }
    }
}

/// What a receiver checks with: `whsec_…` or `whpk_…`. Prints as its kind and nothing more.
#[derive(Clone)]
pub struct VerifyKey(Check);

#[derive(Clone)]
enum Check {
    Shared(Vec<u8>),
    Public(Box<VerifyingKey>),
}

impl VerifyKey {
    /// Reads a key as it is handed out. Space around it does not matter.
    ///
    /// # Errors
    /// If it is neither `whsec_` nor `whpk_`, not Base64, of the wrong length, or no point of the curve.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        if let Some(coded) = text.strip_prefix("whsec_") {
            return Ok(Self(Check::Shared(shared(coded)?)));
        }
        let Some(coded) = text.strip_prefix("whpk_") else {
            return Err(Error::invalid(
                "a receiver's key begins with `whsec_` (shared secret) or `whpk_` (public key)",
            ));
        };
        let bytes: [u8; 32] = decode("whpk_", coded)?
            .try_into()
            .map_err(|_| Error::invalid("a public key (`whpk_`) has 32 bytes behind its prefix, as Base64"))?;
        let key = VerifyingKey::from_bytes(&bytes)
            .map_err(|e| Error::invalid("the public key (`whpk_`) is no point of the curve").caused_by(e))?;
        Ok(Self(Check::Public(Box::new(key))))
    }

    /// Whether `signature` (the bytes behind the version) is this key's, in full length and constant time.
    pub(crate) fn verifies(&self, version: &str, signature: &[u8], signed: &Signed<'_>) -> bool {
        match (&self.0, version) {
            (Check::Shared(secret), "v1") => tag(secret, signed).verify_slice(signature).is_ok(),
            (Check::Public(key), "v1a") => ed25519_dalek::Signature::from_slice(signature)
                .is_ok_and(|signature| key.verify_strict(&signed.to_vec(), &signature).is_ok()),
            _ => false,
        }
    }
}

/// What is signed: `id.timestamp.body`.
pub(crate) struct Signed<'a> {
    pub(crate) id: &'a str,
    pub(crate) timestamp: &'a str,
    pub(crate) body: &'a [u8],
}

impl Signed<'_> {
    fn to_vec(&self) -> Vec<u8> {
        [self.id.as_bytes(), b".", self.timestamp.as_bytes(), b".", self.body].concat()
    }
}

fn tag(secret: &[u8], signed: &Signed<'_>) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("an HMAC takes a key of any length");
    for part in [signed.id.as_bytes(), b".", signed.timestamp.as_bytes(), b".", signed.body] {
        mac.update(part);
    }
    mac
}

fn shared(coded: &str) -> Result<Vec<u8>> {
    let bytes = decode("whsec_", coded)?;
    if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len()) {
        return Err(Error::invalid("a shared secret (`whsec_`) has 24 to 64 bytes behind its prefix, as Base64")
            .with("bytes", bytes.len()));
    }
    Ok(bytes)
}

fn signing(bytes: &[u8]) -> Result<SigningKey> {
    if let Ok(seed) = <[u8; 32]>::try_from(bytes) {
        return Ok(SigningKey::from_bytes(&seed));
    }
    let pair = <[u8; 64]>::try_from(bytes)
        .map_err(|_| Error::invalid("a signing key (`whsk_`) has 32 or 64 bytes behind its prefix, as Base64"))?;
    SigningKey::from_keypair_bytes(&pair)
        .map_err(|_| Error::invalid("the two halves of the signing key (`whsk_`) do not belong together"))
}

/// The decoder's own message would repeat a byte of the secret and its place; it is left out.
fn decode(prefix: &'static str, coded: &str) -> Result<Vec<u8>> {
    BASE64.decode(coded).map_err(|_| Error::invalid("what stands behind the prefix is not Base64").with("key", prefix))
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Shared(_) => "Secret(whsec_…)",
            Kind::Signing(_) => "Secret(whsk_…)",
        })
    }
}

impl fmt::Debug for VerifyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Check::Shared(_) => "VerifyKey(whsec_…)",
            Check::Public(_) => "VerifyKey(whpk_…)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_no_keys_are_refused_and_not_repeated() {
        let short = format!("whsec_{}", BASE64.encode([7; 23]));
        let long = format!("whsec_{}", BASE64.encode([7; 65]));
        let uneven = format!("whsk_{}", BASE64.encode([7; 33]));
        let torn = format!("whsk_{}", BASE64.encode([7; 64]));
        for text in ["", "canary", "whsec_", "whsec_canary!", &short, &long, &uneven, &torn, "whsk_", "whpk_canary"] {
            let error = Secret::parse(text).unwrap_err();
            assert!(!error.chain().contains("canary"), "{error}");
            assert!(text.len() < 20 || !error.chain().contains(&text[6..]), "{error}");
        }
        for text in ["", "whsk_AAAA", "whpk_AAAA", "whpk_canary!", &short] {
            assert!(VerifyKey::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_shortest_and_the_longest_secret_are_taken() {
        for bytes in [24, 64] {
            let text = format!(" whsec_{}\n", BASE64.encode(vec![7; bytes]));
            assert_eq!(format!("{:?}", Secret::parse(&text).unwrap()), "Secret(whsec_…)");
            assert_eq!(format!("{:?}", VerifyKey::parse(&text).unwrap()), "VerifyKey(whsec_…)");
        }
    }

    #[test]
    fn a_seed_and_a_pair_are_the_same_key() {
        let seed = SigningKey::from_bytes(&[9; 32]);
        let signed = Signed { id: "i", timestamp: "1", body: b"b" };
        let of = |bytes: &[u8]| Secret::parse(&format!("whsk_{}", BASE64.encode(bytes))).unwrap().sign(&signed);
        assert_eq!(of(&seed.to_bytes()), of(&seed.to_keypair_bytes()));
    }
}
