//! Messages that nobody noted: rows of the log that are in neither list, because the trigger was gone when they were inserted.
//! They would never be read, and nothing else shows it.
//!
//! `doctor` looks for them among the newest million; [`note`] finds all of them and gives them to the order list, behind all that
//! has its place by then.

use std::collections::BTreeSet;

use postrider_core::admin::Actor;

use crate::{
    admin::act,
    config::lend,
    db::{Db, LOOK, bytes, get, list, values},
    dialect::Mysql,
    error::Work,
    list::decode,
};

/// Numbers that are looked at together.
const STRETCH: i64 = 50_000;

/// Numbers that `doctor` looks at.
const LOOKED_AT_MAX: i64 = 1_000_000;

const ENDS: &str = "SELECT COALESCE(MIN(seq), 0), COALESCE(MAX(seq), 0) FROM {p}log";

const NEXT: &str = "SELECT MIN(seq) FROM {p}log WHERE seq BETWEEN ? AND ?";

const IN_LOG: &str = "SELECT seq FROM {p}log FORCE INDEX (PRIMARY) WHERE seq BETWEEN ? AND ?";

/// A list is fetched only where it may have one of them: most do not, and they are long.
const IN_LIST: &str = "
SELECT batch.last, batch.list
  FROM {p}ordering AS span
 STRAIGHT_JOIN {p}ordering AS batch ON batch.last = span.last
 WHERE span.hi >= ? AND span.lo <= ?";

const WAITING: &str = "SELECT seq FROM {p}pending WHERE seq BETWEEN ? AND ?";

/// How many there are among the newest [`LOOKED_AT_MAX`] numbers. On one consistent state.
pub(crate) async fn newest(db: &mut Db) -> Work<usize> {
    let (first, last) = ends(db).await?;
    let mut from = first.max(last - LOOKED_AT_MAX + 1);
    let mut missed = 0;
    while from <= last {
        missed += among(db, from, from + STRETCH - 1).await?.len();
        from += STRETCH;
    }
    Ok(missed)
}

/// Notes all of them and answers how many there were; that it did is in the audit record. While the trigger is missing there
/// will be more.
pub(crate) async fn note(url: &str, dialect: &Mysql, actor: &Actor) -> Work<u64> {
    let mut alone = Db::alone(lend(url).await?, dialect);
    let (_, last) = ends(&mut alone).await?;
    let (mut noted, mut from) = (0, i64::MIN);
    // Ends with what was the last when it began. Where numbers are missing there is nothing to look for.
    while let Some(next) = get::<Option<i64>>(&alone.query_one(NEXT, values![from, last]).await?, 0)? {
        from = next;
        // Mostly there are none, and then nobody has to wait.
        let mut db = Db::begin(lend(url).await?, dialect, &LOOK).await?;
        let missed = among(&mut db, from, from + STRETCH - 1).await?;
        db.roll_back().await;
        if !missed.is_empty() {
            let mut db = Db::begin(lend(url).await?, dialect, &["START TRANSACTION"]).await?;
            noted += note_stretch(&mut db, from, actor, noted == 0).await?;
            db.commit().await?;
        }
        from += STRETCH;
    }
    Ok(noted)
}

async fn note_stretch(db: &mut Db, from: i64, actor: &Actor, is_first: bool) -> Work<u64> {
    // Nobody orders or purges meanwhile, so what is in the log now is in a list by the next look, or in none.
    db.lock("readers").await?;
    db.lock("place").await?;
    let numbers = among(db, from, from + STRETCH - 1).await?;
    if numbers.is_empty() {
        return Ok(0);
    }
    if is_first {
        act::note(db, actor, "migrate", "messages that were never noted").await?;
    }
    db.execute_text(&insert(&numbers)).await
}

fn insert(numbers: &BTreeSet<i64>) -> String {
    let numbers = list(numbers.iter().copied());
    format!(
        "INSERT INTO {{p}}pending (seq, bytes)
         SELECT seq, LEAST(4294967295, LENGTH(payload) + COALESCE(LENGTH(headers), 0) + COALESCE(LENGTH(`key`), 0))
           FROM {{p}}log
          WHERE seq IN ({numbers})
          ORDER BY seq"
    )
}

async fn ends(db: &mut Db) -> Work<(i64, i64)> {
    let row = db.query_one(ENDS, Vec::new()).await?;
    Ok((get(&row, 0)?, get(&row, 1)?))
}

/// Those with numbers from one to the other. First the log, then the lists: what is noted is in a list no later than in the
/// log.
async fn among(db: &mut Db, from: i64, to: i64) -> Work<BTreeSet<i64>> {
    let mut numbers = BTreeSet::new();
    for row in db.query(IN_LOG, values![from, to]).await? {
        numbers.insert(get::<i64>(&row, 0)?);
    }
    for row in db.query(IN_LIST, values![from, to]).await? {
        for entry in decode(get(&row, 0)?, bytes(&row, 1).unwrap_or_default())? {
            numbers.remove(&entry.seq);
        }
    }
    for row in db.query(WAITING, values![from, to]).await? {
        numbers.remove(&get(&row, 0)?);
    }
    Ok(numbers)
}
