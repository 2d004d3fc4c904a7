//! `[route.http]`: how a route posts webhooks.

use std::{path::PathBuf, time::Duration};

use postrider::http::{Builder, Guard, HttpPublisher, Mode, Network, Secret};
use toml::de::DeValue;

use super::{
    reader::Section,
    secret::Place,
    shapes::{numbers, texts},
};

/// What the file says about an endpoint.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HttpConfig {
    /// The secrets to sign with; more than one during a rotation.
    pub(crate) secrets: Vec<Place>,
    unsigned: bool,
    mode: Mode,
    source: String,
    concurrency: u32,
    pub(crate) timeout: Duration,
    payload_max: usize,
    allow_http: bool,
    allow_private: bool,
    allow: Vec<Network>,
    ports: Vec<u16>,
    ca_file: Option<PathBuf>,
    /// Headers of every request; their values are secrets.
    pub(crate) headers: Vec<(String, Place)>,
}

impl HttpConfig {
    /// The publisher's settings, without what must be looked up.
    pub(crate) fn builder(&self, url: &str) -> Builder {
        let mut guard = Guard::default().allow_http(self.allow_http).allow_private(self.allow_private);
        guard = self.allow.iter().fold(guard, |guard, network| guard.allow(*network));
        guard = self.ports.iter().fold(guard, |guard, port| guard.allow_port(*port));
        let mut builder = HttpPublisher::builder(url)
            .mode(self.mode)
            .guard(guard)
            .source(&self.source)
            .concurrency(self.concurrency)
            .timeout(self.timeout)
            .payload_bytes_max(self.payload_max);
        if self.unsigned {
            builder = builder.unsigned();
        }
        if let Some(path) = &self.ca_file {
            builder = builder.ca_file(path);
        }
        builder
    }

    /// How long a publish may take if the route does not say: room for the turn and for the request.
    pub(crate) fn publish_timeout(&self) -> Duration {
        (self.timeout * 2).max(Duration::from_secs(30))
    }
}

/// Reads the table of a route, whose transport is `url`. What must be looked up is checked later.
pub(super) fn read(route: &mut Section<'_, '_>, url: Option<&str>) -> Option<HttpConfig> {
    const MODES: &[(&str, Mode)] = &[("binary", Mode::Binary), ("structured", Mode::Structured)];
    let section = route.section("http");
    let url = url.filter(|url| url.starts_with("https:") || url.starts_with("http:"));
    let (url, mut section) = match (url, section) {
        (Some(url), Some(section)) => (url, section),
        (Some(_), None) => {
            route.object(
                "http",
                "missing: a webhook is signed; say where its secret is, such as `[route.http]` with \
                 `secret = { env = \"WEBHOOK_SECRET\" }`",
            );
            return None;
        }
        (None, Some(_)) => {
            route.object("http", "is for a transport that begins with `https:`; this route has another");
            return None;
        }
        (None, None) => return None,
    };
    let (port_least, port_most) = section.range("ports");
    let http = HttpConfig {
        secrets: section
            .secrets("secret", secrets, |secret| Secret::parse(secret).map(|_| ()).map_err(|error| error.to_string())),
        unsigned: section.boolean_or_default("unsigned"),
        mode: section.word_or_default("mode", MODES),
        source: section.text_or_default("source"),
        concurrency: section.number_or_default("concurrency"),
        timeout: section.duration_or_default("timeout"),
        payload_max: section.size_or_default("payload_max"),
        allow_http: section.boolean_or_default("allow_http"),
        allow_private: section.boolean_or_default("allow_private"),
        allow: section.get("allow", networks).unwrap_or_default(),
        ports: section.get("ports", ports(port_least, port_most)).unwrap_or_default(),
        ca_file: section.text("ca_file").map(PathBuf::from),
        headers: section.get("headers", Place::read_table).unwrap_or_default(),
    };
    let places: Vec<Place> = http.headers.iter().map(|(_, place)| place.clone()).collect();
    section.check_later("headers", &places, |_| Ok(()));
    match (section.has("secret"), http.unsigned) {
        (false, false) => {
            section.object("secret", "missing; or write `unsigned = true`, and nobody can know who speaks");
        }
        (true, true) => section.object("unsigned", "is true beside a `secret`; only one of them can be"),
        _ => {}
    }
    // Without secrets and headers, which are looked up later; the rest is the publisher's to judge.
    let plain = HttpConfig { unsigned: true, secrets: Vec::new(), headers: Vec::new(), ..http.clone() };
    let names = http.headers.iter().fold(plain.builder(url), |builder, (name, _)| builder.header(name, "-"));
    if let Err(error) = names.build() {
        route.object("transport", error.to_string());
    }
    section.close();
    Some(http)
}

/// Secrets that stand in the file are checked with it.
fn secrets(value: &DeValue<'_>) -> Result<Vec<Place>, String> {
    let places = Place::read_some(value)?;
    if places.is_empty() {
        return Err("is empty; say where the secret is, or write `unsigned = true` instead".to_owned());
    }
    for place in &places {
        if let Place::Value(value) = place {
            Secret::parse(value).map_err(|error| error.to_string())?;
        }
    }
    Ok(places)
}

fn networks(value: &DeValue<'_>) -> Result<Vec<Network>, String> {
    texts(value)?.iter().map(|text| text.parse().map_err(|error: postrider::Error| error.to_string())).collect()
}

fn ports(least: u32, most: u32) -> impl Fn(&DeValue<'_>) -> Result<Vec<u16>, String> {
    move |value| {
        let numbers = numbers(least, most)(value)?;
        Ok(numbers.into_iter().filter_map(|port| u16::try_from(port).ok()).collect())
    }
}
