//! A message that is refused: tried again as the policy says, and given up after exactly so many attempts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use postrider::{
    Envelope, Outcome, Route,
    core::{
        BoxFuture,
        capability::PublisherCapabilities,
        log::RecordRef,
        parked::ParkedState,
        retry::{Backoff, Jitter, RetryPolicy},
        transport::Publisher,
    },
    handler::Handler,
};

use crate::support::{Broker, Place, Running, Seen, message, rejected, retries, route, until};

on_every_store!(
    a_refused_message_dies_after_exactly_its_attempts,
    a_message_can_have_its_own_number_of_attempts,
    a_message_that_is_taken_in_the_end_is_not_dead
);

async fn a_refused_message_dies_after_exactly_its_attempts(place: Place) {
    let ms = Duration::from_millis(1);
    let policies = [
        Backoff::Fixed { wait: ms },
        Backoff::Linear { step: ms, max: 3 * ms },
        Backoff::Exponential { first: ms, factor: 2.0, max: 4 * ms },
    ];
    let mut brokers = Vec::new();
    let mut routes = Vec::new();
    for (n, backoff) in policies.into_iter().enumerate() {
        let broker = Broker::new();
        broker.reject(&["a1"]);
        let policy = RetryPolicy { attempts_max: 4, backoff, jitter: Jitter::Half };
        routes.push(route(&format!("route-{n}"), &broker).retry(policy));
        brokers.push(broker);
    }
    let bad = message("a1");
    let id = bad.id;
    place.commit(vec![bad, message("b1")]);
    let relay = Running::start(&place.log, routes);
    until("all three to give up", async || place.parked(ParkedState::Dead).await.len() == 3).await;
    let observed = relay.drained().await;
    for attempts in 1..4 {
        let rejected = Seen::Rejected(id, attempts, "refused".to_owned());
        assert_eq!(observed.count(|seen| *seen == rejected), 3, "attempt {attempts}");
    }
    let dead = Seen::Dead { id, attempts: 4, cause: "refused".to_owned(), blocks: true };
    assert_eq!(observed.count(|seen| *seen == dead), 3);
    for broker in brokers {
        assert_eq!(broker.tries("a1"), 4);
        assert_eq!(broker.arrived(), ["b1"]);
    }
}

async fn a_message_can_have_its_own_number_of_attempts(place: Place) {
    let broker = Broker::new();
    broker.answer(|_| rejected("refused"));
    place.commit(vec![
        Envelope { attempts_max: Some(1), ..message("a1") },
        Envelope { attempts_max: Some(5), ..message("b1") },
        message("c1"),
    ]);
    let relay = Running::start(&place.log, [route("all", &broker).retry(retries(2))]);
    until("all to be dead", async || place.parked(ParkedState::Dead).await.len() == 3).await;
    relay.drained().await;
    assert_eq!(["a1", "b1", "c1"].map(|label| broker.tries(label)), [1, 5, 2]);
}

async fn a_message_that_is_taken_in_the_end_is_not_dead(place: Place) {
    let broker = Broker::new();
    let mut refusals = 2;
    broker.answer(move |record| {
        if record.envelope.payload == "a1" && refusals > 0 {
            refusals -= 1;
            return rejected("not yet");
        }
        Outcome::Durable
    });
    place.commit_labels(&["a1", "a2", "b1"]);
    let relay = Running::start(&place.log, [route("all", &broker).retry(retries(3))]);
    until("everything to arrive", async || broker.arrived().len() == 3).await;
    let observed = relay.drained().await;
    assert_eq!(broker.arrived_of("a"), ["a1", "a2"]);
    assert_eq!(observed.count(|seen| matches!(seen, Seen::Rejected(..))), 2);
    assert_eq!(observed.count(|seen| matches!(seen, Seen::Dead { .. })), 0);
    assert_eq!(place.status("all").await.parked, postrider::core::admin::ParkedCounts::default());
}

