//! A stream that is given more than it can take at a time, on a server of one's own: it says so, and nothing is lost for it.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::fs;

use postrider_core::{
    envelope::Envelope,
    log::RecordRef,
    transport::{Outcome, Publisher},
};
use postrider_testkit::{fault::Server, patience::in_time, transport::record};
use postrider_transport_nats::{Access, NatsPublisher};

use support::{Own, program};

#[tokio::test(flavor = "multi_thread")]
async fn what_a_stream_has_no_room_for_is_throttled_and_goes_through_later() {
    let folder = tempfile::tempdir().unwrap();
    let (file, data) = (folder.path().join("server.conf"), folder.path().join("data").display().to_string());
    fs::write(&file, format!("jetstream {{ store_dir: \"{data}\", max_buffered_msgs: 1 }}\n")).unwrap();
    let file = file.display().to_string();
    let server = Server::start(&program(), |port| {
        ["-a", "127.0.0.1", "-p", &port.to_string(), "-c", &file].map(str::to_owned).to_vec()
    });
    let url = format!("nats://{}", server.address());
    let own = Own::on(&url).await;
    let publisher = NatsPublisher::builder(Access::new(&url).unwrap()).prefix(&own.name).build().unwrap();
    let mut left: Vec<RecordRef> = (0..2_000).map(|_| record(&Envelope::new("orders", "n", "x"))).collect();
    let mut throttled = 0;
    // Ends when the stream has them all; each time it takes one at least.
    let publishing = async {
        while !left.is_empty() {
            let outcomes = publisher.publish(left.clone()).await;
            let mut outcomes = outcomes.into_iter();
            left.retain(|_| match outcomes.next() {
                Some(Outcome::Durable) => false,
                Some(Outcome::Throttled(wait)) => {
                    assert!(!wait.is_zero(), "a stream that has too much to do is left alone for a while");
                    throttled += 1;
                    true
                }
                other => panic!("{other:?}"),
            });
        }
    };
    in_time(publishing).await;
    assert_eq!(own.count().await, 2_000, "each is there once");
    assert!(throttled > 0, "the stream has room for one at a time");
}
