//! Why a message waits: every cause is named, with what to do about it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use postrider::{
    Envelope, MessageId, Outcome, Route,
    core::{
        admin::{Actor, ParkedFilter, ReplaySpec},
        key::KeyHash,
        lease::{Order, ReplayFilter},
        log::Log,
        retry::RetryPolicy,
        standstill::{Reason, Standstill},
        time::Timestamp,
    },
    diagnosis::{Finding, Topics, survey, why},
    relay::OnDead,
};
use postrider_testkit::fault::{FaultyLog, LogFaults, Operation};

use crate::support::{Broker, Place, Running, Seen, Stuck, cause, message, retries, route, until};

on_every_store!(
    what_the_store_has_never_seen_is_unknown,
    a_topic_that_nobody_reads_is_named,
    a_delivered_message_is_said_to_be,
    a_store_without_a_relay_is_named,
    a_route_that_no_relay_has_is_named,
    a_pause_is_named_with_who_and_why,
    a_destination_that_refuses_is_named,
    a_cause_does_not_answer_for_the_time_of_another,
    a_scheduled_message_says_when,
    a_refused_message_says_how_often_and_why,
    a_refused_message_behind_an_outage_says_what_it_waits_for,
    a_refused_message_does_not_wait_for_what_another_lane_waits_for,
    a_dead_message_and_those_behind_it_are_told_apart,
    a_held_message_names_the_head_of_its_own_key_however_many_are_scheduled_before_it,
    in_total_order_a_held_message_names_the_head_of_another_key,
    a_redriven_message_says_who_put_it_back_and_what_it_was_given_up_for,
    a_limit_that_keeps_the_cursor_is_named,
    a_message_without_an_answer_is_named,
    a_message_is_discarded_on_the_route_that_gave_it_up_and_delivered_on_the_other,
    a_message_that_was_there_before_its_topic_was_added_is_not_said_to_be_delivered,
    a_survey_names_what_is_refused_given_up_and_unread,
    a_survey_tells_what_is_refused_from_what_waits_for_its_own_destination,
    a_survey_names_what_a_replay_has_given_up_also_when_it_has_ended,
    a_store_where_all_is_well_has_nothing_in_its_survey,
    a_log_that_cannot_be_read_is_named_also_where_nothing_is_known_to_wait,
    a_store_that_lets_no_lane_begin_is_named,
);

async fn found(place: &Place, id: MessageId) -> Vec<Finding> {
    why(&*place.admin, id).await.unwrap()
}

/// Waits until the first finding has this code, and returns it.
async fn finding(place: &Place, id: MessageId, code: &str) -> Finding {
    let mut last = Vec::new();
    until(format!("{id} to be found {code}"), async || {
        last = found(place, id).await;
        last.first().is_some_and(|finding| finding.code == code)
    })
    .await;
    last.remove(0)
}

fn one(place: &Place, label: &str) -> MessageId {
    let envelope = message(label);
    let id = envelope.id;
    place.commit(vec![envelope]);
    id
}

async fn what_the_store_has_never_seen_is_unknown(place: Place) {
    let finding = finding(&place, MessageId::generate(), "unknown").await;
    assert!(finding.what.contains("rolled back"), "{finding:?}");
}

async fn a_topic_that_nobody_reads_is_named(place: Place) {
    let broker = Broker::new();
    let relay = Running::start(&place.log, [route("billing", &broker).topics(["payments.*"])]);
    place.status("billing").await;
    let id = one(&place, "a1");
    let finding = finding(&place, id, "no-route").await;
    assert!(finding.what.contains("`orders.placed`") && finding.what.contains("payments.*"), "{finding:?}");
    relay.drained().await;
}

async fn a_delivered_message_is_said_to_be(place: Place) {
    let broker = Broker::new();
    let id = one(&place, "a1");
    let relay = Running::start(&place.log, [route("all", &broker)]);
    let finding = finding(&place, id, "passed").await;
    assert_eq!(finding.route.as_deref(), Some("all"));
    relay.drained().await;
}

async fn a_store_without_a_relay_is_named(place: Place) {
    let relay = Running::start(&place.log, [route("all", &Broker::new())]);
    place.status("all").await;
    relay.drained().await;
    let id = one(&place, "a1");
    let finding = finding(&place, id, "no-relay").await;
    assert!(finding.fix.unwrap().contains("postrider run"));
}

