//! Cases: retention. Nothing undelivered is ever deleted by a timer.

use std::{sync::Arc, time::Duration};

use postrider_core::{
    admin::{Actor, ParkedFilter, ReplaySpec},
    lease::{ReplayFilter, RouteSpec},
    log::{Retention, Settlement},
};

use super::{
    Fixture,
    owner::{HOUR, LONGER, Owner, SHORT, WHOLE, dead, ids_of, keyed, node, route, several},
};

/// Keeps next to nothing.
const BRIEFLY: Retention = Retention::by_age(SHORT);

/// Records that all have passed and that are old enough are removed, and only those.
pub async fn what_all_have_passed_is_removed(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    store.commit(several(5)).await;
    owner.read(WHOLE).await;
    owner.advance().await;
    let waiting = several(3);
    store.commit(waiting.clone()).await;
    store.pass(LONGER).await;
    let purged = purge_all(&*store, BRIEFLY).await;
    // A store may remove whole segments only, so it may remove less than it could.
    assert!(purged <= 5, "only the five delivered records may be removed, {purged} were");
    assert_eq!(records(&*store).await, 8 - purged, "what purge says it removed is gone, and nothing else");
    assert_eq!(owner.ids().await, ids_of(&waiting), "what the route has not passed must not be removed");
}

/// The slowest reader decides.
pub async fn nothing_is_removed_that_one_route_has_not_passed(store: Arc<dyn Fixture>) {
    let mut fast = Owner::of(&*store, &route("fast")).await;
    let mut slow = Owner::of(&*store, &route("slow")).await;
    let sent = several(6);
    store.commit(sent.clone()).await;
    fast.read(WHOLE).await;
    fast.advance().await;
    let mark = (slow.page(WHOLE).await.marks)(2);
    slow.settle(Settlement { advance: Some(mark.clone()), ..Settlement::default() }).await.expect("settle");
    store.pass(LONGER).await;
    let purged = purge_all(&*store, BRIEFLY).await;
    assert!(purged <= 2, "the slow route has passed two records, {purged} were removed");
    slow.cursor = mark;
    assert_eq!(slow.ids().await, ids_of(&sent[2..]), "a slow route must find every record that it has not passed");
}

/// A lane that lags counts like a route that lags.
pub async fn the_slowest_lane_counts(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &RouteSpec { lanes: 2, ..route("r") }).await;
    store.commit(several(10)).await;
    let ahead = owner.read(WHOLE).await.len();
    owner.advance().await;
    store.pass(LONGER).await;
    assert_eq!(purge_all(&*store, BRIEFLY).await, 0, "the other lane has passed nothing");
    let mut behind = Owner::take(&*store, &owner.node, "r", 1).await;
    assert_eq!(behind.read(WHOLE).await.len(), 10 - ahead);
}

/// A paused route, and one that nobody owns, still counts.
pub async fn paused_and_unowned_routes_count(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let node = node(&["paused", "unowned"], HOUR);
    store.log().register(&node, &[route("paused"), route("unowned")]).await.expect("register");
    store.admin().pause("paused", &Actor::new("operator")).await.expect("pause");
    store.commit(several(4)).await;
    owner.read(WHOLE).await;
    owner.advance().await;
    store.log().retire(node.id).await.expect("retire");
    store.pass(LONGER).await;
    assert_eq!(purge_all(&*store, BRIEFLY).await, 0, "a route counts whether or not anybody serves it");
    for name in ["paused", "unowned"] {
        let mut late = Owner::take(&*store, &owner.node, name, 0).await;
        assert_eq!(late.read(WHOLE).await.len(), 4, "route {name} must find everything");
    }
}

/// Nothing is removed before its time, and nothing at all when it is to be kept for ever.
pub async fn nothing_young_is_removed(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    store.commit(several(4)).await;
    owner.read(WHOLE).await;
    owner.advance().await;
    store.pass(LONGER).await;
    for keep in [Some(HOUR), None] {
        let purged = purge_all(&*store, Retention { keep, records_max: None }).await;
        assert_eq!(purged, 0, "records younger than {keep:?} (None: for ever) must not be removed");
    }
    assert_eq!(records(&*store).await, 4);
}

