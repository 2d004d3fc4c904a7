//! Triggers that are generated from a declaration, on a real table under real statements.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::Duration;

use postrider_core::envelope::Envelope;
use postrider_store_postgres::{
    Postgres,
    capture::{self, Capture, Operation, Payload, Script, Source},
};
use serde_json::{Value, json};
use support::{Place, Schema, connect, url};
use tokio_postgres::Client;

/// A store, and a schema of the application beside it.
struct Shop {
    place: Place,
    schema: Schema,
    client: Client,
}

impl Shop {
    async fn new(tables: &str) -> Self {
        let shop = Self { place: Place::new(20).await, schema: Schema::fresh(), client: connect().await };
        let schema = shop.schema.name();
        shop.run(&format!("CREATE SCHEMA {schema}; SET search_path = {schema}; {tables}")).await;
        shop
    }

    async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    async fn refused(&self, sql: &str) -> String {
        let error = self.client.batch_execute(sql).await.unwrap_err();
        self.run("ROLLBACK").await;
        error.as_db_error().unwrap().message().to_owned()
    }

    fn dialect(&self) -> Postgres {
        self.place.store().dialect()
    }

    fn table(&self, name: &str) -> String {
        format!("{}.{name}", self.schema.name())
    }

    fn script(&self, capture: Capture) -> Script {
        Script::new(&self.dialect(), vec![capture]).unwrap()
    }

    /// Orders by id: placed, changed, removed.
    async fn capture_orders(&self) -> Script {
        let script = self.script(orders(&self.table("orders")));
        self.run(&script.create()).await;
        script
    }

    async fn delivered(&self) -> Vec<Envelope> {
        self.place.delivered().await
    }

    /// Name, key and payload of everything.
    async fn told(&self) -> Vec<(String, Option<String>, Value)> {
        let told = |envelope: Envelope| {
            let key = envelope.key.as_ref().map(|key| key.as_str().to_owned());
            (envelope.name.to_string(), key, serde_json::from_slice(&envelope.payload).unwrap())
        };
        self.delivered().await.into_iter().map(told).collect()
    }
}

const ORDERS: &str = "CREATE TABLE orders (id bigint PRIMARY KEY, status text, total numeric(10, 2))";

fn named(name: &str) -> Operation {
    Operation::named(name).unwrap()
}

fn orders(table: &str) -> Capture {
    let capture = Capture::new(table, "orders").unwrap().key("id").unwrap();
    capture.on_insert(named("placed")).on_update(named("changed")).on_delete(named("removed"))
}

