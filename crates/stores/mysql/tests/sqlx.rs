//! Enqueue with sqlx: what commits is read in order, what is rolled back is not, and a transaction that the server has ended
//! is refused.
#![cfg(feature = "sqlx")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use postrider_core::{enlist::Enlist, envelope::Envelope};
use postrider_testkit::envelopes::specimens;
use sqlx::{Connection, Executor, MySqlConnection};
use support::{Place, batch, url};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_sqlx_carries_messages() {
    let place = Place::new().await;
    let dialect = place.store().dialect();
    let mut connection = MySqlConnection::connect(&url()).await.unwrap();
    let mut sent = specimens();
    let mut transaction = connection.begin().await.unwrap();
    transaction.append(&dialect, batch(sent.clone())).await.unwrap();
    let many: Vec<Envelope> = (0..10_000).map(|_| Envelope::new("t", "n", "x")).collect();
    transaction.append(&dialect, batch(many.clone())).await.unwrap();
    transaction.commit().await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    transaction.append(&dialect, batch(vec![Envelope::new("t", "n", "")])).await.unwrap();
    transaction.rollback().await.unwrap();
    sent.extend(many);
    assert!(place.delivered().await == sent, "what was committed arrives as it was, in its order, and nothing else");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_has_ended_is_refused() {
    let place = Place::new().await;
    let dialect = place.store().dialect();
    let mut connection = MySqlConnection::connect(&url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    (*transaction).execute(sqlx::raw_sql("ROLLBACK")).await.unwrap();
    let refused = transaction.append(&dialect, batch(vec![Envelope::new("t", "n", "")])).await.unwrap_err();
    assert!(refused.to_string().contains("already ended"), "{refused}");
    drop(transaction);
    assert_eq!(place.delivered().await, []);
}
