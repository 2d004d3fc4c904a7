//! What a subscriber may rely on: what it is given, in which order, and what becomes of what it does not answer.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::time::{Duration, Instant};

use lapin::{
    BasicProperties, Connection, ConnectionProperties,
    options::{BasicPublishOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use postrider_core::{
    ErrorKind,
    envelope::Envelope,
    transport::{Outcome, Publisher, Requeue, Subscriber},
};
use postrider_testkit::{fault::Proxy, patience::in_time, transport::record};
use postrider_transport_rabbitmq::{Access, Builder, QueueKind, RabbitmqPublisher, RabbitmqSubscriber};

use support::{Own, address, url};

/// Longer than anything here takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn builder() -> Builder {
    RabbitmqPublisher::builder(Access::new(&url()).unwrap())
}

async fn publish(publisher: &RabbitmqPublisher, topic: &str, payload: &str) -> Outcome {
    publisher.publish(vec![record(&Envelope::new(topic, "order.placed", payload.to_owned()))]).await.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_event_is_received_all_the_same() {
    let own = Own::new().await;
    let (_connection, channel) = own.channel().await;
    let properties = BasicProperties::default().with_message_id("m1".into());
    let (exchange, options) = (own.name.as_str(), BasicPublishOptions::default());
    channel.basic_publish(exchange.into(), "plain".into(), options, b"hello", properties).await.unwrap();
    let access = Access::new(&url()).unwrap();
    let missing = RabbitmqSubscriber::builder(access.clone(), "no-such-queue").subscribe().await.err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "a queue is made only when asked for: {missing}");
    let subscriber = RabbitmqSubscriber::builder(access.clone(), &own.name).subscribe().await.unwrap();
    let delivery = in_time(subscriber.receive(1)).await.unwrap().remove(0);
    assert_eq!((&*delivery.envelope.topic, &delivery.envelope.payload[..]), ("plain", &b"hello"[..]));
    assert_eq!(delivery.attempt, 1);
    drop(subscriber);
    // A queue of its own on the same exchange, beside the first.
    let other = RabbitmqSubscriber::builder(access.clone(), &format!("{}-2", own.name));
    let other = other.declare(QueueKind::Classic).bind(&own.name, "orders.#").subscribe().await.unwrap();
    let publisher = builder().exchange(&own.name).build().unwrap();
    assert_eq!(publish(&publisher, "orders.placed", "x").await, Outcome::Durable);
    assert_eq!(&*in_time(other.receive(1)).await.unwrap().remove(0).envelope.topic, "orders.placed");
    let again = RabbitmqSubscriber::builder(access, &own.name).subscribe().await.unwrap();
    let again = in_time(again.receive(1)).await.unwrap().remove(0);
    assert_eq!(again.envelope.id, delivery.envelope.id, "the same message has the same id");
    assert_eq!(again.attempt, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_whose_connection_is_lost_goes_on_with_what_was_not_answered() {
    let own = Own::new().await;
    let publisher = builder().exchange(&own.name).build().unwrap();
    for payload in ["a", "b", "c"] {
        assert_eq!(publish(&publisher, "orders", payload).await, Outcome::Durable);
    }
    let proxy = Proxy::to(&address()).await;
    let access = Access::new(&format!("amqp://{}", proxy.address())).unwrap();
    let subscriber = RabbitmqSubscriber::builder(access, &own.name).subscribe().await.unwrap();
    let receive = async || {
        let mut received = Vec::new();
        while received.is_empty() {
            // The first one after the loss is an error, which says so.
            received = in_time(subscriber.receive(1)).await.unwrap_or_default();
        }
        received.remove(0)
    };
    let first = receive().await;
    subscriber.acknowledge(vec![first.receipt]).await.unwrap();
    let late = receive().await;
    let waiting = receive().await;
    subscriber.reject(waiting.receipt, Requeue::After(Duration::from_secs(1_200))).await.unwrap();
    proxy.cut();
    let again = receive().await;
    assert_eq!((again.envelope.id, again.attempt), (late.envelope.id, 2));
    assert!(subscriber.acknowledge(vec![late.receipt]).await.unwrap_err().is_transient());
    subscriber.acknowledge(vec![again.receipt]).await.unwrap();
    let last = receive().await;
    assert_eq!(last.envelope.id, waiting.envelope.id, "what waited here is with the server again");
    subscriber.acknowledge(vec![last.receipt]).await.unwrap();
    drop(subscriber);
    // The server does not answer an acknowledgement: the last ones may be lost with the connection, and no others.
    let left = own.events().await;
    assert!(left.iter().all(|event| event.envelope.id != first.envelope.id), "{left:?}");
}

/// Asks for the queue with arguments; the server refuses what is not as it was made.
async fn is_made_with(name: &str, arguments: &[(&str, AMQPValue)]) -> bool {
    let connection = Connection::connect(&url(), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert((*name).into(), value.clone());
    }
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(name.into(), options, table).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_made_drops_nothing_and_has_one_active_consumer_unless_it_is_shared() {
    let quorum = ("x-queue-type", AMQPValue::LongString("quorum".into()));
    let limit = ("x-delivery-limit", AMQPValue::LongInt(i32::MAX));
    let single = ("x-single-active-consumer", AMQPValue::Boolean(true));
    let (one, many) = (format!("d{}", uuid::Uuid::now_v7().simple()), format!("d{}", uuid::Uuid::now_v7().simple()));
    let subscriber = |name: &str| {
        RabbitmqSubscriber::builder(Access::new(&url()).unwrap(), name).prefetch(1).declare(QueueKind::Quorum)
    };
    let _standing_by = (subscriber(&one).subscribe().await.unwrap(), subscriber(&one).subscribe().await.unwrap());
    assert!(is_made_with(&one, &[quorum.clone(), limit.clone(), single]).await);
    // Two workers share a queue: both have one of two messages at the same time.
    let (first, second) = (subscriber(&many).shared(), subscriber(&many).shared());
    let (first, second) = (first.subscribe().await.unwrap(), second.subscribe().await.unwrap());
    assert!(is_made_with(&many, &[quorum, limit]).await);
    let publisher = builder().routing_key(&many).build().unwrap();
    for payload in ["a", "b"] {
        assert_eq!(publish(&publisher, "orders", payload).await, Outcome::Durable);
    }
    let (a, b) = (in_time(first.receive(2)).await.unwrap(), in_time(second.receive(2)).await.unwrap());
    assert_eq!((a.len(), b.len()), (1, 1));
    assert_ne!(a[0].envelope.id, b[0].envelope.id);
}

/// What the server has given out and not got back is never more than the subscriber asked for, whether it was received or is
/// still fetched ahead.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_out_than_is_asked_for() {
    const PREFETCH: u16 = 5;
    const MESSAGES: u32 = 40;
    // A classic queue counts at once; a quorum queue tells its number now and then.
    let own = Own::taking(&url(), "#", "classic", &[]).await;
    let publisher = builder().exchange(&own.name).build().unwrap();
    for _ in 0..MESSAGES {
        assert_eq!(publish(&publisher, "orders", "x").await, Outcome::Durable);
    }
    let (_connection, channel) = own.channel().await;
    let left = async || {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = channel.queue_declare(own.name.as_str().into(), passive, FieldTable::default());
        declared.await.unwrap().message_count()
    };
    let subscriber = RabbitmqSubscriber::builder(Access::new(&url()).unwrap(), &own.name).prefetch(PREFETCH);
    let subscriber = subscriber.subscribe().await.unwrap();
    let (mut received, mut answered) = (Vec::new(), 0);
    while answered < MESSAGES {
        // As many as may be out, so that the server has reason to give no more.
        while received.len() < usize::from(PREFETCH) && answered + u32::try_from(received.len()).unwrap() < MESSAGES {
            received.extend(in_time(subscriber.receive(MESSAGES)).await.unwrap());
        }
        let (given, bound) = (MESSAGES - left().await, answered + u32::from(PREFETCH));
        assert!(received.len() <= usize::from(PREFETCH), "{} were received and not answered", received.len());
        assert!(given <= bound, "{given} were given out, {answered} of them answered; no more than {bound} may be");
        let first = received.remove(0);
        subscriber.acknowledge(vec![first.receipt]).await.unwrap();
        answered += 1;
    }
}

/// A queue that has somewhere to put it keeps what is rejected for good: the broker's own dead-letter exchange gets it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_rejected_for_good_goes_to_the_dead_letter_exchange_of_its_queue() {
    let dead = Own::new().await;
    let arguments = [("x-dead-letter-exchange", AMQPValue::LongString(dead.name.as_str().into()))];
    let own = Own::taking(&url(), "#", "quorum", &arguments).await;
    let publisher = builder().exchange(&own.name).build().unwrap();
    for payload in ["bad", "good"] {
        assert_eq!(publish(&publisher, "orders", payload).await, Outcome::Durable);
    }
    let subscriber = RabbitmqSubscriber::builder(Access::new(&url()).unwrap(), &own.name).subscribe().await.unwrap();
    let mut received = Vec::new();
    while received.len() < 2 {
        received.extend(in_time(subscriber.receive(2)).await.unwrap());
    }
    subscriber.reject(received[0].receipt, Requeue::Never).await.unwrap();
    subscriber.acknowledge(vec![received[1].receipt]).await.unwrap();
    let dead_letters = RabbitmqSubscriber::builder(Access::new(&url()).unwrap(), &dead.name).subscribe().await.unwrap();
    let letter = in_time(dead_letters.receive(2)).await.unwrap().remove(0);
    assert_eq!(letter.envelope, received[0].envelope, "as it was");
}

/// The client knows that its connection is gone, and the server does not yet: it must not give newer messages to the next
/// consumer while the last one still has older ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_the_server_still_believes_in_keeps_its_place() {
    let name = format!("d{}", uuid::Uuid::now_v7().simple());
    let proxy = Proxy::to(&address()).await;
    let subscriber =
        RabbitmqSubscriber::builder(Access::new(&format!("amqp://{}", proxy.address())).unwrap(), &name).prefetch(2);
    let subscriber = subscriber.declare(QueueKind::Classic).subscribe().await.unwrap();
    let publisher = builder().routing_key(&name).build().unwrap();
    let payloads = ["1", "2", "3", "4", "5", "6"];
    for payload in payloads {
        assert_eq!(publish(&publisher, "orders", payload).await, Outcome::Durable);
    }
    assert_eq!(&in_time(subscriber.receive(1)).await.unwrap()[0].envelope.payload[..], b"1");
    proxy.abandon();
    let connection = Connection::connect(&url(), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let begun = Instant::now();
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    while channel.queue_declare(name.as_str().into(), passive, FieldTable::default()).await.unwrap().consumer_count()
        < 2
    {
        assert!(begun.elapsed() < PATIENCE, "the subscriber has not connected again");
    }
    proxy.release();
    let mut received = Vec::new();
    while received.len() < payloads.len() {
        assert!(begun.elapsed() < PATIENCE, "only {received:?} came again");
        for delivery in in_time(subscriber.receive(10)).await.unwrap_or_default() {
            // The server knows of the new consumer a moment before the subscriber does. What that one still had from the old
            // connection cannot be answered, and comes again.
            if subscriber.acknowledge(vec![delivery.receipt]).await.is_ok() {
                received.push(String::from_utf8(delivery.envelope.payload.to_vec()).unwrap());
            }
        }
    }
    assert_eq!(received, payloads);
}

/// The reader is gone with its runtime: whoever receives is told so, and does not wait for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_whose_reader_has_ended_says_so() {
    let own = Own::new().await;
    let elsewhere = tokio::runtime::Runtime::new().unwrap();
    let builder = RabbitmqSubscriber::builder(Access::new(&url()).unwrap(), &own.name);
    let subscriber = elsewhere.spawn(builder.subscribe()).await.unwrap().unwrap();
    elsewhere.shutdown_background();
    let error = in_time(subscriber.receive(1)).await.unwrap_err();
    assert!(error.is_transient(), "{}", error.chain());
}

/// A server ends a consumer that keeps a message for half an hour, and gives everything out again before its time.
#[tokio::test(flavor = "multi_thread")]
async fn later_is_not_later_than_the_server_allows() {
    let own = Own::new().await;
    let publisher = builder().exchange(&own.name).build().unwrap();
    assert_eq!(publish(&publisher, "orders", "x").await, Outcome::Durable);
    let subscriber = RabbitmqSubscriber::builder(Access::new(&url()).unwrap(), &own.name).subscribe().await.unwrap();
    let delivery = in_time(subscriber.receive(1)).await.unwrap().remove(0);
    let refused = subscriber.reject(delivery.receipt, Requeue::After(Duration::from_secs(1_801))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    subscriber.acknowledge(vec![delivery.receipt]).await.unwrap();
}
