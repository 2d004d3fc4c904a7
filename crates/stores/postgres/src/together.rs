//! Questions that several lanes ask at about the same moment, answered by one statement.
//!
//! The lanes of a node that has nothing to do look for work at common moments, one a little later than the other. Whoever
//! found nothing takes a [`Seat`]: it says what it will ask next. Who sat down at the same moment will ask at the same moment,
//! so whoever of them comes first asks for all of them; who comes a moment later finds its answer there, or under way. So an
//! idle node costs the same with one lane and with a hundred, and nobody waits for somebody to come. Lanes that have come apart,
//! because they have work to do, ask for themselves alone.
//!
//! An answer counts for a lane only if it was asked for
//!
//! - after the lane took its seat, so it never knows less than it did before,
//! - after the last hint, so what was announced is found,
//! - no longer ago than [`LATE`], which is all that this may add to the time until a commit is found that nobody announced.
//!
//! A lane that learns or changes something by another way gives up its seat by dropping it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures_util::future::OptionFuture;
use postrider_core::BoxFuture;
use tokio::sync::watch;

use crate::error::Work;

/// What is one moment, and how old an answer may be: much more than idle lanes come apart, and less than a lane waits by default
/// before it looks again.
const LATE: Duration = Duration::from_millis(25);

/// A table at which questions meet.
pub(crate) struct Together<Q, A>(Arc<Mutex<Table<Q, A>>>);

struct Table<Q, A> {
    late: Duration,
    next_seat: u64,
    /// What those will ask who found nothing the last time, and when that was.
    seats: BTreeMap<u64, (Instant, Q)>,
    latest: Option<Asked<A>>,
}

/// What was asked last, for whom, and what came of it.
struct Asked<A> {
    at: Instant,
    /// The seat, and the place of its answer.
    seats: BTreeMap<u64, usize>,
    answers: Answers<A>,
}

/// Nothing yet, or all of them. It ends without them if they could not be had.
type Answers<A> = watch::Receiver<Option<Arc<Vec<A>>>>;

/// A question that will be asked. Given up when it is dropped.
pub(crate) struct Seat<Q, A> {
    table: Arc<Mutex<Table<Q, A>>>,
    number: u64,
    since: Instant,
    pub(crate) question: Q,
}

impl<Q, A> Default for Together<Q, A> {
    fn default() -> Self {
        Self::with_answers_up_to(LATE)
    }
}

impl<Q, A> Together<Q, A> {
    fn with_answers_up_to(late: Duration) -> Self {
        Self(Arc::new(Mutex::new(Table { late, next_seat: 0, seats: BTreeMap::new(), latest: None })))
    }
}

impl<Q: Clone, A> Together<Q, A> {
    /// Says that this will be asked next. Whatever is asked for from now on may answer it.
    pub(crate) fn seat(&self, question: Q) -> Seat<Q, A> {
        let mut table = lock(&self.0);
        table.next_seat += 1;
        let (number, since) = (table.next_seat, Instant::now());
        table.seats.insert(number, (since, question.clone()));
        Seat { table: Arc::clone(&self.0), number, since, question }
    }
}

impl<Q: Clone + Send, A: Clone + Send + Sync + 'static> Seat<Q, A> {
    /// Asks what the seat is for, which is over with that. `hinted_at`: what was asked for until then does not count. `ask` has
    /// as many answers as there are questions, in the same order.
    ///
    /// If it fails, whoever has come first is told, and everybody else asks alone. If the future is dropped, the statement runs
    /// to its end for the others.
    pub(crate) async fn ask(
        self,
        hinted_at: Option<Instant>,
        ask: impl Fn(Vec<Q>) -> BoxFuture<'static, Work<Vec<A>>>,
    ) -> Work<A> {
        let question = self.question.clone();
        let (place, mut answers, asking) = self.come(hinted_at, &ask);
        drop(self);
        if let Some(Ok(outcome)) = OptionFuture::from(asking).await {
            outcome?;
        }
        let answer = answers.wait_for(Option::is_some).await.ok().and_then(|all| Some(all.as_ref()?[place].clone()));
        match answer {
            Some(answer) => Ok(answer),
            None => Ok(ask(vec![question]).await?.pop().expect("one answer to one question")),
        }
    }

    /// The place of its answer among those that are there or under way. If there is none, it is asked for, on behalf of all who
    /// sat down at the same moment, by a task of its own: whoever comes first may be held up by other things.
    #[allow(clippy::type_complexity, reason = "three things that belong to one moment")]
    fn come(
        &self,
        hinted_at: Option<Instant>,
        ask: impl Fn(Vec<Q>) -> BoxFuture<'static, Work<Vec<A>>>,
    ) -> (usize, Answers<A>, Option<tokio::task::JoinHandle<Work<()>>>) {
        let mut table = lock(&self.table);
        let now = Instant::now();
        let counts = |asked: &&Asked<A>| {
            hinted_at.is_none_or(|hinted_at| asked.at > hinted_at) && now.duration_since(asked.at) <= table.late
        };
        // Who had no seat yet when it was asked is not among those it was asked for.
        if let Some(asked) = table.latest.as_ref().filter(counts)
            && let Some(place) = asked.seats.get(&self.number)
        {
            return (*place, asked.answers.clone(), None);
        }
        let apart = |since: Instant| since.max(self.since).duration_since(since.min(self.since));
        let (mut seats, mut questions) = (BTreeMap::new(), Vec::new());
        for (seat, (_, question)) in table.seats.iter().filter(|(_, (since, _))| apart(*since) <= table.late) {
            seats.insert(*seat, questions.len());
            questions.push(question.clone());
        }
        let place = seats[&self.number];
        let (sender, answers) = watch::channel(None);
        let asking = ask(questions);
        table.latest = Some(Asked { at: now, seats, answers: answers.clone() });
        let asking = tokio::spawn(async move {
            sender.send_replace(Some(Arc::new(asking.await?)));
            Ok(())
        });
        (place, answers, Some(asking))
    }
}

