//! What depends on the server: plain SQL from another program, migrations that race or are cut off, settings and tables that
//! are refused, transactions that the server has ended, and the counter-examples that the order list was made for.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{process::Command, time::Duration};

use mysql_async::{TxOpts, prelude::Queryable};
use postrider_core::{
    ErrorKind,
    admin::{Actor, ParkedFilter, StoreAdmin},
    doctor::{Severity, Thresholds},
    enlist::Enlist,
    envelope::Envelope,
    lease::{LaneId, Lease},
    log::{Cursor, Log, PageLimit, RecordRef, Retention, Settlement},
    parked::Parked,
};
use postrider_store_mysql::{Mysql, MysqlStore, migrations};
use postrider_testkit::{
    fault::{Proxy, Traffic},
    store::Fixture,
};
use support::{Place, Tables, batch, builder, connect, node, spec, url};

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

fn names(envelopes: &[Envelope]) -> Vec<&str> {
    envelopes.iter().map(|envelope| &*envelope.name).collect()
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn openers_that_race_migrate_once() {
    let tables = Tables::fresh();
    let opening = (0..6).map(|_| tokio::spawn(builder(tables.prefix()).open()));
    for opened in opening.collect::<Vec<_>>() {
        opened.await.unwrap().unwrap();
    }
    let dialect = Mysql::with_prefix(tables.prefix()).unwrap();
    let status = migrations::status(&url(), &dialect).await.unwrap();
    assert!(status.iter().all(|standing| standing.applied_at.is_some()));
    assert_eq!(migrations::plan(&url(), &dialect).await.unwrap(), []);
    assert_eq!(migrations::up(&url(), &dialect, &Actor::new("tests")).await.unwrap(), []);
}

/// Cut off behind each statement in turn: whatever was there, the next opening goes on, and no message is forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_that_was_cut_off_goes_on() {
    let script = |prefix: &str| migrations::sql(&Mysql::with_prefix(prefix).unwrap());
    let statements = script("x_").split(";\n").filter(|text| text.contains(' ')).count();
    for done in 0..statements {
        let tables = Tables::fresh();
        let mut connection = connect().await;
        for statement in script(tables.prefix()).split(";\n").take(done) {
            connection.query_drop(statement).await.unwrap();
        }
        let log = format!("{}log", tables.prefix());
        // Somebody enqueues before the schema is complete.
        let early =
            connection.query_drop(format!("INSERT INTO {log} (topic, name, payload) VALUES ('t', 'early', '')")).await;
        let store = builder(tables.prefix()).open().await.unwrap();
        let records = store.overview().await.unwrap().records;
        assert_eq!(records, u64::from(early.is_ok()), "behind {done} statements");
        let mut rows: Vec<u64> =
            connection.query(format!("SELECT COUNT(*) FROM {}ordering", tables.prefix())).await.unwrap();
        assert_eq!(rows.pop(), Some(records), "behind {done} statements: what was enqueued early has its place");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_is_missing_newer_or_altered_is_refused() {
    let tables = Tables::fresh();
    let refused = builder(tables.prefix()).migrate(false).open().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Schema, "{refused}");
    builder(tables.prefix()).open().await.unwrap();
    builder(tables.prefix()).migrate(false).open().await.unwrap();
    let mut connection = connect().await;
    let migration = format!("{}migration", tables.prefix());
    let newer = ("version = version + 1 ORDER BY version DESC", "version = version - 1 ORDER BY version");
    for (change, back) in [newer, ("checksum = 'other'", "")] {
        connection.query_drop(format!("UPDATE {migration} SET {change}")).await.unwrap();
        let refused = builder(tables.prefix()).open().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Schema, "{refused}");
        if !back.is_empty() {
            connection.query_drop(format!("UPDATE {migration} SET {back}")).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_cannot_roll_back_and_a_missing_trigger_are_refused() {
    let tables = Tables::fresh();
    builder(tables.prefix()).open().await.unwrap();
    let mut connection = connect().await;
    let log = format!("{}log", tables.prefix());
    connection.query_drop(format!("ALTER TABLE {log} ENGINE = MyISAM")).await.unwrap();
    let refused = builder(tables.prefix()).open().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("InnoDB") && refused.to_string().contains(&log), "{refused}");
    connection.query_drop(format!("ALTER TABLE {log} ENGINE = InnoDB")).await.unwrap();
    connection.query_drop(format!("DROP TRIGGER {log}_pending")).await.unwrap();
    let refused = builder(tables.prefix()).open().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Schema);
    assert!(refused.to_string().contains("trigger"), "{refused}");
}

/// Dropped under a running store, which nobody would notice by what is delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_a_missing_trigger_did_not_note_are_told_and_noted() {
    let place = Place::new().await;
    let (store, dialect) = (place.store(), place.store().dialect());
    let codes = async || {
        let told = store.doctor(Thresholds::default()).await.unwrap();
        told.iter()
            .filter(|finding| finding.severity == Severity::Error)
            .map(|finding| finding.code)
            .collect::<Vec<_>>()
    };
    place.commit(vec![Envelope::new("t", "noted", "")]).await;
    assert_eq!(codes().await, [""; 0]);
    let mut connection = connect().await;
    connection.query_drop(format!("DROP TRIGGER {}log_pending", place.prefix())).await.unwrap();
    place.commit(vec![Envelope::new("t", "missed", ""), Envelope::new("t", "missed", "")]).await;
    assert_eq!(names(&place.delivered().await), ["noted"]);
    assert_eq!(codes().await, ["trigger-missing", "unnoted-messages"]);
    assert_eq!(migrations::up(&url(), &dialect, &Actor::new("tests")).await.unwrap(), []);
    assert_eq!(codes().await, [""; 0]);
    place.commit(vec![Envelope::new("t", "again", "")]).await;
    assert_eq!(names(&place.delivered().await), ["noted", "missed", "missed", "again"]);
    // Once more, and nothing is noted twice.
    migrations::up(&url(), &dialect, &Actor::new("tests")).await.unwrap();
    assert_eq!(place.delivered().await.len(), 4);
}

