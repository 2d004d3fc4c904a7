//! Purge: batches that every reader has passed leave the log, a bounded number of messages at a time.
//!
//! A batch of the order list goes whole, with its messages. Its age counts from when it was ordered, which is never before
//! its messages were enqueued; how many are newer is told by places, which have no gaps. A message that has no place yet is in
//! no batch, so an open transaction, however low its numbers are, loses nothing. How far the list is purged is noted, so that
//! nobody takes for purged what is missing.

use postrider_core::{log::Retention, time::Timestamp};

use crate::{
    db::{Db, bytes, get, values},
    error::Work,
    list::decode,
    order::BATCH_MAX,
};

/// Messages that one purge removes, unless the first batch alone has more.
const MESSAGES_MAX: usize = 2_000;

/// Batches that one purge looks at.
const BATCHES_MAX: i64 = 500;

const LEAST: &str = "SELECT MIN(passed) FROM {p}lane";

const OLDEST: &str = "SELECT last, list, ordered_at FROM {p}ordering WHERE last <= ? ORDER BY last LIMIT ?";

const FORGET: &str = "DELETE FROM {p}ordering WHERE last <= ?";

/// For a reader that begins with the oldest: what is missing up to here is missing by right.
const NOTE: &str = "UPDATE {p}counter SET value = GREATEST(value, ?) WHERE name = 'purged'";

pub(crate) async fn purge(db: &mut Db, retention: Retention) -> Work<u64> {
    if retention == Retention::default() {
        return Ok(0);
    }
    // A reader that is half known must not be overlooked.
    db.lock("readers").await?;
    let Some(least) = get::<Option<i64>>(&db.query_one(LEAST, Vec::new()).await?, 0)? else { return Ok(0) };
    let kept = Kept::new(retention, db.now().await?, db.counter("place").await?);
    let mut numbers: Vec<i64> = Vec::new();
    let mut last = None;
    for row in db.query(OLDEST, values![least, BATCHES_MAX]).await? {
        let batch = decode(get(&row, 0)?, bytes(&row, 1).unwrap_or_default())?;
        let keeps = kept.keeps(get(&row, 0)?, Timestamp::from_micros(get(&row, 2)?));
        if keeps || (!numbers.is_empty() && numbers.len() + batch.len() > MESSAGES_MAX) {
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
    db.execute(NOTE, values![last]).await?;
    Ok(numbers.len() as u64)
}

/// What stays although all have passed it.
struct Kept {
    /// What was ordered by then is old. `None`: nothing ever is.
    old_at: Option<Timestamp>,
    /// Up to this place there are more than are to be kept. `None`: there never are.
    beyond: Option<i64>,
}

impl Kept {
    fn new(retention: Retention, now: Timestamp, newest: i64) -> Self {
        let beyond = |records_max| newest.saturating_sub(i64::try_from(records_max).unwrap_or(i64::MAX));
        Self { old_at: retention.keep.map(|keep| now.saturating_sub(keep)), beyond: retention.records_max.map(beyond) }
    }

    /// Whether the batch that ends with this place stays, whole as it is.
    fn keeps(&self, last: i64, ordered_at: Timestamp) -> bool {
        let is_old = self.old_at.is_some_and(|old_at| ordered_at <= old_at);
        let is_beyond = self.beyond.is_some_and(|beyond| last <= beyond);
        !is_old && !is_beyond
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_batch_goes_that_is_old_or_wholly_beyond_what_is_kept() {
        let at = Timestamp::from_micros;
        let kept = |retention| Kept::new(retention, at(100), 50);
        assert!(kept(Retention::default()).keeps(1, at(0)), "nothing is asked for");
        let by_age = kept(Retention::by_age(Duration::from_micros(10)));
        assert!(by_age.keeps(1, at(91)) && !by_age.keeps(50, at(90)));
        let by_count = kept(Retention::by_count(20));
        assert!(by_count.keeps(31, at(0)), "one of the newest twenty is in it");
        assert!(!by_count.keeps(30, at(100)));
        let both = kept(Retention { keep: Some(Duration::from_micros(10)), records_max: Some(20) });
        assert!(!both.keeps(31, at(90)) && !both.keeps(30, at(91)) && both.keeps(31, at(91)));
        assert!(kept(Retention::by_count(u64::MAX)).keeps(1, at(0)));
    }
}
