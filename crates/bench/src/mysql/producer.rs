//! Producers: a transaction with a business insert and an enqueue, against the business insert alone. Both `BEGIN`, say their
//! statements one after the other and `COMMIT`, so an enqueue is one more round trip.

use std::time::Duration;

use anyhow::Result;
use futures_util::future::try_join_all;
use mysql_async::{Conn, TxOpts, prelude::Queryable};
use postrider::{
    Outbox,
    mysql::{Mysql, MysqlStore},
};
use serde_json::{Value, json};

use super::server::Server;
use crate::{
    closed_loop::{self, take_turns},
    relay::OrderPlaced,
};

const PREFIX: &str = "producer_";

/// One turn of one variant.
const SLICE: Duration = Duration::from_millis(200);

/// What a transaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Variant {
    Business,
    Enqueue,
}

const VARIANTS: [Variant; 2] = [Variant::Business, Variant::Enqueue];

struct Producer {
    connection: Conn,
    outbox: Outbox<Mysql>,
    number: u64,
}

pub(crate) async fn run(server: &Server, rounds: usize) -> Result<Value> {
    eprintln!("producers: {rounds} rounds");
    MysqlStore::builder(&server.url).prefix(PREFIX).open().await?;
    let mut connection = server.connection().await?;
    connection
        .query_drop(
            "CREATE TABLE orders (
                 id       BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
                 customer VARCHAR(255) NOT NULL,
                 amount   BIGINT       NOT NULL,
                 at       TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
             ) ENGINE = InnoDB",
        )
        .await?;
    connection.disconnect().await?;
    let (mut many, mut one) = (producers(server, 16).await?, producers(server, 1).await?);
    let rates = take_turns([&mut many, &mut one], &VARIANTS, SLICE, rounds).await?;
    for producer in many.into_iter().chain(one) {
        producer.connection.disconnect().await?;
    }
    Ok(json!({
        "mysql_producer_ratio": rates.ratio(16, Variant::Enqueue, Variant::Business),
        "mysql_producer_1_ratio": rates.ratio(1, Variant::Enqueue, Variant::Business),
        "mysql_producer_business_per_second": rates.rate(16, Variant::Business),
    }))
}

async fn producers(server: &Server, connections: u64) -> Result<Vec<Producer>> {
    try_join_all((0..connections).map(|number| async move {
        let (connection, store) = (server.connection().await?, Mysql::with_prefix(PREFIX)?);
        Ok::<_, anyhow::Error>(Producer { connection, outbox: Outbox::new(store), number })
    }))
    .await
}

impl closed_loop::Producer for Producer {
    type Variant = Variant;

    async fn transaction(&mut self, variant: Variant) -> Result<()> {
        self.number += 16;
        let order = OrderPlaced::new(self.number);
        let mut transaction = self.connection.start_transaction(TxOpts::default()).await?;
        let insert = "INSERT INTO orders (customer, amount) VALUES (?, ?)";
        transaction.exec_drop(insert, (order.customer(), self.number)).await?;
        if variant == Variant::Enqueue {
            self.outbox.enqueue(&mut transaction, &order).await?;
        }
        transaction.commit().await?;
        Ok(())
    }
}
