//! When the destination fails as a whole: no attempt is spent, nothing dies, and it goes on by itself.

use std::{sync::Arc, time::Duration};

use postrider::{
    Outcome, Route,
    core::{
        BoxFuture, admin::Actor, capability::PublisherCapabilities, log::RecordRef, parked::ParkedState,
        transport::Publisher,
    },
    diagnosis::why,
};
use postrider_testkit::fault::{Fault, FaultyPublisher, Mix};

use crate::support::{Broker, Place, Running, Seen, Stuck, cause, message, retries, until};

on_every_store!(
    an_outage_spends_no_attempts_and_ends_by_itself,
    an_outage_is_told_in_the_store,
    a_stop_during_an_outage_does_not_wait_for_its_end,
    messages_of_one_destination_wait_for_it_and_others_go_on,
);

fn faulty(broker: &Broker) -> (FaultyPublisher, postrider_testkit::fault::PublisherFaults) {
    FaultyPublisher::new(Arc::new(broker.clone()))
}

fn quick(publisher: impl Publisher + 'static) -> Route {
    let ms = Duration::from_millis;
    let route = Route::new("all", publisher).poll(ms(2), ms(10)).settle(1000, ms(1));
    route.breaker(ms(1), ms(5)).unknown(3, ms(1)).retry(retries(3))
}

fn no_harm(seen: &Seen) -> bool {
    matches!(seen, Seen::Dead { .. } | Seen::Rejected(..))
}

async fn an_outage_spends_no_attempts_and_ends_by_itself(place: Place) {
    let broker = Broker::new();
    let (publisher, faults) = faulty(&broker);
    faults.outage(true);
    place.commit_labels(&["a1", "a2", "b1"]);
    let relay = Running::start(&place.log, [quick(publisher).retry(retries(1))]);
    let opened = Seen::BreakerOpened("outage".to_owned());
    until("the breaker to open", async || relay.observed().has(&opened)).await;
    // Far more probes than attempts are allowed.
    until("many probes", async || relay.stats().publishes() >= 20).await;
    assert!(!relay.observed().has(&Seen::BreakerClosed));
    faults.outage(false);
    until("everything to arrive", async || broker.arrived().len() == 3).await;
    let observed = relay.drained().await;
    assert_eq!(observed.count(|seen| *seen == opened), 1, "said once, however long it lasts");
    assert_eq!(observed.count(|seen| *seen == Seen::BreakerClosed), 1);
    assert_eq!(observed.count(no_harm), 0);
    assert_eq!(broker.arrived_of("a"), ["a1", "a2"]);
    assert!(place.parked(ParkedState::Dead).await.is_empty());
}

async fn an_outage_is_told_in_the_store(place: Place) {
    let broker = Broker::new();
    broker.answer(|_| Outcome::Unavailable(cause("down")));
    place.commit_labels(&["a1"]);
    let relay = Running::start(&place.log, [quick(broker.clone())]);
    let said = async || {
        let overview = place.overview().await;
        overview.nodes.iter().flat_map(|node| &node.standstills).map(ToString::to_string).collect::<Vec<_>>()
    };
    until("the node to say why", async || {
        said().await.iter().any(|said| said.starts_with("lane all/0") && said.contains("takes nothing (down: "))
    })
    .await;
    broker.accept();
    until("the node to say no more", async || broker.has("a1") && said().await.is_empty()).await;
    relay.drained().await;
}

async fn a_stop_during_an_outage_does_not_wait_for_its_end(place: Place) {
    let broker = Broker::new();
    broker.answer(|_| Outcome::Unavailable(cause("down")));
    place.commit_labels(&["a1", "b1"]);
    let relay = Running::start(&place.log, [quick(broker.clone())]);
    until("the breaker to open", async || relay.observed().has(&Seen::BreakerOpened("down".to_owned()))).await;
    let observed = relay.drained().await;
    assert!(observed.has(&Seen::LaneEnded("all/0".to_owned(), "drained")), "not by its deadline: {:?}", observed.all());
    assert_eq!(place.status("all").await.pending, 2, "nothing was passed");
    broker.accept();
    let relay = Running::start(&place.log, [quick(broker.clone())]);
    until("everything to arrive", async || broker.arrived().len() == 2).await;
    relay.drained().await;
}

