//! What the server says, and the outcome that it becomes.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::time::{Duration, Instant};

use postrider_core::{
    envelope::Envelope,
    transport::{Outcome, Publisher, Subscriber},
};
use postrider_testkit::{
    fault::{Proxy, Server, Traffic},
    patience::in_time,
    transport::record,
};
use postrider_transport_redis::{Access, Builder, RedisPublisher, RedisSubscriber};

use support::{Own, program, url};

fn builder(own: &Own) -> Builder {
    RedisPublisher::builder(Access::new(&url()).unwrap()).prefix(&own.prefix)
}

async fn publish(publisher: &RedisPublisher, topic: &str, payload: &str) -> Outcome {
    publisher.publish(vec![record(&Envelope::new(topic, "order.placed", payload.to_owned()))]).await.remove(0)
}

fn shown(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Rejected(cause) | Outcome::Unavailable(cause) | Outcome::Unknown(cause) => {
            format!("{} {}", outcome.name(), cause.code())
        }
        other => other.name().to_owned(),
    }
}

/// Publishes until a message is rejected for good, which it is not at first; how that is told.
async fn until_rejected(publisher: &RedisPublisher, topic: &str) -> String {
    in_time(async {
        loop {
            let shown = shown(&publish(publisher, topic, "x").await);
            if shown != "unavailable no-stream" {
                return shown;
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_made_only_when_asked_for() {
    let own = Own::new();
    let careful = builder(&own).timeout(Duration::from_secs(5)).build().unwrap();
    assert_eq!(until_rejected(&careful, "orders").await, "rejected no-stream");
    // Where all messages go to one stream, none is at fault.
    let name = format!("{}orders", own.prefix);
    let fixed = RedisPublisher::builder(Access::new(&url()).unwrap()).stream(&name);
    let outcome = publish(&fixed.clone().build().unwrap(), "any", "x").await;
    assert_eq!(shown(&outcome), "unavailable no-stream");
    assert!(format!("{outcome:?}").contains(&name), "{outcome:?}");
    assert_eq!(publish(&builder(&own).declare().build().unwrap(), "orders", "x").await, Outcome::Durable);
    assert_eq!(publish(&careful, "orders", "x").await, Outcome::Durable);
    assert_eq!(publish(&fixed.clone().build().unwrap(), "any", "x").await, Outcome::Durable);
    assert_eq!(own.events().await.len(), 3);
    for bad in [fixed.prefix("p:"), builder(&own).prefix("").stream(""), builder(&own).source("")] {
        assert!(bad.build().is_err());
    }
}

/// A server that has lost its data gets it back, or somebody makes the stream: no message has paid for that, however long it took.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_was_there_is_waited_for_and_one_that_is_given_up_is_not() {
    let own = Own::new();
    let timeout = Duration::from_secs(2);
    let careful = builder(&own).timeout(timeout).build().unwrap();
    let declaring = builder(&own).declare().build().unwrap();
    assert_eq!(shown(&publish(&careful, "orders", "x").await), "unavailable no-stream", "it may be about to be made");
    for patience in [timeout * 3 / 2, Duration::ZERO] {
        assert_eq!(publish(&declaring, "orders", "x").await, Outcome::Durable);
        assert_eq!(publish(&careful, "orders", "x").await, Outcome::Durable);
        let mut connection = own.connection().await;
        redis::cmd("DEL").arg(format!("{}orders", own.prefix)).exec_async(&mut connection).await.unwrap();
        let begun = Instant::now();
        // For longer than the time after which a message would have to pay.
        while begun.elapsed() < patience {
            assert_eq!(shown(&publish(&careful, "orders", "x").await), "unavailable no-stream", "it was there");
        }
    }
    careful.reopen();
    assert_eq!(until_rejected(&careful, "orders").await, "rejected no-stream");
}

/// What a server has given out and not got back is never more than is fetched ahead and was received.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_fetched_ahead_than_is_asked_for() {
    for (prefetch, bound) in [(1, 3), (3, 3), (32, 32)] {
        let own = Own::new();
        let topics = ["a", "b", "c"];
        let publisher = builder(&own).declare().build().unwrap();
        let batch = (0..300).map(|i| record(&Envelope::new(topics[i % 3], "n", "x"))).collect();
        assert!(publisher.publish(batch).await.iter().all(|outcome| *outcome == Outcome::Durable));
        let streams = topics.map(|topic| format!("{}{topic}", own.prefix));
        let access = Access::new(&url()).unwrap();
        let subscriber = RedisSubscriber::builder(access, "g", &streams).prefetch(prefetch).declare();
        let subscriber = subscriber.subscribe().await.unwrap();
        let mut connection = own.connection().await;
        let mut received = 0;
        while received < 200 {
            received += in_time(subscriber.receive(1)).await.unwrap().len();
            let mut out = 0;
            for stream in &streams {
                type Summary = (usize, Option<String>, Option<String>, Option<Vec<(String, String)>>);
                let mut pending = redis::cmd("XPENDING");
                let (pending, ..): Summary = pending.arg(stream).arg("g").query_async(&mut connection).await.unwrap();
                out += pending;
            }
            assert!(out <= received + bound, "{out} are out, {received} of them received; {bound} may be ahead");
        }
        drop(subscriber);
        redis::cmd("DEL").arg(&streams).exec_async(&mut connection).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_one_message_is_not_one_of_its_neighbours() {
    let own = Own::new();
    let taken = format!("{}taken", own.prefix);
    let mut connection = own.connection().await;
    redis::cmd("SET").arg(&taken).arg("no stream").exec_async(&mut connection).await.unwrap();
    let publisher = builder(&own).declare().message_bytes_max(10).build().unwrap();
    let batch = [("taken", "x"), ("fine", "x"), ("fine", "far too large"), ("fine", "y")];
    let batch = batch.map(|(topic, payload)| record(&Envelope::new(topic, "n", payload)));
    let outcomes: Vec<String> = publisher.publish(batch.to_vec()).await.iter().map(shown).collect();
    assert_eq!(outcomes, ["rejected redis-wrongtype", "durable", "rejected too-large", "durable"]);
    redis::cmd("DEL").arg(&taken).exec_async(&mut connection).await.unwrap();
    assert_eq!(own.events().await.len(), 2);
}

/// Whoever has put something else there takes it away, and no message has paid for it.
#[tokio::test(flavor = "multi_thread")]
async fn one_name_for_all_that_is_taken_is_an_outage() {
    let own = Own::new();
    let taken = format!("{}taken", own.prefix);
    let mut connection = own.connection().await;
    redis::cmd("SET").arg(&taken).arg("no stream").exec_async(&mut connection).await.unwrap();
    let publisher = RedisPublisher::builder(Access::new(&url()).unwrap()).stream(&taken).declare().build().unwrap();
    assert_eq!(shown(&publish(&publisher, "orders", "x").await), "unavailable redis-wrongtype");
    redis::cmd("DEL").arg(&taken).exec_async(&mut connection).await.unwrap();
    assert_eq!(publish(&publisher, "orders", "x").await, Outcome::Durable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_memory_or_replicas_is_an_outage() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().display().to_string();
    let server = Server::start(&program(), |port| {
        ["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir", &folder, "--save", ""].map(str::to_owned).to_vec()
    });
    let url = format!("redis://{}", server.address());
    let own = Own::on(&url);
    let mut connection = own.connection().await;
    let mut set = async |name: &str, value: &str| {
        redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec_async(&mut connection).await.unwrap();
    };
    let publisher = RedisPublisher::builder(Access::new(&url).unwrap()).declare().build().unwrap();
    set("maxmemory", "1").await;
    assert_eq!(shown(&publish(&publisher, "orders", "x").await), "unavailable redis-oom");
    set("maxmemory", "0").await;
    set("min-replicas-to-write", "1").await;
    assert_eq!(shown(&publish(&publisher, "orders", "x").await), "unavailable redis-noreplicas");
    set("min-replicas-to-write", "0").await;
    assert_eq!(publish(&publisher, "orders", "x").await, Outcome::Durable);
    // Not on as many servers as asked for, so it is not settled.
    // Half of the timeout is the server's, to wait for a replica; the other half must be long enough on any machine.
    let replicated =
        RedisPublisher::builder(Access::new(&url).unwrap()).declare().replicas(1).timeout(Duration::from_secs(10));
    assert_eq!(shown(&publish(&replicated.build().unwrap(), "orders", "x").await), "unavailable replicas");
    set("requirepass", "canary").await;
    let stranger = RedisPublisher::builder(Access::new(&url).unwrap()).declare().build().unwrap();
    assert_eq!(shown(&publish(&stranger, "orders", "x").await), "unavailable denied");
    let wrong = RedisPublisher::builder(Access::new(&url).unwrap().password(None, "wrong")).build().unwrap();
    assert_eq!(shown(&publish(&wrong, "orders", "x").await), "unavailable denied");
    let known = RedisPublisher::builder(Access::new(&url).unwrap().password(None, "canary")).declare().build().unwrap();
    assert_eq!(publish(&known, "orders", "x").await, Outcome::Durable);
}

/// A server that is paused, or a network that swallows everything: whether much is under way or one message, it is an outage.
#[tokio::test(flavor = "multi_thread")]
async fn silence_is_an_outage() {
    let own = Own::new();
    let proxy = Proxy::to(url().trim_start_matches("redis://").split('/').next().unwrap()).await;
    let access = Access::new(&format!("redis://{}", proxy.address())).unwrap();
    let publisher = RedisPublisher::builder(access).declare().prefix(&own.prefix).timeout(Duration::from_secs(2));
    let publisher = publisher.build().unwrap();
    for count in [1, 3] {
        in_time(async { while publish(&publisher, "orders", "x").await != Outcome::Durable {} }).await;
        proxy.set(Traffic::Silent);
        let batch = (0..count).map(|_| record(&Envelope::new("orders", "n", "x"))).collect();
        let outcomes: Vec<String> = publisher.publish(batch).await.iter().map(shown).collect();
        assert_eq!(outcomes, vec!["unavailable timeout"; count]);
        proxy.set(Traffic::Flowing);
    }
}

/// Whoever takes a right by mistake gives it back, and no message has paid for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_taken_is_an_outage() {
    let own = Own::new();
    let user = format!("u{}", uuid::Uuid::now_v7().simple());
    let mut connection = own.connection().await;
    let mut rule = async |rules: &[&str]| {
        redis::cmd("ACL").arg("SETUSER").arg(&user).arg(rules).exec_async(&mut connection).await.unwrap();
    };
    rule(&["on", ">canary", "~*", "+@all"]).await;
    let access = Access::new(&url()).unwrap().password(Some(&user), "canary");
    let publisher = RedisPublisher::builder(access).declare().prefix(&own.prefix).build().unwrap();
    assert_eq!(publish(&publisher, "orders", "x").await, Outcome::Durable);
    rule(&["-xadd"]).await;
    assert_eq!(shown(&publish(&publisher, "orders", "x").await), "unavailable redis-noperm");
    rule(&["+xadd", "resetkeys", "~elsewhere"]).await;
    assert_eq!(shown(&publish(&publisher, "orders", "x").await), "unavailable redis-noperm");
    rule(&["~*"]).await;
    assert_eq!(publish(&publisher, "orders", "x").await, Outcome::Durable);
    redis::cmd("ACL").arg("DELUSER").arg(&user).exec_async(&mut own.connection().await).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_is_unavailable() {
    // Bound and not listening: the port is ours and refuses connections.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let access = Access::new(&format!("redis://{}", socket.local_addr().unwrap())).unwrap();
    let publisher = RedisPublisher::builder(access.clone()).build().unwrap();
    assert_eq!(shown(&publish(&publisher, "orders", "x").await), "unavailable connect");
    assert!(RedisSubscriber::builder(access, "g", ["s"]).subscribe().await.err().unwrap().is_transient());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_event_is_received_all_the_same_and_what_another_left_is_taken_over() {
    let own = Own::new();
    let stream = format!("{}plain", own.prefix);
    let mut connection = own.connection().await;
    redis::cmd("XADD").arg(&stream).arg("*").arg("colour").arg("red").exec_async(&mut connection).await.unwrap();
    let builder = RedisSubscriber::builder(Access::new(&url()).unwrap(), "g", [&stream]);
    assert!(builder.clone().subscribe().await.is_err(), "a group is made only when asked for");
    let crashed = builder.clone().consumer("crashed").declare().subscribe().await.unwrap();
    let delivery = in_time(crashed.receive(1)).await.unwrap().remove(0);
    assert_eq!(
        (&*delivery.envelope.topic, &delivery.envelope.payload[..]),
        (stream.as_str(), &br#"{"colour":"red"}"#[..])
    );
    drop(crashed);
    let next = builder.consumer("next").claim_after(Duration::from_millis(50)).subscribe().await.unwrap();
    let again = in_time(next.receive(1)).await.unwrap().remove(0);
    assert_eq!(again.envelope.id, delivery.envelope.id, "the same message has the same id");
    assert_eq!(again.attempt, 2);
    next.acknowledge(vec![again.receipt]).await.unwrap();
    redis::cmd("DEL").arg(&stream).exec_async(&mut connection).await.unwrap();
}
