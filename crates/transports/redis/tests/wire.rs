//! What stands in an entry, read with the bare client. Every name is written out here: what our own reader gets wrong in the
//! same way as the publisher would pass everywhere else.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use postrider_core::transport::{Outcome, Publisher};
use postrider_testkit::{envelopes::telling, transport::record};
use postrider_transport_redis::{Access, RedisPublisher};

use support::{Own, url};

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_is_an_event_in_fields() {
    let own = Own::new();
    let publisher = RedisPublisher::builder(Access::new(&url()).unwrap()).prefix(&own.prefix).source("shop").declare();
    assert_eq!(publisher.build().unwrap().publish(vec![record(&telling())]).await, [Outcome::Durable]);
    let stream = format!("{}order.placed", own.prefix);
    let mut range = redis::cmd("XRANGE");
    let entries: Vec<(String, Vec<(String, String)>)> =
        range.arg(&stream).arg("-").arg("+").query_async(&mut own.connection().await).await.unwrap();
    let expected = [
        ("ce_specversion", "1.0"),
        ("ce_id", "0197741f-8c2e-7b3a-9d51-0c2f6e1a7b44"),
        ("ce_source", "shop"),
        ("ce_type", "order.placed.v1"),
        ("ce_subject", "größe 42"),
        ("ce_time", "2026-11-15T20:24:41.000250Z"),
        ("ce_datacontenttype", "text/plain"),
        ("ce_partitionkey", "größe 42"),
        ("ce_topic", "order.placed"),
        ("ce_postriderheaders", r#"{"x-odd":"o"}"#),
        ("ce_correlationid", "c 1"),
        ("ce_tenant", "7"),
        ("ce_traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("data", "größe \u{1f40e}"),
    ];
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].1, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    redis::cmd("DEL").arg(&stream).exec_async(&mut own.connection().await).await.unwrap();
}
