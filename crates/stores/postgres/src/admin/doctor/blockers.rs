//! Who holds back what: transactions, prepared transactions and replication slots that have been there for long.
//!
//! None of them holds up the messages of others, unless it keeps a lock on our tables. A transaction that has enqueued keeps
//! retention from emptying what came after it, one that has looked at the log what it has looked at, and any that is old keeps
//! the server from cleaning up after updates, everywhere in the database.

use std::time::Duration;

use postrider_core::{
    admin::UNCOMMITTED_SHOWN_MAX,
    doctor::{Finding, Severity, Thresholds, shown_statement},
};
use tokio_postgres::{Client, Row, types::ToSql};

use crate::{
    dialect::{LEAVES, Postgres},
    error::Work,
};

/// Sessions of others that have a transaction id, a snapshot that holds back cleaning, or a lock on a leaf, which cannot be emptied
/// then. Walsenders come with the slots. Whoever has drawn a number of the log has a lock on its sequence; so has who has only
/// asked for the last one, but no transaction id.
const TRANSACTIONS: &str = "
SELECT pid, coalesce(usename, '?'), coalesce(datname, '?'), state, extract(epoch FROM clock_timestamp() - xact_start)::float8,
       query,
       backend_xid IS NOT NULL
       AND EXISTS (SELECT 1
                     FROM pg_locks AS lock
                    WHERE lock.pid = activity.pid AND lock.relation = to_regclass($2) AND lock.mode <> 'AccessShareLock'
                      AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())),
       has_leaf
  FROM pg_stat_activity AS activity
 CROSS JOIN LATERAL (SELECT EXISTS (SELECT 1
                                      FROM pg_locks AS lock
                                     WHERE lock.pid = activity.pid
                                       AND lock.relation IN (SELECT to_regclass(t)::oid FROM unnest($3::text[]) AS t)
                                       AND lock.database = (SELECT oid FROM pg_database
                                                             WHERE datname = current_database()))) AS leaf (has_leaf)
 WHERE xact_start < clock_timestamp() - $1 * interval '1 second'
   AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL OR has_leaf)
   AND pid <> pg_backend_pid() AND backend_type = 'client backend'
 ORDER BY xact_start";

/// To those who may not see others, their sessions have no state.
const HIDDEN: &str = "
SELECT count(*), quote_ident(current_user) FROM pg_stat_activity WHERE state IS NULL AND backend_type IS NULL AND pid <> pg_backend_pid()";

/// Its locks belong to no process; what they have in common is told by the one on its own id.
const PREPARED: &str = "
SELECT gid, owner::text, database::text, extract(epoch FROM clock_timestamp() - prepared)::float8,
       EXISTS (SELECT 1
                 FROM pg_locks AS own
                 JOIN pg_locks AS lock USING (virtualtransaction)
                WHERE own.pid IS NULL AND own.locktype = 'transactionid' AND own.transactionid = transaction
                  AND lock.pid IS NULL AND lock.relation = to_regclass($2) AND lock.mode <> 'AccessShareLock'
                  AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
  FROM pg_prepared_xacts
 WHERE prepared < clock_timestamp() - $1 * interval '1 second'
 ORDER BY prepared";

/// One that nobody reads holds back for ever.
const SLOTS: &str = "
SELECT slot_name::text, slot_type
  FROM pg_replication_slots
 WHERE NOT active AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL OR restart_lsn IS NOT NULL)
 ORDER BY slot_name";

/// Whoever has kept a session waiting that works on one of our tables.
const KEEPS_US_WAITING: &str = "
SELECT by.pid
  FROM pg_stat_activity AS waiter
 CROSS JOIN LATERAL unnest(pg_blocking_pids(waiter.pid)) AS by (pid)
 WHERE waiter.wait_event_type = 'Lock' AND waiter.query_start < clock_timestamp() - $1 * interval '1 second'
   AND EXISTS (SELECT 1
                 FROM pg_locks AS lock
                WHERE lock.pid = waiter.pid AND lock.relation IN (SELECT to_regclass(t)::oid FROM unnest($2::text[]) AS t))";

/// Whoever keeps one session waiting.
const KEEPS_IT_WAITING: &str = "SELECT * FROM unnest(pg_blocking_pids($1))";

/// Of those, and of those for whom they wait themselves, and so on: best one that waits for nobody.
const BLOCKER: &str = "
SELECT blocker.pid, coalesce(blocker.usename, '?'), coalesce(blocker.datname, '?'), blocker.state,
       extract(epoch FROM clock_timestamp() - blocker.xact_start)::float8, blocker.query,
       blocker.wait_event_type IS NOT DISTINCT FROM 'Lock' AS waits
  FROM chain
  JOIN pg_stat_activity AS blocker ON blocker.pid = chain.pid
 ORDER BY waits, blocker.xact_start, blocker.pid
 LIMIT 1";

