//! Cases: who may act on a lane.

use std::{collections::HashSet, sync::Arc, time::Duration};

use postrider_core::{
    ErrorKind,
    admin::Actor,
    envelope::Envelope,
    lease::{LANES_MAX, LaneStanding, Node, NodeId, Order, Roster, RouteSpec},
    log::{Log, Settlement},
};

use super::{
    Fixture,
    owner::{ALL_DUE, HOUR, LONGER, Owner, SHORT, ids_of, keyed, lane, node, retrying, route, several},
};

/// A lane has one owner at a time.
pub async fn a_lane_has_one_owner(store: Arc<dyn Fixture>) {
    let owner = Owner::of(&*store, &route("r")).await;
    let other = node(&["r"], HOUR);
    let second = store.log().acquire(&owner.lease.lane, &other).await.expect("acquire");
    assert!(second.is_none(), "a lane that somebody owns must not be given to another node");
    let beside = store.beside().await;
    let second = beside.acquire(&owner.lease.lane, &other).await.expect("acquire");
    assert!(second.is_none(), "nor to one that asks through another handle on the same store");
}

/// A node that lost the answer to its `acquire` may ask again: it gets the lane under a new epoch, and the lease that it
/// never saw is fenced. Nobody else gets the lane meanwhile.
pub async fn a_node_may_take_its_own_lane_again(store: Arc<dyn Fixture>) {
    let mut lost = Owner::of(&*store, &route("r")).await;
    store.commit(several(3)).await;
    lost.ids().await;
    lost.advance().await;
    let again = store.log().acquire(&lost.lease.lane, &lost.node).await.expect("acquire");
    let again = again.expect("a node may take a lane that it owns already: the answer to its first call was lost");
    assert!(again.epoch > lost.lease.epoch, "taking a lane again raises its epoch");
    let late = lost.settle(Settlement::default()).await.expect_err("the former lease is over");
    assert!(late.is_fenced(), "the lease from before is answered with Fenced, not with {late:?}");
    let resumed = store.log().resume(&again).await.expect("resume under the new epoch");
    assert_eq!(resumed.cursor, lost.cursor, "taking a lane again does not move its cursor");
    let first = Settlement { number: 1, ..Settlement::default() };
    store.log().settle(&again, &first).await.expect("the new lease settles");
    let other = store.log().acquire(&again.lane, &node(&["r"], HOUR)).await.expect("acquire");
    assert!(other.is_none(), "somebody else still gets None");
}

/// A stale owner is told so when it resumes or asks what is due, not only when it writes.
pub async fn a_stale_owner_learns_nothing(store: Arc<dyn Fixture>) {
    let mut former = Owner::of(&*store, &route("r")).await;
    former.park(&*store, vec![(keyed("a"), retrying(Duration::ZERO))]).await;
    let log = store.log();
    log.release(&former.lease).await.expect("release");
    let next = Owner::take(&*store, &node(&["r"], HOUR), "r", 0).await;
    let resumed = log.resume(&former.lease).await.expect_err("a stale owner must not resume");
    assert!(resumed.is_fenced(), "resume of a stale owner is answered with Fenced, not with {resumed:?}");
    let due = log.due(&former.lease, ALL_DUE).await.expect_err("a stale owner has no due rows");
    assert!(due.is_fenced(), "due of a stale owner is answered with Fenced, not with {due:?}");
    assert_eq!(next.due().await.lines.len(), 1, "the rows are the next owner's");
}

/// A lease tells its owner all that it needs.
pub async fn a_lease_says_how_to_read(store: Arc<dyn Fixture>) {
    let spec = RouteSpec { lanes: 3, ..route("r") };
    let owner = Owner::of(&*store, &spec).await;
    let lease = &owner.lease;
    assert_eq!((&lease.lane, lease.lanes), (&lane("r", 0), 3), "a lease names its lane and how many there are");
    assert_eq!(lease.reader.topics, spec.topics, "a lease carries the topics of its route");
    assert_eq!((lease.reader.order, &lease.reader.replay), (spec.order, &None));
}

