//! What stands on the wire, read with the bare client. Every name is written out here: what our own reader gets wrong in the
//! same way as the publisher would pass everywhere else.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::collections::BTreeMap;

use lapin::{
    options::{BasicGetOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use postrider_core::transport::{Outcome, Publisher};
use postrider_testkit::{envelopes::telling, transport::record};
use postrider_transport_rabbitmq::{Access, QueueKind, RabbitmqPublisher};

use support::{Own, url};

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_persistent_and_an_event_in_headers() {
    let own = Own::new().await;
    let publisher = RabbitmqPublisher::builder(Access::new(&url()).unwrap()).exchange(&own.name).source("shop");
    assert_eq!(publisher.build().unwrap().publish(vec![record(&telling())]).await, [Outcome::Durable]);
    let (_connection, channel) = own.channel().await;
    let message = channel.basic_get(own.name.as_str().into(), BasicGetOptions { no_ack: true }).await.unwrap();
    let delivery = message.unwrap().delivery;
    assert_eq!((delivery.exchange.as_str(), delivery.routing_key.as_str()), (own.name.as_str(), "order.placed"));
    assert_eq!(&delivery.data[..], "größe \u{1f40e}".as_bytes());
    let properties = &delivery.properties;
    assert_eq!(*properties.delivery_mode(), Some(2), "1 would be gone with the server");
    let id = "0197741f-8c2e-7b3a-9d51-0c2f6e1a7b44";
    assert_eq!(properties.message_id().as_ref().map(ShortString::as_str), Some(id));
    assert_eq!(properties.kind().as_ref().map(ShortString::as_str), Some("order.placed.v1"));
    assert_eq!(properties.content_type().as_ref().map(ShortString::as_str), Some("text/plain"));
    assert_eq!(*properties.timestamp(), Some(1_794_774_281));
    let headers = properties.headers().iter().flatten().map(|(name, value)| (name.as_str(), value));
    // What begins with `x-` is the server's.
    let found: BTreeMap<&str, &AMQPValue> = headers.filter(|(name, _)| !name.starts_with("x-")).collect();
    let expected = [
        ("cloudEvents:specversion", "1.0"),
        ("cloudEvents:id", id),
        ("cloudEvents:source", "shop"),
        ("cloudEvents:type", "order.placed.v1"),
        ("cloudEvents:subject", "größe 42"),
        ("cloudEvents:time", "2026-11-15T20:24:41.000250Z"),
        ("cloudEvents:partitionkey", "größe 42"),
        ("cloudEvents:topic", "order.placed"),
        ("cloudEvents:postriderheaders", r#"{"x-odd":"o"}"#),
        ("cloudEvents:correlationid", "c 1"),
        ("cloudEvents:tenant", "7"),
        ("cloudEvents:traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ];
    let expected = expected.map(|(name, value)| (name, AMQPValue::LongString(value.into())));
    assert_eq!(found, expected.iter().map(|(name, value)| (*name, value)).collect());
}

/// What is confirmed by a queue of one server is gone with its disk, so nobody gets such a one without asking for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_made_is_a_quorum_queue_unless_another_is_asked_for() {
    let (own, access) = (Own::new().await, Access::new(&url()).unwrap());
    let name = format!("d{}", uuid::Uuid::now_v7().simple());
    let publisher = RabbitmqPublisher::builder(access).declare(&name, QueueKind::default()).build().unwrap();
    assert_eq!(publisher.publish(vec![record(&telling())]).await, [Outcome::Durable]);
    // The server refuses, and ends the channel, if the queue is made otherwise.
    for (kind, is_it) in [("classic", false), ("quorum", true)] {
        let (_connection, channel) = own.channel().await;
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        if is_it {
            arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(i32::MAX));
        }
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        assert_eq!(channel.queue_declare(name.as_str().into(), options, arguments).await.is_ok(), is_it, "{kind}");
    }
}
