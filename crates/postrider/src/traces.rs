//! Spans of OpenTelemetry for what an application does itself (feature `opentelemetry`): creating a message, and processing it.
//!
//! [`Outbox::with_tracer`] makes a span `create {topic}` of every message that is enqueued, as a child of the current
//! context, and stores *its* context with the message. Whoever publishes it links to that span: the binary does, with its
//! spans `send {topic}`. [`process`] makes a span `process {topic}` of every call of a handler, a child of the message's
//! creation and linked to it; the handler runs inside of it, so what it enqueues continues the story. Only the API is used:
//! which spans are recorded, and where they go, is the application's choice.
//!
//! ```
//! use opentelemetry::trace::noop::NoopTracer;
//! use postrider::{Outbox, Route, memory::Memory, traces};
//!
//! // In an application: `opentelemetry::global::tracer("shop")`.
//! let outbox = Outbox::new(Memory).with_tracer(NoopTracer::new());
//! let route = Route::handler("billing", traces::process(NoopTracer::new(), |record| async move {
//!     println!("{}", record.envelope.name);
//! }));
//! ```

use std::sync::Arc;

use opentelemetry::{
    Context, KeyValue, SpanId, TraceFlags, TraceId,
    trace::{FutureExt, Link, Span, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, TraceState, Tracer},
};
use postrider_core::{
    BoxFuture,
    headers::{CORRELATION_ID, TRACEPARENT, TRACESTATE},
    log::{Record, RecordRef},
    trace::TraceContext,
    transport::Outcome,
};

use crate::{
    handler::IntoOutcome,
    outbox::{Creation, Outbox},
};

impl<S> Outbox<S> {
    /// Makes a span of every message that is created, in place of a [trace source](Self::with_trace_source): its context is
    /// stored with the message. A message that brings its own context keeps it, and has no span.
    #[must_use]
    pub fn with_tracer<T>(self, tracer: T) -> Self
    where
        T: Tracer + Send + Sync + 'static,
    {
        self.with_context_of(move |creation| {
            let mut span = tracer.build(created(creation));
            let context = trace_context(span.span_context());
            span.end();
            context
        })
    }
}

fn created(creation: &Creation<'_>) -> SpanBuilder {
    let mut attributes = attributes("create", creation.topic, creation.id.to_string());
    attributes.extend(creation.correlation.map(|id| KeyValue::new("messaging.message.conversation_id", id.to_owned())));
    SpanBuilder::from_name(format!("create {}", creation.topic))
        .with_kind(SpanKind::Producer)
        .with_attributes(attributes)
}

fn attributes(operation: &'static str, topic: &str, id: String) -> Vec<KeyValue> {
    vec![
        KeyValue::new("messaging.system", "postrider"),
        KeyValue::new("messaging.operation.name", operation),
        KeyValue::new("messaging.operation.type", operation),
        KeyValue::new("messaging.destination.name", topic.to_owned()),
        KeyValue::new("messaging.message.id", id),
    ]
}

/// Around the function of a [handler](crate::Route::handler): every call is a span, and an outcome other than durable is its
/// error, by the code of its cause. A call that is given up half-way ends its span then.
pub fn process<T, F, R>(tracer: T, function: F) -> impl Fn(RecordRef) -> BoxFuture<'static, Outcome> + Send + Sync
where
    T: Tracer<Span: Send + Sync + 'static> + Send + Sync + 'static,
    F: Fn(RecordRef) -> R + Send + Sync + 'static,
    R: Future<Output: IntoOutcome> + Send + 'static,
{
    let shared = Arc::new((tracer, function));
    move |record| {
        let shared = Arc::clone(&shared);
        Box::pin(async move {
            let (tracer, function) = &*shared;
            let context = Context::new().with_span(begin(tracer, &record));
            // The call itself is inside as well: it may do something before there is a future.
            let call = {
                let _inside = context.clone().attach();
                function(record)
            };
            let outcome = call.with_context(context.clone()).await.into_outcome();
            end(&context, &outcome);
            outcome
        })
    }
}

fn begin<T: Tracer>(tracer: &T, record: &Record) -> T::Span {
    let envelope = &record.envelope;
    let mut attributes = attributes("process", &envelope.topic, envelope.id.to_string());
    let correlation = envelope.headers.get(CORRELATION_ID).ok().flatten();
    attributes.extend(correlation.map(|id| KeyValue::new("messaging.message.conversation_id", id)));
    let builder = SpanBuilder::from_name(format!("process {}", envelope.topic)).with_kind(SpanKind::Consumer);
    let builder = builder.with_attributes(attributes);
    match creation_of(record) {
        Some(creation) => {
            let parent = Context::new().with_remote_span_context(creation.clone());
            tracer.build_with_context(builder.with_links(vec![Link::new(creation, Vec::new(), 0)]), &parent)
        }
        None => tracer.build_with_context(builder, &Context::new()),
    }
}

fn end(context: &Context, outcome: &Outcome) {
    let span = context.span();
    if *outcome != Outcome::Durable {
        let kind = match outcome {
            Outcome::Rejected(cause) | Outcome::Unavailable(cause) | Outcome::Unknown(cause) => cause.code(),
            other => other.name(),
        };
        // What went wrong in words may hold anything; a code holds a word.
        span.set_attribute(KeyValue::new("error.type", kind.to_owned()));
        span.set_status(Status::error(outcome.name()));
    }
    span.end();
}

/// The context of whoever created a message, from its headers; `None` if it has none, or a malformed one.
#[must_use]
pub fn creation_of(record: &Record) -> Option<SpanContext> {
    if record.envelope.headers.is_empty() {
        return None;
    }
    let pairs = record.envelope.headers.decode().ok()?;
    let value = |name: &str| pairs.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
    span_context(&TraceContext::parse(value(TRACEPARENT)?, value(TRACESTATE)).ok()?)
}

/// The form was checked: `00-<32 hex>-<16 hex>-<2 hex>`.
fn span_context(context: &TraceContext) -> Option<SpanContext> {
    let parent = context.traceparent();
    let (span, flags) = (parent.get(36..52)?, parent.get(53..55)?);
    let state = context.tracestate().and_then(|state| state.parse().ok()).unwrap_or(TraceState::NONE);
    Some(SpanContext::new(
        TraceId::from_hex(context.trace_id()).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
        true,
        state,
    ))
}

/// The way back. `None` for the context of a tracer that traces nothing.
fn trace_context(context: &SpanContext) -> Option<TraceContext> {
    let (trace, span, flags) = (context.trace_id(), context.span_id(), context.trace_flags().to_u8());
    let state = context.trace_state().header();
    let state = (!state.is_empty()).then_some(state.as_str());
    TraceContext::parse(&format!("00-{trace}-{span}-{flags:02x}"), state).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_taken_over_as_it_is() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let stored = TraceContext::parse(parent, Some("vendor=x")).unwrap();
        let context = span_context(&stored).unwrap();
        assert_eq!(context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(context.span_id().to_string(), "b7ad6b7169203331");
        assert!(context.is_sampled() && context.is_remote());
        assert_eq!(trace_context(&context), Some(stored));
        let unsampled = span_context(&TraceContext::parse(&parent.replace("-01", "-00"), None).unwrap()).unwrap();
        assert!(!unsampled.is_sampled());
        assert_eq!(trace_context(&SpanContext::NONE), None);
    }
}
