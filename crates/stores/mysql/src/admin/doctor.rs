//! What an operator should know of the server: whether a crash can take back a commit, whether it takes writes at all, and
//! which transaction has been open for so long that what was deleted piles up behind it.

use std::time::Duration;

use mysql_async::Row;
use postrider_core::{
    admin::UNCOMMITTED_SHOWN_MAX,
    doctor::{Finding, Severity, Thresholds, shown_statement},
};

use crate::{
    db::{Db, get, values},
    error::Work,
    server::{Settings, has_trigger},
    unnoted,
};

/// Needs the PROCESS privilege. With a first parameter of one, only those that have written.
const OPEN: &str = "
SELECT trx.trx_mysql_thread_id, TIMESTAMPDIFF(MICROSECOND, trx.trx_started, NOW()), COALESCE(process.user, '?'),
       COALESCE(trx.trx_query, '')
  FROM information_schema.innodb_trx AS trx
  LEFT JOIN information_schema.processlist AS process ON process.id = trx.trx_mysql_thread_id
 WHERE trx.trx_started < NOW() - INTERVAL ? SECOND AND (? = 0 OR trx.trx_rows_modified > 0)
 ORDER BY trx.trx_started
 LIMIT ?";

/// Whoever has a lock on one of our tables that another transaction has been waiting for, and waits for none itself. As
/// MariaDB tells it. Needs the PROCESS privilege.
const BLOCKER_MARIADB: &str = "
SELECT holder.trx_mysql_thread_id, TIMESTAMPDIFF(MICROSECOND, holder.trx_started, NOW()), COALESCE(process.user, '?'),
       COALESCE(holder.trx_query, '')
  FROM information_schema.innodb_lock_waits AS waits
  JOIN information_schema.innodb_trx AS waiter ON waiter.trx_id = waits.requesting_trx_id
  JOIN information_schema.innodb_trx AS holder ON holder.trx_id = waits.blocking_trx_id
  JOIN information_schema.innodb_locks AS wanted ON wanted.lock_id = waits.requested_lock_id
  LEFT JOIN information_schema.processlist AS process ON process.id = holder.trx_mysql_thread_id
 WHERE waiter.trx_wait_started < NOW() - INTERVAL ? SECOND AND holder.trx_wait_started IS NULL
   AND LEFT(wanted.lock_table, CHAR_LENGTH(?)) = ?
 ORDER BY holder.trx_started
 LIMIT 1";

/// The same, as MySQL tells it. Needs SELECT on `performance_schema`, too.
const BLOCKER_MYSQL: &str = "
SELECT holder.trx_mysql_thread_id, TIMESTAMPDIFF(MICROSECOND, holder.trx_started, NOW()), COALESCE(process.user, '?'),
       COALESCE(holder.trx_query, '')
  FROM performance_schema.data_lock_waits AS waits
  JOIN information_schema.innodb_trx AS waiter ON waiter.trx_id = waits.requesting_engine_transaction_id
  JOIN information_schema.innodb_trx AS holder ON holder.trx_id = waits.blocking_engine_transaction_id
  JOIN performance_schema.data_locks AS wanted ON wanted.engine_lock_id = waits.requesting_engine_lock_id
  LEFT JOIN information_schema.processlist AS process ON process.id = holder.trx_mysql_thread_id
 WHERE waiter.trx_wait_started < NOW() - INTERVAL ? SECOND AND holder.trx_wait_started IS NULL
   AND LEFT(CONCAT('`', wanted.object_schema, '`.`', wanted.object_name), CHAR_LENGTH(?)) = ?
 ORDER BY holder.trx_started
 LIMIT 1";

/// Transactions that are named.
const SHOWN_MAX: u32 = 10;

/// Whoever keeps a lock for longer keeps others from writing. Ordinary commits take milliseconds.
const LOCKED_AFTER_SECONDS: i64 = 2;

