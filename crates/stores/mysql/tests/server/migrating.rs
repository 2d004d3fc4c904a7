//! The schema: migrations that race or are cut off, tables that are refused, and a trigger that was missing for a while.

use std::time::Duration;

use mysql_async::{Conn, Opts, prelude::Queryable};
use postrider_core::{
    ErrorKind,
    admin::{Actor, StoreAdmin},
    doctor::{Severity, Thresholds},
    envelope::Envelope,
    lease::{LaneId, Lease},
    log::{Log, PageLimit, Retention, Settlement},
    migration::Standing,
};
use postrider_store_mysql::{Mysql, MysqlStore, migrations};
use postrider_testkit::store::Fixture;

use crate::{
    LIMIT, names,
    support::{Place, Tables, builder, clean_up, connect, node, spec, url},
    take,
};

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

/// A user that ends with the test.
struct User(String);

impl User {
    /// With these rights on the database.
    async fn with(rights: &str) -> Self {
        let user = Self(format!("u{}", &uuid::Uuid::now_v7().simple().to_string()[16..]));
        let mut connection = connect().await;
        connection.query_drop(format!("CREATE USER {}@'%' IDENTIFIED BY 'secret'", user.0)).await.unwrap();
        user.may(rights, "*").await;
        user
    }

    async fn may(&self, rights: &str, table: &str) {
        connect().await.query_drop(format!("GRANT {rights} ON {table} TO {}@'%'", self.0)).await.unwrap();
    }

    fn url(&self) -> String {
        let server = Opts::from_url(&url()).unwrap();
        let database = server.db_name().unwrap();
        format!("mysql://{}:secret@{}:{}/{database}", self.0, server.ip_or_hostname(), server.tcp_port())
    }
}

impl Drop for User {
    fn drop(&mut self) {
        clean_up(vec![format!("DROP USER {}@'%'", self.0)]);
    }
}

/// As docs/operate/mysql.md says what each of them needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_the_rights_that_the_docs_name_needs_no_others() {
    let tables = Tables::fresh();
    let dialect = Mysql::with_prefix(tables.prefix()).unwrap();
    let log = format!("{}log", tables.prefix());
    let migrating = User::with("CREATE, ALTER, TRIGGER, SELECT, INSERT, UPDATE").await;
    assert!(!migrations::up(&migrating.url(), &dialect, &Actor::new("tests")).await.unwrap().is_empty());

    let relay = User::with("SELECT, INSERT, UPDATE, DELETE").await;
    relay.may("TRIGGER", &log).await;
    let store = MysqlStore::builder(&relay.url()).prefix(tables.prefix()).open().await.unwrap();
    let (lease, begin) = take(&store).await;
    let application = User::with("USAGE").await;
    application.may("INSERT", &log).await;
    let mut connection = Conn::from_url(application.url()).await.unwrap();
    let insert = format!("INSERT INTO {log} (topic, name, payload) VALUES ('t', 'n', '')");
    connection.query_drop(insert).await.unwrap();
    let page = store.read(&lease, &begin, LIMIT).await.unwrap();
    assert_eq!(page.records.len(), 1);
    let passed = Settlement { number: 1, advance: Some(page.end), ..Settlement::default() };
    store.settle(&lease, &passed).await.unwrap();
    assert_eq!(store.purge(Retention::by_age(Duration::ZERO)).await.unwrap(), 1);
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
    let again = migrations::up(&url(), &dialect, &Actor::new("tests")).await.unwrap();
    let again: Vec<String> = again.iter().map(Standing::in_words).collect();
    let told = "0001 begin, again: the trigger that notes new messages, 2 messages that were never noted";
    assert_eq!(again, [told], "what was made again is told");
    assert_eq!(codes().await, [""; 0]);
    place.commit(vec![Envelope::new("t", "again", "")]).await;
    assert_eq!(names(&place.delivered().await), ["noted", "missed", "missed", "again"]);
    // Once more, and nothing is noted twice.
    assert_eq!(migrations::up(&url(), &dialect, &Actor::new("tests")).await.unwrap(), []);
    assert_eq!(place.delivered().await.len(), 4);
}

/// A relay that runs would see nothing new, and report that all is well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trigger_that_is_dropped_under_a_running_relay_stops_its_reads() {
    let tables = Tables::fresh();
    let (often, rarely) = (builder(tables.prefix()).trigger_every(Duration::ZERO), builder(tables.prefix()));
    let (often, rarely) = (often.open().await.unwrap(), rarely.open().await.unwrap());
    let (node, lane) = (node("r", Duration::from_secs(3600)), LaneId { route: "r".into(), number: 0 });
    often.register(&node, &[spec("r")]).await.unwrap();
    let lease = often.acquire(&lane, &node).await.unwrap().unwrap();
    let cursor = often.resume(&lease).await.unwrap().cursor;
    let limit = PageLimit { records: 10, bytes: 1 << 20 };
    often.read(&lease, &cursor, limit).await.unwrap();
    connect().await.query_drop(format!("DROP TRIGGER {}log_pending", tables.prefix())).await.unwrap();
    for _ in 0..2 {
        let refused = often.read(&lease, &cursor, limit).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Schema, "{refused}");
        assert!(refused.to_string().contains("trigger"), "{refused}");
    }
    let lease = Lease { lane: LaneId { route: "other".into(), number: 0 }, ..lease };
    let unasked = rarely.read(&lease, &cursor, limit).await;
    assert!(unasked.is_ok_and(|page| page.records.is_empty()), "once a minute is enough");
    migrations::up(&url(), &often.dialect(), &Actor::new("tests")).await.unwrap();
    let lease = Lease { lane, ..lease };
    often.read(&lease, &cursor, limit).await.unwrap();
}

/// It would note what has its place already, were it run to its end once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_is_run_twice_ends_before_it_changes_anything() {
    let tables = Tables::fresh();
    let script = migrations::sql(&Mysql::with_prefix(tables.prefix()).unwrap());
    let mut connection = connect().await;
    connection.query_drop(&script).await.unwrap();
    let store = builder(tables.prefix()).migrate(false).open().await.unwrap();
    let insert = format!("INSERT INTO {}log (topic, name, payload) VALUES ('t', 'n', '')", tables.prefix());
    connection.query_drop(insert).await.unwrap();
    assert_eq!(store.overview().await.unwrap().records, 1, "it has its place");
    let again = connect().await.query_drop(&script).await.unwrap_err();
    assert!(matches!(&again, mysql_async::Error::Server(error) if error.code == 1359), "{again}");
    assert_eq!(store.overview().await.unwrap().records, 1);
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
