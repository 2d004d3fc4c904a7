//! Enqueue through sqlx.
#![cfg(feature = "sqlx")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use postrider_core::{ErrorKind, admin::StoreAdmin, enlist::Enlist, envelope::Envelope};
use postrider_store_postgres::Postgres;
use postrider_testkit::envelopes::specimens;
use sqlx::{Connection, PgConnection};
use support::{Place, batch, url};

#[tokio::test(flavor = "multi_thread")]
async fn every_field_survives_sqlx() {
    let place = Place::new(20).await;
    let sent = specimens();
    let mut connection = PgConnection::connect(&url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    transaction.append(&place.store().dialect(), batch(sent.clone())).await.unwrap();
    transaction.append(&place.store().dialect(), batch(Vec::new())).await.unwrap();
    transaction.commit().await.unwrap();
    let mut rolled_back = connection.begin().await.unwrap();
    rolled_back.append(&place.store().dialect(), batch(vec![sent[0].clone()])).await.unwrap();
    rolled_back.rollback().await.unwrap();
    assert_eq!(place.store().overview().await.unwrap().records, sent.len() as u64);
    for envelope in [&sent[0], &sent[3], &sent[12], &sent[23], &sent[150]] {
        let (found, _) = place.store().message(envelope.id).await.unwrap().record.unwrap();
        assert_eq!(&found, envelope);
    }
}

fn message(payload: &str) -> Envelope {
    Envelope::new("orders", "order.placed", payload.to_owned()).with_key("4711")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rolled_back_is_never_delivered() {
    let place = Place::new(20).await;
    let dialect = place.store().dialect();
    let mut connection = PgConnection::connect(&url()).await.unwrap();
    let mut dropped = connection.begin().await.unwrap();
    dropped.append(&dialect, batch(vec![message("dropped")])).await.unwrap();
    drop(dropped);
    let mut kept = connection.begin().await.unwrap();
    kept.append(&dialect, batch(vec![message("first")])).await.unwrap();
    // A transaction inside of another one is a savepoint.
    let mut savepoint = kept.begin().await.unwrap();
    savepoint.append(&dialect, batch(vec![message("to the savepoint")])).await.unwrap();
    savepoint.append(&dialect, batch(vec![message("so"), message("too")])).await.unwrap();
    savepoint.rollback().await.unwrap();
    let mut released = kept.begin().await.unwrap();
    released.append(&dialect, batch(vec![message("second")])).await.unwrap();
    released.commit().await.unwrap();
    kept.append(&dialect, batch(vec![message("third")])).await.unwrap();
    kept.commit().await.unwrap();
    let delivered = place.delivered().await;
    let payloads: Vec<&[u8]> = delivered.iter().map(|envelope| envelope.payload.as_ref()).collect();
    assert_eq!(payloads, [b"first".as_slice(), b"second", b"third"]);
}

/// One by one and many at once are different statements; both keep the order in which they were called.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_keeps_its_order_message_by_message_and_in_bulk() {
    let place = Place::new(20).await;
    let dialect = place.store().dialect();
    let mut connection = PgConnection::connect(&url()).await.unwrap();
    let sent: Vec<Envelope> = (0..3_000).map(|number| message(&number.to_string())).collect();
    let mut transaction = connection.begin().await.unwrap();
    let mut rest = sent.as_slice();
    for count in [1, 1, 500, 1, 2, 2_000, 1] {
        let (part, behind) = rest.split_at(count);
        transaction.append(&dialect, batch(part.to_vec())).await.unwrap();
        rest = behind;
    }
    transaction.append(&dialect, batch(rest.to_vec())).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(place.delivered().await, sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table_is_a_matter_of_the_schema() {
    let mut connection = PgConnection::connect(&url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let nowhere = Postgres::new("nobody_made_this", "").unwrap();
    let error = transaction.append(&nowhere, batch(vec![specimens()[0].clone()])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error:?}");
}
