//! Everything has a limit: it stops, it says so, and nothing is dropped.

use std::time::Duration;

use postrider::{Envelope, core::parked::ParkedState};

use crate::support::{Broker, Place, Running, Seen, Stuck, message, retries, route, until};

on_every_store!(
    a_line_that_reaches_its_limit_stops_the_lane_until_there_is_room,
    too_many_blocked_keys_stop_the_lane_until_there_is_room
);

fn large(label: &str, bytes: usize) -> Envelope {
    Envelope { payload: format!("{label} {}", "x".repeat(bytes)).into(), ..message(label) }
}

#[tokio::test]
async fn a_stuck_destination_holds_no_more_messages_than_the_window() {
    let (place, broker) = (Place::memory(), Broker::with_runs(10));
    broker.stick(Stuck::Everything);
    place.commit((0..500).map(|n| Envelope { key: None, ..message(&format!("a{n:03}")) }).collect());
    let relay = Running::start(&place.log, [route("all", &broker).window(40).page(10).batches(5, 100)]);
    until("the window to fill", async || broker.held() == 40).await;
    broker.stick(Stuck::Nothing);
    until("everything to arrive", async || broker.arrived().len() == 500).await;
    relay.drained().await;
    assert_eq!(broker.held_most().0, 40);
}

#[tokio::test]
async fn a_stuck_destination_holds_no_more_bytes_than_the_window() {
    let (place, broker) = (Place::memory(), Broker::with_runs(10));
    broker.stick(Stuck::Everything);
    let (count, size, window) = (100, 100 << 10, 1 << 20);
    for n in 0..count {
        place.commit(vec![large(&format!("{}{n:03}", char::from(b'a' + n % 20)), size)]);
    }
    let relay = Running::start(&place.log, [route("all", &broker).window_bytes(window)]);
    // Two whole messages fit into each quarter of the window, so eight are read; a ninth would not fit.
    until("the window to fill", async || broker.held() == 8).await;
    broker.stick(Stuck::Nothing);
    until("everything to arrive", async || broker.records().len() == usize::from(count)).await;
    relay.drained().await;
    let (_, bytes) = broker.held_most();
    assert!(bytes <= window, "{bytes} of {window}");
}

#[tokio::test]
async fn a_message_that_is_larger_than_the_window_goes_alone() {
    let (place, broker) = (Place::memory(), Broker::new());
    place.commit(vec![large("a1", 100), large("b1", 100 << 10), large("c1", 100)]);
    let relay = Running::start(&place.log, [route("all", &broker).window_bytes(8192)]);
    until("all three", async || broker.records().len() == 3).await;
    relay.drained().await;
}

async fn a_line_that_reaches_its_limit_stops_the_lane_until_there_is_room(place: Place) {
    let broker = Broker::new();
    broker.reject(&["a1"]);
    let all: Vec<_> = ["a1", "a2", "a3", "a4", "b1", "a5"].map(message).into();
    let fourth = all[3].id;
    place.commit(all);
    let relay = Running::start(&place.log, [route("all", &broker).retry(retries(1)).hold_at_most(3, 100)]);
    let stalled = Seen::Stalled(fourth, "held_rows_max");
    until("the lane to say so", async || relay.observed().has(&stalled)).await;
    until("another key that is in the window", async || broker.has("b1")).await;
    until("the cursor to wait at the fourth", async || {
        let status = place.status("all").await;
        (status.parked.dead, status.parked.held, status.pending) == (1, 2, 3)
    })
    .await;
    let age = place.status("all").await.oldest_pending_age;
    assert!(age.is_some_and(|age| age > Duration::ZERO), "and the age says so");
    assert_eq!(place.discard_dead().await, 1);
    until("the rest of the key", async || broker.has("a5")).await;
    until("the cursor to pass", async || place.status("all").await.pending == 0).await;
    let observed = relay.drained().await;
    assert_eq!(broker.arrived(), ["b1", "a2", "a3", "a4", "a5"]);
    assert_eq!(observed.count(|seen| *seen == stalled), 1, "said once");
}

async fn too_many_blocked_keys_stop_the_lane_until_there_is_room(place: Place) {
    let broker = Broker::new();
    broker.reject(&["a1", "b1", "c1", "d1"]);
    place.commit_labels(&["a1", "b1", "c1", "d1", "a2", "b2", "c2", "d2"]);
    let relay = Running::start(&place.log, [route("all", &broker).retry(retries(1)).hold_at_most(100, 2)]);
    let stalled = |seen: &Seen| matches!(seen, Seen::Stalled(_, "blocked_keys_max"));
    until("the lane to say so", async || relay.observed().count(stalled) > 0).await;
    until("as many rows as may be", async || place.parked(ParkedState::Dead).await.len() == 2).await;
    until("all four to be given up", async || relay.stats().dead() == 4).await;
    assert_eq!(place.parked(ParkedState::Dead).await.len(), 2, "no more than the limit");
    let mut discarded = 0;
    until("all four to be discarded", async || {
        discarded += place.discard_dead().await;
        discarded == 4
    })
    .await;
    until("what was behind them", async || broker.arrived().len() == 4).await;
    relay.drained().await;
    let mut arrived = broker.arrived();
    arrived.sort();
    assert_eq!(arrived, ["a2", "b2", "c2", "d2"]);
}
