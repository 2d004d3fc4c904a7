//! Cases: what a relay may rely on when it publishes.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use postrider_core::{
    envelope::{Envelope, MessageId},
    log::{Record, RecordRef},
    transport::Outcome,
};

use super::{PublisherFixture, assert_travelled, of_key, over_keys, publish, publish_all, record};
use crate::envelopes::specimens;

/// A batch has one outcome per message; an empty one has none.
pub async fn a_batch_has_one_outcome_per_message(fixture: Arc<dyn PublisherFixture>) {
    let publisher = fixture.publisher();
    assert_eq!(publisher.publish(Vec::new()).await, [], "an empty batch has no outcomes");
    for size in [1, 2, 50] {
        publish(&*publisher, &over_keys(size, size)).await;
    }
    assert_eq!(fixture.arrived().await.len(), 53, "what is durable has arrived, once");
}

/// Every envelope arrives as it was.
pub async fn every_envelope_survives(fixture: Arc<dyn PublisherFixture>) {
    let publisher = fixture.publisher();
    // A transport may learn of its server how large a message may be.
    publish(&*publisher, &over_keys(1, 1)).await;
    let max = publisher.capabilities().message_bytes_max.unwrap_or(usize::MAX);
    let sent: Vec<_> = specimens().into_iter().filter(|envelope| envelope.weight() <= max).collect();
    publish_all(&*publisher, &sent).await;
    let arrived = fixture.arrived().await;
    assert_eq!(arrived.len(), 1 + sent.len(), "every envelope arrives, once");
    let by_id: HashMap<MessageId, _> = arrived.into_iter().map(|arrived| (arrived.envelope.id, arrived)).collect();
    for envelope in &sent {
        let arrived = by_id.get(&envelope.id).unwrap_or_else(|| panic!("{} has not arrived", envelope.id));
        assert_travelled(&arrived.envelope, envelope);
        assert_eq!(arrived.replay, None, "nothing here is a replay");
    }
}

/// A replayed record says so at the other end.
pub async fn a_replay_is_marked(fixture: Arc<dyn PublisherFixture>) {
    let publisher = fixture.publisher();
    let envelope = over_keys(1, 1).remove(0);
    let replayed = Record { replay: Some("orders#replay-1".into()), ..(*record(&envelope)).clone() };
    let outcomes = publisher.publish(vec![RecordRef::single(replayed)]).await;
    assert_eq!(outcomes, [Outcome::Durable]);
    let arrived = fixture.arrived().await;
    assert_eq!(arrived[0].replay.as_deref(), Some("orders#replay-1"), "a consumer must be able to tell a replay");
    assert_eq!(arrived[0].envelope.id, envelope.id, "a replay keeps the message's id");
    assert_eq!(arrived[0].envelope.payload, envelope.payload);
}

/// Over many batches the messages of a key arrive in order.
pub async fn a_key_stays_in_order_over_many_batches(fixture: Arc<dyn PublisherFixture>) {
    let publisher = fixture.publisher();
    let sent = over_keys(300, 5);
    publish_all(&*publisher, &sent).await;
    assert_in_order(&*fixture, &sent, 5).await;
}

/// As many messages of one key as the transport allows may ride in one batch, and arrive in order.
pub async fn a_run_stays_in_order(fixture: Arc<dyn PublisherFixture>) {
    let publisher = fixture.publisher();
    let run = usize::try_from(publisher.capabilities().run_max.min(200)).expect("at most 200");
    assert!(run >= 1, "`run_max` is at least 1");
    let sent = over_keys(run, 1);
    publish(&*publisher, &sent).await;
    assert_in_order(&*fixture, &sent, 1).await;
}

/// Batches of different keys may be under way at the same time.
pub async fn batches_may_overlap(fixture: Arc<dyn PublisherFixture>) {
    let publisher = fixture.publisher();
    let sent: Vec<Vec<Envelope>> = (0..8)
        .map(|task| {
            let envelope = |i| Envelope::new("t", "n", format!("{i}")).with_key(format!("key-{task}"));
            (0..40).map(envelope).collect()
        })
        .collect();
    let tasks: Vec<_> = sent
        .iter()
        .map(|sent| {
            let (publisher, sent) = (Arc::clone(&publisher), sent.clone());
            tokio::spawn(async move {
                for batch in super::batches(&sent, 3, publisher.capabilities().run_max) {
                    publish(&*publisher, &batch).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a publishing task finishes");
    }
    assert_in_order(&*fixture, &sent.concat(), 8).await;
}

/// A message that is larger than the transport carries is rejected, and others go through.
pub async fn a_message_that_is_too_large_is_rejected(fixture: Arc<dyn PublisherFixture>) {
    let publisher = fixture.publisher();
    // A transport may learn of its server how large a message may be.
    publish(&*publisher, &over_keys(1, 1)).await;
    let Some(max) = publisher.capabilities().message_bytes_max else { return };
    let large = Envelope::new("t", "n", Bytes::from(vec![b'x'; max + 1]));
    let small = Envelope::new("t", "n", "x");
    let outcomes = publisher.publish(vec![record(&large), record(&small)]).await;
    assert!(matches!(outcomes[0], Outcome::Rejected(_)), "too large for this transport: {:?}", outcomes[0]);
    assert_eq!(outcomes[1], Outcome::Durable, "a message is not rejected for its neighbour's size");
}

/// A publish whose future is dropped may or may not have happened; what comes after it works all the same.
pub async fn a_dropped_publish_does_no_harm(fixture: Arc<dyn PublisherFixture>) {
    let publisher = fixture.publisher();
    let (dropped, after) = (over_keys(3, 3), over_keys(3, 3));
    drop(publisher.publish(dropped.iter().map(record).collect()));
    let mut polled = publisher.publish(dropped.iter().map(record).collect());
    drop(futures_util::poll!(&mut polled));
    drop(polled);
    publish(&*publisher, &after).await;
    let arrived = fixture.arrived().await;
    for envelope in &after {
        assert_eq!(arrived.iter().filter(|a| a.envelope.id == envelope.id).count(), 1, "what is durable has arrived");
    }
}

/// After closing, everything that was durable is there.
pub async fn closing_loses_nothing(fixture: Arc<dyn PublisherFixture>) {
    let publisher = fixture.publisher();
    let sent = over_keys(100, 10);
    publish_all(&*publisher, &sent).await;
    publisher.close().await.expect("close a working publisher");
    assert_in_order(&*fixture, &sent, 10).await;
}

async fn assert_in_order(fixture: &dyn PublisherFixture, sent: &[Envelope], keys: usize) {
    let arrived: Vec<_> = fixture.arrived().await.into_iter().map(|arrived| arrived.envelope).collect();
    assert_eq!(arrived.len(), sent.len(), "everything arrives, once");
    for key in 0..keys {
        let key = format!("key-{key}");
        assert!(
            of_key(&arrived, &key) == of_key(sent, &key),
            "messages of {key} must arrive in the order of publishing"
        );
    }
}
