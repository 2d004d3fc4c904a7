//! Subjects that nobody takes: what that means for the messages on them.
//!
//! Nobody takes a subject when no stream has it, and just as well while its stream has no leader. The first is a message that
//! leads nowhere; the second is an outage, and no message may pay for it. Nor may one pay for a stream that we made and
//! somebody has deleted, which is made again, nor for a server that is about to end and has put its streams away before its
//! connections, nor for a stream that was there and is lost: only a subject that has been missing for a while, and that nobody
//! ever took, counts as one that leads nowhere ([`Missing`]). Which it is, the server is asked once for each subject of a
//! batch, for all at the same time; its answer is remembered for a moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_nats::jetstream::context::GetStreamByNameErrorKind;
use futures_util::{StreamExt, stream};
use postrider_core::{missing::Missing, parked::Cause, transport::Outcome};
use tokio::time::{Instant, timeout_at};

use crate::{
    connect::{Connection, Open},
    subject::bad,
};

/// How long it is remembered that no stream has a subject.
const REMEMBERED: Duration = Duration::from_secs(1);
/// How many subjects are remembered; with more, all are forgotten and asked for again.
const REMEMBERED_MAX: usize = 10_000;
/// Questions that are out at the same time.
const QUESTIONS_MAX: usize = 32;

/// What the server has said about subjects that nobody takes.
#[derive(Default)]
pub(crate) struct Unclaimed {
    missing: Missing,
    /// When it was last said that no stream has a subject.
    said_at: Mutex<BTreeMap<String, Instant>>,
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
                Ok(Ok(stream)) => {
                    self.found(&subject);
                    format!("the stream {stream} takes nothing at the moment")
                }
                Ok(Err(error)) => match error.kind() {
                    GetStreamByNameErrorKind::NotFound => return (subject, None),
                    // The client's own rule, not an answer; it may become stricter than ours.
                    GetStreamByNameErrorKind::InvalidSubject => {
                        let cause = bad(&subject, "the client refuses to ask for it");
                        return (subject, Some(Outcome::Rejected(cause)));
                    }
                    _ => format!("JetStream does not answer: {error}"),
                },
                Err(_) => "JetStream does not answer in time".to_owned(),
            };
            (subject, Some(Outcome::Unavailable(Cause::new("no-leader", outage))))
        };
        let mut outcomes = BTreeMap::new();
        let mut answers = stream::iter(unknown).map(ask).buffer_unordered(QUESTIONS_MAX);
        while let Some((subject, answer)) = answers.next().await {
            match answer {
                Some(outcome) => {
                    self.missing.doubt(&subject);
                    outcomes.insert(subject, outcome);
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
                    let advice = format!("{gone}; make one, or let the route declare it");
                    let cause = Cause::of_one_destination("no-stream", advice);
                    let leads_nowhere = self.leads_nowhere(&subject, connection.timeout);
                    if leads_nowhere { Outcome::Rejected(cause) } else { Outcome::Unavailable(cause) }
                }
                Err(cause) => Outcome::Unavailable(cause.clone()),
            };
            outcomes.insert(subject, outcome);
        }
        outcomes
    }

    /// Somebody takes this subject.
    pub(crate) fn found(&self, subject: &str) {
        self.missing.found(subject);
        self.said_at().remove(subject);
    }

    /// Subjects that nobody takes now are no longer waited for because somebody took them once.
    pub(crate) fn reopen(&self) {
        self.missing.forget_all();
    }

    /// Whether no stream has it, as far as the server has just said.
    fn is_missing(&self, subject: &str) -> bool {
        self.said_at().get(subject).is_some_and(|said_at| said_at.elapsed() < REMEMBERED)
    }

    /// Notes that no stream has it. Whether its messages lead nowhere.
    fn leads_nowhere(&self, subject: &str, patience: Duration) -> bool {
        let now = Instant::now();
        let mut said = self.said_at();
        if said.len() >= REMEMBERED_MAX && !said.contains_key(subject) {
            said.clear();
        }
        let said_at = said.entry(subject.to_owned()).or_insert(now);
        // What is remembered is not remembered longer because it was looked at.
        if now.duration_since(*said_at) >= REMEMBERED {
            *said_at = now;
        }
        self.missing.leads_nowhere(subject, now.into_std(), patience)
    }

    fn said_at(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.said_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_missing_is_remembered_for_a_moment_and_no_longer_for_being_asked_for() {
        let unclaimed = Unclaimed::default();
        assert!(!unclaimed.is_missing("a"));
        assert!(!unclaimed.leads_nowhere("a", REMEMBERED));
        tokio::time::advance(REMEMBERED / 2).await;
        assert!(unclaimed.is_missing("a"));
        assert!(!unclaimed.leads_nowhere("a", REMEMBERED));
        tokio::time::advance(REMEMBERED / 2).await;
        assert!(!unclaimed.is_missing("a"));
        assert!(unclaimed.leads_nowhere("a", REMEMBERED), "missing all the while");
        assert!(unclaimed.is_missing("a"), "said anew");
        unclaimed.found("a");
        assert!(!unclaimed.is_missing("a"));
        assert!(!unclaimed.leads_nowhere("a", Duration::ZERO), "somebody took it");
        unclaimed.reopen();
        assert!(unclaimed.leads_nowhere("a", Duration::ZERO), "nobody knows of it any more");
    }
}
