//! Producers: a transaction with a business insert and an enqueue, against the business insert alone.
//!
//! Variants take turns in short slices, in another order each round:
//!
//! | variant | round trips | compared with |
//! |---|---|---|
//! | business | `BEGIN`, insert, `COMMIT` | |
//! | statement by statement | `BEGIN`, insert, enqueue, `COMMIT` | business |
//! | plain row | `BEGIN`, insert, insert of the same bytes into a plain table, `COMMIT` | business: no log can be much cheaper |
//! | joined | `BEGIN`, insert with enqueue, `COMMIT` | business |
//! | business in flight | `BEGIN`, insert with `COMMIT` | |
//! | pipelined | `BEGIN`, insert with enqueue and `COMMIT` | business in flight, which has as many round trips |

use std::time::Duration;

use anyhow::Result;
use futures_util::future::{try_join, try_join_all};
use postrider::{
    Message, Outbox,
    postgres::{
        Notifier, Postgres,
        enlist::{Flight, Prepared},
    },
};
use serde_json::{Value, json};
use tokio_postgres::{Client, Statement};

use super::{fixtures, process::RelayProcess, server::Server};
use crate::{
    closed_loop::{self, slice_of, take_turns},
    measure::median,
    relay::{OrderPlaced, PAYLOAD_BYTES},
};

const SCHEMA: &str = "producer";

/// One turn of one variant.
const SLICE: Duration = Duration::from_millis(200);

/// One turn where a relay runs beside: long enough for the rate of its announcements to follow that of the commits.
const HINT_SLICE: Duration = Duration::from_millis(500);

/// What a transaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Variant {
    Business,
    Statements,
    PlainRow,
    Joined,
    BusinessInFlight,
    Pipelined,
}

const VARIANTS: [Variant; 6] = [
    Variant::Business,
    Variant::Statements,
    Variant::PlainRow,
    Variant::Joined,
    Variant::BusinessInFlight,
    Variant::Pipelined,
];

/// One connection with its statements.
struct Producer {
    client: Client,
    insert: Statement,
    insert_plain: Statement,
    prepared: Prepared,
    outbox: Outbox<Postgres>,
    number: u64,
}

pub(crate) async fn run(server: &Server, rounds: usize) -> Result<Value> {
    eprintln!("producers: {rounds} rounds");
    fixtures::store(&server.url, SCHEMA).await?;
    let client = server.client().await?;
    client
        .batch_execute(&format!("CREATE TABLE {SCHEMA}.orders {ORDERS}; CREATE TABLE {SCHEMA}.plain {PLAIN}"))
        .await?;
    let mut many = producers(server, 16).await?;
    let mut one = producers(server, 1).await?;
    let rates = take_turns([&mut many, &mut one], &VARIANTS, SLICE, rounds).await?;
    let stored = stored_overhead(&client).await?;
    let hints = hints(server, &mut many, rounds).await?;
    let ratio = |connections, ours, theirs| rates.ratio(connections, ours, theirs);
    Ok(json!({
        "producer_16": ratio(16, Variant::Statements, Variant::Business),
        "producer_16_plain_row": ratio(16, Variant::PlainRow, Variant::Business),
        "producer_16_joined": ratio(16, Variant::Joined, Variant::Business),
        "producer_16_pipelined": ratio(16, Variant::Pipelined, Variant::BusinessInFlight),
        "producer_1": ratio(1, Variant::Statements, Variant::Business),
        "producer_1_plain_row": ratio(1, Variant::PlainRow, Variant::Business),
        "producer_1_joined": ratio(1, Variant::Joined, Variant::Business),
        "producer_1_pipelined": ratio(1, Variant::Pipelined, Variant::BusinessInFlight),
        "producer_16_business_per_second": rates.rate(16, Variant::Business),
        "producer_1_business_per_second": rates.rate(1, Variant::Business),
        "stored_overhead_bytes": stored,
        "producer_with_hints_vs_without": hints,
    }))
}

/// What the business writes.
pub(crate) const ORDERS: &str = "(
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    amount bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
)";