/// Nothing is purged before everybody has passed it, so a message that is not there is no reason to go on behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_the_order_list_names_and_that_is_gone_is_not_passed_over() {
    let place = Place::new().await;
    let store = place.store();
    place.commit(vec![Envelope::new("t", "one", ""), Envelope::new("t", "two", "")]).await;
    let (node, lane) = (node("r", Duration::from_secs(3600)), LaneId { route: "r".into(), number: 0 });
    store.register(&node, &[spec("r")]).await.unwrap();
    let lease = store.acquire(&lane, &node).await.unwrap().unwrap();
    let cursor = store.resume(&lease).await.unwrap().cursor;
    let limit = postrider_core::log::PageLimit { records: 10, bytes: 1 << 20 };
    let log = format!("{}log", place.prefix());
    assert_eq!(store.read(&lease, &cursor, limit).await.unwrap().records.len(), 2);
    let mut connection = connect().await;
    connection.query_drop(format!("DELETE FROM {log} WHERE name = 'one'")).await.unwrap();
    let refused = store.read(&lease, &cursor, limit).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    connection
        .query_drop(format!("INSERT INTO {log} (seq, topic, name, payload) VALUES (1, 't', 'put back', '')"))
        .await
        .unwrap();
    let read = store.read(&lease, &cursor, limit).await.unwrap();
    assert_eq!(&*read.records[0].envelope.name, "put back");
}