/// The same of a transaction that was prepared: to the server it is no process, and has the number 0.
const PREPARED_BLOCKER: &str = "
SELECT gid, owner::text, database::text, extract(epoch FROM clock_timestamp() - prepared)::float8
  FROM pg_prepared_xacts
 WHERE database = current_database() AND 0 IN (SELECT pid FROM chain)
   AND EXISTS (SELECT 1
                 FROM pg_locks AS own
                 JOIN pg_locks AS lock USING (virtualtransaction)
                WHERE own.pid IS NULL AND own.locktype = 'transactionid' AND own.transactionid = transaction
                  AND lock.pid IS NULL AND lock.relation IN (SELECT to_regclass(t)::oid FROM unnest($2::text[]) AS t))
 ORDER BY prepared
 LIMIT 1";

/// Whoever has had a lock on one of our tables that lets nobody look at it, though perhaps nobody waits for it just now. When it
/// was taken is told nowhere: a session that is idle has had it since it is, and a statement since it began at most.
const HOLDER: &str = "
SELECT holder.pid, coalesce(holder.usename, '?'), coalesce(holder.datname, '?'), holder.state,
       extract(epoch FROM clock_timestamp() - holder.xact_start)::float8, holder.query
  FROM pg_locks AS lock
  JOIN pg_stat_activity AS holder ON holder.pid = lock.pid
 WHERE lock.granted AND lock.mode = 'AccessExclusiveLock' AND lock.locktype = 'relation'
   AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND lock.relation IN (SELECT to_regclass(t)::oid FROM unnest($2::text[]) AS t)
   AND holder.backend_type = 'client backend' AND holder.pid <> pg_backend_pid()
   AND CASE holder.state WHEN 'active' THEN holder.query_start ELSE holder.state_change END
       < clock_timestamp() - $1 * interval '1 second'
 ORDER BY holder.xact_start, holder.pid
 LIMIT 1";

/// Whoever keeps a lock for longer keeps others from writing. Ordinary commits take milliseconds.
const LOCKED_AFTER_SECONDS: f64 = 2.0;

pub(super) async fn examine(client: &Client, dialect: &Postgres, thresholds: Thresholds) -> Work<Vec<Finding>> {
    let age = thresholds.transaction_age.as_secs_f64();
    let mut findings = Vec::new();
    for row in client.query(TRANSACTIONS, &[&age, &dialect.render("{seq}"), &leaves(dialect)]).await? {
        findings.push(Session::of(&row)?.finding(holds_back(row.try_get(6)?, row.try_get(7)?)));
    }
    for row in client.query(PREPARED, &[&age, &dialect.render("{seq}")]).await? {
        findings.push(prepared(&row, holds_back(row.try_get(4)?, false))?);
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
    findings.extend(hidden(client).await?);
    Ok(findings)
}

pub(super) async fn blockage(client: &Client, dialect: &Postgres) -> Work<Option<Finding>> {
    let tables = ["{log}", "{lane}", "{route}", "{node}", "{parked}"].map(|table| dialect.render(table));
    let tables: Vec<String> = tables.into_iter().chain(leaves(dialect)).collect();
    let waited_for = format!("that others have been waiting for for {LOCKED_AFTER_SECONDS} s or more");
    let bound: [&(dyn ToSql + Sync); 2] = [&LOCKED_AFTER_SECONDS, &tables];
    let blocker = client.query_opt(&through(KEEPS_US_WAITING, BLOCKER), &bound).await?;
    if let Some(row) = blocker.as_ref().filter(|row| !row.get::<_, bool>(6)) {
        return Ok(Some(Session::of(row)?.locks(&waited_for)));
    }
    if let Some(row) = client.query_opt(&through(KEEPS_US_WAITING, PREPARED_BLOCKER), &bound).await? {
        let holds = format!("it keeps a lock {waited_for}; nothing is lost");
        let found = prepared(&row, &holds)?;
        return Ok(Some(Finding { code: super::LOCKED, severity: Severity::Error, ..found }));
    }
    let Some(row) = client.query_opt(HOLDER, &bound).await? else { return Ok(None) };
    let whole = "on a whole table, behind which nobody can even look, for";
    Ok(Some(Session::of(&row)?.locks(&format!("{whole} {LOCKED_AFTER_SECONDS} s or more"))))
}

/// Whoever keeps this connection waiting for a lock just now.
pub(crate) async fn blocker_of(client: &Client, pid: i32) -> Work<Option<Finding>> {
    let Some(row) = client.query_opt(&through(KEEPS_IT_WAITING, BLOCKER), &[&pid]).await? else { return Ok(None) };
    Ok(Some(Session::of(&row)?.locks("that was waited for in vain")))
}

/// A question about those whom `first` names, and those for whom they wait.
fn through(first: &str, question: &str) -> String {
    format!(
        "WITH RECURSIVE chain (pid) AS (
             {first}
              UNION
             SELECT further.pid FROM chain CROSS JOIN LATERAL unnest(pg_blocking_pids(chain.pid)) AS further (pid)
         ){question}"
    )
}

