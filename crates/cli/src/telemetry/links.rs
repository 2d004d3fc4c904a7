//! From the headers of a message to a link: the context of whoever created it.

use opentelemetry::{
    KeyValue, SpanId, TraceFlags, TraceId,
    trace::{Link, SpanContext, TraceState},
};
use postrider::core::{
    headers::{TRACEPARENT, TRACESTATE},
    log::Record,
    trace::TraceContext,
};

use super::attributes::MESSAGE_ID;

/// A link for every message of the batch that carries a good context.
pub(super) fn of<'r>(records: impl Iterator<Item = &'r Record>) -> Vec<Link> {
    records.filter_map(link).collect()
}

/// Whether one of the creators records its trace: then ours belongs to it.
pub(super) fn any_sampled(links: &[Link]) -> bool {
    links.iter().any(|link| link.span_context.is_sampled())
}

fn link(record: &Record) -> Option<Link> {
    if record.envelope.headers.is_empty() {
        return None;
    }
    let pairs = record.envelope.headers.decode().ok()?;
    let value = |name: &str| pairs.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
    let context = TraceContext::parse(value(TRACEPARENT)?, value(TRACESTATE)).ok()?;
    let id = KeyValue::new(MESSAGE_ID, record.envelope.id.to_string());
    Some(Link::new(span_context(&context)?, vec![id], 0))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_taken_over_as_it_is() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = span_context(&TraceContext::parse(parent, Some("vendor=x")).unwrap()).unwrap();
        assert_eq!(context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(context.span_id().to_string(), "b7ad6b7169203331");
        assert!(context.is_sampled() && context.is_remote());
        assert_eq!(context.trace_state().header(), "vendor=x");
        let unsampled = span_context(&TraceContext::parse(&parent.replace("-01", "-00"), None).unwrap()).unwrap();
        assert!(!unsampled.is_sampled());
    }
}
