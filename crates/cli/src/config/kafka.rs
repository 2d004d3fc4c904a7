//! `[route.kafka]`: how a route publishes to Apache Kafka. Everything has a default.
//!
//! It is read whether or not this program can speak to Kafka (feature `kafka`); one that cannot says so.

use std::{path::PathBuf, time::Duration};

use super::{reader::Section, secret::Place};
use crate::adapter;

/// How a login is shown to the brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mechanism {
    Plain,
    ScramSha256,
    ScramSha512,
}

/// How what is sent is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

/// What the file says about a route to Kafka.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(not(feature = "kafka"), allow(dead_code, reason = "read, and of use only to those who can speak to Kafka"))]
pub(crate) struct KafkaConfig {
    pub(crate) topic: Option<String>,
    pub(crate) prefix: Option<String>,
    pub(crate) source: String,
    pub(crate) timeout: Duration,
    pub(crate) linger: Duration,
    pub(crate) message_max: usize,
    pub(crate) compression: Compression,
    pub(crate) partitions: Option<u32>,
    pub(crate) replicas: Option<u32>,
    pub(crate) transactional_id: Option<String>,
    pub(crate) tls: bool,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    pub(crate) mechanism: Mechanism,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Place>,
    pub(crate) properties: Vec<(String, Place)>,
}

/// Reads the table of a route, whose transport is `url`. What must be looked up is checked later.
pub(super) fn read(route: &mut Section<'_, '_>, url: Option<&str>) -> Option<KafkaConfig> {
    const MECHANISMS: &[(&str, Mechanism)] = &[
        ("plain", Mechanism::Plain),
        ("scram-sha-256", Mechanism::ScramSha256),
        ("scram-sha-512", Mechanism::ScramSha512),
    ];
    const COMPRESSIONS: &[(&str, Compression)] = &[
        ("none", Compression::None),
        ("gzip", Compression::Gzip),
        ("snappy", Compression::Snappy),
        ("lz4", Compression::Lz4),
        ("zstd", Compression::Zstd),
    ];

    let Some(url) = url.filter(|url| url.starts_with("kafka:")) else {
        if route.section("kafka").is_some() {
            route.object("kafka", "is for a transport that begins with `kafka:`; this route has another");
        }
        return None;
    };
    let mut section = route.section_or_empty("kafka");
    let files = (section.text("certificate_file"), section.text("key_file"));
    let kafka = KafkaConfig {
        topic: section.text("topic"),
        prefix: section.text("prefix"),
        source: section.text_or_default("source"),
        timeout: section.duration_or_default("timeout"),
        linger: section.duration_or_default("linger"),
        message_max: section.size_or_default("message_max"),
        compression: section.word_or_default("compression", COMPRESSIONS),
        partitions: section.number("partitions"),
        replicas: section.number("replicas"),
        transactional_id: section.text("transactional_id"),
        tls: section.boolean_or_default("tls"),
        ca_file: section.text("ca_file").map(PathBuf::from),
        certificate: match &files {
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            _ => None,
        },
        mechanism: section.word_or_default("mechanism", MECHANISMS),
        user: section.text("user"),
        password: section.secret("password"),
        properties: section.get("properties", Place::read_table).unwrap_or_default(),
    };
    let places: Vec<Place> = kafka.properties.iter().map(|(_, place)| place.clone()).collect();
    section.check_later("properties", &places, |_| Ok(()));
    if files.0.is_some() != files.1.is_some() {
        section.object("certificate_file", "`certificate_file` and `key_file` belong together; give both or none");
    }
    if kafka.user.is_some() != section.has("password") {
        section.object("user", "`user` and `password` belong together; give both or none");
    }
    if kafka.replicas.is_some() && kafka.partitions.is_none() {
        section.object("replicas", "is for topics that are made; say with `partitions` that they are");
    }
    if !kafka.tls && (kafka.ca_file.is_some() || kafka.certificate.is_some()) {
        section.object("tls", "is false beside files with certificates, which are for TLS");
    }
    section.close();
    // Without secrets, which are looked up later; the rest is the publisher's to judge.
    if let Err(error) = adapter::kafka::check(&kafka, url) {
        route.object("transport", error.to_string());
    }
    Some(kafka)
}
