//! `[route.nats]`: how a route publishes to NATS JetStream. Everything has a default.

use std::{path::PathBuf, time::Duration};

use postrider::{
    Result,
    nats::{Access, Builder, NatsPublisher},
};

use super::{reader::Section, secret::Place};

/// What the file says about a route to NATS.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NatsConfig {
    prefix: Option<String>,
    source: String,
    pub(crate) timeout: Duration,
    declare: Option<String>,
    replicas: u32,
    tls: bool,
    ca_file: Option<PathBuf>,
    certificate: Option<(PathBuf, PathBuf)>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Place>,
    pub(crate) token: Option<Place>,
    pub(crate) credentials: Option<Place>,
}

impl NatsConfig {
    /// Where the servers are, without what must be looked up.
    pub(crate) fn access(&self, url: &str) -> Result<Access> {
        let url = if self.tls { url.replace("nats://", "tls://") } else { url.to_owned() };
        let mut access = Access::new(&url)?;
        if let Some(path) = &self.ca_file {
            access = access.ca_file(path);
        }
        if let Some((certificate, key)) = &self.certificate {
            access = access.client_certificate(certificate, key);
        }
        Ok(access)
    }

    /// The publisher's settings.
    pub(crate) fn builder(&self, access: Access) -> Builder {
        let mut builder = NatsPublisher::builder(access).source(&self.source).timeout(self.timeout);
        if let Some(prefix) = &self.prefix {
            builder = builder.prefix(prefix);
        }
        if let Some(stream) = &self.declare {
            builder = builder.declare(stream, self.replicas as usize);
        }
        builder
    }
}

/// Reads the table of a route, whose transport is `url`. What must be looked up is checked later.
pub(super) fn read(route: &mut Section<'_, '_>, url: Option<&str>) -> Option<NatsConfig> {
    let Some(url) = url.filter(|url| url.starts_with("nats:")) else {
        if route.section("nats").is_some() {
            route.object("nats", "is for a transport that begins with `nats:`; this route has another");
        }
        return None;
    };
    let mut section = route.section_or_empty("nats");
    let files = (section.text("certificate_file"), section.text("key_file"));
    let nats = NatsConfig {
        prefix: section.text("prefix"),
        source: section.text_or_default("source"),
        timeout: section.duration_or_default("timeout"),
        declare: section.text("declare"),
        replicas: section.number_or_default("replicas"),
        tls: section.boolean_or_default("tls"),
        ca_file: section.text("ca_file").map(PathBuf::from),
        certificate: match &files {
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            _ => None,
        },
        user: section.text("user"),
        password: section.secret("password"),
        token: section.secret("token"),
        credentials: section.secret("credentials"),
    };
    if files.0.is_some() != files.1.is_some() {
        section.object("certificate_file", "`certificate_file` and `key_file` belong together; give both or none");
    }
    if nats.user.is_some() != section.has("password") {
        section.object("user", "`user` and `password` belong together; give both or none");
    }
    let logins = ["user", "token", "credentials"].iter().filter(|key| section.has(key)).count();
    if logins > 1 {
        section.object("user", "there is one way to log in: `user` and `password`, or `token`, or `credentials`");
    }
    section.close();
    // Without secrets, which are looked up later; the rest is the publisher's to judge.
    if let Err(error) = nats.access(url).and_then(|access| nats.builder(access).build()) {
        route.object("transport", error.to_string());
    }
    Some(nats)
}
