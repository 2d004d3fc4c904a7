//! Messages with a time: never early, delivered after; worthless too late.

use std::{sync::Arc, time::Duration};

use postrider::{
    Envelope,
    core::{log::Log, parked::ParkedState, time::Timestamp},
};
use postrider_testkit::fault::FaultyPublisher;

use crate::support::{Broker, Place, Probe, Running, Seen, message, retries, route, until};

on_every_store_with_its_clock!(
    a_scheduled_message_is_never_early_and_comes_after,
    a_scheduled_message_does_not_hold_its_key,
    a_message_that_expired_leaves_a_dead_row_and_its_key_goes_on,
    a_message_that_expires_while_it_is_parked_is_not_published,
);

const HOUR: Duration = Duration::from_hours(1);

fn row(label: &str, cause: &str) -> (String, String) {
    (label.to_owned(), cause.to_owned())
}

fn scheduled(place: &Place, label: &str, wait: Duration) -> Envelope {
    Envelope { deliver_at: Some(place.now().saturating_add(wait)), ..message(label) }
}

async fn a_scheduled_message_is_never_early_and_comes_after(place: Place) {
    let (broker, probe) = (Broker::new(), Probe::new(&place.log));
    let log: Arc<dyn Log> = Arc::new(probe.clone());
    place.commit(vec![scheduled(&place, "a1", HOUR), message("b1")]);
    let relay = Running::start(&log, [route("all", &broker)]);
    until("it to be parked", async || place.parked(ParkedState::Scheduled).await.len() == 1).await;
    until("the other", async || broker.has("b1")).await;
    place.pass(HOUR - Duration::from_micros(1));
    probe.due_read().await;
    assert_eq!(broker.arrived(), ["b1"], "a microsecond early is early");
    place.pass(Duration::from_micros(1));
    until("it to arrive", async || broker.has("a1")).await;
    until("its row to go", async || place.parked(ParkedState::Scheduled).await.is_empty()).await;
    relay.drained().await;
    assert_eq!(broker.tries("a1"), 1);
}

async fn a_scheduled_message_does_not_hold_its_key(place: Place) {
    let broker = Broker::new();
    place.commit(vec![scheduled(&place, "a1", HOUR), message("a2"), scheduled(&place, "a3", 2 * HOUR)]);
    let relay = Running::start(&place.log, [route("all", &broker)]);
    until("the one that may go", async || broker.has("a2")).await;
    until("both to be parked", async || place.parked(ParkedState::Scheduled).await.len() == 2).await;
    place.pass(3 * HOUR);
    until("the rest", async || broker.arrived().len() == 3).await;
    relay.drained().await;
    assert_eq!(broker.arrived(), ["a2", "a1", "a3"]);
}

async fn a_message_that_expired_leaves_a_dead_row_and_its_key_goes_on(place: Place) {
    let broker = Broker::new();
    let bad = Envelope { expires_at: Some(place.now().saturating_add(HOUR)), ..message("a1") };
    let fresh = Envelope { expires_at: Some(place.now().saturating_add(3 * HOUR)), ..message("a2") };
    let id = bad.id;
    place.commit(vec![bad, fresh, message("a3")]);
    place.pass(2 * HOUR);
    let relay = Running::start(&place.log, [route("all", &broker)]);
    until("the rest of the key", async || broker.has("a3")).await;
    assert_eq!(place.parked(ParkedState::Dead).await, [row("a1", "expired")]);
    let observed = relay.drained().await;
    assert!(observed.has(&Seen::Dead { id, attempts: 0, cause: "expired".to_owned(), blocks: false }));
    assert_eq!(broker.tried(), ["a2", "a3"]);
}

async fn a_message_that_expires_while_it_is_parked_is_not_published(place: Place) {
    let broker = Broker::new();
    broker.reject(&["a1"]);
    let held = Envelope { expires_at: Some(place.now().saturating_add(HOUR)), ..message("a2") };
    place.commit(vec![message("a1"), held, message("a3")]);
    let probe = Probe::new(&place.log);
    let log: Arc<dyn Log> = Arc::new(probe.clone());
    let relay = Running::start(&log, [route("all", &broker).retry(retries(1))]);
    until("the line", async || place.parked(ParkedState::Held).await.len() == 2).await;
    place.pass(2 * HOUR);
    probe.due_read().await;
    assert_eq!(place.discard_dead().await, 1);
    until("the rest of the key", async || broker.has("a3")).await;
    relay.drained().await;
    assert_eq!(place.parked(ParkedState::Dead).await, [row("a2", "expired")]);
    assert_eq!(broker.arrived(), ["a3"]);
}

#[tokio::test]
async fn a_message_that_expires_during_an_outage_is_not_published_after_it() {
    let (place, broker) = (Place::memory(), Broker::new());
    let (publisher, faults) = FaultyPublisher::new(Arc::new(broker.clone()));
    faults.outage(true);
    let expires_at = Timestamp::now().saturating_add(Duration::from_millis(30));
    place.commit(vec![Envelope { expires_at: Some(expires_at), ..message("a1") }, message("a2")]);
    let ms = Duration::from_millis;
    let relay = Running::start(&place.log, [postrider::Route::new("all", publisher).breaker(ms(1), ms(5))]);
    until("its time to be over", async || Timestamp::now() > expires_at).await;
    until("its row", async || place.parked(ParkedState::Dead).await == [row("a1", "expired")]).await;
    faults.outage(false);
    until("the rest of the key", async || broker.has("a2")).await;
    relay.drained().await;
    assert_eq!(broker.arrived(), ["a2"]);
}