pub(super) async fn examine(db: &mut Db, thresholds: Thresholds) -> Work<Vec<Finding>> {
    let settings = Settings::of(db).await?;
    let mut findings = Vec::new();
    if settings.read_only {
        findings.push(
            Finding::new("standby", Severity::Error, "read_only")
                .detail("the server takes no writes: nobody can enqueue, settle or renew a lease")
                .fix("connect to the primary, or make this server one"),
        );
    }
    findings.extend(durability(&settings));
    findings.extend(unnoted_messages(db).await?);
    findings.extend(open_transactions(db, thresholds).await?);
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(findings)
}

/// What is in no list is read by nobody.
async fn unnoted_messages(db: &mut Db) -> Work<Vec<Finding>> {
    let mut findings = Vec::new();
    if !has_trigger(db).await? {
        findings.push(
            Finding::new("trigger-missing", Severity::Error, db.dialect.render("{p}log_pending"))
                .detail("the trigger that notes new messages is gone: what is enqueued without it is never read")
                .fix("`postrider migrate up` creates it again and notes what it missed; if it is there, grant TRIGGER"),
        );
    }
    let missed = unnoted::newest(db).await?;
    if missed > 0 {
        findings.push(
            Finding::new("unnoted-messages", Severity::Error, db.dialect.render("{p}log"))
                .detail(format!(
                    "{missed} of the newest messages were never noted by the trigger, so nobody reads them"
                ))
                .fix("`postrider migrate up` notes them; they come behind what has its place by then"),
        );
    }
    Ok(findings)
}

fn durability(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    if settings.flush_at_commit != 1 {
        let value = settings.flush_at_commit;
        findings.push(
            Finding::new(
                "synchronous-commit-off",
                Severity::Warning,
                format!("innodb_flush_log_at_trx_commit = {value}"),
            )
            .detail("a crash of the machine can take back what was committed in the last second, published or not")
            .fix("set innodb_flush_log_at_trx_commit to 1"),
        );
    }
    if settings.binary_log && settings.sync_binary_log != 1 {
        let value = settings.sync_binary_log;
        findings.push(
            Finding::new("synchronous-commit-off", Severity::Warning, format!("sync_binlog = {value}"))
                .detail("a crash of the machine can leave the replicas without what was committed last")
                .fix("set sync_binlog to 1"),
        );
    }
    findings
}

/// What was ordered is deleted from a small table; an old state of the database that somebody looks at keeps it there, and
/// every look at that table passes over it.
async fn open_transactions(db: &mut Db, thresholds: Thresholds) -> Work<Vec<Finding>> {
    let holds = "what was deleted since stays, and reading slows";
    open(db, thresholds.transaction_age, false, SHOWN_MAX, holds).await
}

pub(super) async fn uncommitted(db: &mut Db, age: Duration) -> Work<Vec<Finding>> {
    open(db, age, true, UNCOMMITTED_SHOWN_MAX, "what it has enqueued is seen by nobody until it commits").await
}

async fn open(db: &mut Db, age: Duration, written: bool, limit: u32, holds: &str) -> Work<Vec<Finding>> {
    let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
    let Ok(rows) = db.query(OPEN, values![seconds, i64::from(written), limit]).await else {
        let hidden = Finding::new("activity-hidden", Severity::Note, "information_schema.innodb_trx")
            .detail("this user may not see the transactions of others, so old ones stay unseen")
            .fix("grant PROCESS to it if they are to be found");
        return Ok(vec![hidden]);
    };
    let finding = |row: &Row| {
        let Holder { thread, told } = Holder::of(row)?;
        Ok(Finding::new("open-transaction", Severity::Warning, format!("connection {thread}"))
            .detail(format!("a transaction {told}: {holds}"))
            .fix(format!("end it, or `KILL {thread}`")))
    };
    rows.iter().map(finding).collect()
}

