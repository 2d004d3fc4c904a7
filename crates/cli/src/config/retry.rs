//! `[route.retry]`: how often a rejected message is tried, and how long to wait in between.

use postrider::core::retry::{Backoff, Jitter, RetryPolicy};

use super::reader::Section;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Fixed,
    Linear,
    Exponential,
}

const SHAPES: &[(&str, Shape)] =
    &[("fixed", Shape::Fixed), ("linear", Shape::Linear), ("exponential", Shape::Exponential)];
/// What belongs to which shapes.
const OWN: &[(&str, &[Shape])] = &[
    ("wait", &[Shape::Fixed]),
    ("step", &[Shape::Linear]),
    ("first", &[Shape::Exponential]),
    ("factor", &[Shape::Exponential]),
    ("max", &[Shape::Linear, Shape::Exponential]),
];
const JITTERS: &[(&str, Jitter)] = &[("none", Jitter::None), ("half", Jitter::Half), ("full", Jitter::Full)];

/// Reads the policy of a route; what is left out keeps its default. Which durations there are depends on the shape, so
/// that a `factor` beside a fixed back-off is a mistake that is told, not a value that is silently without effect.
pub(super) fn read(route: &mut Section<'_, '_>) -> RetryPolicy {
    let mut section = route.section_or_empty("retry");
    let attempts_max = section.number_or_default("attempts_max");
    let jitter = section.word_or_default("jitter", JITTERS);
    let shape = section.word_or_default("backoff", SHAPES);
    for (key, _) in OWN.iter().filter(|(_, shapes)| !shapes.contains(&shape)) {
        section.out_of_place(key, misplaced(key, shape));
    }
    let backoff = match shape {
        Shape::Fixed => Backoff::Fixed { wait: section.duration_or_default("wait") },
        Shape::Linear => {
            Backoff::Linear { step: section.duration_or_default("step"), max: section.duration_or_default("max") }
        }
        Shape::Exponential => Backoff::Exponential {
            first: section.duration_or_default("first"),
            factor: section.decimal_or_default("factor"),
            max: section.duration_or_default("max"),
        },
    };
    let policy = RetryPolicy { attempts_max, backoff, jitter };
    if let Err(error) = policy.check() {
        section.object("backoff", error.to_string());
    }
    section.close();
    policy
}

/// Says where the key belongs, and what there is in its place.
fn misplaced(key: &str, given: Shape) -> String {
    let name = |shape: Shape| SHAPES.iter().find(|(_, other)| *other == shape).map_or("", |(name, _)| name);
    let (mut owners, mut own) = (Vec::new(), Vec::new());
    for (other, shapes) in OWN {
        if *other == key {
            owners.extend(shapes.iter().map(|shape| format!("`backoff = \"{}\"`", name(*shape))));
        }
        if shapes.contains(&given) {
            own.push(format!("`{other}`"));
        }
    }
    format!("goes with {}; here it is \"{}\", which has {}", owners.join(" or "), name(given), own.join(", "))
}
