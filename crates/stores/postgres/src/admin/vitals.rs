//! Numbers that tell early that something grows: how old the oldest transaction and the oldest record are, and how large the
//! log.

use std::time::Duration;

use postrider_core::{admin::Vitals, time::Timestamp};

use crate::{db::Db, dialect::LEAVES, error::Work, values::Instant};

/// Which transactions count is what the doctor warns of, here without a limit. Of those that this role may not see, the
/// server does not tell the beginning.
const HORIZON: &str = "
SELECT extract(epoch FROM clock_timestamp() - least(
         (SELECT min(xact_start)
            FROM pg_stat_activity
           WHERE (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
             AND pid <> pg_backend_pid() AND backend_type = 'client backend'),
         (SELECT min(prepared) FROM pg_prepared_xacts)))::float8";

/// Asks the file system, and no table: nothing is locked, however busy the leaves are.
const BYTES: &str = "SELECT sum(pg_total_relation_size(leaf::regclass))::int8 FROM unnest($1::text[]) AS leaf";

pub(super) async fn vitals(db: &Db<'_>) -> Work<Vitals> {
    let age: Option<f64> = db.query_one(HORIZON, &[]).await?.try_get(0)?;
    let leaves: Vec<String> = (0..LEAVES).map(|leaf| db.dialect.render(&format!("{{log_{leaf}}}"))).collect();
    let bytes: Option<i64> = db.query_one(BYTES, &[&leaves]).await?.try_get(0)?;
    Ok(Vitals {
        oldest_record_age: Some(oldest_record_age(db).await?),
        horizon_age: Some(Duration::from_secs_f64(age.unwrap_or_default().max(0.0))),
        log_bytes: bytes.map(i64::unsigned_abs),
    })
}

/// The first of each leaf, by its index.
async fn oldest_record_age(db: &Db<'_>) -> Work<Duration> {
    let mut oldest: Option<Timestamp> = None;
    for leaf in 0..LEAVES {
        let sql = format!("SELECT enqueued_at FROM {{log_{leaf}}} ORDER BY seq LIMIT 1");
        if let Some(row) = db.query_opt(&sql, &[]).await? {
            let at = row.try_get::<_, Instant>(0)?.0;
            oldest = Some(oldest.map_or(at, |oldest| oldest.min(at)));
        }
    }
    let now = db.now().await?;
    Ok(oldest.map_or(Duration::ZERO, |at| now.since(at)))
}
