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
    prefix: Option<String>,
    source: String,
    timeout: Duration,
    payload_max: usize,
    make_streams: bool,
    replicas: u32,
    ca_file: Option<PathBuf>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Place>,
}

impl RedisConfig {
    /// Where the server is, without what must be looked up.
    pub(crate) fn access(&self, url: &str) -> Result<Access> {
        let access = Access::new(url)?;
        match &self.ca_file {
            Some(path) => access.ca_file(path),
            None => Ok(access),
        }
    }

    /// The publisher's settings.
    pub(crate) fn builder(&self, access: Access) -> Builder {
        RedisPublisher::builder(access)
            .prefix(self.prefix.as_deref().unwrap_or_default())
            .source(&self.source)
            .timeout(self.timeout)
            .message_bytes_max(self.payload_max)
            .make_streams(self.make_streams)
            .replicas(self.replicas)
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
    let redis = RedisConfig {
        prefix: section.text("prefix"),
        source: section.text_or_default("source"),
        timeout: section.duration_or_default("timeout"),
        payload_max: section.size_or_default("payload_max"),
        make_streams: section.boolean_or_default("make_streams"),
        replicas: section.number_or_default("replicas"),
        ca_file: section.text("ca_file").map(PathBuf::from),
        user: section.text("user"),
        password: section.secret("password"),
    };
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