fn leaves(dialect: &Postgres) -> Vec<String> {
    (0..LEAVES).map(|leaf| dialect.render(&format!("{{log_{leaf}}}"))).collect()
}

pub(super) async fn uncommitted(client: &Client, dialect: &Postgres, age: Duration) -> Work<Vec<Finding>> {
    let age = age.as_secs_f64();
    let mut findings = Vec::new();
    for row in client.query(TRANSACTIONS, &[&age, &dialect.render("{seq}"), &leaves(dialect)]).await? {
        if row.try_get(6)? {
            findings.push(Session::of(&row)?.finding(UNSEEN));
        }
    }
    for row in client.query(PREPARED, &[&age, &dialect.render("{seq}")]).await? {
        if row.try_get(4)? {
            findings.push(prepared(&row, UNSEEN)?);
        }
    }
    findings.truncate(UNCOMMITTED_SHOWN_MAX as usize);
    findings.extend(hidden(client).await?);
    Ok(findings)
}

/// What an open transaction that has enqueued means for its messages.
const UNSEEN: &str = "what it has enqueued is seen by nobody until it commits";

/// What an open transaction keeps from happening.
fn holds_back(has_enqueued: bool, has_looked: bool) -> &'static str {
    if has_enqueued {
        "it has enqueued, so retention keeps everything that was enqueued since"
    } else if has_looked {
        "it has looked at the log, so retention empties nothing of what it has looked at"
    } else {
        "it keeps the server from cleaning up what has changed since"
    }
}

fn prepared(row: &Row, holds: &str) -> Work<Finding> {
    let (gid, owner, database): (String, String, String) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let (age, literal) = (shown(row.try_get(3)?), gid.replace('\'', "''"));
    Ok(Finding::new("prepared-transaction", Severity::Warning, format!("gid {gid}"))
        .detail(format!(
            "{owner} in {database}, prepared {age} ago: it outlives its connection and a restart, and {holds}"
        ))
        .fix(format!("decide it in that database: `COMMIT PREPARED '{literal}'` or `ROLLBACK PREPARED '{literal}'`")))
}

async fn hidden(client: &Client) -> Work<Option<Finding>> {
    let row = client.query_one(HIDDEN, &[]).await?;
    let (hidden, role): (i64, String) = (row.try_get(0)?, row.try_get(1)?);
    if hidden == 0 {
        return Ok(None);
    }
    Ok(Some(
        Finding::new("activity-hidden", Severity::Note, "pg_stat_activity")
            .detail(format!(
                "this role may not see what {hidden} other sessions are doing, so open transactions are missed"
            ))
            .fix(format!("have an administrator run `GRANT pg_read_all_stats TO {role}`")),
    ))
}

/// Somebody else's session, and what is known of it.
struct Session {
    pid: i32,
    told: String,
}

impl Session {
    fn of(row: &Row) -> Work<Self> {
        let (user, database): (String, String) = (row.try_get(1)?, row.try_get(2)?);
        let state = row.try_get::<_, Option<String>>(3)?.unwrap_or_else(|| "unknown".to_owned());
        let age =
            row.try_get::<_, Option<f64>>(4)?.map_or_else(String::new, |age| format!(", open for {}", shown(age)));
        let query = shown_statement(row.try_get::<_, Option<&str>>(5)?.unwrap_or_default(), &['\'']);
        let told = format!("{user} in {database}, {state}{age}; last query: {query}");
        Ok(Self { pid: row.try_get(0)?, told })
    }

    /// As the one that has a lock, and which.
    fn locks(&self, which: &str) -> Finding {
        let Self { pid, told, .. } = self;
        Finding::new(super::LOCKED, Severity::Error, format!("pid {pid}"))
            .detail(format!("pid {pid} keeps a lock {which} ({told}); nothing is lost"))
            .fix(format!("end that transaction, or run `SELECT pg_terminate_backend({pid})`"))
    }

    fn finding(&self, holds: &str) -> Finding {
        let Self { pid, told, .. } = self;
        Finding::new("open-transaction", Severity::Warning, format!("pid {pid}"))
            .detail(format!("{holds}: {told}"))
            .fix(format!("end it where it comes from, or run `SELECT pg_terminate_backend({pid})`"))
    }
}

fn shown(seconds: f64) -> String {
    format!("{:?}", Duration::from_secs_f64(seconds.max(0.0).round()))
}
