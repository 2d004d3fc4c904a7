//! Triggers that are generated from a declaration, on a real table under real statements.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use mysql_async::{Conn, prelude::Queryable};
use postrider_core::envelope::Envelope;
use postrider_store_mysql::capture::{Capture, Operation, Payload, Script, Source, Tables};
use serde_json::{Value, json};
use support::{Place, clean_up, connect, url};

/// A store, and a table of the application beside it.
struct Shop {
    place: Place,
    table: String,
    database: String,
    connection: Conn,
}

impl Shop {
    async fn new(columns: &str) -> Self {
        let (place, mut connection) = (Place::new().await, connect().await);
        let table = format!("orders_{}", uuid::Uuid::now_v7().simple());
        let database: Option<String> = connection.query_first("SELECT DATABASE()").await.unwrap();
        connection.query_drop(format!("CREATE TABLE {table} ({columns}) ENGINE = InnoDB")).await.unwrap();
        Self { place, table, database: database.unwrap(), connection }
    }

    /// A statement in which `{t}` is the table.
    async fn run(&mut self, sql: &str) {
        self.connection.query_drop(sql.replace("{t}", &self.table)).await.unwrap();
    }

    fn declare(&self, topic: &str) -> Capture {
        Capture::new(&format!("{}.{}", self.database, self.table), topic).unwrap()
    }

    async fn script(&self, capture: Capture) -> Script {
        let captures = vec![capture];
        let tables = Tables::look(&url(), &captures).await.unwrap();
        assert_eq!(tables.problems(&captures), Vec::<String>::new());
        Script::new(&self.place.store().dialect(), None, captures, Some(&tables)).unwrap()
    }

    async fn told(&self) -> Vec<(String, String, Option<String>, Value)> {
        let told = |envelope: &Envelope| {
            let payload = serde_json::from_slice(&envelope.payload)
                .unwrap_or_else(|_| String::from_utf8_lossy(&envelope.payload).into_owned().into());
            let key = envelope.key.as_ref().map(ToString::to_string);
            (envelope.topic.to_string(), envelope.name.to_string(), key, payload)
        };
        self.place.delivered().await.iter().map(told).collect()
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        clean_up(vec![format!("DROP TABLE IF EXISTS {}", self.table)]);
    }
}