/// What does not exist cannot be acquired.
pub async fn an_unknown_lane_cannot_be_acquired(store: Arc<dyn Fixture>) {
    let owner = Owner::of(&*store, &route("r")).await;
    for unknown in [lane("nobody-registered-this", 0), lane("r", 1)] {
        let lease = store.log().acquire(&unknown, &owner.node).await.expect("acquire");
        assert!(lease.is_none(), "{unknown} does not exist, so acquire answers None");
    }
}

/// Every new owner has a higher epoch.
pub async fn the_epoch_rises_with_every_owner(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    for _ in 0..3 {
        store.log().release(&owner.lease).await.expect("release");
        let next = Owner::take(&*store, &node(&["r"], HOUR), "r", 0).await;
        assert!(next.lease.epoch > owner.lease.epoch, "the epoch must rise with every change of owner");
        owner = next;
    }
}

/// A lease ends by the store's clock, and then another node may have the lane.
pub async fn an_expired_lease_can_be_taken(store: Arc<dyn Fixture>) {
    let slow = registered(&*store, SHORT).await;
    let mut former = Owner::take(&*store, &slow, "r", 0).await;
    store.pass(LONGER).await;
    let next = store.log().acquire(&lane("r", 0), &node(&["r"], HOUR)).await.expect("acquire");
    let next = next.expect("a lease that has expired by the store's clock can be taken");
    assert!(next.epoch > former.lease.epoch);
    let late = former.settle(Settlement::default()).await.expect_err("the former owner must be fenced");
    assert!(late.is_fenced(), "a stale owner is answered with Fenced, not with {late:?}");
    let gone = store.log().release(&former.lease).await.expect_err("it is somebody else's lane now");
    assert!(
        gone.is_fenced(),
        "releasing a lane that another node has taken is answered with Fenced, not with {gone:?}"
    );
    let third = store.log().acquire(&lane("r", 0), &node(&["r"], HOUR)).await.expect("acquire");
    assert!(third.is_none(), "the stale owner's release must not free the lane of the new one");
}

/// An owner whose lease has expired, but whose lane nobody took, is still the owner.
pub async fn an_expired_lease_that_nobody_took_still_settles(store: Arc<dyn Fixture>) {
    let slow = registered(&*store, SHORT).await;
    let mut owner = Owner::take(&*store, &slow, "r", 0).await;
    store.pass(LONGER).await;
    let settled = owner.settle(Settlement::default()).await;
    settled.expect("only the epoch decides whether a write is accepted");
}

/// A heartbeat extends every lease of its node, also one that expired and that nobody took.
pub async fn a_heartbeat_extends_all_leases_of_its_node(store: Arc<dyn Fixture>) {
    let log = store.log();
    let mut mine = node(&["a", "b"], SHORT);
    log.register(&mine, &[route("a"), route("b")]).await.expect("register");
    for name in ["a", "b"] {
        Owner::take(&*store, &mine, name, 0).await;
    }
    store.pass(LONGER).await;
    mine.lease_life = HOUR;
    let roster = log.heartbeat(&mine).await.expect("heartbeat");
    for name in ["a", "b"] {
        let standing = standing(&roster, name, 0);
        assert_eq!(
            standing.owner,
            Some(mine.id),
            "a lease that has expired but that nobody took is extended by its owner's heartbeat"
        );
        let taken = log.acquire(&lane(name, 0), &node(&[name], HOUR)).await.expect("acquire");
        assert!(taken.is_none(), "an extended lease cannot be taken");
    }
}

