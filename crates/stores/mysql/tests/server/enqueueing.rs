//! Getting in: plain SQL from another program, transactions that the server has ended, and isolation levels.

use std::process::Command;

use mysql_async::{TxOpts, prelude::Queryable};
use postrider_core::{ErrorKind, enlist::Enlist, envelope::Envelope};

use crate::{
    names,
    support::{Place, batch, connect, url},
};

/// Runs SQL with the server's own client, as a service in any language would.
fn client(sql: &str) {
    let options = mysql_async::Opts::from_url(&url()).unwrap();
    let output = Command::new("mariadb")
        .args(["--host", options.ip_or_hostname(), "--port", &options.tcp_port().to_string()])
        .args(["--user", options.user().unwrap(), "--execute", sql, options.db_name().unwrap()])
        .env("MYSQL_PWD", options.pass().unwrap_or_default())
        .output()
        .expect("the program `mariadb` runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_sql_enqueues() {
    let place = Place::new().await;
    let log = format!("{}log", place.prefix());
    client(&format!(
        "BEGIN; INSERT INTO {log} (topic, name, `key`, payload) VALUES ('orders', 'one', 'größe', '{{}}'), \
         ('orders', 'two', NULL, 'x'); COMMIT; \
         BEGIN; INSERT INTO {log} (topic, name, payload) VALUES ('orders', 'never', ''); ROLLBACK; \
         INSERT INTO {log} (topic, name, payload) SELECT 'orders', 'three', ''"
    ));
    let delivered = place.delivered().await;
    assert_eq!(names(&delivered), ["one", "two", "three"]);
    assert_eq!(delivered[0].key.as_ref().unwrap().as_str(), "größe");
    assert_eq!(&delivered[0].payload[..], b"{}");
    assert_ne!(delivered[0].id, delivered[1].id, "an id is made for whoever gives none");
}

/// The example of the guide, as it stands there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guides_example_enqueues_with_headers() {
    let guide = include_str!("../../../../../docs/operate/mysql.md");
    let (_, example) = guide.split("```sql").nth(1).and_then(|block| block.split_once('\n')).unwrap();
    let example = example.split("```").next().unwrap();
    let place = Place::new().await;
    let orders = format!("{}keys", place.prefix());
    let table = format!("CREATE TABLE {orders} (number BIGINT PRIMARY KEY, state VARCHAR(20)) ENGINE = InnoDB;");
    let example = example.replace("postrider_", place.prefix()).replace("UPDATE orders", &format!("UPDATE {orders}"));
    client(&format!("{table} {example}"));
    let delivered = place.delivered().await;
    assert_eq!(names(&delivered), ["order.placed"]);
    let headers = [("attempt", "2"), ("tenant", "acme")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(delivered[0].headers.decode().unwrap(), headers);
    assert_eq!(&delivered[0].payload[..], br#"{"number": 4711}"#);
}

/// As a service writes them itself: text, escapes, and what is no header at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_of_plain_sql_are_one_json_object_in_utf_8() {
    let place = Place::new().await;
    let mut connection = connect().await;
    connection.query_drop("SET NAMES latin1").await.unwrap();
    let insert = format!("INSERT INTO {}log (topic, name, headers, payload) VALUES ('t', 'n', ", place.prefix());
    for headers in [
        r#"'{"tenant": "acme"}'"#,
        r#"CONVERT(JSON_OBJECT('size', CONCAT('gr', _latin1 X'F6', _latin1 X'DF', 'e "42"')) USING utf8mb4)"#,
        "NULL",
        "''",
        "'[1]'",
    ] {
        connection.query_drop(format!("{insert}{headers}, '')")).await.unwrap();
    }
    let delivered = place.delivered().await;
    let headers = |index: usize| delivered[index].headers.decode();
    assert_eq!(headers(0).unwrap(), [("tenant".to_owned(), "acme".to_owned())]);
    assert_eq!(headers(1).unwrap(), [("size".to_owned(), "größe \"42\"".to_owned())]);
    assert_eq!((headers(2).unwrap(), headers(3).unwrap()), (Vec::new(), Vec::new()));
    assert_eq!(headers(4).unwrap_err().kind(), ErrorKind::Corrupt, "what is no object is told when it is published");
}

/// After a deadlock the server has rolled the transaction back, and an insert would commit alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_a_deadlock_has_ended_is_refused() {
    let place = Place::new().await;
    let dialect = place.store().dialect();
    let accounts = format!("{}keys", place.prefix());
    let (mut one, mut two) = (connect().await, connect().await);
    one.query_drop(format!("CREATE TABLE {accounts} (id INT PRIMARY KEY, n INT) ENGINE = InnoDB")).await.unwrap();
    one.query_drop(format!("INSERT INTO {accounts} VALUES (1, 0), (2, 0)")).await.unwrap();
    let mut one = one.start_transaction(TxOpts::default()).await.unwrap();
    let mut two = two.start_transaction(TxOpts::default()).await.unwrap();
    let change = |id: u32| format!("UPDATE {accounts} SET n = n + 1 WHERE id = {id}");
    one.query_drop(change(1)).await.unwrap();
    two.query_drop(change(2)).await.unwrap();
    let (first, second) = tokio::join!(one.query_drop(change(2)), two.query_drop(change(1)));
    assert!(first.is_err() != second.is_err(), "one of them is ended");
    for (mut transaction, ended) in [(one, first.is_err()), (two, second.is_err())] {
        let enqueued = transaction.append(&dialect, batch(vec![Envelope::new("t", "n", "")])).await;
        assert_eq!(enqueued.is_err(), ended, "{enqueued:?}");
        transaction.rollback().await.unwrap();
    }
    assert_eq!(place.delivered().await, []);
}

