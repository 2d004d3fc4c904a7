//! What the server says, and the outcome that it becomes.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lapin::{
    Connection, ConnectionProperties,
    options::{ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::{AMQPValue, FieldTable},
};
use postrider_core::{
    Error,
    envelope::Envelope,
    headers::Headers,
    transport::{Delivery, Outcome, Publisher, Subscriber},
};
use postrider_testkit::{
    fault::{Proxy, Traffic},
    patience::in_time,
    transport::record,
};
use postrider_transport_rabbitmq::{Access, Builder, QueueKind, RabbitmqPublisher, RabbitmqSubscriber};

use support::{Own, address, url};
use tokio::io::AsyncReadExt;

/// Longer than anything here takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a message waits for a queue that takes it, and for its confirm.
const GRACE: Duration = Duration::from_secs(5);

fn builder() -> Builder {
    RabbitmqPublisher::builder(Access::new(&url()).unwrap())
}

async fn publish(publisher: &RabbitmqPublisher, topic: &str, payload: &str) -> Outcome {
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
async fn until_rejected(publisher: &RabbitmqPublisher, topic: &str) -> String {
    in_time(async {
        loop {
            let shown = shown(&publish(publisher, topic, "x").await);
            if shown != "unavailable unroutable" {
                return shown;
            }
        }
    })
    .await
}

/// Every message is confirmed, also those that lead nowhere; which ones do must not be mixed up, whatever is under way beside.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_queue_takes_is_rejected_and_nothing_else() {
    let own = Own::taking(&url(), "good.#", "quorum", &[]).await;
    let publisher = Arc::new(builder().exchange(&own.name).timeout(GRACE).build().unwrap());
    assert_eq!(until_rejected(&publisher, "bad.one").await, "rejected unroutable");
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let publisher = Arc::clone(&publisher);
            tokio::spawn(async move {
                let mut good = 0;
                for round in 0..20 {
                    let is_good = |i: usize| (i * 7 + round * 3 + task) % 5 < 3;
                    let envelope = |i| Envelope::new(if is_good(i) { "good.one" } else { "bad.one" }, "n", "x");
                    let batch = (0..50).map(|i| record(&envelope(i))).collect();
                    for (i, outcome) in publisher.publish(batch).await.iter().enumerate() {
                        let expected = if is_good(i) { "durable" } else { "rejected unroutable" };
                        assert_eq!(shown(outcome), expected);
                        good += usize::from(is_good(i));
                    }
                }
                good
            })
        })
        .collect();
    let mut good = 0;
    for task in tasks {
        good += task.await.unwrap();
    }
    assert_eq!(own.events().await.len(), good);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_that_is_not_there_is_an_outage_and_ends_with_it() {
    let name = format!("t{}", uuid::Uuid::now_v7().simple());
    let publisher = builder().exchange(&name).build().unwrap();
    assert_eq!(shown(&publish(&publisher, "orders", "x").await), "unavailable no-exchange");
    let declaring = builder().exchange(&name).declare(&name, QueueKind::Quorum).build().unwrap();
    assert_eq!(publish(&declaring, "orders", "x").await, Outcome::Durable);
    assert_eq!(publish(&publisher, "orders", "x").await, Outcome::Durable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_full_is_an_outage() {
    let arguments =
        [("x-max-length", AMQPValue::LongInt(1)), ("x-overflow", AMQPValue::LongString("reject-publish".into()))];
    let own = Own::taking(&url(), "#", "classic", &arguments).await;
    let publisher = builder().exchange(&own.name).build().unwrap();
    assert_eq!(publish(&publisher, "orders", "x").await, Outcome::Durable);
    assert_eq!(shown(&publish(&publisher, "orders", "x").await), "unavailable nacked");
    assert_eq!(own.events().await.len(), 1);
    assert_eq!(publish(&publisher, "orders", "x").await, Outcome::Durable);
}

/// A server that is paused, or a network that swallows everything: whether much is under way or one message, it is an outage.
#[tokio::test(flavor = "multi_thread")]
async fn silence_is_an_outage() {
    let own = Own::new().await;
    let proxy = Proxy::to(&address()).await;
    let access = Access::new(&format!("amqp://{}", proxy.address())).unwrap();
    let publisher = RabbitmqPublisher::builder(access).exchange(&own.name).timeout(Duration::from_secs(2));
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

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_deleted_is_an_outage_where_all_messages_go_to_it() {
    let own = Own::new().await;
    let fixed = builder().exchange(&own.name).routing_key("orders").build().unwrap();
    assert_eq!(publish(&fixed, "any", "x").await, Outcome::Durable);
    let (_connection, channel) = own.channel().await;
    channel.queue_delete(own.name.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    assert_eq!(shown(&publish(&fixed, "any", "x").await), "unavailable unroutable");
}

/// A classic queue is gone while its server is, and back with it. No message pays for that, however long it takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_was_there_is_waited_for_and_one_that_is_given_up_is_not() {
    let name = format!("d{}", uuid::Uuid::now_v7().simple());
    // To the default exchange a routing key is the name of a queue.
    let publisher = builder().timeout(GRACE).build().unwrap();
    let connection = Connection::connect(&url(), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let make = async || {
        let (options, none) = (QueueDeclareOptions { durable: true, ..Default::default() }, FieldTable::default());
        channel.queue_declare(name.as_str().into(), options, none).await.unwrap();
    };
    let delete =
        async || channel.queue_delete(name.as_str().into(), QueueDeleteOptions::default()).await.map(drop).unwrap();
    assert_eq!(shown(&publish(&publisher, &name, "x").await), "unavailable unroutable", "it may be about to be made");
    make().await;
    assert_eq!(publish(&publisher, &name, "x").await, Outcome::Durable);
    delete().await;
    let begun = Instant::now();
    // For longer than the time after which a message would have to pay.
    while begun.elapsed() < GRACE * 5 / 4 {
        assert_eq!(shown(&publish(&publisher, &name, "x").await), "unavailable unroutable", "it was there");
    }
    make().await;
    assert_eq!(publish(&publisher, &name, "x").await, Outcome::Durable);
    delete().await;
    publisher.reopen();
    assert_eq!(until_rejected(&publisher, &name).await, "rejected unroutable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_too_large_is_rejected_alone() {
    let own = Own::new().await;
    let publisher = builder().exchange(&own.name).message_bytes_max(10).build().unwrap();
    let headers = Headers::new((0..200).map(|i| (format!("h-{i}"), "v".repeat(1_000)))).unwrap();
    let batch = [
        Envelope::new("orders", "n", "x"),
        Envelope::new("orders", "n", "far too large"),
        Envelope { headers, ..Envelope::new("orders", "n", "x") },
        Envelope::new("orders", "n", "y"),
    ];
    let outcomes: Vec<String> = publisher.publish(batch.iter().map(record).collect()).await.iter().map(shown).collect();
    assert_eq!(outcomes, ["durable", "rejected too-large", "rejected too-large", "durable"]);
    assert_eq!(own.events().await.len(), 2);
}

/// Each attempt to connect has a socket, and the client a thread for it. They end with the attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_says_nothing_is_hung_up_on() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let access = Access::new(&format!("amqp://{}", listener.local_addr().unwrap())).unwrap();
    let publisher = RabbitmqPublisher::builder(access).exchange("e").timeout(Duration::from_millis(200));
    let publisher = publisher.build().unwrap();
    let mut accepted = Vec::new();
    for _ in 0..5 {
        assert_eq!(shown(&publish(&publisher, "orders", "x").await), "unavailable connect-timeout");
        accepted.push(listener.accept().await.unwrap().0);
    }
    for mut socket in accepted {
        let ended = tokio::time::timeout(PATIENCE, async {
            // What the client has said, and then that it is gone.
            let mut said = [0; 64];
            while socket.read(&mut said).await.is_ok_and(|length| length > 0) {}
        });
        ended.await.expect("nobody keeps a socket to a server that does not answer");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_or_does_not_know_us_is_unavailable() {
    // Bound and not listening: the port is ours and refuses connections.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let nowhere = format!("amqp://{}", socket.local_addr().unwrap());
    let access = Access::new(&nowhere).unwrap();
    let publisher = RabbitmqPublisher::builder(access.clone()).build().unwrap();
    assert_eq!(shown(&publish(&publisher, "orders", "x").await), "unavailable connect");
    assert!(RabbitmqSubscriber::builder(access, "q").subscribe().await.err().unwrap().is_transient());
    for access in [
        Access::new(&url()).unwrap().password("guest", "wrong"),
        Access::new(&format!("{}/no-such-host", url())).unwrap(),
    ] {
        let publisher = RabbitmqPublisher::builder(access).build().unwrap();
        assert_eq!(shown(&publish(&publisher, "orders", "x").await), "unavailable denied");
    }
    // Of several servers the first that answers is used.
    let own = Own::new().await;
    let access = Access::new(&format!("{nowhere},{}", url())).unwrap();
    let publisher = RabbitmqPublisher::builder(access).exchange(&own.name).build().unwrap();
    assert_eq!(publish(&publisher, "orders", "x").await, Outcome::Durable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_made_only_when_asked_for_and_left_as_it_is_afterwards() {
    let name = format!("d{}", uuid::Uuid::now_v7().simple());
    // To the default exchange a routing key is the name of a queue.
    let plain = builder().routing_key(&name).build().unwrap();
    assert_eq!(shown(&publish(&plain, "orders", "x").await), "unavailable unroutable");
    // The second kind is not what is there; what is there stays.
    for kind in [QueueKind::Quorum, QueueKind::Classic] {
        let publisher = builder().declare(&name, kind).build().unwrap();
        assert_eq!(publish(&publisher, "orders", "x").await, Outcome::Durable);
    }
    assert_eq!(publish(&plain, "orders", "x").await, Outcome::Durable);
    assert!(builder().routing_key("another").declare(&name, QueueKind::Quorum).build().is_err());
    assert!(builder().declare("amq.mine", QueueKind::Quorum).build().is_err());
    assert!(builder().exchange(&"x".repeat(256)).build().is_err());
    assert!(builder().source("").build().is_err());
}

/// Whoever deletes what the relay has made finds it again, and no message has paid for it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_declared_and_deleted_is_made_again() {
    let name = format!("d{}", uuid::Uuid::now_v7().simple());
    let publisher = builder().exchange(&name).declare(&name, QueueKind::Quorum).build().unwrap();
    assert_eq!(publish(&publisher, "orders", "x").await, Outcome::Durable);
    let connection = Connection::connect(&url(), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.queue_delete(name.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    assert_eq!(shown(&publish(&publisher, "orders", "x").await), "unavailable unroutable");
    assert_eq!(publish(&publisher, "orders", "x").await, Outcome::Durable);
    channel.exchange_delete(name.as_str().into(), ExchangeDeleteOptions::default()).await.unwrap();
    assert_eq!(shown(&publish(&publisher, "orders", "x").await), "unavailable no-exchange");
    assert_eq!(publish(&publisher, "orders", "x").await, Outcome::Durable);
    // A subscriber, too, goes on with a queue that it makes again.
    let subscriber = RabbitmqSubscriber::builder(Access::new(&url()).unwrap(), &name).declare(QueueKind::Quorum);
    let subscriber = subscriber.bind(&name, "#").subscribe().await.unwrap();
    channel.queue_delete(name.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    assert!(subscriber_error(&subscriber).await.is_transient());
    in_time(async { while publish(&publisher, "orders", "again").await != Outcome::Durable {} }).await;
    let mut received = Vec::new();
    while !received.iter().any(|delivery: &Delivery| &delivery.envelope.payload[..] == b"again") {
        received.extend(in_time(subscriber.receive(10)).await.unwrap_or_default());
    }
}

/// The first error that a subscriber tells; what it receives before is let go.
async fn subscriber_error(subscriber: &RabbitmqSubscriber) -> Error {
    loop {
        if let Err(error) = in_time(subscriber.receive(10)).await {
            return error;
        }
    }
}
