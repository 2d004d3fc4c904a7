//! How a publisher is set up: required things are arguments, optional ones are methods, and `build` says all that is wrong
//! at once.

use std::{path::Path, sync::Arc, time::Duration};

use hyper::header::{HeaderName, HeaderValue};
use postrider_core::{Error, Result};
use tokio_rustls::TlsConnector;

use crate::{
    connect::Connector,
    guard::Guard,
    mapping::Mode,
    publisher::{HttpPublisher, Settings},
    resolve::{Resolve, System},
    secret::Secret,
    target::Target,
    tls::{self, Roots},
};

/// Most requests at the same time that can be asked for.
const CONCURRENCY_MAX: u32 = 64;
/// Largest payload that can be asked for.
const PAYLOAD_BYTES_MAX: usize = 16 << 20;
/// Shortest and longest time limit that can be asked for.
const TIMEOUTS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(300));
/// Most headers that can be added, and most bytes of one's value.
const HEADERS_MAX: (usize, usize) = (32, 4096);

/// Headers that the publisher or HTTP itself sets; also all that begin with one of [`OURS`].
const TAKEN: [&str; 15] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "keep-alive",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];
const OURS: [&str; 4] = ["ce-", "webhook-", "postrider-", "proxy-"];

/// Sets up an [`HttpPublisher`].
#[must_use]
#[derive(Clone)]
pub struct Builder {
    url: String,
    secrets: Vec<Secret>,
    unsigned: bool,
    source: String,
    mode: Mode,
    concurrency: u32,
    timeout: Duration,
    payload_bytes_max: usize,
    guard: Guard,
    headers: Vec<(String, String)>,
    roots: Roots,
    ca_problem: Option<String>,
    resolver: Arc<dyn Resolve>,
}

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            secrets: Vec::new(),
            unsigned: false,
            source: "postrider".to_owned(),
            mode: Mode::default(),
            concurrency: 4,
            timeout: Duration::from_secs(15),
            payload_bytes_max: 64 << 10,
            guard: Guard::default(),
            headers: Vec::new(),
            roots: Roots::default(),
            ca_problem: None,
            resolver: Arc::new(System),
        }
    }

    /// Signs with this secret. Said several times it signs with each: during a rotation the receiver may check with the
    /// old one or with the new one.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secrets.push(secret);
        self
    }

    /// Sends without a signature. The receiver then cannot know who speaks. Not beside [`Self::secret`].
    pub fn unsigned(mut self) -> Self {
        self.unsigned = true;
        self
    }

    /// The attribute `source` of every event: who speaks, as a URI or a part of one. Default `postrider`.
    pub fn source(mut self, source: &str) -> Self {
        source.clone_into(&mut self.source);
        self
    }

    /// Where the event's attributes stand. Default in `ce-` headers.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Requests at the same time, over all lanes of this process; 1 to 64. Too low: slow. Too high: the receiver is
    /// flooded. Default 4.
    pub fn concurrency(mut self, requests: u32) -> Self {
        self.concurrency = requests;
        self
    }

    /// How long a request may take, from connecting to the head of the answer; 100 ms to 5 minutes. The route's
    /// `publish_timeout` must be at least twice as long, because a request may wait for its turn. Too low:
    /// the receiver has done its work and gets the message again. Default 15 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The largest payload that is sent; up to 16 MiB. A larger one is rejected with the cause `too-large`. Default
    /// 64 KiB, because receivers expect webhooks to be small.
    pub fn payload_bytes_max(mut self, bytes: usize) -> Self {
        self.payload_bytes_max = bytes;
        self
    }

    /// What may be connected to. Default: `https`, port 443, public addresses.
    pub fn guard(mut self, guard: Guard) -> Self {
        self.guard = guard;
        self
    }

    /// Adds a header to every request, for example `authorization`. Its value is treated as a secret.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Trusts the certificates in a PEM file too.
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Self {
        match tls::read_pem(path.as_ref()) {
            Ok(pem) => self.roots.pem.push(pem),
            Err(error) => self.ca_problem = Some(error.chain()),
        }
        self
    }

    /// Trusts these PEM certificates too.
    pub fn ca_pem(mut self, pem: &str) -> Self {
        self.roots.pem.push(pem.as_bytes().to_vec());
        self
    }

    /// Whether the platform's root certificates are trusted. Default yes; without them only those that were named are.
    pub fn system_roots(mut self, on: bool) -> Self {
        self.roots.system = on;
        self
    }

    /// Resolves names with this instead of the operating system. The guard applies to its answers all the same.
    pub fn resolver(mut self, resolver: Arc<dyn Resolve>) -> Self {
        self.resolver = resolver;
        self
    }

    /// Checks everything. Nothing is connected to.
    ///
    /// # Errors
    /// If something is wrong; the error names all of it, and repeats neither URL nor secrets.
    pub fn build(self) -> Result<HttpPublisher> {
        let mut problems: Vec<String> = self.ca_problem.iter().cloned().collect();
        match (self.secrets.is_empty(), self.unsigned) {
            (true, false) => problems.push("no secret is given; add one, or say that it is `unsigned`".to_owned()),
            (false, true) => problems.push("it is `unsigned` and has a secret; only one of them can be".to_owned()),
            _ => {}
        }
        if self.source.is_empty() || !self.source.bytes().all(|b| (b'!'..=b'~').contains(&b)) {
            problems.push("`source` is a URI or a part of one: visible ASCII, without spaces, not empty".to_owned());
        }
        if !(1..=CONCURRENCY_MAX).contains(&self.concurrency) {
            problems.push(format!("`concurrency` is {}; it lies between 1 and {CONCURRENCY_MAX}", self.concurrency));
        }
        if self.timeout < TIMEOUTS.0 || self.timeout > TIMEOUTS.1 {
            problems.push(format!(
                "`timeout` is {:?}; it lies between {:?} and {:?}",
                self.timeout, TIMEOUTS.0, TIMEOUTS.1
            ));
        }
        if self.payload_bytes_max > PAYLOAD_BYTES_MAX {
            problems.push(format!("`payload_bytes_max` is more than {PAYLOAD_BYTES_MAX}"));
        }
        let headers = check_headers(&self.headers, &mut problems);
        let target = Target::parse(&self.url, &self.guard).map_err(|wrong| problems.extend(wrong)).ok();
        let tls = target.as_ref().filter(|target| target.tls).and_then(|_| trust(&self.roots, &mut problems));
        let Some(target) = target.filter(|_| problems.is_empty()) else {
            return Err(Error::invalid(format!("the webhook cannot be set up: {}", problems.join("; "))));
        };
        let values = self.headers.iter().flat_map(|(_, value)| {
            // `Bearer x` may come back as `x`.
            std::iter::once(value.clone()).chain(value.split(' ').map(str::to_owned))
        });
        let mut known: Vec<String> = values.chain(target.echoes()).collect();
        // A part would leave the rest of the whole behind.
        known.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Ok(HttpPublisher::new(Settings {
            shown: target.to_string(),
            connector: Connector { target, guard: self.guard, resolver: self.resolver, tls },
            secrets: self.secrets,
            source: self.source,
            mode: self.mode,
            concurrency: self.concurrency,
            timeout: self.timeout,
            payload_bytes_max: self.payload_bytes_max,
            known,
            headers,
        }))
    }
}

