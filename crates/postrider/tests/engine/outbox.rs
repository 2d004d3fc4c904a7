//! Enqueueing: what enters the caller's transaction is what arrives, or nothing does.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use postrider::{
    Enqueue, Envelope, ErrorKind, Message, MessageId, Outbox,
    core::{
        admin::StoreAdmin,
        headers::{CAUSATION_ID, CONTENT_TYPE, CORRELATION_ID, TRACEPARENT, TRACESTATE},
        limits::Limits,
        time::Timestamp,
        trace::TraceContext,
    },
};
use postrider_store_memory::{Memory, MemoryStore};
use postrider_store_sqlite::SqliteStore;

use crate::support::{Broker, Place, Running, route, until};

#[derive(serde::Serialize)]
struct OrderPlaced {
    order: String,
    cents: u64,
}

impl Message for OrderPlaced {
    const NAME: &'static str = "order.placed";
    fn topic(&self) -> Cow<'_, str> {
        "orders".into()
    }
    fn key(&self) -> Option<Cow<'_, str>> {
        Some(self.order.as_str().into())
    }
}

fn order(order: &str, cents: u64) -> OrderPlaced {
    OrderPlaced { order: order.to_owned(), cents }
}

/// What a relay on this store publishes, in order.
async fn relayed(store: &MemoryStore, count: usize) -> Vec<Envelope> {
    let broker = Broker::with_runs(100);
    let log: std::sync::Arc<dyn postrider::core::log::Log> = std::sync::Arc::new(store.clone());
    let relay = Running::start(&log, [route("all", &broker)]);
    until("everything to arrive", async || broker.records().len() >= count).await;
    relay.drained().await;
    broker.records().iter().map(|record| record.envelope.clone()).collect()
}