fn told(name: &str, key: &str, payload: Value) -> (String, Option<String>, Value) {
    (name.to_owned(), Some(key.to_owned()), payload)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_row_of_a_statement_is_told_in_its_order() {
    let shop = Shop::new(ORDERS).await;
    shop.capture_orders().await;
    shop.run(
        "BEGIN;
         INSERT INTO orders VALUES (2, 'new', 1.50), (1, 'new', 2), (3, NULL, NULL);
         UPDATE orders SET status = 'paid' WHERE id = 1;
         DELETE FROM orders WHERE id = 2;
         COMMIT;
         BEGIN; INSERT INTO orders VALUES (9, 'never', 9); DELETE FROM orders WHERE id = 9; ROLLBACK;
         BEGIN; SAVEPOINT here; INSERT INTO orders VALUES (8, 'never', 8); ROLLBACK TO here;
         INSERT INTO orders SELECT n, 'many', 0 FROM generate_series(10, 12) AS n; COMMIT",
    )
    .await;
    let row = |id: i64, status: Value, total: Value| json!({"id": id, "status": status, "total": total});
    let expected = [
        told("placed", "2", row(2, "new".into(), json!(1.50))),
        told("placed", "1", row(1, "new".into(), json!(2.0))),
        told("placed", "3", row(3, Value::Null, Value::Null)),
        told("changed", "1", row(1, "paid".into(), json!(2.0))),
        told("removed", "2", row(2, "new".into(), json!(1.50))),
        told("placed", "10", row(10, "many".into(), json!(0.0))),
        told("placed", "11", row(11, "many".into(), json!(0.0))),
        told("placed", "12", row(12, "many".into(), json!(0.0))),
    ];
    assert_eq!(shop.told().await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_upserts_and_statements_within_statements_are_told() {
    use futures_util::SinkExt;
    let shop = Shop::new(ORDERS).await;
    shop.capture_orders().await;
    let copy = shop.client.copy_in("COPY orders (id, status) FROM STDIN").await.unwrap();
    let mut copy = std::pin::pin!(copy);
    copy.send(bytes::Bytes::from_static(b"1\tcopied\n2\tcopied\n")).await.unwrap();
    copy.close().await.unwrap();
    shop.run(
        "INSERT INTO orders (id, status) VALUES (3, 'upsert'), (1, 'upsert'), (4, 'upsert')
             ON CONFLICT (id) DO UPDATE SET status = EXCLUDED.status;
         INSERT INTO orders (id) VALUES (1) ON CONFLICT DO NOTHING;
         WITH moved AS (DELETE FROM orders WHERE id = 2 RETURNING id) INSERT INTO orders SELECT id + 100 FROM moved",
    )
    .await;
    let told = shop.told().await;
    let short: Vec<_> = told.iter().map(|(name, key, _)| (name.as_str(), key.as_deref().unwrap())).collect();
    let expected = [
        ("placed", "1"),
        ("placed", "2"),
        ("placed", "3"),
        ("changed", "1"),
        ("placed", "4"),
        ("removed", "2"),
        ("placed", "102"),
    ];
    assert_eq!(short, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_was_asked_for_is_told() {
    let shop = Shop::new(ORDERS).await;
    let paid = named("paid").changed(&["status", "total"]).unwrap().when("NEW.status = 'paid (in full)'").unwrap();
    let large = named("large").when("NEW.total > 100").unwrap();
    let columns = Payload::Columns(vec!["status".to_owned(), "id".to_owned()]);
    let capture = Capture::new(&shop.table("orders"), "orders").unwrap().payload(columns).unwrap();
    let script = shop.script(capture.on_insert(large).on_update(paid));
    shop.run(&script.create()).await;
    shop.run(
        "INSERT INTO orders VALUES (1, 'new', 100), (2, 'new', 101);
         UPDATE orders SET id = id;
         UPDATE orders SET status = 'paid (in full)';
         UPDATE orders SET status = 'paid (in full)';
         DELETE FROM orders",
    )
    .await;
    let told = shop.told().await;
    let short: Vec<_> = told.iter().map(|(name, _, payload)| (name.as_str(), payload.clone())).collect();
    let expected = [
        ("large", json!({"id": 2, "status": "new"})),
        ("paid", json!({"id": 1, "status": "paid (in full)"})),
        ("paid", json!({"id": 2, "status": "paid (in full)"})),
    ];
    assert_eq!(short, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn before_and_after_headers_and_topics_come_from_columns() {
    let shop = Shop::new("CREATE TABLE t (id uuid PRIMARY KEY, key text, region text, tenant text, n int)").await;
    let capture = Capture::new(&shop.table("t"), "stock.${region}").unwrap();
    let capture = capture.key("key").unwrap().id("id").unwrap().payload(Payload::BeforeAndAfter).unwrap();
    let capture = capture.header("tenant", Source::Column("tenant".to_owned())).unwrap();
    let capture = capture.header("count", Source::Column("n".to_owned())).unwrap();
    let capture = capture.on_insert(named("n.${region}")).on_delete(named("gone"));
    shop.run(&shop.script(capture).create()).await;
    let id = "018f3c1e-0000-7000-8000-000000000001";
    shop.run(&format!(
        "INSERT INTO t VALUES ('{id}', NULL, 'eu', NULL, NULL), (gen_random_uuid(), '', 'us', 'acme', 7);
         DELETE FROM t WHERE region = 'us'"
    ))
    .await;
    let delivered = shop.delivered().await;
    let [first, second, third] = delivered.as_slice() else { panic!("three: {delivered:?}") };
    assert_eq!((&*first.topic, &*first.name, first.id.to_string().as_str()), ("stock.eu", "n.eu", id));
    assert_eq!(
        (first.key.as_ref(), first.headers.is_empty()),
        (None, true),
        "neither key nor headers where all are NULL"
    );
    assert_eq!((&*second.topic, second.key.as_ref()), ("stock.us", None), "an empty key is no key");
    let headers = [("count".to_owned(), "7".to_owned()), ("tenant".to_owned(), "acme".to_owned())];
    assert_eq!(second.headers.decode().unwrap(), headers);
    let change = |envelope: &Envelope| serde_json::from_slice::<Value>(&envelope.payload).unwrap();
    assert_eq!((&change(second)["before"], &change(second)["after"]["n"]), (&Value::Null, &json!(7)));
    assert_eq!((&change(third)["before"]["n"], &change(third)["after"]), (&json!(7), &Value::Null));

    let refused = shop.refused("INSERT INTO t VALUES (gen_random_uuid(), '', 'no topic', NULL, 1)").await;
    assert!(refused.contains("the topic 'stock.no topic' is not usable"), "{refused}");
    let refused = shop.refused("INSERT INTO t VALUES (gen_random_uuid(), '', NULL, NULL, 1)").await;
    assert!(refused.contains("the topic NULL is not usable"), "{refused}");
    assert_eq!(shop.delivered().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_names_and_partitions_are_captured() {
    let shop = Shop::new(
        "CREATE TABLE \"Order \"\"Box\"\"; x'\" (\"Id $1\" int, \"user\" text, at int) PARTITION BY RANGE (at);
         CREATE TABLE early PARTITION OF \"Order \"\"Box\"\"; x'\" FOR VALUES FROM (0) TO (10);
         CREATE TABLE late (at int, \"Id $1\" int, gone int, \"user\" text);
         ALTER TABLE late DROP COLUMN gone;
         ALTER TABLE \"Order \"\"Box\"\"; x'\" ATTACH PARTITION late FOR VALUES FROM (10) TO (20)",
    )
    .await;
    let odd = "\"Order \"\"Box\"\"; x'\"";
    let capture = Capture::new(&shop.table(odd), "boxes").unwrap().key("user").unwrap();
    let payload = Payload::Columns(vec!["Id $1".to_owned(), "at".to_owned()]);
    let capture =
        capture.payload(payload).unwrap().on_insert(named("in")).on_update(named("up")).on_delete(named("out"));
    shop.run(&shop.script(capture).create()).await;
    shop.run(&format!(
        "INSERT INTO {odd} VALUES (1, 'ada', 1), (2, 'bob', 11);
         INSERT INTO early VALUES (3, 'ada', 3);
         UPDATE {odd} SET \"Id $1\" = 4 WHERE at = 11;
         UPDATE {odd} SET at = 12 WHERE at = 1",
    ))
    .await;
    let boxes = |id: i64, at: i64| json!({"Id $1": id, "at": at});
    let expected = [
        told("in", "ada", boxes(1, 1)),
        told("in", "bob", boxes(2, 11)),
        told("in", "ada", boxes(3, 3)),
        told("up", "bob", boxes(4, 11)),
        // A row that moves to another partition leaves the one and enters the other.
        told("out", "ada", boxes(1, 1)),
        told("in", "ada", boxes(1, 12)),
    ];
    assert_eq!(shop.told().await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_can_be_applied_again_changed_and_taken_back() {
    let shop = Shop::new(ORDERS).await;
    let first = shop.capture_orders().await;
    shop.capture_orders().await;
    shop.run("INSERT INTO orders VALUES (1)").await;
    let capture = Capture::new(&shop.table("orders"), "orders").unwrap().key("id").unwrap();
    shop.run(&shop.script(capture.on_delete(named("removed"))).create()).await;
    shop.run("INSERT INTO orders VALUES (2); DELETE FROM orders WHERE id = 1").await;
    shop.run(&first.remove()).await;
    shop.run(&first.remove()).await;
    shop.run("DELETE FROM orders").await;
    let told = shop.told().await;
    assert_eq!(told.iter().map(|(name, ..)| name.as_str()).collect::<Vec<_>>(), ["placed", "removed"]);
    let left = "SELECT count(*) FROM pg_proc WHERE pronamespace = $1::text::regnamespace AND proname LIKE 'capture%'";
    assert_eq!(shop.client.query_one(left, &[&shop.place.schema()]).await.unwrap().get::<_, i64>(0), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_the_table_fails_the_script_and_is_told_before() {
    let shop = Shop::new("CREATE TABLE t (id int, n int, body jsonb)").await;
    let table = shop.table("t");
    let capture = || Capture::new(&table, "t").unwrap().on_insert(named("n"));
    let cases = [
        (
            capture().key("nokey").unwrap(),
            "column new.nokey does not exist",
            "has no column `nokey`; it has id, n, body",
        ),
        (
            capture().payload(Payload::Column("n".to_owned())).unwrap(),
            "does not exist",
            "has the type integer, which is no payload",
        ),
        (capture().id("id").unwrap(), "", "has the type integer, which is no message id"),
        (
            Capture::new(&shop.table("absent"), "t").unwrap().on_insert(named("n")),
            "does not exist",
            "there is no table",
        ),
    ];
    for (capture, at_apply, before) in cases {
        let script = shop.script(capture);
        let problems = capture::check(&url(), &script).await.unwrap();
        assert!(problems.len() == 1 && problems[0].contains(before), "{problems:?}");
        // A number as an id is well typed; only a value would fail.
        if !at_apply.is_empty() {
            let refused = shop.refused(&script.create()).await;
            assert!(refused.contains(at_apply), "{refused}");
        }
    }
    let good = shop.script(capture().payload(Payload::Column("body".to_owned())).unwrap());
    assert_eq!(capture::check(&url(), &good).await.unwrap(), Vec::<String>::new());
    shop.run("INSERT INTO t VALUES (1, 1, '{}')").await;
    assert!(shop.told().await.is_empty(), "a script that failed has left nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_one_row_are_delivered_in_the_order_of_their_commits() {
    let shop = Shop::new(ORDERS).await;
    shop.capture_orders().await;
    shop.run("INSERT INTO orders SELECT n, 'new', 0 FROM generate_series(1, 4) AS n").await;
    let orders = shop.table("orders");
    let writers = (0..8).map(|_| {
        let sql = format!("UPDATE {orders} SET total = total + 1 WHERE id = $1");
        tokio::spawn(async move {
            let client = connect().await;
            for round in 0..25_i64 {
                client.execute(&sql, &[&(round % 4 + 1)]).await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        tokio::time::timeout(Duration::from_secs(120), writer).await.unwrap().unwrap();
    }
    let told = shop.told().await;
    assert_eq!(told.len(), 204);
    for id in 1..=4 {
        let of_one =
            told.iter().filter(|(_, _, row)| row["id"] == id).map(|(_, _, row)| row["total"].as_f64().unwrap());
        let totals: Vec<f64> = of_one.collect();
        assert!(totals.windows(2).all(|pair| pair[0] + 1.0 == pair[1]), "{totals:?}");
    }
}

const OUTBOX: &str = "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL,
    aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload BODY, tracingspancontext varchar(256), tenant text)";

fn row(number: u32, body: &str) -> String {
    format!("('018f3c1e-0000-7000-8000-{number:012}', 'order', 'o-{number}', 'OrderCreated', {body})")
}

const INTO: &str = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES";

#[tokio::test(flavor = "multi_thread")]
async fn a_debezium_outbox_is_relayed_as_it_is() {
    for (ty, literal, payload) in [
        ("jsonb", "'{\"n\": 1}'", b"{\"n\": 1}".as_slice()),
        ("json", "'{\"n\":  1}'", b"{\"n\":  1}"),
        ("text", "'plain \\x41'", b"plain \\x41"),
        ("varchar(90)", "'plain'", b"plain"),
        ("bytea", "'\\xff00'", b"\xff\0"),
    ] {
        let shop = Shop::new(&OUTBOX.replace("BODY", ty)).await;
        let capture = Capture::debezium(&shop.table("outbox")).unwrap();
        let capture = capture.header("tenant", Source::Column("tenant".to_owned())).unwrap();
        let capture = capture.header("traceparent", Source::Tracing("tracingspancontext".to_owned())).unwrap();
        shop.run(&shop.script(capture).create()).await;
        shop.run(&format!("BEGIN; {INTO} {}; DELETE FROM outbox; COMMIT", row(1, literal))).await;
        shop.run(&format!("{INTO} {}, {}", row(2, literal), row(3, "NULL"))).await;
        shop.run(&format!("BEGIN; {INTO} {}; ROLLBACK", row(4, literal))).await;
        shop.run(&format!(
            "INSERT INTO outbox SELECT gen_random_uuid(), 'order', 'o-9', 'T', {literal},
                 E'#comment\\ntraceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\\ntracestate=a', 'acme'"
        ))
        .await;
        let delivered = shop.delivered().await;
        let [first, second, third, last] = delivered.as_slice() else { panic!("four: {delivered:?}") };
        assert_eq!(first.id.to_string(), "018f3c1e-0000-7000-8000-000000000001", "{ty}");
        assert_eq!((&*first.topic, &*first.name), ("outbox.event.order", "OrderCreated"));
        assert_eq!((first.key.as_ref().unwrap().as_str(), first.payload.as_ref()), ("o-1", payload), "{ty}");
        assert_eq!((second.payload.as_ref(), third.payload.as_ref()), (payload, b"".as_slice()), "NULL is empty");
        assert!(second.headers.is_empty());
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned();
        let headers = [("tenant".to_owned(), "acme".to_owned()), ("traceparent".to_owned(), trace)];
        assert_eq!(last.headers.decode().unwrap(), headers);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_outbox_has_already_is_taken_over_once() {
    let shop = Shop::new(&OUTBOX.replace("BODY", "jsonb")).await;
    shop.run(&format!("{INTO} {}, {}", row(1, "'1'"), row(2, "'2'"))).await;
    // A writer that is open when the script is applied: its row is committed before the lock is given.
    let mut other = connect().await;
    let writing = other.transaction().await.unwrap();
    let into = INTO.replace("outbox", &shop.table("outbox"));
    writing.batch_execute(&format!("{into} {}", row(3, "NULL"))).await.unwrap();
    let create = shop.script(Capture::debezium(&shop.table("outbox")).unwrap().with_existing(None).unwrap()).create();
    let appliers: Vec<_> = (0..2)
        .map(|_| {
            let create = create.clone();
            tokio::spawn(async move { connect().await.batch_execute(&create).await.unwrap() })
        })
        .collect();
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::text::regclass";
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while shop.client.query_one(waiting, &[&shop.table("outbox")]).await.unwrap().get::<_, i64>(0) < 2 {
        assert!(std::time::Instant::now() < deadline, "both scripts wait for the writer");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    writing.commit().await.unwrap();
    for applier in appliers {
        applier.await.unwrap();
    }
    shop.run(&format!("{INTO} {}", row(4, "'4'"))).await;
    shop.run(&create).await;
    let keys: Vec<String> = shop.told_keys().await;
    assert_eq!(keys, ["o-1", "o-2", "o-3", "o-4"], "each once, and in their order");
}

/// Which of the rows were told cannot be known there.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_table_had_before_it_was_captured_without_it_is_not_passed_over_in_silence() {
    let shop = Shop::new(&OUTBOX.replace("BODY", "jsonb")).await;
    shop.run(&format!("{INTO} {}", row(1, "'1'"))).await;
    let capture = || Capture::debezium(&shop.table("outbox")).unwrap();
    let without = shop.script(capture());
    let with = shop.script(capture().with_existing(None).unwrap()).create();
    shop.run(&without.create()).await;
    shop.run(&format!("{INTO} {}", row(2, "'2'"))).await;
    let refused = shop.refused(&with).await;
    assert!(refused.contains("captured already") && refused.contains("not taken over"), "{refused}");
    shop.run(&format!("{INTO} {}", row(3, "'3'"))).await;
    assert_eq!(shop.told_keys().await, ["o-2", "o-3"], "nothing is changed");

    // As the hint says: removed, and made anew.
    shop.run(&without.remove()).await;
    for script in [&with, &with, &without.create(), &with] {
        shop.run(script).await;
    }
    shop.run(&format!("{INTO} {}", row(4, "'4'"))).await;
    assert_eq!(shop.told_keys().await, ["o-2", "o-3", "o-1", "o-2", "o-3", "o-4"], "once, however often it is applied");
}

impl Shop {
    async fn told_keys(&self) -> Vec<String> {
        self.delivered().await.iter().map(|envelope| envelope.key.as_ref().unwrap().as_str().to_owned()).collect()
    }
}