/// The count of attempts lives in the row, so that a new owner does not begin again from one.
#[tokio::test]
async fn attempts_are_counted_on_by_the_next_relay() {
    let (place, broker) = (Place::memory_by_hand(), Broker::new());
    broker.reject(&["a1"]);
    let hour = Duration::from_hours(1);
    let policy = RetryPolicy { attempts_max: 3, backoff: Backoff::Fixed { wait: hour }, jitter: Jitter::None };
    let route = || route("all", &broker).retry(policy.clone());
    place.commit_labels(&["a1", "a2"]);
    for attempt in 1..=3 {
        let relay = Running::start(&place.log, [route()]);
        until("one more attempt", async || broker.tries("a1") == attempt).await;
        let state = if attempt < 3 { ParkedState::Retrying } else { ParkedState::Dead };
        until("its row", async || place.parked(state).await.len() == 1).await;
        relay.drained().await;
        place.pass(hour);
    }
    assert_eq!(broker.tries("a1"), 3);
    assert_eq!(broker.tries("a2"), 0, "its key waits all the while");
    assert_eq!(place.parked(ParkedState::Held).await, [("a2".to_owned(), String::new())]);
}

#[tokio::test]
async fn a_panicking_handler_costs_an_attempt_and_not_the_process() {
    let place = Place::memory();
    let calls = Arc::new(AtomicU32::default());
    let counted = Arc::clone(&calls);
    let handler = Handler::new(move |_| {
        let call = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            assert!(call > 0, "the first call panics");
        }
    });
    let bad = message("a1");
    let id = bad.id;
    place.commit(vec![bad, message("a2")]);
    let relay = Running::start(&place.log, [Route::new("all", handler).retry(retries(3))]);
    until("both to be handled", async || calls.load(Ordering::SeqCst) == 3).await;
    let observed = relay.drained().await;
    assert!(observed.has(&Seen::Rejected(id, 1, "panic".to_owned())), "{:?}", observed.all());
}

#[tokio::test]
async fn a_handler_says_by_what_it_returns_what_became_of_a_message() {
    let place = Place::memory();
    let handler = Handler::new(|record: RecordRef| async move {
        match &record.envelope.payload[..] {
            b"a1" => Err("no such customer"),
            _ => Ok(()),
        }
    });
    place.commit_labels(&["a1", "b1"]);
    let relay = Running::start(&place.log, [Route::new("all", handler).retry(retries(1))]);
    until("its row", async || place.parked(ParkedState::Dead).await.len() == 1).await;
    relay.drained().await;
    assert_eq!(place.parked(ParkedState::Dead).await, [("a1".to_owned(), "handler".to_owned())]);
}

/// A publisher that breaks its word and panics takes its lane with it, not the relay.
struct Fragile(Broker, AtomicU32);

impl Publisher for Fragile {
    fn capabilities(&self) -> PublisherCapabilities {
        self.0.capabilities()
    }

    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            assert!(self.1.fetch_add(1, Ordering::SeqCst) > 0, "the first publish panics");
            self.0.publish(batch).await
        })
    }
}

#[tokio::test]
async fn a_panicking_publisher_costs_its_lane_which_is_taken_again() {
    let (place, broker) = (Place::memory(), Broker::new());
    place.commit_labels(&["a1", "a2"]);
    let publisher = Fragile(broker.clone(), AtomicU32::default());
    let relay = Running::start(&place.log, [Route::new("all", publisher)]);
    until("everything to arrive", async || broker.has("a2")).await;
    let observed = relay.drained().await;
    assert!(observed.has(&Seen::LaneEnded("all/0".to_owned(), "crashed")), "{:?}", observed.all());
    assert_eq!(observed.count(|seen| matches!(seen, Seen::LaneAcquired(_))), 2);
    assert_eq!(broker.arrived(), ["a1", "a2"]);
}
