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
    closed_loop::{self, slice_of},
    measure::median,
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
    let (many, business) = compare(server, 16, rounds).await?;
    let (one, _) = compare(server, 1, rounds).await?;
    Ok(json!({
        "mongodb_producer_ratio": many,
        "mongodb_producer_1_ratio": one,
        "mongodb_producer_business_per_second": business,
    }))
}

/// The ratio of the two variants, and the rate of the business alone.
async fn compare(server: &Server, sessions: u64, rounds: usize) -> Result<(f64, f64)> {
    let mut producers = producers(server, sessions).await?;
    let (mut ratios, mut business) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let mut rates = [0.0, 0.0];
        for turn in [round % 2, 1 - round % 2] {
            let variant = [Variant::Business, Variant::Enqueue][turn];
            rates[turn] = slice_of(&mut producers, variant, SLICE, || ()).await?;
        }
        // The first one warms up.
        if round > 0 {
            ratios.push(rates[1] / rates[0]);
            business.push(rates[0]);
        }
    }
    Ok((median(ratios), median(business)))
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
