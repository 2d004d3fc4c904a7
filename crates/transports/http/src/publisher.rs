//! The publisher: one request per message, and what its answer means.
//!
//! Whether a failure came before or after the request went out decides between `Unavailable` and `Unknown`, so the steps
//! are kept apart: a connection first, then the request on it. A connection that waited in the pool may have been closed by
//! the other side; if nothing of the request was sent on it, the next one is tried.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming,
    header::{HOST, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT},
};
use postrider_core::{
    BoxFuture, Result,
    capability::PublisherCapabilities,
    headers::{TRACEPARENT, TRACESTATE},
    log::{Record, RecordRef},
    parked::Cause,
    trace::TraceContext,
    transport::{Outcome, Publisher},
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    config::Builder,
    connect::Connector,
    error, excerpt,
    mapping::{self, Mode},
    pool::{Connection, Pool},
    secret::Secret,
    webhook,
};

/// Most bytes of an answer's body that are read.
const RESPONSE_BODY_BYTES_MAX: usize = 16 << 10;
/// How long an answer's body may take. It decides nothing; read to its end, the connection can be used again.
const RESPONSE_BODY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait before trying again when all requests were busy for half the time limit: our own limit, and so short that
/// nobody takes it for a wish of the receiver.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// Who we say we are.
const AGENT: &str = concat!("postrider/", env!("CARGO_PKG_VERSION"));

/// What `build` has checked.
pub(crate) struct Settings {
    pub(crate) shown: String,
    pub(crate) connector: Connector,
    pub(crate) secrets: Vec<Secret>,
    pub(crate) source: String,
    pub(crate) mode: Mode,
    pub(crate) concurrency: u32,
    pub(crate) timeout: Duration,
    pub(crate) payload_bytes_max: usize,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// Values that must not appear in a cause.
    pub(crate) known: Vec<String>,
}

/// Posts messages to one endpoint.
pub struct HttpPublisher {
    settings: Settings,
    pool: Pool,
    turns: Semaphore,
    gone: AtomicBool,
}

impl HttpPublisher {
    /// Sets up a publisher for this URL.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    pub(crate) fn new(settings: Settings) -> Self {
        let turns = Semaphore::new(settings.concurrency as usize);
        Self { settings, pool: Pool::default(), turns, gone: AtomicBool::new(false) }
    }

    /// Whether the endpoint has answered 410 and nothing is sent to it.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Takes up an endpoint again that has answered 410. What waits goes out with the route's next probe.
    pub fn reopen(&self) {
        self.gone.store(false, Ordering::Release);
    }

    /// Sends one message. Dropping the future closes its connection; the message may have arrived.
    async fn send(&self, record: &Record) -> Outcome {
        let settings = &self.settings;
        let bytes = record.envelope.payload.len();
        if bytes > settings.payload_bytes_max {
            let detail = format!("the payload has {bytes} bytes; payload_bytes_max is {}", settings.payload_bytes_max);
            return Outcome::Rejected(Cause::new("too-large", detail));
        }
        let content = match mapping::write(settings.mode, record, &settings.source) {
            Ok(content) => content,
            Err(error) => return Outcome::Rejected(Cause::new("bad-headers", error.chain())),
        };
        let Ok(Ok(_turn)) = timeout(settings.timeout / 2, self.turns.acquire()).await else {
            return Outcome::Throttled(BUSY_PAUSE);
        };
        // Asked once it is this message's turn: a 410 may have come while it waited.
        if self.is_gone() {
            return error::kept_back(&settings.shown);
        }
        let Some(request) = self.request(record, content) else {
            return Outcome::Rejected(Cause::new("bad-headers", "its attributes cannot stand in HTTP headers"));
        };
        self.exchange(request, &record.envelope.payload).await
    }

    /// The request, signed now. `None` if a header cannot be written, which the mapping rules out.
    fn request(&self, record: &Record, content: mapping::Content) -> Option<Request<Full<Bytes>>> {
        let settings = &self.settings;
        let target = &settings.connector.target;
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(&target.authority).ok()?);
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        let trace = trace(record);
        let mut pairs = content.headers;
        pairs.extend(trace.iter().map(|trace| (TRACEPARENT.to_owned(), trace.traceparent().to_owned())));
        let state = trace.as_ref().and_then(TraceContext::tracestate);
        pairs.extend(state.map(|state| (TRACESTATE.to_owned(), state.to_owned())));
        if !settings.secrets.is_empty() {
            let id = record.envelope.id.to_string();
            let signed = webhook::sign(&settings.secrets, &id, SystemTime::now(), &content.body);
            pairs.extend(signed.map(|(name, value)| (name.to_owned(), value)));
        }
        for (name, value) in pairs {
            headers.append(HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(&value).ok()?);
        }
        headers.extend(settings.headers.iter().cloned());
        let mut request =
            Request::builder().method(Method::POST).uri(&target.path_and_query).body(Full::new(content.body)).ok()?;
        *request.headers_mut() = headers;
        Some(request)
    }

    /// Sends a request and waits for the head of its answer, within the time limit.
    async fn exchange(&self, mut request: Request<Full<Bytes>>, payload: &[u8]) -> Outcome {
        let deadline = Instant::now() + self.settings.timeout;
        let shown = &self.settings.shown;
        // Ends: every round takes a connection out of the pool, and a fresh one ends it.
        loop {
            let pooled = self.pool.take();
            let fresh = pooled.is_none();
            let connection = match pooled {
                Some(connection) => Ok(connection),
                None => self.settings.connector.connect(deadline).await,
            };
            let mut connection = match connection {
                Ok(connection) => connection,
                Err(cause) => return Outcome::Unavailable(cause),
            };
            let answer = timeout_at(deadline, connection.sender.try_send_request(request)).await;
            match answer {
                Ok(Ok(response)) => return self.conclude(connection, response, payload).await,
                Err(_) => {
                    let detail = format!("{shown} has not answered within {:?}", self.settings.timeout);
                    return Outcome::Unknown(Cause::new("timeout", detail));
                }
                Ok(Err(mut failed)) => match failed.take_message() {
                    Some(unsent) if !fresh => request = unsent,
                    Some(_) => {
                        let detail = format!("{shown} closed the connection before the request: {}", failed.error());
                        return Outcome::Unavailable(Cause::new("connect", detail));
                    }
                    None => return error::lost(failed.error(), shown),
                },
            }
        }
    }

    /// The head of the answer decides. The rest is read for the sake of the connection, and for an excerpt.
    async fn conclude(&self, connection: Connection, response: Response<Incoming>, payload: &[u8]) -> Outcome {
        let status = response.status();
        if error::is_gone(status) {
            self.gone.store(true, Ordering::Release);
        }
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let pause = after.and_then(|value| error::retry_after(value, SystemTime::now()));
        let (body, whole) = read_body(response.into_body()).await;
        if whole && status != StatusCode::SWITCHING_PROTOCOLS && !self.is_gone() {
            self.pool.give_back(connection);
        }
        let excerpt = match error::wants_excerpt(status) {
            true => excerpt::scrub(&body, payload, &self.settings.known),
            false => String::new(),
        };
        error::outcome(status, pause, &excerpt, &self.settings.shown)
    }
}