/// A heartbeat does not touch the leases of others.
pub async fn a_heartbeat_extends_nobody_elses_lease(store: Arc<dyn Fixture>) {
    let slow = registered(&*store, SHORT).await;
    Owner::take(&*store, &slow, "r", 0).await;
    let other = node(&["r"], HOUR);
    store.log().heartbeat(&other).await.expect("heartbeat");
    store.pass(LONGER).await;
    let roster = store.log().heartbeat(&other).await.expect("heartbeat");
    assert_eq!(standing(&roster, "r", 0).owner, None, "an expired lease has no owner in the roster");
    let taken = store.log().acquire(&lane("r", 0), &other).await.expect("acquire");
    assert!(taken.is_some(), "another node's heartbeat must not extend this lease");
}

/// A heartbeat of a former owner does not bring back what another node has taken.
pub async fn a_heartbeat_takes_nothing_back(store: Arc<dyn Fixture>) {
    let mut slow = registered(&*store, SHORT).await;
    Owner::take(&*store, &slow, "r", 0).await;
    store.pass(LONGER).await;
    let other = Owner::take(&*store, &node(&["r"], HOUR), "r", 0).await;
    slow.lease_life = HOUR;
    let roster = store.log().heartbeat(&slow).await.expect("heartbeat");
    let standing = standing(&roster, "r", 0);
    assert_eq!((standing.owner, standing.epoch), (Some(other.node.id), other.lease.epoch));
}

/// A released lane is free at once.
pub async fn a_released_lane_is_free(store: Arc<dyn Fixture>) {
    let owner = Owner::of(&*store, &route("r")).await;
    store.log().release(&owner.lease).await.expect("release");
    let roster = store.log().heartbeat(&owner.node).await.expect("heartbeat");
    assert_eq!(standing(&roster, "r", 0).owner, None, "a heartbeat must not bring a released lease back");
    Owner::take(&*store, &node(&["r"], HOUR), "r", 0).await;
}

/// A node that retires is gone, and its lanes are free.
pub async fn a_retired_node_leaves_its_lanes(store: Arc<dyn Fixture>) {
    let spec = RouteSpec { lanes: 2, ..route("r") };
    let owner = Owner::of(&*store, &spec).await;
    Owner::take(&*store, &owner.node, "r", 1).await;
    store.log().retire(owner.node.id).await.expect("retire");
    let other = node(&["r"], HOUR);
    let roster = store.log().heartbeat(&other).await.expect("heartbeat");
    assert_eq!(live(&roster), HashSet::from([other.id]), "a retired node is not live");
    for number in 0..2 {
        assert_eq!(standing(&roster, "r", number).owner, None, "a retired node owns nothing");
        Owner::take(&*store, &other, "r", number).await;
    }
    store.log().retire(owner.node.id).await.expect("retiring twice is harmless");
}

/// A node is live until its lease life has passed without a heartbeat.
pub async fn a_silent_node_is_not_live(store: Arc<dyn Fixture>) {
    let silent = registered(&*store, SHORT).await;
    let other = node(&["r", "q"], HOUR);
    store.log().register(&other, &[]).await.expect("register");
    store.pass(LONGER).await;
    let roster = store.log().heartbeat(&other).await.expect("heartbeat");
    assert_eq!(live(&roster), HashSet::from([other.id]), "a node that is silent for its lease life is not live");
    let routes: Vec<&str> = roster.nodes[0].routes.iter().map(|route| &**route).collect();
    assert_eq!(routes, ["r", "q"], "the roster tells which routes a node can serve");
    let roster = store.log().heartbeat(&silent).await.expect("heartbeat");
    assert_eq!(live(&roster), HashSet::from([silent.id, other.id]), "a heartbeat makes a node live, itself included");
}

