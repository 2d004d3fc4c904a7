//! Replay: delivered again by a reader of its own, marked as such, while the live cursor stays where it is.

use std::{sync::Arc, time::Duration};

use postrider::{
    Envelope, Route,
    core::{
        admin::{Actor, ReplaySpec},
        headers::REPLAY,
        lease::ReplayFilter,
        log::Log,
        topic::TopicFilter,
        transport::Subscriber,
    },
};
use postrider_transport_memory::MemoryTransport;

use crate::support::{Broker, Place, Probe, Running, Seen, Stuck, message, route, until};

on_every_store_with_its_clock!(
    a_replay_delivers_what_its_filter_chooses_and_marks_it,
    a_replay_leaves_the_live_cursor_alone,
);
on_every_store!(
    a_replay_is_as_slow_as_it_is_told_and_can_be_cancelled,
    a_replay_that_is_cancelled_while_its_node_stops_is_no_lost_lane,
    a_replay_goes_through_another_route,
);

fn replay(filter: ReplayFilter) -> ReplaySpec {
    ReplaySpec { route: "all".to_owned(), to: None, filter, rate: None }
}

async fn a_replay_delivers_what_its_filter_chooses_and_marks_it(place: Place) {
    let broker = Broker::new();
    let hour = Duration::from_hours(1);
    let began = place.now();
    let named =
        |label: &str, topic: &str, name: &str| Envelope { topic: topic.into(), name: name.into(), ..message(label) };
    place.commit(vec![named("a1", "orders.placed", "placed"), named("b1", "orders.paid", "paid")]);
    place.pass(hour);
    place.commit(vec![named("a2", "orders.paid", "paid"), named("b2", "returns.made", "made")]);
    place.pass(hour);
    place.commit(vec![named("a3", "orders.placed", "placed")]);
    let relay = Running::start(&place.log, [route("all", &broker)]);
    until("the first delivery of all", async || broker.arrived().len() == 5).await;

    let middle = began.saturating_add(hour);
    let everything = ReplayFilter::default;
    let orders = TopicFilter::new(["orders.*"]).unwrap();
    let cases: [(ReplayFilter, &[&str]); 6] = [
        (everything(), &["a1", "a2", "a3", "b1", "b2"]),
        (ReplayFilter { since: Some(middle), ..everything() }, &["a2", "a3", "b2"]),
        (ReplayFilter { since: Some(began), until: Some(middle), ..everything() }, &["a1", "b1"]),
        (ReplayFilter { key: Some("b".to_owned()), ..everything() }, &["b1", "b2"]),
        (ReplayFilter { name: Some("paid".to_owned()), ..everything() }, &["a2", "b1"]),
        (ReplayFilter { topics: Some(orders), until: Some(middle), ..everything() }, &["a1", "b1"]),
    ];
    let mut delivered = 5;
    for (filter, expected) in cases {
        let name = place.admin.replay(&replay(filter.clone()), &Actor::new("tester")).await.unwrap();
        until(format!("{filter:?} to arrive"), async || broker.arrived().len() >= delivered + expected.len()).await;
        let finished = Seen::LaneEnded(format!("{name}/0"), "finished");
        until("the replay to end", async || relay.observed().has(&finished)).await;
        let again = broker.records().split_off(delivered);
        let mut labels: Vec<_> = again.iter().map(|r| String::from_utf8_lossy(&r.envelope.payload)).collect();
        labels.sort();
        assert_eq!(labels, expected, "{filter:?}");
        assert!(again.iter().all(|record| record.replay.as_deref() == Some(&*name)));
        let ids: Vec<_> = broker.records()[..5].iter().map(|record| record.envelope.id).collect();
        assert!(again.iter().all(|record| ids.contains(&record.envelope.id)), "under the same ids");
        delivered += expected.len();
    }
    relay.drained().await;
    assert!(broker.records()[..5].iter().all(|record| record.replay.is_none()));
    assert_eq!(place.overview().await.routes.len(), 1, "no replay is left");
}

async fn a_replay_leaves_the_live_cursor_alone(place: Place) {
    let broker = Broker::new();
    place.commit_labels(&["a1", "a2", "a3"]);
    let relay = Running::start(&place.log, [route("all", &broker)]);
    until("everything to be settled", async || place.status("all").await.pending == 0).await;
    let before = place.status("all").await.lanes[0].cursor.clone();
    let name = place.admin.replay(&replay(ReplayFilter::default()), &Actor::new("tester")).await.unwrap();
    until("the replay", async || broker.arrived().len() == 6).await;
    assert_eq!(place.status("all").await.lanes[0].cursor, before);
    let finished = Seen::LaneEnded(format!("{name}/0"), "finished");
    until("the replay to end", async || relay.observed().has(&finished)).await;
    place.commit_labels(&["a4"]);
    until("what comes later", async || broker.has("a4")).await;
    relay.drained().await;
    assert_eq!(broker.arrived(), ["a1", "a2", "a3", "a1", "a2", "a3", "a4"]);
}

#[tokio::test]
async fn a_subscriber_recognises_a_replay_by_its_header() {
    let place = Place::memory();
    let transport = MemoryTransport::new(100);
    let subscriber = transport.subscriber();
    place.commit_labels(&["a1"]);
    let relay = Running::start(&place.log, [Route::new("all", transport.publisher())]);
    until("the live one", async || transport.len() == 1).await;
    let name = place.admin.replay(&replay(ReplayFilter::default()), &Actor::new("tester")).await.unwrap();
    until("its replay", async || transport.len() == 2).await;
    let deliveries = subscriber.receive(10).await.unwrap();
    let marks: Vec<_> = deliveries.iter().map(|delivery| delivery.envelope.headers.get(REPLAY).unwrap()).collect();
    assert_eq!(marks, [None, Some(name.to_string())]);
    assert_eq!(deliveries[0].envelope.id, deliveries[1].envelope.id);
    relay.drained().await;
}