/// What a body begins with, and whether that is all of it. A body that is too long, too slow or broken is left where it is.
async fn read_body(mut body: Incoming) -> (Bytes, bool) {
    let deadline = Instant::now() + RESPONSE_BODY_TIMEOUT;
    let mut read = BytesMut::new();
    while read.len() < RESPONSE_BODY_BYTES_MAX {
        match timeout_at(deadline, body.frame()).await {
            Ok(None) => return (read.freeze(), true),
            Ok(Some(Ok(frame))) => {
                let data = frame.into_data().unwrap_or_default();
                let room = RESPONSE_BODY_BYTES_MAX - read.len();
                read.extend_from_slice(&data[..data.len().min(room)]);
            }
            Ok(Some(Err(_))) | Err(_) => break,
        }
    }
    (read.freeze(), false)
}

/// The trace context of a record, if it has a good one.
fn trace(record: &Record) -> Option<TraceContext> {
    let pairs = record.envelope.headers.decode().ok()?;
    let value = |name: &str| pairs.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
    let visible = |text: &&str| text.bytes().all(|b| (b' '..=b'~').contains(&b));
    TraceContext::parse(value(TRACEPARENT)?, value(TRACESTATE).filter(visible)).ok()
}

impl Publisher for HttpPublisher {
    /// A request carries one message, so a batch has one: a slow answer delays nothing but its own key.
    fn capabilities(&self) -> PublisherCapabilities {
        PublisherCapabilities {
            name: "http",
            run_max: 1,
            message_bytes_max: Some(self.settings.payload_bytes_max),
            batch_max: Some(1),
            batches_max: Some(self.settings.concurrency),
        }
    }

    /// All messages of a batch at the same time, as far as the concurrency allows.
    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move { join_all(batch.iter().map(|record| self.send(record))).await })
    }

    fn reopen(&self) {
        Self::reopen(self);
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.pool.clear();
        Box::pin(std::future::ready(Ok(())))
    }
}

impl fmt::Debug for HttpPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpPublisher").field("target", &self.settings.shown).field("gone", &self.is_gone()).finish()
    }
}
