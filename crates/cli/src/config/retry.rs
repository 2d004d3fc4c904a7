//! `[route.retry]`: how often a rejected message is tried, and how long to wait in between.

use std::time::Duration;

use postrider::core::retry::{Backoff, Jitter, RetryPolicy};

use super::reader::{Section, decimal, number, one_of, written};
use crate::values;

#[derive(Clone, Copy)]
enum Shape {
    Fixed,
    Linear,
    Exponential,
}

const SHAPES: &[(&str, Shape)] =
    &[("fixed", Shape::Fixed), ("linear", Shape::Linear), ("exponential", Shape::Exponential)];
const JITTERS: &[(&str, Jitter)] = &[("none", Jitter::None), ("half", Jitter::Half), ("full", Jitter::Full)];

/// Reads the policy of a route; what is left out keeps its default. Which durations there are depends on the shape, so
/// that a `factor` beside a fixed back-off is a mistake that is told, not a value that is silently without effect.
pub(super) fn read(route: &mut Section<'_, '_>) -> RetryPolicy {
    let defaults = RetryPolicy::default();
    let Some(mut section) = route.section("retry") else { return defaults };
    let attempts_max = section.get("attempts_max", number(1, u32::MAX)).unwrap_or(defaults.attempts_max);
    let jitter = section.get("jitter", one_of(JITTERS)).unwrap_or(defaults.jitter);
    let shape = section.get("backoff", one_of(SHAPES)).unwrap_or(Shape::Exponential);
    let mut wait = |key, millis| section.get(key, written(values::duration)).unwrap_or(Duration::from_millis(millis));
    let backoff = match shape {
        Shape::Fixed => Backoff::Fixed { wait: wait("wait", 1_000) },
        Shape::Linear => Backoff::Linear { step: wait("step", 1_000), max: wait("max", 300_000) },
        Shape::Exponential => {
            let (first, max) = (wait("first", 200), wait("max", 300_000));
            Backoff::Exponential { first, factor: section.get("factor", decimal).unwrap_or(2.0), max }
        }
    };
    let policy = RetryPolicy { attempts_max, backoff, jitter };
    if let Err(error) = policy.check() {
        section.object("backoff", error.to_string());
    }
    section.close();
    policy
}
