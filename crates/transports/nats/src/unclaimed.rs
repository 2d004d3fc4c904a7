//! Subjects that nobody takes: what that means for the messages on them.
//!
//! Nobody takes a subject when no stream has it, and just as well while its stream has no leader. The first is a message that
//! leads nowhere; the second is an outage, and no message may pay for it. Nor may one pay for a stream that we made and
//! somebody has deleted, which is made again, nor for a server that is about to end and has put its streams away before its
//! connections: only a subject that has been missing for a while counts as one that leads nowhere. Which it is, the server is
//! asked once for each subject of a batch, for all at the same time; its answer is remembered for a moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_nats::jetstream::context::GetStreamByNameErrorKind;
use futures_util::{StreamExt, stream};
use postrider_core::{parked::Cause, transport::Outcome};
use tokio::time::{Instant, timeout_at};

use crate::connect::{Connection, Open};

/// How long it is remembered that no stream has a subject.
const REMEMBERED: Duration = Duration::from_secs(1);
/// How many subjects are remembered; with more, all are forgotten and asked for again.
const REMEMBERED_MAX: usize = 10_000;
/// Questions that are out at the same time.
const QUESTIONS_MAX: usize = 32;

/// What the server has said about subjects that nobody takes.
#[derive(Default)]
pub(crate) struct Unclaimed {
    missing: Mutex<BTreeMap<String, Missing>>,
}

/// No stream has a subject.
#[derive(Clone, Copy)]
struct Missing {
    /// Since then nobody has taken it.
    since: Instant,
    /// When that was last said.
    said_at: Instant,
}

impl Unclaimed {
    /// The outcome of messages on these subjects, known at the deadline at the latest. Dropping the future breaks nothing.
    pub(crate) async fn outcomes(
        &self,
        connection: &Connection,
        open: &Open,
        subjects: BTreeSet<String>,
        deadline: Instant,
    ) -> BTreeMap<String, Outcome> {
        let (mut missing, unknown): (Vec<_>, Vec<_>) =
            subjects.into_iter().partition(|subject| self.is_missing(subject));
        let ask = |subject: String| async move {
            let asked = timeout_at(deadline, open.jetstream.stream_by_subject(subject.clone())).await;
            let outage = match asked {
                Ok(Ok(stream)) => format!("the stream {stream} takes nothing at the moment"),
                Ok(Err(error)) if error.kind() == GetStreamByNameErrorKind::NotFound => return (subject, None),
                Ok(Err(error)) => format!("JetStream does not answer: {error}"),
                Err(_) => "JetStream does not answer in time".to_owned(),
            };
            (subject, Some(Outcome::Unavailable(Cause::new("no-leader", outage))))
        };
        let mut outcomes = BTreeMap::new();
        let mut answers = stream::iter(unknown).map(ask).buffer_unordered(QUESTIONS_MAX);
        while let Some((subject, answer)) = answers.next().await {
            match answer {
                Some(outage) => {
                    self.forget(&subject);
                    outcomes.insert(subject, outage);
                }
                None => missing.push(subject),
            }
        }
        if missing.is_empty() {
            return outcomes;
        }
        // One stream for all that is below the prefix, so it is made once.
        let late = |_| Err(Cause::new("declare", "the stream cannot be made in time"));
        let made = timeout_at(deadline, connection.make_stream(&open.jetstream)).await.unwrap_or_else(late);
        for subject in missing {
            let gone = format!("no stream takes the subject {subject}");
            let outcome = match &made {
                Ok(true) => Outcome::Unavailable(Cause::new(
                    "no-stream",
                    format!("{gone}; the one that is declared is made again"),
                )),
                Ok(false) => {
                    let cause = Cause::new("no-stream", format!("{gone}; make one, or let the route declare it"));
                    let is_for_long = self.remember(&subject) >= connection.timeout;
                    if is_for_long { Outcome::Rejected(cause) } else { Outcome::Unavailable(cause) }
                }
                Err(cause) => Outcome::Unavailable(cause.clone()),
            };
            outcomes.insert(subject, outcome);
        }
        outcomes
    }

    /// Somebody takes this subject.
    pub(crate) fn forget(&self, subject: &str) {
        self.missing().remove(subject);
    }

    /// Whether no stream has it, as far as the server has just said.
    fn is_missing(&self, subject: &str) -> bool {
        self.missing().get(subject).is_some_and(|missing| missing.said_at.elapsed() < REMEMBERED)
    }

    /// Notes that no stream has it. For how long that has been so.
    fn remember(&self, subject: &str) -> Duration {
        let mut missing = self.missing();
        if missing.len() >= REMEMBERED_MAX && !missing.contains_key(subject) {
            missing.clear();
        }
        let now = Instant::now();
        let found = missing.entry(subject.to_owned()).or_insert(Missing { since: now, said_at: now });
        // What is remembered is not remembered longer because it was looked at.
        if found.said_at.elapsed() >= REMEMBERED {
            found.said_at = now;
        }
        found.since.elapsed()
    }

    fn missing(&self) -> MutexGuard<'_, BTreeMap<String, Missing>> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_missing_is_remembered_for_a_moment_and_no_longer_for_being_asked_for() {
        let unclaimed = Unclaimed::default();
        assert!(!unclaimed.is_missing("a"));
        unclaimed.remember("a");
        tokio::time::advance(REMEMBERED / 2).await;
        assert!(unclaimed.is_missing("a"));
        unclaimed.remember("a");
        tokio::time::advance(REMEMBERED / 2).await;
        assert!(!unclaimed.is_missing("a"));
        assert_eq!(unclaimed.remember("a"), REMEMBERED, "missing all the while");
        assert!(unclaimed.is_missing("a"), "said anew");
        unclaimed.forget("a");
        assert_eq!(unclaimed.remember("a"), Duration::ZERO, "somebody took it meanwhile");
    }
}
