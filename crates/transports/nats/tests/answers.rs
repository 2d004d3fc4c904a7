//! What the server says, and the outcome that it becomes.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::time::{Duration, Instant};

use async_nats::jetstream::stream;
use futures_util::StreamExt;
use postrider_core::{
    ErrorKind,
    envelope::Envelope,
    log::{Record, RecordRef},
    transport::{Outcome, Publisher, Subscriber},
};
use postrider_testkit::{
    fault::{Proxy, Traffic},
    patience::in_time,
    transport::record,
};
use postrider_transport_nats::{Access, NatsPublisher, NatsSubscriber};

use support::{Own, url};

fn to(prefix: &str) -> NatsPublisher {
    NatsPublisher::builder(Access::new(&url()).unwrap()).prefix(prefix).build().unwrap()
}

async fn publish(publisher: &NatsPublisher, payload: &str) -> Outcome {
    publisher.publish(vec![record(&Envelope::new("orders", "order.placed", payload.to_owned()))]).await.remove(0)
}

fn shown(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Rejected(cause) | Outcome::Unavailable(cause) | Outcome::Unknown(cause) => {
            format!("{} {}", outcome.name(), cause.code())
        }
        other => other.name().to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_that_no_stream_takes_is_rejected_when_it_stays_like_that() {
    let publisher = NatsPublisher::builder(Access::new(&url()).unwrap()).prefix("nobody-takes-this");
    let publisher = publisher.timeout(Duration::from_secs(3)).build().unwrap();
    // A server that is about to end says the same.
    assert_eq!(shown(&publish(&publisher, "x").await), "unavailable no-stream");
    let outcome = in_time(async {
        loop {
            let outcome = publish(&publisher, "x").await;
            if shown(&outcome) != "unavailable no-stream" {
                break outcome;
            }
        }
    });
    let outcome = outcome.await;
    assert_eq!(shown(&outcome), "rejected no-stream");
    assert!(format!("{outcome:?}").contains("nobody-takes-this.orders"), "{outcome:?}");
}

/// A stream in memory is gone with its server. No message pays for that, however long it takes until it is made again.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_was_there_is_waited_for_and_one_that_is_given_up_is_not() {
    let own = Own::new().await;
    let timeout = Duration::from_secs(3);
    let publisher = NatsPublisher::builder(Access::new(&url()).unwrap()).prefix(&own.name).timeout(timeout);
    let publisher = publisher.build().unwrap();
    assert_eq!(publish(&publisher, "x").await, Outcome::Durable);
    own.jetstream.delete_stream(&own.name).await.unwrap();
    let begun = Instant::now();
    // For longer than the time after which a message would have to pay.
    while begun.elapsed() < timeout * 5 / 4 {
        assert_eq!(shown(&publish(&publisher, "x").await), "unavailable no-stream", "it was there");
    }
    publisher.reopen();
    let rejected = async { while shown(&publish(&publisher, "x").await) != "rejected no-stream" {} };
    in_time(rejected).await;
}

/// Whoever inserts a row writes what it likes into it. To the server a subject may be an order, and to a consumer a wildcard.
#[tokio::test(flavor = "multi_thread")]
async fn a_subject_that_no_message_may_name_is_rejected_and_not_sent() {
    let own = Own::new().await;
    assert_eq!(publish(&to(&own.name), "x").await, Outcome::Durable);
    let publisher = NatsPublisher::builder(Access::new(&url()).unwrap()).build().unwrap();
    let name = &own.name;
    let orders = ["STREAM.PURGE", "STREAM.DELETE"].map(|order| format!("$JS.API.{order}.{name}")).into_iter();
    let inside = ["*", ">", "a.*", ".b", "b.", "a b", "a\nb", "a\tb"].map(|end| format!("{name}.{end}")).into_iter();
    let others = [String::new(), format!(".{name}"), format!("{name}.{}", "a".repeat(5_000)), "_INBOX.a.b".to_owned()];
    let bad: Vec<String> = orders.chain(inside).chain(others).collect();
    let fine = format!("{name}.fine");
    let batch = bad.iter().chain([&fine]).map(|topic| record(&Envelope::new(topic, "n", ""))).collect();
    let outcomes: Vec<String> = publisher.publish(batch).await.iter().map(shown).collect();
    for (topic, outcome) in bad.iter().zip(&outcomes) {
        assert_eq!(outcome, "rejected bad-subject", "{topic:?}");
    }
    assert_eq!(outcomes.last().unwrap(), "durable", "and nobody else pays for it");
    assert_eq!(own.count().await, 2, "nothing is purged, and nothing of it is stored");
}

