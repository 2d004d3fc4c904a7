//! What the tests share: a place with a store, a broker that does as it is told, a relay in the background, and one way
//! to wait.

mod broker;
mod observer;
mod place;
mod probe;
mod running;

use std::{fmt::Display, time::Duration};

use postrider::Envelope;

pub(crate) use self::{
    broker::{Broker, Stuck, cause, rejected},
    observer::{Observed, Seen},
    place::Place,
    probe::Probe,
    running::{Running, options, retries, route},
};

/// How long anything may take before a test gives up. Far more than is ever needed.
const DEADLINE: Duration = Duration::from_secs(20);

/// Waits until a condition holds. Looks often; what it waits for is the condition and never the time.
///
/// # Panics
/// If it does not hold in time; the message says what was waited for.
pub(crate) async fn until(what: impl Display, mut condition: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(DEADLINE, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain for this: {what}");
}

/// An envelope whose payload says which one it is: `a1` is the first of key `a`.
pub(crate) fn message(label: &str) -> Envelope {
    Envelope::new("orders.placed", "order.placed", label.to_owned()).with_key(&label[..1])
}

/// Envelopes from their labels.
pub(crate) fn messages(labels: &[&str]) -> Vec<Envelope> {
    labels.iter().map(|label| message(label)).collect()
}

/// Runs one test body on every store, by the process's clock.
macro_rules! on_every_store {
    ($($body:ident),+ $(,)?) => {$(
        mod $body {
            #[tokio::test]
            async fn on_memory() {
                super::$body(crate::support::Place::memory()).await;
            }
            #[tokio::test]
            async fn on_sqlite() {
                super::$body(crate::support::Place::sqlite().await).await;
            }
        }
    )+};
}

/// The same with a store whose clock the test moves.
macro_rules! on_every_store_with_its_clock {
    ($($body:ident),+ $(,)?) => {$(
        mod $body {
            #[tokio::test]
            async fn on_memory() {
                super::$body(crate::support::Place::memory_by_hand()).await;
            }
            #[tokio::test]
            async fn on_sqlite() {
                super::$body(crate::support::Place::sqlite_by_hand().await).await;
            }
        }
    )+};
}
