//! Enqueue through SeaORM.
#![cfg(feature = "sea-orm")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use postrider_core::{ErrorKind, enlist::Enlist, envelope::Envelope, time::Timestamp};
use postrider_store_postgres::Postgres;
use postrider_testkit::envelopes::specimens;
use sea_orm::{Database, DatabaseConnection, TransactionTrait};
use support::{Place, batch, url};

async fn connect() -> DatabaseConnection {
    Database::connect(url()).await.unwrap()
}

fn message(payload: &str) -> Envelope {
    Envelope::new("orders", "order.placed", payload.to_owned()).with_key("4711")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_survives_in_order() {
    let place = Place::new(20).await;
    let (dialect, mut sent) = (place.store().dialect(), specimens());
    // Instants far out, where an interval in floating point would be wrong by some microseconds.
    for micros in [-1, 1, 3_599_999_999, 253_402_300_799_999_999, -62_135_596_800_000_000] {
        let mut far = message("far");
        far.deliver_at = Some(Timestamp::from_micros(micros));
        sent.push(far);
    }
    let connection = connect().await;
    let mut transaction = connection.begin().await.unwrap();
    transaction.append(&dialect, batch(sent[..150].to_vec())).await.unwrap();
    transaction.append(&dialect, batch(Vec::new())).await.unwrap();
    transaction.append(&dialect, batch(sent[150..].to_vec())).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(place.delivered().await, sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rolled_back_is_never_delivered() {
    let place = Place::new(20).await;
    let dialect = place.store().dialect();
    let connection = connect().await;
    let mut rolled_back = connection.begin().await.unwrap();
    rolled_back.append(&dialect, batch(vec![message("rolled back")])).await.unwrap();
    rolled_back.rollback().await.unwrap();
    let mut dropped = connection.begin().await.unwrap();
    dropped.append(&dialect, batch(vec![message("dropped")])).await.unwrap();
    drop(dropped);
    let mut kept = connection.begin().await.unwrap();
    kept.append(&dialect, batch(vec![message("first")])).await.unwrap();
    let mut savepoint = kept.begin().await.unwrap();
    savepoint.append(&dialect, batch(vec![message("to the savepoint")])).await.unwrap();
    savepoint.rollback().await.unwrap();
    kept.append(&dialect, batch(vec![message("second")])).await.unwrap();
    kept.commit().await.unwrap();
    let delivered = place.delivered().await;
    let payloads: Vec<&[u8]> = delivered.iter().map(|envelope| envelope.payload.as_ref()).collect();
    assert_eq!(payloads, [b"first".as_slice(), b"second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table_is_a_matter_of_the_schema() {
    let connection = connect().await;
    let mut transaction = connection.begin().await.unwrap();
    let nowhere = Postgres::new("nobody_made_this", "").unwrap();
    let error = transaction.append(&nowhere, batch(vec![message("lost")])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error:?}");
}
