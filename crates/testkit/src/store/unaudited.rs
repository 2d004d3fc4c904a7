//! What an operator does and its audit entry are one change: where the entry cannot be written, nothing happens.

use std::sync::Arc;

use postrider_core::{
    admin::{Actor, ParkedFilter, ReplaySpec},
    lease::ReplayFilter,
    limits::Limits,
};

use super::{
    Fixture,
    owner::{Owner, dead, keyed, route},
};

/// Takes every action of an operator on a store whose audit record is broken by `break_audit`: each must fail and change
/// nothing. How a record is broken only the store's own tests know.
///
/// # Panics
/// If an action succeeds, or leaves something behind.
pub async fn nothing_changes_unaudited(store: Arc<dyn Fixture>, break_audit: impl AsyncFnOnce()) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    owner.park(&*store, vec![(keyed("a"), dead(true)), (keyed("b"), dead(true))]).await;
    let (admin, actor) = (store.admin(), Actor::new("anna"));
    let all = ParkedFilter::default();
    let spec = ReplaySpec { route: "r".into(), to: None, filter: ReplayFilter::default(), rate: None };
    let replay = admin.replay(&spec, &actor).await.expect("replay");
    let look = async || {
        let overview = admin.overview().await.expect("overview");
        let routes: Vec<_> = overview.routes.iter().map(|route| (route.route.clone(), route.paused.clone())).collect();
        let leaving: Vec<_> = overview.nodes.iter().map(|node| (node.id, node.leaving)).collect();
        let parked = admin.parked(&all, None, 10).await.expect("parked");
        let parked: Vec<_> = parked.iter().map(|row| (row.ordinal, row.state)).collect();
        (overview.records, routes, leaving, parked)
    };
    let before = look().await;
    break_audit().await;
    let batch = Limits::default().check(vec![keyed("c")]).expect("a batch");
    let outcomes = [
        ("redrive", admin.redrive(&all, &actor).await.map(drop)),
        ("discard", admin.discard(&all, &actor).await.map(drop)),
        ("pause", admin.pause("r", &actor).await),
        ("replay", admin.replay(&spec, &actor).await.map(drop)),
        ("cancel", admin.cancel_replay(&replay, &actor).await),
        ("forget", admin.drop_route("r", &actor).await),
        ("drain", admin.drain_node(owner.node.id, &actor).await),
        ("enqueue", admin.enqueue(batch, Some(&actor)).await),
    ];
    for (action, outcome) in outcomes {
        assert!(outcome.is_err(), "{action} leaves no entry and must fail");
    }
    assert_eq!(look().await, before, "what cannot be recorded does not happen");
}
