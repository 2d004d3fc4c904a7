//! Under somebody else's long transaction: a snapshot that is held open, and a write transaction that is held open.
//!
//! A held snapshot keeps the server from cleaning up what is updated or deleted. The log has nothing of the kind, so its
//! drain stays flat; the usual queues step over ever more dead rows. A held write transaction that has enqueued keeps its own
//! messages back and must keep back nobody else's, neither while it is open nor when it ends and its range is looked through.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::{fixtures, latency, references, server::Server};
use crate::{measure::median, relay::rate};

/// A name, and when how many were published.
pub(crate) type Curve = (&'static str, Vec<(Duration, u64)>);

/// The ratio, and how ours and the references went on under the snapshot, for a plot.
pub(crate) struct Held {
    pub(crate) figures: Value,
    pub(crate) curves: Vec<Curve>,
}

const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";

/// Drains of the same backlog, by turns without and with a snapshot held.
pub(crate) async fn snapshot(server: &Server, messages: u64, rounds: usize) -> Result<Held> {
    eprintln!("held snapshot: a backlog of {messages}, {rounds} rounds");
    let (client, holder) = (server.client().await?, server.client().await?);
    let store = fixtures::store(&server.url, "held_snapshot").await?;
    fixtures::fill_log(&client, "held_snapshot", messages).await?;
    let mut ratios = Vec::new();
    let mut curves: Vec<Curve> = Vec::new();
    for round in 0..=rounds {
        let free = fixtures::drain(&store, &format!("free-{round}"), messages).await?;
        holder.batch_execute(SNAPSHOT).await?;
        let held = fixtures::drain(&store, &format!("held-{round}"), messages).await?;
        holder.batch_execute("ROLLBACK").await?;
        if round > 0 {
            ratios.push(rate(messages, held.steady) / rate(messages, free.steady));
            curves = vec![("Postrider", held.progress)];
        }
    }
    references::delete_table(&client, messages).await?;
    references::claim_table(&client, messages).await?;
    holder.batch_execute(SNAPSHOT).await?;
    curves.push(("SKIP LOCKED + DELETE", references::delete(&client, messages).await?.progress));
    curves.push(("batch claim", references::claim(&client, messages).await?.progress));
    holder.batch_execute("ROLLBACK").await?;
    Ok(Held {
        figures: json!({ "drain_held_snapshot_vs_free": median(ratios), "held_snapshot_messages": messages }),
        curves,
    })
}

/// How long producers go on when the held transaction has ended.
const AFTER: Duration = Duration::from_secs(5);

/// The longest time that a message took from commit to publish while another transaction, which has enqueued, stayed open, and
/// when it ended.
pub(crate) async fn write_transaction(server: &Server, lasts: Duration) -> Result<Value> {
    eprintln!("held write transaction: {lasts:?}");
    let schema = "held_write";
    fixtures::store(&server.url, schema).await?;
    let holder = server.client().await?;
    let enqueue = format!("SELECT {schema}.enqueue(topic => 'orders', name => 'order.placed', payload => '{{}}')");
    holder.batch_execute(&format!("BEGIN; {enqueue}")).await?;
    let ending = async {
        tokio::time::sleep(lasts).await;
        holder.batch_execute("ROLLBACK").await.map_err(anyhow::Error::from)
    };
    let (latencies, ()) = tokio::try_join!(latency::at_rate(server, schema, 200, lasts + AFTER), ending)?;
    let longest = latencies.last().copied().unwrap_or_default();
    Ok(json!({ "held_write_transaction_delay_ms": longest, "held_write_transaction_seconds": lasts.as_secs() }))
}