/// What the log stores of a message, in a table that is nothing but one.
const PLAIN: &str = "(
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tx xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    topic text NOT NULL,
    name text NOT NULL,
    key text,
    payload bytea NOT NULL
)";

async fn producers(server: &Server, connections: u64) -> Result<Vec<Producer>> {
    try_join_all((0..connections).map(|number| async move {
        let client = server.client().await?;
        let store = Postgres::new(SCHEMA, "")?;
        let insert = format!("INSERT INTO {SCHEMA}.orders (customer, amount) VALUES ($1, $2)");
        let insert = client.prepare(&insert).await?;
        let insert_plain = format!("INSERT INTO {SCHEMA}.plain (topic, name, key, payload) VALUES ($1, $2, $3, $4)");
        let insert_plain = client.prepare(&insert_plain).await?;
        let prepared = Prepared::new(&client, &store).await?;
        let outbox = Outbox::new(store);
        Ok::<_, anyhow::Error>(Producer { client, insert, insert_plain, prepared, outbox, number })
    }))
    .await
}

impl closed_loop::Producer for Producer {
    type Variant = Variant;

    async fn transaction(&mut self, variant: Variant) -> Result<()> {
        self.number += 16;
        let order = OrderPlaced::new(self.number);
        let amount = i64::try_from(self.number)?;
        let business: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&order.customer(), &amount];
        if let Variant::BusinessInFlight | Variant::Pipelined = variant {
            let mut flight = Flight::begin(&mut self.client).await?.with(&self.prepared);
            flight.execute(&self.insert, &business);
            if variant == Variant::Pipelined {
                self.outbox.enqueue(&mut flight, &order)?;
            }
            flight.commit().await?;
            return Ok(());
        }
        let transaction = self.client.transaction().await?;
        let insert = async { Ok::<_, anyhow::Error>(transaction.execute(&self.insert, &business).await?) };
        let mut on = self.prepared.on(&transaction);
        if variant == Variant::Joined {
            let enqueue = async { Ok(self.outbox.enqueue_shared(&on, &order).await?) };
            try_join(insert, enqueue).await?;
        } else {
            insert.await?;
        }
        match variant {
            Variant::Statements => self.outbox.enqueue(&mut on, &order).await.map(drop)?,
            Variant::PlainRow => {
                let row: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
                    [&order.topic(), &OrderPlaced::NAME, &order.customer(), &order.encode()?];
                transaction.execute(&self.insert_plain, &row).await.map(drop)?;
            }
            _ => {}
        }
        transaction.commit().await?;
        Ok(())
    }
}

/// Bytes of tables and indexes per message beyond its payload, as real enqueues have left them.
async fn stored_overhead(client: &Client) -> Result<f64> {
    let sql = format!(
        "SELECT sum(pg_total_relation_size(inhrelid))::bigint, (SELECT count(*) FROM {SCHEMA}.log)
           FROM pg_inherits WHERE inhparent = '{SCHEMA}.log'::regclass"
    );
    let row = client.query_one(&sql, &[]).await?;
    let (bytes, rows): (i64, i64) = (row.get(0), row.get(1));
    Ok(bytes as f64 / rows as f64 - PAYLOAD_BYTES as f64)
}

/// The rate of producers that announce each commit, against that of those that do not; with a relay in another process that
/// is woken, or polls.
async fn hints(server: &Server, producers: &mut Vec<Producer>, rounds: usize) -> Result<f64> {
    let relay = RelayProcess::start(&server.url, SCHEMA, "hints", None).await?;
    let notifier = Notifier::connect(&server.url, &Postgres::new(SCHEMA, "")?)?;
    let mut ratios = Vec::new();
    for round in 0..=rounds {
        let mut rates = [0.0, 0.0];
        for turn in [round % 2, 1 - round % 2] {
            let notifier = (turn == 1).then(|| notifier.clone());
            let announce = move || notifier.iter().for_each(Notifier::notify);
            rates[turn] = slice_of(producers, Variant::Statements, HINT_SLICE, announce).await?;
        }
        if round > 0 {
            ratios.push(rates[1] / rates[0]);
        }
    }
    relay.finish().await?;
    Ok(median(ratios))
}