/// Trigger and messages come back one by one, by hand: what was missed is found however much came after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_were_missed_long_ago_are_told_and_noted() {
    let place = Place::new().await;
    let (store, dialect, prefix) = (place.store(), place.store().dialect(), place.prefix());
    let script = migrations::sql(&dialect);
    let trigger = script.split(";\n").find(|statement| statement.contains("CREATE TRIGGER")).unwrap();
    let mut connection = connect().await;
    for numbers in [100_000, 5_000_000_000_i64] {
        connection.query_drop(format!("DROP TRIGGER {prefix}log_pending")).await.unwrap();
        place.commit(vec![Envelope::new("t", "missed", "")]).await;
        connection.query_drop(trigger).await.unwrap();
        connection.query_drop(format!("ALTER TABLE {prefix}log AUTO_INCREMENT = {numbers}")).await.unwrap();
        place.commit(vec![Envelope::new("t", "noted", "")]).await;
        if numbers == 100_000 {
            let told = store.doctor(Thresholds::default()).await.unwrap();
            assert!(told.iter().any(|finding| finding.code == "unnoted-messages"), "{told:?}");
        }
        assert!(names(&place.delivered().await).ends_with(&["noted"]));
        migrations::up(&url(), &dialect, &Actor::new("tests")).await.unwrap();
        assert!(names(&place.delivered().await).ends_with(&["noted", "missed"]));
    }
    let audited = store.audit(100).await.unwrap();
    assert_eq!(audited.iter().filter(|entry| entry.subject.contains("never noted")).count(), 2, "{audited:?}");
}

/// The only lane of a route of its own, and where it begins.
async fn take(store: &MysqlStore) -> (Lease, Cursor) {
    let (node, lane) = (node("r", Duration::from_secs(3600)), LaneId { route: "r".into(), number: 0 });
    store.register(&node, &[spec("r")]).await.unwrap();
    let lease = store.acquire(&lane, &node).await.unwrap().unwrap();
    let cursor = store.resume(&lease).await.unwrap().cursor;
    (lease, cursor)
}

const LIMIT: PageLimit = PageLimit { records: 10, bytes: 1 << 20 };

/// What gives the place `last` to the newest message that waits, as SQL.
fn ordering_by_hand(prefix: &str, last: i64) -> [String; 3] {
    [
        format!(
            "INSERT INTO {prefix}ordering (last, lo, hi, ordered_at, list)
             SELECT {last}, seq, seq, 0, CONCAT(UNHEX(LPAD(HEX(seq), 16, '0')), UNHEX(LPAD(HEX(bytes), 8, '0')))
               FROM {prefix}pending
              ORDER BY p DESC
              LIMIT 1"
        ),
        format!("DELETE FROM {prefix}pending ORDER BY p DESC LIMIT 1"),
        format!("UPDATE {prefix}counter SET value = {last} WHERE name = 'place'"),
    ]
}

/// A view of MariaDB may show a batch and hide the one before, which was committed a moment earlier.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_hidden_behind_the_next_one_is_waited_for() {
    let place = Place::new().await;
    let prefix = place.prefix().to_owned();
    let (store, (lease, cursor)) = (place.store(), take(&place.store()).await);
    let (mut first, mut second) = (connect().await, connect().await);
    for connection in [&mut first, &mut second] {
        connection.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
        connection.query_drop("BEGIN").await.unwrap();
    }
    place.commit(vec![Envelope::new("t", "one", "")]).await;
    for sql in ordering_by_hand(&prefix, 1) {
        first.query_drop(sql).await.unwrap();
    }
    // Without the counter, whose lock the first one has.
    second.query_drop(format!("INSERT INTO {prefix}log (topic, name, payload) VALUES ('t', 'two', '')")).await.unwrap();
    for sql in &ordering_by_hand(&prefix, 2)[..2] {
        second.query_drop(sql).await.unwrap();
    }
    second.query_drop("COMMIT").await.unwrap();
    let reading = tokio::spawn(async move { store.read(&lease, &cursor, LIMIT).await });
    until_waiting(&prefix).await;
    first.query_drop(format!("UPDATE {prefix}counter SET value = 2 WHERE name = 'place'")).await.unwrap();
    first.query_drop("COMMIT").await.unwrap();
    let page = reading.await.unwrap().unwrap();
    assert_eq!(page.records.iter().map(|record| &*record.envelope.name).collect::<Vec<_>>(), ["one", "two"]);
}

