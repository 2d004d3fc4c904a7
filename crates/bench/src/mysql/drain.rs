//! Draining a backlog: the whole engine against claiming a batch and marking it done, round by round.
//!
//! Every round has a log of its own: giving a message its place in the order is part of relaying it, and is paid for once.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use mysql_async::{Conn, TxOpts, prelude::Queryable};
use postrider::mysql::MysqlStore;
use serde_json::{Value, json};

use super::server::Server;
use crate::{
    measure::median,
    relay::{self, BATCH, rate},
};

/// Rows that one filling transaction inserts.
const FILL_ROWS: u64 = 5_000;

const COLUMNS: &str = "topic, name, `key`, payload";

/// A row with the number `n`: a payload that does not compress to nothing, one of a thousand keys.
const ROW: &str =
    "'orders', 'order.placed', CONCAT('customer-', LPAD(MOD(n * 7919, 1000), 6, '0')), UNHEX(REPEAT(MD5(n), 16))";

/// The numbers 0 to 9999, in the words of every server.
const NUMBERS: &str = "(WITH digit AS (SELECT 0 AS d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4
                        UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)
                        SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n
                          FROM digit AS a, digit AS b, digit AS c, digit AS e) AS number";

pub(crate) async fn run(server: &Server, messages: u64, rounds: usize) -> Result<Value> {
    eprintln!("drain: a backlog of {messages}, {rounds} rounds");
    let mut connection = server.connection().await?;
    let (mut ours, mut claims, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        let prefix = format!("round_{round}_");
        let store = MysqlStore::builder(&server.url).prefix(&prefix).open().await?;
        fill(&mut connection, &format!("{prefix}log"), messages).await?;
        claim_table(&mut connection, messages).await?;
        // Each goes first every other time.
        let mut rates = [0.0, 0.0];
        for turn in [round % 2, 1 - round % 2] {
            rates[turn] = match turn {
                0 => rate(messages, relay::drain(Arc::new(store.clone()), "all", messages).await?.took),
                _ => rate(messages, claim(&mut connection, messages).await?),
            };
        }
        // The first one warms up.
        if round > 0 {
            eprintln!("  ours {:.0}, claim {:.0} messages/s", rates[0], rates[1]);
            ours.push(rates[0]);
            claims.push(rates[1]);
            ratios.push(rates[0] / rates[1]);
        }
    }
    connection.disconnect().await?;
    Ok(json!({
        "mysql_drain_vs_batch_claim": median(ratios),
        "mysql_drain_messages_per_second": median(ours),
        "mysql_batch_claim_messages_per_second": median(claims),
        "mysql_drain_messages": messages,
    }))
}

/// Inserts messages in many transactions.
async fn fill(connection: &mut Conn, table: &str, rows: u64) -> Result<()> {
    let sql = format!("INSERT INTO {table} ({COLUMNS}) SELECT {ROW} FROM {NUMBERS} WHERE n < ? ORDER BY n");
    for from in (0..rows).step_by(usize::try_from(FILL_ROWS)?) {
        connection.exec_drop(&sql, (FILL_ROWS.min(rows - from),)).await?;
    }
    Ok(())
}

async fn claim_table(connection: &mut Conn, rows: u64) -> Result<()> {
    connection.query_drop("DROP TABLE IF EXISTS claim").await?;
    connection
        .query_drop(
            "CREATE TABLE claim (
                 id      BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
                 topic   VARCHAR(255) NOT NULL,
                 name    VARCHAR(255) NOT NULL,
                 `key`   VARCHAR(255),
                 payload LONGBLOB     NOT NULL,
                 status  TINYINT      NOT NULL DEFAULT 0,
                 KEY waiting (status, id)
             ) ENGINE = InnoDB",
        )
        .await?;
    fill(connection, "claim", rows).await
}

/// Number, topic, name, key and payload.
type Claimed = (i64, String, String, Option<String>, Vec<u8>);

/// The usual batch claim: lock a batch and mark it as taken in one transaction, publish, mark it as done.
async fn claim(connection: &mut Conn, rows: u64) -> Result<Duration> {
    let take = format!(
        "SELECT id, topic, name, `key`, payload FROM claim WHERE status = 0 ORDER BY id LIMIT {BATCH}
            FOR UPDATE SKIP LOCKED"
    );
    let (began, mut count) = (Instant::now(), 0);
    loop {
        let mut transaction = connection.start_transaction(TxOpts::default()).await?;
        let taken: Vec<Claimed> = transaction.exec(&take, ()).await?;
        let ids: Vec<String> = taken.iter().map(|row| row.0.to_string()).collect();
        if ids.is_empty() {
            transaction.rollback().await?;
            break;
        }
        let ids = ids.join(", ");
        transaction.query_drop(format!("UPDATE claim SET status = 1 WHERE id IN ({ids})")).await?;
        transaction.commit().await?;
        ensure!(taken.iter().all(|row| !row.4.is_empty()), "rows without payload");
        connection.query_drop(format!("UPDATE claim SET status = 2 WHERE id IN ({ids})")).await?;
        count += taken.len() as u64;
    }
    ensure!(count == rows, "{count} instead of {rows} rows");
    Ok(began.elapsed())
}