async fn messages_of_one_destination_wait_for_it_and_others_go_on(place: Place) {
    let broker = Broker::new();
    broker.answer(|record| match record.envelope.payload.starts_with(b"x") {
        true => Outcome::Unavailable(cause("no-queue")),
        false => Outcome::Durable,
    });
    let head = message("x1");
    let id = head.id;
    place.commit(vec![head, message("x2"), message("a1")]);
    let relay = Running::start(&place.log, [quick(broker.clone()).retry(retries(1))]);
    let told = Seen::SetAside(id, "no-queue".to_owned());
    let mut n = 1;
    until("it to be set aside", async || {
        n += 1;
        place.commit_labels(&[&format!("a{n}")]);
        relay.observed().has(&told)
    })
    .await;
    until("the cursor to pass all", async || place.status("all").await.pending == 0).await;
    assert_eq!(place.status("all").await.parked.dead, 0);
    until("why", async || {
        let findings = why(&*place.admin, id).await.unwrap();
        findings.iter().any(|finding| finding.code == "destination-unavailable" && finding.what.contains("no-queue: "))
    })
    .await;
    broker.accept();
    until("all to arrive", async || broker.has("x2")).await;
    let observed = relay.drained().await;
    assert_eq!(broker.arrived_of("x"), ["x1", "x2"]);
    assert_eq!(observed.count(no_harm), 0, "an outage spends no attempts: {:?}", observed.all());
}

/// Whoever shows that a destination takes nothing must learn that nobody waits for it any more.
#[tokio::test]
async fn an_outage_during_which_the_lane_begins_afresh_is_told_to_be_over() {
    let (place, broker, new) = (Place::memory(), Broker::new(), Broker::new());
    let down = Seen::BreakerOpened("down".to_owned());
    let told = |relay: &Running, seen: &Seen| relay.observed().count(|other| other == seen);
    broker.answer(|_| Outcome::Unavailable(cause("down")));
    place.commit_labels(&["a1"]);
    let relay = Running::start(&place.log, [quick(broker.clone())]);
    until("the breaker to open", async || relay.observed().has(&down)).await;
    place.admin.pause("all", &Actor::new("tester")).await.unwrap();
    until("the lane to rest", async || told(&relay, &Seen::BreakerForgotten) == 1).await;
    place.admin.resume_route("all", &Actor::new("tester")).await.unwrap();
    until("the breaker to open again", async || told(&relay, &down) == 2).await;
    relay.replace_route(quick(new.clone())).unwrap();
    until("it to arrive", async || new.has("a1")).await;
    assert_eq!(told(&relay, &Seen::BreakerForgotten), 2);
    assert_eq!(relay.drained().await.count(|seen| *seen == Seen::BreakerClosed), 0, "it has not answered");
}

#[tokio::test]
async fn another_reason_for_an_outage_is_told_once() {
    let (place, broker) = (Place::memory(), Broker::new());
    broker.answer(|_| Outcome::Unavailable(cause("down")));
    place.commit_labels(&["a1", "b1"]);
    let relay = Running::start(&place.log, [quick(broker.clone())]);
    until("the breaker to open", async || relay.observed().has(&Seen::BreakerOpened("down".to_owned()))).await;
    broker.answer(|_| Outcome::Unavailable(cause("gone")));
    let gone = Seen::OutageChanged("gone".to_owned());
    until("the other reason", async || relay.observed().has(&gone)).await;
    let probes = broker.batches().len();
    until("more probes", async || broker.batches().len() >= probes + 10).await;
    let observed = relay.drained().await;
    assert_eq!(observed.count(|seen| matches!(seen, Seen::OutageChanged(_))), 1, "{:?}", observed.all());
    assert_eq!(observed.count(|seen| matches!(seen, Seen::BreakerOpened(_))), 1);
}