async fn a_route_that_no_relay_has_is_named(place: Place) {
    let first = Running::start(&place.log, [route("old", &Broker::new())]);
    place.status("old").await;
    first.drained().await;
    let second = Running::start(&place.log, [route("new", &Broker::new()).topics(["payments"])]);
    place.status("new").await;
    let id = one(&place, "a1");
    let finding = finding(&place, id, "not-served").await;
    assert!(finding.what.contains("alive: test"), "{finding:?}");
    second.drained().await;
}

async fn a_pause_is_named_with_who_and_why(place: Place) {
    let relay = Running::start(&place.log, [route("all", &Broker::new())]);
    place.status("all").await;
    let actor = Actor { name: "anna".to_owned(), reason: Some("maintenance".to_owned()) };
    place.admin.pause("all", &actor).await.unwrap();
    until("the lane to rest", async || {
        let id = one(&place, "p1");
        found(&place, id).await.first().is_some_and(|finding| finding.code == "paused")
    })
    .await;
    let id = one(&place, "a1");
    let finding = finding(&place, id, "paused").await;
    assert_eq!(finding.what, "the route is paused by anna: maintenance");
    assert_eq!(finding.fix.as_deref(), Some("postrider route resume all"));
    relay.drained().await;
}

async fn a_destination_that_refuses_is_named(place: Place) {
    let broker = Broker::new();
    broker.answer(|_| Outcome::Unavailable(cause("down")));
    let id = one(&place, "a1");
    let ms = Duration::from_millis;
    let relay = Running::start(&place.log, [route("all", &broker).breaker(ms(1), ms(5))]);
    let finding = finding(&place, id, "unavailable").await;
    assert!(finding.what.contains("takes nothing (down: ") && finding.what.contains("says test"), "{finding:?}");
    broker.accept();
    relay.drained().await;
}

async fn a_cause_does_not_answer_for_the_time_of_another(place: Place) {
    let broker = Broker::new();
    broker.answer(|_| Outcome::Unavailable(cause("connect")));
    let id = one(&place, "a1");
    let place_now = place.overview().await.at;
    let relay = Running::start(&place.log, [route("all", &broker)]);
    until("an outage that lasts", async || relay.standstills().first().is_some_and(|still| still.seconds >= 2)).await;
    let changed_at = Instant::now();
    let hour = Duration::from_hours(1);
    broker.answer(move |_| Outcome::Throttled(hour));
    let is_throttled = |still: &Standstill| matches!(still.reason, Reason::Throttled { .. });
    let throttled = async || relay.standstills().into_iter().find(is_throttled);
    until("the other cause", async || throttled().await.is_some()).await;
    let still = throttled().await.unwrap();
    assert!(still.seconds <= changed_at.elapsed().as_secs(), "{still} after {:?}", changed_at.elapsed());
    // Whoever listens or asks is told when it will be over.
    assert!(relay.observed().has(&Seen::Throttled(hour)));
    let finding = finding(&place, id, "throttled").await;
    let until = finding.what.split_once(" until ").expect("when").1.split_once(' ').expect("and more").0;
    let around = |minutes| place_now.saturating_add(Duration::from_mins(minutes)).to_string();
    assert!(*around(55) < *until && *until < *around(65), "{finding:?}");
    relay.drained().await; // which does not wait for the pause
}

async fn a_scheduled_message_says_when(place: Place) {
    let later = Timestamp::now().saturating_add(Duration::from_hours(2));
    let envelope = Envelope { deliver_at: Some(later), ..message("a1") };
    let id = envelope.id;
    place.commit(vec![envelope]);
    let relay = Running::start(&place.log, [route("all", &Broker::new())]);
    let finding = finding(&place, id, "scheduled").await;
    assert!(finding.what.contains("in 1h 59m") || finding.what.contains("in 2h"), "{finding:?}");
    relay.drained().await;
}

fn slow_retry() -> RetryPolicy {
    RetryPolicy { backoff: postrider::core::retry::Backoff::Fixed { wait: Duration::from_hours(1) }, ..retries(5) }
}

async fn a_refused_message_says_how_often_and_why(place: Place) {
    let broker = Broker::new();
    broker.reject(&["a1"]);
    let id = one(&place, "a1");
    let relay = Running::start(&place.log, [route("all", &broker).retry(slow_retry())]);
    let finding = finding(&place, id, "retrying").await;
    assert!(
        finding.what.contains("after 1 attempt (refused: ") && finding.what.contains("next attempt in"),
        "{finding:?}"
    );
    relay.drained().await;
}

