//! Producers: a transaction with a business insert and an enqueue, against the business insert alone.
//!
//! Closed loop: every connection runs one transaction after the other. Variants take turns in short slices, in another order
//! each round. What is compared has the same number of round trips, unless its name says otherwise:
//!
//! | variant | round trips |
//! |---|---|
//! | business | `BEGIN`, insert, `COMMIT` |
//! | statement by statement | `BEGIN`, insert, enqueue, `COMMIT` |
//! | pipelined | `BEGIN`, insert with enqueue, `COMMIT` |
//! | business in flight | `BEGIN`, insert with `COMMIT` |
//! | flight | `BEGIN`, insert with enqueue and `COMMIT` |

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

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

use super::{
    fixtures::{self, KEYS, PAYLOAD_BYTES},
    process::RelayProcess,
    server::Server,
};
use crate::measure::median;

const SCHEMA: &str = "producer";

/// What a transaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Variant {
    Business,
    Statements,
    Pipelined,
    BusinessInFlight,
    Flight,
}

const VARIANTS: [Variant; 5] =
    [Variant::Business, Variant::Statements, Variant::Pipelined, Variant::BusinessInFlight, Variant::Flight];

/// One connection with its statements.
struct Producer {
    client: Client,
    insert: Statement,
    prepared: Prepared,
    outbox: Outbox<Postgres>,
    number: u64,
}