/// Below the operator's prefix the server takes nothing for an order, but a wildcard stays one.
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_prefix_a_message_names_nothing_of_the_server() {
    let own = Own::new().await;
    let publisher = to(&own.name);
    let topics = ["$JS.API.STREAM.PURGE", "a.>", "a..b", "a b"];
    let batch = topics.iter().map(|topic| record(&Envelope::new(topic, "n", "x"))).collect();
    let outcomes: Vec<String> = publisher.publish(batch).await.iter().map(shown).collect();
    let bad = "rejected bad-subject";
    assert_eq!(outcomes, ["durable", bad, bad, bad]);
    assert_eq!(own.count().await, 1);
    for prefix in ["$JS", "$KV.bucket", "_INBOX", "a.*", "a.>", "a..b", "a b", "a."] {
        let built = NatsPublisher::builder(Access::new(&url()).unwrap()).prefix(prefix).build();
        assert_eq!(built.err().map(|error| error.kind()), Some(ErrorKind::Invalid), "{prefix}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_to_what_cannot_be_there_does_not_wait_for_it() {
    let own = Own::new().await;
    let subscriber =
        |stream: &str, consumer: &str| NatsSubscriber::builder(Access::new(&url()).unwrap(), stream, consumer);
    let named = [subscriber("a.b", "c"), subscriber("", "c"), subscriber(&own.name, "a b"), subscriber(&own.name, ">")];
    let filters = ["a b", "a..b", ">.a", ""];
    let asked = filters.map(|filter| subscriber(&own.name, "c").declare(&[filter], Duration::from_secs(30)));
    for builder in named.into_iter().chain(asked) {
        let error = builder.subscribe().await.err().expect("it is refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{}", error.chain());
    }
}

/// A server is asked once for each subject, not once for each message, and its answer holds for a moment.
#[tokio::test(flavor = "multi_thread")]
async fn subjects_that_no_stream_takes_are_asked_for_together_and_once() {
    let own = Own::new().await;
    let client = async_nats::connect(url()).await.unwrap();
    let mut questions = client.subscribe("$JS.API.STREAM.NAMES").await.unwrap();
    client.flush().await.unwrap();
    // Longer than this test takes, so that nothing is rejected.
    let publisher = NatsPublisher::builder(Access::new(&url()).unwrap()).timeout(Duration::from_secs(600));
    let publisher = publisher.build().unwrap();
    let (unclaimed, taken) = (format!("U{}", own.name), format!("{}.orders", own.name));
    // Twice in short succession: a slow machine asks again, a fast one does not, and both are right.
    for _ in 0..2 {
        let topic = |i: usize| if i.is_multiple_of(2) { taken.clone() } else { format!("{unclaimed}.t{}", i % 5) };
        let batch = (0..400).map(|i| record(&Envelope::new(&topic(i), "n", "x"))).collect();
        for (i, outcome) in publisher.publish(batch).await.iter().enumerate() {
            let expected = if i.is_multiple_of(2) { "durable" } else { "unavailable no-stream" };
            assert_eq!(shown(outcome), expected, "{i}");
        }
    }
    // Everything that was asked is there before the answer to something that is asked now.
    own.jetstream.stream_by_subject(taken).await.unwrap();
    let mut ours = 0;
    loop {
        let question = in_time(questions.next()).await.unwrap();
        let text = String::from_utf8_lossy(&question.payload).into_owned();
        if text.contains(&unclaimed) {
            ours += 1;
        } else if text.contains(&own.name) {
            break;
        }
    }
    assert!((5..=10).contains(&ours), "5 subjects in 2 batches are asked for 5 to 10 times, not {ours} times");
}

/// A server that is paused, or a network that swallows everything: whether much is under way or one message, it is an outage.
#[tokio::test(flavor = "multi_thread")]
async fn silence_is_an_outage() {
    let own = Own::new().await;
    let proxy = Proxy::to(url().trim_start_matches("nats://")).await;
    let access = Access::new(&format!("nats://{}", proxy.address())).unwrap();
    let publisher = NatsPublisher::builder(access).prefix(&own.name).timeout(Duration::from_secs(2)).build().unwrap();
    for count in [1, 3] {
        in_time(async { while publish(&publisher, "x").await != Outcome::Durable {} }).await;
        proxy.set(Traffic::Silent);
        let batch = (0..count).map(|_| record(&Envelope::new("orders", "n", "x"))).collect();
        let outcomes: Vec<String> = publisher.publish(batch).await.iter().map(shown).collect();
        assert_eq!(outcomes, vec!["unavailable timeout"; count]);
        proxy.set(Traffic::Flowing);
    }
}

/// More than the client's queue and the buffers of the network hold: whoever publishes is not held up for longer than it wants
/// to be, and what was never sent is no more doubtful than the rest.
#[tokio::test(flavor = "multi_thread")]
async fn silence_is_an_outage_for_more_than_the_client_can_hold() {
    let own = Own::new().await;
    let proxy = Proxy::to(url().trim_start_matches("nats://")).await;
    let access = Access::new(&format!("nats://{}", proxy.address())).unwrap();
    let publisher = NatsPublisher::builder(access).prefix(&own.name).timeout(Duration::from_secs(2)).build().unwrap();
    in_time(async { while publish(&publisher, "x").await != Outcome::Durable {} }).await;
    proxy.set(Traffic::Silent);
    let payload = "x".repeat(2_000);
    let batch: Vec<_> = (0..20_000).map(|_| record(&Envelope::new("orders", "n", payload.clone()))).collect();
    let outcomes = publisher.publish(batch).await;
    let others: Vec<String> = outcomes.iter().map(shown).filter(|shown| shown != "unavailable timeout").collect();
    assert_eq!((outcomes.len(), others.first()), (20_000, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_stream_is_an_outage_and_a_message_that_is_too_large_for_it_is_not() {
    let own = Own::new().await;
    let config = stream::Config {
        name: own.name.clone(),
        subjects: vec![format!("{}.>", own.name)],
        max_messages: 1,
        max_message_size: 1_000,
        discard: stream::DiscardPolicy::New,
        ..stream::Config::default()
    };
    own.jetstream.update_stream(config).await.unwrap();
    let publisher = to(&own.name);
    assert_eq!(shown(&publish(&publisher, &"x".repeat(2_000)).await), "rejected too-large");
    assert_eq!(publish(&publisher, "x").await, Outcome::Durable);
    assert_eq!(shown(&publish(&publisher, "x").await), "unavailable jetstream-10077");
    assert_eq!(own.count().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_published_again_is_stored_once_and_a_replay_once_more() {
    let own = Own::new().await;
    let publisher = to(&own.name);
    let first = record(&Envelope::new("orders", "order.placed", "x"));
    let replayed = RecordRef::single(Record { replay: Some("again".into()), ..(*first).clone() });
    for record in [&first, &first, &replayed, &replayed] {
        assert_eq!(publisher.publish(vec![record.clone()]).await, [Outcome::Durable]);
    }
    assert_eq!(own.count().await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_is_unavailable() {
    // Bound and not listening: the port is ours and refuses connections.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let access = Access::new(&format!("nats://{}", socket.local_addr().unwrap())).unwrap();
    let publisher = NatsPublisher::builder(access.clone()).build().unwrap();
    assert_eq!(shown(&publish(&publisher, "x").await), "unavailable connect");
    assert!(NatsSubscriber::builder(access, "s", "c").subscribe().await.err().unwrap().is_transient());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_made_only_when_asked_for_and_left_as_it_is_afterwards() {
    let name = format!("D{}", uuid::Uuid::now_v7().simple());
    let builder = NatsPublisher::builder(Access::new(&url()).unwrap()).prefix(&name);
    for _ in 0..2 {
        let publisher = builder.clone().declare(&name, 1).build().unwrap();
        assert_eq!(publish(&publisher, "x").await, Outcome::Durable);
    }
    // Deleted while we run: no message pays for it, and it is there again.
    let publisher = builder.clone().declare(&name, 1).build().unwrap();
    assert_eq!(publish(&publisher, "x").await, Outcome::Durable);
    let client = async_nats::connect(url()).await.unwrap();
    async_nats::jetstream::new(client).delete_stream(&name).await.unwrap();
    assert_eq!(shown(&publish(&publisher, "x").await), "unavailable no-stream");
    assert_eq!(publish(&publisher, "x").await, Outcome::Durable);
    assert!(builder.clone().declare("no spaces", 1).build().is_err());
    assert!(builder.clone().declare(&name, 2).build().is_err());
    assert!(builder.source("").build().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_event_is_received_all_the_same() {
    let own = Own::new().await;
    let client = async_nats::connect(url()).await.unwrap();
    let subject = format!("{}.plain", own.name);
    async_nats::jetstream::new(client).publish(subject.clone(), "hello".into()).await.unwrap().await.unwrap();
    let builder = NatsSubscriber::builder(Access::new(&url()).unwrap(), &own.name, "plain");
    assert!(builder.clone().subscribe().await.is_err(), "a consumer is made only when asked for");
    let subscriber = builder.declare(&[], Duration::from_secs(30)).subscribe().await.unwrap();
    let delivery = in_time(subscriber.receive(1)).await.unwrap().remove(0);
    assert_eq!((&*delivery.envelope.topic, &delivery.envelope.payload[..]), (subject.as_str(), &b"hello"[..]));
    assert_eq!(delivery.attempt, 1);
}

/// A stream tells duplicates by their id alone, whatever the subject: two routes that publish the same message under
/// different topics must not take away each other's.
#[tokio::test(flavor = "multi_thread")]
async fn one_message_under_two_subjects_of_one_stream_is_stored_twice() {
    let own = Own::new().await;
    let publisher = to(&own.name);
    let placed = Envelope::new("orders", "order.placed", "x");
    let renamed = Envelope { topic: "invoices".into(), ..placed.clone() };
    for envelope in [&placed, &renamed, &placed] {
        assert_eq!(publisher.publish(vec![record(envelope)]).await, [Outcome::Durable]);
    }
    assert_eq!(own.count().await, 2, "and what comes again under the same subject is stored once");
}
