//! Cases: delivering again what was delivered, with a reader of its own.

use std::sync::Arc;

use postrider_core::{
    ErrorKind,
    admin::{Actor, Hindrance, ParkedFilter, ReplaySpec, StoreAdmin, Undelivered},
    envelope::{Envelope, MessageId},
    lease::{ReplayFilter, RouteSpec},
    log::PageLimit,
    parked::Parked,
    topic::TopicFilter,
};

use super::{
    Fixture,
    owner::{HOUR, LONGER, Owner, WHOLE, dead, ids, ids_of, keyed, keyless, lane, node, retrying, route, several},
};

/// A replay reads what the log had when it began, marked with its name, and ends there.
pub async fn a_replay_reads_what_the_log_had(store: Arc<dyn Fixture>) {
    let mut live = Owner::of(&*store, &route("r")).await;
    let old = several(5);
    store.commit(old.clone()).await;
    live.ids().await;
    live.advance().await;
    let name = begin(&*store, ReplayFilter::default()).await;
    store.commit(several(2)).await;
    let mut replay = take(&*store, &name).await;
    let about = replay.lease.reader.replay.clone().expect("the lease of a replay says so");
    assert_eq!(&*about.of, "r", "the lease of a replay names the route whose publisher it uses");
    let mut read = Vec::new();
    // Five records in pages of two: ends with the third page.
    for _ in 0..3 {
        let page = replay.page(PageLimit { records: 2, ..WHOLE }).await;
        for record in page.records.iter() {
            assert_eq!(record.replay.as_ref(), Some(&name), "a replayed record carries the replay's name");
        }
        read.extend(ids(page.records.iter()));
        let last = read.len() == old.len();
        assert!(last || !page.ended, "a replay does not end before its last record");
        replay.cursor = page.end;
    }
    assert_eq!(read, ids_of(&old), "a replay reads the records that the log had when it began, and no later ones");
    let page = replay.page(WHOLE).await;
    assert!(page.ended && !page.more && page.records.is_empty(), "behind its last record a replay has ended: {page:?}");
}

/// A replay of an empty log, or of nothing that matches, has ended at once.
pub async fn a_replay_of_nothing_ends(store: Arc<dyn Fixture>) {
    Owner::of(&*store, &route("r")).await;
    let empty = begin(&*store, ReplayFilter::default()).await;
    store.commit(several(3)).await;
    let filter = ReplayFilter { key: Some("nobody".into()), ..ReplayFilter::default() };
    let unmatched = begin(&*store, filter).await;
    assert_ne!(empty, unmatched, "every replay has a name of its own");
    for name in [empty, unmatched] {
        let mut replay = take(&*store, &name).await;
        assert_eq!(replay.ids().await, []);
        assert!(replay.page(WHOLE).await.ended, "a replay that has nothing more to read has ended");
    }
}

/// The live cursor does not move, and the live route reads nothing twice.
pub async fn a_replay_leaves_the_live_cursor_alone(store: Arc<dyn Fixture>) {
    let mut live = Owner::of(&*store, &route("r")).await;
    store.commit(several(4)).await;
    live.ids().await;
    live.advance().await;
    let name = begin(&*store, ReplayFilter::default()).await;
    let mut replay = take(&*store, &name).await;
    replay.ids().await;
    replay.advance().await;
    let resumed = store.log().resume(&live.lease).await.expect("resume");
    assert_eq!(resumed.cursor, live.cursor, "a replay must not move the live cursor");
    let new = several(1);
    store.commit(new.clone()).await;
    let page = live.page(WHOLE).await;
    assert_eq!(ids(page.records.iter()), ids_of(&new));
    assert!(!page.ended && page.records[0].replay.is_none(), "the live route is no replay");
    let resumed = store.log().resume(&replay.lease).await.expect("resume");
    assert_eq!(resumed.cursor, replay.cursor, "a replay keeps a cursor of its own");
}

