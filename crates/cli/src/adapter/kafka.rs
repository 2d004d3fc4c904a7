//! `kafka://host:port`: Apache Kafka, as `[route.kafka]` says, if this program was built with the feature `kafka`.

use std::sync::Arc;

use postrider::{Error, Result, core::transport::Publisher};

use crate::{config::KafkaConfig, registry::Destination};

/// Looks the secrets up and sets the publisher up. Nothing is connected to.
pub(crate) fn open(destination: &Destination<'_>) -> Result<Arc<dyn Publisher>> {
    let kafka = destination.kafka.ok_or_else(|| Error::invalid("the settings of a route to Kafka are missing"))?;
    publisher(kafka, destination.url)
}

#[cfg(not(feature = "kafka"))]
fn publisher(_: &KafkaConfig, _: &str) -> Result<Arc<dyn Publisher>> {
    Err(without_client())
}

/// Refuses: a route that cannot be served is told before anything is started.
#[cfg(not(feature = "kafka"))]
pub(crate) fn check(_: &KafkaConfig, _: &str) -> Result<()> {
    Err(without_client())
}

/// What a program says that was built without the client.
#[cfg(any(test, not(feature = "kafka")))]
fn without_client() -> Error {
    Error::invalid(
        "a route to Kafka needs a program that was built with the feature `kafka`: `cargo build --release -p postrider-cli \
         --features kafka`",
    )
}

#[cfg(feature = "kafka")]
pub(crate) use with_client::{check, publisher};

#[cfg(feature = "kafka")]
mod with_client {
    use postrider::kafka::{Access, Builder, Compression, KafkaPublisher, Mechanism};

    use super::*;
    use crate::config::kafka;

    pub(crate) fn publisher(config: &KafkaConfig, url: &str) -> Result<Arc<dyn Publisher>> {
        let mut access = access(config, url)?;
        if let Some((user, password)) = config.user.as_deref().zip(config.password.as_ref()) {
            access = access.password(mechanism(config.mechanism), user, &password.get()?);
        }
        for (name, place) in &config.properties {
            access = access.property(name, &place.get()?);
        }
        Ok(Arc::new(builder(config, access).build()?))
    }

    /// Whether the settings can be right, as far as that shows without secrets and without connecting to anything.
    pub(crate) fn check(config: &KafkaConfig, url: &str) -> Result<()> {
        builder(config, access(config, url)?).build().map(drop)
    }

    fn access(config: &KafkaConfig, url: &str) -> Result<Access> {
        let mut access = Access::new(url)?;
        if config.tls {
            access = access.tls();
        }
        if let Some(path) = &config.ca_file {
            access = access.ca_file(path);
        }
        if let Some((certificate, key)) = &config.certificate {
            access = access.client_certificate(certificate, key);
        }
        Ok(access)
    }

    fn builder(config: &KafkaConfig, access: Access) -> Builder {
        let mut builder = KafkaPublisher::builder(access)
            .source(&config.source)
            .timeout(config.timeout)
            .linger(config.linger)
            .message_bytes_max(config.message_max)
            .compression(compression(config.compression));
        if let Some(topic) = &config.topic {
            builder = builder.topic(topic);
        }
        if let Some(prefix) = &config.prefix {
            builder = builder.prefix(prefix);
        }
        if let Some(partitions) = config.partitions {
            builder = builder.declare(partitions, config.replicas);
        }
        if let Some(id) = &config.transactional_id {
            builder = builder.transactions(id);
        }
        builder
    }

    fn mechanism(of: kafka::Mechanism) -> Mechanism {
        match of {
            kafka::Mechanism::Plain => Mechanism::Plain,
            kafka::Mechanism::ScramSha256 => Mechanism::ScramSha256,
            kafka::Mechanism::ScramSha512 => Mechanism::ScramSha512,
        }
    }

    fn compression(of: kafka::Compression) -> Compression {
        match of {
            kafka::Compression::None => Compression::None,
            kafka::Compression::Gzip => Compression::Gzip,
            kafka::Compression::Snappy => Compression::Snappy,
            kafka::Compression::Lz4 => Compression::Lz4,
            kafka::Compression::Zstd => Compression::Zstd,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tests are run with every feature, so what others see is asked for here.
    #[test]
    fn a_program_without_the_client_names_the_feature_and_how_it_is_had() {
        let told = without_client().to_string();
        assert!(told.contains("the feature `kafka`") && told.contains("-p postrider-cli --features kafka`"), "{told}");
    }
}