#[tokio::test]
async fn an_open_breaker_sends_one_message_at_a_time() {
    let (place, broker) = (Place::memory(), Broker::new());
    broker.answer(|_| Outcome::Unavailable(cause("down")));
    place.commit((0..50).map(|n| message(&format!("{}1", char::from(b'A' + n)))).collect());
    let relay = Running::start(&place.log, [quick(broker.clone())]);
    until("many probes", async || broker.batches().len() >= 10).await;
    broker.accept();
    until("everything to arrive", async || broker.arrived().len() == 50).await;
    relay.drained().await;
    let sizes: Vec<usize> = broker.batches().iter().map(Vec::len).collect();
    assert_eq!(sizes[0], 50);
    assert!(sizes[1..10].iter().all(|size| *size == 1), "probes carry one message: {sizes:?}");
    let probed: std::collections::HashSet<_> = broker.batches()[1..10].iter().flatten().cloned().collect();
    assert!(probed.len() > 1, "and not always the same: {probed:?}");
}

#[tokio::test]
async fn a_throttled_route_pauses_and_counts_nothing() {
    let (place, broker) = (Place::memory(), Broker::new());
    let mut throttled = 5;
    broker.answer(move |_| {
        if throttled == 0 {
            return Outcome::Durable;
        }
        throttled -= 1;
        Outcome::Throttled(Duration::from_millis(2))
    });
    place.commit_labels(&["a1", "a2"]);
    let relay = Running::start(&place.log, [quick(broker.clone()).retry(retries(1))]);
    until("everything to arrive", async || broker.arrived().len() == 2).await;
    let observed = relay.drained().await;
    assert_eq!(broker.arrived(), ["a1", "a2"]);
    assert_eq!(broker.tries("a1"), 6);
    assert_eq!(observed.count(no_harm), 0);
    assert_eq!(observed.count(|seen| matches!(seen, Seen::BreakerOpened(_))), 0, "a pause is no outage");
}

#[tokio::test]
async fn a_lost_acknowledgement_publishes_the_same_id_again() {
    let (place, broker) = (Place::memory(), Broker::new());
    let (publisher, faults) = faulty(&broker);
    faults.script([Fault::LostAcknowledgement, Fault::LostAcknowledgement]);
    place.commit_labels(&["a1", "a2"]);
    let relay = Running::start(&place.log, [quick(publisher).retry(retries(1)).unknown(5, Duration::from_millis(1))]);
    until("everything to arrive", async || broker.has("a2")).await;
    let observed = relay.drained().await;
    assert_eq!(broker.arrived(), ["a1", "a1", "a1", "a2"]);
    let ids: Vec<_> = broker.records().iter().map(|record| record.envelope.id).collect();
    assert!(ids[0] == ids[1] && ids[1] == ids[2] && ids[2] != ids[3]);
    assert_eq!(observed.count(no_harm), 0);
}

#[tokio::test]
async fn a_message_that_stays_unknown_while_others_arrive_dies_of_it() {
    let (place, broker) = (Place::memory(), Broker::new());
    broker.answer(|record| match record.envelope.payload.starts_with(b"x") {
        true => Outcome::Unknown(cause("silence")),
        false => Outcome::Durable,
    });
    let bad = message("x1");
    let id = bad.id;
    place.commit(vec![bad]);
    let relay =
        Running::start(&place.log, [quick(broker.clone()).retry(retries(2)).unknown(2, Duration::from_millis(1))]);
    let dead = |cause: &str| Seen::Dead { id, attempts: 2, cause: cause.to_owned(), blocks: true };
    until("the verdict", async || {
        place.commit_labels(&["a1"]);
        relay.observed().has(&dead("result-unknown"))
    })
    .await;
    until("its row", async || !place.parked(ParkedState::Dead).await.is_empty()).await;
    assert_eq!(place.parked(ParkedState::Dead).await, [("x1".to_owned(), "result-unknown".to_owned())]);
    // Two unknown results make an attempt, and there were two. If nothing else happened to arrive in between, a pair of them
    // was taken for an outage instead, and does not count.
    let tries = broker.tries("x1");
    assert!(tries >= 4 && tries % 2 == 0, "{tries} tries");
    relay.drained().await;
}