fn named(name: &str) -> Operation {
    Operation::named(name).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_of_a_statement_is_told_in_its_transaction() {
    let mut shop = Shop::new(
        "id INT PRIMARY KEY, customer VARCHAR(40) CHARACTER SET latin1, paid BOOLEAN DEFAULT 0, \
                                  kind VARCHAR(9) DEFAULT 'shop'",
    )
    .await;
    let capture = shop.declare("orders.${kind}").key("id").unwrap();
    let paid = named("order.paid").changed(&["paid"]).unwrap().when("NEW.paid = 1").unwrap();
    let capture = capture.on_insert(named("order.placed")).on_update(paid).on_delete(named("order.removed"));
    let script = shop.script(capture).await;
    shop.run(&script.create()).await;
    shop.run("INSERT INTO {t} (id, customer) VALUES (1, 'größe'), (2, 'o''neill'), (3, 'x')").await;
    shop.run("BEGIN; INSERT INTO {t} (id, customer) VALUES (9, 'never'); ROLLBACK").await;
    shop.run("UPDATE {t} SET paid = 1 WHERE id < 3").await;
    shop.run("UPDATE {t} SET customer = 'y' WHERE id = 3").await;
    shop.run("DELETE FROM {t} WHERE id = 3").await;
    let row =
        |id: i32, customer: &str, paid: i32| json!({ "id": id, "customer": customer, "paid": paid, "kind": "shop" });
    let told = |name: &str, payload: Value| {
        ("orders.shop".to_owned(), name.to_owned(), Some(payload["id"].to_string()), payload)
    };
    let expected = [
        told("order.placed", row(1, "größe", 0)),
        told("order.placed", row(2, "o'neill", 0)),
        told("order.placed", row(3, "x", 0)),
        told("order.paid", row(1, "größe", 1)),
        told("order.paid", row(2, "o'neill", 1)),
        told("order.removed", row(3, "y", 0)),
    ];
    assert_eq!(shop.told().await, expected);

    shop.run(&script.create()).await;
    shop.run("INSERT INTO {t} (id, customer) VALUES (4, 'x')").await;
    assert_eq!(shop.told().await.len(), 7, "a script that is applied again replaces its triggers");
    shop.run(&script.remove()).await;
    shop.run("INSERT INTO {t} (id, customer) VALUES (5, 'x')").await;
    assert_eq!(shop.told().await.len(), 7, "and what is removed tells nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_keep_their_kind_and_headers_their_names() {
    let columns = "id CHAR(36) PRIMARY KEY, tenant INT, body JSON, seal VARBINARY(8), flags BIT(4), \
                   price DECIMAL(8, 2), trace TEXT";
    let mut shop = Shop::new(columns).await;
    let capture = shop.declare("t").id("id").unwrap().payload(Payload::BeforeAndAfter).unwrap();
    let capture = capture.header("tenant", Source::Column("tenant".into())).unwrap();
    let capture = capture.header("traceparent", Source::Tracing("trace".into())).unwrap();
    let script = shop.script(capture.on_insert(named("n"))).await;
    shop.run(&script.create()).await;
    let id = "0197741f-8c2e-7b3a-9d51-0c2f6e1a7b44";
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    shop.run(&format!(
        "INSERT INTO {{t}} VALUES ('{id}', 7, '{{\"a\":[1,null]}}', x'00ff', b'101', 9.50, \
         '#comment\\ntraceparent={traceparent}\\nx=y'), ('0197741f-8c2e-7b3a-9d51-0c2f6e1a7b45', NULL, NULL, NULL, NULL, \
         NULL, NULL)"
    ))
    .await;
    let delivered = shop.place.delivered().await;
    assert_eq!(delivered[0].id.to_string(), id);
    let header = |at: usize| delivered[at].headers.decode().unwrap().into_iter().collect::<Vec<_>>();
    let wanted =
        [("tenant", "7"), ("traceparent", traceparent)].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!((header(0), header(1)), (wanted.to_vec(), Vec::new()));
    let payload: Value = serde_json::from_slice(&delivered[0].payload).unwrap();
    let row = &payload["after"];
    assert_eq!(
        (&payload["before"], &row["body"], &row["seal"]),
        (&Value::Null, &json!({ "a": [1, null] }), &"00ff".into())
    );
    assert_eq!((&row["flags"], row["price"].as_f64()), (&5.into(), Some(9.5)), "{row}");
    let empty: Value = serde_json::from_slice(&delivered[1].payload).unwrap();
    assert_eq!((&empty["after"]["body"], &empty["after"]["seal"]), (&Value::Null, &Value::Null));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_table_is_captured_as_it_is() {
    let columns = "id CHAR(36) PRIMARY KEY, aggregatetype VARCHAR(255) NOT NULL, aggregateid VARCHAR(255) NOT NULL, \
                   type VARCHAR(255) NOT NULL, payload LONGBLOB";
    let mut shop = Shop::new(columns).await;
    let capture = Capture::debezium(&format!("{}.{}", shop.database, shop.table)).unwrap();
    // Nothing has to be looked up: the payload is a column.
    let script = Script::new(&shop.place.store().dialect(), None, vec![capture], None).unwrap();
    shop.run(&script.create()).await;
    shop.run(
        "INSERT INTO {t} VALUES (UUID(), 'order', 'a1', 'placed', x'00FF'), (UUID(), 'order', 'a1', 'paid', NULL)",
    )
    .await;
    shop.run("DELETE FROM {t}").await;
    let delivered = shop.place.delivered().await;
    let told: Vec<_> =
        delivered.iter().map(|e| (&*e.topic, &*e.name, e.key.as_ref().unwrap().as_str(), &e.payload[..])).collect();
    let topic = "outbox.event.order";
    assert_eq!(told, [(topic, "placed", "a1", &b"\x00\xff"[..]), (topic, "paid", "a1", b"")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_database_does_not_have_is_told_before() {
    let shop = Shop::new("id INT PRIMARY KEY").await;
    let capture = shop.declare("t").key("customer").unwrap().on_insert(named("n"));
    let nowhere = Capture::new(&format!("{}.nothing_here", shop.database), "t").unwrap().on_insert(named("n"));
    let captures = [capture, nowhere];
    let problems = Tables::look(&url(), &captures).await.unwrap().problems(&captures);
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].ends_with("has no column `customer`; it has id"), "{problems:?}");
    assert!(problems[1].starts_with("there is no table `nothing_here`"), "{problems:?}");
}
