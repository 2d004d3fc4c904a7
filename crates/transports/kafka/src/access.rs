//! Where the brokers are, and who we are to them.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use postrider_core::{Error, Result};
use rdkafka::ClientConfig;

use crate::error;

/// Properties that follow from settings with a name of their own, or that a promise rests on.
const OURS: &[&str] = &[
    "acks",
    "allow.auto.create.topics",
    "auto.commit.enable",
    "bootstrap.servers",
    "compression.codec",
    "compression.type",
    "delivery.report.only.error",
    "delivery.timeout.ms",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "group.id",
    "linger.ms",
    "message.max.bytes",
    "message.send.max.retries",
    "message.timeout.ms",
    "metadata.broker.list",
    "partition.assignment.strategy",
    "queue.buffering.max.ms",
    "request.required.acks",
    "retries",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "ssl.ca.location",
    "transactional.id",
    "test.mock.num.brokers",
];

/// Partitioners that give all messages of a key to one partition.
const BY_KEY: [&str; 6] = ["consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random"];

/// How a login by name and password is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// The password itself is sent; over TLS, please.
    Plain,
    /// SCRAM with SHA-256.
    ScramSha256,
    /// SCRAM with SHA-512.
    ScramSha512,
}

impl Mechanism {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// The brokers of one cluster, with login and certificates. Secrets are never printed.
#[derive(Clone)]
pub struct Access {
    brokers: Vec<String>,
    tls: bool,
    login: Option<(Mechanism, String, String)>,
    ca_file: Option<PathBuf>,
    client_certificate: Option<(PathBuf, PathBuf)>,
    properties: Vec<(String, String)>,
}

impl Access {
    /// One broker to begin with, or several with commas in between: `kafka://a:9092,b:9092`. The client learns of the others
    /// from those.
    ///
    /// # Errors
    /// If it is not such a URL, or holds a user or a password: those have a method of their own, so that a URL can be shown.
    pub fn new(url: &str) -> Result<Self> {
        let bad = |what: &'static str| Error::invalid(what);
        let Some(rest) = url.strip_prefix("kafka://") else {
            return Err(bad("the URL of a Kafka cluster begins with `kafka://`, such as `kafka://host:9092`"));
        };
        if rest.contains('@') {
            return Err(bad("the URL of a Kafka cluster must not hold a user or a password; give them apart from it"));
        }
        let brokers = rest.split(',').map(|broker| check(broker.trim())).collect::<Result<Vec<_>>>()?;
        Ok(Self { brokers, tls: false, login: None, ca_file: None, client_certificate: None, properties: Vec::new() })
    }

    /// Speaks TLS with the brokers, and refuses to speak without. A certificate must be of its host and end in a root of the
    /// platform, or of [`Self::ca_file`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Logs in by name and password (SASL).
    #[must_use]
    pub fn password(mut self, mechanism: Mechanism, user: &str, password: &str) -> Self {
        self.login = Some((mechanism, user.to_owned(), password.to_owned()));
        self
    }

    /// Trusts the certificates of a PEM file instead of those of the platform. Means nothing without [`Self::tls`].
    #[must_use]
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Self {
        self.ca_file = Some(path.as_ref().to_owned());
        self
    }

    /// Shows a certificate to the brokers: PEM files with the chain and with its key. Means nothing without [`Self::tls`].
    #[must_use]
    pub fn client_certificate(mut self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.client_certificate = Some((certificate.as_ref().to_owned(), key.as_ref().to_owned()));
        self
    }

    /// Sets a property of librdkafka that has no setting here, such as `client.rack`. Those that a promise rests on are
    /// refused when the publisher or subscriber is built.
    #[must_use]
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The brokers, for people.
    pub(crate) fn shown(&self) -> String {
        self.brokers.join(",")
    }

