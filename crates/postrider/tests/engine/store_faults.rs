//! A store that loses its connection, before or after it has done what it was asked: nothing is lost.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use postrider::{
    Envelope, Outcome, Relay,
    core::{
        admin::{Actor, ReplaySpec},
        lease::ReplayFilter,
        log::Log,
        parked::ParkedState,
        time::Timestamp,
    },
    relay::options::Options,
};
use postrider_store_sqlite::SqliteStore;
use postrider_testkit::{
    checker::{self, Enqueued},
    fault::{FaultyLog, Moment, Operation},
};

use crate::support::{Broker, Place, Running, Seen, message, options, rejected, retries, route, until};

on_every_store!(a_store_that_fails_all_the_time_loses_nothing);

const OPERATIONS: [(Operation, &str); 11] = [
    (Operation::Register, "register"),
    (Operation::Heartbeat, "heartbeat"),
    (Operation::Retire, "retire"),
    (Operation::Acquire, "acquire"),
    (Operation::Resume, "resume"),
    (Operation::Read, "read"),
    (Operation::Due, "due"),
    (Operation::Settle, "settle"),
    (Operation::Release, "release"),
    (Operation::Finish, "finish"),
    (Operation::Purge, "purge"),
];

#[tokio::test]
async fn every_operation_may_fail_before_or_after_it_was_applied() {
    let cases = OPERATIONS.into_iter().flat_map(|case| [(case, Moment::Before), (case, Moment::After)]);
    join_all(cases.map(|((operation, name), moment)| one_failure(operation, name, moment))).await;
}

/// A day with a bit of everything, and one operation that fails twice.
async fn one_failure(operation: Operation, name: &'static str, moment: Moment) {
    let (place, broker) = (Place::memory(), Broker::new());
    let (faulty, faults) = FaultyLog::new(Arc::clone(&place.log));
    let log: Arc<dyn Log> = Arc::new(faulty);
    let mut refusals = 2;
    broker.answer(move |record| match &record.envelope.payload[..] {
        b"b1" if refusals > 0 => {
            refusals -= 1;
            rejected("not yet")
        }
        b"c1" => rejected("never"),
        _ => Outcome::Durable,
    });
    let later = Timestamp::now().saturating_add(Duration::from_millis(20));
    let mut all: Vec<_> = ["a1", "a2", "b1", "b2", "c1"].map(message).into();
    all.push(Envelope { deliver_at: Some(later), ..message("d1") });
    place.commit(all);

    faults.fail_next(operation, moment);
    let options = Options { purge_every: Duration::from_millis(5), ..options() };
    let relay = Running::start_with(&log, [route("all", &broker).retry(retries(3))], options);
    until(format!("{name} {moment:?}: everything to arrive"), async || {
        broker.arrived().len() >= 5 && place.parked(ParkedState::Dead).await.len() == 1
    })
    .await;
    let spec = ReplaySpec {
        to: None,
        route: "all".into(),
        filter: ReplayFilter { key: Some("a".into()), ..Default::default() },
        rate: None,
    };
    place.admin.replay(&spec, &Actor::new("tester")).await.unwrap();
    until(format!("{name} {moment:?}: the replay to end"), async || {
        broker.arrived().len() >= 7 && place.overview().await.routes.len() == 1
    })
    .await;
    faults.fail_next(operation, moment);
    until(format!("{name} {moment:?}: what comes later"), async || {
        place.commit_labels(&["e1"]);
        broker.has("e1")
    })
    .await;
    let observed = relay.drained().await;
    assert!(observed.has(&Seen::StoreFailed(name)), "{name} {moment:?}");
    let live: Vec<_> = broker.records().into_iter().filter(|record| record.replay.is_none()).collect();
    for label in ["a1", "a2", "b1", "b2", "d1"] {
        let times = live.iter().filter(|record| record.envelope.payload == label).count();
        assert_eq!(times, 1, "{name} {moment:?}: {label}, and no failure of the store makes a duplicate");
    }
    assert_eq!(broker.arrived_of("b"), ["b1", "b2"]);
    assert_eq!(broker.tries("c1"), 3, "{name} {moment:?}");
}

async fn a_store_that_fails_all_the_time_loses_nothing(place: Place) {
    let broker = Broker::with_runs(3);
    let (faulty, faults) = FaultyLog::new(Arc::clone(&place.log));
    let log: Arc<dyn Log> = Arc::new(faulty);
    faults.mix(150, 150, 4711);
    let mut draws = 0_u32;
    broker.answer(move |_| {
        draws += 1;
        if draws.is_multiple_of(11) { rejected("now and then") } else { Outcome::Durable }
    });
    let mut enqueued = Vec::new();
    for n in 0..40 {
        let some: Vec<_> = ["a", "b", "c"].map(|key| message(&format!("{key}{n:02}"))).into();
        enqueued.extend(some.iter().map(|envelope| Enqueued {
            id: envelope.id,
            key: envelope.key.as_ref().map(ToString::to_string),
            sequence: n,
            committed: true,
        }));
        place.commit(some);
    }
    let relay = Running::start(&log, [route("all", &broker).retry(retries(100)).lanes(2).window(16).page(4)]);
    until("everything to be settled", async || {
        let overview = place.overview().await;
        overview
            .routes
            .first()
            .is_some_and(|status| status.pending == 0 && status.parked.retrying + status.parked.held == 0)
    })
    .await;
    faults.clear();
    let observed = relay.drained().await;
    let arrivals: Vec<_> = broker.records().iter().map(|record| record.envelope.id).collect();
    let verdict = checker::check(&enqueued, &arrivals);
    assert!(verdict.is_good(), "{verdict:?}");
    assert_eq!((verdict.delivered, verdict.duplicates), (120, 0));
    assert!(observed.count(|seen| matches!(seen, Seen::StoreFailed(_))) > 10, "the mix must have struck");
}

#[tokio::test]
async fn a_lane_that_was_fenced_is_taken_again() {
    let (place, broker) = (Place::memory(), Broker::new());
    let (faulty, faults) = FaultyLog::new(Arc::clone(&place.log));
    let log: Arc<dyn Log> = Arc::new(faulty);
    faults.fence(true);
    place.commit_labels(&["a1", "a2"]);
    let relay = Running::start(&log, [route("all", &broker)]);
    let fenced = Seen::LaneEnded("all/0".to_owned(), "fenced");
    until("the lane to be lost", async || relay.observed().has(&fenced)).await;
    faults.fence(false);
    until("everything to be settled", async || place.status("all").await.pending == 0).await;
    assert!(relay.stats().fenced() >= 1);
    relay.drained().await;
    assert!(broker.has("a1") && broker.has("a2"));
}

/// A relay must not run for ever against a store that will never do.
#[tokio::test]
async fn a_store_that_refuses_for_good_ends_the_relay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let store = SqliteStore::open(&path).await.unwrap();
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON postrider_node BEGIN SELECT RAISE(ABORT, 'no'); END";
    rusqlite::Connection::open(&path).unwrap().execute(refuse, []).unwrap();
    let relay = Relay::builder(Arc::new(store)).route(route("all", &Broker::new())).build().unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(20), relay.run()).await.expect("it gives up");
    assert!(!ended.unwrap_err().is_transient());
}
