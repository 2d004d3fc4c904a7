//! Producers: a transaction with a business insert and an enqueue, against the business insert alone.

use std::time::Duration;

use anyhow::Result;
use futures_util::future::try_join_all;
use mongodb::{
    ClientSession, Collection,
    bson::{Document, doc},
};
use postrider::{
    Outbox,
    mongodb::{Mongo, MongoStore},
};
use serde_json::{Value, json};

use super::server::Server;
use crate::{
    closed_loop::{self, compare},
    relay::OrderPlaced,
};

const PREFIX: &str = "producer_";

/// One turn of one variant.
const SLICE: Duration = Duration::from_millis(200);

/// What a transaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Business,
    Enqueue,
}

const VARIANTS: [Variant; 2] = [Variant::Business, Variant::Enqueue];

struct Producer {
    session: ClientSession,
    orders: Collection<Document>,
    outbox: Outbox<Mongo>,
    number: u64,
}

pub(crate) async fn run(server: &Server, rounds: usize) -> Result<Value> {
    eprintln!("producers: {rounds} rounds");
    MongoStore::builder(&server.url).prefix(PREFIX).open().await?;
    server.database().create_collection("orders").await?;
    let (many, business) = compare(&mut producers(server, 16).await?, VARIANTS, SLICE, rounds).await?;
    let (one, _) = compare(&mut producers(server, 1).await?, VARIANTS, SLICE, rounds).await?;
    Ok(json!({
        "mongodb_producer_ratio": many,
        "mongodb_producer_1_ratio": one,
        "mongodb_producer_business_per_second": business,
    }))
}

async fn producers(server: &Server, sessions: u64) -> Result<Vec<Producer>> {
    try_join_all((0..sessions).map(|number| async move {
        let session = server.client.start_session().await?;
        let outbox = Outbox::new(Mongo::with_prefix(server.name(), PREFIX)?);
        Ok::<_, anyhow::Error>(Producer { session, orders: server.database().collection("orders"), outbox, number })
    }))
    .await
}

impl closed_loop::Producer for Producer {
    type Variant = Variant;

    async fn transaction(&mut self, variant: Variant) -> Result<()> {
        self.number += 16;
        let order = OrderPlaced::new(self.number);
        self.session.start_transaction().await?;
        let row = doc! { "customer": order.customer(), "amount": i64::try_from(self.number)? };
        self.orders.insert_one(row).session(&mut self.session).await?;
        if variant == Variant::Enqueue {
            self.outbox.enqueue(&mut self.session, &order).await?;
        }
        self.session.commit_transaction().await?;
        Ok(())
    }
}
