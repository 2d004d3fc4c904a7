//! What the cluster says about topics whose messages were not acknowledged in time, each asked for once in a batch.
//!
//! Pure. A topic may be unwell by itself, which says nothing about the others. A cluster that does not answer at all is
//! silent for every topic, and is not asked once more for each. That there is no connection is told under another code than
//! before a message was sent: then it says that nothing was, and now the brokers may have it.

use std::collections::BTreeMap;

use postrider_core::{parked::Cause, transport::Outcome};

/// What was said so far.
#[derive(Default)]
pub(crate) struct Ailments {
    /// By topic; `None`: nothing is wrong with it.
    by_topic: BTreeMap<String, Option<Outcome>>,
    silent: Option<Cause>,
}

impl Ailments {
    /// Whether the cluster has to be asked for a topic.
    pub(crate) fn is_open(&self, topic: &str) -> bool {
        self.silent.is_none() && !self.by_topic.contains_key(topic)
    }

    /// Notes what it has said, or why it says nothing.
    pub(crate) fn note(&mut self, topic: &str, said: Result<Option<Outcome>, Cause>) {
        match said {
            Ok(ailment) => drop(self.by_topic.insert(topic.to_owned(), ailment)),
            Err(cause) => self.silent = Some(Cause::new("timeout", format!("no acknowledgement in time; {cause}"))),
        }
    }

    /// What is wrong with a topic, as far as is known.
    pub(crate) fn of(&self, topic: &str) -> Option<Outcome> {
        match self.by_topic.get(topic) {
            Some(ailment) => ailment.clone(),
            None => self.silent.clone().map(Outcome::Unavailable),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_without_a_leader_is_not_the_cause_of_another() {
        let mut ailments = Ailments::default();
        let no_leader = Outcome::Unavailable(Cause::new("no-leader", "orders/0 has no leader"));
        ailments.note("orders", Ok(Some(no_leader.clone())));
        assert!(!ailments.is_open("orders") && ailments.is_open("invoices"));
        assert_eq!((ailments.of("orders"), ailments.of("invoices")), (Some(no_leader.clone()), None));
        ailments.note("invoices", Err(Cause::new("connect", "nobody answers")));
        assert!(!ailments.is_open("payments"), "nobody is asked once more for each topic");
        let detail = "no acknowledgement in time; connect: nobody answers";
        let silent = Some(Outcome::Unavailable(Cause::new("timeout", detail)));
        assert_eq!((ailments.of("invoices"), ailments.of("payments")), (silent.clone(), silent));
        assert_eq!(ailments.of("orders"), Some(no_leader), "what was said before holds");
    }
}