/// A replay chooses by time, key, name and topic, and never beyond the topics of its route.
pub async fn a_replay_chooses(store: Arc<dyn Fixture>) {
    let topics = TopicFilter::new(["orders.*"]).expect("a good filter");
    Owner::of(&*store, &RouteSpec { topics, ..route("r") }).await;
    let early = vec![keyed("a"), keyed("b"), Envelope::new("orders.shipped", "order.shipped", "").with_key("a")];
    store.commit(early.clone()).await;
    store.pass(LONGER).await;
    let between = store.now().await;
    store.pass(LONGER).await;
    let late = vec![keyed("a"), Envelope::new("payments", "payment.made", "").with_key("a"), keyless()];
    store.commit(late.clone()).await;
    let all = ReplayFilter::default;
    let pattern = |pattern: &str| Some(TopicFilter::new([pattern]).expect("a good filter"));
    let cases = [
        (all(), vec![&early[0], &early[1], &early[2], &late[0], &late[2]]),
        (ReplayFilter { since: Some(between), ..all() }, vec![&late[0], &late[2]]),
        (ReplayFilter { until: Some(between), ..all() }, vec![&early[0], &early[1], &early[2]]),
        (ReplayFilter { key: Some("a".into()), ..all() }, vec![&early[0], &early[2], &late[0]]),
        (ReplayFilter { name: Some("order.shipped".into()), ..all() }, vec![&early[2]]),
        (ReplayFilter { topics: pattern("orders.placed"), ..all() }, vec![&early[0], &early[1], &late[0], &late[2]]),
        (ReplayFilter { topics: pattern("payments"), ..all() }, vec![]),
        (ReplayFilter { key: Some("a".into()), since: Some(between), ..all() }, vec![&late[0]]),
    ];
    for (filter, expected) in cases {
        let mut replay = take(&*store, &begin(&*store, filter.clone()).await).await;
        let expected: Vec<MessageId> = expected.into_iter().map(|envelope| envelope.id).collect();
        assert_eq!(replay.ids().await, expected, "what {filter:?} chooses");
    }
}

/// Overview and roster show an unfinished replay, with the route that it belongs to.
pub async fn a_replay_is_shown(store: Arc<dyn Fixture>) {
    let live = Owner::of(&*store, &RouteSpec { lanes: 2, ..route("r") }).await;
    store.commit(several(3)).await;
    let spec = ReplaySpec { route: "r".into(), to: None, filter: ReplayFilter::default(), rate: Some(50) };
    let name = store.admin().replay(&spec, &Actor::new("operator")).await.expect("replay");
    let overview = store.admin().overview().await.expect("overview");
    let shown = overview.routes.iter().find(|status| status.route == name).expect("the overview shows a replay");
    assert_eq!(shown.replay_of.as_deref(), Some("r"));
    assert_eq!(shown.pending, 3, "the overview tells how much a replay has left");
    let roster = store.log().heartbeat(&live.node).await.expect("heartbeat");
    let lanes: Vec<_> = roster.lanes.iter().filter(|standing| standing.lane.route == name).collect();
    assert!(!lanes.is_empty(), "the roster lists the lanes of a replay");
    assert!(lanes.iter().all(|standing| &*standing.served_by == "r"), "a replay is served by its route's publisher");
    let replay = take(&*store, &name).await;
    assert_eq!(
        replay.lease.reader.replay.as_ref().and_then(|replay| replay.rate),
        Some(50),
        "the lease carries the rate"
    );
}

/// A replay waits while its route is paused: both publish to the same destination. Pausing the replay alone stops no route.
pub async fn a_paused_route_pauses_its_replays(store: Arc<dyn Fixture>) {
    let live = Owner::of(&*store, &route("r")).await;
    store.log().register(&live.node, &[route("other")]).await.expect("register");
    let name = begin(&*store, ReplayFilter::default()).await;
    let (admin, actor) = (store.admin(), Actor::new("operator"));
    admin.pause("r", &actor).await.expect("pause");
    let both: Vec<Arc<str>> = vec!["r".into(), Arc::clone(&name)];
    assert_eq!(paused(&*store, &live).await, both, "pausing a route pauses its replays, and no other route");
    admin.resume_route("r", &actor).await.expect("resume");
    assert_eq!(paused(&*store, &live).await, [], "resuming a route lets its replays go on");
    admin.pause(&name, &actor).await.expect("pause a replay");
    assert_eq!(paused(&*store, &live).await, [name], "pausing a replay leaves its route alone");
}

