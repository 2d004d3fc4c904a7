//! A publisher around a publisher: each batch is a span.

use std::sync::Arc;

use opentelemetry::{
    Context, KeyValue,
    trace::{Span, SpanKind, Status, Tracer},
};
use opentelemetry_sdk::trace::SdkTracer;
use postrider::{
    Outcome, Result,
    core::{BoxFuture, capability::PublisherCapabilities, log::RecordRef, transport::Publisher},
};

use super::{
    attributes::{self, Common, ERROR_TYPE},
    links,
};

pub(super) struct TracedPublisher {
    tracer: SdkTracer,
    common: Common,
    inner: Arc<dyn Publisher>,
}

impl TracedPublisher {
    pub(super) fn new(tracer: SdkTracer, route: &str, url: &str, inner: Arc<dyn Publisher>) -> Self {
        let (system, server) = (inner.capabilities().name, attributes::server(url));
        Self { tracer, common: Common { route: route.to_owned(), system, server }, inner }
    }

    /// `None` if nobody records the traces that these messages belong to.
    fn begin(&self, batch: &[RecordRef]) -> Option<Open> {
        let links = links::of(batch.iter().map(|record| &**record));
        if !links::any_sampled(&links) {
            return None;
        }
        let (name, attributes) = attributes::of(&self.common, batch);
        let builder = self.tracer.span_builder(name).with_kind(SpanKind::Client);
        let builder = builder.with_attributes(attributes).with_links(links);
        // A root of its own: a batch has many creators.
        Some(Open { span: self.tracer.build_with_context(builder, &Context::new()), answered: false })
    }
}

impl Publisher for TracedPublisher {
    fn capabilities(&self) -> PublisherCapabilities {
        self.inner.capabilities()
    }

    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        let open = self.begin(&batch);
        let publish = self.inner.publish(batch);
        let Some(open) = open else { return publish };
        Box::pin(async move {
            let outcomes = publish.await;
            open.end(&outcomes);
            outcomes
        })
    }

    fn reopen(&self) {
        self.inner.reopen();
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.close()
    }
}

/// A span that has begun. Dropped without an answer, it says so: the relay waits no longer than its time limit.
struct Open {
    span: opentelemetry_sdk::trace::Span,
    answered: bool,
}

impl Open {
    fn end(mut self, outcomes: &[Outcome]) {
        self.answered = true;
        if let Some(failure) = outcomes.iter().find(|outcome| **outcome != Outcome::Durable) {
            let kind = match failure {
                Outcome::Rejected(cause) | Outcome::Unavailable(cause) | Outcome::Unknown(cause) => cause.code(),
                other => other.name(),
            };
            self.fail(kind.to_owned(), failure.name());
        }
    }

    /// What the destination said in words may hold anything; a code holds a word.
    fn fail(&mut self, kind: String, description: &'static str) {
        self.span.set_attribute(KeyValue::new(ERROR_TYPE, kind));
        self.span.set_status(Status::error(description));
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.answered {
            self.fail("timeout".to_owned(), "no answer in time");
        }
        self.span.end();
    }
}
