//! Due: parked rows that may run now, and which keys have a line at all.

use std::collections::BTreeMap;

use postrider_core::{
    due::{DueRead, Kept, Waiting},
    key::KeyHash,
    lease::Lease,
    parked::{BlockedKey, DueLimit, DuePage},
    time::Timestamp,
};
use rusqlite::{Row, params};

use crate::{
    error::Work,
    lease::fence,
    parked::{ordinal, signed},
    read::envelope,
    worker::Db,
};

/// Rows that wait for time alone, soonest first: one range of the index that holds only such rows, and nothing else of the
/// table. Another lane's rows are stepped over.
pub(crate) const WAKING: &str = "
SELECT wake_at, ordinal, spread
  FROM {p}parked
 WHERE route = ?1 AND in_line = ?2 AND wake_at IS NOT NULL
 ORDER BY wake_at, ordinal";

/// The first rows of one line: one range of the index of lines.
pub(crate) const LINE: &str = "
SELECT ordinal, attempts, due_at, key_hash,
       id, topic, name, key, enqueued_at, deliver_at, expires_at, attempts_max, headers, payload
  FROM {p}parked
 WHERE route = ?1 AND key_hash = ?2 AND in_line = 1
 ORDER BY ordinal
 LIMIT ?3";

/// One row by its primary key.
const ROW: &str = "
SELECT ordinal, attempts, due_at, key_hash,
       id, topic, name, key, enqueued_at, deliver_at, expires_at, attempts_max, headers, payload
  FROM {p}parked
 WHERE ordinal = ?1";

/// Every line of a route: one pass over its range of the index of lines.
pub(crate) const BLOCKED: &str = "
SELECT key_hash, count(*)
  FROM {p}parked
 WHERE route = ?1 AND in_line = 1
 GROUP BY key_hash";

/// Every key of the lease's lane that has a line.
pub(crate) fn blocked(db: &Db, lease: &Lease) -> Work<Vec<BlockedKey>> {
    let mut statement = db.statement(BLOCKED)?;
    let mut rows = statement.query([&*lease.lane.route])?;
    let mut blocked = Vec::new();
    while let Some(row) = rows.next()? {
        let key = KeyHash::from_i64(row.get(0)?);
        if key.lane(lease.lanes) == lease.lane.number {
            blocked.push(BlockedKey { key, rows: row.get(1)? });
        }
    }
    Ok(blocked)
}

/// What may run now, longest due first, lines and timed rows alike.
pub(crate) fn due(db: &Db, lease: &Lease, limit: DueLimit, now: Timestamp) -> Work<DuePage> {
    fence(db, lease)?;
    let mut waiting = waiting(db, lease, true, limit.lines, now)?;
    waiting.extend(self::waiting(db, lease, false, limit.lines, now)?);
    let mut read = DueRead::new(lease, limit, now, waiting);
    while let Some(row) = read.next_due() {
        if row.in_line {
            let mut statement = db.statement(LINE)?;
            let named = params![&*lease.lane.route, row.spread.as_i64(), read.rows_of_line()];
            read.line(&row, statement.query_and_then(named, kept)?)?;
        } else {
            let mut statement = db.statement(ROW)?;
            let found = statement.query_and_then([signed(row.ordinal)], kept)?.next().transpose()?;
            read.timed(&row, found);
        }
    }
    Ok(read.page())
}

/// Those of the lease's lane that are due, one more than asked for if there is one, or else the next to come due.
fn waiting(db: &Db, lease: &Lease, in_line: bool, limit: u32, now: Timestamp) -> Work<Vec<Waiting>> {
    let mut statement = db.statement(WAKING)?;
    let mut rows = statement.query(params![&*lease.lane.route, in_line])?;
    let mut waiting = Vec::new();
    while let Some(row) = rows.next()? {
        let (wake_at, spread) = (Timestamp::from_micros(row.get(0)?), KeyHash::from_i64(row.get(2)?));
        if spread.lane(lease.lanes) != lease.lane.number {
            continue;
        }
        waiting.push(Waiting { wake_at, ordinal: ordinal(row.get(1)?), spread, in_line });
        if wake_at > now || waiting.len() > limit as usize {
            break;
        }
    }
    Ok(waiting)
}

fn kept(row: &Row<'_>) -> Work<Kept> {
    let (envelope, enqueued_at) = envelope(row, 4)?;
    Ok(Kept {
        ordinal: ordinal(row.get(0)?),
        attempts: row.get(1)?,
        due_at: row.get::<_, Option<i64>>(2)?.map(Timestamp::from_micros),
        key: row.get::<_, Option<i64>>(3)?.map(KeyHash::from_i64),
        enqueued_at,
        envelope,
    })
}