#[tokio::test]
async fn one_message_arrives_with_its_name_topic_key_and_payload() {
    let store = MemoryStore::new();
    let mut transaction = store.begin();
    Outbox::new(Memory).enqueue(&mut transaction, &order("4711", 1999)).unwrap();
    transaction.commit();
    let arrived = relayed(&store, 1).await;
    assert_eq!(arrived.len(), 1);
    let Envelope { topic, name, key, headers, payload, .. } = &arrived[0];
    assert_eq!((&**topic, &**name), ("orders", "order.placed"));
    assert_eq!(key.as_ref().unwrap().as_str(), "4711");
    assert_eq!(payload, r#"{"order":"4711","cents":1999}"#);
    assert!(headers.is_empty(), "JSON is what is meant where nothing is said");
}

#[tokio::test]
async fn many_messages_in_one_call_arrive_in_the_order_given() {
    let store = MemoryStore::new();
    let orders: Vec<_> = (0..100).map(|cents| order("4711", cents)).collect();
    let mut transaction = store.begin();
    Outbox::new(Memory).enqueue_all(&mut transaction, &orders).unwrap();
    transaction.commit();
    let arrived = relayed(&store, 100).await;
    let expected: Vec<_> = orders.iter().map(|order| order.encode().unwrap()).collect();
    assert_eq!(arrived.iter().map(|envelope| envelope.payload.to_vec()).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_raw_envelope_arrives_as_it_was_made() {
    let store = MemoryStore::new();
    let made = Envelope::new("legacy.topic", "legacy.name", vec![0_u8, 159, 146, 150]).with_key("k");
    let mut transaction = store.begin();
    Outbox::new(Memory).enqueue_raw(&mut transaction, vec![made.clone()]).unwrap();
    transaction.commit();
    assert_eq!(relayed(&store, 1).await, [made]);
}

#[tokio::test]
async fn what_is_rolled_back_never_arrives() {
    let (store, outbox) = (MemoryStore::new(), Outbox::new(Memory));
    let mut rolled_back = store.begin();
    outbox.enqueue(&mut rolled_back, &order("gone", 1)).unwrap();
    rolled_back.roll_back();
    let mut transaction = store.begin();
    outbox.enqueue(&mut transaction, &order("kept", 1)).unwrap();
    let savepoint = transaction.savepoint();
    outbox.enqueue(&mut transaction, &order("gone too", 1)).unwrap();
    transaction.roll_back_to(savepoint);
    transaction.commit();
    let arrived = relayed(&store, 1).await;
    assert_eq!(arrived.iter().map(|e| e.key.as_ref().unwrap().as_str()).collect::<Vec<_>>(), ["kept"]);
}

/// A transaction body that the database asks to run again must not make new ids.
#[tokio::test]
async fn a_prepared_batch_keeps_its_ids_when_the_transaction_runs_again() {
    let (store, outbox) = (MemoryStore::new(), Outbox::new(Memory));
    let prepared = outbox.prepare(&[order("a", 1), order("b", 2)], &Enqueue::new()).unwrap();
    let mut first = store.begin();
    outbox.enqueue_prepared(&mut first, &prepared).unwrap();
    first.roll_back();
    let mut second = store.begin();
    outbox.enqueue_prepared(&mut second, &prepared).unwrap();
    second.commit();
    assert_eq!(relayed(&store, 2).await, prepared.envelopes());
}

fn everything_said(id: MessageId, causation: MessageId, at: SystemTime) -> Enqueue {
    Enqueue::new()
        .id(id)
        .topic("orders.express")
        .key("other")
        .header("tenant", "first")
        .header("tenant", "acme")
        .correlation_id("story-1")
        .causation_id(causation)
        .deliver_at(at)
        .expires_at(at + Duration::from_hours(1))
        .attempts_max(7)
}

fn assert_everything_said(arrived: &Envelope, id: MessageId, causation: MessageId, at: SystemTime) {
    assert_eq!(arrived.id, id);
    assert_eq!(&*arrived.topic, "orders.express");
    assert_eq!(arrived.key.as_ref().unwrap().as_str(), "other");
    let header = |name| arrived.headers.get(name).unwrap();
    assert_eq!(header("tenant").as_deref(), Some("acme"), "a repeated name keeps its last value");
    assert_eq!(header(CORRELATION_ID).as_deref(), Some("story-1"));
    assert_eq!(header(CAUSATION_ID), Some(causation.to_string()));
    assert_eq!(arrived.deliver_at, Some(Timestamp::from(at)));
    assert_eq!(arrived.expires_at, Some(Timestamp::from(at + Duration::from_hours(1))));
    assert_eq!(arrived.attempts_max, Some(7));
}

#[tokio::test]
async fn every_option_travels_with_the_message() {
    let (id, causation, at) = (MessageId::generate(), MessageId::generate(), SystemTime::now());
    let store = MemoryStore::new();
    let mut transaction = store.begin();
    let options = everything_said(id, causation, at);
    Outbox::new(Memory).enqueue_with(&mut transaction, &order("4711", 1), &options).unwrap();
    transaction.commit();
    assert_everything_said(&relayed(&store, 1).await[0], id, causation, at);
}

#[tokio::test]
async fn every_option_travels_through_a_sqlite_transaction() {
    let (id, causation, at) = (MessageId::generate(), MessageId::generate(), SystemTime::now());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let store = SqliteStore::open(&path).await.unwrap();
    let outbox = Outbox::new(store.dialect());
    let mut connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute("CREATE TABLE orders (id TEXT)", []).unwrap();

    let mut rolled_back = connection.transaction().unwrap();
    rolled_back.execute("INSERT INTO orders VALUES ('gone')", []).unwrap();
    outbox.enqueue(&mut rolled_back, &order("gone", 1)).unwrap();
    rolled_back.rollback().unwrap();

    let mut transaction = connection.transaction().unwrap();
    transaction.execute("INSERT INTO orders VALUES ('kept')", []).unwrap();
    outbox.enqueue_with(&mut transaction, &order("kept", 1), &everything_said(id, causation, at)).unwrap();
    transaction.commit().unwrap();

    let broker = Broker::new();
    let log: std::sync::Arc<dyn postrider::core::log::Log> = std::sync::Arc::new(store.clone());
    let relay = Running::start(&log, [route("all", &broker)]);
    until("the committed one to arrive", async || !broker.records().is_empty()).await;
    relay.drained().await;
    let arrived = broker.records();
    assert_eq!(arrived.len(), 1);
    assert_everything_said(&arrived[0].envelope, id, causation, at);
    assert_eq!(store.overview().await.unwrap().records, 1, "the rolled-back one left nothing");
}

#[tokio::test]
async fn an_own_content_type_is_said_in_a_header() {
    #[derive(serde::Serialize)]
    struct Picture;
    impl Message for Picture {
        const NAME: &'static str = "picture";
        const CONTENT_TYPE: &'static str = "image/png";
        fn encode(&self) -> postrider::Result<Vec<u8>> {
            Ok(vec![0x89, 0x50])
        }
    }
    let (store, outbox) = (MemoryStore::new(), Outbox::new(Memory));
    let mut transaction = store.begin();
    outbox.enqueue(&mut transaction, &Picture).unwrap();
    let other = Enqueue::new().header(CONTENT_TYPE, "image/apng");
    outbox.enqueue_with(&mut transaction, &Picture, &other).unwrap();
    transaction.commit();
    let arrived = relayed(&store, 2).await;
    let types: Vec<_> = arrived.iter().map(|e| e.headers.get(CONTENT_TYPE).unwrap().unwrap()).collect();
    assert_eq!(types, ["image/png", "image/apng"]);
    assert_eq!((&*arrived[0].topic, arrived[0].key.as_ref()), ("picture", None), "the topic defaults to the name");
}

#[tokio::test]
async fn the_trace_context_is_captured_unless_the_message_brings_its_own() {
    let current = TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Some("v=1")).unwrap();
    let own = TraceContext::parse("00-11111111111111111111111111111111-2222222222222222-00", None).unwrap();
    let source = current.clone();
    let outbox = Outbox::new(Memory).with_trace_source(move || Some(source.clone()));
    let store = MemoryStore::new();
    let mut transaction = store.begin();
    outbox.enqueue(&mut transaction, &order("a", 1)).unwrap();
    outbox.enqueue_with(&mut transaction, &order("a", 2), &Enqueue::new().trace(&own)).unwrap();
    transaction.commit();
    let arrived = relayed(&store, 2).await;
    let trace = |i: usize| {
        let get = |name| arrived[i].headers.get(name).unwrap();
        (get(TRACEPARENT), get(TRACESTATE))
    };
    assert_eq!(trace(0), (Some(current.traceparent().to_owned()), Some("v=1".to_owned())));
    assert_eq!(trace(1), (Some(own.traceparent().to_owned()), None), "no state of another trace is mixed in");
}

#[tokio::test]
async fn what_breaks_a_limit_is_refused_before_anything_is_written() {
    let store = MemoryStore::new();
    let limits = Limits { payload_bytes_max: 40, batch_messages_max: 3, ..Limits::default() };
    let outbox = Outbox::new(Memory).with_limits(limits);
    let mut transaction = store.begin();
    let long = "x".repeat(40);
    let refused = outbox.enqueue_all(&mut transaction, &[order("fine", 1), order(&long, 2)]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Limit);
    assert!(refused.to_string().contains("payload_bytes_max: 40"), "{refused}");
    let many: Vec<_> = (0..4).map(|cents| order("a", cents)).collect();
    let refused = outbox.enqueue_all(&mut transaction, &many).unwrap_err();
    assert!(refused.to_string().contains("batch_messages_max: 3"), "{refused}");
    let reserved = Enqueue::new().header("postrider-replay", "forged");
    let refused = outbox.enqueue_with(&mut transaction, &order("a", 1), &reserved).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(outbox.prepare(&many, &Enqueue::new()).is_err(), "prepare checks as well");
    transaction.commit();
    assert_eq!(
        store.overview().await.unwrap().records,
        0,
        "also of the batch with one good message nothing is written"
    );
}

on_every_store!(the_messages_of_a_transaction_arrive_in_its_order);

async fn the_messages_of_a_transaction_arrive_in_its_order(place: Place) {
    let labels: Vec<String> = (0..250).map(|n| format!("a{n:03}")).collect();
    let all: Vec<&str> = labels.iter().map(String::as_str).collect();
    place.commit_labels(&all[..130]);
    place.commit_labels(&all[130..]);
    let broker = Broker::with_runs(16);
    let relay = Running::start(&place.log, [route("all", &broker)]);
    until("everything to arrive", async || broker.arrived().len() >= 250).await;
    relay.drained().await;
    assert_eq!(broker.arrived(), labels);
}
