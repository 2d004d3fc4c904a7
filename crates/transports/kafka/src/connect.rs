//! One client of the cluster that sends, made when it is first needed.
//!
//! From then on it connects, and connects again, on its own. It would keep what it is given during an outage and send it
//! late; so before anything is given to it, the cluster is asked for topics that are not known yet, and once more after every
//! loss. A client that has failed for good is put away, and the next publish makes a new one.
//!
//! A topic that is not there is an outage at first: somebody is about to make it, or brokers have not heard of it yet. Where
//! every message names its own topic, it becomes the message's fault once the topic has been missing for long enough and was
//! never there; a topic that was there, that the settings name, or that is to be made here, is nobody's fault but the
//! operator's, and is waited for.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use postrider_core::{Result, missing::Missing, parked::Cause, transport::Outcome};
use rdkafka::{
    ClientConfig,
    client::Client,
    error::RDKafkaErrorCode as Code,
    producer::{Producer, ThreadedProducer},
};
use tokio::task::spawn_blocking;

use crate::{
    context::{Health, Producing},
    ending::Ending,
    error,
    topics::{self, Shape, Topic},
};

/// The longest wait for a first answer of the cluster. Connecting has as long.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(5);

/// What to do about topics that are not there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Care {
    /// How they are made; `None`: not at all.
    pub(crate) declare: Option<Shape>,
    /// Whether the settings name the topic, and not the message.
    pub(crate) fixed: bool,
}

pub(crate) struct Connection {
    config: ClientConfig,
    shown: String,
    /// How long one answer may take.
    timeout: Duration,
    care: Care,
    live: Mutex<Option<Arc<Live>>>,
    /// Topics that are not there, and those that were.
    missing: Missing,
}

/// A client that is at work.
pub(crate) struct Live {
    producer: Ending<ThreadedProducer<Producing>>,
    /// Topics that the cluster has said to be there, and served.
    known: Mutex<BTreeSet<String>>,
}

impl Connection {
    pub(crate) fn new(config: ClientConfig, shown: String, timeout: Duration, care: Care) -> Self {
        Self { config, shown, timeout, care, live: Mutex::new(None), missing: Missing::default() }
    }

    /// The client at work; made if there is none.
    pub(crate) fn get(&self) -> Result<Arc<Live>, Cause> {
        let mut live = self.live();
        if let Some(live) = &*live {
            return Ok(Arc::clone(live));
        }
        let created: Result<ThreadedProducer<Producing>, _> = self.config.create_with_context(Producing::default());
        let producer = created.map_err(|e| Cause::new("config", error::setting(&e).chain()))?;
        Ok(Arc::clone(live.insert(Arc::new(Live { producer: Ending::new(producer), known: Mutex::default() }))))
    }

    /// Puts a client away that is of no more use; what it still has is answered with an error.
    pub(crate) fn retire(&self, done: &Arc<Live>) {
        let mut live = self.live();
        if live.as_ref().is_some_and(|live| Arc::ptr_eq(live, done)) {
            *live = None;
        }
    }

    /// As [`Self::retire`], whichever is at work.
    pub(crate) fn retire_all(&self) {
        *self.live() = None;
    }

    /// What becomes of messages to those of these topics that cannot be sent to. Asks only for those that are not known, or for
    /// all after a loss. If the future is dropped, the question is asked to its end and forgotten.
    ///
    /// # Errors
    /// Why nothing can be sent at all.
    pub(crate) async fn refused(
        &self,
        live: &Arc<Live>,
        names: &BTreeSet<Cow<'_, str>>,
    ) -> Result<BTreeMap<String, Outcome>, Cause> {
        let unknown = live.unknown(names);
        if unknown.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut found = self.ask(live, unknown, topics::look_up).await?;
        let missing: Vec<String> =
            found.iter().filter(|(_, topic)| **topic == Topic::Missing).map(|(name, _)| name.clone()).collect();
        if let Some(shape) = self.care.declare.filter(|_| !missing.is_empty()) {
            let made = topics::make(&self.config, &missing, shape, self.timeout).await;
            let unwanted = made.map_err(|error| Cause::new("declare", error.chain()))?;
            let made = missing.into_iter().filter(|name| !unwanted.iter().any(|(other, _)| other == name));
            found.extend(self.ask(live, made.collect(), topics::wait_for).await?);
            found.extend(unwanted.into_iter().map(|(name, code)| (name, Topic::Refused(code))));
        }
        let mut refused = BTreeMap::new();
        for (name, topic) in found {
            live.note(&name, &topic);
            match topic {
                // Some partitions may do; the brokers will say.
                Topic::There | Topic::Lagging(_) | Topic::Unwell(_) => self.missing.found(&name),
                Topic::Refused(code) => {
                    self.missing.doubt(&name);
                    let outcome = error::outcome(code, &name);
                    refused.insert(name, outcome);
                }
                Topic::Missing => {
                    let outcome = self.without_topic(&name);
                    refused.insert(name, outcome);
                }
            }
        }
        Ok(refused)
    }

