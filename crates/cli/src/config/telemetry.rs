//! `[telemetry]`: where traces go.

use super::{
    reader::Section,
    shapes::{text, written},
};

/// Where to send traces, and under which name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TelemetryConfig {
    pub(crate) otlp_endpoint: Option<String>,
    pub(crate) service_name: String,
}

pub(super) fn read(top: &mut Section<'_, '_>) -> TelemetryConfig {
    let mut section = top.section_or_empty("telemetry");
    let otlp_endpoint = section.get("otlp_endpoint", written(endpoint));
    if otlp_endpoint.is_some() && !cfg!(feature = "otlp") {
        section.object("otlp_endpoint", "needs a `postrider` that was built with the feature `otlp`; this one was not");
    }
    let service_name = section.value("service_name", text);
    section.close();
    TelemetryConfig { otlp_endpoint, service_name }
}

/// A password in it would be printed by whoever shows the configuration.
fn endpoint(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    match rest {
        Some(rest) if rest.contains('@') => {
            Err("must not hold a password; give headers with `OTEL_EXPORTER_OTLP_HEADERS`".to_owned())
        }
        Some(rest) if !rest.is_empty() => Ok(text.trim_end_matches('/').to_owned()),
        _ => Err("must be the URL of a collector, such as \"http://127.0.0.1:4318\"".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_without_a_password() {
        assert_eq!(endpoint("http://127.0.0.1:4318/"), Ok("http://127.0.0.1:4318".to_owned()));
        assert_eq!(endpoint("https://collector.internal"), Ok("https://collector.internal".to_owned()));
        for (wrong, word) in [("127.0.0.1:4318", "URL"), ("http://", "URL"), ("http://u:p@host", "password")] {
            assert!(endpoint(wrong).is_err_and(|what| what.contains(word)), "{wrong}");
        }
    }
}
