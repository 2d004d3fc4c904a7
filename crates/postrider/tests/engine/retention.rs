//! Retention: delivered records go when they are old; nothing undelivered ever does.

use std::{sync::Arc, time::Duration};

use postrider::{
    Outcome,
    core::{log::Log, parked::ParkedState},
    relay::options::Options,
};
use postrider_testkit::fault::{FaultyLog, Moment, Operation};

use crate::support::{Broker, Place, Probe, Running, Seen, cause, options, retries, route, until};

on_every_store_with_its_clock!(
    only_what_every_route_has_passed_and_what_is_old_is_removed,
    a_dead_message_outlives_its_record,
    a_store_that_takes_its_time_over_a_purge_holds_up_no_heartbeat,
);

const HOUR: Duration = Duration::from_hours(1);

fn purging(keep: Option<Duration>) -> Options {
    Options { keep_delivered: keep, purge_every: Duration::from_millis(5), ..options() }
}

async fn only_what_every_route_has_passed_and_what_is_old_is_removed(place: Place) {
    let (quick, slow) = (Broker::new(), Broker::new());
    slow.answer(|_| Outcome::Unavailable(cause("down")));
    let (faulty, faults) = FaultyLog::new(Arc::clone(&place.log));
    let log: Arc<dyn Log> = Arc::new(faulty);
    place.commit_labels(&["a1", "a2", "a3"]);
    let routes = [route("quick", &quick), route("slow", &slow)];
    let relay = Running::start_with(&log, routes, purging(Some(HOUR)));
    until("one route to have passed", async || place.status("quick").await.pending == 0).await;
    place.pass(2 * HOUR);
    // A purge that is applied though its answer is lost: when it is told of, one has run.
    let purges = |observed: &crate::support::Observed| observed.count(|seen| *seen == Seen::StoreFailed("purge"));
    faults.fail_next(Operation::Purge, Moment::After);
    until("a purge", async || purges(relay.observed()) == 1).await;
    assert_eq!(place.overview().await.records, 3, "the other route has not delivered them");

    slow.accept();
    until("the other route to have passed", async || place.status("slow").await.pending == 0).await;
    until("the old ones to go", async || place.overview().await.records == 0).await;
    place.commit_labels(&["a4"]);
    until("a young one to be delivered", async || place.overview().await.routes.iter().all(|r| r.pending == 0)).await;
    faults.fail_next(Operation::Purge, Moment::After);
    until("another purge", async || purges(relay.observed()) == 2).await;
    assert_eq!(place.overview().await.records, 1, "it is too young");
    let observed = relay.drained().await;
    let purged: u64 =
        observed.all().iter().map(|seen| if let Seen::Purged(records) = seen { *records } else { 0 }).sum();
    assert_eq!(purged, 3);
    assert_eq!(slow.arrived(), ["a1", "a2", "a3", "a4"]);
}

async fn a_dead_message_outlives_its_record(place: Place) {
    let broker = Broker::new();
    broker.reject(&["a1"]);
    place.commit_labels(&["a1", "a2"]);
    let relay = Running::start_with(&place.log, [route("all", &broker).retry(retries(1))], purging(Some(HOUR)));
    until("the line", async || place.parked(ParkedState::Held).await.len() == 1).await;
    place.pass(2 * HOUR);
    until("the log to be empty", async || place.overview().await.records == 0).await;
    broker.accept();
    assert_eq!(place.redrive_all().await, 1);
    until("both to arrive from their rows", async || broker.arrived() == ["a1", "a2"]).await;
    relay.drained().await;
}

/// A purge that is answered only after the next heartbeats would wait for ever if these waited for it.
async fn a_store_that_takes_its_time_over_a_purge_holds_up_no_heartbeat(place: Place) {
    let broker = Broker::new();
    let log: Arc<dyn Log> = Arc::new(Probe::new(&place.log).slow_to_purge());
    place.commit_labels(&["a1"]);
    let relay = Running::start_with(&log, [route("all", &broker)], purging(Some(HOUR)));
    until("it to be delivered", async || place.status("all").await.pending == 0).await;
    place.pass(2 * HOUR);
    let purged = |seen: &Seen| matches!(seen, Seen::Purged(_));
    until("a purge to be answered", async || relay.observed().count(purged) > 0).await;
    place.commit_labels(&["a2"]);
    until("another to be delivered", async || broker.arrived() == ["a1", "a2"]).await;
    relay.drained().await;
}
