//! Enqueue through sqlx.
#![cfg(feature = "sqlx")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use postrider_core::{ErrorKind, admin::StoreAdmin, enlist::Enlist};
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

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table_is_a_matter_of_the_schema() {
    let mut connection = PgConnection::connect(&url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let nowhere = Postgres::new("nobody_made_this", "").unwrap();
    let error = transaction.append(&nowhere, batch(vec![specimens()[0].clone()])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error:?}");
}