/// The roster lists every lane, in order, with owner, epoch and pause.
pub async fn the_roster_lists_every_lane(store: Arc<dyn Fixture>) {
    let log = store.log();
    let owner = Owner::of(&*store, &RouteSpec { lanes: 2, ..route("b") }).await;
    log.register(&owner.node, &[route("a"), route("c")]).await.expect("register");
    let actor = Actor::new("operator");
    store.admin().pause("c", &actor).await.expect("pause");
    let roster = log.heartbeat(&owner.node).await.expect("heartbeat");
    let lanes: Vec<_> = roster.lanes.iter().map(|standing| standing.lane.clone()).collect();
    assert_eq!(lanes, [lane("a", 0), lane("b", 0), lane("b", 1), lane("c", 0)], "every lane, ordered by its id");
    assert!(roster.lanes.iter().all(|s| s.served_by == s.lane.route), "a route serves itself");
    assert_eq!(standing(&roster, "b", 0).owner, Some(owner.node.id));
    assert_eq!(standing(&roster, "b", 0).epoch, owner.lease.epoch, "the roster shows the current epoch");
    assert_eq!(standing(&roster, "b", 1).owner, None);
    let paused: Vec<_> = roster.lanes.iter().filter(|s| s.paused).map(|s| s.lane.clone()).collect();
    assert_eq!(paused, [lane("c", 0)], "a paused route, and no other, is shown as paused");
    store.admin().resume_route("c", &actor).await.expect("resume");
    let roster = log.heartbeat(&owner.node).await.expect("heartbeat");
    assert!(roster.lanes.iter().all(|standing| !standing.paused), "a resumed route is not paused");
}

/// A node learns with its next heartbeat that it was asked to leave; others do not, and the overview shows it.
pub async fn a_node_is_asked_to_leave(store: Arc<dyn Fixture>) {
    let (one, other) = (registered(&*store, HOUR).await, registered(&*store, HOUR).await);
    assert!(!store.log().heartbeat(&one).await.expect("heartbeat").leave, "nobody has asked");
    store.admin().drain_node(one.id, &Actor::new("operator")).await.expect("drain");
    assert!(store.log().heartbeat(&one).await.expect("heartbeat").leave, "it is told");
    assert!(store.log().heartbeat(&one).await.expect("heartbeat").leave, "and told again, until it is gone");
    assert!(!store.log().heartbeat(&other).await.expect("heartbeat").leave, "the other one stays");
    let leaving = |id| {
        let store = Arc::clone(&store);
        async move {
            let nodes = store.admin().overview().await.expect("overview").nodes;
            nodes.iter().find(|node| node.id == id).map(|node| node.leaving)
        }
    };
    assert_eq!((leaving(one.id).await, leaving(other.id).await), (Some(true), Some(false)));
    store.log().retire(one.id).await.expect("retire");
    let gone = store.admin().drain_node(one.id, &Actor::new("operator")).await.expect_err("it is gone");
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone:?}");
}

/// The overview tells how long a lease and a node still live without a heartbeat.
pub async fn a_lease_tells_how_long_it_lives(store: Arc<dyn Fixture>) {
    let owner = Owner::of(&*store, &route("r")).await;
    store.pass(SHORT).await;
    let overview = store.admin().overview().await.expect("overview");
    let lane = &overview.routes[0].lanes[0];
    let left = lane.expires_in.expect("it has an owner");
    assert!(left <= HOUR - SHORT && left > HOUR / 2, "what is left of the lease: {left:?}");
    assert_eq!(overview.nodes[0].lease_life, HOUR);
    store.log().release(&owner.lease).await.expect("release");
    let overview = store.admin().overview().await.expect("overview");
    assert_eq!(overview.routes[0].lanes[0].expires_in, None, "a free lane has no lease");
}

/// Of many who race for a lane, exactly one gets it.
pub async fn racing_nodes_have_one_winner(store: Arc<dyn Fixture>) {
    registered(&*store, HOUR).await;
    for round in 0..10 {
        let racers = (0..8).map(|i| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let log = if i % 2 == 0 { store.log() } else { store.beside().await };
                race(&*log, &node(&["r"], HOUR)).await
            })
        });
        let mut winners = Vec::new();
        for racer in racers.collect::<Vec<_>>() {
            winners.extend(racer.await.expect("a racer finishes"));
        }
        assert_eq!(winners.len(), 1, "round {round}: exactly one of eight racing nodes must win the lane");
        store.log().retire(winners[0]).await.expect("retire");
    }
}

