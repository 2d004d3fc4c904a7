//! Several relays on one store: they share, take over, and hand over.

use std::{collections::HashSet, sync::Arc, time::Duration};

use postrider::{
    Outcome,
    core::{
        admin::Actor,
        lease::{Node, Order, RouteSpec, Start},
        log::Log,
        topic::TopicFilter,
    },
    relay::options::Options,
};
use postrider_testkit::fault::{FaultyLog, Moment, Operation};

use crate::support::{Broker, Place, Running, Seen, Stuck, message, options, route, until};

on_every_store!(
    relays_share_the_lanes_and_take_over_from_one_that_leaves,
    a_drained_relay_hands_over_without_duplicates,
    a_node_that_is_asked_to_leave_drains_and_ends,
    one_that_drains_slowly_leaves_its_share_to_others_at_once,
    changing_the_number_of_lanes_fences_their_owners_and_loses_nothing,
    a_relay_with_fewer_topics_passes_over_nothing_of_another,
    a_relay_whose_topics_were_let_go_asks_for_them_again,
);
on_every_store_with_its_clock!(dropping_a_relay_is_a_crash_and_the_next_one_takes_over);

const KEYS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

fn commit(place: &Place, numbers: std::ops::Range<u32>) {
    for n in numbers {
        place.commit(KEYS.iter().map(|key| message(&format!("{key}{n:03}"))).collect());
    }
}

/// First arrivals of every key in order, nothing missing.
fn assert_all_in_order(broker: &Broker, each: u32) {
    for key in KEYS {
        let mut seen = HashSet::new();
        let mut first = broker.arrived_of(key);
        first.retain(|label| seen.insert(label.clone()));
        assert_eq!(first, (0..each).map(|n| format!("{key}{n:03}")).collect::<Vec<_>>());
    }
}

fn assert_no_duplicates(broker: &Broker) {
    let arrived = broker.arrived();
    assert_eq!(arrived.iter().collect::<HashSet<_>>().len(), arrived.len(), "nothing twice");
}

async fn relays_share_the_lanes_and_take_over_from_one_that_leaves(place: Place) {
    let broker = Broker::new();
    let start = || Running::start(&place.log, [route("all", &broker).lanes(4)]);
    let first = start();
    until("one to own all", async || first.stats().lanes() == 4).await;
    let second = start();
    commit(&place, 0..10);
    until("two to share", async || (first.stats().lanes(), second.stats().lanes()) == (2, 2)).await;
    assert_ne!(first.node(), second.node());
    commit(&place, 10..20);
    until("both to be done", async || broker.arrived().len() >= 160).await;
    first.drained().await;
    until("the other to have all", async || second.stats().lanes() == 4).await;
    commit(&place, 20..30);
    until("everything to arrive", async || broker.arrived().len() >= 240).await;
    second.drained().await;
    assert_all_in_order(&broker, 30);
    assert_no_duplicates(&broker);
    let overview = place.overview().await;
    assert!(overview.nodes.is_empty(), "both have said goodbye");
    assert!(overview.routes[0].lanes.iter().all(|lane| lane.owner.is_none()));
}

/// Whoever has the lane reads what both ask for.
async fn a_relay_with_fewer_topics_passes_over_nothing_of_another(place: Place) {
    let broker = Broker::new();
    let start = |topics: &[&str]| Running::start(&place.log, [route("all", &broker).topics(topics)]);
    let older = start(&["nothing-here"]);
    until("it to own the lane", async || older.stats().lanes() == 1).await;
    let newer = start(&["**"]);
    until("the newer one to be known", async || place.overview().await.nodes.len() == 2).await;
    let oldest = start(&["nothing-here"]);
    until("all to be known", async || place.overview().await.nodes.len() == 3).await;
    commit(&place, 0..5);
    until("everything to arrive", async || broker.arrived().len() >= 40).await;
    let more = Seen::ReadForOthers("all".to_owned(), "**".to_owned());
    until("those with fewer to say so", async || [&older, &oldest].iter().all(|one| one.observed().has(&more))).await;
    newer.drained().await;
    commit(&place, 5..10);
    until("the others to go on", async || broker.arrived().len() >= 80).await;
    older.drained().await;
    oldest.drained().await;
    assert_all_in_order(&broker, 10);
}

