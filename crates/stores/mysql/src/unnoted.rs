//! Messages that nobody noted: rows of the log that are in neither list, because the trigger was gone when they were inserted.
//! They would never be read, and nothing else shows it.
//!
//! `doctor` looks for them among the newest; [`note`] gives them to the order list, behind all that has its place by then.

use std::collections::BTreeSet;

use crate::{
    config::lend,
    db::{Db, bytes, get, list, values},
    dialect::Mysql,
    error::Work,
    list::decode,
};

/// Numbers that are looked at together.
const STRETCH: i64 = 50_000;

const ENDS: &str = "SELECT COALESCE(MIN(seq), 0), COALESCE(MAX(seq), 0) FROM {p}log";

const IN_LOG: &str = "SELECT seq FROM {p}log FORCE INDEX (PRIMARY) WHERE seq BETWEEN ? AND ?";

const IN_LIST: &str = "SELECT last, list FROM {p}ordering WHERE hi >= ? AND lo <= ?";

const WAITING: &str = "SELECT seq FROM {p}pending WHERE seq BETWEEN ? AND ?";

/// How many there are among the newest messages. On one consistent state.
pub(crate) async fn newest(db: &mut Db) -> Work<usize> {
    let (_, last) = ends(db).await?;
    Ok(among(db, last - STRETCH, last).await?.len())
}

/// Notes all of them and answers how many there were. While the trigger is missing there will be more.
pub(crate) async fn note(url: &str, dialect: &Mysql) -> Work<u64> {
    let begin = async || Db::begin(lend(url).await?, dialect, &["START TRANSACTION"]).await;
    let mut db = begin().await?;
    let (first, last) = ends(&mut db).await?;
    let mut noted = 0;
    let mut from = first;
    while from <= last {
        // Nobody orders or purges meanwhile, so what is in the log now is in a list by the next look, or in none.
        db.lock("readers").await?;
        db.lock("place").await?;
        let numbers = among(&mut db, from, from + STRETCH).await?;
        if !numbers.is_empty() {
            noted += db.execute_text(&insert(&numbers)).await?;
        }
        db.commit().await?;
        from += STRETCH + 1;
        db = begin().await?;
    }
    db.roll_back().await;
    Ok(noted)
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
