//! What a relay tells of itself: the events of a life, and its counters.

use crate::support::{Broker, Place, Running, Seen, message, retries, route, until};

on_every_store!(the_life_of_a_relay_is_told_from_beginning_to_end);

async fn the_life_of_a_relay_is_told_from_beginning_to_end(place: Place) {
    let broker = Broker::new();
    broker.reject(&["b1"]);
    let (good, bad) = (message("a1"), message("b1"));
    let id = bad.id;
    place.commit(vec![good, bad]);
    let relay = Running::start(&place.log, [route("all", &broker).retry(retries(2))]);
    until("the verdict to be committed", async || {
        let status = place.status("all").await;
        status.parked.dead == 1 && status.pending == 0
    })
    .await;
    assert_eq!(relay.stats().lanes(), 1);
    let handle = (*relay).clone();
    let observed = relay.drained().await;
    let lane = || "all/0".to_owned();
    let expected = [
        Seen::LaneAcquired(lane()),
        Seen::Rejected(id, 1, "refused".to_owned()),
        Seen::Dead { id, attempts: 2, cause: "refused".to_owned(), blocks: true },
        Seen::LaneEnded(lane(), "drained"),
        Seen::Stopped,
    ];
    assert_eq!(observed.all(), expected);
    let stats = handle.stats();
    assert_eq!((stats.durable(), stats.dead(), stats.lanes(), stats.fenced()), (1, 1, 0, 0));
    assert_eq!(stats.publishes(), broker.batches().len() as u64);
    assert!(stats.settles() >= 1);
    assert_eq!(broker.closed(), 1, "the publisher is closed once, at the end");
}

#[tokio::test]
async fn settling_is_coalesced_over_many_messages() {
    let (place, broker) = (Place::memory(), Broker::with_runs(100));
    place.commit((0..2000).map(|n| message(&format!("{}{n}", char::from(b'a' + n as u8 % 26)))).collect());
    let relay = Running::start(&place.log, [route("all", &broker).settle(1000, std::time::Duration::from_hours(1))]);
    until("everything to arrive", async || relay.stats().durable() == 2000).await;
    let before_drain = relay.stats().settles();
    assert!(before_drain <= 4, "{before_drain} settles for two thousand messages");
    relay.drained().await;
    assert_eq!(place.status("all").await.pending, 0, "and a drain settles the rest");
}
