//! The way to the collector: OTLP over HTTP, in batches, from a thread of its own. What cannot be sent is dropped and said
//! in the log; headers, time limits and the size of batches follow the `OTEL_…` variables of the specification.

use std::time::Duration;

use opentelemetry::{InstrumentationScope, KeyValue, trace::TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{Sampler, SdkTracer, SdkTracerProvider},
};
use tracing::warn;

use crate::{
    config::TelemetryConfig,
    exit::{Code, Failure, Outcome},
};

/// Where a collector takes traces.
const TRACES_PATH: &str = "/v1/traces";

/// Links of one span; a larger batch says how many it has left out.
const LINKS_MAX: u32 = 1_024;

/// How long the end of the process waits for the collector.
const STOP_WITHIN: Duration = Duration::from_secs(3);

pub(super) struct Exporting {
    provider: SdkTracerProvider,
}

impl Exporting {
    /// `None` without an endpoint.
    pub(super) fn start(config: &TelemetryConfig) -> Outcome<Option<Self>> {
        let Some(endpoint) = &config.otlp_endpoint else { return Ok(None) };
        let exporter =
            SpanExporter::builder().with_http().with_endpoint(format!("{endpoint}{TRACES_PATH}")).build().map_err(
                |error| Failure::because(Code::Usage, format!("traces cannot be sent to {endpoint}"), &error),
            )?;
        let resource = Resource::builder()
            .with_service_name(config.service_name.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource)
            // Whoever created the messages has decided; see `links`.
            .with_sampler(Sampler::AlwaysOn)
            .with_max_links_per_span(LINKS_MAX)
            .build();
        Ok(Some(Self { provider }))
    }

    pub(super) fn tracer(&self) -> SdkTracer {
        let scope = InstrumentationScope::builder("postrider").with_version(env!("CARGO_PKG_VERSION")).build();
        self.provider.tracer_with_scope(scope)
    }

    pub(super) fn stop(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(STOP_WITHIN) {
            warn!(%error, "the last traces could not be sent");
        }
    }
}