    /// What becomes of messages to a topic that is not there.
    fn without_topic(&self, name: &str) -> Outcome {
        let detail = format!("there is no topic {name}; make it, or let the route declare it");
        if self.care.fixed || self.care.declare.is_some() {
            return Outcome::Unavailable(Cause::new("no-topic", detail));
        }
        let cause = Cause::of_one_destination("no-topic", detail);
        let leads_nowhere = self.missing.leads_nowhere(name, Instant::now(), self.timeout);
        if leads_nowhere { Outcome::Rejected(cause) } else { Outcome::Unavailable(cause) }
    }

    /// Topics that are missing now are no longer waited for because they were there once.
    pub(crate) fn reopen(&self) {
        self.missing.forget_all();
    }

    /// Asks for topics on a thread for blocking calls.
    async fn ask(
        &self,
        live: &Arc<Live>,
        names: Vec<String>,
        how: fn(&Client<Producing>, &str, Duration) -> Result<Topic, Code>,
    ) -> Result<BTreeMap<String, Topic>, Cause> {
        let (asked, timeout) = (Arc::clone(live), self.timeout.min(FIRST_ANSWER_MAX));
        let answers = spawn_blocking(move || {
            let client = asked.producer().client();
            names.into_iter().map(|name| how(client, &name, timeout).map(|topic| (name, topic))).collect()
        });
        let answers: Result<BTreeMap<String, Topic>, Code> =
            answers.await.map_err(|_| Cause::new("connect", "asking the cluster was interrupted"))?;
        let found = answers.map_err(|code| live.health().cause(code, &self.shown))?;
        live.health().well();
        Ok(found)
    }

    /// After a message was not acknowledged in time: what is wrong with its topic, if anything is.
    ///
    /// # Errors
    /// Why the cluster does not answer.
    pub(crate) async fn ailment(&self, live: &Arc<Live>, name: &str) -> Result<Option<Outcome>, Cause> {
        let found = self.ask(live, vec![name.to_owned()], topics::look_up).await?;
        Ok(found.into_values().find_map(|topic| match topic {
            Topic::There => None,
            Topic::Lagging(cause) | Topic::Unwell(cause) => Some(Outcome::Unavailable(cause)),
            Topic::Refused(code) => Some(error::outcome(code, name)),
            Topic::Missing => {
                live.forget(name);
                Some(Outcome::Unknown(Cause::new("no-topic", format!("the topic {name} is gone"))))
            }
        }))
    }

    /// The client at work, if there is one; the next publish would make another.
    pub(crate) fn take(&self) -> Option<Arc<Live>> {
        self.live().take()
    }

    fn live(&self) -> MutexGuard<'_, Option<Arc<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    pub(crate) fn producer(&self) -> &ThreadedProducer<Producing> {
        &self.producer
    }

    pub(crate) fn health(&self) -> &Health {
        &self.producer().context().health
    }

    /// Which of these topics the cluster has to be asked for: those that are not known, or all after a loss.
    fn unknown(&self, names: &BTreeSet<Cow<'_, str>>) -> Vec<String> {
        let (down, known) = (self.health().is_down(), self.known());
        names.iter().filter(|name| down || !known.contains(&***name)).map(ToString::to_string).collect()
    }

    /// Notes what the cluster has said about a topic. One whose replicas lag is known: it may stay like that for as long as a
    /// broker is away, and whether they are enough is what the brokers say to each message.
    fn note(&self, name: &str, topic: &Topic) {
        if matches!(topic, Topic::There | Topic::Lagging(_)) {
            self.known().insert(name.to_owned());
        }
    }

    /// The cluster is asked for this topic once more before anything is sent to it.
    pub(crate) fn forget(&self, topic: &str) {
        self.known().remove(topic);
    }

    fn known(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_whose_replicas_lag_is_asked_for_once_and_one_without_a_leader_each_time() {
        // Of no cluster at all, so that it tells of no loss meanwhile.
        let (config, care) = (ClientConfig::new(), Care { declare: None, fixed: false });
        let live = Connection::new(config, "nowhere".to_owned(), FIRST_ANSWER_MAX, care).get().unwrap();
        let cause = || Cause::new("some", "cause");
        for (name, topic) in [
            ("there", Topic::There),
            ("lagging", Topic::Lagging(cause())),
            ("unwell", Topic::Unwell(cause())),
            ("missing", Topic::Missing),
        ] {
            live.note(name, &topic);
        }
        let names = ["there", "lagging", "unwell", "missing"].map(Cow::Borrowed).into();
        assert_eq!(live.unknown(&names), ["missing", "unwell"]);
    }
}
