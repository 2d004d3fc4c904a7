//! `stdout` and `file:path`: one JSON object per line.

use std::sync::Arc;

use postrider::{Result, core::transport::Publisher, ndjson::NdjsonPublisher};

use crate::registry::Destination;

/// Standard output; log lines go to standard error.
pub(crate) fn stdout(_destination: &Destination<'_>) -> Result<Arc<dyn Publisher>> {
    Ok(Arc::new(NdjsonPublisher::stdout()))
}

/// A file to append to; it is made if there is none.
pub(crate) fn file(destination: &Destination<'_>) -> Result<Arc<dyn Publisher>> {
    Ok(Arc::new(NdjsonPublisher::file(destination.rest)?))
}
