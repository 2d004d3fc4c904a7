//! Enqueue through diesel, on its own connection.
#![cfg(feature = "libpq")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use diesel::{Connection, PgConnection, RunQueryDsl, r2d2};
use postrider_core::{ErrorKind, enlist::Enlist, envelope::Envelope};
use postrider_store_postgres::{Postgres, enlist::DieselTransaction};
use postrider_testkit::envelopes::specimens;
use support::{Place, batch, url};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Diesel blocks, so it works beside the test's runtime.
async fn aside<T: Send + 'static>(work: impl FnOnce(&mut PgConnection) -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(move || work(&mut PgConnection::establish(&url()).unwrap())).await.unwrap()
}

fn message(payload: &str) -> Envelope {
    Envelope::new("orders", "order.placed", payload.to_owned()).with_key("4711")
}

fn payloads(delivered: &[Envelope]) -> Vec<&str> {
    delivered.iter().map(|envelope| std::str::from_utf8(&envelope.payload).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_survives_in_order() {
    let place = Place::new(20).await;
    let (dialect, sent) = (place.store().dialect(), specimens());
    let batches = sent.clone();
    aside(move |connection| {
        connection.transaction::<_, Failed, _>(|connection| {
            let mut transaction = DieselTransaction::of(connection)?;
            transaction.append(&dialect, batch(batches[..150].to_vec()))?;
            transaction.append(&dialect, batch(Vec::new()))?;
            Ok(transaction.append(&dialect, batch(batches[150..].to_vec()))?)
        })
    })
    .await
    .unwrap();
    assert_eq!(place.delivered().await, sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rolled_back_is_never_delivered() {
    let place = Place::new(20).await;
    let dialect = place.store().dialect();
    aside(move |connection| {
        let rolled_back = connection.transaction::<(), Failed, _>(|connection| {
            DieselTransaction::of(connection)?.append(&dialect, batch(vec![message("rolled back")]))?;
            Err("no".into())
        });
        assert!(rolled_back.is_err());
        let kept = connection.transaction::<_, Failed, _>(|connection| {
            DieselTransaction::of(connection)?.append(&dialect, batch(vec![message("first")]))?;
            let savepoint = connection.transaction::<(), Failed, _>(|connection| {
                DieselTransaction::of(connection)?.append(&dialect, batch(vec![message("to the savepoint")]))?;
                Err("no".into())
            });
            assert!(savepoint.is_err());
            Ok(DieselTransaction::of(connection)?.append(&dialect, batch(vec![message("second")]))?)
        });
        kept.unwrap();
    })
    .await;
    assert_eq!(payloads(&place.delivered().await), ["first", "second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn outside_of_a_transaction_nothing_is_enqueued() {
    aside(|connection| {
        let refused = DieselTransaction::of(connection).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(refused.to_string().contains("connection.transaction"), "{refused}");
        let after: Result<(), Failed> = connection.transaction(|_| Err("no".into()));
        assert!(after.is_err() && DieselTransaction::of(connection).is_err(), "nor after one");
        let broken: Result<(), diesel::result::Error> = connection.transaction(|connection| {
            diesel::sql_query("SELECT 1 / 0").execute(connection).unwrap_err();
            let error = DieselTransaction::of(connection)
                .and_then(|mut open| open.append(&Postgres::default(), batch(vec![message("late")])));
            assert!(error.is_err(), "the server has given the transaction up");
            Err(diesel::result::Error::RollbackTransaction)
        });
        assert!(broken.is_err());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooled_connection_joins_as_well() {
    let place = Place::new(20).await;
    let dialect = place.store().dialect();
    tokio::task::spawn_blocking(move || {
        let manager = r2d2::ConnectionManager::<PgConnection>::new(url());
        let pool = r2d2::Pool::builder().max_size(1).build(manager).unwrap();
        let mut connection = pool.get().unwrap();
        connection
            .transaction::<_, Failed, _>(|connection| {
                Ok(DieselTransaction::of(connection)?.append(&dialect, batch(vec![message("pooled")]))?)
            })
            .unwrap();
    })
    .await
    .unwrap();
    assert_eq!(payloads(&place.delivered().await), ["pooled"]);
}
