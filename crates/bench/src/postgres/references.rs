//! What others do, in the same harness: claiming a batch and marking it done, locking a batch and deleting it, and the
//! limit of all reading, a bare `COPY`.
//!
//! They are written as one would write them with care: prepared statements, the index that each needs, batches of the
//! same size, statements that need no answer sent together, and the server's own vacuum.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::{StreamExt, future::try_join, pin_mut};
use tokio_postgres::{Client, Row};

use super::fixtures::{self, REFERENCE_COLUMNS};
use crate::relay::BATCH;

/// How a drain went, and what it looked like on the way.
pub(crate) struct Reference {
    pub(crate) took: Duration,
    pub(crate) progress: Vec<(Duration, u64)>,
}

/// The batch claim's table, filled.
pub(crate) async fn claim_table(client: &Client, rows: u64) -> Result<()> {
    client
        .batch_execute(&format!(
            "DROP TABLE IF EXISTS claim;
             CREATE TABLE claim (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {REFERENCE_COLUMNS},
                                 status smallint NOT NULL DEFAULT 0);
             CREATE INDEX claim_waiting ON claim (id) WHERE status = 0"
        ))
        .await?;
    fixtures::fill_reference(client, "claim", rows).await
}

/// The usual batch claim: mark a batch as taken and get it, publish, mark it as done.
pub(crate) async fn claim(client: &Client, rows: u64) -> Result<Reference> {
    let take = client
        .prepare(
            "UPDATE claim SET status = 1
              WHERE id IN (SELECT id FROM claim WHERE status = 0 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
             RETURNING id, message_id, topic, name, key, payload",
        )
        .await?;
    let done = client.prepare("UPDATE claim SET status = 2 WHERE id = ANY ($1)").await?;
    let mut meter = Meter::new();
    loop {
        let taken = client.query(&take, &[&i64::from(BATCH)]).await?;
        if taken.is_empty() {
            break;
        }
        let ids = publish(&taken)?;
        client.execute(&done, &[&ids]).await?;
        meter.count(ids.len());
    }
    meter.finish(rows)
}

/// The deleting queue's table, filled.
pub(crate) async fn delete_table(client: &Client, rows: u64) -> Result<()> {
    client
        .batch_execute(&format!(
            "DROP TABLE IF EXISTS queue;
             CREATE TABLE queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {REFERENCE_COLUMNS})"
        ))
        .await?;
    fixtures::fill_reference(client, "queue", rows).await
}

/// Lock a batch, publish it, delete it, in one transaction. `BEGIN` travels with the first statement and `COMMIT` with the
/// last.
pub(crate) async fn delete(client: &Client, rows: u64) -> Result<Reference> {
    let lock = client
        .prepare(
            "SELECT id, message_id, topic, name, key, payload
               FROM queue ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED",
        )
        .await?;
    let delete = client.prepare("DELETE FROM queue WHERE id = ANY ($1)").await?;
    let mut meter = Meter::new();
    loop {
        let limit = i64::from(BATCH);
        let ((), locked) = try_join(client.batch_execute("BEGIN"), client.query(&lock, &[&limit])).await?;
        let ids = publish(&locked)?;
        try_join(client.execute(&delete, &[&ids]), client.batch_execute("COMMIT")).await?;
        if ids.is_empty() {
            break;
        }
        meter.count(ids.len());
    }
    meter.finish(rows)
}

/// Looks at every row as a publisher would, and answers the ids.
fn publish(rows: &[Row]) -> Result<Vec<i64>> {
    let mut ids = Vec::with_capacity(rows.len());
    let mut bytes = 0;
    for row in rows {
        ids.push(row.try_get(0)?);
        bytes += row.try_get::<_, &[u8]>(5)?.len();
    }
    ensure!(rows.is_empty() || bytes > 0, "rows without payload");
    Ok(ids)
}

/// The limit: everything that a record consists of, in the log's order, as fast as the server can say it.
/// How many rows came is counted where it costs next to nothing: the pieces of a `COPY` are its rows.
pub(crate) async fn copy(client: &Client, schema: &str, rows: u64) -> Result<Duration> {
    let sql = format!(
        "COPY (SELECT seq, topic, id, key, enqueued_at, name, deliver_at, expires_at, attempts_max, headers, payload
                 FROM {schema}.log_0 ORDER BY seq) TO STDOUT (FORMAT binary)"
    );
    let began = Instant::now();
    let stream = client.copy_out(&sql).await?;
    pin_mut!(stream);
    let mut pieces: u64 = 0;
    while let Some(piece) = stream.next().await {
        pieces += u64::from(!piece?.is_empty());
    }
    let took = began.elapsed();
    // A trailer comes behind the last row; the header is a part of the first one.
    ensure!(pieces == rows + 1, "a COPY of {} rows instead of {rows}", pieces.saturating_sub(1));
    Ok(took)
}

struct Meter {
    began: Instant,
    count: u64,
    progress: Vec<(Duration, u64)>,
}

impl Meter {
    fn new() -> Self {
        Self { began: Instant::now(), count: 0, progress: Vec::new() }
    }

    fn count(&mut self, rows: usize) {
        self.count += rows as u64;
        self.progress.push((self.began.elapsed(), self.count));
    }

    fn finish(self, rows: u64) -> Result<Reference> {
        ensure!(self.count == rows, "{} instead of {rows} rows", self.count);
        Ok(Reference { took: self.began.elapsed(), progress: self.progress })
    }
}
