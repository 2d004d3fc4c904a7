//! The outbox: the application's side. A message enters the caller's own transaction and commits with it, or not at all.
//!
//! The transaction is a type: [`Outbox::enqueue`] takes `&mut` of a transaction that
//! [`Enlist`]s with the outbox's store. A pool or a connection does not compile.
//!
//! ```compile_fail,E0277
//! # use postrider::{Outbox, Message, memory::{Memory, MemoryStore}};
//! # #[derive(serde::Serialize)] struct Ping;
//! # impl Message for Ping { const NAME: &'static str = "ping"; }
//! let mut store = MemoryStore::new();
//! let outbox = Outbox::new(Memory);
//! outbox.enqueue(&mut store, &Ping); // `MemoryStore` is not a transaction that the outbox of `Memory` can join
//! ```

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use postrider_core::{
    Result,
    enlist::{Batch, Enlist, EnlistShared},
    envelope::{Envelope, MessageId},
    headers::{self, Headers},
    key::OrderingKey,
    limits::Limits,
    message::Message,
    time::Timestamp,
    trace::TraceContext,
};

use crate::routing::{About, Router};

type TraceSource = Arc<dyn Fn(&Creation<'_>) -> Option<TraceContext> + Send + Sync>;

/// A message that is being made, as whoever traces it sees it.
#[cfg_attr(not(feature = "opentelemetry"), expect(dead_code, reason = "only a tracer looks at it"))]
pub(crate) struct Creation<'a> {
    pub(crate) id: MessageId,
    pub(crate) topic: &'a str,
    pub(crate) correlation: Option<&'a str>,
}

/// Where an application enqueues. Cheap to clone; holds no connection.
#[derive(Clone)]
pub struct Outbox<S> {
    store: S,
    limits: Limits,
    trace_source: Option<TraceSource>,
    router: Option<Arc<dyn Router>>,
}

impl<S> Outbox<S> {
    /// An outbox for a store's dialect, with the default [`Limits`].
    #[must_use]
    pub fn new(store: S) -> Self {
        Self { store, limits: Limits::default(), trace_source: None, router: None }
    }

    /// With other limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Says where the current trace context comes from. It is captured with every message that does not bring its own, so
    /// that publishing and handling can be linked to the request that enqueued.
    #[must_use]
    pub fn with_trace_source(self, source: impl Fn() -> Option<TraceContext> + Send + Sync + 'static) -> Self {
        self.with_context_of(move |_| source())
    }

