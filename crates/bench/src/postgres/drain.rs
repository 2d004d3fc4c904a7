//! Draining a backlog: the whole engine against the batch claim, the deleting queue and `COPY`, round by round.

use anyhow::Result;
use serde_json::{Value, json};

use super::{fixtures, references, server::Server};
use crate::{measure::median, relay::rate};

const SCHEMA: &str = "drain";

/// Ratios, rates and bytes of write-ahead log.
pub(crate) async fn run(server: &Server, messages: u64, rounds: usize) -> Result<Value> {
    eprintln!("drain: a backlog of {messages}, {rounds} rounds");
    let client = server.client().await?;
    let store = fixtures::store(&server.url, SCHEMA).await?;
    fixtures::fill_log(&client, SCHEMA, messages).await?;
    let mut rounds_run: Vec<Round> = Vec::new();
    for number in 0..=rounds {
        let round = round(server, &client, &store, messages, number).await?;
        // The first one warms up.
        if number > 0 {
            eprintln!(
                "  ours {:.0}, claim {:.0}, delete {:.0}, copy {:.0} messages/s; {:.2} bytes of WAL",
                round.ours, round.claim, round.delete, round.copy, round.wal
            );
            rounds_run.push(round);
        }
    }
    let median_of = |value: fn(&Round) -> f64| median(rounds_run.iter().map(value).collect());
    Ok(json!({
        "drain_vs_batch_claim": median_of(|round| round.ours / round.claim),
        "drain_vs_skip_locked_delete": median_of(|round| round.ours / round.delete),
        "drain_vs_copy": median_of(|round| round.ours / round.copy),
        "relay_wal_bytes_per_message": median_of(|round| round.wal),
        "claim_wal_bytes_per_message": median_of(|round| round.claim_wal),
        "delete_wal_bytes_per_message": median_of(|round| round.delete_wal),
        "drain_messages_per_second": median_of(|round| round.ours),
        "batch_claim_messages_per_second": median_of(|round| round.claim),
        "skip_locked_delete_messages_per_second": median_of(|round| round.delete),
        "copy_messages_per_second": median_of(|round| round.copy),
        "drain_messages": messages,
    }))
}

#[derive(Clone, Copy)]
enum Variant {
    Copy,
    Ours,
    Delete,
    Claim,
}

impl Variant {
    const ALL: [Self; 4] = [Self::Copy, Self::Ours, Self::Delete, Self::Claim];
}

#[derive(Default)]
struct Round {
    ours: f64,
    claim: f64,
    delete: f64,
    copy: f64,
    wal: f64,
    claim_wal: f64,
    delete_wal: f64,
}

async fn round(
    server: &Server,
    client: &tokio_postgres::Client,
    store: &postrider::postgres::PostgresStore,
    messages: u64,
    number: usize,
) -> Result<Round> {
    references::claim_table(client, messages).await?;
    references::delete_table(client, messages).await?;
    let mut round = Round::default();
    for turn in 0..Variant::ALL.len() {
        // In another order each round, so that nobody always comes behind the same one.
        let variant = Variant::ALL[(turn + number) % Variant::ALL.len()];
        let before = server.wal(client).await?;
        let took = match variant {
            Variant::Copy => references::copy(client, SCHEMA, messages).await?,
            Variant::Ours => fixtures::drain(store, &format!("round-{number}"), messages).await?.took,
            Variant::Delete => references::delete(client, messages).await?.took,
            Variant::Claim => references::claim(client, messages).await?.took,
        };
        let wal = (server.wal(client).await? - before) as f64 / messages as f64;
        // What a reference leaves behind would be vacuumed at the cost of whoever comes next.
        match variant {
            Variant::Delete => client.batch_execute("DROP TABLE queue").await?,
            Variant::Claim => client.batch_execute("DROP TABLE claim").await?,
            Variant::Copy | Variant::Ours => {}
        }
        let rate = rate(messages, took);
        match variant {
            Variant::Copy => round.copy = rate,
            Variant::Ours => (round.ours, round.wal) = (rate, wal),
            Variant::Delete => (round.delete, round.delete_wal) = (rate, wal),
            Variant::Claim => (round.claim, round.claim_wal) = (rate, wal),
        }
    }
    Ok(round)
}
