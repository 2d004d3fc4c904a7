//! What can be set about a relay as a whole.

use std::time::Duration;

use postrider_core::log::Retention;
use serde::{Deserialize, Serialize};

/// Options of a relay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// How long a lease lives without a heartbeat: how long a crashed node's lanes stand still. A node stops acting after
    /// two thirds of it. Too low, and a short pause of the process costs duplicates. Default 15 s, at least 100 ms.
    pub lease_life: Duration,
    /// How often a node says that it is alive, learns of pauses and looks for free lanes. Default 3 s, at most a third of
    /// the lease's life.
    pub heartbeat_every: Duration,
    /// How long a drain may take before the rest is left to the next owner. Default 25 s.
    pub drain_deadline: Duration,
    /// How long delivered records are kept, for replay. `None`: for ever. Nothing undelivered is ever removed. Default
    /// 24 h.
    pub keep_delivered: Option<Duration>,
    /// How many records are kept at most, however young: delivered ones beyond that many newer ones are removed. Too low, and
    /// there is nothing to replay. `None`: any number. Default `None`.
    pub keep_delivered_max: Option<u64>,
    /// How often retention runs. Default 60 s.
    pub purge_every: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lease_life: Duration::from_secs(15),
            heartbeat_every: Duration::from_secs(3),
            drain_deadline: Duration::from_secs(25),
            keep_delivered: Some(Duration::from_hours(24)),
            keep_delivered_max: None,
            purge_every: Duration::from_mins(1),
        }
    }
}

impl Options {
    pub(crate) fn retention(&self) -> Retention {
        Retention { keep: self.keep_delivered, records_max: self.keep_delivered_max }
    }

    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.lease_life < Duration::from_millis(100) {
            problems.push(format!("lease_life is {:?}; it must be at least 100ms", self.lease_life));
        }
        if self.heartbeat_every * 3 > self.lease_life || self.heartbeat_every.is_zero() {
            let most = self.lease_life / 3;
            problems
                .push(format!("heartbeat_every is {:?}; it must lie between 1ms and {most:?}", self.heartbeat_every));
        }
        if self.purge_every.is_zero() {
            problems.push("purge_every must not be zero".to_owned());
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_have_no_problems() {
        assert_eq!(Options::default().problems(), Vec::<String>::new());
    }

    #[test]
    fn every_problem_is_named_with_its_value() {
        let ms = Duration::from_millis;
        let wrong =
            Options { lease_life: ms(99), heartbeat_every: ms(34), purge_every: Duration::ZERO, ..Options::default() };
        let problems = wrong.problems();
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems[0].contains("lease_life is 99ms"));
        assert!(problems[1].contains("heartbeat_every is 34ms"));
        assert!(problems[2].contains("purge_every"));
        let at_the_limit = Options { lease_life: ms(300), heartbeat_every: ms(100), ..Options::default() };
        assert_eq!(at_the_limit.problems(), Vec::<String>::new());
        let never = Options { heartbeat_every: Duration::ZERO, ..Options::default() };
        assert_eq!(never.problems().len(), 1);
    }
}
