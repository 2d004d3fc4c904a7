//! `stdout` and `file:path`: one JSON object per line.

use std::sync::Arc;

use postrider::{Result, core::transport::Publisher, ndjson::NdjsonPublisher};

/// Standard output; log lines go to standard error.
pub(crate) fn stdout(_rest: &str) -> Result<Arc<dyn Publisher>> {
    Ok(Arc::new(NdjsonPublisher::stdout()))
}

/// A file to append to; it is made if there is none.
pub(crate) fn file(path: &str) -> Result<Arc<dyn Publisher>> {
    Ok(Arc::new(NdjsonPublisher::file(path)?))
}