/// As after a pause that was longer than its lease, in which another one started.
async fn a_relay_whose_topics_were_let_go_asks_for_them_again(place: Place) {
    let broker = Broker::new();
    let relay = Running::start(&place.log, [route("all", &broker)]);
    until("it to own the lane", async || relay.stats().lanes() == 1).await;
    let (name, routes, lease_life) = (String::new(), vec!["all".into()], Duration::from_secs(60));
    let node = Node { id: relay.node(), name, routes, lease_life, standstills: Vec::new() };
    let topics = TopicFilter::new(["nothing-here"]).unwrap();
    let spec = RouteSpec { name: "all".into(), topics, order: Order::Key, lanes: 1, start: Start::Oldest };
    place.log.register(&node, &[spec]).await.unwrap();
    until("it to be read again", async || place.status("all").await.topics == "**").await;
    commit(&place, 0..5);
    until("everything to arrive", async || broker.arrived().len() >= 40).await;
    relay.drained().await;
    assert_all_in_order(&broker, 5);
}

/// Asked through the store, without a way to its process.
async fn a_node_that_is_asked_to_leave_drains_and_ends(place: Place) {
    let broker = Broker::new();
    let start = || Running::start(&place.log, [route("all", &broker).lanes(4)]);
    let (leaving, staying) = (start(), start());
    until("two to share", async || (leaving.stats().lanes(), staying.stats().lanes()) == (2, 2)).await;
    commit(&place, 0..10);
    place.admin.drain_node(leaving.node(), &Actor::new("operator")).await.unwrap();
    let observed = leaving.ended().await;
    assert!(observed.has(&Seen::AskedToLeave) && observed.has(&Seen::Stopped), "{:?}", observed.all());
    until("the other to have all", async || staying.stats().lanes() == 4).await;
    commit(&place, 10..20);
    until("everything to arrive", async || broker.arrived().len() >= 160).await;
    staying.drained().await;
    assert_all_in_order(&broker, 20);
    assert_no_duplicates(&broker);
    let audit = place.admin.audit(10).await.unwrap();
    assert_eq!(audit.iter().map(|entry| entry.action.as_str()).collect::<Vec<_>>(), ["drain-node"]);
}

async fn one_that_drains_slowly_leaves_its_share_to_others_at_once(place: Place) {
    let (good, stuck) = (Broker::new(), Broker::new());
    stuck.stick(Stuck::Everything);
    let routes = || [route("good", &good).lanes(4), route("stuck", &stuck).publish_timeout(Duration::from_hours(1))];
    let leaving = Running::start(&place.log, routes());
    until("it to own all", async || leaving.stats().lanes() == 5).await;
    commit(&place, 0..1);
    until("something to be stuck", async || stuck.held() > 0).await;
    leaving.drain();
    let staying = Running::start(&place.log, routes());
    until("the other to have all that is free", async || staying.stats().lanes() == 4).await;
    commit(&place, 1..3);
    until("everything to arrive", async || good.arrived().len() >= 24).await;
    assert_eq!(leaving.stats().lanes(), 1, "the stuck one still drains");
    leaving.crash().await;
    staying.crash().await;
    assert_all_in_order(&good, 3);
}

async fn a_drained_relay_hands_over_without_duplicates(place: Place) {
    let broker = Broker::with_runs(2);
    let start = || Running::start(&place.log, [route("all", &broker).window(32).page(8).batches(4, 3)]);
    commit(&place, 0..50);
    for _ in 0..5 {
        let relay = start();
        let (handle, mut taken) = ((*relay).clone(), 0);
        // The broker itself asks for the stop, in the middle of the relay's work.
        broker.answer(move |_| {
            taken += 1;
            if taken == 10 {
                handle.drain();
            }
            Outcome::Durable
        });
        let observed = relay.ended().await;
        assert!(observed.has(&Seen::LaneEnded("all/0".to_owned(), "drained")), "{:?}", observed.all());
        assert_no_duplicates(&broker);
    }
    let before = broker.arrived().len();
    assert!((50..400).contains(&before), "something is left for the last: {before}");
    broker.accept();
    let last = start();
    until("everything to arrive", async || broker.arrived().len() >= 400).await;
    last.drained().await;
    assert_all_in_order(&broker, 50);
    assert_no_duplicates(&broker);
}