fn trust(roots: &Roots, problems: &mut Vec<String>) -> Option<TlsConnector> {
    tls::connector(roots).map_err(|error| problems.push(error.chain())).ok()
}

/// Names and values that can go into a request. A value that cannot is not repeated.
fn check_headers(pairs: &[(String, String)], problems: &mut Vec<String>) -> Vec<(HeaderName, HeaderValue)> {
    let mut headers: Vec<(HeaderName, HeaderValue)> = Vec::new();
    if pairs.len() > HEADERS_MAX.0 {
        problems.push(format!("there are {} headers; at most {} can be added", pairs.len(), HEADERS_MAX.0));
    }
    for (name, value) in pairs {
        let shown: String = name.escape_debug().take(60).collect();
        let lower = name.to_ascii_lowercase();
        if TAKEN.contains(&lower.as_str()) || OURS.iter().any(|prefix| lower.starts_with(prefix)) {
            problems.push(format!("the header `{shown}` is set by the publisher and cannot be added"));
            continue;
        }
        let value = HeaderValue::from_str(value).ok().filter(|value| value.len() <= HEADERS_MAX.1);
        match (HeaderName::from_bytes(lower.as_bytes()), value) {
            (Ok(name), _) if headers.iter().any(|(taken, _)| *taken == name) => {
                problems.push(format!("the header `{shown}` is added twice"));
            }
            (Ok(name), Some(mut value)) => {
                value.set_sensitive(true);
                headers.push((name, value));
            }
            (Ok(_), None) => {
                let max = HEADERS_MAX.1;
                problems.push(format!("the value of the header `{shown}` has control characters or over {max} bytes"));
            }
            (Err(_), _) => problems.push(format!("`{shown}` is not a name that a header can have")),
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

    fn refused(change: impl FnOnce(Builder) -> Builder) -> String {
        let builder = Builder::new("https://hooks.example.com/canary").secret(Secret::parse(SECRET).unwrap());
        let told = change(builder).build().unwrap_err().to_string();
        assert!(!told.contains("canary") && !told.contains("C2FV"), "{told}");
        told
    }

    #[test]
    fn each_setting_has_its_bounds() {
        assert!(refused(|b| b.concurrency(0)).contains("`concurrency` is 0; it lies between 1 and 64"));
        assert!(refused(|b| b.concurrency(65)).contains("`concurrency`"));
        assert!(refused(|b| b.timeout(Duration::ZERO)).contains("`timeout`"));
        assert!(refused(|b| b.timeout(Duration::from_secs(301))).contains("`timeout`"));
        assert!(refused(|b| b.payload_bytes_max(usize::MAX)).contains("`payload_bytes_max`"));
        assert!(refused(|b| b.source("")).contains("`source`"));
        assert!(refused(|b| b.source("a b")).contains("`source`"));
        assert!(refused(Builder::unsigned).contains("unsigned"));
        assert!(refused(|b| b.ca_file("no/such/file.pem")).contains("no/such/file.pem"));
        assert!(refused(|b| b.ca_pem("nothing")).contains("no certificate"));
        assert!(refused(|b| b.system_roots(false)).contains("ca_file"));
        let told = Builder::new("https://hooks.example.com/").build().unwrap_err().to_string();
        assert!(told.contains("no secret"), "{told}");
    }

    #[test]
    fn headers_that_would_break_the_request_are_refused() {
        for name in ["Host", "content-length", "ce-id", "Webhook-Signature", "postrider-x", "cookie", "a b", "", "a:b"]
        {
            assert!(refused(|b| b.header(name, "canary")).contains("header"), "{name}");
        }
        for value in ["canary\r\nx: y", "canary\0", "canary\u{7f}"] {
            assert!(refused(|b| b.header("x-team", value)).contains("x-team"), "{value:?}");
        }
        assert!(refused(|b| b.header("x-team", &"canary".repeat(1000))).contains("4096"));
        assert!(refused(|b| b.header("x-team", "canary").header("X-Team", "canary")).contains("twice"));
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let told = refused(|b| b.concurrency(0).source("").header("host", "canary"));
        for word in ["concurrency", "source", "host"] {
            assert!(told.contains(word), "{told}");
        }
    }
}