impl<Q, A> Drop for Seat<Q, A> {
    fn drop(&mut self) {
        lock(&self.table).seats.remove(&self.number);
    }
}

fn lock<Q, A>(table: &Mutex<Table<Q, A>>) -> MutexGuard<'_, Table<Q, A>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::{FutureExt, future::join_all};
    use postrider_core::Error;

    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    /// A table whose answers tell the question, and the number of the statement.
    struct Lanes {
        together: Together<u32, (u32, usize)>,
        statements: Arc<AtomicUsize>,
        fails: bool,
    }

    impl Lanes {
        fn new(late: Duration) -> Self {
            Self { together: Together::with_answers_up_to(late), statements: Arc::default(), fails: false }
        }

        fn statements(&self) -> usize {
            self.statements.load(Ordering::Relaxed)
        }

        fn seat(&self, question: u32) -> Seat<u32, (u32, usize)> {
            self.together.seat(question)
        }

        async fn ask(&self, seat: Seat<u32, (u32, usize)>) -> Work<(u32, usize)> {
            self.ask_after(None, seat).await
        }

        async fn ask_after(&self, hinted_at: Option<Instant>, seat: Seat<u32, (u32, usize)>) -> Work<(u32, usize)> {
            let statement = |questions: Vec<u32>| -> BoxFuture<'static, Work<Vec<_>>> {
                let number = self.statements.fetch_add(1, Ordering::Relaxed) + 1;
                let fails = self.fails && number == 1;
                Box::pin(async move {
                    tokio::task::yield_now().await;
                    if fails {
                        return Err(Error::invalid("out of luck").into());
                    }
                    Ok(questions.into_iter().map(|question| (question, number)).collect())
                })
            };
            seat.ask(hinted_at, statement).await
        }
    }

    #[tokio::test]
    async fn who_comes_at_the_same_moment_or_later_has_its_answer_from_one_statement() {
        let lanes = Lanes::new(HOUR);
        let seats: Vec<_> = (1..=20).map(|question| lanes.seat(question)).collect();
        let late = lanes.seat(21);
        let found = join_all(seats.into_iter().map(|seat| lanes.ask(seat))).await;
        let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
        assert_eq!(found, (1..=20).map(|question| (question, 1)).collect::<Vec<_>>());
        assert_eq!(lanes.ask(late).await.unwrap(), (21, 1), "it has come late");
        assert_eq!(lanes.statements(), 1);
        let next = lanes.seat(7);
        assert_eq!(lanes.ask(next).await.unwrap(), (7, 2), "what was asked before it sat down is no answer");
    }

    #[tokio::test]
    async fn an_answer_from_before_a_hint_does_not_count() {
        let lanes = Lanes::new(HOUR);
        let (first, second, third) = (lanes.seat(1), lanes.seat(2), lanes.seat(3));
        assert_eq!(lanes.ask(first).await.unwrap(), (1, 1));
        let hinted_at = Some(Instant::now());
        assert_eq!(lanes.ask_after(hinted_at, second).await.unwrap(), (2, 2));
        assert_eq!(lanes.ask_after(hinted_at, third).await.unwrap(), (3, 2), "asked for behind it");
    }

    #[tokio::test]
    async fn an_old_answer_does_not_count() {
        let lanes = Lanes::new(Duration::ZERO);
        let (first, second) = (lanes.seat(1), lanes.seat(2));
        assert_eq!(lanes.ask(first).await.unwrap(), (1, 1));
        let asked_at = Instant::now();
        while Instant::now() == asked_at {}
        assert_eq!(lanes.ask(second).await.unwrap(), (2, 2));
    }

    #[tokio::test]
    async fn nobody_asks_for_who_sat_down_at_another_moment() {
        let lanes = Lanes::new(Duration::ZERO);
        let first = lanes.seat(1);
        while Instant::now() == first.since {}
        let second = lanes.seat(2);
        assert_eq!(lanes.ask(first).await.unwrap(), (1, 1));
        assert_eq!(lock(&lanes.together.0).latest.as_ref().unwrap().seats.len(), 1);
        assert_eq!(lanes.ask(second).await.unwrap(), (2, 2));
    }

    #[tokio::test]
    async fn nobody_asks_for_a_seat_that_was_given_up() {
        let lanes = Lanes::new(HOUR);
        let (first, second) = (lanes.seat(1), lanes.seat(2));
        drop(second);
        assert_eq!(lock(&lanes.together.0).seats.len(), 1);
        assert_eq!(lanes.ask(first).await.unwrap(), (1, 1));
        assert!(lock(&lanes.together.0).seats.is_empty());
    }

    #[tokio::test]
    async fn who_is_left_by_the_first_has_its_answer_all_the_same() {
        let lanes = Lanes::new(HOUR);
        let (first, second) = (lanes.seat(1), lanes.seat(2));
        let mut first = Box::pin(lanes.ask(first));
        assert!((&mut first).now_or_never().is_none());
        drop(first);
        assert_eq!(lanes.ask(second).await.unwrap(), (2, 1));
    }

    #[tokio::test]
    async fn a_failure_of_the_first_is_not_the_failure_of_the_others() {
        let mut lanes = Lanes::new(HOUR);
        lanes.fails = true;
        let (first, second) = (lanes.seat(1), lanes.seat(2));
        let (first, second) = futures_util::future::join(lanes.ask(first), lanes.ask(second)).await;
        assert!(first.is_err());
        assert_eq!(second.unwrap(), (2, 2));
    }
}