/// A replay delivers what a route has read; it has no replays of its own.
pub async fn a_replay_cannot_be_replayed(store: Arc<dyn Fixture>) {
    Owner::of(&*store, &route("r")).await;
    let name = begin(&*store, ReplayFilter::default()).await;
    let spec = ReplaySpec { route: name.to_string(), to: None, filter: ReplayFilter::default(), rate: None };
    let refused = store.admin().replay(&spec, &Actor::new("operator")).await.expect_err("not a route");
    assert_eq!(refused.kind(), ErrorKind::Invalid, "a replay of a replay is refused as invalid: {refused:?}");
    assert_eq!(store.admin().audit(10).await.expect("audit").len(), 1, "what was refused leaves no audit entry");
}

/// A replay may go through another route's publisher: it reads what its route reads, and stops and goes with the other.
pub async fn a_replay_can_go_to_another_route(store: Arc<dyn Fixture>) {
    let orders = TopicFilter::new(["orders.*"]).expect("a good pattern");
    let live = Owner::of(&*store, &RouteSpec { topics: orders, ..route("r") }).await;
    let nothing = TopicFilter::new(["nothing"]).expect("a good pattern");
    store.log().register(&live.node, &[RouteSpec { topics: nothing, ..route("other") }]).await.expect("register");
    let envelope = keyed("a");
    store.commit(vec![envelope.clone(), Envelope::new("payments", "n", "")]).await;
    let spec = |to: &str| ReplaySpec {
        route: "r".into(),
        to: Some(to.to_owned()),
        filter: ReplayFilter::default(),
        rate: None,
    };
    let (admin, actor) = (store.admin(), Actor::new("operator"));
    let name = admin.replay(&spec("other"), &actor).await.expect("replay");
    let roster = store.log().heartbeat(&live.node).await.expect("heartbeat");
    let served_by: Vec<_> = roster.lanes.iter().filter(|l| l.lane.route == name).map(|l| &*l.served_by).collect();
    assert_eq!(served_by, ["other"], "the other route's publisher serves it");
    admin.pause("r", &actor).await.expect("pause");
    assert_eq!(paused(&*store, &live).await, ["r".into()], "it does not stop with the route whose records it reads");
    admin.pause("other", &actor).await.expect("pause");
    assert!(paused(&*store, &live).await.contains(&name), "it stops with the one that publishes");
    let mut replay = Owner::take(&*store, &node(&["other"], HOUR), &name, 0).await;
    assert_eq!(replay.ids().await, [envelope.id], "it reads what its own route reads");
    let unknown = admin.replay(&spec("unknown"), &actor).await.expect_err("no such route");
    assert_eq!(unknown.kind(), ErrorKind::NotFound, "{unknown:?}");
    let circle = admin.replay(&spec(&name), &actor).await.expect_err("not a route");
    assert_eq!(circle.kind(), ErrorKind::Invalid, "{circle:?}");
}

/// The rows of a replay are its own, also for messages that the live route has parked.
pub async fn a_replay_parks_for_itself(store: Arc<dyn Fixture>) {
    let mut live = Owner::of(&*store, &route("r")).await;
    let envelope = keyed("a");
    live.park(&*store, vec![(envelope.clone(), dead(true))]).await;
    let mut replay = take(&*store, &begin(&*store, ReplayFilter::default()).await).await;
    park_all(&mut replay, retrying(std::time::Duration::ZERO)).await;
    assert!(live.due().await.lines.is_empty(), "a replay's row is not due in its route");
    let due = replay.due().await;
    let record = &due.lines.first().expect("the replay's own row is due").rows[0].record;
    assert_eq!(record.envelope, envelope);
    assert_eq!(record.replay.as_ref(), Some(&replay.lease.lane.route), "a parked record still knows its replay");
}

