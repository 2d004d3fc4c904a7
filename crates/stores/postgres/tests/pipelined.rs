//! Enqueues that share their round trip with other statements: with prepared statements, beside the business's own, and in
//! one flight with the commit.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    pin::pin,
    task::{Context, Waker},
    time::{Duration, Instant},
};

use postrider_core::{
    ErrorKind,
    admin::StoreAdmin,
    enlist::{Enlist, EnlistShared},
    envelope::{Envelope, MessageId},
};
use postrider_store_postgres::{
    Postgres,
    enlist::{Flight, Prepared},
};
use postrider_testkit::envelopes::specimens;
use support::{Place, batch, connect, url};
use tokio_postgres::{Client, Statement};

/// A store, and a business table beside it whose numbers are unique.
struct Shop {
    place: Place,
    client: Client,
    insert: Statement,
    prepared: Prepared,
    store: Postgres,
}

impl Shop {
    async fn new() -> Self {
        let place = Place::new(20).await;
        let (client, store) = (connect().await, place.store().dialect());
        let orders = format!("\"{}\".orders", place.schema());
        client.batch_execute(&format!("CREATE TABLE {orders} (number bigint PRIMARY KEY)")).await.unwrap();
        let insert = client.prepare(&format!("INSERT INTO {orders} VALUES ($1)")).await.unwrap();
        let prepared = Prepared::new(&client, &store).await.unwrap();
        Self { place, client, insert, prepared, store }
    }

    /// Orders and messages that are committed, as another connection sees them.
    async fn committed(&self) -> (i64, u64) {
        let sql = format!("SELECT count(*) FROM \"{}\".orders", self.place.schema());
        let orders = connect().await.query_one(&sql, &[]).await.unwrap().get(0);
        (orders, self.place.store().overview().await.unwrap().records)
    }
}

