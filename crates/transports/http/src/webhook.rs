//! For receivers: whether a request really comes from who shares the secret, and is fresh.
//!
//! The check is that of Standard Webhooks 1.0: HMAC-SHA-256 (`v1`) and ed25519 (`v1a`), every listed signature against
//! every key (a sender lists several while it rotates, and a receiver may hold several), in full length, in constant time,
//! with a timestamp at most five minutes away. It needs no HTTP library: headers come from a function.
//!
//! What it does not do: remember ids. A request that is sent again within the five minutes passes again, as it must,
//! because the sender retries under the same id; a receiver that must not act twice remembers [`Verified::id`].
//!
//! ```
//! use std::time::{Duration, UNIX_EPOCH};
//! use postrider_transport_http::{VerifyKey, webhook};
//!
//! let keys = [VerifyKey::parse("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")?];
//! let headers = [
//!     ("webhook-id", "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk"),
//!     ("webhook-timestamp", "1649367553"),
//!     ("webhook-signature", "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw="),
//! ];
//! let header = |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
//! let body = br#"{"email":"test@example.com","username":"test_user"}"#;
//! let now = UNIX_EPOCH + Duration::from_secs(1_649_367_600); // SystemTime::now(), in earnest
//! let verified = webhook::verify(&keys, header, body, now).expect("a good signature");
//! assert_eq!(verified.id, "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk");
//! # Ok::<(), postrider_core::Error>(())
//! ```

use std::{
    error::Error,
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};

use crate::secret::{Secret, Signed, VerifyKey};

/// The header with the message id.
pub const ID: &str = "webhook-id";
/// The header with the second of the attempt.
pub const TIMESTAMP: &str = "webhook-timestamp";
/// The header with the signatures.
pub const SIGNATURE: &str = "webhook-signature";
/// How far the sender's clock may be from the receiver's, either way.
pub const TOLERANCE: Duration = Duration::from_secs(300);

/// A request whose signature is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The message id: the same on every retry.
    pub id: String,
    /// When the sender made this attempt.
    pub sent_at: SystemTime,
}

/// Why a request is not to be trusted. Answer 400 or 401, and nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// A header of the three is not there or empty.
    Missing(&'static str),
    /// The id has characters that an id must not have: a full stop could shift the border between id, time and body.
    Id,
    /// The timestamp is not a number of seconds.
    Timestamp,
    /// The timestamp is more than five minutes in the past.
    TooOld,
    /// The timestamp is more than five minutes in the future.
    TooNew,
    /// No listed signature is one of a known key.
    Signature,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(header) => write!(f, "the header `{header}` is missing"),
            Self::Id => f.write_str("the id has characters that an id must not have"),
            Self::Timestamp => f.write_str("the timestamp is not a number of seconds"),
            Self::TooOld => f.write_str("the timestamp is too long ago"),
            Self::TooNew => f.write_str("the timestamp is in the future"),
            Self::Signature => f.write_str("no signature matches"),
        }
    }
}

impl Error for Refused {}

/// Checks a request: `header` gives the value of a header by its lower-case name, `body` is the body as it came, before
/// anybody parsed it. Several `keys` are for a rotation: one match is enough.
///
/// # Errors
/// [`Refused`], if the request is not to be trusted. With no keys that is every request.
pub fn verify<'h>(
    keys: &[VerifyKey],
    header: impl Fn(&str) -> Option<&'h str>,
    body: &[u8],
    now: SystemTime,
) -> Result<Verified, Refused> {
    let take = |name| header(name).filter(|value| !value.is_empty()).ok_or(Refused::Missing(name));
    let (id, timestamp, signatures) = (take(ID)?, take(TIMESTAMP)?, take(SIGNATURE)?);
    if !id.bytes().all(|b| (b'!'..=b'~').contains(&b) && b != b'.') {
        return Err(Refused::Id);
    }
    let sent_at = instant(timestamp).ok_or(Refused::Timestamp)?;
    if now.duration_since(sent_at).is_ok_and(|age| age > TOLERANCE) {
        return Err(Refused::TooOld);
    }
    if sent_at.duration_since(now).is_ok_and(|ahead| ahead > TOLERANCE) {
        return Err(Refused::TooNew);
    }
    let signed = Signed { id, timestamp, body };
    let mut good = false;
    for entry in signatures.split(' ') {
        let Some((version, coded)) = entry.split_once(',') else { continue };
        let Ok(signature) = BASE64.decode(coded) else { continue };
        for key in keys {
            // No early end: how long it takes must not tell which key or signature it was.
            good |= key.verifies(version, &signature, &signed);
        }
    }
    if good { Ok(Verified { id: id.to_owned(), sent_at }) } else { Err(Refused::Signature) }
}

/// The three headers for a body, as a sender sets them: one signature for each secret. For tests of receivers, and for
/// senders other than the publisher.
#[must_use]
pub fn sign(secrets: &[Secret], id: &str, sent_at: SystemTime, body: &[u8]) -> [(&'static str, String); 3] {
    let seconds = sent_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().to_string();
    let signed = Signed { id, timestamp: &seconds, body };
    let signatures: Vec<String> = secrets.iter().map(|secret| secret.sign(&signed)).collect();
    [(ID, id.to_owned()), (TIMESTAMP, seconds.clone()), (SIGNATURE, signatures.join(" "))]
}

/// Digits alone: a sign, a space or a decimal point would be a second way to write the same instant.
fn instant(text: &str) -> Option<SystemTime> {
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    let seconds = text.parse().ok().filter(|_| plain)?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}
