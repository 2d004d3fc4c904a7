//! Questions that are asked at the same moment, answered by one statement.
//!
//! The lanes of a node that has nothing to do look for work at common moments. Whoever comes first waits for as many as have
//! met lately, though not for long, asks for all of them, and hands out the answers; so an idle node costs the same with one
//! lane and with a hundred, and one lane waits for nobody. An answer was always asked for after its question.

use std::{
    mem,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use postrider_core::BoxFuture;
use tokio::sync::oneshot;

use crate::error::Work;

/// How often the first one lets others go before it asks, at least.
const TURNS: usize = 16;

/// How long it waits for as many as have met lately: as long as it takes to wake the other threads.
const PATIENCE: Duration = Duration::from_micros(500);

/// So many smaller meetings, and the larger one is forgotten.
const MEETINGS: u32 = 32;

/// A place where questions meet.
pub(crate) struct Together<Q, A> {
    meeting: Mutex<Meeting<Q, A>>,
}

struct Meeting<Q, A> {
    waiting: Vec<(Q, oneshot::Sender<A>)>,
    /// As many have met lately.
    usual: usize,
    /// Meetings since then that were smaller.
    smaller: u32,
}

impl<Q, A> Default for Together<Q, A> {
    fn default() -> Self {
        Self { meeting: Mutex::new(Meeting { waiting: Vec::new(), usual: 1, smaller: 0 }) }
    }
}

impl<Q: Clone + Send, A: Send> Together<Q, A> {
    /// Asks. `answers` is called by one of those who meet, for all of them, and has as many answers as there are questions,
    /// in the same order. If that one fails or is dropped, the others ask for themselves.
    pub(crate) async fn ask<'f>(
        &self,
        question: Q,
        answers: impl Fn(Vec<Q>) -> BoxFuture<'f, Work<Vec<A>>>,
    ) -> Work<A> {
        let (sender, receiver) = oneshot::channel();
        if self.join(question.clone(), sender) {
            let leading = Leading(self);
            self.wait_for_the_others().await;
            let (questions, senders): (Vec<Q>, Vec<_>) = leading.0.take().into_iter().unzip();
            mem::forget(leading);
            self.note(questions.len());
            for (sender, answer) in senders.into_iter().zip(answers(questions).await?) {
                // Whoever does not want it any more was dropped.
                let _ = sender.send(answer);
            }
        }
        match receiver.await {
            Ok(answer) => Ok(answer),
            Err(_) => Ok(answers(vec![question]).await?.pop().expect("one answer to one question")),
        }
    }

    async fn wait_for_the_others(&self) {
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
        let began = Instant::now();
        while self.some_are_missing() && began.elapsed() < PATIENCE {
            tokio::task::yield_now().await;
        }
    }

    fn some_are_missing(&self) -> bool {
        let meeting = self.meeting();
        meeting.waiting.len() < meeting.usual
    }

    /// Whether it is the first.
    fn join(&self, question: Q, sender: oneshot::Sender<A>) -> bool {
        let mut meeting = self.meeting();
        meeting.waiting.push((question, sender));
        meeting.waiting.len() == 1
    }

    fn take(&self) -> Vec<(Q, oneshot::Sender<A>)> {
        mem::take(&mut self.meeting().waiting)
    }

    fn note(&self, met: usize) {
        let mut meeting = self.meeting();
        meeting.smaller = if met < meeting.usual { meeting.smaller + 1 } else { 0 };
        if met >= meeting.usual || meeting.smaller > MEETINGS {
            (meeting.usual, meeting.smaller) = (met, 0);
        }
    }

    fn meeting(&self) -> std::sync::MutexGuard<'_, Meeting<Q, A>> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first one, until it asks. Dropped before that, it leaves nobody waiting.
struct Leading<'a, Q: Clone + Send, A: Send>(&'a Together<Q, A>);

impl<Q: Clone + Send, A: Send> Drop for Leading<'_, Q, A> {
    fn drop(&mut self) {
        self.0.take();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use postrider_core::Error;

    use super::*;

    #[tokio::test]
    async fn questions_of_one_moment_are_one_statement() {
        let (together, asked) = (Together::default(), AtomicUsize::new(0));
        let answers = |questions: Vec<u32>| -> BoxFuture<'_, Work<Vec<u32>>> {
            asked.fetch_add(1, Ordering::Relaxed);
            Box::pin(async { Ok(questions.into_iter().map(|question| question * 10).collect()) })
        };
        let all = (1..=20).map(|question| together.ask(question, answers));
        let found: Vec<u32> = futures_util::future::try_join_all(all).await.unwrap();
        assert_eq!(found, (1..=20).map(|question| question * 10).collect::<Vec<_>>());
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert_eq!(together.ask(7, answers).await.unwrap(), 70, "the next moment has its own");
    }

    #[test]
    fn as_many_as_met_lately_are_waited_for() {
        let together: Together<u32, u32> = Together::default();
        let usual = |met: usize| {
            together.note(met);
            together.meeting().usual
        };
        assert_eq!([usual(8), usual(3), usual(5)], [8, 8, 8], "one that was split is no reason to split again");
        assert_eq!(usual(9), 9);
        for _ in 0..MEETINGS {
            assert_eq!(usual(2), 9);
        }
        assert_eq!(usual(2), 2, "who does not come any more is not waited for");
    }

    #[tokio::test]
    async fn who_is_left_by_the_first_asks_alone() {
        let together: Arc<Together<u32, u32>> = Arc::default();
        let answers = |questions: Vec<u32>| -> BoxFuture<'_, Work<Vec<u32>>> { Box::pin(async { Ok(questions) }) };
        let mut first = Box::pin(together.ask(1, answers));
        assert!(futures_util::FutureExt::now_or_never(&mut first).is_none());
        let mut second = Box::pin(together.ask(2, answers));
        assert!(futures_util::FutureExt::now_or_never(&mut second).is_none());
        drop(first);
        assert_eq!(second.await.unwrap(), 2);
        assert_eq!(together.ask(3, answers).await.unwrap(), 3, "nobody is stuck behind the one that went");
    }

    #[tokio::test]
    async fn a_failure_of_the_first_is_not_the_failure_of_the_others() {
        let (together, failed) = (Together::default(), AtomicUsize::new(0));
        let answers = |questions: Vec<u32>| -> BoxFuture<'_, Work<Vec<u32>>> {
            let fails = failed.fetch_add(1, Ordering::Relaxed) == 0;
            Box::pin(async move { if fails { Err(Error::invalid("out of luck").into()) } else { Ok(questions) } })
        };
        let (first, second) = futures_util::future::join(together.ask(1, answers), together.ask(2, answers)).await;
        assert!(first.is_err());
        assert_eq!(second.unwrap(), 2);
    }
}
