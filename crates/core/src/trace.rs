//! W3C trace context: captured when a message is enqueued, carried in its headers, linked when it is published.
//!
//! The library depends on no telemetry stack for it. An application says once where its context comes from
//! (`Outbox::with_trace_source`), and the two header values are checked here before they are stored.

use crate::error::{Error, Result};

/// A checked `traceparent` with its optional `tracestate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    traceparent: String,
    tracestate: Option<String>,
}

impl TraceContext {
    /// Checks the form of version 00: `00-<32 hex>-<16 hex>-<2 hex>`, neither id all zero, lower case.
    ///
    /// ```
    /// use postrider_core::trace::TraceContext;
    /// let context = TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None)?;
    /// assert_eq!(context.trace_id(), "0af7651916cd43dd8448eb211c80319c");
    /// # Ok::<(), postrider_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the text has another form.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Result<Self> {
        let parts: Vec<&str> = traceparent.split('-').collect();
        let hex = |part: &str, length| {
            part.len() == length && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        let well_formed = parts.len() == 4
            && parts[0] == "00"
            && hex(parts[1], 32)
            && hex(parts[2], 16)
            && hex(parts[3], 2)
            && parts[1].bytes().any(|b| b != b'0')
            && parts[2].bytes().any(|b| b != b'0');
        if !well_formed {
            return Err(Error::invalid("not a W3C traceparent of version 00")
                .with("traceparent", traceparent.escape_debug().to_string().chars().take(64).collect::<String>()));
        }
        Ok(Self { traceparent: traceparent.to_owned(), tracestate: tracestate.map(str::to_owned) })
    }

    /// The `traceparent` header.
    #[must_use]
    pub fn traceparent(&self) -> &str {
        &self.traceparent
    }

    /// The `tracestate` header.
    #[must_use]
    pub fn tracestate(&self) -> Option<&str> {
        self.tracestate.as_deref()
    }

    /// The 32 hexadecimal digits of the trace.
    #[must_use]
    pub fn trace_id(&self) -> &str {
        &self.traceparent[3..35]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_contexts_are_refused() {
        for text in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        ] {
            assert!(TraceContext::parse(text, None).is_err(), "{text}");
        }
    }
}
