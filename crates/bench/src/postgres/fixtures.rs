//! What is measured on: backlogs in our log and in the tables of the references, and a relay that drains one.

use std::sync::Arc;

use anyhow::Result;
use postrider::postgres::PostgresStore;
use tokio_postgres::Client;

use crate::relay::{self, Drained};

/// Rows that one filling transaction inserts.
const FILL_ROWS: u64 = 50_000;

/// A payload that does not compress to nothing, made by the server from the number `n` of the row.
const PAYLOAD_SQL: &str = "decode(repeat(md5(n::text), 16), 'hex')";

const KEY_SQL: &str = "'customer-' || lpad((n * 7919 % 1000)::text, 6, '0')";

/// A store in a schema of its own.
pub(crate) async fn store(url: &str, schema: &str) -> Result<PostgresStore> {
    Ok(PostgresStore::builder(url).schema(schema).open().await?)
}

/// Appends messages to the log of a schema, as plain SQL in many transactions, and lets the server tidy up behind.
pub(crate) async fn fill_log(client: &Client, schema: &str, messages: u64) -> Result<()> {
    let sql = format!(
        "INSERT INTO {schema}.log (id, topic, name, key, payload)
         SELECT gen_random_uuid(), 'orders', 'order.placed', {KEY_SQL}, {PAYLOAD_SQL}
           FROM generate_series($1::bigint, $2::bigint) AS n"
    );
    fill(client, &sql, messages).await?;
    for leaf in 0..8 {
        client.batch_execute(&format!("VACUUM ANALYZE {schema}.log_{leaf}")).await?;
    }
    Ok(())
}

/// Runs a filling statement over 1 to `rows` in transactions of a sensible size.
pub(crate) async fn fill(client: &Client, sql: &str, rows: u64) -> Result<()> {
    let statement = client.prepare(sql).await?;
    for from in (1..=rows).step_by(usize::try_from(FILL_ROWS)?) {
        let (from, to) = (i64::try_from(from)?, i64::try_from((from + FILL_ROWS - 1).min(rows))?);
        client.execute(&statement, &[&from, &to]).await?;
    }
    Ok(())
}

/// The columns that a reference's table has in place of ours, and how it is filled.
pub(crate) const REFERENCE_COLUMNS: &str =
    "message_id uuid NOT NULL, topic text NOT NULL, name text NOT NULL, key text, payload bytea NOT NULL";

/// Fills a reference's table with the same messages.
pub(crate) async fn fill_reference(client: &Client, table: &str, rows: u64) -> Result<()> {
    let sql = format!(
        "INSERT INTO {table} (message_id, topic, name, key, payload)
         SELECT gen_random_uuid(), 'orders', 'order.placed', {KEY_SQL}, {PAYLOAD_SQL}
           FROM generate_series($1::bigint, $2::bigint) AS n"
    );
    fill(client, &sql, rows).await?;
    client.batch_execute(&format!("VACUUM ANALYZE {table}")).await?;
    Ok(())
}

/// A whole relay on a fresh route, until so many messages are published.
pub(crate) async fn drain(store: &PostgresStore, route: &str, messages: u64) -> Result<Drained> {
    relay::drain(Arc::new(store.clone()), route, messages).await
}
