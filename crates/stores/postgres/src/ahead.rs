//! Reading ahead: while a page is worked on, the server makes the next one.
//!
//! A reader that takes every record of a long backlog knows what it will ask for next before it has looked at what it got:
//! the same round, from where a full page ends. It asks at once, in a task of its own, so that server and relay work at the
//! same time, and so that an answer which nobody wants yet holds up no other lane on the connection. At most one page a
//! lane is kept this way. An answer counts only for the very question that it answers, and what a round may see does not
//! change with time, so it is as good later; only what it says of the time is not, so it knows how old it is.

use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::{
    error::Work,
    rounds::{Filter, Window},
    session::{Found, Session, Size},
    snapshot::Snapshot,
};

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Question {
    window: Window,
    base: Snapshot,
    target: Snapshot,
    size: Size,
}

impl Question {
    /// `None` in a rebase: it is rare, and asks in another way.
    fn new(window: Window, filter: Filter<'_>, size: Size) -> Option<Self> {
        let Filter::Between { base, target } = filter else { return None };
        Some(Self { window, base: base.clone(), target: target.clone(), size })
    }
}

/// A page on its way.
pub(crate) struct Ahead {
    question: Question,
    answer: JoinHandle<Work<Found>>,
}

impl Ahead {
    /// Asks, without waiting for the answer.
    pub(crate) async fn ask(
        session: &Arc<Session>,
        window: Window,
        filter: Filter<'_>,
        topics: &Arc<Option<Vec<String>>>,
        size: Size,
    ) -> Option<Self> {
        let question = Question::new(window, filter, size)?;
        let (session, topics, asked) = (Arc::clone(session), Arc::clone(topics), question.clone());
        let answer = tokio::spawn(async move {
            let Question { window, base, target, size } = &asked;
            session.page(*window, Filter::Between { base, target }, &topics, *size).await
        });
        // So that it is sent now, and not when whoever reads has nothing else to do.
        tokio::task::yield_now().await;
        Some(Self { question, answer })
    }

    /// The answer, if this was the question.
    pub(crate) async fn answer(self, window: Window, filter: Filter<'_>, size: Size) -> Option<Work<Found>> {
        if Question::new(window, filter, size)? != self.question {
            return None;
        }
        // A task that was lost with its runtime has no answer; asking again will tell why.
        self.answer.await.ok()
    }
}
