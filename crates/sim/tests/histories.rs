//! A few histories in every test run. The workshop runs tens of thousands of them, optimised.

use postrider_sim::{
    history,
    plants::{ALL, Plant},
};

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in 1..=10 {
        let (once, again) = (history::run(seed, Plant::NONE), history::run(seed, Plant::NONE));
        assert_eq!(once.trace, again.trace, "seed {seed}");
    }
}

#[test]
fn another_seed_is_another_history() {
    assert_ne!(history::run(1, Plant::NONE).trace, history::run(2, Plant::NONE).trace);
}

#[test]
fn the_promises_hold_through_a_hundred_histories() {
    let mut totals = postrider_sim::check::Totals::default();
    for seed in 1..=100 {
        totals.add(&history::run(seed, Plant::NONE).totals);
    }
    // A history in which nothing happens proves nothing.
    assert!(totals.committed > 1000 && totals.disturbances > 100, "{totals:?}");
    assert!(totals.duplicates > 0 && totals.dead > 0 && totals.stale_writes > 0 && totals.purged > 0, "{totals:?}");
}

#[test]
fn there_are_at_least_fifteen_mistakes_to_plant_and_each_has_a_name_of_its_own() {
    let names: std::collections::BTreeSet<_> = ALL.iter().map(|(name, _)| name).collect();
    assert!(names.len() >= 15 && names.len() == ALL.len());
    for (name, plant) in ALL {
        assert_eq!(plant.name(), *name);
    }
}
