//! The whole store suite once more, with an application that enqueues through sqlx.
#![cfg(feature = "sqlx")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use postrider_core::{BoxFuture, enlist::Enlist, envelope::Envelope};
use postrider_store_sqlite::{Sqlite, Waker};
use postrider_testkit::store::OpenTransaction;
use sqlx::{SqlitePool, sqlite::SqliteConnectOptions};
use support::{Outpost, Place, batch, envelopes, ids};

postrider_testkit::store_conformance!(|| Place::fresh(begin));

struct Open {
    transaction: sqlx::Transaction<'static, sqlx::Sqlite>,
    dialect: Sqlite,
    waker: Waker,
}

fn begin(place: &Place) -> BoxFuture<'_, Box<dyn OpenTransaction>> {
    Box::pin(async move {
        let pool = SqlitePool::connect_with(SqliteConnectOptions::new().filename(place.path())).await.unwrap();
        let transaction = pool.begin().await.unwrap();
        let (dialect, waker) = (place.store().dialect(), place.store().waker());
        Box::new(Open { transaction, dialect, waker }) as Box<dyn OpenTransaction>
    })
}

impl Open {
    fn run(&mut self, sql: &'static str) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            sqlx::query(sql).execute(&mut *self.transaction).await.unwrap();
        })
    }
}

impl OpenTransaction for Open {
    fn append(&mut self, envelopes: Vec<Envelope>) -> BoxFuture<'_, ()> {
        Box::pin(async { self.transaction.append(&self.dialect, batch(envelopes)).await.unwrap() })
    }

    fn savepoint(&mut self) -> BoxFuture<'_, ()> {
        self.run("SAVEPOINT here")
    }

    fn roll_back_to_savepoint(&mut self) -> BoxFuture<'_, ()> {
        self.run("ROLLBACK TO here")
    }

    fn commit(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async {
            self.transaction.commit().await.unwrap();
            self.waker.wake();
        })
    }

    fn roll_back(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async { self.transaction.rollback().await.unwrap() })
    }
}

#[tokio::test]
async fn one_and_ten_thousand_rows_commit_in_order() {
    let outpost = Outpost::new().await;
    let pool = SqlitePool::connect_with(SqliteConnectOptions::new().filename(&outpost.path)).await.unwrap();
    for count in [1, 10_000] {
        let sent = envelopes(count);
        let mut transaction = pool.begin().await.unwrap();
        transaction.append(&outpost.store.dialect(), batch(sent.clone())).await.unwrap();
        transaction.commit().await.unwrap();
        assert_eq!(outpost.read_on().await, ids(&sent));
    }
}

#[tokio::test]
async fn errors_are_translated_by_code() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new().filename(folder.path().join("a.db")).create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await.unwrap();
    let mut transaction = pool.begin().await.unwrap();
    sqlx::query("PRAGMA query_only = ON").execute(&mut *transaction).await.unwrap();
    let error = transaction.append(&Sqlite::default(), batch(envelopes(1))).await.unwrap_err();
    assert!(error.to_string().contains("code: 1"), "no such table: {error}");
    transaction.rollback().await.unwrap();

    let outpost = Outpost::new().await;
    let options = SqliteConnectOptions::new().filename(&outpost.path).pragma("query_only", "ON");
    let pool = SqlitePool::connect_with(options).await.unwrap();
    let mut transaction = pool.begin().await.unwrap();
    let error = transaction.append(&Sqlite::default(), batch(envelopes(1))).await.unwrap_err();
    assert_eq!(error.kind(), postrider_core::ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn nothing_is_enqueued_once_sqlite_has_rolled_back_by_itself() {
    let outpost = Outpost::new().await;
    let pool = SqlitePool::connect_with(SqliteConnectOptions::new().filename(&outpost.path)).await.unwrap();
    sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY)").execute(&pool).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    sqlx::query("INSERT INTO orders VALUES (1)").execute(&mut *tx).await.unwrap();
    sqlx::query("INSERT OR ROLLBACK INTO orders VALUES (1)").execute(&mut *tx).await.unwrap_err();
    let refused = tx.append(&outpost.store.dialect(), batch(envelopes(1))).await.unwrap_err();
    assert!(refused.to_string().contains("already rolled"), "{refused}");
    drop(tx);
    let (rows,): (i64,) = sqlx::query_as("SELECT count(*) FROM postrider_log").fetch_one(&pool).await.unwrap();
    assert_eq!(rows, 0);
}