/// Its own time has come long since: what it waits for is the next try of the destination.
async fn a_refused_message_behind_an_outage_says_what_it_waits_for(place: Place) {
    let (broker, hour) = (Broker::new(), Duration::from_hours(1));
    broker.reject(&["a1"]);
    let id = one(&place, "a1");
    let backoff = postrider::core::retry::Backoff::Fixed { wait: Duration::from_secs(1) };
    let soon = RetryPolicy { backoff, ..retries(1_000) };
    let relay = Running::start(&place.log, [route("all", &broker).retry(soon).breaker(hour, hour)]);
    finding(&place, id, "retrying").await;
    broker.answer(|_| Outcome::Unavailable(cause("down")));
    one(&place, "b1");
    let mut told = Vec::new();
    until("an outage, and the time of the next attempt", async || {
        told = found(&place, id).await;
        told.last().is_some_and(|own| own.what.contains("has come, and it goes when its route does"))
    })
    .await;
    let [outage, own] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!((outage.code, own.code), ("unavailable", "retrying"));
    assert!(outage.what.contains("; it is tried again at 20") && !own.what.contains("0ms"), "{told:?}");
    relay.crash().await;
}

async fn a_refused_message_does_not_wait_for_what_another_lane_waits_for(place: Place) {
    let broker = Broker::new();
    broker.reject(&["a1"]);
    broker.stick(Stuck::Key("b"));
    let (refused, stuck) = (one(&place, "a1"), one(&place, "b1"));
    let [a, b] = [b"a", b"b"].map(|key| KeyHash::of(key));
    let lanes = (2..).find(|lanes| a.lane(*lanes) != b.lane(*lanes)).expect("two hashes differ");
    let split = route("all", &broker).lanes(lanes).retry(slow_retry()).publish_timeout(Duration::from_hours(1));
    let relay = Running::start(&place.log, [split]);
    finding(&place, stuck, "attempted").await;
    finding(&place, refused, "retrying").await;
    let told = found(&place, refused).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].what.contains("; next attempt in") && !told[0].what.contains("at the earliest"), "{told:?}");
    relay.crash().await;
}

async fn a_dead_message_and_those_behind_it_are_told_apart(place: Place) {
    let broker = Broker::new();
    broker.reject(&["a1"]);
    let (head, behind) = (one(&place, "a1"), one(&place, "a2"));
    let relay = Running::start(&place.log, [route("all", &broker).retry(retries(1))]);
    let dead = finding(&place, head, "dead").await;
    assert!(dead.fix.unwrap().contains(&format!("postrider dead redrive --route all --id {head}")));
    let held = finding(&place, behind, "held").await;
    assert!(held.what.contains(&format!("behind message {head}")) && held.what.contains("which is dead"), "{held:?}");
    relay.drained().await;
}

async fn a_message_without_an_answer_is_named(place: Place) {
    let broker = Broker::new();
    broker.stick(Stuck::Everything);
    let id = one(&place, "a1");
    let publish_timeout = Duration::from_hours(1);
    let relay = Running::start(&place.log, [Route::new("all", broker.clone()).publish_timeout(publish_timeout)]);
    let finding = finding(&place, id, "attempted").await;
    assert!(finding.what.contains("has no answer from the destination yet"), "{finding:?}");
    relay.crash().await;
}

/// What is scheduled is parked before the head and stands in no line; another key has a dead head of its own.
async fn a_held_message_names_the_head_of_its_own_key_however_many_are_scheduled_before_it(place: Place) {
    const SCHEDULED: u64 = 120;
    let broker = Broker::new();
    broker.reject(&["a1", "b1"]);
    let dead_at_once = |label: &str| Envelope { attempts_max: Some(1), ..message(label) };
    let later = Timestamp::now().saturating_add(Duration::from_hours(2));
    place.commit(vec![dead_at_once("a1")]);
    place.commit((0..SCHEDULED).map(|_| Envelope { deliver_at: Some(later), ..message("b0") }).collect());
    let relay = Running::start(&place.log, [route("all", &broker)]);
    until("all of these to be parked", async || {
        let parked = place.status("all").await.parked;
        (parked.dead, parked.scheduled) == (1, SCHEDULED)
    })
    .await;
    let head = dead_at_once("b1");
    let head_id = head.id;
    place.commit(vec![head]);
    let held = one(&place, "b2");
    let found = finding(&place, held, "held").await;
    assert!(found.what.contains(&format!("message {head_id} (key `b`), which is dead")), "{found:?}");
    assert!(found.fix.unwrap().contains(&format!("--id {head_id}")));
    relay.drained().await;
}

