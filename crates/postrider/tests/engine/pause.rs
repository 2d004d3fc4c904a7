//! Pause and resume: a paused route drains and holds; nothing is lost or doubled.

use std::{sync::Arc, time::Duration};

use postrider::{
    Outcome,
    core::{admin::Actor, log::Log},
};

use crate::support::{Broker, Place, Probe, Running, Seen, Stuck, cause, route, until};

on_every_store!(
    a_paused_route_lets_what_is_in_flight_come_back_and_holds_the_rest,
    a_route_that_was_paused_before_the_relay_started_waits,
    a_pause_that_was_over_before_any_heartbeat_saw_it_is_one
);

async fn a_paused_route_lets_what_is_in_flight_come_back_and_holds_the_rest(place: Place) {
    let (broker, other) = (Broker::new(), Broker::new());
    let probe = Probe::new(&place.log);
    let log: Arc<dyn Log> = Arc::new(probe.clone());
    let actor = Actor { name: "tester".to_owned(), reason: Some("maintenance".to_owned()) };
    broker.stick(Stuck::Everything);
    place.commit_labels(&["a1"]);
    let relay = Running::start(&log, [route("all", &broker), route("other", &other)]);
    until("one to be in flight", async || broker.held() == 1).await;
    place.admin.pause("all", &actor).await.unwrap();
    probe.heartbeat().await;
    place.commit_labels(&["a2", "b1"]);
    broker.stick(Stuck::Nothing);
    until("what was in flight to be settled", async || place.status("all").await.pending == 2).await;
    until("the other route to go on", async || other.arrived().len() == 3).await;
    probe.heartbeat().await;
    assert_eq!(broker.tried(), ["a1"], "nothing new goes out");
    assert_eq!(relay.stats().lanes(), 2, "the lane stays with its owner");
    assert_eq!(place.status("all").await.paused, Some(actor.clone()));
    assert_eq!(broker.reopened(), 0);

    place.admin.resume_route("all", &actor).await.unwrap();
    until("the rest", async || broker.arrived().len() == 3).await;
    place.commit_labels(&["a3"]);
    until("what comes later", async || broker.has("a3")).await;
    assert_eq!((broker.reopened(), other.reopened()), (1, 0), "a destination that was given up is tried again");
    relay.drained().await;
    assert_eq!(broker.arrived_of("a"), ["a1", "a2", "a3"]);
    assert_eq!(broker.tried().len(), 4, "nothing twice");
}

async fn a_route_that_was_paused_before_the_relay_started_waits(place: Place) {
    let broker = Broker::new();
    let actor = Actor::new("tester");
    Running::start(&place.log, [route("all", &broker)]).drained().await;
    place.admin.pause("all", &actor).await.unwrap();
    place.commit_labels(&["a1"]);
    let probe = Probe::new(&place.log);
    let log: Arc<dyn Log> = Arc::new(probe.clone());
    let relay = Running::start(&log, [route("all", &broker)]);
    until("the relay to own the lane", async || relay.stats().lanes() == 1).await;
    probe.heartbeat().await;
    assert!(broker.tried().is_empty());
    // A paused lane can be handed over like any other.
    relay.drained().await;
    let next = Running::start(&place.log, [route("all", &broker)]);
    until("the next to own the lane", async || next.stats().lanes() == 1).await;
    place.admin.resume_route("all", &actor).await.unwrap();
    until("it to arrive", async || broker.has("a1")).await;
    next.drained().await;
    assert_eq!(broker.tried(), ["a1"]);
}

async fn a_pause_that_was_over_before_any_heartbeat_saw_it_is_one(place: Place) {
    let (broker, other) = (Broker::new(), Broker::new());
    broker.answer(|_| Outcome::Unavailable(cause("gone")));
    place.commit_labels(&["a1"]);
    // The next probe is far away.
    let hours = Duration::from_hours(1);
    let relay = Running::start(&place.log, [route("all", &broker).breaker(hours, hours), route("other", &other)]);
    until("the breaker to open", async || relay.observed().has(&Seen::BreakerOpened("gone".to_owned()))).await;
    until("the other route to go on", async || other.has("a1")).await;
    broker.accept();
    relay.route_was_paused("all");
    until("it to arrive", async || broker.has("a1")).await;
    assert_eq!((broker.reopened(), other.reopened()), (1, 0));
    relay.drained().await;
}
