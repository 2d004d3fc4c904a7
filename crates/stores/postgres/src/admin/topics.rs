//! The topics of a stretch of the log. Whoever asks again, and nothing has come, gets the same answer for one cheap statement: a
//! daemon asks several times a minute for as long as it runs.
//!
//! **Why it is the same.** No number was drawn since, so there is no record that was begun later; no leaf was emptied; and of
//! those who had drawn one before, nobody can commit any more. A transaction has its id before it draws a number, so these are
//! all below the id that was next when the number had been seen already. An answer is kept if all of them had ended when it was
//! counted. While somebody has a transaction open, it is counted anew each time.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use postrider_core::browse::{RecordFilter, TopicPage};

use super::{
    LOCK_TIMEOUT,
    browse::{Ends, Stretch},
};
use crate::{
    PostgresStore,
    db::{Alone, Db},
    error::{Work, corrupt},
    snapshot::{Snapshot, Xid},
};

/// Answers that are kept. A walk that begins anew asks two questions: for its last full stretch, and for what follows.
const KEPT_MAX: usize = 4;

/// The limit on locks counts for this statement, which is a transaction of its own; see [`LOCK_TIMEOUT`]. The file of a leaf is
/// another one when it was emptied. No leaf is locked.
const STANDING: &str = "
SELECT set_config('lock_timeout', '3s', true), coalesce(pg_sequence_last_value('{seq}'::regclass), 0),
       ARRAY[pg_relation_filenode('{log_0}'::regclass), pg_relation_filenode('{log_1}'::regclass),
             pg_relation_filenode('{log_2}'::regclass), pg_relation_filenode('{log_3}'::regclass),
             pg_relation_filenode('{log_4}'::regclass), pg_relation_filenode('{log_5}'::regclass),
             pg_relation_filenode('{log_6}'::regclass), pg_relation_filenode('{log_7}'::regclass)]::bigint[],
       pg_current_snapshot(), age('3'::xid)::bigint + 3";

/// What was asked: behind which record, and for how many.
type Question = (Option<u64>, u32);

/// How the log stands.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Standing {
    /// The last number drawn.
    last: i64,
    files: Vec<i64>,
}

impl Standing {
    /// With it comes the transaction id that is next.
    async fn of(on: &Alone<'_>) -> Work<(Self, Xid)> {
        let row = on.query_opt(STANDING, &[]).await?.ok_or_else(|| corrupt("a statement without FROM has a row"))?;
        let next = full(row.try_get(4)?, &row.try_get(3)?);
        Ok((Self { last: row.try_get(1)?, files: row.try_get(2)? }, next))
    }
}

/// The whole of an id of which 32 bits are known. It is not before the snapshot's end.
#[allow(clippy::cast_possible_truncation, reason = "the lower half is what is compared")]
fn full(next: i64, snapshot: &Snapshot) -> Xid {
    let end = snapshot.xmax();
    end + Xid::from((next as u32).wrapping_sub(end as u32))
}

/// Answers that are right as long as the log stands as it did.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    standing: Standing,
    /// Everybody who has drawn a number has an id below. `None`: that is not known yet.
    ids: Option<Xid>,
    pages: VecDeque<(Question, TopicPage)>,
}

impl Answers {
    /// The answer that was kept, if there is one. `next` was asked for together with how the log stands, and that may have been
    /// before; so it counts from the second time on.
    fn find(&self, standing: &Standing, next: Xid, question: Question) -> Option<TopicPage> {
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = answers.as_mut().filter(|known| known.standing == *standing) else {
            *answers = Some(Known { standing: standing.clone(), ids: None, pages: VecDeque::new() });
            return None;
        };
        known.ids.get_or_insert(next);
        known.pages.iter().find(|(asked, _)| *asked == question).map(|(_, page)| page.clone())
    }

    /// Keeps an answer, if nothing can be added to it. Everybody below `ended` had ended when it was counted, and the log stood
    /// like this before.
    fn keep(&self, standing: &Standing, ended: Xid, question: Question, page: &TopicPage) {
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = answers.as_mut().filter(|known| known.standing == *standing) else { return };
        if known.ids.is_some_and(|ids| ids <= ended) {
            known.pages.truncate(KEPT_MAX - 1);
            known.pages.push_front((question, page.clone()));
        }
    }
}