/// Where it cannot be seen there is nothing to say: the doctor says that.
pub(super) async fn blockage(db: &mut Db) -> Work<Option<Finding>> {
    let database: String = get(&db.query_one("SELECT DATABASE()", Vec::new()).await?, 0)?;
    let ours = format!("`{database}`.`{}", db.dialect.prefix());
    let mut found = None;
    for sql in [BLOCKER_MARIADB, BLOCKER_MYSQL] {
        // Each server knows one of them.
        if let Ok(rows) = db.query(sql, values![LOCKED_AFTER_SECONDS, &*ours, &*ours]).await {
            found = rows.into_iter().next();
            break;
        }
    }
    let Some(row) = &found else { return Ok(None) };
    let Holder { thread, told } = Holder::of(row)?;
    Ok(Some(
        Finding::new("store-locked", Severity::Error, format!("connection {thread}"))
            .detail(format!(
                "connection {thread} keeps a lock that others have been waiting for for {LOCKED_AFTER_SECONDS} s or more: its \
                 transaction {told}; nothing is lost"
            ))
            .fix(format!("end that transaction, or `KILL {thread}`")),
    ))
}

/// Whether somebody waits for the definition of a table. Needs the PROCESS privilege.
const METADATA_WAIT: &str = "
SELECT 1 FROM information_schema.processlist WHERE db = DATABASE() AND state LIKE 'Waiting for table metadata%' LIMIT 1";

/// The transaction of this database that has been open for longest and waits for nobody: it keeps the definition of each table
/// that it has used. Which ones these are only some servers tell, so it is a guess. Needs the PROCESS privilege.
const OLDEST: &str = "
SELECT trx.trx_mysql_thread_id, TIMESTAMPDIFF(MICROSECOND, trx.trx_started, NOW()), COALESCE(process.user, '?'),
       COALESCE(trx.trx_query, '')
  FROM information_schema.innodb_trx AS trx
  JOIN information_schema.processlist AS process ON process.id = trx.trx_mysql_thread_id
 WHERE process.db = DATABASE() AND trx.trx_mysql_thread_id <> CONNECTION_ID() AND trx.trx_wait_started IS NULL
   AND COALESCE(process.state, '') NOT LIKE 'Waiting for%' AND trx.trx_started < NOW() - INTERVAL ? SECOND
 ORDER BY trx.trx_started
 LIMIT 1";

/// Who is in the way of somebody who waits right now: as [`blockage`], and also of whoever waits for the definition of a table.
pub(crate) async fn holder(db: &mut Db) -> Work<Option<Finding>> {
    let found = blockage(db).await?;
    if found.is_some() || db.query_opt(METADATA_WAIT, Vec::new()).await?.is_none() {
        return Ok(found);
    }
    let Some(row) = db.query_opt(OLDEST, values![LOCKED_AFTER_SECONDS]).await? else { return Ok(None) };
    let Holder { thread, told } = Holder::of(&row)?;
    Ok(Some(
        Finding::new("store-locked", Severity::Error, format!("connection {thread}"))
            .detail(format!(
                "somebody keeps the definition of a table, most likely connection {thread}, the oldest in this database: its \
                 transaction {told}"
            ))
            .fix(format!("end that transaction, or `KILL {thread}`; SHOW PROCESSLIST tells of others")),
    ))
}

/// Whose transaction it is, and what is known of it.
struct Holder {
    thread: u64,
    told: String,
}

impl Holder {
    fn of(row: &Row) -> Work<Self> {
        let (age, user, query): (i64, String, String) = (get(row, 1)?, get(row, 2)?, get(row, 3)?);
        let line = shown_statement(&query, &['\'', '"']);
        let query = if line.is_empty() { "no query at the moment".to_owned() } else { format!("query: {line}") };
        let age = Duration::from_micros(age.unsigned_abs()).as_secs();
        Ok(Self { thread: get(row, 0)?, told: format!("of {user} has been open for {age} s, {query}") })
    }
}