    /// The same from a source that wants to know which message it is for.
    pub(crate) fn with_context_of(
        mut self,
        source: impl Fn(&Creation<'_>) -> Option<TraceContext> + Send + Sync + 'static,
    ) -> Self {
        self.trace_source = Some(Arc::new(source));
        self
    }

    /// Says under which topics, and with which keys, messages go that are enqueued by type: by [rules](crate::routing::Topics),
    /// or by a function. What a call says goes before it. Envelopes that were made by hand are left as they are.
    #[must_use]
    pub fn with_router(mut self, router: impl Router + 'static) -> Self {
        self.router = Some(Arc::new(router));
        self
    }

    /// Enqueues one message.
    ///
    /// Takes effect with the caller's commit. Take the lock that orders the key *before* you enqueue: transactions that
    /// really run at the same time have no order. A future that is dropped half-way may have written: roll back then.
    ///
    /// # Errors
    /// (In what is returned, or in the future that is.) [`Limit`](postrider_core::ErrorKind::Limit) or
    /// [`Invalid`](postrider_core::ErrorKind::Invalid) before anything is written, and whatever the database says.
    pub fn enqueue<'a, T: Enlist<S>, M: Message>(&'a self, tx: &'a mut T, message: &M) -> T::Appended<'a> {
        self.enqueue_with(tx, message, &Enqueue::default())
    }

    /// Enqueues one message with options.
    ///
    /// # Errors
    /// As [`Self::enqueue`].
    pub fn enqueue_with<'a, T: Enlist<S>, M: Message>(
        &'a self,
        tx: &'a mut T,
        message: &M,
        options: &Enqueue,
    ) -> T::Appended<'a> {
        let batch = self.seal(message, options).and_then(|envelope| self.limits.check(vec![envelope]));
        tx.append(&self.store, batch)
    }

    /// Enqueues one message while other statements of the same transaction are under way, where the client library can
    /// (tokio-postgres and deadpool can): together they are one round trip.
    ///
    /// ```text
    /// tokio::try_join!(transaction.execute(&insert, &[&order]), outbox.enqueue_shared(&transaction, &message))?;
    /// transaction.commit().await?;
    /// ```
    ///
    /// Statements run in the order in which their futures are first polled; `join!` and `try_join!` poll them in the order
    /// in which they are written. If one fails, the transaction is lost and must be rolled back, as with any failed
    /// statement; what was sent behind it is refused by the database.
    ///
    /// # Errors
    /// As [`Self::enqueue`].
    pub fn enqueue_shared<'a, T: EnlistShared<S>, M: Message>(&'a self, tx: &'a T, message: &M) -> T::Appended<'a> {
        let batch = self.seal(message, &Enqueue::default()).and_then(|envelope| self.limits.check(vec![envelope]));
        tx.append_shared(&self.store, batch)
    }

    /// Enqueues many messages, in as few statements as the client library can.
    ///
    /// # Errors
    /// As [`Self::enqueue`]; if one message is refused, none is written.
    pub fn enqueue_all<'a, T: Enlist<S>, M: Message>(&'a self, tx: &'a mut T, messages: &[M]) -> T::Appended<'a> {
        let sealed = messages.iter().map(|message| self.seal(message, &Enqueue::default())).collect::<Result<Vec<_>>>();
        tx.append(&self.store, sealed.and_then(|envelopes| self.limits.check(envelopes)))
    }

    /// Enqueues envelopes that were made by hand.
    ///
    /// # Errors
    /// As [`Self::enqueue`].
    pub fn enqueue_raw<'a, T: Enlist<S>>(&'a self, tx: &'a mut T, envelopes: Vec<Envelope>) -> T::Appended<'a> {
        tx.append(&self.store, self.limits.check(envelopes))
    }

    /// Encodes and checks messages now, to be appended later with [`Self::enqueue_prepared`]: for transactions whose body
    /// may run several times, so that every run appends the same ids.
    ///
    /// # Errors
    /// If a message cannot be encoded or breaks a limit.
    pub fn prepare<M: Message>(&self, messages: &[M], options: &Enqueue) -> Result<Batch> {
        let sealed = messages.iter().map(|message| self.seal(message, options)).collect::<Result<Vec<_>>>()?;
        self.limits.check(sealed)
    }

    /// Enqueues what [`Self::prepare`] made.
    ///
    /// # Errors
    /// Whatever the database says.
    pub fn enqueue_prepared<'a, T: Enlist<S>>(&'a self, tx: &'a mut T, prepared: &Batch) -> T::Appended<'a> {
        tx.append(&self.store, Ok(prepared.clone()))
    }

    fn seal<M: Message>(&self, message: &M, options: &Enqueue) -> Result<Envelope> {
        let (topic, key) = (message.topic(), message.key());
        let about = About { name: M::NAME, topic: &topic, key: key.as_deref() };
        let router = self.router.as_deref();
        let routed_topic = || router.and_then(|router| router.topic(&about));
        let routed_key = || router.and_then(|router| router.key(&about));
        let topic = options.topic.clone().or_else(routed_topic).unwrap_or_else(|| topic.to_string());
        let own_key = || routed_key().or_else(|| key.as_deref().map(str::to_owned)).map(OrderingKey::from);
        let key = options.key.clone().or_else(own_key);
        let id = options.id.unwrap_or_else(MessageId::generate);
        // Before the headers: a message that cannot be encoded was never created.
        let payload = message.encode()?.into();
        Ok(Envelope {
            id,
            topic: topic.as_str().into(),
            name: M::NAME.into(),
            key,
            headers: self.headers(id, &topic, M::CONTENT_TYPE, options)?,
            payload,
            deliver_at: options.deliver_at,
            expires_at: options.expires_at,
            attempts_max: options.attempts_max.or_else(|| message.attempts_max()),
        })
    }

    fn headers(&self, id: MessageId, topic: &str, content_type: &str, options: &Enqueue) -> Result<Headers> {
        let last = |name: &str| options.headers.iter().rev().find(|(other, _)| other == name);
        let given = |name: &str| last(name).is_some();
        let mut pairs = Vec::new();
        if content_type != "application/json" && !given(headers::CONTENT_TYPE) {
            pairs.push((headers::CONTENT_TYPE.to_owned(), content_type.to_owned()));
        }
        if let Some(source) = &self.trace_source
            && !given(headers::TRACEPARENT)
        {
            let correlation = last(headers::CORRELATION_ID).map(|(_, id)| id.as_str());
            if let Some(context) = source(&Creation { id, topic, correlation }) {
                pairs.push((headers::TRACEPARENT.to_owned(), context.traceparent().to_owned()));
                pairs.extend(context.tracestate().map(|state| (headers::TRACESTATE.to_owned(), state.to_owned())));
            }
        }
        Headers::new(pairs.iter().chain(&options.headers).map(|(name, value)| (name, value)))
    }
}

