//! Who holds back what: transactions, prepared transactions and replication slots that have been there for long.
//!
//! None of them holds up messages. A transaction that writes keeps retention from emptying what came after it, and any
//! old snapshot keeps the server from cleaning up after updates, everywhere in the database.

use std::time::Duration;

use postrider_core::doctor::{Finding, Severity, Thresholds};
use tokio_postgres::Client;

use crate::error::Work;

/// The text of a query is cut, and its lines become one.
const QUERY_CHARS_MAX: usize = 160;

/// Sessions of others that have a transaction id, or a snapshot that holds back cleaning. Walsenders come with the slots.
const TRANSACTIONS: &str = "
SELECT pid, coalesce(usename, '?'), coalesce(datname, '?'), state, extract(epoch FROM clock_timestamp() - xact_start)::float8,
       backend_xid IS NOT NULL, query, application_name
  FROM pg_stat_activity
 WHERE xact_start < clock_timestamp() - $1 * interval '1 second'
   AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
   AND pid <> pg_backend_pid() AND backend_type = 'client backend'
 ORDER BY xact_start";

/// To those who may not see others, their sessions have no state.
const HIDDEN: &str = "
SELECT count(*) FROM pg_stat_activity WHERE state IS NULL AND backend_type IS NULL AND pid <> pg_backend_pid()";

const PREPARED: &str = "
SELECT gid, owner::text, database::text, extract(epoch FROM clock_timestamp() - prepared)::float8
  FROM pg_prepared_xacts
 WHERE prepared < clock_timestamp() - $1 * interval '1 second'
 ORDER BY prepared";

/// One that nobody reads holds back for ever.
const SLOTS: &str = "
SELECT slot_name::text, slot_type
  FROM pg_replication_slots
 WHERE NOT active AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL OR restart_lsn IS NOT NULL)
 ORDER BY slot_name";

pub(super) async fn examine(client: &Client, thresholds: Thresholds) -> Work<Vec<Finding>> {
    let age = thresholds.transaction_age.as_secs_f64();
    let mut findings = Vec::new();
    for row in client.query(TRANSACTIONS, &[&age]).await? {
        let (pid, user, database): (i32, String, String) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let state: Option<String> = row.try_get(3)?;
        let writes: bool = row.try_get(5)?;
        let holds = if writes {
            "it has written, so retention keeps everything that was enqueued since"
        } else {
            "its snapshot keeps the server from cleaning up what has changed since"
        };
        let (state, age) = (state.unwrap_or_else(|| "unknown".to_owned()), shown(row.try_get(4)?));
        let query = shortened(row.try_get::<_, Option<&str>>(6)?.unwrap_or_default());
        findings.push(
            Finding::new("open-transaction", Severity::Warning, format!("pid {pid}"))
                .detail(format!("{user} in {database}, {state}, open for {age}: {holds}; last query: {query}"))
                .fix(format!("end it where it comes from, or run `SELECT pg_terminate_backend({pid})`")),
        );
    }
    for row in client.query(PREPARED, &[&age]).await? {
        let (gid, owner, database): (String, String, String) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let (age, literal) = (shown(row.try_get(3)?), gid.replace('\'', "''"));
        findings.push(
            Finding::new("prepared-transaction", Severity::Warning, format!("gid {gid}"))
                .detail(format!(
                    "{owner} in {database}, prepared {age} ago: it outlives its connection and a restart, and holds back \
                     retention and cleaning"
                ))
                .fix(format!("decide it in that database: `COMMIT PREPARED '{literal}'` or `ROLLBACK PREPARED '{literal}'`")),
        );
    }
    for row in client.query(SLOTS, &[]).await? {
        let (slot, kind): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        findings.push(
            Finding::new("idle-replication-slot", Severity::Warning, format!("slot {slot}"))
                .detail(format!("a {kind} slot that nobody reads keeps log files and old rows until the disk is full"))
                .fix(format!(
                    "start its reader again, or run `SELECT pg_drop_replication_slot('{}')`",
                    slot.replace('\'', "''")
                )),
        );
    }
    let hidden: i64 = client.query_one(HIDDEN, &[]).await?.try_get(0)?;
    if hidden > 0 {
        findings.push(
            Finding::new("activity-hidden", Severity::Note, "pg_stat_activity")
                .detail(format!(
                    "this role may not see what {hidden} other sessions are doing, so open transactions are missed"
                ))
                .fix("run `GRANT pg_read_all_stats` to this role"),
        );
    }
    Ok(findings)
}

fn shown(seconds: f64) -> String {
    format!("{:?}", Duration::from_secs_f64(seconds.max(0.0).round()))
}

fn shortened(query: &str) -> String {
    let line = query.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(QUERY_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