/// A replay is over only when no row of it waits for anything but an operator.
pub async fn a_replay_finishes_when_nothing_waits(store: Arc<dyn Fixture>) {
    let live = Owner::of(&*store, &route("r")).await;
    store.commit(vec![keyed("a"), keyed("a")]).await;
    let name = begin(&*store, ReplayFilter::default()).await;
    let mut replay = take(&*store, &name).await;
    park_all(&mut replay, Parked::Held).await;
    let rows = rows_of(&*store, &name).await;
    let log = store.log();
    for state in [retrying(HOUR), Parked::Scheduled { after: HOUR }, dead(true)] {
        replay.change(vec![(rows[0], state.clone())]).await;
        let over = log.finish(&replay.lease).await.expect("finish");
        assert!(!over, "a replay with rows that are {} and held is not over", state.state());
    }
    replay.remove(vec![rows[1]]).await;
    assert!(log.finish(&replay.lease).await.expect("finish"), "what waits for an operator alone does not hold it up");
    let roster = log.heartbeat(&live.node).await.expect("heartbeat");
    assert!(roster.lanes.iter().all(|standing| standing.lane.route != name), "a finished replay has no lanes");
    assert!(log.acquire(&lane(&name, 0), &live.node).await.expect("acquire").is_none());
    assert_eq!(rows_of(&*store, &name).await.len(), 1, "its dead row stays for the operator");
}

/// A dead row of a replay that has ended can be redriven: the replay goes on for its sake, and ends again.
pub async fn a_redriven_row_revives_its_replay(store: Arc<dyn Fixture>) {
    let live = Owner::of(&*store, &route("r")).await;
    store.commit(vec![keyed("a")]).await;
    let name = begin(&*store, ReplayFilter::default()).await;
    let mut replay = take(&*store, &name).await;
    park_all(&mut replay, dead(true)).await;
    assert!(store.log().finish(&replay.lease).await.expect("finish"));
    let filter = ParkedFilter { route: Some(name.to_string()), ..ParkedFilter::default() };
    let redriven = store.admin().redrive(&filter, &Actor::new("operator")).await.expect("redrive");
    assert_eq!(redriven, 1);
    let roster = store.log().heartbeat(&live.node).await.expect("heartbeat");
    assert!(roster.lanes.iter().any(|standing| standing.lane.route == name), "nobody would deliver it");
    let mut revived = take(&*store, &name).await;
    assert_eq!(revived.due().await.lines.len(), 1, "it is to be delivered");
    assert!(revived.read(WHOLE).await.is_empty(), "what was delivered already is not");
    revived.remove(rows_of(&*store, &name).await).await;
    assert!(store.log().finish(&revived.lease).await.expect("finish"), "then it is over again");
}

/// What a replay has given up goes with the route that publishes for it, also when the replay has ended and is in no overview:
/// so it keeps that route from being forgotten.
pub async fn what_a_replay_has_given_up_keeps_its_route(store: Arc<dyn Fixture>) {
    let mut live = Owner::of(&*store, &route("r")).await;
    let mut other = Owner::of(&*store, &route("other")).await;
    store.commit(several(2)).await;
    for owner in [&mut live, &mut other] {
        owner.ids().await;
        owner.advance().await;
    }
    let (admin, actor) = (store.admin(), Actor::new("operator"));
    let spec = ReplaySpec { route: "r".into(), to: Some("other".into()), filter: ReplayFilter::default(), rate: None };
    let name = admin.replay(&spec, &actor).await.expect("begin a replay");
    let mut replay = Owner::take(&*store, &node(&["other"], HOUR), &name, 0).await;
    park_all(&mut replay, dead(false)).await;
    for owner in [live, other] {
        store.log().retire(owner.node.id).await.expect("retire");
    }
    let kept = Some(Hindrance::Undelivered { pending: 0, parked: 2 });
    assert_eq!(hindrance(&*admin, "other").await, kept, "of a replay that is under way");
    assert!(store.log().finish(&replay.lease).await.expect("finish"));
    let groups = admin.dead_groups().await.expect("groups");
    assert_eq!(groups[0].replay_of.as_deref(), Some("other"), "{groups:?}");
    assert_eq!(hindrance(&*admin, "other").await, kept, "of a replay that has ended");
    let needed = admin.forget_route("other", Undelivered::Keep, &actor).await.expect_err("dead rows wait for somebody");
    assert_eq!(needed.kind(), ErrorKind::Denied, "{needed:?}");
    assert_eq!(hindrance(&*admin, "r").await, None, "the route whose records it read does not take them along");
    admin.forget_route("other", Undelivered::GiveUp, &actor).await.expect("forget");
    assert!(rows_of(&*store, &name).await.is_empty(), "they go with the route");
}