    /// What every client has in common. Nothing is connected to.
    ///
    /// # Errors
    /// If a file is not there, or a property is not to be set.
    pub(crate) fn config(&self) -> Result<ClientConfig> {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", self.shown())
            .set("client.id", "postrider")
            // Short enough that an outage is noticed and its end is not missed.
            .set("socket.connection.setup.timeout.ms", "5000")
            .set("reconnect.backoff.ms", "50")
            .set("reconnect.backoff.max.ms", "2000")
            .set("socket.keepalive.enable", "true")
            .set("security.protocol", self.protocol());
        if let Some((mechanism, user, password)) = &self.login {
            config.set("sasl.mechanism", mechanism.name()).set("sasl.username", user).set("sasl.password", password);
        }
        if let Some(path) = &self.ca_file {
            config.set("ssl.ca.location", readable(path)?);
        }
        if let Some((certificate, key)) = &self.client_certificate {
            config.set("ssl.certificate.location", readable(certificate)?).set("ssl.key.location", readable(key)?);
        }
        for (name, value) in &self.properties {
            if OURS.contains(&name.as_str()) {
                return Err(Error::invalid("this property of librdkafka is not to be set from outside")
                    .with("property", name.escape_debug()));
            }
            if name == "partitioner" && !BY_KEY.contains(&value.as_str()) {
                return Err(Error::invalid("only a partitioner that goes by the key keeps its messages in order")
                    .with("partitioner", value.escape_debug())
                    .with("possible", BY_KEY.join(", ")));
            }
            config.set(name, value);
        }
        config.create_native_config().map_err(|e| error::setting(&e))?;
        Ok(config)
    }

    fn protocol(&self) -> &'static str {
        match (self.login.is_some(), self.tls) {
            (false, false) => "plaintext",
            (false, true) => "ssl",
            (true, false) => "sasl_plaintext",
            (true, true) => "sasl_ssl",
        }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Access({})", self.shown())
    }
}

/// One broker: `host:port`, or the host alone.
fn check(text: &str) -> Result<String> {
    let bad = || {
        Error::invalid("a broker is written as `host:port`, and several with commas in between")
            .with("broker", text.escape_debug())
    };
    if text.is_empty() || text.contains(['/', '?', '#']) || text.contains(char::is_whitespace) {
        return Err(bad());
    }
    // An address of version 6 stands in brackets.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse::<u16>().map_err(|_| bad())?),
        _ => (text, 9092),
    };
    let bracketed = host.starts_with('[') && host.ends_with(']');
    if host.is_empty() || port == 0 || (host.contains(':') && !bracketed) {
        return Err(bad());
    }
    Ok(format!("{host}:{port}"))
}

/// Known now rather than with the first message.
fn readable(path: &Path) -> Result<String> {
    let unreadable =
        |e| Error::invalid("a file with certificates cannot be read").with("path", path.display()).caused_by(e);
    std::fs::File::open(path).map_err(unreadable)?;
    Ok(path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_are_read_and_a_port_is_filled_in() {
        assert_eq!(Access::new("kafka://a,b:19092").unwrap().shown(), "a:9092,b:19092");
        assert_eq!(Access::new("kafka://[::1]:5, [::2]").unwrap().shown(), "[::1]:5,[::2]:9092");
    }

    #[test]
    fn what_is_no_cluster_is_refused_without_its_secrets() {
        for url in [
            "",
            "a:9092",
            "http://a",
            "kafka://",
            "kafka://a,",
            "kafka://me:canary@a",
            "kafka://a/x",
            "kafka://a:x",
            "kafka://a:0",
            "kafka://::1",
            "kafka://a b",
        ] {
            let error = Access::new(url).unwrap_err();
            assert!(!error.chain().contains("canary"), "{error}");
        }
        let access = Access::new("kafka://a").unwrap().password(Mechanism::Plain, "me", "canary");
        assert!(!format!("{access:?}").contains("canary"));
    }

    #[test]
    fn properties_are_checked_and_those_of_a_promise_are_refused() {
        let access = Access::new("kafka://a").unwrap();
        assert!(access.clone().property("client.rack", "r1").config().is_ok());
        let message = |name: &str, value: &str| access.clone().property(name, value).config().unwrap_err().to_string();
        for name in OURS {
            assert!(message(name, "1").contains(&format!("not to be set from outside (property: {name})")), "{name}");
        }
        assert!(message("clientrack", "canary").contains("clientrack"));
        assert!(message("socket.timeout.ms", "canary").contains("socket.timeout.ms"));
        for (name, value) in [("clientrack", "canary"), ("socket.timeout.ms", "canary")] {
            assert!(!message(name, value).contains("canary"), "a value may be a secret");
        }
        assert!(access.clone().ca_file("/there/is/no/such/file").config().is_err());
    }

    #[test]
    fn tls_and_login_choose_the_protocol() {
        let access = Access::new("kafka://a").unwrap();
        assert_eq!(access.protocol(), "plaintext");
        assert_eq!(access.clone().tls().protocol(), "ssl");
        let known = access.password(Mechanism::ScramSha512, "me", "secret");
        assert_eq!(known.clone().tls().protocol(), "sasl_ssl");
        assert_eq!(known.config().unwrap().get("sasl.mechanism"), Some("SCRAM-SHA-512"));
    }
}
