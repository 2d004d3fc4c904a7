//! A primary whose replicas are missing: nothing is durable without them, and no attempt writes another copy.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use postrider_core::{
    envelope::Envelope,
    log::RecordRef,
    transport::{Outcome, Publisher},
};
use postrider_testkit::{fault::Server, transport::record};
use postrider_transport_redis::{Access, RedisPublisher};

use support::{Own, PATIENCE, program};

/// Half of it is the server's, to wait for a replica; the other half must be long enough on any machine.
const TIMEOUT: Duration = Duration::from_secs(6);

fn start(folder: &Path, settings: &[&str]) -> Server {
    let folder = folder.display().to_string();
    Server::start(&program(), |port| {
        let port = port.to_string();
        let own = ["--port", &port, "--bind", "127.0.0.1", "--dir", &folder, "--save", ""];
        own.iter().chain(settings).map(|&setting| setting.to_owned()).collect()
    })
}

fn start_replica(folder: &Path, primary: &Server) -> Server {
    let replicates = format!("127.0.0.1 {}", primary.address().port());
    start(folder, &["--replicaof", &replicates])
}

fn to(primary: &Server, own: &Own) -> RedisPublisher {
    let access = Access::new(&format!("redis://{}", primary.address())).unwrap();
    RedisPublisher::builder(access).declare().prefix(&own.prefix).replicas(1).timeout(TIMEOUT).build().unwrap()
}

/// As the relay does while its breaker is open: again and again, until it goes through.
async fn until_durable(publisher: &RedisPublisher, record: &RecordRef) {
    let begun = Instant::now();
    loop {
        match publisher.publish(vec![record.clone()]).await.remove(0) {
            Outcome::Durable => return,
            Outcome::Unavailable(_) => {}
            other => panic!("no message pays for missing replicas: {other:?}"),
        }
        assert!(begun.elapsed() < PATIENCE, "the replica is there, and the message is not durable");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_replicas_nothing_is_written_however_often_it_is_tried() {
    let data = tempfile::tempdir().unwrap();
    let primary = start(data.path(), &[]);
    let own = Own::on(&format!("redis://{}", primary.address()));
    let publisher = to(&primary, &own);
    let one = record(&Envelope::new("orders", "n", "x"));
    for _ in 0..3 {
        let outcome = publisher.publish(vec![one.clone()]).await.remove(0);
        assert!(matches!(&outcome, Outcome::Unavailable(cause) if cause.code() == "replicas"), "{outcome:?}");
    }
    assert_eq!(own.events().await.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_when_the_replica_went_is_durable_when_it_is_back_and_is_there_once() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let primary = start(one.path(), &["--repl-diskless-sync-delay", "0"]);
    let mut replica = start_replica(two.path(), &primary);
    let own = Own::on(&format!("redis://{}", primary.address()));
    let publisher = to(&primary, &own);
    let batch: Vec<_> = (0..4).map(|i| record(&Envelope::new("orders", "n", i.to_string()))).collect();
    until_durable(&publisher, &batch[0]).await;
    replica.kill();
    // The first attempt writes, because nobody knows yet; the others do not.
    for _ in 0..3 {
        let outcomes = publisher.publish(batch[1..3].to_vec()).await;
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Unavailable(_))), "{outcomes:?}");
    }
    let others = publisher.publish(batch[3..].to_vec()).await;
    assert!(matches!(others[0], Outcome::Unavailable(_)), "{others:?}");
    assert_eq!(own.events().await.len(), 3, "nothing more is written while the replica is missing");
    replica.restart();
    for record in &batch[1..] {
        until_durable(&publisher, record).await;
    }
    let payloads: Vec<_> = own.events().await.into_iter().map(|event| event.envelope.payload).collect();
    assert_eq!(payloads, ["0", "1", "2", "3"], "each of them once");
}

/// As many batches as a route has under way. None of them holds up another for so long that the connection is given up, and with it
/// what is known of what was written.
#[tokio::test(flavor = "multi_thread")]
async fn many_batches_under_way_when_the_replica_goes_are_there_once() {
    const BATCHES: usize = 8;
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let primary = start(one.path(), &["--repl-diskless-sync-delay", "0"]);
    let mut replica = start_replica(two.path(), &primary);
    let own = Own::on(&format!("redis://{}", primary.address()));
    let publisher = Arc::new(to(&primary, &own));
    let records: Vec<_> = (0..=BATCHES).map(|i| record(&Envelope::new("orders", "n", i.to_string()))).collect();
    until_durable(&publisher, &records[BATCHES]).await;
    replica.kill();
    for _ in 0..2 {
        let publishing: Vec<_> = records[..BATCHES]
            .iter()
            .map(|record| {
                let (publisher, batch) = (Arc::clone(&publisher), vec![record.clone()]);
                tokio::spawn(async move { publisher.publish(batch).await.remove(0) })
            })
            .collect();
        for outcome in publishing {
            let outcome = outcome.await.unwrap();
            assert!(matches!(&outcome, Outcome::Unavailable(cause) if cause.code() == "replicas"), "{outcome:?}");
        }
    }
    replica.restart();
    for record in &records[..BATCHES] {
        until_durable(&publisher, record).await;
    }
    let mut payloads: Vec<_> = own.events().await.into_iter().map(|event| event.envelope.payload).collect();
    payloads.sort_unstable();
    assert_eq!(payloads, ["0", "1", "2", "3", "4", "5", "6", "7", "8"], "each of them once");
}
