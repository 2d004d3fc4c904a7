//! The parameters of a URL that are about TLS, taken out of it: the client library knows only some of them.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use postrider_core::{Error, Result};

use super::malformed;

/// Parameters that the client library understands.
const KNOWN: [&str; 18] = [
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "sslnegotiation",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "target_session_attrs",
    "channel_binding",
    "load_balance_hosts",
];

/// Parameters that libpq understands and nobody here does. A name that is in neither list is not repeated: it may be a
/// piece of a password with a question mark in it.
const UNSUPPORTED: [&str; 14] = [
    "client_encoding",
    "gssencmode",
    "krbsrvname",
    "passfile",
    "replication",
    "require_auth",
    "requiressl",
    "service",
    "ssl_min_protocol_version",
    "sslcertmode",
    "sslcrl",
    "sslcrldir",
    "sslpassword",
    "sslsni",
];

/// A URL without what it says about TLS, and that.
pub(super) struct Url {
    pub(super) rest: String,
    pub(super) ssl: Ssl,
}

/// What a URL says about TLS.
#[derive(Debug, Default)]
pub(super) struct Ssl {
    mode: Option<String>,
    pub(super) root: Option<PathBuf>,
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

impl Url {
    pub(super) fn split(url: &str) -> Result<Self> {
        let (scheme, behind) = url.split_once("://").ok_or_else(malformed)?;
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err(malformed());
        }
        // As the client library sees it: what is before the first `@` is user and password, whatever it looks like.
        let place = behind.find('@').unwrap_or(0);
        let Some(question) = behind[place..].find('?') else {
            return Ok(Self { rest: url.to_owned(), ssl: Ssl::default() });
        };
        let (before, parameters) = (&behind[..place + question], &behind[place + question + 1..]);
        let mut ssl = Ssl::default();
        let mut left = Vec::new();
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if !ssl.take(name, value)? {
                check_name(name)?;
                left.push(parameter);
            }
        }
        Ok(Self { rest: format!("{scheme}://{before}?{}", left.join("&")), ssl })
    }

    /// Whether it has a parameter of this name, of those that are not about TLS.
    pub(super) fn says(&self, name: &str) -> bool {
        let parameters = self.rest.rsplit_once('?').map_or("", |(_, parameters)| parameters);
        parameters.split('&').any(|parameter| parameter.split('=').next() == Some(name))
    }
}

impl Ssl {
    /// Takes a parameter that is about TLS. `false`: it is about something else.
    fn take(&mut self, name: &str, value: &str) -> Result<bool> {
        let again = match name {
            "sslmode" => self.mode.replace(decode(name, value)?).is_some(),
            "sslrootcert" => self.root.replace(decode(name, value)?.into()).is_some(),
            "sslcert" => self.certificate.replace(decode(name, value)?.into()).is_some(),
            "sslkey" => self.key.replace(decode(name, value)?.into()).is_some(),
            _ => return Ok(false),
        };
        if again {
            return Err(Error::invalid(format!("the URL says `{name}` twice")));
        }
        Ok(true)
    }

    /// Whether it asks for TLS or for none. `None`: it leaves that to the host.
    pub(super) fn is_wanted(&self) -> Result<Option<bool>> {
        let files = self.root.is_some() || self.certificate.is_some() || self.key.is_some();
        match self.mode.as_deref() {
            None => Ok(files.then_some(true)),
            Some("disable") if files => Err(Error::invalid(
                "`sslmode=disable` and the certificates that the URL names contradict each other; leave one of them out",
            )),
            Some("disable") => Ok(Some(false)),
            Some("require" | "verify-ca" | "verify-full") => Ok(Some(true)),
            Some(mode @ ("prefer" | "allow")) => Err(Error::invalid(format!(
                "`sslmode={mode}` may fall back to clear text without a word; write `verify-full`, or `disable` for clear text"
            ))),
            Some(_) => Err(Error::invalid("`sslmode` is `verify-full`, or `disable` for clear text")),
        }
    }
}

fn decode(name: &str, value: &str) -> Result<String> {
    let text = percent_decode_str(value).decode_utf8().ok().filter(|text| !text.is_empty());
    text.map(Into::into)
        .ok_or_else(|| Error::invalid(format!("the URL's parameter `{name}` has no value that is text")))
}

fn check_name(name: &str) -> Result<()> {
    if KNOWN.contains(&name) {
        return Ok(());
    }
    Err(match UNSUPPORTED.iter().find(|unsupported| **unsupported == name) {
        Some(name) => Error::invalid(format!("the URL's parameter `{name}` is not supported; leave it out")),
        None => Error::invalid("the URL has a parameter that is not known").with("known", KNOWN.join(", ")),
    })
}
