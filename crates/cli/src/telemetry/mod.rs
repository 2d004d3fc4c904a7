//! Traces of what is published, for an OpenTelemetry collector (feature `otlp`).
//!
//! A message carries the trace context of the request that enqueued it, in its headers. The destination gets that context
//! unchanged. Beside it, every publish is a span of its own, `send {destination}`, *linked* to the context of each message
//! in the batch: a batch has many creators, so it can be the child of none. Whether a span is recorded follows the
//! creators: it is, if one of them was sampled. Telemetry is never in the way: a collector that is down loses spans and
//! nothing else.

#[cfg(feature = "otlp")]
mod attributes;
#[cfg(feature = "otlp")]
mod export;
#[cfg(feature = "otlp")]
mod links;
#[cfg(feature = "otlp")]
mod publisher;

use std::sync::Arc;

use postrider::core::transport::Publisher;

use crate::{config::TelemetryConfig, exit::Outcome};

/// What the daemon tells a collector, if it tells anything.
pub(crate) struct Telemetry {
    #[cfg(feature = "otlp")]
    exporting: Option<export::Exporting>,
}

impl Telemetry {
    /// Not on the async runtime: the exporter has a thread with a blocking client of its own.
    #[cfg(feature = "otlp")]
    pub(crate) fn start(config: &TelemetryConfig) -> Outcome<Self> {
        Ok(Self { exporting: export::Exporting::start(config)? })
    }

    #[cfg(not(feature = "otlp"))]
    pub(crate) fn start(_config: &TelemetryConfig) -> Outcome<Self> {
        Ok(Self {})
    }

    /// The destination of a route, watched.
    pub(crate) fn watch(&self, route: &str, url: &str, publisher: Arc<dyn Publisher>) -> Arc<dyn Publisher> {
        #[cfg(feature = "otlp")]
        if let Some(exporting) = &self.exporting {
            return Arc::new(publisher::TracedPublisher::new(exporting.tracer(), route, url, publisher));
        }
        let (_, _) = (route, url);
        publisher
    }

    /// Sends what is left, for a moment at most. Not on the async runtime.
    pub(crate) fn stop(&self) {
        #[cfg(feature = "otlp")]
        if let Some(exporting) = &self.exporting {
            exporting.stop();
        }
    }
}
