//! Enqueue through diesel-async.
#![cfg(feature = "diesel-async")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use diesel_async::{AsyncConnection, AsyncPgConnection};
use postrider_core::{ErrorKind, enlist::Enlist, envelope::Envelope};
use postrider_store_postgres::enlist::DieselAsyncTransaction;
use postrider_testkit::envelopes::specimens;
use support::{Place, batch, url};

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn message(payload: &str) -> Envelope {
    Envelope::new("orders", "order.placed", payload.to_owned()).with_key("4711")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_survives_in_order() {
    let place = Place::new(20).await;
    let (dialect, sent) = (place.store().dialect(), specimens());
    let mut connection = AsyncPgConnection::establish(&url()).await.unwrap();
    let done = connection.transaction(async |connection| {
        let mut transaction = DieselAsyncTransaction::of(connection)?;
        transaction.append(&dialect, batch(sent[..150].to_vec())).await?;
        transaction.append(&dialect, batch(Vec::new())).await?;
        transaction.append(&dialect, batch(sent[150..].to_vec())).await?;
        Ok::<_, Failed>(())
    });
    done.await.unwrap();
    assert_eq!(place.delivered().await, sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rolled_back_is_never_delivered() {
    let place = Place::new(20).await;
    let dialect = place.store().dialect();
    let mut connection = AsyncPgConnection::establish(&url()).await.unwrap();
    let rolled_back = connection.transaction(async |connection| {
        DieselAsyncTransaction::of(connection)?.append(&dialect, batch(vec![message("rolled back")])).await?;
        Err::<(), Failed>("no".into())
    });
    assert!(rolled_back.await.is_err());
    let kept = connection.transaction(async |connection| {
        DieselAsyncTransaction::of(connection)?.append(&dialect, batch(vec![message("first")])).await?;
        let savepoint = connection.transaction(async |connection| {
            DieselAsyncTransaction::of(connection)?.append(&dialect, batch(vec![message("to the savepoint")])).await?;
            Err::<(), Failed>("no".into())
        });
        assert!(savepoint.await.is_err());
        DieselAsyncTransaction::of(connection)?.append(&dialect, batch(vec![message("second")])).await?;
        Ok::<_, Failed>(())
    });
    kept.await.unwrap();
    let delivered = place.delivered().await;
    let payloads: Vec<&[u8]> = delivered.iter().map(|envelope| envelope.payload.as_ref()).collect();
    assert_eq!(payloads, [b"first".as_slice(), b"second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn outside_of_a_transaction_nothing_is_enqueued() {
    let mut connection = AsyncPgConnection::establish(&url()).await.unwrap();
    let refused = DieselAsyncTransaction::of(&mut connection).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("connection.transaction"), "{refused}");
    let over = connection.transaction(async |_| Err::<(), Failed>("no".into()));
    assert!(over.await.is_err());
    assert!(DieselAsyncTransaction::of(&mut connection).is_err(), "nor after one");
}