/// Of what all have passed, no more than the newest are kept; what one has not passed stays, however many there are.
pub async fn no_more_is_kept_than_was_asked_for(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    store.commit(several(6)).await;
    owner.read(WHOLE).await;
    owner.advance().await;
    let waiting = several(3);
    store.commit(waiting.clone()).await;
    assert_eq!(purge_all(&*store, Retention::by_count(9)).await, 0, "there are nine");
    let purged = purge_all(&*store, Retention::by_count(5)).await;
    assert!(purged <= 4, "five are to be kept, {purged} of nine were removed");
    let purged = purged + purge_all(&*store, Retention::by_count(0)).await;
    assert!(purged <= 6, "three are undelivered, {purged} of nine were removed");
    assert_eq!(records(&*store).await, 9 - purged);
    assert_eq!(owner.ids().await, ids_of(&waiting), "what the route has not passed must not be removed");
}

/// While no route is known, nothing is removed: a relay that never started has delivered nothing.
pub async fn without_a_route_nothing_is_removed(store: Arc<dyn Fixture>) {
    let sent = several(4);
    store.commit(sent.clone()).await;
    store.pass(LONGER).await;
    assert_eq!(purge_all(&*store, Retention::by_age(Duration::ZERO)).await, 0, "no route is known");
    let mut owner = Owner::of(&*store, &route("r")).await;
    assert_eq!(owner.ids().await, ids_of(&sent));
}

/// A parked row holds a copy, so it outlives its record.
pub async fn parked_copies_survive(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let envelope = keyed("a");
    owner.park(&*store, vec![(envelope.clone(), dead(true))]).await;
    store.pass(LONGER).await;
    purge_all(&*store, BRIEFLY).await;
    let rows = store.admin().parked(&ParkedFilter::default(), None, 10).await.expect("parked");
    assert_eq!(rows.iter().map(|row| &row.envelope).collect::<Vec<_>>(), [&envelope], "a parked row is a copy");
}

/// An unfinished replay counts; a finished or cancelled one does not.
pub async fn an_unfinished_replay_counts(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let sent = several(4);
    store.commit(sent.clone()).await;
    owner.read(WHOLE).await;
    owner.advance().await;
    let actor = Actor::new("operator");
    let spec = ReplaySpec { route: "r".into(), to: None, filter: ReplayFilter::default(), rate: None };
    let name = store.admin().replay(&spec, &actor).await.expect("replay");
    store.pass(LONGER).await;
    assert_eq!(purge_all(&*store, BRIEFLY).await, 0, "a replay still has these to read");
    let mut replay = Owner::take(&*store, &owner.node, &name, 0).await;
    assert_eq!(replay.ids().await, ids_of(&sent));
    store.admin().cancel_replay(&name, &actor).await.expect("cancel");
    let purged = purge_all(&*store, BRIEFLY).await;
    assert_eq!(records(&*store).await, 4 - purged);
}

/// A route that begins at the oldest record begins with the oldest that is still kept.
pub async fn a_new_route_begins_with_the_oldest_kept(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    store.commit(several(5)).await;
    owner.read(WHOLE).await;
    owner.advance().await;
    let kept = several(2);
    store.commit(kept.clone()).await;
    store.pass(LONGER).await;
    let purged = purge_all(&*store, BRIEFLY).await;
    let mut late = Owner::of(&*store, &route("late")).await;
    let read = late.ids().await;
    assert_eq!(read.len() as u64, 7 - purged, "a new route reads what is kept");
    assert!(read.ends_with(&ids_of(&kept)));
    assert_eq!(owner.ids().await, ids_of(&kept), "purging does not move cursors");
}

/// A forgotten route holds nothing up any more.
pub async fn a_forgotten_route_holds_nothing_up(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    Owner::of(&*store, &route("old")).await;
    store.commit(several(4)).await;
    owner.read(WHOLE).await;
    owner.advance().await;
    store.pass(LONGER).await;
    assert_eq!(purge_all(&*store, BRIEFLY).await, 0, "the old route has passed nothing");
    store.admin().drop_route("old", &Actor::new("operator")).await.expect("forget");
    let purged = purge_all(&*store, BRIEFLY).await;
    assert_eq!(records(&*store).await, 4 - purged);
}

/// Purges until nothing is left to purge, as a relay does over time.
async fn purge_all(store: &dyn Fixture, retention: Retention) -> u64 {
    let mut purged = 0;
    // Ends with the first zero; a store that purges for ever is told so.
    for _ in 0..1_000 {
        match store.log().purge(retention).await.expect("purge") {
            0 => return purged,
            some => purged += some,
        }
    }
    panic!("purge must answer zero when nothing is left to remove");
}

async fn records(store: &dyn Fixture) -> u64 {
    store.admin().overview().await.expect("overview").records
}