async fn dropping_a_relay_is_a_crash_and_the_next_one_takes_over(place: Place) {
    let broker = Broker::new();
    let lease_life = options().lease_life;
    broker.stick(Stuck::Key("c"));
    commit(&place, 0..5);
    let first = Running::start(&place.log, [route("all", &broker).batches(1, 8)]);
    until("all but the stuck key", async || broker.arrived().len() == 35).await;
    assert_eq!(broker.tries("c000"), 1);
    first.crash().await;
    until("its publish to be dropped with it", async || broker.held() == 0).await;
    broker.stick(Stuck::Nothing);

    let second = Running::start(&place.log, [route("all", &broker)]);
    until("the second to be known", async || place.overview().await.nodes.len() == 2).await;
    assert_eq!(second.stats().lanes(), 0, "the lease of the first is not over");
    place.pass(lease_life);
    until("the second to own the lane", async || second.stats().lanes() == 1).await;
    until("everything to be settled", async || place.status("all").await.pending == 0).await;
    second.drained().await;
    assert_all_in_order(&broker, 5);
    assert_eq!(broker.tries("c000"), 2, "published again under the same id");
}

/// It can still read and publish, so only its own clock keeps it from doing so beside the new owner.
#[tokio::test]
async fn a_relay_whose_heartbeats_are_lost_is_quiet_before_another_takes_over() {
    let (place, broker) = (Place::memory(), Broker::new());
    let (faulty, faults) = FaultyLog::new(Arc::clone(&place.log));
    let log: Arc<dyn Log> = Arc::new(faulty);
    let short = Options { lease_life: Duration::from_millis(300), ..options() };
    let first = Running::start_with(&log, [route("all", &broker)], short);
    place.commit_labels(&["a1"]);
    until("the first to be at work", async || place.status("all").await.pending == 0 && broker.has("a1")).await;
    for _ in 0..10_000 {
        faults.fail_next(Operation::Heartbeat, Moment::Before);
    }
    let second = Running::start(&place.log, [route("all", &broker)]);
    until("the second to own the lane", async || second.stats().lanes() == 1).await;
    assert_eq!(first.stats().lanes(), 1, "the first does not know");
    for n in 2..20 {
        let label = format!("a{n}");
        place.commit_labels(&[&label]);
        until("it to arrive", async || broker.has(&label)).await;
    }
    faults.clear();
    let fenced = Seen::LaneEnded("all/0".to_owned(), "fenced");
    until("the first to learn of it", async || first.observed().has(&fenced)).await;
    second.drained().await;
    assert_eq!(broker.tried().len(), 19, "nothing was published by both: {:?}", broker.tried());
    first.drained().await;
}

#[tokio::test]
async fn a_drain_that_takes_too_long_leaves_the_rest_to_the_next_owner() {
    let (place, broker) = (Place::memory(), Broker::new());
    broker.stick(Stuck::Everything);
    commit(&place, 0..2);
    let hasty = Options { drain_deadline: Duration::from_millis(5), ..options() };
    let relay = Running::start_with(&place.log, [route("all", &broker)], hasty);
    until("something to be in flight", async || broker.held() > 0).await;
    let observed = relay.drained().await;
    assert!(observed.has(&Seen::LaneEnded("all/0".to_owned(), "deadline")), "{:?}", observed.all());
    broker.stick(Stuck::Nothing);
    let next = Running::start(&place.log, [route("all", &broker)]);
    until("everything to arrive", async || broker.arrived().len() == 16).await;
    next.drained().await;
    assert_all_in_order(&broker, 2);
}

async fn changing_the_number_of_lanes_fences_their_owners_and_loses_nothing(place: Place) {
    let broker = Broker::new();
    let old = Running::start(&place.log, [route("all", &broker)]);
    commit(&place, 0..10);
    until("half of it", async || broker.arrived().len() == 80).await;
    let new = Running::start(&place.log, [route("all", &broker).lanes(3)]);
    commit(&place, 10..20);
    let fenced = Seen::LaneEnded("all/0".to_owned(), "fenced");
    until("the old owner to be fenced", async || old.observed().has(&fenced)).await;
    assert_eq!(old.stats().fenced(), 1);
    until("both to share three lanes", async || old.stats().lanes() + new.stats().lanes() == 3).await;
    commit(&place, 20..30);
    until("everything to be settled", async || place.status("all").await.pending == 0).await;
    old.drained().await;
    new.drained().await;
    assert_all_in_order(&broker, 30);
    assert_eq!(place.status("all").await.lanes.len(), 3);
}
