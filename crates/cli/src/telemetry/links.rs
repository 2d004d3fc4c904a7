//! From the messages of a batch to links: the context of whoever created each.

use opentelemetry::{KeyValue, trace::Link};
use postrider::{core::log::Record, traces};

use super::attributes::MESSAGE_ID;

/// A link for every message of the batch that carries a good context.
pub(super) fn of<'r>(records: impl Iterator<Item = &'r Record>) -> Vec<Link> {
    let link = |record: &Record| {
        let id = KeyValue::new(MESSAGE_ID, record.envelope.id.to_string());
        Some(Link::new(traces::creation_of(record)?, vec![id], 0))
    };
    records.filter_map(link).collect()
}

/// Whether one of the creators records its trace: then ours belongs to it.
pub(super) fn any_sampled(links: &[Link]) -> bool {
    links.iter().any(|link| link.span_context.is_sampled())
}