pub(crate) async fn run(server: &Server, slice: Duration, rounds: usize) -> Result<Value> {
    eprintln!("producers: slices of {slice:?}, {rounds} rounds");
    fixtures::store(&server.url, SCHEMA).await?;
    let client = server.client().await?;
    client.batch_execute(&format!("CREATE TABLE {SCHEMA}.orders {ORDERS}")).await?;
    let mut many = producers(server, 16).await?;
    let mut one = producers(server, 1).await?;
    let mut rates: BTreeMap<(usize, Variant), Vec<f64>> = BTreeMap::new();
    for round in 0..=rounds {
        for turn in 0..VARIANTS.len() {
            let variant = VARIANTS[(turn + round) % VARIANTS.len()];
            for producers in [&mut many, &mut one] {
                let rate = slice_of(producers, variant, slice, None).await?;
                // The first one warms up.
                if round > 0 {
                    rates.entry((producers.len(), variant)).or_default().push(rate);
                }
            }
        }
    }
    let stored = stored_overhead(&client).await?;
    let hints = hints(server, &mut many, slice, rounds).await?;
    let of = |connections: usize, variant: Variant| rates[&(connections, variant)].clone();
    let ratio = |connections: usize, ours: Variant, theirs: Variant| {
        median(of(connections, ours).iter().zip(of(connections, theirs)).map(|(ours, theirs)| ours / theirs).collect())
    };
    Ok(json!({
        "producer_16": ratio(16, Variant::Statements, Variant::Business),
        "producer_16_pipelined": ratio(16, Variant::Pipelined, Variant::Business),
        "producer_16_flight": ratio(16, Variant::Flight, Variant::BusinessInFlight),
        "producer_1": ratio(1, Variant::Statements, Variant::Business),
        "producer_1_pipelined": ratio(1, Variant::Pipelined, Variant::Business),
        "producer_1_flight": ratio(1, Variant::Flight, Variant::BusinessInFlight),
        "producer_16_business_per_second": median(of(16, Variant::Business)),
        "producer_1_business_per_second": median(of(1, Variant::Business)),
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

async fn producers(server: &Server, connections: u64) -> Result<Vec<Producer>> {
    try_join_all((0..connections).map(|number| async move {
        let client = server.client().await?;
        let store = Postgres::new(SCHEMA, "")?;
        let insert = format!("INSERT INTO {SCHEMA}.orders (customer, amount) VALUES ($1, $2)");
        let insert = client.prepare(&insert).await?;
        let prepared = Prepared::new(&client, &store).await?;
        Ok::<_, anyhow::Error>(Producer { client, insert, prepared, outbox: Outbox::new(store), number })
    }))
    .await
}

/// Transactions per second of all producers together. Each is a task of its own, as in a service.
async fn slice_of(
    producers: &mut Vec<Producer>,
    variant: Variant,
    slice: Duration,
    notifier: Option<&Notifier>,
) -> Result<f64> {
    let (over, began) = (Arc::new(AtomicBool::new(false)), Instant::now());
    let tasks: Vec<_> = producers
        .drain(..)
        .map(|producer| tokio::spawn(producer.work(variant, Arc::clone(&over), notifier.cloned())))
        .collect();
    tokio::time::sleep(slice).await;
    over.store(true, Ordering::Relaxed);
    let mut transactions = 0;
    for task in tasks {
        let (producer, count) = task.await??;
        producers.push(producer);
        transactions += count;
    }
    Ok(transactions as f64 / began.elapsed().as_secs_f64())
}

impl Producer {
    /// One transaction after the other until it is over; how many.
    async fn work(
        mut self,
        variant: Variant,
        over: Arc<AtomicBool>,
        notifier: Option<Notifier>,
    ) -> Result<(Self, u64)> {
        let mut count = 0;
        while !over.load(Ordering::Relaxed) {
            self.transaction(variant).await?;
            if let Some(notifier) = &notifier {
                notifier.notify();
            }
            count += 1;
        }
        Ok((self, count))
    }

    async fn transaction(&mut self, variant: Variant) -> Result<()> {
        self.number += 16;
        let order = OrderPlaced::new(self.number);
        let amount = i64::try_from(self.number)?;
        let business: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&order.customer, &amount];
        if let Variant::BusinessInFlight | Variant::Flight = variant {
            let mut flight = Flight::begin(&mut self.client).await?.with(&self.prepared);
            flight.execute(&self.insert, &business);
            if variant == Variant::Flight {
                self.outbox.enqueue(&mut flight, &order)?;
            }
            flight.commit().await?;
            return Ok(());
        }
        let transaction = self.client.transaction().await?;
        let insert = async { Ok::<_, anyhow::Error>(transaction.execute(&self.insert, &business).await?) };
        let mut on = self.prepared.on(&transaction);
        if variant == Variant::Pipelined {
            let enqueue = async { Ok(self.outbox.enqueue_shared(&on, &order).await?) };
            try_join(insert, enqueue).await?;
        } else {
            insert.await?;
            if variant == Variant::Statements {
                self.outbox.enqueue(&mut on, &order).await?;
            }
        }
        transaction.commit().await?;
        Ok(())
    }
}

/// The message of a transaction: bytes of the usual size, one key a customer.
#[derive(serde::Serialize)]
pub(crate) struct OrderPlaced {
    number: u64,
    customer: String,
}

impl OrderPlaced {
    pub(crate) fn new(number: u64) -> Self {
        Self { number, customer: format!("customer-{:06}", number.wrapping_mul(7919) % KEYS) }
    }

    /// The number that a payload begins with.
    pub(crate) fn number(payload: &[u8]) -> Option<u64> {
        Some(u64::from_le_bytes(payload.get(..8)?.try_into().ok()?))
    }
}

impl Message for OrderPlaced {
    const NAME: &'static str = "order.placed";

    fn topic(&self) -> Cow<'_, str> {
        "orders".into()
    }

    fn key(&self) -> Option<Cow<'_, str>> {
        Some(self.customer.as_str().into())
    }

    fn encode(&self) -> postrider::Result<Vec<u8>> {
        Ok(self.number.to_le_bytes().repeat(PAYLOAD_BYTES / 8))
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
async fn hints(server: &Server, producers: &mut Vec<Producer>, slice: Duration, rounds: usize) -> Result<f64> {
    let relay = RelayProcess::start(&server.url, SCHEMA, "hints", None).await?;
    let notifier = Notifier::connect(&server.url, &Postgres::new(SCHEMA, "")?)?;
    let mut ratios = Vec::new();
    for round in 0..=rounds {
        let mut rates = [0.0, 0.0];
        for turn in [round % 2, 1 - round % 2] {
            let notifier = (turn == 1).then_some(&notifier);
            rates[turn] = slice_of(producers, Variant::Statements, slice, notifier).await?;
        }
        if round > 0 {
            ratios.push(rates[1] / rates[0]);
        }
    }
    relay.finish().await?;
    Ok(median(ratios))
}