/// Only retention makes the list shorter, and only where everybody has passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hole_in_the_order_list_is_not_passed_over_unless_it_was_purged() {
    let place = Place::new().await;
    let (store, prefix) = (place.store(), place.prefix());
    let (lease, begin) = take(&store).await;
    let mut cursor = begin.clone();
    let mut ends = Vec::new();
    for name in ["one", "two", "three", "four"] {
        // Each read gives the place to one, as a batch of its own.
        place.commit(vec![Envelope::new("t", name, "")]).await;
        cursor = store.read(&lease, &cursor, LIMIT).await.unwrap().end;
        ends.push(cursor.clone());
    }
    let settlement = Settlement { number: 1, advance: Some(ends[0].clone()), ..Settlement::default() };
    store.settle(&lease, &settlement).await.unwrap();
    assert_eq!(store.purge(Retention::by_age(Duration::ZERO)).await.unwrap(), 1);
    assert_eq!(names(&place.delivered().await), ["two", "three", "four"], "a reader that begins with the oldest");
    let mut connection = connect().await;
    let hide = |last: u32| format!("UPDATE {prefix}ordering SET last = -last WHERE last = {last}");
    let show = |last: u32| format!("UPDATE {prefix}ordering SET last = {last} WHERE last = -{last}");
    let refused = async |cursor: &Cursor| {
        let refused = store.read(&lease, cursor, LIMIT).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        assert!(refused.to_string().contains("order list"), "{refused}");
    };
    connection.query_drop(hide(2)).await.unwrap();
    refused(&ends[0]).await;
    refused(&begin).await;
    connection.query_drop(show(2)).await.unwrap();
    connection.query_drop(hide(3)).await.unwrap();
    let page = store.read(&lease, &ends[0], LIMIT).await;
    assert!(page.is_err(), "it is noticed no later than here: {page:?}");
    refused(&ends[1]).await;
    connection.query_drop(show(3)).await.unwrap();
    connection.query_drop(hide(4)).await.unwrap();
    refused(&ends[2]).await;
    connection.query_drop(show(4)).await.unwrap();
    assert_eq!(store.read(&lease, &ends[0], LIMIT).await.unwrap().records.len(), 3);
}

/// What another process has ordered is seen before it is on the disk; what one has ordered oneself is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_have_ordered_is_handed_out_behind_a_commit() {
    let place = Place::new().await;
    let (one, other) = (place.another().await, place.another().await);
    let mut connection = connect().await;
    let on_disk: Option<bool> = connection.query_first("SELECT @@log_bin AND @@sync_binlog = 1").await.unwrap();
    if on_disk == Some(true) {
        return;
    }
    let mut barriers = async || -> i64 {
        let sql = format!("SELECT value FROM {}counter WHERE name = 'barrier'", place.prefix());
        connection.query_first(sql).await.unwrap().unwrap()
    };
    let (lease, mut cursor) = take(&one).await;
    for _ in 0..3 {
        place.commit(vec![Envelope::new("t", "n", ""), Envelope::new("t", "n", "")]).await;
        let page = one.read(&lease, &cursor, LIMIT).await.unwrap();
        assert_eq!(page.records.len(), 2);
        cursor = page.end;
    }
    assert_eq!(barriers().await, 0, "whoever orders has committed");
    place.commit((0..4).map(|_| Envelope::new("t", "n", "")).collect()).await;
    other.overview().await.unwrap();
    let few = PageLimit { records: 2, ..LIMIT };
    for _ in 0..2 {
        let page = one.read(&lease, &cursor, few).await.unwrap();
        assert_eq!(page.records.len(), 2);
        cursor = page.end;
        assert_eq!(barriers().await, 1, "once for all that was seen");
    }
    assert!(one.read(&lease, &cursor, few).await.unwrap().records.is_empty());
    assert_eq!(barriers().await, 1, "and not for nothing");
}

