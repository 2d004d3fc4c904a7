//! What an operator should know of the file: whether it is whole, and how much room there is. How it is written needs no
//! look: opening the store sets WAL and full synchronisation, or fails.

use std::time::Duration;

use postrider_core::{
    doctor::{Finding, Severity, Thresholds},
    time::Timestamp,
};

use crate::{error::Work, worker::Db};

/// Broken places that are named; more would not help anybody.
const BROKEN_SHOWN_MAX: i64 = 3;

/// Whoever keeps the write lock for longer keeps everybody from writing. Ordinary commits take milliseconds.
const LOCKED_AFTER: Duration = Duration::from_secs(2);

pub(super) fn examine(db: &Db, thresholds: Thresholds) -> Work<Vec<Finding>> {
    let mut findings = Vec::new();
    findings.extend(blockage(db)?);
    findings.extend(broken(db)?);
    findings.extend(disk(db, thresholds));
    Ok(findings)
}

/// The last heartbeat of a node that has not said goodbye. Also of one that is taken for dead: it cannot say otherwise.
const LAST_HEARTBEAT: &str = "SELECT max(seen_at) FROM {p}node";

/// SQLite has one writer. It tells neither which process that is, nor since when; but every relay writes a heartbeat, and
/// the last one was before.
pub(super) fn blockage(db: &Db) -> Work<Option<Finding>> {
    if db.is_writable_within(LOCKED_AFTER)? {
        return Ok(None);
    }
    let last: Option<i64> = db.statement(LAST_HEARTBEAT)?.query_row([], |row| row.get(0))?;
    let heard = last.map_or_else(String::new, |at| {
        let ago = db.dialect.now().since(Timestamp::from_micros(at)).as_secs();
        format!(", and the last heartbeat of a relay was written {ago} s ago")
    });
    let detail = format!(
        "the database is locked: another connection has kept the only write lock for {} s or more{heard}; nobody can \
         enqueue, settle or renew a lease, and nothing is lost",
        LOCKED_AFTER.as_secs()
    );
    let fix = "end the transaction that is open: `fuser` on the database file names the processes that have it open";
    Ok(Some(Finding::new("store-locked", Severity::Error, "write lock").detail(detail).fix(fix)))
}

/// A pass over the pages, without comparing indexes with their tables: that would take as long as reading everything.
fn broken(db: &Db) -> Work<Vec<Finding>> {
    let mut findings = Vec::new();
    let sql = format!("PRAGMA quick_check({BROKEN_SHOWN_MAX})");
    let mut statement = db.connection.prepare(&sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let said: String = row.get(0)?;
        if said != "ok" {
            findings.push(
                Finding::new("corrupt", Severity::Error, "quick_check")
                    .detail(format!("the file is damaged: {}", said.lines().next().unwrap_or_default()))
                    .fix("stop everything that uses the file, copy it, and restore a backup or run `sqlite3 file .recover`"),
            );
        }
    }
    Ok(findings)
}

/// The file may have a limit, which the writer's connection knows.
pub(super) fn limit(db: &Db) -> Work<Option<Finding>> {
    let read = |pragma: &str| db.connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let (used, most, free) = (read("page_count")?, read("max_page_count")?, read("freelist_count")?);
    let left = most - used + free;
    Ok((left.saturating_mul(20) < most).then(|| {
        Finding::new("file-nearly-full", Severity::Warning, "max_page_count")
            .detail(format!(
                "the file may have {most} pages and has room for {left} more; then nothing can be enqueued"
            ))
            .fix("raise the limit of the store, or keep delivered messages for a shorter time")
    }))
}

#[cfg(unix)]
fn disk(db: &Db, thresholds: Thresholds) -> Option<Finding> {
    // One in memory has no path, and one whose directory is gone has worse troubles.
    let path = std::path::Path::new(db.connection.path().filter(|path| !path.is_empty())?);
    let disk = rustix::fs::statvfs(path).ok()?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    (free < thresholds.disk_free_bytes).then(|| {
        Finding::new("disk-nearly-full", Severity::Warning, path.display().to_string())
            .detail(format!("the disk has {} MiB left; when it is full, nothing can be enqueued", free >> 20))
            .fix("make room, or move the file to a larger disk")
    })
}

#[cfg(not(unix))]
fn disk(_db: &Db, _thresholds: Thresholds) -> Option<Finding> {
    None
}
