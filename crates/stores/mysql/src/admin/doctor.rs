//! What an operator should know of the server: whether a crash can take back a commit, whether it takes writes at all, and
//! which transaction has been open for so long that what was deleted piles up behind it.

use postrider_core::{
    doctor::{Finding, Severity, Thresholds},
    time::Timestamp,
};

use crate::{
    db::{Db, get, values},
    error::Work,
    server::Settings,
};

/// Needs the PROCESS privilege.
const OPEN: &str = "
SELECT trx_mysql_thread_id, TIMESTAMPDIFF(MICROSECOND, trx_started, NOW())
  FROM information_schema.innodb_trx
 WHERE trx_started < NOW() - INTERVAL ? SECOND
 ORDER BY trx_started
 LIMIT 10";

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
    findings.extend(open_transactions(db, thresholds).await?);
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
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
    let seconds = i64::try_from(thresholds.transaction_age.as_secs()).unwrap_or(i64::MAX);
    let Ok(rows) = db.query(OPEN, values![seconds]).await else {
        let hidden = Finding::new("activity-hidden", Severity::Note, "information_schema.innodb_trx")
            .detail("this user may not see the transactions of others, so old ones stay unseen")
            .fix("grant PROCESS to it if they are to be found");
        return Ok(vec![hidden]);
    };
    let mut findings = Vec::new();
    for row in rows {
        let (thread, age): (u64, i64) = (get(&row, 0)?, get(&row, 1)?);
        let age = Timestamp::from_micros(age).since(Timestamp::from_micros(0)).as_secs();
        findings.push(
            Finding::new("open-transaction", Severity::Warning, format!("connection {thread}"))
                .detail(format!(
                    "a transaction has been open for {age} s; what was deleted since stays, and reading slows"
                ))
                .fix(format!("end it, or `KILL {thread}`")),
        );
    }
    Ok(findings)
}