/// The messages have their places before this process could see them: somebody else was quicker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_have_ordered_wakes_a_waiter() {
    let place = Place::new().await;
    let (store, prefix) = (place.store(), place.prefix());
    let mut connection = connect().await;
    for round in 1..=5 {
        let hint = store.hint();
        let log = format!("INSERT INTO {prefix}log (topic, name, payload) VALUES ('t', 'n', '')");
        let ordering = ordering_by_hand(prefix, round);
        for sql in [&["BEGIN".to_owned(), log][..], &ordering, &["COMMIT".to_owned()]].concat() {
            connection.query_drop(sql).await.unwrap();
        }
        assert!(tokio::time::timeout(Duration::from_secs(60), hint).await.is_ok(), "round {round}");
    }
}

/// A relay whose process stands still, or whose machine is gone, keeps the lock that all others need; its session does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_stands_still_in_a_transaction_holds_others_up_for_a_while_only() {
    let place = Place::new().await;
    let options = mysql_async::Opts::from_url(&url()).unwrap();
    let proxy = Proxy::to(&format!("{}:{}", options.ip_or_hostname(), options.tcp_port())).await;
    let through = url().replace(&format!(":{}/", options.tcp_port()), &format!(":{}/", proxy.address().port()));
    let still = MysqlStore::builder(&through).prefix(place.prefix()).open().await.unwrap();
    place.commit(vec![Envelope::new("t", "one", "")]).await;
    let mut other = connect().await;
    let mut holding = other.start_transaction(TxOpts::default()).await.unwrap();
    holding
        .query_drop(format!("SELECT 1 FROM {}counter WHERE name = 'place' FOR UPDATE", place.prefix()))
        .await
        .unwrap();
    let standing = tokio::spawn(async move { still.overview().await.map(|_| ()) });
    until_waiting(place.prefix()).await;
    // It gets the lock, and never learns of it.
    proxy.set(Traffic::Silent);
    holding.rollback().await.unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(300);
    while place.store().overview().await.is_err() {
        assert!(std::time::Instant::now() < deadline, "the lock is let go");
    }
    assert_eq!(names(&place.delivered().await), ["one"]);
    standing.abort();
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