/// A statement that ends it does the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_has_ended_is_refused() {
    let place = Place::new().await;
    let dialect = place.store().dialect();
    let mut connection = connect().await;
    for end in ["ROLLBACK", "COMMIT"] {
        let mut transaction = connection.start_transaction(TxOpts::default()).await.unwrap();
        transaction.query_drop(end).await.unwrap();
        let refused = transaction.append(&dialect, batch(vec![Envelope::new("t", "n", "")])).await.unwrap_err();
        assert!(refused.to_string().contains("already ended"), "{refused}");
        transaction.rollback().await.unwrap();
    }
    let mut transaction = connection.start_transaction(TxOpts::default()).await.unwrap();
    transaction.query_drop("SELECT nonsense").await.unwrap_err();
    // An error that ends nothing refuses nothing.
    transaction.append(&dialect, batch(vec![Envelope::new("t", "kept", "")])).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(names(&place.delivered().await), ["kept"]);
}

/// Ten thousand in one transaction, at every isolation level, beside a transaction that stays open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producers_at_every_isolation_level_wait_for_nobody() {
    let place = Place::new().await;
    let dialect = place.store().dialect();
    let levels = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
    let mut open = Vec::new();
    for level in levels {
        let mut connection = connect().await;
        connection.query_drop(format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")).await.unwrap();
        // A lock that would be waited for is an error at once.
        connection.query_drop("SET SESSION innodb_lock_wait_timeout = 0").await.unwrap();
        connection.query_drop("BEGIN").await.unwrap();
        let insert = format!("INSERT INTO {}log (topic, name, payload) VALUES ('t', ?, '')", place.prefix());
        connection.exec_drop(&insert, (level,)).await.unwrap();
        open.push((level, connection, insert));
    }
    let mut connection = connect().await;
    let mut transaction = connection.start_transaction(TxOpts::default()).await.unwrap();
    let many: Vec<Envelope> = (0..10_000).map(|_| Envelope::new("t", "many", "")).collect();
    transaction.append(&dialect, batch(many.clone())).await.unwrap();
    transaction.commit().await.unwrap();
    assert!(place.delivered().await == many, "what is committed is read, whoever else is still open");
    let mut expected: Vec<String> = Vec::new();
    for (level, mut connection, insert) in open {
        // The table was emptied beside its row meanwhile, and it goes on inserting.
        connection.exec_drop(&insert, (level,)).await.unwrap();
        connection.query_drop("COMMIT").await.unwrap();
        expected.extend([level.to_owned(), level.to_owned()]);
        assert_eq!(names(&place.delivered().await)[10_000..], expected);
    }
}
