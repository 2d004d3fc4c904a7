//! What stands on the wire, read with the bare client. Every name is written out here: what our own reader gets wrong in the
//! same way as the publisher would pass everywhere else.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::collections::BTreeMap;

use async_nats::HeaderValue;
use futures_util::StreamExt;
use postrider_core::transport::{Outcome, Publisher};
use postrider_testkit::{envelopes::telling, patience::in_time, transport::record};
use postrider_transport_nats::{Access, NatsPublisher};

use support::{Own, url};

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_an_event_in_headers() {
    let own = Own::new().await;
    let client = async_nats::connect(url()).await.unwrap();
    let subject = format!("{}.order.placed", own.name);
    let mut messages = client.subscribe(subject.clone()).await.unwrap();
    client.flush().await.unwrap();
    let publisher = NatsPublisher::builder(Access::new(&url()).unwrap()).prefix(&own.name).source("shop");
    assert_eq!(publisher.build().unwrap().publish(vec![record(&telling())]).await, [Outcome::Durable]);
    let message = in_time(messages.next()).await.unwrap();
    assert_eq!((message.subject.as_str(), &message.payload[..]), (subject.as_str(), "größe \u{1f40e}".as_bytes()));
    let headers = message.headers.unwrap();
    let found: BTreeMap<String, Vec<&str>> = headers
        .iter()
        .map(|(name, values)| (name.to_string(), values.iter().map(HeaderValue::as_str).collect()))
        .collect();
    let identity = format!("0197741f-8c2e-7b3a-9d51-0c2f6e1a7b44/{subject}");
    let expected = [
        ("Nats-Msg-Id", identity.as_str()),
        ("ce-specversion", "1.0"),
        ("ce-id", "0197741f-8c2e-7b3a-9d51-0c2f6e1a7b44"),
        ("ce-source", "shop"),
        ("ce-type", "order.placed.v1"),
        ("ce-subject", "gr%C3%B6%C3%9Fe%2042"),
        ("ce-time", "2026-11-15T20:24:41.000250Z"),
        ("content-type", "text/plain"),
        ("ce-partitionkey", "gr%C3%B6%C3%9Fe%2042"),
        ("ce-topic", "order.placed"),
        ("ce-postriderheaders", "{%22x-odd%22:%22o%22}"),
        ("ce-correlationid", "c%201"),
        ("ce-tenant", "7"),
        ("ce-traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ];
    assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), vec![value])).into());
}