fn one() -> Vec<Envelope> {
    vec![Envelope::new("orders", "order.placed", "{}").with_key("o-1")]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_survives_every_way() {
    let mut shop = Shop::new().await;
    let mut config = deadpool_postgres::Config::new();
    config.url = Some(url());
    let pool = config.create_pool(None, tokio_postgres::NoTls).unwrap();
    let mut pooled = pool.get().await.unwrap();
    let mut sent = Vec::new();
    let fresh = || -> Vec<Envelope> {
        specimens().into_iter().map(|envelope| Envelope { id: MessageId::generate(), ..envelope }).collect()
    };
    for single in [false, true] {
        let all = fresh();
        let sizes = if single { 1 } else { all.len() };
        for (way, chunk) in all.chunks(sizes).enumerate() {
            let chunk = batch(chunk.to_vec());
            match way % 4 {
                0 => {
                    let mut transaction = shop.client.transaction().await.unwrap();
                    transaction.append(&shop.store, chunk).await.unwrap();
                    transaction.commit().await.unwrap();
                }
                1 => {
                    let transaction = shop.client.transaction().await.unwrap();
                    shop.prepared.on(&transaction).append(&shop.store, chunk).await.unwrap();
                    transaction.commit().await.unwrap();
                }
                2 => {
                    let mut transaction = pooled.transaction().await.unwrap();
                    transaction.append(&shop.store, chunk).await.unwrap();
                    transaction.commit().await.unwrap();
                }
                _ => {
                    let mut flight = Flight::begin(&mut shop.client).await.unwrap();
                    flight.append(&shop.store, chunk).unwrap();
                    flight.commit().await.unwrap();
                }
            }
        }
        sent.extend(all);
    }
    let all = fresh();
    let mut transaction = pooled.transaction().await.unwrap();
    transaction.append(&shop.store, batch(all.clone())).await.unwrap();
    transaction.append(&shop.store, batch(Vec::new())).await.unwrap();
    transaction.commit().await.unwrap();
    sent.extend(all);
    let all = fresh();
    let mut flight = Flight::begin(&mut shop.client).await.unwrap().with(&shop.prepared);
    flight.append(&shop.store, batch(all.clone())).unwrap();
    flight.commit().await.unwrap();
    sent.extend(all);

    assert_eq!(shop.committed().await.1, sent.len() as u64);
    let store = shop.place.store();
    for envelope in sent.iter().step_by(7) {
        let (found, _) = store.message(envelope.id).await.unwrap().record.unwrap();
        assert_eq!(&found, envelope);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_shares_the_round_trip_of_a_business_statement() {
    let mut shop = Shop::new().await;
    let transaction = shop.client.transaction().await.unwrap();
    let on = shop.prepared.on(&transaction);
    let business = async { transaction.execute(&shop.insert, &[&1_i64]).await.map_err(|e| e.to_string()) };
    let enqueue = async { on.append_shared(&shop.store, batch(one())).await.map_err(|e| e.to_string()) };
    let plain = async { transaction.append_shared(&shop.store, batch(one())).await.map_err(|e| e.to_string()) };
    tokio::try_join!(business, enqueue, plain).unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(shop.committed().await, (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_business_statement_that_fails_nothing_is_enqueued() {
    let mut shop = Shop::new().await;
    shop.client.execute(&shop.insert, &[&1_i64]).await.unwrap();
    let transaction = shop.client.transaction().await.unwrap();
    let on = shop.prepared.on(&transaction);
    let (business, enqueue) = tokio::join!(
        transaction.execute(&shop.insert, &[&1_i64]), // there is one already
        on.append_shared(&shop.store, batch(one()))
    );
    assert!(business.is_err());
    let refused = enqueue.unwrap_err();
    assert!(refused.to_string().contains("25P02"), "the transaction is lost, and says so: {refused}");
    transaction.commit().await.unwrap();
    assert_eq!(shop.committed().await, (1, 0), "a commit rolls back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flight_commits_all_or_nothing() {
    let mut shop = Shop::new().await;
    let mut flight = Flight::begin(&mut shop.client).await.unwrap().with(&shop.prepared);
    flight.execute(&shop.insert, &[&1_i64]);
    flight.append(&shop.store, batch(one())).unwrap();
    flight.execute(&shop.insert, &[&2_i64]);
    assert_eq!(flight.commit().await.unwrap(), [1, 1]);
    assert_eq!(shop.committed().await, (2, 1));

    let mut flight = Flight::begin(&mut shop.client).await.unwrap();
    flight.execute(&shop.insert, &[&3_i64]);
    flight.execute(&shop.insert, &[&2_i64]); // there is one already
    flight.append(&shop.store, batch(one())).unwrap();
    let failed = flight.commit().await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Conflict, "the first error, not what came of it: {failed:?}");
    assert_eq!(shop.committed().await, (2, 1), "nothing of it");

    let mut flight = Flight::begin(&mut shop.client).await.unwrap();
    flight.execute(&shop.insert, &[&4_i64]);
    flight.execute(&shop.insert, &[&"not a number"]);
    flight.append(&shop.store, batch(one())).unwrap();
    assert!(flight.commit().await.is_err(), "what cannot be sent takes the rest with it");
    assert_eq!(shop.committed().await, (2, 1));

    let mut flight = Flight::begin(&mut shop.client).await.unwrap();
    flight.execute(&shop.insert, &[&5_i64]);
    drop(flight);
    shop.client.execute(&shop.insert, &[&6_i64]).await.unwrap();
    assert_eq!(shop.committed().await, (3, 1), "dropped, it is rolled back, and the connection goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flight_leaves_with_its_commit_in_one_piece() {
    let mut shop = Shop::new().await;
    let mut flight = Flight::begin(&mut shop.client).await.unwrap();
    flight.execute(&shop.insert, &[&1_i64]);
    flight.append(&shop.store, batch(one())).unwrap();
    {
        // Polled once and then given up: all of it is on its way by then, or none of it could be committed.
        let mut commit = pin!(flight.commit());
        let _ = commit.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while shop.committed().await != (1, 1) {
        assert!(Instant::now() < deadline, "what was sent together is committed together");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