#[tokio::test]
async fn when_nothing_is_known_of_any_message_it_is_an_outage() {
    let (place, broker) = (Place::memory(), Broker::new());
    broker.answer(|_| Outcome::Unknown(cause("silence")));
    place.commit_labels(&["a1", "b1"]);
    let relay =
        Running::start(&place.log, [quick(broker.clone()).retry(retries(1)).unknown(2, Duration::from_millis(1))]);
    until("the breaker", async || relay.observed().has(&Seen::BreakerOpened("silence".to_owned()))).await;
    broker.accept();
    until("everything to arrive", async || broker.arrived().len() == 2).await;
    assert_eq!(relay.drained().await.count(no_harm), 0);
}

#[tokio::test]
async fn a_publish_that_takes_too_long_is_given_up_and_done_again() {
    let (place, broker) = (Place::memory(), Broker::new());
    broker.stick(Stuck::Everything);
    place.commit_labels(&["a1", "a2"]);
    let route = quick(broker.clone()).publish_timeout(Duration::from_millis(5)).unknown(1000, Duration::from_millis(1));
    let relay = Running::start(&place.log, [route]);
    until("a second try", async || broker.tries("a1") >= 2).await;
    broker.stick(Stuck::Nothing);
    until("everything to arrive", async || broker.has("a2")).await;
    relay.drained().await;
    assert_eq!(broker.arrived(), ["a1", "a2"]);
    assert_eq!(broker.held_most().0, 1, "what was given up is dropped before the next try");
}

/// Answers for the first of each batch only.
struct Curt(Broker);

impl Publisher for Curt {
    fn capabilities(&self) -> PublisherCapabilities {
        self.0.capabilities()
    }

    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let mut outcomes = self.0.publish(batch).await;
            outcomes.truncate(1);
            outcomes
        })
    }
}

#[tokio::test]
async fn a_publisher_that_answers_too_few_loses_nothing() {
    let (place, broker) = (Place::memory(), Broker::with_runs(3));
    let labels = ["a1", "b1", "a2", "c1", "b2", "a3"];
    place.commit_labels(&labels);
    let relay = Running::start(&place.log, [quick(Curt(broker.clone())).unknown(1000, Duration::from_millis(1))]);
    until("everything to be settled", async || broker.arrived().len() >= 6 && place.status("all").await.pending == 0)
        .await;
    let observed = relay.drained().await;
    assert_eq!(observed.count(no_harm), 0);
    for label in labels {
        assert!(broker.has(label), "{label}");
    }
}

#[tokio::test]
async fn a_mix_of_everything_delivers_everything_in_order() {
    let (place, broker) = (Place::memory(), Broker::with_runs(3));
    let (publisher, faults) = faulty(&broker);
    let mix = Mix { rejected: 60, unavailable: 30, throttled: 30, lost_message: 60, lost_acknowledgement: 60 };
    faults.mix(mix, 7);
    let relay = Running::start(&place.log, [quick(publisher).retry(retries(50)).window(100).page(20).batches(10, 3)]);
    let keys = ["a", "b", "c", "d", "e", "f"];
    for n in 0..50 {
        place.commit(keys.iter().map(|key| message(&format!("{key}{n:03}"))).collect());
    }
    until("everything to be settled", async || {
        let status = place.status("all").await;
        status.pending == 0 && status.parked.retrying + status.parked.held == 0
    })
    .await;
    relay.drained().await;
    for key in keys {
        let mut first = broker.arrived_of(key);
        let mut seen = std::collections::HashSet::new();
        first.retain(|label| seen.insert(label.clone()));
        assert_eq!(first, (0..50).map(|n| format!("{key}{n:03}")).collect::<Vec<_>>());
    }
}