async fn in_total_order_a_held_message_names_the_head_of_another_key(place: Place) {
    let broker = Broker::new();
    broker.reject(&["a1"]);
    let head = Envelope { attempts_max: Some(1), ..message("a1") };
    let head_id = head.id;
    place.commit(vec![head]);
    let held = one(&place, "b1");
    let relay = Running::start(&place.log, [route("all", &broker).order(Order::Total)]);
    let found = finding(&place, held, "held").await;
    assert!(
        found.what.contains(&format!("message {head_id} (the route keeps total order), which is dead")),
        "{found:?}"
    );
    relay.drained().await;
}

async fn a_redriven_message_says_who_put_it_back_and_what_it_was_given_up_for(place: Place) {
    // Once as the head of its key, which is held, and once beside a key that has gone on.
    for (name, on_dead) in [("hold", OnDead::Hold), ("continue", OnDead::Continue)] {
        let broker = Broker::new();
        broker.reject(&["a1"]);
        let envelope = Envelope { attempts_max: Some(1), ..message("a1") };
        let id = envelope.id;
        place.commit(vec![envelope]);
        let relay = Running::start(&place.log, [route(name, &broker).on_dead(on_dead)]);
        let of_route = async |code: &str| {
            found(&place, id).await.into_iter().find(|found| found.route.as_deref() == Some(name) && found.code == code)
        };
        until("it is given up", async || of_route("dead").await.is_some()).await;
        relay.drained().await;
        let filter = ParkedFilter { route: Some(name.to_owned()), ..ParkedFilter::default() };
        let actor = Actor { name: "anna".to_owned(), reason: Some("mended".to_owned()) };
        assert!(place.admin.redrive(&filter, &actor).await.unwrap() >= 1);
        let back = of_route("redriven").await.expect("it is said that it was put back");
        assert!(back.what.starts_with("anna has put it back at ") && back.what.contains(": mended;"), "{back:?}");
        assert!(back.what.contains("it was given up for refused: "), "{back:?}");
        for wrong in ["scheduled", "retrying"] {
            assert_eq!(of_route(wrong).await, None, "{name}");
        }
        assert!(of_route("no-relay").await.is_some(), "what keeps it from going on is said as well");
    }
}

async fn a_limit_that_keeps_the_cursor_is_named(place: Place) {
    let broker = Broker::new();
    broker.reject(&["a1", "b1"]);
    one(&place, "a1");
    one(&place, "a2");
    let third = one(&place, "a3");
    let relay = Running::start(&place.log, [route("all", &broker).retry(slow_retry()).hold_at_most(1, 1)]);
    let found = finding(&place, third, "limit").await;
    assert!(found.what.contains("the limit `held_rows_max`"), "{found:?}");
    assert!(found.fix.unwrap().contains("postrider dead list --route all"));
    until("the survey names it too", async || {
        surveyed(&place).await.iter().any(|told| told.starts_with("limit: all: "))
    })
    .await;
    relay.drained().await;
}

/// Code and sentence of everything that a survey finds.
async fn surveyed(place: &Place) -> Vec<String> {
    let overview = place.admin.overview().await.unwrap();
    let mut topics = Topics::default();
    topics.look(&*place.admin).await.unwrap();
    let found = survey(&*place.admin, &overview, &topics).await.unwrap();
    found.iter().map(|finding| format!("{}: {finding}", finding.code)).collect()
}

