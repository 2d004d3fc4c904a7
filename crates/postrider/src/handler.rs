//! An async function as a destination: what a route publishes is handled in this process.
//!
//! The function is given one record at a time per key, many keys at once. What it returns is the outcome: `Ok(())` is
//! durable, an error counts as an attempt and is retried, and an [`Outcome`] says it exactly. A panic costs an attempt, not
//! the process. It runs at least once per message; its own effects are not part of any transaction of ours.

use std::{fmt, panic::AssertUnwindSafe};

use futures_util::{FutureExt, future::join_all};
use postrider_core::{
    BoxFuture,
    capability::PublisherCapabilities,
    log::RecordRef,
    parked::Cause,
    transport::{Outcome, Publisher},
};

/// What a handler may return.
pub trait IntoOutcome {
    /// As an outcome.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Durable
    }
}

impl<E: fmt::Display> IntoOutcome for std::result::Result<(), E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(()) => Outcome::Durable,
            Err(error) => Outcome::Rejected(Cause::new("handler", error)),
        }
    }
}

/// A publisher that calls a function.
pub struct Handler<F>(F);

impl<F> Handler<F> {
    /// From an async function of a record.
    pub fn new<R>(function: F) -> Self
    where
        F: Fn(RecordRef) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcome> + Send + 'static,
    {
        Self(function)
    }
}

impl<F, R> Publisher for Handler<F>
where
    F: Fn(RecordRef) -> R + Send + Sync + 'static,
    R: Future<Output: IntoOutcome> + Send + 'static,
{
    fn capabilities(&self) -> PublisherCapabilities {
        PublisherCapabilities { name: "handler", run_max: 1, message_bytes_max: None }
    }

    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        let calls = batch.into_iter().map(|record| async move {
            // The call itself may panic before there is a future.
            let call = AssertUnwindSafe(async { (self.0)(record).await.into_outcome() });
            call.catch_unwind()
                .await
                .unwrap_or_else(|panic| Outcome::Rejected(Cause::new("panic", panic_text(&*panic))))
        });
        Box::pin(join_all(calls))
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().map(ToString::to_string).or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "the handler panicked".to_owned())
}
