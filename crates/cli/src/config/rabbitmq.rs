//! `[route.rabbitmq]`: how a route publishes to RabbitMQ. Everything has a default.

use std::{path::PathBuf, time::Duration};

use postrider::{
    Result,
    rabbitmq::{Access, Builder, QueueKind, RabbitmqPublisher},
};

use super::{reader::Section, secret::Place};

/// What the file says about a route to RabbitMQ.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RabbitmqConfig {
    exchange: Option<String>,
    routing_key: Option<String>,
    source: String,
    pub(crate) timeout: Duration,
    payload_max: usize,
    declare: Option<String>,
    queue_type: QueueKind,
    ca_file: Option<PathBuf>,
    certificate: Option<(PathBuf, PathBuf)>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Place>,
}

impl RabbitmqConfig {
    /// Where the servers are, without what must be looked up.
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
        let mut builder = RabbitmqPublisher::builder(access)
            .exchange(self.exchange.as_deref().unwrap_or_default())
            .source(&self.source)
            .timeout(self.timeout)
            .message_bytes_max(self.payload_max);
        if let Some(key) = &self.routing_key {
            builder = builder.routing_key(key);
        }
        if let Some(queue) = &self.declare {
            builder = builder.declare(queue, self.queue_type);
        }
        builder
    }
}

/// Reads the table of a route, whose transport is `url`. What must be looked up is checked later.
pub(super) fn read(route: &mut Section<'_, '_>, url: Option<&str>) -> Option<RabbitmqConfig> {
    const KINDS: &[(&str, QueueKind)] = &[("quorum", QueueKind::Quorum), ("classic", QueueKind::Classic)];

    let Some(url) = url.filter(|url| url.starts_with("amqp:") || url.starts_with("amqps:")) else {
        if route.section("rabbitmq").is_some() {
            route.object("rabbitmq", "is for a transport that begins with `amqp:` or `amqps:`; this route has another");
        }
        return None;
    };
    let mut section = route.section_or_empty("rabbitmq");
    let files = (section.text("certificate_file"), section.text("key_file"));
    let rabbitmq = RabbitmqConfig {
        exchange: section.text("exchange"),
        routing_key: section.text("routing_key"),
        source: section.text_or_default("source"),
        timeout: section.duration_or_default("timeout"),
        payload_max: section.size_or_default("payload_max"),
        declare: section.text("declare"),
        queue_type: section.word_or_default("queue_type", KINDS),
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
    if rabbitmq.user.is_some() != section.has("password") {
        section.object("user", "`user` and `password` belong together; give both or none");
    }
    section.close();
    // Without the password, which is looked up later; the rest is the publisher's to judge.
    if let Err(error) = rabbitmq.access(url).and_then(|access| rabbitmq.builder(access).build()) {
        route.object("transport", error.to_string());
    }
    Some(rabbitmq)
}
