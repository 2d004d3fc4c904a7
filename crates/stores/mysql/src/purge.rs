//! Purge: batches that every reader has passed leave the log, a bounded number of messages at a time.
//!
//! A batch of the order list goes whole, with its messages. Its age counts from when it was ordered, which is never before
//! its messages were enqueued. A message that has no place yet is in no batch, so an open transaction, however low its
//! numbers are, loses nothing.

use postrider_core::{log::Retention, time::Timestamp};

use crate::{
    db::{Db, bytes, get, values},
    error::Work,
    order::{BATCH_MAX, decode},
};

/// Messages that one purge removes, unless the first batch alone has more.
const MESSAGES_MAX: usize = 2_000;

/// Batches that one purge looks at.
const BATCHES_MAX: i64 = 500;

const LEAST: &str = "SELECT MIN(passed) FROM {p}lane";

const OLDEST: &str = "SELECT last, list, ordered_at FROM {p}ordering WHERE last <= ? ORDER BY last LIMIT ?";

const FORGET: &str = "DELETE FROM {p}ordering WHERE last <= ?";

pub(crate) async fn purge(db: &mut Db, retention: Retention) -> Work<u64> {
    let Some(keep) = retention.keep else { return Ok(0) };
    // A reader that is half known must not be overlooked.
    db.lock("readers").await?;
    let Some(least) = get::<Option<i64>>(&db.query_one(LEAST, Vec::new()).await?, 0)? else { return Ok(0) };
    let oldest_kept = db.now().await?.saturating_sub(keep);
    let mut numbers: Vec<i64> = Vec::new();
    let mut last = None;
    for row in db.query(OLDEST, values![least, BATCHES_MAX]).await? {
        let batch = decode(get(&row, 0)?, bytes(&row, 1).unwrap_or_default())?;
        let young = Timestamp::from_micros(get(&row, 2)?) > oldest_kept;
        if young || (!numbers.is_empty() && numbers.len() + batch.len() > MESSAGES_MAX) {
            break;
        }
        numbers.extend(batch.iter().map(|entry| entry.seq));
        last = Some(get::<i64>(&row, 0)?);
    }
    let Some(last) = last else { return Ok(0) };
    for numbers in numbers.chunks(BATCH_MAX) {
        db.delete("log", "seq", numbers.iter().copied()).await?;
    }
    db.execute(FORGET, values![last]).await?;
    Ok(numbers.len() as u64)
}
