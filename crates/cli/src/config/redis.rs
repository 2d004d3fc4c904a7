//! `[route.redis]`: how a route publishes to Redis Streams. Everything has a default.

use std::{path::PathBuf, time::Duration};

use postrider::{
    Result,
    redis::{Access, Builder, RedisPublisher},
};

use super::{reader::Section, secret::Place};

/// What the file says about a route to Redis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RedisConfig {
    stream: Option<String>,
    prefix: Option<String>,
    source: String,
    pub(crate) timeout: Duration,
    payload_max: usize,
    declare: bool,
    replicas: u32,
    ca_file: Option<PathBuf>,
    certificate: Option<(PathBuf, PathBuf)>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Place>,
}

impl RedisConfig {
    /// Where the server is, without what must be looked up.
    pub(crate) fn access(&self, url: &str) -> Result<Access> {
        let mut access = Access::new(url)?;
        if let Some(path) = &self.ca_file {
            access = access.ca_file(path)?;
        }
        if let Some((certificate, key)) = &self.certificate {
            access = access.client_certificate(certificate, key)?;
        }
        Ok(access)
    }

    /// The publisher's settings.
    pub(crate) fn builder(&self, access: Access) -> Builder {
        let mut builder = RedisPublisher::builder(access)
            .prefix(self.prefix.as_deref().unwrap_or_default())
            .source(&self.source)
            .timeout(self.timeout)
            .message_bytes_max(self.payload_max)
            .replicas(self.replicas);
        if let Some(stream) = &self.stream {
            builder = builder.stream(stream);
        }
        if self.declare {
            builder = builder.declare();
        }
        builder
    }
}

/// Reads the table of a route, whose transport is `url`. What must be looked up is checked later.
pub(super) fn read(route: &mut Section<'_, '_>, url: Option<&str>) -> Option<RedisConfig> {
    let Some(url) = url.filter(|url| url.starts_with("redis:") || url.starts_with("rediss:")) else {
        if route.section("redis").is_some() {
            route.object("redis", "is for a transport that begins with `redis:` or `rediss:`; this route has another");
        }
        return None;
    };
    let mut section = route.section_or_empty("redis");
    let files = (section.text("certificate_file"), section.text("key_file"));
    let redis = RedisConfig {
        stream: section.text("stream"),
        prefix: section.text("prefix"),
        source: section.text_or_default("source"),
        timeout: section.duration_or_default("timeout"),
        payload_max: section.size_or_default("payload_max"),
        declare: section.boolean_or_default("declare"),
        replicas: section.number_or_default("replicas"),
        ca_file: section.text("ca_file").map(PathBuf::from),
        certificate: match &files {
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            _ => None,
        },
        user: section.text("user"),
        password: section.secret("password"),
    };
    if files.0.is_some() != files.1.is_some() {
        section.object("certificate_file", "`certificate_file` and `key_file` belong together; give both or none");
    }
    if redis.user.is_some() && !section.has("password") {
        section.object("user", "a `user` needs a `password`");
    }
    section.close();
    // Without the password, which is looked up later; the rest is the publisher's to judge.
    if let Err(error) = redis.access(url).and_then(|access| redis.builder(access).build()) {
        route.object("transport", error.to_string());
    }
    Some(redis)
}