async fn a_replay_goes_through_another_route(place: Place) {
    let (orders, rebuilt) = (Broker::new(), Broker::new());
    place.commit_labels(&["a1", "b1"]);
    let nothing = || route("rebuild", &rebuilt).topics(["rebuild"]);
    let relay = Running::start(&place.log, [route("all", &orders), nothing()]);
    until("the first delivery", async || orders.arrived().len() == 2).await;
    let spec = ReplaySpec { to: Some("rebuild".to_owned()), ..replay(ReplayFilter::default()) };
    place.admin.replay(&spec, &Actor::new("tester")).await.unwrap();
    until("all of it on the other side", async || rebuilt.arrived().len() == 2).await;
    relay.drained().await;
    assert_eq!(orders.arrived().len(), 2, "and nothing twice where it was before");
}

async fn a_replay_is_as_slow_as_it_is_told_and_can_be_cancelled(place: Place) {
    let broker = Broker::with_runs(100);
    let labels: Vec<String> = (0..100).map(|n| format!("a{n:03}")).collect();
    place.commit(labels.iter().map(|label| message(label)).collect());
    let relay = Running::start(&place.log, [route("all", &broker)]);
    until("the first delivery of all", async || broker.arrived().len() == 100).await;
    // A tenth of a second's worth may go at once: here one message, so every batch of the replay has one.
    let before = broker.batches().len();
    let spec = ReplaySpec { rate: Some(10), ..replay(ReplayFilter::default()) };
    let name = place.admin.replay(&spec, &Actor::new("tester")).await.unwrap();
    until("a few of it", async || broker.batches().len() >= before + 3).await;
    place.admin.cancel_replay(&name, &Actor::new("tester")).await.unwrap();
    let gone = Seen::LaneEnded(format!("{name}/0"), "gone");
    until("its reader to stop", async || relay.observed().has(&gone)).await;
    assert_eq!(relay.stats().fenced(), 0, "an operator's wish is no reason to worry");
    let batches = broker.batches().split_off(before);
    assert!(batches.iter().all(|batch| batch.len() == 1), "{batches:?}");
    assert!(batches.len() < 100, "cancelled before its end");
    place.commit_labels(&["a100"]);
    until("the route to go on", async || broker.has("a100")).await;
    relay.drained().await;
}

async fn a_replay_that_is_cancelled_while_its_node_stops_is_no_lost_lane(place: Place) {
    let broker = Broker::new();
    place.commit_labels(&["a1"]);
    let relay = Running::start(&place.log, [route("all", &broker)]);
    until("the first delivery", async || broker.has("a1")).await;
    broker.stick(Stuck::Everything);
    let name = place.admin.replay(&replay(ReplayFilter::default()), &Actor::new("tester")).await.unwrap();
    until("the second one", async || broker.held() == 1).await;
    place.admin.cancel_replay(&name, &Actor::new("tester")).await.unwrap();
    relay.drain();
    broker.stick(Stuck::Nothing);
    let observed = relay.ended().await;
    let lane = format!("{name}/0");
    assert!(!observed.has(&Seen::LaneEnded(lane.clone(), "fenced")), "{:?}", observed.all());
    assert!(observed.has(&Seen::LaneEnded(lane, "gone")), "{:?}", observed.all());
}

/// The store forgets the lane with the replay, so the next heartbeat may miss it before the answer is here.
#[tokio::test]
async fn a_replay_that_is_over_is_not_taken_for_a_lost_lane() {
    let (place, broker) = (Place::memory(), Broker::new());
    let log: Arc<dyn Log> = Arc::new(Probe::new(&place.log).slow_to_finish());
    place.commit_labels(&["a1"]);
    let relay = Running::start(&log, [route("all", &broker)]);
    until("the live one", async || broker.has("a1")).await;
    let name = place.admin.replay(&replay(ReplayFilter::default()), &Actor::new("tester")).await.unwrap();
    let ended = |seen: &Seen| matches!(seen, Seen::LaneEnded(..));
    until("its end", async || relay.observed().count(ended) == 1).await;
    assert!(relay.observed().has(&Seen::LaneEnded(format!("{name}/0"), "finished")), "{:?}", relay.observed().all());
    assert_eq!(relay.stats().fenced(), 0);
    relay.drained().await;
}

#[tokio::test]
async fn a_replay_waits_while_its_route_is_paused() {
    let (place, broker) = (Place::memory(), Broker::new());
    place.commit_labels(&["a1"]);
    let relay = Running::start(&place.log, [route("all", &broker)]);
    until("the live one", async || broker.has("a1")).await;
    broker.stick(Stuck::Everything);
    place.admin.pause("all", &Actor::new("tester")).await.unwrap();
    let name = place.admin.replay(&replay(ReplayFilter::default()), &Actor::new("tester")).await.unwrap();
    until("its lane to be owned", async || relay.observed().has(&Seen::LaneAcquired(format!("{name}/0")))).await;
    assert_eq!(broker.tries("a1"), 1);
    broker.stick(Stuck::Nothing);
    place.admin.resume_route("all", &Actor::new("tester")).await.unwrap();
    until("the replay", async || broker.arrived() == ["a1", "a1"]).await;
    relay.drained().await;
}
