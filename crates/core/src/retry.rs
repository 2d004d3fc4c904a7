//! Retry policies: pure arithmetic from an attempt's number to the wait before the next.
//!
//! Attempts count from 1 and only rejections count; an outage of the destination is not an attempt.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// How often a message is tried, and how long to wait in between.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// Attempts before the message is dead. A message can carry its own limit. Default 10.
    pub attempts_max: u32,
    /// How the wait grows. Default exponential from 200 ms, doubling, up to 5 minutes.
    pub backoff: Backoff,
    /// How much of each wait is left to chance, so that many messages do not come back at the same moment.
    /// Default half.
    pub jitter: Jitter,
}

/// How the wait grows from attempt to attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Backoff {
    /// Always the same.
    Fixed {
        /// The wait.
        wait: Duration,
    },
    /// `step`, `2 × step`, `3 × step`, … up to `max`.
    Linear {
        /// What each attempt adds.
        step: Duration,
        /// The longest wait.
        max: Duration,
    },
    /// `first`, `first × factor`, `first × factor²`, … up to `max`.
    Exponential {
        /// The wait after the first attempt.
        first: Duration,
        /// What each further attempt multiplies by; at least 1.
        factor: f64,
        /// The longest wait.
        max: Duration,
    },
}

/// How much of a wait is random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Jitter {
    /// The whole wait, exactly.
    None,
    /// Between half of the wait and the whole.
    Half,
    /// Between nothing and the whole wait.
    Full,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        let backoff =
            Backoff::Exponential { first: Duration::from_millis(200), factor: 2.0, max: Duration::from_mins(5) };
        Self { attempts_max: 10, backoff, jitter: Jitter::Half }
    }
}

impl RetryPolicy {
    /// Checks the numbers.
    ///
    /// # Errors
    /// If no attempt is allowed, a factor is below 1 or not a number, or a wait is longer than 365 days.
    pub fn check(&self) -> Result<()> {
        let year = Duration::from_hours(365 * 24);
        let (longest, factor) = match self.backoff {
            Backoff::Fixed { wait } => (wait, 1.0),
            Backoff::Linear { step, max } => (step.max(max), 1.0),
            Backoff::Exponential { first, factor, max } => (first.max(max), factor),
        };
        if self.attempts_max == 0 {
            return Err(Error::invalid("attempts_max must be at least 1"));
        }
        if !(1.0..=1000.0).contains(&factor) {
            return Err(Error::invalid("the factor of a back-off lies between 1 and 1000").with("factor", factor));
        }
        if longest > year {
            return Err(Error::invalid("a back-off waits no longer than 365 days"));
        }
        Ok(())
    }

    /// The wait after attempt number `attempt` (from 1) has been rejected. `random` is any number, drawn by the caller.
    ///
    /// ```
    /// # use postrider_core::retry::*; use std::time::Duration;
    /// let policy = RetryPolicy { jitter: Jitter::None, ..RetryPolicy::default() };
    /// assert_eq!(policy.wait(3, 0), Duration::from_millis(800));
    /// ```
    #[must_use]
    pub fn wait(&self, attempt: u32, random: u64) -> Duration {
        let before = attempt.saturating_sub(1);
        let wait = match self.backoff {
            Backoff::Fixed { wait } => wait,
            Backoff::Linear { step, max } => step.checked_mul(before.saturating_add(1)).unwrap_or(max).min(max),
            Backoff::Exponential { first, factor, max } => {
                let power = factor.powi(i32::try_from(before.min(1000)).unwrap_or(1000));
                Duration::try_from_secs_f64(first.as_secs_f64() * power).map_or(max, |wait| wait.min(max))
            }
        };
        self.jitter.apply(wait, random)
    }
}

impl Jitter {
    /// `wait` with its random part drawn from `random`.
    #[must_use]
    pub fn apply(self, wait: Duration, random: u64) -> Duration {
        let micros = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX / 2);
        let up_to = |most: u64| random % most.saturating_add(1).max(1);
        Duration::from_micros(match self {
            Self::None => micros,
            Self::Half => micros / 2 + up_to(micros - micros / 2),
            Self::Full => up_to(micros),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(backoff: Backoff) -> RetryPolicy {
        RetryPolicy { backoff, jitter: Jitter::None, attempts_max: 5 }
    }

    #[test]
    fn waits_grow_as_told_and_stop_at_the_longest() {
        let (s, max) = (Duration::from_secs(1), Duration::from_secs(5));
        let seconds = |p: &RetryPolicy| (1..=5).map(|a| p.wait(a, 9).as_secs()).collect::<Vec<_>>();
        assert_eq!(seconds(&exact(Backoff::Fixed { wait: s })), [1, 1, 1, 1, 1]);
        assert_eq!(seconds(&exact(Backoff::Linear { step: 2 * s, max })), [2, 4, 5, 5, 5]);
        let exponential = exact(Backoff::Exponential { first: s, factor: 2.0, max });
        assert_eq!(seconds(&exponential), [1, 2, 4, 5, 5]);
        assert_eq!(exponential.wait(u32::MAX, 0), max);
    }

    #[test]
    fn jitter_stays_inside_its_bounds() {
        let wait = Duration::from_millis(1000);
        for random in [0, 1, 499, 500, 1_000_001, u64::MAX] {
            let half = Jitter::Half.apply(wait, random);
            assert!(half >= wait / 2 && half <= wait);
            assert!(Jitter::Full.apply(wait, random) <= wait);
        }
    }

    #[test]
    fn impossible_policies_are_refused() {
        assert!(RetryPolicy { attempts_max: 0, ..RetryPolicy::default() }.check().is_err());
        let s = Duration::from_secs(1);
        assert!(exact(Backoff::Exponential { first: s, factor: 0.5, max: s }).check().is_err());
        assert!(exact(Backoff::Exponential { first: s, factor: f64::NAN, max: s }).check().is_err());
        assert!(RetryPolicy::default().check().is_ok());
    }
}
