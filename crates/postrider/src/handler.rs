//! An async function as a destination: what a route publishes is handled in this process.
//!
//! [`Route::handler`](crate::Route::handler) makes a route of a function. It is given one record at a time per key, many
//! keys at once. What it returns is the outcome: `Ok(())` is
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

/// A publisher that calls a function for every message of a batch, all of them at once. The batch is over when the slowest
/// call is: a route to it should have small batches, as [`Route::handler`](crate::Route::handler) makes them.
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
        PublisherCapabilities {
            name: "handler",
            run_max: 1,
            message_bytes_max: None,
            batch_max: None,
            batches_max: None,
        }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use postrider_core::{envelope::Envelope, log::Record, time::Timestamp};

    use super::*;

    fn batch(payloads: &[&str]) -> Vec<RecordRef> {
        let record = |payload: &&str| {
            let envelope = Envelope::new("t", "n", (*payload).to_owned());
            let (wait, enqueued_at) = (Duration::ZERO, Timestamp::from_micros(0));
            RecordRef::single(Record {
                envelope,
                key: None,
                enqueued_at,
                wait,
                expires_in: None,
                replay: None,
                number: 0,
            })
        };
        payloads.iter().map(record).collect()
    }

    fn cause(outcome: &Outcome) -> (&str, &str) {
        match outcome {
            Outcome::Rejected(cause) => (cause.code(), cause.detail()),
            other => panic!("rejected was expected: {other:?}"),
        }
    }

    #[tokio::test]
    async fn each_message_has_the_outcome_that_its_call_returned() {
        let handler = Handler::new(|record: RecordRef| async move {
            match &record.envelope.payload[..] {
                b"fine" => Ok(()),
                _ => Err("no such customer"),
            }
        });
        let outcomes = handler.publish(batch(&["fine", "bad", "fine"])).await;
        assert_eq!((&outcomes[0], &outcomes[2]), (&Outcome::Durable, &Outcome::Durable));
        assert_eq!(cause(&outcomes[1]), ("handler", "no such customer"));
    }

    #[tokio::test]
    async fn a_handler_may_say_exactly_what_became_of_a_message() {
        let pause = Outcome::Throttled(Duration::from_secs(1));
        let answer = pause.clone();
        let handler = Handler::new(move |_| std::future::ready(answer.clone()));
        assert_eq!(handler.publish(batch(&["x"])).await, [pause]);
        let nothing_to_say = Handler::new(|_| async {});
        assert_eq!(nothing_to_say.publish(batch(&["x"])).await, [Outcome::Durable]);
    }

    #[tokio::test]
    async fn a_panic_before_or_inside_the_future_rejects_its_own_message_only() {
        let handler = Handler::new(|record: RecordRef| {
            assert!(record.envelope.payload != "at once", "before there is a future");
            async move {
                let payload = String::from_utf8_lossy(&record.envelope.payload).into_owned();
                assert!(payload != "later", "inside: {payload}");
                if payload == "odd" {
                    std::panic::panic_any(7);
                }
            }
        });
        let outcomes = handler.publish(batch(&["at once", "later", "odd", "fine"])).await;
        assert_eq!(cause(&outcomes[0]), ("panic", "before there is a future"));
        assert_eq!(cause(&outcomes[1]), ("panic", "inside: later"));
        assert_eq!(cause(&outcomes[2]), ("panic", "the handler panicked"));
        assert_eq!(outcomes[3], Outcome::Durable);
    }

    #[tokio::test]
    async fn the_calls_of_a_batch_run_at_the_same_time() {
        let together = std::sync::Arc::new(tokio::sync::Barrier::new(3));
        let handler = Handler::new(move |_| {
            let together = std::sync::Arc::clone(&together);
            async move {
                together.wait().await; // passes only once all three are here
            }
        });
        assert_eq!(handler.publish(batch(&["a", "b", "c"])).await, vec![Outcome::Durable; 3]);
    }
}
