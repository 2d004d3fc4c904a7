//! Questions that are asked at the same moment, answered by one statement.
//!
//! The lanes of a node that has nothing to do look for work at common moments. Whoever comes first waits until the others of
//! that moment have had their turn, asks for all of them, and hands out the answers; so an idle node costs the same with one
//! lane and with a hundred. An answer was always asked for after its question.

use std::{
    mem,
    sync::{Mutex, PoisonError},
};

use postrider_core::BoxFuture;
use tokio::sync::oneshot;

use crate::error::Work;

/// How often the first one lets others go before it asks.
const TURNS: usize = 16;

/// A place where questions meet.
pub(crate) struct Together<Q, A> {
    waiting: Mutex<Vec<(Q, oneshot::Sender<A>)>>,
}

impl<Q, A> Default for Together<Q, A> {
    fn default() -> Self {
        Self { waiting: Mutex::default() }
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
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
            let (questions, senders): (Vec<Q>, Vec<_>) = leading.0.take().into_iter().unzip();
            mem::forget(leading);
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

    /// Whether it is the first.
    fn join(&self, question: Q, sender: oneshot::Sender<A>) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push((question, sender));
        waiting.len() == 1
    }

    fn take(&self) -> Vec<(Q, oneshot::Sender<A>)> {
        mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
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