/// Every store refuses the same, and is left as it was.
pub async fn a_route_that_cannot_be_is_refused(store: Arc<dyn Fixture>) {
    let impossible = [
        RouteSpec { lanes: 0, ..route("r") },
        RouteSpec { lanes: LANES_MAX + 1, ..route("r") },
        RouteSpec { lanes: 2, order: Order::Total, ..route("r") },
        route("not a name"),
    ];
    for spec in impossible {
        let refused =
            store.log().register(&node(&["r"], HOUR), std::slice::from_ref(&spec)).await.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{spec:?}: {refused:?}");
    }
    let routes = store.admin().overview().await.expect("an overview").routes;
    assert!(routes.is_empty(), "what was refused is not there: {routes:?}");
}

/// Registering the same again changes nothing.
pub async fn registering_again_changes_nothing(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let sent = several(3);
    store.commit(sent.clone()).await;
    assert_eq!(owner.ids().await, ids_of(&sent));
    owner.advance().await;
    store.log().register(&node(&["r"], HOUR), &[route("r")]).await.expect("register");
    owner.settle(Settlement::default()).await.expect("a second registration must not fence the owner");
    let resumed = store.log().resume(&owner.lease).await.expect("resume");
    assert_eq!(resumed.cursor, owner.cursor, "a second registration must not move the cursor");
}

/// A route takes new topics; its cursor stays.
pub async fn a_route_takes_new_topics(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    store.commit(several(3)).await;
    owner.ids().await;
    owner.advance().await;
    let topics = postrider_core::topic::TopicFilter::new(["payments"]).expect("a good filter");
    let spec = RouteSpec { topics, ..route("r") };
    store.log().register(&owner.node, std::slice::from_ref(&spec)).await.expect("register");
    store.log().retire(owner.node.id).await.expect("retire");
    let mut next = Owner::take(&*store, &node(&["r"], HOUR), "r", 0).await;
    assert_eq!(next.lease.reader.topics, spec.topics, "the next lease reads the new topics");
    assert_eq!(next.cursor, owner.cursor, "changing topics does not move the cursor");
    let payment = postrider_core::envelope::Envelope::new("payments", "n", "");
    store.commit([several(2), vec![payment.clone()]].concat()).await;
    assert_eq!(next.ids().await, [payment.id]);
}

/// New topics or another order fence every owner, so that nobody goes on with the old reader; each cursor stays.
pub async fn a_changed_reader_fences_every_owner(store: Arc<dyn Fixture>) {
    let topics = postrider_core::topic::TopicFilter::new(["orders.*"]).expect("a good filter");
    let split = RouteSpec { lanes: 2, ..route("split") };
    let whole = route("whole");
    let changes = [
        (split.clone(), RouteSpec { topics: topics.clone(), ..split }),
        (whole.clone(), RouteSpec { order: Order::Total, ..whole.clone() }),
        (RouteSpec { order: Order::Total, ..whole.clone() }, whole),
    ];
    for (before, after) in changes {
        let name = &*before.name;
        let node = node(&[name], HOUR);
        store.log().register(&node, std::slice::from_ref(&before)).await.expect("register");
        let mut former = Vec::new();
        for number in 0..before.lanes {
            former.push(Owner::take(&*store, &node, name, number).await);
        }
        // The first lane goes to the end, the second stays behind.
        store.commit(several(8)).await;
        former[0].ids().await;
        former[0].advance().await;
        store.log().register(&node, std::slice::from_ref(&after)).await.expect("register");
        for owner in &mut former {
            let late = owner.settle(Settlement::default()).await.expect_err("the old reader is over");
            assert!(late.is_fenced(), "a changed reader fences the owner of {}, got {late:?}", owner.lease.lane);
            let next = Owner::take(&*store, &self::node(&[name], HOUR), name, owner.lease.lane.number).await;
            assert!(next.lease.epoch > owner.lease.epoch);
            let reader = &next.lease.reader;
            assert_eq!(
                (&reader.topics, reader.order),
                (&after.topics, after.order),
                "the next lease has the new reader"
            );
            assert_eq!(next.cursor, owner.cursor, "a changed reader moves no cursor of {}", owner.lease.lane);
        }
        let shown = store.log().heartbeat(&node).await.expect("heartbeat");
        let lanes = shown.lanes.iter().filter(|standing| *standing.lane.route == *name).count();
        assert_eq!(lanes, after.lanes as usize);
        for number in 0..before.lanes {
            let standing = standing(&shown, name, number);
            assert_ne!(standing.owner, Some(node.id), "the former owner owns nothing any more");
        }
        store.admin().drop_route(name, &Actor::new("operator")).await.expect("forget");
    }
}

