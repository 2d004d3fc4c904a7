//! Order per key, concurrency across keys.

use std::collections::HashMap;

use postrider::{Outcome, core::lease::Order};

use crate::support::{Broker, Place, Running, Stuck, message, rejected, route, until};

on_every_store!(each_key_arrives_in_order_while_some_are_rejected, a_route_with_total_order_has_one_line);

fn labels(keys: &[&str], each: usize) -> Vec<String> {
    (0..each).flat_map(|n| keys.iter().map(move |key| format!("{key}{n:03}"))).collect()
}

fn commit(place: &Place, labels: &[String], at_once: usize) {
    for some in labels.chunks(at_once) {
        place.commit(some.iter().map(|label| message(label)).collect());
    }
}

async fn each_key_arrives_in_order_while_some_are_rejected(place: Place) {
    let broker = Broker::with_runs(4);
    let mut refused: HashMap<String, u32> = HashMap::new();
    broker.answer(move |record| {
        let label = String::from_utf8_lossy(&record.envelope.payload).into_owned();
        let times = refused.entry(label.clone()).or_default();
        *times += 1;
        // Every fifth is refused once.
        if *times == 1 && label.ends_with(['0', '5']) { rejected("once") } else { Outcome::Durable }
    });
    let all = labels(&["a", "b", "c", "d", "e"], 40);
    let relay = Running::start(&place.log, [route("all", &broker).window(64).page(16).batches(8, 4)]);
    commit(&place, &all, 7);
    until("everything to arrive", async || broker.arrived().len() >= all.len()).await;
    relay.drained().await;
    for key in ["a", "b", "c", "d", "e"] {
        let expected: Vec<_> = all.iter().filter(|label| label.starts_with(key)).cloned().collect();
        assert_eq!(broker.arrived_of(key), expected);
    }
}

#[tokio::test]
async fn a_stuck_key_does_not_stop_the_others() {
    let (place, broker) = (Place::memory(), Broker::new());
    broker.stick(Stuck::Key("a"));
    let relay = Running::start(&place.log, [route("all", &broker).batches(1, 4)]);
    commit(&place, &labels(&["a", "b", "c", "d"], 25), 10);
    until("all other keys", async || broker.arrived().len() == 75).await;
    assert_eq!(broker.tried().iter().filter(|label| label.starts_with('a')).count(), 1, "one of a key at a time");
    broker.stick(Stuck::Nothing);
    until("the stuck key", async || broker.arrived().len() == 100).await;
    relay.drained().await;
    for key in ["a", "b", "c", "d"] {
        assert_eq!(broker.arrived_of(key), (0..25).map(|n| format!("{key}{n:03}")).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn messages_of_one_key_ride_together_only_as_far_as_the_transport_promises() {
    for run_max in [1, 5] {
        let (place, broker) = (Place::memory(), Broker::with_runs(run_max));
        commit(&place, &labels(&["a", "b"], 40), 80);
        let relay = Running::start(&place.log, [route("all", &broker)]);
        until("everything to arrive", async || broker.arrived().len() == 80).await;
        relay.drained().await;
        let of_one_key = |batch: &Vec<String>, key| batch.iter().filter(|label| label.starts_with(key)).count();
        let most = broker.batches().iter().flat_map(|batch| ["a", "b"].map(|key| of_one_key(batch, key))).max();
        assert_eq!(most, Some(run_max as usize));
        for batch in broker.batches() {
            let turns = batch.windows(2).filter(|pair| pair[0][..1] != pair[1][..1]).count();
            assert!(turns <= 1, "messages of one key stand next to each other: {batch:?}");
        }
    }
}

async fn a_route_with_total_order_has_one_line(place: Place) {
    let broker = Broker::new();
    let mut first = true;
    broker.answer(move |record| {
        let refuse = record.envelope.payload.ends_with(b"a003") && std::mem::take(&mut first);
        if refuse { rejected("once") } else { Outcome::Durable }
    });
    let all = labels(&["a", "b", "c"], 10);
    let relay = Running::start(&place.log, [route("all", &broker).order(Order::Total)]);
    commit(&place, &all, 4);
    until("everything to arrive", async || broker.arrived().len() == all.len()).await;
    relay.drained().await;
    assert_eq!(broker.arrived(), all, "the order of the log, over all keys, also over a retry");
}
