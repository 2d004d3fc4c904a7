//! What is told is counted; what is in the store is shown; what is gone is gone.

use std::{sync::Arc, time::Duration};

use postrider_core::{
    Error,
    admin::{Actor, CauseGroup, LaneStatus, NodeStatus, Overview, ParkedCounts, RouteStatus, Vitals},
    envelope::MessageId,
    lease::{Epoch, LaneId, NodeId},
    parked::Cause,
    time::Timestamp,
    transport::{ASKED_PAUSE_MIN, Outcome},
};

use super::{Metrics, StoreMetrics};
use crate::{
    diagnosis::Finding,
    relay::events::{Event, Observer, Progress},
};

fn shop() -> StoreMetrics {
    Metrics::new().of_store("shop")
}

fn lane() -> LaneId {
    LaneId { route: "billing".into(), number: 0 }
}

/// The value of a sample, by its name and labels as written.
fn value(metrics: &StoreMetrics, sample: &str) -> Option<f64> {
    let text = Metrics(Arc::clone(&metrics.shared)).render();
    let line = text.lines().find(|line| line.strip_prefix(sample).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn publish(metrics: &StoreMetrics, outcomes: &[Outcome]) {
    let enqueued_at = vec![Timestamp::now().saturating_sub(Duration::from_secs(3)); outcomes.len()];
    metrics.progress(&lane(), &Progress::Publishing { messages: outcomes.len() });
    let took = Duration::from_millis(2);
    metrics.progress(&lane(), &Progress::Published { outcomes, enqueued_at: &enqueued_at, took });
}

fn overview(routes: Vec<RouteStatus>) -> Overview {
    let node = NodeStatus {
        id: NodeId::generate(),
        name: "here".to_owned(),
        routes: vec!["billing".into()],
        seen: Duration::ZERO,
        lease_life: Duration::from_secs(30),
        leaving: false,
        standstills: Vec::new(),
    };
    Overview { routes, nodes: vec![node], records: 12, at: Timestamp::now() }
}

fn billing() -> RouteStatus {
    let lane = |number, owner| LaneStatus { number, owner, expires_in: None, epoch: Epoch(1), cursor: String::new() };
    RouteStatus {
        route: "billing".into(),
        replay_of: None,
        topics: "**".to_owned(),
        left: Vec::new(),
        order: postrider_core::lease::Order::Key,
        paused: Some(Actor::new("anna")),
        pending: 7,
        pending_more: false,
        oldest_pending_age: Some(Duration::from_millis(1500)),
        parked: ParkedCounts { scheduled: 1, retrying: 2, held: 3, dead: 4, blocking: 5 },
        lanes: vec![lane(0, None), lane(1, Some(NodeId::generate()))],
    }
}

#[test]
fn outcomes_are_counted_with_their_cause() {
    let metrics = shop();
    let refused = || Outcome::Rejected(Cause::new("too-large", "10 MB"));
    let [asked, own] = [ASKED_PAUSE_MIN, ASKED_PAUSE_MIN / 10].map(Outcome::Throttled);
    publish(&metrics, &[Outcome::Durable, refused(), Outcome::Durable, asked, own]);
    let attempts = |outcome: &str, cause: &str| {
        let labels = format!("store=\"shop\",route=\"billing\",outcome=\"{outcome}\",cause=\"{cause}\"");
        value(&metrics, &format!("postrider_delivery_attempts_total{{{labels}}}"))
    };
    assert_eq!(attempts("durable", ""), Some(2.0));
    assert_eq!(attempts("rejected", "too-large"), Some(1.0));
    assert_eq!(attempts("throttled", ""), Some(1.0));
    assert_eq!(value(&metrics, "postrider_delivered_total{store=\"shop\",route=\"billing\"}"), Some(2.0));
    assert_eq!(
        value(&metrics, "postrider_delivery_duration_seconds_count{store=\"shop\",route=\"billing\"}"),
        Some(1.0)
    );
    let latency = value(&metrics, "postrider_delivery_latency_seconds_sum{store=\"shop\",route=\"billing\"}").unwrap();
    assert!(latency >= 6.0, "two messages that waited three seconds each: {latency}");
}

#[test]
fn what_was_never_sent_is_no_attempt() {
    let metrics = shop();
    publish(&metrics, &[Outcome::Unavailable(Cause::unsent("address-blocked", "127.0.0.1 is not public"))]);
    let text = Metrics(Arc::clone(&metrics.shared)).render();
    assert!(!text.contains("attempts_total{"), "{text}");
    let count = || value(&metrics, "postrider_delivery_duration_seconds_count{store=\"shop\",route=\"billing\"}");
    assert_eq!(count(), None, "and took no time");
    publish(&metrics, &[Outcome::Unavailable(Cause::new("connect", "connection refused"))]);
    let labels = "store=\"shop\",route=\"billing\",outcome=\"unavailable\",cause=\"connect\"";
    assert_eq!(value(&metrics, &format!("postrider_delivery_attempts_total{{{labels}}}")), Some(1.0));
    assert_eq!(count(), Some(1.0));
}

#[test]
fn what_is_in_flight_comes_back_or_goes_with_its_lane() {
    let metrics = shop();
    let in_flight = || value(&metrics, "postrider_outbox_in_flight{store=\"shop\",route=\"billing\"}");
    metrics.observe(&Event::LaneAcquired { lane: &lane(), epoch: Epoch(1) });
    metrics.progress(&lane(), &Progress::Publishing { messages: 5 });
    assert_eq!(in_flight(), Some(5.0));
    publish(&metrics, &[Outcome::Durable]);
    assert_eq!(in_flight(), Some(5.0));
    metrics.observe(&Event::LaneEnded { lane: &lane(), how: "fenced" });
    assert_eq!(in_flight(), Some(0.0));
    assert_eq!(value(&metrics, "postrider_stale_epoch_rejections_total{store=\"shop\",route=\"billing\"}"), Some(1.0));
}

#[test]
fn an_open_breaker_shows_until_it_closes() {
    let metrics = shop();
    let open = || value(&metrics, "postrider_circuit_open{store=\"shop\",route=\"billing\"}");
    let cause = Cause::new("refused", "connection refused");
    metrics.observe(&Event::BreakerOpened { lane: &lane(), cause: &cause });
    assert_eq!(open(), Some(1.0));
    metrics.observe(&Event::BreakerClosed { lane: &lane() });
    assert_eq!(open(), Some(0.0));
    metrics.observe(&Event::BreakerOpened { lane: &lane(), cause: &cause });
    metrics.observe(&Event::OutageChanged { lane: &lane(), cause: &cause });
    assert_eq!(open(), Some(1.0));
    metrics.observe(&Event::BreakerForgotten { lane: &lane() });
    assert_eq!(open(), Some(0.0), "nobody waits for it any more");
}

#[test]
fn the_store_is_shown_as_it_is_now() {
    let metrics = shop();
    let (at, code) = (Timestamp::now(), "too-large".to_owned());
    let (route, detail) = ("billing".into(), String::new());
    let group = CauseGroup { route, replay_of: None, code, detail, rows: 4, first_at: at, last_at: at };
    metrics.show(&overview(vec![billing()]), &[group]);
    let of_route = |name: &str| value(&metrics, &format!("postrider_{name}{{store=\"shop\",route=\"billing\"}}"));
    let expected = [
        ("outbox_oldest_pending_age_seconds", 1.5),
        ("outbox_pending", 7.0),
        ("outbox_scheduled", 1.0),
        ("outbox_retrying", 2.0),
        ("outbox_held", 3.0),
        ("parked_keys", 5.0),
        ("route_paused", 1.0),
        ("partitions_unowned", 1.0),
    ];
    for (name, expected) in expected {
        assert_eq!(of_route(name), Some(expected), "{name}");
    }
    assert_eq!(
        value(&metrics, "postrider_dead_letters{store=\"shop\",route=\"billing\",cause=\"too-large\"}"),
        Some(4.0)
    );
    let none_yet = |store: &str| {
        value(&metrics, &format!("postrider_dead_letters{{store=\"{store}\",route=\"billing\",cause=\"\"}}"))
    };
    assert_eq!(none_yet("shop"), Some(0.0), "a route has a series before its first dead letter");
    assert_eq!(value(&metrics, "postrider_log_records{store=\"shop\"}"), Some(12.0));
    assert!(value(&metrics, "postrider_clock_offset_seconds{store=\"shop\"}").unwrap().abs() < 5.0);
    let other = Metrics(Arc::clone(&metrics.shared)).of_store("depot");
    other.show(&overview(vec![billing()]), &[]);
    metrics.show(&overview(Vec::new()), &[]);
    metrics.show_unreachable();
    assert_eq!(value(&metrics, "postrider_store_up{store=\"shop\"}"), Some(0.0));
    assert_eq!(value(&metrics, "postrider_store_up{store=\"depot\"}"), Some(1.0));
    assert!(
        value(&metrics, "postrider_outbox_pending{store=\"depot\",route=\"billing\"}").is_some(),
        "another store's"
    );
    assert_eq!(of_route("outbox_pending"), None, "a route that was forgotten is not shown");
    assert_eq!(value(&metrics, "postrider_dead_letters{store=\"shop\",route=\"billing\",cause=\"too-large\"}"), None);
    assert_eq!((none_yet("shop"), none_yet("depot")), (None, Some(0.0)));
}

#[test]
fn a_lane_without_an_owner_counts_where_somebody_could_own_it() {
    let metrics = shop();
    let unowned =
        |route: &str| value(&metrics, &format!("postrider_partitions_unowned{{store=\"shop\",route=\"{route}\"}}"));
    let retired = RouteStatus { route: "retired".into(), ..billing() };
    let replay = RouteStatus { route: "billing#replay-1".into(), replay_of: Some("billing".into()), ..billing() };
    metrics.show(&overview(vec![billing(), retired, replay]), &[]);
    assert_eq!((unowned("billing"), unowned("retired")), (Some(1.0), Some(0.0)), "no node has the retired one");
    assert_eq!(unowned("billing#replay-1"), Some(1.0), "it is served by those who have its route");
    metrics.show(&Overview { nodes: Vec::new(), ..overview(vec![billing()]) }, &[]);
    assert_eq!(unowned("billing"), Some(0.0), "no node is there that could own it");
}

#[test]
fn a_replay_of_old_records_has_no_age_but_shows_what_is_left() {
    let metrics = shop();
    let of =
        |name: &str, route: &str| value(&metrics, &format!("postrider_{name}{{store=\"shop\",route=\"{route}\"}}"));
    let day = Some(Duration::from_hours(24));
    let replay = RouteStatus {
        route: "billing#replay-1".into(),
        replay_of: Some("billing".into()),
        oldest_pending_age: day,
        ..billing()
    };
    metrics.show(&overview(vec![billing(), replay]), &[]);
    assert_eq!(of("outbox_oldest_pending_age_seconds", "billing"), Some(1.5));
    assert_eq!(of("outbox_oldest_pending_age_seconds", "billing#replay-1"), None, "it would wake somebody up");
    assert_eq!(of("outbox_pending", "billing#replay-1"), Some(7.0));
}

/// Prometheus sees an increase only between two samples.
#[test]
fn rejections_are_counted_from_nothing() {
    let metrics = shop();
    let rejections = || value(&metrics, "postrider_stale_epoch_rejections_total{store=\"shop\",route=\"billing\"}");
    metrics.observe(&Event::LaneAcquired { lane: &lane(), epoch: Epoch(1) });
    assert_eq!(rejections(), Some(0.0));
    metrics.observe(&Event::LaneEnded { lane: &lane(), how: "fenced" });
    metrics.observe(&Event::LaneAcquired { lane: &lane(), epoch: Epoch(3) });
    assert_eq!(rejections(), Some(1.0), "the next lane takes nothing back");
}

#[test]
fn what_is_rendered_is_as_described() {
    let metrics = shop();
    publish(&metrics, &[Outcome::Durable]);
    metrics.show(&overview(vec![billing()]), &[]);
    let all = Metrics(Arc::clone(&metrics.shared));
    let text = all.render();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let labels = |line: &str| {
        let labels = line.split_once('{').map_or("", |(_, rest)| rest.split('}').next().unwrap_or_default());
        labels.split(',').map(|label| label.split('=').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    for sample in samples {
        let name = sample.split(['{', ' ']).next().unwrap();
        let described = all.describe().iter().find(|described| match described.kind {
            "histogram" => ["_bucket", "_sum", "_count"].iter().any(|s| name.strip_suffix(s) == Some(&*described.name)),
            _ => described.name == name,
        });
        let described = described.unwrap_or_else(|| panic!("{name} is not described"));
        let shown: Vec<String> = labels(sample).into_iter().filter(|label| label != "le").collect();
        assert_eq!(shown, described.labels, "{sample}");
    }
}

#[test]
fn findings_are_shown_until_they_are_over() {
    let metrics = shop();
    let paused = Finding { route: Some("billing".to_owned()), code: "paused", what: String::new(), fix: None };
    let unread = Finding { route: None, code: "no-route", what: String::new(), fix: None };
    let shown = |route: &str, cause: &str| {
        value(&metrics, &format!("postrider_standstill{{store=\"shop\",route=\"{route}\",cause=\"{cause}\"}}"))
    };
    metrics.show_findings(&[paused, unread.clone()]);
    assert_eq!((shown("billing", "paused"), shown("", "no-route")), (Some(1.0), Some(1.0)));
    metrics.show_findings(&[unread]);
    assert_eq!((shown("billing", "paused"), shown("", "no-route")), (None, Some(1.0)));
}

#[test]
fn the_rest_of_what_is_told_is_counted() {
    let metrics = shop();
    let (cause, error) = (Cause::new("expired", "too late"), Error::invalid("no"));
    let id = postrider_core::envelope::MessageId::generate();
    metrics.observe(&Event::Dead { lane: &lane(), id, attempts: 1, cause: &cause, blocks: false });
    metrics.observe(&Event::StoreFailed { operation: "settle", error: &error });
    metrics.observe(&Event::Purged { records: 9 });
    metrics.progress(&lane(), &Progress::Read { records: 3, took: Duration::from_millis(1) });
    metrics.progress(&lane(), &Progress::Settled { took: Duration::from_millis(1) });
    let several: Vec<Arc<dyn Observer>> = Vec::new();
    several.observe(&Event::Purged { records: 1 });
    assert_eq!(
        value(&metrics, "postrider_dead_lettered_total{store=\"shop\",route=\"billing\",cause=\"expired\"}"),
        Some(1.0)
    );
    assert_eq!(value(&metrics, "postrider_store_failures_total{store=\"shop\",operation=\"settle\"}"), Some(1.0));
    assert_eq!(value(&metrics, "postrider_purged_total{store=\"shop\"}"), Some(9.0));
    assert_eq!(value(&metrics, "postrider_outbox_enqueued_total{store=\"shop\",route=\"billing\"}"), Some(3.0));
    assert_eq!(
        value(&metrics, "postrider_store_settle_duration_seconds_count{store=\"shop\",route=\"billing\"}"),
        Some(1.0)
    );
}

#[test]
fn a_store_that_tells_nothing_of_its_database_has_no_such_metrics() {
    let (bytes, age) =
        ("postrider_store_retained_log_bytes{store=\"shop\"}", "postrider_store_horizon_age_seconds{store=\"shop\"}");
    let metrics = shop();
    metrics.show_vitals(&Vitals::default());
    assert_eq!((value(&metrics, bytes), value(&metrics, age)), (None, None));
    metrics.show_vitals(&Vitals {
        horizon_age: Some(Duration::from_secs(61)),
        log_bytes: Some(4096),
        ..Vitals::default()
    });
    assert_eq!((value(&metrics, bytes), value(&metrics, age)), (Some(4096.0), Some(61.0)));
}

#[test]
fn what_was_counted_of_a_replay_goes_when_it_has_ended() {
    let metrics = shop();
    let replay = LaneId { route: "billing#replay-1".into(), number: 0 };
    let status = RouteStatus { route: "billing#replay-1".into(), replay_of: Some("billing".into()), ..billing() };
    let counted = || {
        let text = Metrics(Arc::clone(&metrics.shared)).render();
        text.lines().filter(|line| line.contains("route=\"billing#replay-1\"")).map(str::to_owned).collect::<Vec<_>>()
    };
    metrics.observe(&Event::LaneAcquired { lane: &replay, epoch: Epoch(1) });
    metrics.progress(&replay, &Progress::Read { records: 3, took: Duration::ZERO });
    metrics.progress(&replay, &Progress::Settled { took: Duration::ZERO });
    let outcomes = [Outcome::Durable, Outcome::Rejected(Cause::new("too-large", "10 MB"))];
    let enqueued_at = [Timestamp::now(), Timestamp::now()];
    metrics.progress(
        &replay,
        &Progress::Published { outcomes: &outcomes, enqueued_at: &enqueued_at, took: Duration::ZERO },
    );
    let (id, cause) = (MessageId::generate(), Cause::new("too-large", "10 MB"));
    metrics.observe(&Event::Dead { lane: &replay, id, attempts: 1, cause: &cause, blocks: false });
    publish(&metrics, &[Outcome::Durable]);
    metrics.show(&overview(vec![billing(), status]), &[]);
    metrics.observe(&Event::LaneEnded { lane: &replay, how: "finished" });
    assert!(!counted().is_empty());
    metrics.show(&overview(vec![billing()]), &[]);
    assert!(!counted().is_empty(), "its last counts are shown once more");
    metrics.show(&overview(vec![billing()]), &[]);
    assert_eq!(counted(), [""; 0]);
    assert_eq!(
        value(&metrics, "postrider_delivered_total{store=\"shop\",route=\"billing\"}"),
        Some(1.0),
        "others stay"
    );
}

#[test]
fn retention_is_behind_by_what_the_oldest_record_is_too_old() {
    let metrics = shop();
    let lag = || value(&metrics, "postrider_retention_lag_seconds{store=\"shop\"}");
    let of_age = |seconds| Vitals { oldest_record_age: Some(Duration::from_secs(seconds)), ..Vitals::default() };
    metrics.show_retention(&of_age(90), None);
    assert_eq!(lag(), None, "what is kept forever is never late");
    for (age, expected) in [(30, 0.0), (90, 30.0)] {
        metrics.show_retention(&of_age(age), Some(Duration::from_secs(60)));
        assert_eq!(lag(), Some(expected), "{age}");
    }
}