/// Nodes of one route may have different configurations, as in a roll-out: what any live one asks for is read, whoever
/// registers last, and the owner of the narrower reader is fenced before it can pass over anything.
pub async fn a_route_reads_what_any_live_node_asks_for(store: Arc<dyn Fixture>) {
    let log = store.log();
    let mut old = Owner::of(&*store, &asking(&["orders"])).await;
    let newer = node(&["r"], HOUR);
    log.register(&newer, &[asking(&["orders", "payments"])]).await.expect("register");
    let late = old.settle(Settlement::default()).await.expect_err("it would pass over `payments`");
    assert!(late.is_fenced(), "the owner of the narrower reader is fenced, got {late:?}");
    let mut owner = Owner::take(&*store, &old.node, "r", 0).await;
    assert_eq!(owner.lease.reader.topics.to_string(), "orders, payments", "the older node reads it too");

    let beside = store.beside().await;
    let third = node(&["r"], HOUR);
    beside.register(&third, &[asking(&["orders"])]).await.expect("register");
    owner.settle(Settlement::default()).await.expect("nothing has changed, so nobody is fenced");
    let roster = log.heartbeat(&third).await.expect("heartbeat");
    let read: Vec<_> = roster.routes.iter().map(|s| (&*s.route, s.topics.to_string())).collect();
    assert_eq!(read, [("r", "orders, payments".to_owned())], "the roster tells what is read");
    let payment = Envelope::new("payments", "n", "");
    store.commit(vec![payment.clone()]).await;
    assert_eq!(owner.ids().await, [payment.id]);
    let overview = store.admin().overview().await.expect("overview");
    assert_eq!(overview.routes[0].topics, "orders, payments", "so does the overview");
}

/// What only nodes asked for that are gone, or silent for their lease life, is let go by the next that asks, for the same as
/// before or for something new. One that was only silent has it again as soon as it asks.
pub async fn a_route_lets_go_of_what_nobody_asks_for(store: Arc<dyn Fixture>) {
    let log = store.log();
    let read = async || {
        let overview = store.admin().overview().await.expect("overview");
        overview.routes[0].topics.clone()
    };
    let (leaving, mut silent, staying) = (node(&["r"], HOUR), node(&["r"], HOUR), node(&["r"], HOUR));
    log.register(&leaving, &[asking(&["orders", "payments"])]).await.expect("register");
    log.register(&silent, &[asking(&["refunds"])]).await.expect("register");
    log.register(&staying, &[asking(&["orders"])]).await.expect("register");
    assert_eq!(read().await, "refunds, orders, payments", "all that is asked for, in the order in which it came");
    log.retire(leaving.id).await.expect("retire");
    silent.lease_life = SHORT;
    log.heartbeat(&silent).await.expect("heartbeat");
    store.pass(LONGER).await;
    log.register(&staying, &[asking(&["orders"])]).await.expect("register");
    assert_eq!(read().await, "orders", "one has said goodbye, the other is silent");

    silent.lease_life = HOUR;
    log.heartbeat(&silent).await.expect("heartbeat");
    log.register(&silent, &[asking(&["refunds"])]).await.expect("register");
    let both = postrider_core::topic::TopicFilter::new(["orders", "refunds"]).expect("a good filter");
    let owner = Owner::take(&*store, &staying, "r", 0).await;
    assert!(owner.lease.reader.topics.is_same_as(&both), "it was only silent: {}", owner.lease.reader.topics);
    log.retire(silent.id).await.expect("retire");
    log.register(&staying, &[asking(&["orders"])]).await.expect("register");
    assert_eq!(read().await, owner.lease.reader.topics.to_string(), "it was the last to start, and may only restart");
    log.register(&node(&["r"], HOUR), &[asking(&["orders"])]).await.expect("register");
    assert_eq!(read().await, "orders", "one that starts without it lets it go");
}

