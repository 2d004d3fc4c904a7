//! Settings that are the whole server's: one that takes back commits after a crash is refused, others change nothing. A test
//! program of its own, for no other test may open a store meanwhile.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use postrider_core::{
    ErrorKind,
    admin::{Actor, StoreAdmin},
    lease::LaneId,
    log::{Log, PageLimit, Settlement},
};
use postrider_store_mysql::{Mysql, migrations};
use support::{Place, Tables, builder, clean_up, connect, node, spec, url};

/// One setting at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Puts a setting back, also when the test fails.
struct Before {
    name: &'static str,
    value: String,
}

impl Before {
    /// Sets it, and remembers what it was.
    async fn set(name: &'static str, value: &str) -> Self {
        let mut connection = connect().await;
        let before: Option<String> = connection.query_first(format!("SELECT CONCAT(@@GLOBAL.{name})")).await.unwrap();
        connection.query_drop(format!("SET GLOBAL {name} = {value}")).await.unwrap();
        let before = before.unwrap();
        let is_number = before.parse::<i64>().is_ok();
        Self { name, value: if is_number { before } else { format!("'{before}'") } }
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        clean_up(vec![format!("SET GLOBAL {} = {}", self.name, self.value)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_write_through_is_refused() {
    let _alone = ALONE.lock().await;
    let _before = Before::set("innodb_flush_log_at_trx_commit", "0").await;
    let tables = Tables::fresh();
    let dialect = Mysql::with_prefix(tables.prefix()).unwrap();
    let opened = builder(tables.prefix()).open().await.unwrap_err();
    let migrated = migrations::up(&url(), &dialect, &Actor::new("tests")).await.unwrap_err();
    for refused in [opened, migrated] {
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("innodb_flush_log_at_trx_commit"), "{refused}");
    }
    let pending = migrations::plan(&url(), &dialect).await.unwrap();
    assert_eq!(pending.len(), migrations::LATEST as usize, "nothing was made");
}

/// What is answered is committed, also where every statement begins a transaction that somebody has to end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_commits_nothing_by_itself_changes_nothing() {
    let _alone = ALONE.lock().await;
    let _before = Before::set("autocommit", "0").await;
    let place = Place::new().await;
    let store = place.store();
    let (node, lane) = (node("r", Duration::from_secs(3600)), LaneId { route: "r".into(), number: 0 });
    store.register(&node, &[spec("r")]).await.unwrap();
    let lease = store.acquire(&lane, &node).await.unwrap().unwrap();
    let mut connection = connect().await;
    let sql = format!("INSERT INTO {}log (topic, name, payload) VALUES ('t', 'n', '')", place.prefix());
    connection.query_drop(sql).await.unwrap();
    connection.query_drop("COMMIT").await.unwrap();
    let cursor = store.resume(&lease).await.unwrap().cursor;
    let page = store.read(&lease, &cursor, PageLimit { records: 10, bytes: 1 << 20 }).await.unwrap();
    assert_eq!(page.records.len(), 1);
    let settlement = Settlement { number: 1, advance: Some(page.end.clone()), ..Settlement::default() };
    store.settle(&lease, &settlement).await.unwrap();
    let passed = format!("SELECT passed FROM {}lane WHERE owner IS NOT NULL", place.prefix());
    assert_eq!(connect().await.query_first::<i64, _>(&passed).await.unwrap(), Some(1));
    store.release(&lease).await.unwrap();
    assert_eq!(connect().await.query_first::<i64, _>(&passed).await.unwrap(), None);
}

/// The server tells when a transaction began by the time of its machine, whatever the time zone of a session is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_is_as_old_as_it_is_in_every_time_zone() {
    let _alone = ALONE.lock().await;
    for zone in ["'+13:00'", "'-12:00'"] {
        let _before = Before::set("time_zone", zone).await;
        let place = Place::new().await;
        let store = place.store();
        let mut connection = connect().await;
        connection.query_drop("BEGIN").await.unwrap();
        let sql = format!("INSERT INTO {}log (topic, name, payload) VALUES ('t', 'n', '')", place.prefix());
        connection.query_drop(sql).await.unwrap();
        let subject = format!("connection {}", connection.id());
        let is_told = async |age| {
            let told = store.uncommitted(age).await.unwrap();
            told.iter().any(|finding| finding.subject == subject)
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_told(Duration::ZERO).await {
            assert!(Instant::now() < deadline, "{zone}: an open transaction is told");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        assert!(!is_told(Duration::from_secs(1800)).await, "{zone}: it is young");
        connection.query_drop("ROLLBACK").await.unwrap();
    }
}