/// How many rows a route has in each state.
pub(crate) fn counts(db: &Db, route: &str) -> Work<BTreeMap<String, u64>> {
    let mut statement = db.statement("SELECT state, count(*) FROM {p}parked WHERE route = ?1 GROUP BY state")?;
    let mut rows = statement.query([route])?;
    let mut counts = BTreeMap::new();
    while let Some(row) = rows.next()? {
        counts.insert(row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs());
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use postrider_core::{
        envelope::Envelope,
        log::Record,
        parked::{Cause, Ordinal, Parked},
    };
    use rusqlite::StatementStatus;

    use super::*;
    use crate::{config, dialect::Sqlite, migrations, parked, parked::Rows, purge, read};

    fn db() -> (tempfile::TempDir, Db) {
        let folder = tempfile::tempdir().unwrap();
        let connection = config::connect(&folder.path().join("a.db"), config::BUSY_TIMEOUT).unwrap();
        migrations::apply(&connection, &Sqlite::default(), None).unwrap();
        (folder, Db::new(connection, Sqlite::default()))
    }

    fn plan(db: &Db, sql: &str) -> String {
        let mut statement = db.statement(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let parameters = statement.parameter_count();
        let steps = statement.query_map(rusqlite::params_from_iter(vec![1; parameters]), |row| row.get(3)).unwrap();
        steps.map(Result::unwrap).collect::<Vec<String>>().join("; ")
    }

    fn record(key: &str) -> Record {
        let envelope = Envelope::new("orders", "order.placed", "{}").with_key(key);
        let key = envelope.key.as_ref().map(postrider_core::key::OrderingKey::hash);
        let enqueued_at = Timestamp::now();
        Record { envelope, key, enqueued_at, wait: Duration::ZERO, expires_in: None, replay: None, number: 0 }
    }

    #[test]
    fn every_hot_statement_is_a_range_of_an_index() {
        let (_folder, db) = db();
        let expected = [
            (WAKING, "USING COVERING INDEX postrider_parked_wake (route=? AND in_line=? AND wake_at>?)"),
            (LINE, "USING INDEX postrider_parked_line (route=? AND key_hash=?)"),
            (BLOCKED, "USING COVERING INDEX postrider_parked_line (route=?)"),
            (parked::HEAD, "USING INDEX postrider_parked_line (route=? AND key_hash=?)"),
            (ROW, "USING INTEGER PRIMARY KEY (rowid=?)"),
            (read::READ, "USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
            (purge::PURGE, "USING INTEGER PRIMARY KEY (rowid<?)"),
        ];
        for (sql, index) in expected {
            let plan = plan(&db, sql);
            assert!(plan.contains(index), "{sql}\n{plan}");
            assert!(!plan.contains("TEMP B-TREE FOR ORDER BY"), "{sql}\n{plan}");
        }
    }

    /// By counted steps of SQLite's machine, not by time.
    #[test]
    fn a_hundred_thousand_held_rows_cost_a_due_read_nothing() {
        let (_folder, db) = db();
        let steps = |held: usize| {
            let (head, followers) = (record("hot"), vec![record("hot"); held]);
            let followers = followers.into_iter().map(|record| Record {
                envelope: Envelope { id: postrider_core::envelope::MessageId::generate(), ..record.envelope },
                ..record
            });
            let cause = Cause::new("test", "test");
            let retrying = Parked::Retrying { after: Duration::ZERO, attempts: 1, cause };
            let rows: Vec<Record> = std::iter::once(head).chain(followers).collect();
            let states = std::iter::once(&retrying).chain(std::iter::repeat_n(&Parked::Held, held));
            let states: Vec<&Parked> = states.collect();
            db.write(|db, now| {
                let mut parked = Rows::new(db, "r", now);
                parked.park(rows.iter().zip(states))?;
                parked.finish()
            })
            .unwrap();
            let mut waking = db.statement(WAKING).unwrap();
            let heads = waking.query(params!["r", true]).unwrap().mapped(|row| row.get::<_, i64>(1)).count();
            let steps = waking.get_status(StatementStatus::VmStep);
            waking.reset_status(StatementStatus::VmStep);
            (heads, steps)
        };
        let (heads, few) = steps(1);
        assert_eq!(heads, 1);
        let (heads, many) = steps(100_000);
        assert_eq!(heads, 1, "followers wait for no time");
        assert_eq!(few, many, "a due read must not step over held rows");
    }

    #[test]
    fn a_row_that_enters_a_line_before_its_head_becomes_the_head() {
        let (_folder, db) = db();
        let heads = |db: &Db| -> Vec<i64> {
            let mut statement = db.statement(WAKING).unwrap();
            let rows = statement.query_map(params!["r", true], |row| row.get(1)).unwrap();
            rows.map(Result::unwrap).collect()
        };
        let scheduled = Parked::Scheduled { after: Duration::ZERO };
        let retrying = |after| Parked::Retrying { after, attempts: 1, cause: Cause::new("test", "test") };
        let (early, late) = (record("k"), record("k"));
        let states = [scheduled, retrying(Duration::ZERO)];
        db.write(|db, now| {
            let mut rows = Rows::new(db, "r", now);
            rows.park([&early, &late].into_iter().zip(&states))?;
            rows.finish()
        })
        .unwrap();
        assert_eq!(heads(&db), [2], "a scheduled row stands in no line");
        db.write(|db, now| {
            let mut rows = Rows::new(db, "r", now);
            rows.change(Ordinal(1), &retrying(Duration::from_secs(3600)))?;
            rows.finish()
        })
        .unwrap();
        assert_eq!(heads(&db), [1], "the least ordinal is the head, and there is no second one");
        db.write(|db, now| {
            let mut rows = Rows::new(db, "r", now);
            rows.change(Ordinal(1), &Parked::Held)?;
            rows.finish()
        })
        .unwrap();
        assert_eq!(heads(&db), [2], "a row that is held goes to the tail");
    }
}
