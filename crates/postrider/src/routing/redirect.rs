//! A publisher that publishes under other topics than messages were enqueued under.
//!
//! It stands between a route and its destination. The log keeps the topics as they were enqueued, and routes choose by those;
//! only what the destination makes of a topic (a subject, a stream, a Kafka topic, an attribute) follows from the router. The
//! ordering key stays as it is, because the order was decided by it.

use std::sync::Arc;

use postrider_core::{
    BoxFuture, Result,
    capability::PublisherCapabilities,
    envelope::Envelope,
    log::{Record, RecordRef},
    transport::{Outcome, Publisher},
};

use super::{About, Router};

/// See the [module](self).
pub(crate) struct Redirect {
    publisher: Arc<dyn Publisher>,
    router: Arc<dyn Router>,
}

impl Redirect {
    pub(crate) fn new(publisher: Arc<dyn Publisher>, router: Arc<dyn Router>) -> Self {
        Self { publisher, router }
    }

    fn redirected(&self, record: RecordRef) -> RecordRef {
        let envelope = &record.envelope;
        let key = envelope.key.as_ref().map(postrider_core::key::OrderingKey::as_str);
        let about = About { name: &envelope.name, topic: &envelope.topic, key };
        match self.router.topic(&about) {
            Some(topic) if topic != *envelope.topic => {
                let envelope = Envelope { topic: topic.as_str().into(), ..envelope.clone() };
                RecordRef::single(Record { envelope, ..(*record).clone() })
            }
            _ => record,
        }
    }
}

impl Publisher for Redirect {
    fn capabilities(&self) -> PublisherCapabilities {
        self.publisher.capabilities()
    }

    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        self.publisher.publish(batch.into_iter().map(|record| self.redirected(record)).collect())
    }

    fn reopen(&self) {
        self.publisher.reopen();
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.publisher.close()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use postrider_testkit::transport::record;

    use super::*;
    use crate::{
        handler::Handler,
        routing::{Naming, Topics},
    };

    #[tokio::test]
    async fn topics_change_and_nothing_else_does() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sees = Arc::clone(&seen);
        let publisher = Handler::new(move |record: RecordRef| {
            sees.lock().unwrap().push(record.envelope.clone());
            async {}
        });
        let topics = Topics::new().map("order.placed", "orders").naming(Naming::Snake).prefix("shop.");
        let redirect = Redirect::new(Arc::new(publisher), Arc::new(topics));
        let sent = [
            Envelope::new("order.placed", "order.placed", "1").with_key("ada"),
            Envelope::new("order.paid", "order.paid", "2"),
            Envelope::new("its.own", "order.paid", "3"),
        ];
        for envelope in &sent {
            assert_eq!(redirect.publish(vec![record(envelope)]).await, [Outcome::Durable]);
        }
        let expected: Vec<Envelope> = sent
            .iter()
            .zip(["orders", "shop.order_paid", "its.own"])
            .map(|(envelope, topic)| Envelope { topic: topic.into(), ..envelope.clone() })
            .collect();
        assert_eq!(*seen.lock().unwrap(), expected);
    }
}
