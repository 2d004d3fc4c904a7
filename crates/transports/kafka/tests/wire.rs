//! What stands in a record, read with the bare client. Every name is written out here: what our own reader gets wrong in the
//! same way as the publisher would pass everywhere else.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::collections::BTreeMap;

use postrider_core::transport::{Outcome, Publisher};
use postrider_testkit::{envelopes::telling, transport::record};
use postrider_transport_kafka::KafkaPublisher;
use rdkafka::message::{Headers, Message};

use support::{Own, access};

#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_an_event_as_the_binding_for_kafka_says() {
    let own = Own::new().await;
    let publisher = KafkaPublisher::builder(access()).topic(&own.topic).source("shop").build().unwrap();
    assert_eq!(publisher.publish(vec![record(&telling())]).await, [Outcome::Durable]);
    let message = own.messages().await.remove(0);
    let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
    assert_eq!((text(message.key()), text(message.payload())), ("größe 42".to_owned(), "größe \u{1f40e}".to_owned()));
    let headers = message.headers().unwrap();
    let found: BTreeMap<&str, String> = headers.iter().map(|header| (header.key, text(header.value))).collect();
    let expected = [
        ("ce_specversion", "1.0"),
        ("ce_id", "0197741f-8c2e-7b3a-9d51-0c2f6e1a7b44"),
        ("ce_source", "shop"),
        ("ce_type", "order.placed.v1"),
        ("ce_subject", "größe 42"),
        ("ce_time", "2026-11-15T20:24:41.000250Z"),
        ("content-type", "text/plain"),
        ("ce_partitionkey", "größe 42"),
        ("ce_topic", "order.placed"),
        ("ce_postriderheaders", r#"{"x-odd":"o"}"#),
        ("ce_correlationid", "c 1"),
        ("ce_tenant", "7"),
        ("ce_traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ];
    assert_eq!(found, expected.map(|(name, value)| (name, value.to_owned())).into());
    assert_eq!(headers.count(), expected.len(), "none of them is there twice");
}