/// Of nodes that start in the same instant none misses what another asks for.
pub async fn nodes_that_start_at_once_know_of_each_other(store: Arc<dyn Fixture>) {
    for round in 0..5 {
        let name = format!("r{round}");
        let starting = (0..4).map(|i| {
            let (store, name) = (Arc::clone(&store), name.clone());
            tokio::spawn(async move {
                let log = if i % 2 == 0 { store.log() } else { store.beside().await };
                let spec = RouteSpec { name: name.as_str().into(), ..asking(&[&format!("topic-{i}")]) };
                log.register(&node(&[&name], HOUR), &[spec]).await.expect("register");
            })
        });
        for started in starting.collect::<Vec<_>>() {
            started.await.expect("it registers");
        }
        let lease = store.log().acquire(&lane(&name, 0), &node(&[&name], HOUR)).await.expect("acquire").expect("free");
        for i in 0..4 {
            let topic = format!("topic-{i}");
            assert!(lease.reader.topics.matches(&topic), "round {round}: {topic} is not read");
        }
    }
}

/// A route that was forgotten and made known again does not listen to its former owner.
pub async fn a_forgotten_route_stays_closed_to_its_former_owner(store: Arc<dyn Fixture>) {
    let mut former = Owner::of(&*store, &route("r")).await;
    store.admin().drop_route("r", &Actor::new("operator")).await.expect("forget");
    let orphan = former.settle(Settlement::default()).await.expect_err("the lane is gone");
    assert_eq!(orphan.kind(), ErrorKind::Fenced, "a lane that no longer exists fences its former owner");
    let next = Owner::of(&*store, &route("r")).await;
    assert!(next.lease.epoch > former.lease.epoch, "an epoch is greater than any that the lane ever had");
    let late = former.settle(Settlement::default()).await.expect_err("the former owner must stay fenced");
    assert!(late.is_fenced(), "an epoch must not be given out twice, not even for a route that was forgotten between");
}

fn asking(topics: &[&str]) -> RouteSpec {
    let topics = postrider_core::topic::TopicFilter::new(topics).expect("a good filter");
    RouteSpec { topics, ..route("r") }
}

async fn registered(store: &dyn Fixture, lease_life: Duration) -> Node {
    let node = node(&["r"], lease_life);
    store.log().register(&node, &[route("r")]).await.expect("register");
    node
}

async fn race(log: &dyn Log, node: &Node) -> Option<NodeId> {
    log.acquire(&lane("r", 0), node).await.expect("acquire").map(|_| node.id)
}

fn standing<'a>(roster: &'a Roster, route: &str, number: u32) -> &'a LaneStanding {
    let wanted = lane(route, number);
    let found = roster.lanes.iter().find(|standing| standing.lane == wanted);
    found.unwrap_or_else(|| panic!("the roster must list {wanted}"))
}

fn live(roster: &Roster) -> HashSet<NodeId> {
    roster.nodes.iter().map(|node| node.id).collect()
}
