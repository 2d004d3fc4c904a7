//! Cases: the hint that something may have changed. It may come late or never, so only its common case is shown: a
//! commit through this very store wakes whoever waits.

use std::{sync::Arc, time::Duration};

use super::{
    Fixture,
    owner::{Owner, route, several},
};

/// Long enough for the slowest machine; a store that gives hints answers in milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// A commit wakes a waiter.
pub async fn a_commit_wakes_a_waiter(store: Arc<dyn Fixture>) {
    Owner::of(&*store, &route("r")).await;
    let log = store.log();
    for round in 0..5 {
        let hint = log.hint();
        store.commit(several(1)).await;
        let woken = tokio::time::timeout(PATIENCE, hint).await;
        assert!(woken.is_ok(), "round {round}: a commit should wake a relay that waits for a hint");
    }
}

/// A commit wakes every waiter, not just one.
pub async fn a_commit_wakes_every_waiter(store: Arc<dyn Fixture>) {
    Owner::of(&*store, &route("r")).await;
    let log = store.log();
    let hints: Vec<_> = (0..4).map(|_| log.hint()).collect();
    store.commit(several(1)).await;
    for hint in hints {
        let woken = tokio::time::timeout(PATIENCE, hint).await;
        assert!(woken.is_ok(), "a commit should wake every waiter: each lane waits for itself");
    }
}

/// A hint that nobody waits for any more does no harm.
pub async fn a_dropped_hint_does_no_harm(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let log = store.log();
    drop(log.hint());
    let given_up = tokio::time::timeout(Duration::from_millis(5), log.hint()).await;
    drop(given_up);
    let hint = log.hint();
    store.commit(several(2)).await;
    assert!(tokio::time::timeout(PATIENCE, hint).await.is_ok(), "later waiters are woken all the same");
    assert_eq!(owner.ids().await.len(), 2);
}
