//! Routes: each reads what it has asked for, at its own pace.

use std::sync::Arc;

use postrider::{
    Envelope, Relay,
    core::{
        admin::Actor,
        lease::{Order, Start},
        retry::RetryPolicy,
    },
    relay::options::Options,
};
use postrider_testkit::fault::FaultyPublisher;

use crate::support::{Broker, Place, Running, Seen, message, route, until};

on_every_store!(
    a_route_gets_the_topics_that_it_has_asked_for,
    a_broken_destination_does_not_hold_up_another,
    a_new_route_begins_where_it_is_told,
    a_route_that_is_forgotten_under_a_relay_begins_anew
);

fn on(topic: &str) -> Envelope {
    Envelope::new(topic, "name", topic.to_owned())
}

async fn a_route_gets_the_topics_that_it_has_asked_for(place: Place) {
    let topics = ["orders", "orders.placed", "orders.placed.eu", "payments.made", "payments"];
    let brokers = [Broker::new(), Broker::new(), Broker::new(), Broker::new()];
    let patterns: [&[&str]; 4] = [&["orders.placed"], &["orders.*", "payments"], &["orders.**"], &["**"]];
    let names = ["exact", "one", "rest", "all"];
    let routes = names.iter().zip(&brokers).zip(patterns);
    let relay = Running::start(
        &place.log,
        routes.map(|((name, broker), patterns)| route(name, broker).topics(patterns).batches(1, 1)),
    );
    place.commit(topics.iter().map(|topic| on(topic)).collect());
    until("the last of them", async || brokers[3].arrived().len() == 5 && brokers[1].has("payments")).await;
    until("everything to be settled", async || place.overview().await.routes.iter().all(|status| status.pending == 0))
        .await;
    relay.drained().await;
    assert_eq!(brokers[0].arrived(), ["orders.placed"]);
    assert_eq!(brokers[1].arrived(), ["orders.placed", "payments"]);
    assert_eq!(brokers[2].arrived(), ["orders.placed", "orders.placed.eu"]);
    assert_eq!(brokers[3].arrived(), topics);
}

async fn a_broken_destination_does_not_hold_up_another(place: Place) {
    let (billing, search) = (Broker::new(), Broker::new());
    let (faulty, faults) = FaultyPublisher::new(Arc::new(billing.clone()));
    faults.outage(true);
    let to_billing = postrider::Route::new("billing", faulty)
        .topics(["orders.*"])
        .breaker(std::time::Duration::from_millis(1), std::time::Duration::from_millis(5));
    let relay = Running::start(&place.log, [to_billing, route("search", &search).topics(["**"])]);
    for n in 0..20 {
        place.commit(vec![message(&format!("a{n}"))]);
    }
    until("the other route to get everything", async || search.arrived().len() == 20).await;
    until("its cursor to pass", async || place.status("search").await.pending == 0).await;
    assert_eq!(place.status("billing").await.pending, 20);
    assert!(billing.arrived().is_empty());
    faults.outage(false);
    until("the broken one to catch up", async || billing.arrived().len() == 20).await;
    let observed = relay.drained().await;
    assert_eq!(billing.arrived(), search.arrived());
    assert_eq!(observed.count(|seen| matches!(seen, Seen::Dead { .. } | Seen::Rejected(..))), 0);
}

async fn a_new_route_begins_where_it_is_told(place: Place) {
    place.commit_labels(&["a1", "a2"]);
    let (oldest, now) = (Broker::new(), Broker::new());
    let routes = [route("oldest", &oldest), route("now", &now).start(Start::Now)];
    let relay = Running::start(&place.log, routes);
    until("what was there before", async || oldest.has("a2")).await;
    place.commit_labels(&["a3"]);
    until("what came after", async || oldest.has("a3") && now.has("a3")).await;
    relay.drained().await;
    assert_eq!(oldest.arrived(), ["a1", "a2", "a3"]);
    assert_eq!(now.arrived(), ["a3"]);
}

async fn a_route_that_is_forgotten_under_a_relay_begins_anew(place: Place) {
    let (all, late) = (Broker::new(), Broker::new());
    let relay = Running::start(&place.log, [route("all", &all), route("late", &late).start(Start::Now)]);
    until("both lanes to be owned", async || relay.stats().lanes() == 2).await;
    place.commit_labels(&["a1", "b1"]);
    until("everything to be settled", async || place.overview().await.routes.iter().all(|status| status.pending == 0))
        .await;
    for name in ["all", "late"] {
        // As an operator can while the relay is silent for longer than its lease.
        place.admin.drop_route(name, &Actor::new("operator")).await.unwrap();
    }
    let told = |name: &str| Seen::RouteForgotten(name.to_owned());
    until("the relay to notice", async || relay.observed().has(&told("all")) && relay.observed().has(&told("late")))
        .await;
    until("both lanes to be owned again", async || {
        relay.observed().count(|seen| matches!(seen, Seen::LaneAcquired(_))) == 4
    })
    .await;
    place.commit_labels(&["a2"]);
    until("what comes later", async || all.has("a2") && late.has("a2")).await;
    let observed = relay.drained().await;
    assert_eq!(all.arrived_of("a"), ["a1", "a1", "a2"], "from the oldest record that is kept, as a new route does");
    assert_eq!(late.arrived_of("a"), ["a1", "a2"], "with what is new, as this route wants it");
    assert_eq!(observed.count(|seen| matches!(seen, Seen::RouteForgotten(_))), 2, "told once each");
}

#[test]
fn every_problem_of_a_relay_is_reported_in_one_error() {
    let broker = Broker::new();
    let bad_retry = RetryPolicy { attempts_max: 0, ..RetryPolicy::default() };
    let place = Place::memory();
    let second = std::time::Duration::from_secs(1);
    let options = Options { lease_life: second / 100, heartbeat_every: second, ..Options::default() };
    let built = Relay::builder(Arc::clone(&place.log))
        .options(options)
        .route(route("twice", &broker).lanes(0))
        .route(route("twice", &broker).topics(["a.**.b"]).retry(bad_retry))
        .route(route("bad name", &broker).order(Order::Total).lanes(2).window(0))
        .route(route("slow", &broker).poll(second, second / 2).window_bytes(1).rate(0))
        .build();
    let problems = built.unwrap_err().to_string();
    for part in [
        "two routes are named `twice`",
        "lease_life is 10ms",
        "heartbeat_every is 1s",
        "route `twice`: lanes is 0",
        "route `twice`: `**` may only be the last segment",
        "route `twice`: attempts_max must be at least 1",
        "route `bad name`: a name has",
        "route `bad name`: a route with total order has one lane",
        "route `bad name`: window is 0",
        "route `slow`: poll",
        "route `slow`: window_bytes",
        "route `slow`: rate is 0",
    ] {
        assert!(problems.contains(part), "{part} is not in: {problems}");
    }
    let none = Relay::builder(place.log).build().unwrap_err();
    assert!(none.to_string().contains("at least one route"), "{none}");
}