/// A low number may commit late: who empties the log up to a number loses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_waits_for_a_transaction_that_is_still_open() {
    let place = Place::new().await;
    let store = place.store();
    let (node, lane) = (node("r", Duration::from_secs(3600)), LaneId { route: "r".into(), number: 0 });
    store.register(&node, &[spec("r")]).await.unwrap();
    let lease = store.acquire(&lane, &node).await.unwrap().unwrap();
    let log = format!("{}log", place.prefix());
    let (mut slow, mut fast) = (connect().await, connect().await);
    slow.query_drop("BEGIN").await.unwrap();
    slow.query_drop(format!("INSERT INTO {log} (topic, name, payload) VALUES ('t', 'slow', '')")).await.unwrap();
    fast.query_drop(format!("INSERT INTO {log} (topic, name, payload) VALUES ('t', 'fast', '')")).await.unwrap();
    let read = async |number| {
        let cursor = store.resume(&lease).await.unwrap().cursor;
        let limit = postrider_core::log::PageLimit { records: 10, bytes: 1 << 20 };
        let page = store.read(&lease, &cursor, limit).await.unwrap();
        let settlement = Settlement { number, advance: Some(page.end.clone()), ..Settlement::default() };
        store.settle(&lease, &settlement).await.unwrap();
        page.records.iter().map(|record| record.envelope.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(read(1).await, ["fast"]);
    assert_eq!(store.purge(Retention::by_age(Duration::ZERO)).await.unwrap(), 1, "it need not wait for the open one");
    slow.query_drop("COMMIT").await.unwrap();
    assert_eq!(read(2).await, ["slow"], "a low number that commits late is read, also behind a purge");
    assert_eq!(store.purge(Retention::by_age(Duration::ZERO)).await.unwrap(), 1);
    assert_eq!(store.overview().await.unwrap().records, 0);
}

/// By number: whole batches go that lie beyond the newest, however young they are, and nothing that was not passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_by_number_keeps_the_newest_and_what_was_not_passed() {
    let place = Place::new().await;
    let store = place.store();
    let (node, lane) = (node("r", Duration::from_secs(3600)), LaneId { route: "r".into(), number: 0 });
    store.register(&node, &[spec("r")]).await.unwrap();
    let lease = store.acquire(&lane, &node).await.unwrap().unwrap();
    let mut cursor = store.resume(&lease).await.unwrap().cursor;
    let limit = postrider_core::log::PageLimit { records: 10, bytes: 1 << 20 };
    for _ in 0..5 {
        // Each read gives the place to one, as a batch of its own.
        place.commit(vec![Envelope::new("t", "n", "")]).await;
        cursor = store.read(&lease, &cursor, limit).await.unwrap().end;
    }
    assert_eq!(store.purge(Retention::by_count(2)).await.unwrap(), 0, "nothing of it was passed");
    let settlement = Settlement { number: 1, advance: Some(cursor), ..Settlement::default() };
    store.settle(&lease, &settlement).await.unwrap();
    let long = Retention { keep: Some(Duration::from_secs(3600)), records_max: Some(4) };
    assert_eq!(store.purge(Retention::default()).await.unwrap(), 0);
    assert_eq!(store.purge(Retention::by_count(5)).await.unwrap(), 0);
    assert_eq!(store.purge(long).await.unwrap(), 1);
    assert_eq!(store.purge(Retention::by_count(2)).await.unwrap(), 2);
    assert_eq!(store.overview().await.unwrap().records, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parked_rows_are_chosen_by_when_they_were_parked() {
    let place = Place::new().await;
    let store = place.store();
    let (node, lane) = (node("r", Duration::from_secs(3600)), LaneId { route: "r".into(), number: 0 });
    store.register(&node, &[spec("r")]).await.unwrap();
    let lease = store.acquire(&lane, &node).await.unwrap().unwrap();
    place.commit(vec![Envelope::new("t", "one", ""), Envelope::new("t", "two", "")]).await;
    let cursor = store.resume(&lease).await.unwrap().cursor;
    let limit = postrider_core::log::PageLimit { records: 10, bytes: 1 << 20 };
    let page = store.read(&lease, &cursor, limit).await.unwrap();
    let mut instants = Vec::new();
    for (number, index) in [(1, 0), (2, 1)] {
        instants.push(place.now().await);
        let park = vec![(RecordRef::new(&page.records, index), Parked::Held)];
        store.settle(&lease, &Settlement { number, park, ..Settlement::default() }).await.unwrap();
    }
    instants.push(place.now().await.saturating_add(Duration::from_secs(1)));
    for (instant, expected) in instants.into_iter().zip(0..) {
        let filter = ParkedFilter { parked_before: Some(instant), ..ParkedFilter::default() };
        assert_eq!(store.parked_count(&filter).await.unwrap(), expected, "{filter}");
    }
}

/// The server looks at its transactions again only when nobody has asked for a tenth of a second: one test asks at a time.
static ASKING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Between two questions.
const SILENCE: Duration = Duration::from_millis(300);

/// Until a statement that names a table with this prefix waits for a lock.
async fn until_waiting(prefix: &str) {
    let _asking = ASKING.lock().await;
    let mut connection = connect().await;
    let sql = format!(
        "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%{prefix}%'"
    );
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    // MySQL cannot show the list while the text of a statement in it is no UTF-8.
    while connection.query_first(&sql).await.unwrap_or_default() != Some(1) {
        assert!(std::time::Instant::now() < deadline, "a statement waits for a lock");
        tokio::time::sleep(SILENCE).await;
    }
}

/// The names in the log by their numbers, which is not their order.
async fn by_number(place: &Place) -> Vec<String> {
    connect().await.query(format!("SELECT name FROM {}log ORDER BY seq", place.prefix())).await.unwrap()
}

/// Somebody else gives a message its place between two looks of a reader, which must not take that for the end of the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_has_ordered_meanwhile_is_read_at_once() {
    let place = Place::new().await;
    let (prefix, mut other) = (place.prefix().to_owned(), connect().await);
    place.commit(vec![Envelope::new("orders", "one", "{}")]).await;
    let mut ordering = other.start_transaction(TxOpts::default()).await.unwrap();
    ordering.query_drop(format!("SELECT 1 FROM {prefix}counter WHERE name = 'place' FOR UPDATE")).await.unwrap();
    let reading = place.delivered();
    let meanwhile = async {
        until_waiting(&prefix).await;
        for sql in ordering_by_hand(&prefix, 1) {
            ordering.query_drop(sql).await.unwrap();
        }
        ordering.commit().await.unwrap();
    };
    let (delivered, ()) = tokio::join!(reading, meanwhile);
    assert_eq!(names(&delivered), ["one"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_insert_that_waits_with_its_number_is_not_taken_for_one_that_was_rolled_back() {
    let place = Place::new().await;
    let insert =
        |name: &str| format!("INSERT INTO {}log (topic, name, payload) VALUES ('t', '{name}', '')", place.prefix());
    let (mut foreign, mut waiting) = (connect().await, connect().await);
    foreign.query_drop(insert("first")).await.unwrap();
    foreign.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    foreign.query_drop("BEGIN").await.unwrap();
    let everything = format!("SELECT seq FROM {}log WHERE seq > 0 FOR UPDATE", place.prefix());
    let _: Vec<u64> = foreign.query(everything).await.unwrap();
    waiting.query_drop("BEGIN").await.unwrap();
    let late = insert("late");
    let waiting = tokio::spawn(async move { waiting.query_drop(late).await.map(|()| waiting) });
    until_waiting(place.prefix()).await;
    foreign.query_drop(insert("foreign")).await.unwrap();
    foreign.query_drop("COMMIT").await.unwrap();
    assert_eq!(names(&place.delivered().await), ["first", "foreign"]);
    let mut waiting = waiting.await.unwrap().unwrap();
    assert_eq!(names(&place.delivered().await), ["first", "foreign"], "what is not committed is not delivered");
    waiting.query_drop("COMMIT").await.unwrap();
    assert_eq!(names(&place.delivered().await), ["first", "foreign", "late"]);
    assert_eq!(by_number(&place).await, ["first", "late", "foreign"], "it had its number before");
}

/// `INSERT … SELECT` reserves numbers ahead of the rows: a row that has read what another transaction committed may have a
/// lower number than the message of that transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_has_read_another_transaction_follows_its_message() {
    let place = Place::new().await;
    let (mut earlier, mut later) = (connect().await, connect().await);
    let (keys, log) = (format!("{}keys", place.prefix()), format!("{}log", place.prefix()));
    earlier.query_drop(format!("CREATE TABLE {keys} (k BIGINT PRIMARY KEY, v VARCHAR(20))")).await.unwrap();
    earlier.query_drop(format!("INSERT INTO {keys} VALUES (1, 'a'), (2, 'b'), (3, 'old'), (4, 'c')")).await.unwrap();
    earlier.query_drop("BEGIN").await.unwrap();
    earlier.query_drop(format!("UPDATE {keys} SET v = 'read' WHERE k = 3")).await.unwrap();
    later.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    let all = format!("INSERT INTO {log} (topic, name, payload) SELECT 't', v, '' FROM {keys}");
    let later = tokio::spawn(async move { later.query_drop(all).await });
    until_waiting(place.prefix()).await;
    let inserted =
        earlier.query_drop(format!("INSERT INTO {log} (topic, name, payload) VALUES ('t', 'earlier', '')")).await;
    let lock_mode: Option<u32> = connect().await.query_first("SELECT @@innodb_autoinc_lock_mode").await.unwrap();
    if lock_mode != Some(2) {
        // The lock of the numbers is held until the statement ends, which waits for us.
        assert!(inserted.is_err() || later.await.unwrap().is_err(), "two that wait for each other do not both go on");
        return;
    }
    inserted.unwrap();
    earlier.query_drop("COMMIT").await.unwrap();
    later.await.unwrap().unwrap();
    assert_eq!(names(&place.delivered().await), ["a", "b", "earlier", "read", "c"]);
    assert_eq!(by_number(&place).await, ["a", "b", "read", "earlier", "c"], "the numbers say otherwise");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doctor_finds_a_transaction_that_is_open_for_long() {
    let place = Place::new().await;
    let _asking = ASKING.lock().await;
    let mut connection = connect().await;
    connection.query_drop("BEGIN").await.unwrap();
    connection
        .query_drop(format!("INSERT INTO {}log (topic, name, payload) VALUES ('t', 'n', '')", place.prefix()))
        .await
        .unwrap();
    let thresholds =
        postrider_core::doctor::Thresholds { transaction_age: Duration::from_secs(1), ..Default::default() };
    let subject = format!("connection {}", connection.id());
    let deadline = std::time::Instant::now() + Duration::from_secs(120);
    while !place.store().doctor(thresholds).await.unwrap().iter().any(|finding| finding.subject == subject) {
        assert!(std::time::Instant::now() < deadline, "an open transaction is found once it is old");
        tokio::time::sleep(SILENCE).await;
    }
    // Only the oldest are named; those of other tests end, and this one becomes the oldest.
    let found = loop {
        let uncommitted = place.store().uncommitted(Duration::from_secs(1)).await.unwrap();
        if let Some(found) = uncommitted.into_iter().find(|finding| finding.subject == subject) {
            break found;
        }
        assert!(std::time::Instant::now() < deadline, "it has written");
        tokio::time::sleep(SILENCE).await;
    };
    assert!(found.detail.contains("until it commits") && found.fix.contains("KILL"), "{found:?}");
}

/// A settlement that waits for a row is a relay that stands still: whoever has the lock is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_keeps_a_lock_that_others_wait_for_is_named() {
    let place = Place::new().await;
    let table = format!("{}counter", place.prefix());
    assert_eq!(place.store().blockage().await.unwrap(), None);
    let (mut holder, mut waiter) = (connect().await, connect().await);
    holder.query_drop("BEGIN").await.unwrap();
    holder.query_drop(format!("UPDATE {table} SET value = value + 1")).await.unwrap();
    waiter.query_drop("SET SESSION innodb_lock_wait_timeout = 600").await.unwrap();
    let waiting = tokio::spawn(async move { waiter.query_drop(format!("UPDATE {table} SET value = value")).await });
    let _asking = ASKING.lock().await;
    let blockage = async |is_there: bool| {
        let deadline = std::time::Instant::now() + Duration::from_secs(120);
        loop {
            let found = place.store().blockage().await.unwrap();
            if found.is_some() == is_there {
                return found;
            }
            assert!(std::time::Instant::now() < deadline, "{found:?}");
            tokio::time::sleep(SILENCE).await;
        }
    };
    let found = blockage(true).await.unwrap();
    assert_eq!((found.code, found.subject), ("store-locked", format!("connection {}", holder.id())));
    holder.query_drop("ROLLBACK").await.unwrap();
    waiting.await.unwrap().unwrap();
    blockage(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_audited_does_not_happen() {
    let place = std::sync::Arc::new(Place::new().await);
    let sql = format!("ALTER TABLE {}audit ADD COLUMN broken INT NOT NULL, ADD CHECK (broken > 0)", place.prefix());
    let broken = async move || {
        let mut connection = connect().await;
        // What is there already is of no account.
        connection.query_drop("SET SESSION check_constraint_checks = 0").await.ok();
        connection.query_drop(sql).await.unwrap();
    };
    postrider_testkit::store::unaudited::nothing_changes_unaudited(place, broken).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrations_of_an_operator_are_audited() {
    let tables = Tables::fresh();
    let dialect = Mysql::with_prefix(tables.prefix()).unwrap();
    let anna = Actor { name: "anna".into(), reason: Some("ticket 7".into()) };
    let applied = migrations::up(&url(), &dialect, &anna).await.unwrap();
    let entries = builder(tables.prefix()).open().await.unwrap().audit(100).await.unwrap();
    assert_eq!(entries.len(), applied.len());
    let last = &entries[0];
    assert_eq!((&last.actor, &*last.action, &last.subject), (&anna, "migrate", &applied.last().unwrap().in_words()));
}