async fn a_survey_names_what_is_refused_given_up_and_unread(place: Place) {
    let broker = Broker::new();
    broker.reject(&["a1", "b1"]);
    one(&place, "a1");
    one(&place, "a2");
    place.commit(vec![Envelope { attempts_max: Some(1), ..message("b1") }, Envelope::new("strange.topic", "n", "")]);
    let relay = Running::start(&place.log, [route("all", &broker).topics(["orders.*"]).retry(slow_retry())]);
    let mut last = Vec::new();
    until("everything to be found", async || {
        last = surveyed(&place).await;
        last.len() == 3 && last[0].ends_with("held behind such: 1")
    })
    .await;
    assert!(last[0].starts_with("retrying: all: 1 message was refused and is tried again (refused: "), "{last:?}");
    assert_eq!(last[1], "dead: all: 1 message was given up (1 refused); its key waits behind it");
    assert!(last[2].starts_with("no-route: no route reads") && last[2].contains("`strange.topic` (1)"), "{last:?}");
    relay.drained().await;
}

async fn a_message_is_discarded_on_the_route_that_gave_it_up_and_delivered_on_the_other(place: Place) {
    let (billing, audit) = (Broker::new(), Broker::new());
    billing.reject(&["a1"]);
    let id = one(&place, "a1");
    let routes = [route("billing", &billing).retry(retries(1)), route("audit", &audit)];
    let relay = Running::start(&place.log, routes);
    until("both to be done with it", async || {
        let codes: Vec<_> = found(&place, id).await.iter().map(|finding| finding.code).collect();
        codes == ["dead", "passed"]
    })
    .await;
    // Whoever names the message need not say which route.
    let filter = ParkedFilter { id: Some(id), ..ParkedFilter::default() };
    assert_eq!(place.admin.discard(&filter, &Actor::new("anna")).await.unwrap(), 1);
    let mut told: Vec<_> =
        found(&place, id).await.into_iter().map(|finding| (finding.route.unwrap(), finding.code)).collect();
    told.sort_unstable();
    assert_eq!(told, [("audit".to_owned(), "passed"), ("billing".to_owned(), "discarded")]);
    relay.drained().await;
}

async fn a_message_that_was_there_before_its_topic_was_added_is_not_said_to_be_delivered(place: Place) {
    let (broker, refund) = (Broker::new(), |label: &str| Envelope { topic: "refunds".into(), ..message(label) });
    let early = refund("a1");
    place.commit(vec![early.clone()]);
    let later = one(&place, "b1");
    let orders = ["orders.*"];
    let relay = Running::start(&place.log, [route("all", &broker).topics(orders)]);
    finding(&place, later, "passed").await;
    finding(&place, early.id, "no-route").await;
    relay.drained().await;

    let relay = Running::start(&place.log, [route("all", &broker).topics(["orders.*", "refunds"])]);
    let told = finding(&place, early.id, "perhaps-passed-over").await;
    assert!(told.what.contains("reads its topic only since 20"), "{told:?}");
    assert!(told.fix.unwrap().contains("postrider replay --route all --topic refunds"));
    let late = refund("a2");
    place.commit(vec![late.clone()]);
    finding(&place, late.id, "passed").await;
    assert!(broker.has("a2") && !broker.has("a1"), "{:?}", broker.arrived());
    relay.drained().await;

    // What was enqueued while it was read stays delivered when the topic goes and comes back; what came in between does not.
    let relay = Running::start(&place.log, [route("all", &broker).topics(orders)]);
    until("it to be let go", async || place.status("all").await.topics == "orders.*").await;
    let between = refund("a3");
    place.commit(vec![between.clone()]);
    let last = one(&place, "b2");
    finding(&place, last, "passed").await;
    finding(&place, between.id, "no-route").await;
    relay.drained().await;
    let relay = Running::start(&place.log, [route("all", &broker).topics(["orders.*", "refunds"])]);
    for id in [early.id, between.id] {
        finding(&place, id, "perhaps-passed-over").await;
    }
    finding(&place, late.id, "passed").await;
    relay.drained().await;
}

