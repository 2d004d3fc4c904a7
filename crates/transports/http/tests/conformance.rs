//! Webhooks keep every promise of a publisher, in both modes; every arriving request has a good signature.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::sync::Arc;

use postrider_core::{BoxFuture, transport::Publisher};
use postrider_testkit::{
    envelopes::{SPECIMENS, specimens},
    transport::{Arrived, PublisherFixture},
};
use postrider_transport_http::{HttpPublisher, Mode};

use support::Receiver;

mod binary {
    use super::*;

    async fn fresh() -> Arc<dyn PublisherFixture> {
        endpoint(Mode::Binary).await
    }

    postrider_testkit::publisher_conformance!(fresh);
}

mod structured {
    use super::*;

    async fn fresh() -> Arc<dyn PublisherFixture> {
        endpoint(Mode::Structured).await
    }

    postrider_testkit::publisher_conformance!(fresh);
}

/// More than the largest envelope of the suite has; the default is less.
const PAYLOAD_BYTES_MAX: usize = 2 << 20;

#[test]
fn no_envelope_of_the_suite_is_left_out() {
    let envelopes = specimens();
    assert_eq!(envelopes.len(), SPECIMENS);
    assert!(envelopes.iter().all(|envelope| envelope.weight() <= PAYLOAD_BYTES_MAX));
}

struct Endpoint {
    receiver: Receiver,
    publisher: Arc<HttpPublisher>,
}

async fn endpoint(mode: Mode) -> Arc<dyn PublisherFixture> {
    let receiver = Receiver::good().await;
    let publisher = Arc::new(receiver.builder().mode(mode).payload_bytes_max(PAYLOAD_BYTES_MAX).build().unwrap());
    Arc::new(Endpoint { receiver, publisher })
}

impl PublisherFixture for Endpoint {
    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::clone(&self.publisher) as Arc<dyn Publisher>
    }

    fn arrived(&self) -> BoxFuture<'_, Vec<Arrived>> {
        let events = self.receiver.seen().into_iter().map(|seen| seen.event());
        let arrived = events.map(|event| Arrived { envelope: event.envelope, replay: event.replay }).collect();
        Box::pin(std::future::ready(arrived))
    }
}
