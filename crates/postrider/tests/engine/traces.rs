//! Spans of an application, as an exporter gets them: created, processed, and what the processing created in turn.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex},
};

use opentelemetry::{
    Context, KeyValue,
    trace::{SpanContext, SpanId, SpanKind, Status, TraceContextExt, Tracer, TracerProvider},
};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{Sampler, SdkTracer, SdkTracerProvider, SpanData, SpanExporter},
};
use postrider::{
    Enqueue, Message, Outbox, Route,
    core::{log::RecordRef, trace::TraceContext},
    traces,
};
use postrider_store_memory::{Memory, MemoryStore};

use crate::support::{Running, until};

/// Keeps what is exported. Clones keep together.
#[derive(Clone, Debug, Default)]
struct Exported(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Exported {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

impl Exported {
    fn named(&self, name: &str) -> Vec<SpanData> {
        self.0.lock().unwrap().iter().filter(|span| span.name == name).cloned().collect()
    }

    #[track_caller]
    fn one(&self, name: &str) -> SpanData {
        let mut spans = self.named(name);
        assert_eq!(spans.len(), 1, "one span `{name}`: {:?}", self.0.lock().unwrap());
        spans.remove(0)
    }
}

fn tracer(sampler: Sampler) -> (SdkTracer, Exported) {
    let exported = Exported::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exported.clone()).with_sampler(sampler).build();
    (provider.tracer("shop"), exported)
}

#[derive(serde::Serialize)]
struct Order(&'static str);

impl Message for Order {
    const NAME: &'static str = "order.placed";
    fn topic(&self) -> Cow<'_, str> {
        self.0.into()
    }
}

fn has(span: &SpanData, name: &'static str, value: &str) -> bool {
    span.attributes.contains(&KeyValue::new(name, value.to_owned()))
}

fn enqueue(store: &MemoryStore, outbox: &Outbox<Memory>, message: &Order, options: &Enqueue) {
    let mut transaction = store.begin();
    outbox.enqueue_with(&mut transaction, message, options).unwrap();
    transaction.commit();
}

#[tokio::test]
async fn a_story_goes_from_the_request_through_the_outbox_to_the_handler_and_on() {
    let (tracer, exported) = tracer(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)));
    let store = MemoryStore::new();
    let outbox = Outbox::new(Memory).with_tracer(tracer.clone());
    let request = Context::new().with_span(tracer.start("POST /orders"));
    {
        let _inside = request.clone().attach();
        enqueue(&store, &outbox, &Order("orders"), &Enqueue::new().correlation_id("order-4711"));
    }
    let (inner, next) = (store.clone(), outbox.clone());
    let handler = traces::process(tracer, move |record: RecordRef| {
        let (store, outbox) = (inner.clone(), next.clone());
        async move {
            tokio::task::yield_now().await; // on whichever thread it goes on, it is inside of its span
            if &*record.envelope.topic == "orders" {
                enqueue(&store, &outbox, &Order("invoices"), &Enqueue::new());
                return Ok(());
            }
            Err("no such customer")
        }
    });
    let log: Arc<dyn postrider::core::log::Log> = Arc::new(store);
    let relay = Running::start(&log, [Route::handler("all", handler).retry(crate::support::retries(1))]);
    until("both to be processed", async || {
        exported.named("process orders").len() == 1 && exported.named("process invoices").len() == 1
    })
    .await;
    relay.drained().await;

    let story = request.span().span_context().clone();
    let (created, processed) = (exported.one("create orders"), exported.one("process orders"));
    assert_child(&created, story.span_id(), &story);
    assert_eq!(created.span_kind, SpanKind::Producer);
    for (name, value) in [
        ("messaging.system", "postrider"),
        ("messaging.operation.type", "create"),
        ("messaging.destination.name", "orders"),
        ("messaging.message.conversation_id", "order-4711"),
    ] {
        assert!(has(&created, name, value), "{name}={value}: {created:?}");
    }
    assert_child(&processed, created.span_context.span_id(), &story);
    assert_eq!((&processed.span_kind, &processed.status), (&SpanKind::Consumer, &Status::Unset));
    let linked: Vec<SpanId> = processed.links.iter().map(|link| link.span_context.span_id()).collect();
    assert_eq!(linked, [created.span_context.span_id()], "linked to the creation of its message");
    let id = created.attributes.iter().find(|attribute| attribute.key.as_str() == "messaging.message.id").unwrap();
    assert!(processed.attributes.contains(id), "{id:?}: {processed:?}");

    let (next, refused) = (exported.one("create invoices"), exported.one("process invoices"));
    assert_child(&next, processed.span_context.span_id(), &story);
    assert_child(&refused, next.span_context.span_id(), &story);
    assert_eq!(refused.status, Status::error("rejected"));
    assert!(has(&refused, "error.type", "handler"), "{refused:?}");
    assert!(!format!("{refused:?}").contains("customer"), "what is said in words may hold anything");
}

#[track_caller]
fn assert_child(span: &SpanData, parent: SpanId, story: &SpanContext) {
    assert_eq!(span.parent_span_id, parent, "{span:?}");
    assert_eq!(span.span_context.trace_id(), story.trace_id(), "{span:?}");
}

#[tokio::test]
async fn what_is_not_sampled_is_carried_on_and_what_brings_its_own_is_left_alone() {
    let (tracer, exported) = tracer(Sampler::AlwaysOff);
    let outbox = Outbox::new(Memory).with_tracer(tracer);
    let stored = |options: &Enqueue| {
        let batch = outbox.prepare(&[Order("orders")], options).unwrap();
        batch.envelopes()[0].headers.get(postrider::core::headers::TRACEPARENT).unwrap()
    };
    let unsampled = stored(&Enqueue::new()).expect("a context");
    assert!(unsampled.ends_with("-00"), "{unsampled}");
    let own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let options = Enqueue::new().trace(&TraceContext::parse(own, None).unwrap());
    assert_eq!(stored(&options).as_deref(), Some(own));
    assert!(exported.0.lock().unwrap().is_empty());
    let traced_nowhere = Outbox::new(Memory).with_tracer(opentelemetry::trace::noop::NoopTracer::new());
    let batch = traced_nowhere.prepare(&[Order("orders")], &Enqueue::new()).unwrap();
    assert!(batch.envelopes()[0].headers.is_empty(), "there is nothing to carry");
}