impl<S: fmt::Debug> fmt::Debug for Outbox<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("store", &self.store).field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// What can be said about a message beside its value.
///
/// ```
/// use std::time::Duration;
/// use postrider::Enqueue;
/// let reminder = Enqueue::new().key("order-4711").deliver_in(Duration::from_secs(3600)).header("tenant", "acme");
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Enqueue {
    id: Option<MessageId>,
    topic: Option<String>,
    key: Option<OrderingKey>,
    headers: Vec<(String, String)>,
    deliver_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    attempts_max: Option<u32>,
}

impl Enqueue {
    /// Nothing said.
    pub fn new() -> Self {
        Self::default()
    }

    /// An id of the caller's, for example one that was derived from a request. It must be unique; brokers and inboxes
    /// recognise duplicates by it. Default: a fresh one.
    pub fn id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }

    /// Another topic than the message's own.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    /// Another ordering key than the message's own.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into().into());
        self
    }

    /// A header. A repeated name keeps its last value.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The story that this message belongs to.
    pub fn correlation_id(self, id: impl Into<String>) -> Self {
        self.header(headers::CORRELATION_ID, id)
    }

    /// The message that caused this one.
    pub fn causation_id(self, id: MessageId) -> Self {
        self.header(headers::CAUSATION_ID, id.to_string())
    }

    /// A trace context to carry instead of the current one.
    pub fn trace(self, context: &TraceContext) -> Self {
        let with = self.header(headers::TRACEPARENT, context.traceparent());
        match context.tracestate() {
            Some(state) => with.header(headers::TRACESTATE, state),
            None => with,
        }
    }

    /// Not before this instant, by the store's clock. It gets its place in its key's order when it comes due.
    pub fn deliver_at(mut self, at: SystemTime) -> Self {
        self.deliver_at = Some(at.into());
        self
    }

    /// Not before this much time has passed, counted now and by this process's clock.
    pub fn deliver_in(mut self, wait: Duration) -> Self {
        self.deliver_at = Some(Timestamp::now().saturating_add(wait));
        self
    }

    /// Worthless from this instant on, by the store's clock. If it has not been published by then it is kept as dead, with
    /// the cause `expired`, and its key goes on.
    pub fn expires_at(mut self, at: SystemTime) -> Self {
        self.expires_at = Some(at.into());
        self
    }

    /// Another number of attempts than the route's policy or the message type says.
    pub fn attempts_max(mut self, attempts: u32) -> Self {
        self.attempts_max = Some(attempts);
        self
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use postrider_core::{Error, ErrorKind};

    use super::*;

    #[derive(serde::Serialize)]
    struct Ping;

    impl Message for Ping {
        const NAME: &'static str = "ping";
        fn key(&self) -> Option<Cow<'_, str>> {
            Some("own".into())
        }
        fn attempts_max(&self) -> Option<u32> {
            Some(4)
        }
    }

    #[derive(serde::Serialize)]
    struct Unwritable;

    impl Message for Unwritable {
        const NAME: &'static str = "unwritable";
        fn encode(&self) -> Result<Vec<u8>> {
            Err(Error::invalid("cannot be written"))
        }
    }

    /// Counts what reaches the store.
    struct Transaction(usize);

    impl Enlist<()> for Transaction {
        type Appended<'a> = Result<()>;
        fn append<'a>(&'a mut self, _: &'a (), batch: Result<Batch>) -> Result<()> {
            self.0 += batch?.envelopes().len();
            Ok(())
        }
    }

    fn sealed(outbox: &Outbox<()>, options: &Enqueue) -> Envelope {
        outbox.prepare(&[Ping], options).unwrap().envelopes()[0].clone()
    }

    #[test]
    fn what_the_message_says_of_itself_holds_unless_the_call_says_otherwise() {
        let outbox = Outbox::new(());
        let own = sealed(&outbox, &Enqueue::new());
        assert_eq!((&*own.topic, own.key.unwrap().as_str(), own.attempts_max), ("ping", "own", Some(4)));
        let other = sealed(&outbox, &Enqueue::new().topic("pings.eu").key("other").attempts_max(9));
        assert_eq!((&*other.topic, other.key.unwrap().as_str(), other.attempts_max), ("pings.eu", "other", Some(9)));
        assert_ne!(own.id, other.id, "every message has a fresh id");
    }

    #[test]
    fn a_router_decides_unless_the_call_does() {
        struct ByKey;
        impl Router for ByKey {
            fn topic(&self, about: &About<'_>) -> Option<String> {
                Some(format!("{}.of.{}", about.name, about.key?))
            }
            fn key(&self, about: &About<'_>) -> Option<String> {
                about.key.map(|key| format!("tenant/{key}"))
            }
        }
        let outbox = Outbox::new(()).with_router(ByKey);
        let routed = sealed(&outbox, &Enqueue::new());
        assert_eq!((&*routed.topic, routed.key.unwrap().as_str()), ("ping.of.own", "tenant/own"));
        let told = sealed(&outbox, &Enqueue::new().topic("pings.eu").key("other"));
        assert_eq!((&*told.topic, told.key.unwrap().as_str()), ("pings.eu", "other"));
        let nobody = Outbox::new(()).with_router(|_: &About<'_>| None);
        assert_eq!(&*sealed(&nobody, &Enqueue::new()).topic, "ping");
        let rules = Outbox::new(()).with_router(crate::routing::Topics::new().map_type::<Ping>("pings"));
        assert_eq!(&*sealed(&rules, &Enqueue::new()).topic, "pings");
    }

    #[test]
    fn a_message_that_cannot_be_encoded_reaches_no_transaction() {
        let (outbox, mut transaction) = (Outbox::new(()), Transaction(0));
        let refused = outbox.enqueue(&mut transaction, &Unwritable).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(outbox.enqueue_all(&mut transaction, &[Unwritable]).is_err());
        assert!(outbox.prepare(&[Unwritable], &Enqueue::new()).is_err());
        outbox.enqueue(&mut transaction, &Ping).unwrap();
        assert_eq!(transaction.0, 1);
    }

    #[test]
    fn a_source_without_a_current_trace_adds_nothing() {
        let outbox = Outbox::new(()).with_trace_source(|| None);
        assert!(sealed(&outbox, &Enqueue::new()).headers.is_empty());
    }

    #[test]
    fn a_wait_is_counted_from_the_call() {
        let before = Timestamp::now();
        let options = Enqueue::new().deliver_in(Duration::from_hours(1));
        let after = Timestamp::now();
        let at = sealed(&Outbox::new(()), &options).deliver_at.unwrap();
        let hour = Duration::from_hours(1);
        assert!(before.saturating_add(hour) <= at && at <= after.saturating_add(hour));
    }
}
