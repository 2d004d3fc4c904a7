//! A message that was given up: what becomes of its key, who is told, and what an operator can do.

use std::sync::{Arc, Mutex};

use postrider::{
    Envelope,
    core::{
        admin::{Actor, ParkedFilter},
        parked::ParkedState,
    },
    relay::{DeadLetter, OnDead},
};

use crate::support::{Broker, Place, Running, Seen, message, retries, route, until};

on_every_store!(
    a_dead_head_holds_its_key_until_it_is_redriven,
    a_dead_head_holds_its_key_until_it_is_discarded,
    a_key_may_go_on_without_its_dead_one,
    the_hook_is_told_of_every_dead_letter,
    a_relay_that_stops_waits_for_its_hook,
    a_redriven_message_has_its_attempts_again,
);

fn row(label: &str, cause: &str) -> (String, String) {
    (label.to_owned(), cause.to_owned())
}

async fn dead_head_and_two_behind_it(place: &Place, broker: &Broker) -> Running {
    broker.reject(&["a1"]);
    place.commit_labels(&["a1", "a2", "a3", "b1", "b2"]);
    let relay = Running::start(&place.log, [route("all", broker).retry(retries(2))]);
    until("the line in the store", async || {
        place.parked(ParkedState::Dead).await == [row("a1", "refused")]
            && place.parked(ParkedState::Held).await == [row("a2", ""), row("a3", "")]
    })
    .await;
    until("the other key", async || broker.arrived() == ["b1", "b2"]).await;
    relay
}

async fn a_dead_head_holds_its_key_until_it_is_redriven(place: Place) {
    let broker = Broker::new();
    let relay = dead_head_and_two_behind_it(&place, &broker).await;
    place.commit_labels(&["a4"]);
    until("the fourth to be held as well", async || place.parked(ParkedState::Held).await.len() == 3).await;
    broker.accept();
    assert_eq!(place.redrive_all().await, 1);
    until("the key to go on", async || broker.has("a4")).await;
    relay.drained().await;
    assert_eq!(broker.arrived_of("a"), ["a1", "a2", "a3", "a4"]);
    let audit = place.admin.audit(10).await.unwrap();
    assert_eq!((audit[0].action.as_str(), audit[0].actor.name.as_str()), ("redrive", "tester"));
}

async fn a_dead_head_holds_its_key_until_it_is_discarded(place: Place) {
    let broker = Broker::new();
    let relay = dead_head_and_two_behind_it(&place, &broker).await;
    assert_eq!(place.discard_dead().await, 1);
    until("the key to go on", async || broker.has("a3")).await;
    place.commit_labels(&["a4"]);
    until("what comes later", async || broker.has("a4")).await;
    relay.drained().await;
    assert_eq!(broker.arrived_of("a"), ["a2", "a3", "a4"]);
    assert_eq!(broker.tries("a1"), 2, "given up for good");
}

async fn a_key_may_go_on_without_its_dead_one(place: Place) {
    let broker = Broker::new();
    broker.reject(&["a1"]);
    let bad = message("a1");
    let id = bad.id;
    place.commit(vec![bad, message("a2"), message("a3")]);
    let relay = Running::start(&place.log, [route("all", &broker).retry(retries(2)).on_dead(OnDead::Continue)]);
    until("the rest of the key", async || broker.arrived() == ["a2", "a3"]).await;
    assert_eq!(
        place.parked(ParkedState::Dead).await,
        [row("a1", "refused")],
        "its verdict is older than what follows it"
    );
    assert!(relay.observed().has(&Seen::Dead { id, attempts: 2, cause: "refused".to_owned(), blocks: false }));
    broker.accept();
    assert_eq!(place.redrive_all().await, 1);
    until("the redriven one", async || broker.has("a1")).await;
    relay.drained().await;
    assert_eq!(broker.arrived(), ["a2", "a3", "a1"], "behind what its key has had meanwhile");
    until("no row to be left", async || place.parked(ParkedState::Dead).await.is_empty()).await;
}

async fn the_hook_is_told_of_every_dead_letter(place: Place) {
    let broker = Broker::new();
    broker.reject(&["a1", "b1"]);
    let letters: Arc<Mutex<Vec<DeadLetter>>> = Arc::default();
    let kept = Arc::clone(&letters);
    let hooked = route("billing", &broker).retry(retries(3)).on_dead_letter(move |letter| {
        let kept = Arc::clone(&kept);
        async move { kept.lock().unwrap().push(letter) }
    });
    let bad = Envelope { attempts_max: Some(1), ..message("b1") };
    place.commit(vec![message("a1"), bad, message("c1")]);
    let relay = Running::start(&place.log, [hooked]);
    until("both letters", async || letters.lock().unwrap().len() == 2).await;
    relay.drained().await;
    let mut told: Vec<_> = letters
        .lock()
        .unwrap()
        .iter()
        .map(|letter| {
            let label = String::from_utf8_lossy(&letter.record.envelope.payload).into_owned();
            (label, letter.route.to_string(), letter.attempts, letter.cause.code().to_owned(), letter.blocks)
        })
        .collect();
    told.sort();
    let expected =
        |label: &str, attempts| (label.to_owned(), "billing".to_owned(), attempts, "refused".to_owned(), true);
    assert_eq!(told, [expected("a1", 3), expected("b1", 1)]);
}

async fn a_relay_that_stops_waits_for_its_hook(place: Place) {
    let broker = Broker::new();
    broker.reject(&["a1"]);
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let (finish, finishing) = tokio::sync::watch::channel(false);
    let done = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&done);
    let slow = route("all", &broker).retry(retries(1)).on_dead_letter(move |_| {
        let (begun, mut finishing, counted) = (begun.clone(), finishing.clone(), Arc::clone(&counted));
        async move {
            begun.send(()).unwrap();
            finishing.wait_for(|finish| *finish).await.unwrap();
            *counted.lock().unwrap() += 1;
        }
    });
    place.commit_labels(&["a1"]);
    let relay = Running::start(&place.log, [slow]);
    begins.recv().await.unwrap();
    relay.drain();
    until("its lanes to be given back", async || relay.stats().lanes() == 0).await;
    until("its goodbye", async || place.overview().await.nodes.is_empty()).await;
    assert!(!relay.observed().has(&Seen::Stopped), "it waits for the hook");
    finish.send(true).unwrap();
    relay.ended().await;
    assert_eq!(*done.lock().unwrap(), 1, "told to the end before the relay is over");
}

async fn a_redriven_message_has_its_attempts_again(place: Place) {
    let broker = Broker::new();
    let relay = dead_head_and_two_behind_it(&place, &broker).await;
    assert_eq!(broker.tries("a1"), 2);
    assert_eq!(place.redrive_all().await, 1);
    until("two more attempts", async || {
        broker.tries("a1") == 4 && place.parked(ParkedState::Dead).await == [row("a1", "refused")]
    })
    .await;
    assert_eq!(relay.stats().dead(), 2);
    let by_cause = ParkedFilter { cause: Some("another".to_owned()), ..ParkedFilter::default() };
    assert_eq!(place.admin.redrive(&by_cause, &Actor::new("tester")).await.unwrap(), 0, "a filter chooses");
    relay.drained().await;
    assert_eq!(broker.arrived(), ["b1", "b2"]);
}