async fn a_survey_tells_what_is_refused_from_what_waits_for_its_own_destination(place: Place) {
    // Whichever was parked first.
    for (number, labels) in [["x1", "r1"], ["r1", "x1"]].into_iter().enumerate() {
        let (broker, name) = (Broker::new(), format!("all-{number}"));
        broker.answer(|record| match record.envelope.payload.first() {
            Some(b'x') => Outcome::Unavailable(cause("no-queue")),
            Some(b'r') => Outcome::Rejected(cause("http-400")),
            _ => Outcome::Durable,
        });
        let topic = format!("orders.{number}");
        let send = |label: &str| place.commit(vec![Envelope { topic: topic.as_str().into(), ..message(label) }]);
        let ms = Duration::from_millis;
        let only_these = route(&name, &broker).topics([&topic]).retry(slow_retry()).breaker(ms(1), ms(5));
        let relay = Running::start(&place.log, [only_these]);
        let (mut last, mut n) = (Vec::new(), 0);
        for wanted in 1..=2 {
            send(labels[wanted - 1]);
            until("it to be parked", async || {
                n += 1;
                send(&format!("a{n}"));
                last = surveyed(&place).await;
                last.retain(|told| told.contains(&name));
                place.status(&name).await.parked.retrying == wanted as u64 && last.len() == wanted
            })
            .await;
        }
        assert!(
            last[0].starts_with(&format!("retrying: {name}: 1 message was refused and is tried again (http-400: ")),
            "{last:?}"
        );
        let own = "1 message waits for its own destination and is tried again (no-queue: ";
        assert!(last[1].starts_with(&format!("destination-unavailable: {name}: {own}")), "{last:?}");
        relay.crash().await;
    }
}

async fn a_survey_names_what_a_replay_has_given_up_also_when_it_has_ended(place: Place) {
    let broker = Broker::new();
    one(&place, "a1");
    let relay = Running::start(&place.log, [route("all", &broker).retry(retries(1))]);
    until("it to arrive", async || broker.has("a1")).await;
    broker.reject(&["a1"]);
    let spec = ReplaySpec { route: "all".to_owned(), to: None, filter: ReplayFilter::default(), rate: None };
    let name = place.admin.replay(&spec, &Actor::new("tester")).await.unwrap();
    let finished = Seen::LaneEnded(format!("{name}/0"), "finished");
    until("the replay to end", async || relay.observed().has(&finished)).await;
    let told = format!("dead: {name}: 1 message was given up (1 refused), and the replay has ended");
    assert_eq!(surveyed(&place).await, [told]);
    relay.drained().await;
}

/// A relay whose store refuses this for good.
fn refused(place: &Place, operation: Operation, broker: &Broker) -> (Running, LogFaults) {
    let (faulty, faults) = FaultyLog::new(Arc::clone(&place.log));
    faults.refuse(operation);
    let log: Arc<dyn Log> = Arc::new(faulty);
    (Running::start(&log, [route("all", broker)]), faults)
}

async fn until_surveyed(place: &Place, code: &str) {
    until(format!("a survey to find {code}"), async || {
        surveyed(place).await.iter().any(|finding| finding.starts_with(&format!("{code}: ")))
    })
    .await;
}

async fn a_log_that_cannot_be_read_is_named_also_where_nothing_is_known_to_wait(place: Place) {
    let broker = Broker::new();
    let delivered = one(&place, "a1");
    let relay = Running::start(&place.log, [route("all", &broker)]);
    until("it to be delivered", async || place.status("all").await.pending == 0).await;
    relay.drained().await;
    let (relay, faults) = refused(&place, Operation::Read, &broker);
    until_surveyed(&place, "store-fails").await;
    let finding = finding(&place, delivered, "store-fails").await;
    assert!(finding.what.contains("the log is gone on purpose") && finding.fix.is_some(), "{finding:?}");
    let failures = relay.observed().count(|seen| *seen == Seen::StoreFailed("read"));
    assert!(failures < 20, "what a person has to mend is not asked for all the time: {failures}");
    faults.clear();
    until("all to be well again", async || surveyed(&place).await.is_empty()).await;
    relay.drained().await;
}

async fn a_store_that_lets_no_lane_begin_is_named(place: Place) {
    let (relay, _) = refused(&place, Operation::Resume, &Broker::new());
    until_surveyed(&place, "store-fails").await;
    relay.crash().await;
}

async fn a_store_where_all_is_well_has_nothing_in_its_survey(place: Place) {
    assert_eq!(surveyed(&place).await, [""; 0], "an empty store");
    let broker = Broker::new();
    one(&place, "a1");
    let relay = Running::start(&place.log, [route("all", &broker)]);
    until("it to be delivered", async || place.status("all").await.pending == 0).await;
    let later = Timestamp::now().saturating_add(Duration::from_hours(2));
    place.commit(vec![Envelope { deliver_at: Some(later), ..message("a2") }]);
    until("the other to be parked", async || place.status("all").await.parked.scheduled == 1).await;
    assert_eq!(surveyed(&place).await, [""; 0], "what waits for its time is not wrong");
    relay.drained().await;
}