async fn hindrance(admin: &dyn StoreAdmin, route: &str) -> Option<Hindrance> {
    let dead = admin.dead_groups().await.expect("groups");
    admin.overview().await.expect("overview").hindrance(route, &dead)
}

/// A stale owner cannot finish a replay.
pub async fn a_stale_owner_cannot_finish(store: Arc<dyn Fixture>) {
    Owner::of(&*store, &route("r")).await;
    let name = begin(&*store, ReplayFilter::default()).await;
    let former = take(&*store, &name).await;
    store.log().release(&former.lease).await.expect("release");
    take(&*store, &name).await;
    let error = store.log().finish(&former.lease).await.expect_err("a stale owner is fenced");
    assert!(error.is_fenced(), "a stale owner is answered with Fenced, not with {error:?}");
}

/// A route is never finished.
pub async fn a_route_is_never_finished(store: Arc<dyn Fixture>) {
    let live = Owner::of(&*store, &route("r")).await;
    let finished = store.log().finish(&live.lease).await;
    assert!(!matches!(finished, Ok(true)), "only replays end");
    let roster = store.log().heartbeat(&live.node).await.expect("heartbeat");
    assert_eq!(roster.lanes.len(), 1, "the lane of a route is never removed by `finish`");
}

/// A cancelled replay is gone with its rows, and its owner is fenced.
pub async fn a_cancelled_replay_is_gone(store: Arc<dyn Fixture>) {
    let live = Owner::of(&*store, &route("r")).await;
    store.commit(several(2)).await;
    let name = begin(&*store, ReplayFilter::default()).await;
    let mut replay = take(&*store, &name).await;
    park_all(&mut replay, retrying(HOUR)).await;
    store.admin().cancel_replay(&name, &Actor::new("operator")).await.expect("cancel");
    assert!(rows_of(&*store, &name).await.is_empty(), "a cancelled replay leaves no rows");
    let roster = store.log().heartbeat(&live.node).await.expect("heartbeat");
    assert!(roster.lanes.iter().all(|standing| standing.lane.route != name), "a cancelled replay has no lanes");
    let late = replay.settle(postrider_core::log::Settlement::default()).await.expect_err("its owner is fenced");
    assert!(late.is_fenced(), "the owner of a cancelled replay is answered with Fenced, not with {late:?}");
}

async fn begin(store: &dyn Fixture, filter: ReplayFilter) -> Arc<str> {
    let spec = ReplaySpec { route: "r".into(), to: None, filter, rate: None };
    store.admin().replay(&spec, &Actor::new("operator")).await.expect("begin a replay")
}

async fn take(store: &dyn Fixture, name: &str) -> Owner {
    Owner::take(store, &node(&["r"], HOUR), name, 0).await
}

/// The routes and replays whose lanes the roster shows as paused.
async fn paused(store: &dyn Fixture, live: &Owner) -> Vec<Arc<str>> {
    let roster = store.log().heartbeat(&live.node).await.expect("heartbeat");
    roster.lanes.iter().filter(|standing| standing.paused).map(|standing| Arc::clone(&standing.lane.route)).collect()
}

async fn park_all(replay: &mut Owner, state: Parked) {
    let park = replay.read(WHOLE).await.into_iter().map(|record| (record, state.clone())).collect();
    let advance = Some(replay.cursor.clone());
    let settlement = postrider_core::log::Settlement { advance, park, ..Default::default() };
    replay.settle(settlement).await.expect("park what a replay read");
}

async fn rows_of(store: &dyn Fixture, name: &str) -> Vec<postrider_core::parked::Ordinal> {
    let filter = ParkedFilter { route: Some(name.to_owned()), ..ParkedFilter::default() };
    let rows = store.admin().parked(&filter, None, 100).await.expect("list parked rows");
    rows.into_iter().map(|row| row.ordinal).collect()
}