pub(super) async fn topics(store: &PostgresStore, after: Option<u64>, limit: u32) -> Work<TopicPage> {
    let (answers, dialect, question) = (&store.0.answers, &store.0.dialect, (after, limit));
    let mut client = store.client().await?;
    let (standing, next) = Standing::of(&Alone::new(&client, dialect)).await?;
    if let Some(page) = answers.find(&standing, next, question) {
        return Ok(page);
    }
    let db = Db::look(&mut client, dialect).await?;
    db.batch(LOCK_TIMEOUT).await?;
    let ends = Ends::of(&db).await?;
    let page = count(&db, &ends, question, store.block_bits()).await?;
    db.commit().await?;
    answers.keep(&standing, ends.snapshot.xmin(), question, &page);
    Ok(page)
}

async fn count(db: &Db<'_>, ends: &Ends, (after, limit): Question, block_bits: u32) -> Work<TopicPage> {
    let oldest_first = RecordFilter::default();
    let Some(mut stretch) = Stretch::new(ends, &oldest_first, after, block_bits) else {
        return Ok(TopicPage::default());
    };
    let (mut counts, mut left) = (Vec::new(), i64::from(limit));
    // Ends with the log, or with the limit.
    while left > 0 && stretch.has_more() {
        let (leaf, low, high) = stretch.block();
        let sql = format!(
            "SELECT topic, count(*), max(seq)
               FROM (SELECT seq, topic FROM {{log_{leaf}}} WHERE seq BETWEEN $1 AND $2 ORDER BY seq LIMIT $3) AS stretch
              GROUP BY topic"
        );
        for row in db.query(&sql, &[&low, &high, &left]).await? {
            let count: i64 = row.try_get(1)?;
            left -= count;
            counts.push((row.try_get(0)?, count.unsigned_abs(), row.try_get::<_, i64>(2)?.unsigned_abs()));
        }
        stretch.at = high;
    }
    Ok(TopicPage::of_counts(counts, limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tests::snapshot;

    fn page(topic: &str) -> TopicPage {
        TopicPage { topics: vec![(topic.to_owned(), 1)], next: None }
    }

    fn standing(last: i64) -> Standing {
        Standing { last, files: vec![1, 2] }
    }

    #[test]
    fn an_answer_is_kept_once_nobody_who_has_drawn_can_commit_any_more() {
        let (answers, question) = (Answers::default(), (None, 10));
        let ask = |last, next, ended| {
            let found = answers.find(&standing(last), next, question);
            if found.is_none() {
                answers.keep(&standing(last), ended, question, &page("counted"));
            }
            found.is_some()
        };
        assert!(!ask(5, 100, 100), "nothing is known");
        assert!(!ask(5, 103, 102), "somebody below 103 may have drawn 5, and is there still");
        assert!(!ask(5, 110, 103), "counted when all of them had ended");
        assert!(ask(5, 120, 0));
        assert!(!ask(6, 120, 120), "a number was drawn");
        assert!(!ask(5, 120, 120), "the sequence was set back");
    }

    #[test]
    fn an_emptied_leaf_is_noticed_and_questions_are_told_apart() {
        let answers = Answers::default();
        for _ in 0..2 {
            answers.find(&standing(5), 100, (None, 10));
        }
        for after in 0..6 {
            answers.keep(&standing(5), 100, (Some(after), 10), &page(&after.to_string()));
        }
        let find = |standing: &Standing, question| answers.find(standing, 100, question);
        assert_eq!(find(&standing(5), (Some(5), 10)), Some(page("5")));
        assert_eq!(find(&standing(5), (Some(2), 10)), Some(page("2")));
        assert_eq!(find(&standing(5), (Some(1), 10)), None, "the last four");
        assert_eq!(find(&standing(5), (Some(5), 11)), None);
        assert_eq!(find(&Standing { last: 5, files: vec![1, 3] }, (Some(5), 10)), None);
        assert_eq!(find(&standing(5), (Some(5), 10)), None, "and forgotten");
    }

    #[test]
    fn ids_are_made_whole_across_the_turn_of_an_epoch() {
        let turn: u64 = 1 << 32;
        assert_eq!(full(1_005, &snapshot("1000:1000:")), 1_005);
        assert_eq!(full(7, &snapshot(&format!("{0}:{0}:", turn - 2))), turn + 7);
        assert_eq!(full(9, &snapshot(&format!("{0}:{0}:", 3 * turn + 9))), 3 * turn + 9);
    }
}
