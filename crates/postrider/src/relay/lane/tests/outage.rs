//! When a destination takes nothing, or one of several does not.

use std::sync::Arc;

use postrider_core::{
    log::{Record, RecordRef},
    parked::{BlockedKey, Cause, DESTINATION_UNAVAILABLE, DueLine, DuePage, DueRow, Ordinal, Parked},
    retry::{Backoff, Jitter, RetryPolicy},
    standstill::Reason,
    transport::Outcome,
};

use super::{
    super::{Lane, LaneOptions, Note, Settled, Tick, ticks},
    MS, answer, batch_of, cause, key, lane, options, poll, read, record, rejected,
};

#[test]
fn an_open_breaker_lets_one_probe_through_at_a_time_and_waits_ever_longer() {
    let mut lane = lane(options(), &["a1", "b1", "c1"]);
    let down = Outcome::Unavailable(cause());
    let mut now = 0;
    let mut asked = poll(&mut lane, now);
    answer(&mut lane, now, &asked, &down);
    let mut probed = Vec::new();
    for longest in [10, 20, 40, 40, 40] {
        let half = now + ticks(longest * MS) / 2;
        assert!(poll(&mut lane, half - 1).labels().is_empty(), "at least half of {longest} ms");
        now += ticks(longest * MS);
        asked = poll(&mut lane, now);
        assert_eq!(asked.labels().len(), 1, "one probe, no later than after {longest} ms");
        assert!(poll(&mut lane, now).labels().is_empty(), "nothing beside it");
        probed.extend(asked.labels().into_iter().map(str::to_owned));
        answer(&mut lane, now, &asked, &down);
    }
    probed.sort();
    probed.dedup();
    assert!(probed.len() > 1, "not always the same one: {probed:?}");
    let probe = poll(&mut lane, now + ticks(40 * MS));
    answer(&mut lane, now + ticks(40 * MS), &probe, &rejected());
    let closed = poll(&mut lane, now + ticks(40 * MS));
    assert!(closed.notes.iter().any(|note| matches!(note, Note::BreakerClosed)), "any answer is an answer");
    assert_eq!(closed.labels().len(), 2, "the others go at once");
}

/// Until the breaker is open and so many probes have failed.
fn probe_in_vain(lane: &mut Lane, mut now: Tick, outcome: &Outcome, probes: usize) -> Tick {
    let mut failed = 0;
    loop {
        let open = lane.breaker_is_open();
        let asked = poll(lane, now);
        failed += usize::from(open && !asked.published.is_empty());
        answer(lane, now, &asked, outcome);
        if lane.breaker_is_open() && failed >= probes {
            return now;
        }
        now = lane.wake_at(now);
    }
}

#[test]
fn a_few_bad_messages_on_a_quiet_route_keep_nobody_else_waiting() {
    let mut lane = lane(options(), &["a1", "b1"]);
    let now = probe_in_vain(&mut lane, 0, &Outcome::Unknown(cause()), 10);
    assert!(poll(&mut lane, now + ticks(15 * MS)).labels().is_empty(), "they themselves wait for long by now");
    read(&mut lane, now + ticks(15 * MS), &["c1"]);
    let asked = poll(&mut lane, now + ticks(15 * MS));
    assert_eq!(asked.labels(), ["c1"], "it has not failed, so it is the next probe, and at once");
    answer(&mut lane, now + ticks(15 * MS), &asked, &Outcome::Durable);
    let closed = poll(&mut lane, now + ticks(15 * MS));
    assert!(closed.notes.iter().any(|note| matches!(note, Note::BreakerClosed)));
}

/// Otherwise they would keep the cursor where it is, and what has arrived behind it would be told to wait.
#[test]
fn bad_messages_are_parked_once_another_has_gone_through() {
    let retry = RetryPolicy { attempts_max: 3, backoff: Backoff::Fixed { wait: 100 * MS }, jitter: Jitter::None };
    let mut lane = lane(LaneOptions { retry, ..options() }, &["a1", "b1"]);
    let mut parked = Vec::new();
    for millis in 1..1_000 {
        let now = ticks(millis * MS);
        if millis == 500 {
            assert!(lane.breaker_is_open() && parked.is_empty(), "nothing is known against them but their own silence");
            read(&mut lane, now, &["c1"]);
        }
        let asked = poll(&mut lane, now);
        for (batch, labels) in &asked.published {
            let outcome = if labels[0] == "c1" { Outcome::Durable } else { Outcome::Unknown(cause()) };
            lane.published(now, *batch, vec![outcome]);
        }
        parked.extend(asked.parked().into_iter().map(|(label, _)| label));
        asked.settles.iter().for_each(|_| lane.settled(now, Settled::Done));
        if asked.dues > 0 {
            lane.due_read(now, DuePage::default());
        }
    }
    parked.sort();
    assert_eq!(parked, ["a1", "b1"]);
}

#[test]
fn a_destination_that_is_down_is_probed_ever_more_seldom_also_with_new_messages() {
    for down in [Outcome::Unavailable(cause()), Outcome::Unknown(cause())] {
        let mut lane = lane(LaneOptions { page_records_max: 30, ..options() }, &["a1"]);
        let mut now = probe_in_vain(&mut lane, 0, &down, 0);
        let new: Vec<String> = ('b'..='z').map(|key| format!("{key}1")).collect();
        read(&mut lane, now, &new.iter().map(String::as_str).collect::<Vec<_>>());
        for longest in [10, 20, 40, 40, 40] {
            let failed_at = now;
            let wake_at = lane.wake_at(now);
            now = probe_in_vain(&mut lane, wake_at, &down, 1);
            assert!(now - failed_at >= ticks(longest * MS) / 2, "at least half of {longest} ms: {down:?}");
        }
    }
}

#[test]
fn an_outage_that_nobody_has_told_of_is_a_guess() {
    let said = |outcome: &Outcome| {
        let mut lane = lane(options(), &["a1", "b1"]);
        let now = probe_in_vain(&mut lane, 0, outcome, 3);
        let Some(Reason::Unavailable { cause: told, failing, seconds_left }) = lane.waits_for(now) else {
            panic!("the breaker is open")
        };
        assert_eq!(told, cause());
        assert!(seconds_left.is_some(), "when it is tried again is told");
        failing
    };
    assert_eq!(said(&Outcome::Unknown(cause())), Some(2), "it may be both of the messages");
    assert_eq!(said(&Outcome::Unavailable(cause())), None);
}

/// What became of the messages of a lane, one of whose destinations takes nothing: that of keys `w` to `z`.
#[derive(Default)]
struct InPart {
    arrived: Vec<String>,
    parked: Vec<(String, Parked)>,
    refused_at: Vec<Tick>,
    breaker_open: Tick,
    set_aside: usize,
}

/// Runs a lane of batches for a while, in steps of a millisecond; `new` come in at these milliseconds.
fn run_in_part(new: &[(u32, &[&str])], millis: u32) -> InPart {
    let mut lane = lane(LaneOptions { batch_records_max: 10, ..options() }, &[]);
    let mut result = InPart::default();
    for milli in 1..=millis {
        let now = ticks(milli * MS);
        for (_, labels) in new.iter().filter(|(at, _)| *at == milli) {
            read(&mut lane, now, labels);
        }
        let asked = poll(&mut lane, now);
        for (batch, labels) in &asked.published {
            let outcome = |label: &String| match label.as_bytes()[0] {
                b'w'..=b'z' => Outcome::Unavailable(cause()),
                _ => Outcome::Durable,
            };
            let outcomes: Vec<Outcome> = labels.iter().map(outcome).collect();
            let gone = |label: &&String| label.as_str() < "w";
            result.arrived.extend(labels.iter().filter(gone).cloned());
            if outcomes.iter().any(|outcome| *outcome != Outcome::Durable) {
                result.refused_at.push(now);
            }
            lane.published(now, *batch, outcomes);
        }
        result.parked.extend(asked.parked());
        result.set_aside += asked.notes.iter().filter(|note| matches!(note, Note::SetAside { .. })).count();
        asked.settles.iter().for_each(|_| lane.settled(now, Settled::Done));
        if asked.dues > 0 {
            lane.due_read(now, DuePage::default());
        }
        result.breaker_open += Tick::from(lane.breaker_is_open());
    }
    result
}

#[test]
fn one_destination_that_takes_nothing_keeps_nobody_else_waiting() {
    let new: [(u32, &[&str]); 3] = [(1, &["x1", "a1"]), (100, &["b1"]), (130, &["y1", "c1", "x2", "z1"])];
    let result = run_in_part(&new, 400);
    assert_eq!(result.arrived, ["a1", "b1", "c1"]);
    let mut parked: Vec<&str> = result.parked.iter().map(|(label, _)| label.as_str()).collect();
    parked.sort_unstable();
    assert_eq!(parked, ["x1", "x2", "y1", "z1"], "the cursor passes them");
    for (label, parked) in &result.parked {
        match parked {
            Parked::Held => assert_eq!(label, "x2"),
            Parked::Retrying { attempts: 0, cause, .. } => {
                assert_eq!((cause.code(), cause.detail()), (DESTINATION_UNAVAILABLE, "refused: on purpose"));
            }
            other => panic!("{label}: {other:?}"),
        }
    }
    assert!(result.breaker_open <= 100, "only until another had gone through: {}", result.breaker_open);
    assert_eq!(result.set_aside, 1, "told once");
}

/// Others go through with every second millisecond, and new ones for the one that is gone come as well.
#[test]
fn a_busy_lane_tries_a_destination_that_takes_nothing_ever_more_seldom() {
    let labels: Vec<String> = (0..9).flat_map(|n| ('a'..='v').map(move |key| format!("{key}{n}"))).collect();
    let one: Vec<[&str; 1]> = labels.iter().map(|label| [label.as_str()]).collect();
    let mut new: Vec<(u32, &[&str])> = (1..).map(|n| 2 * n).zip(one.iter().map(|label| &label[..])).collect();
    new.push((5, &["x1", "y1", "z1"]));
    let result = run_in_part(&new, 400);
    assert_eq!(result.arrived, labels);
    assert!(result.refused_at.len() <= 3, "set aside after the second refusal: {:?}", result.refused_at);
    assert_eq!(result.set_aside, 1);
}

/// A deleted topic of Kafka is noticed late: others have gone through meanwhile, and afterwards nothing more comes.
#[test]
fn what_a_publisher_says_of_one_destination_is_believed_if_another_went_through_meanwhile() {
    let gone = Outcome::Unavailable(Cause::of_one_destination("no-topic", "it is gone"));
    for (others, parked) in [(Outcome::Durable, 1), (Outcome::Unavailable(cause()), 0)] {
        let mut lane = lane(options(), &["x1", "a1"]);
        let asked = poll(&mut lane, 0);
        lane.published(1, batch_of(&asked, "a1"), vec![others]);
        lane.published(2, batch_of(&asked, "x1"), vec![gone.clone()]);
        let asked = poll(&mut lane, 3);
        assert_eq!(asked.parked().len(), parked, "{:?}", asked.parked());
        assert_eq!(lane.breaker_is_open(), parked == 0, "a server that has lost everything is an outage");
    }
}

/// Many keys wait with a first message for one topic that is gone. They all are untried, and none of them tells anything new.
#[test]
fn however_many_messages_wait_for_one_destination_the_next_for_another_goes_soon() {
    let gone = Outcome::Unavailable(Cause::of_one_destination("denied", "the topic is forbidden"));
    let keys: Vec<String> = ('b'..='z').map(|key| format!("{key}1")).collect();
    let mut lane = lane(LaneOptions { page_records_max: 100, ..options() }, &[]);
    let secret: Vec<Record> = keys.iter().map(|label| secret_of(label)).collect();
    lane.page_read(0, &Arc::new(secret), true, false);
    let mut now = 0;
    for _ in 0..12 {
        let asked = poll(&mut lane, now);
        answer(&mut lane, now, &asked, &gone);
        now = lane.wake_at(now).max(now + 1);
    }
    assert!(lane.breaker_is_open());
    read(&mut lane, now, &["a1"]);
    let asked = poll(&mut lane, now);
    assert_eq!(asked.labels(), ["a1"], "it need not wait for as long as the others");
    answer(&mut lane, now, &asked, &Outcome::Durable);
    assert!(!lane.breaker_is_open());
    // What is still to be tried for the first time is set aside, and opens nothing.
    let asked = poll(&mut lane, now + 1);
    assert!(!asked.published.is_empty());
    answer(&mut lane, now + 1, &asked, &gone);
    assert!(!lane.breaker_is_open(), "another has gone through since");
    lane.page_read(now + 2, &Arc::new(vec![secret_of("a2")]), true, false);
    let asked = poll(&mut lane, now + 2);
    answer(&mut lane, now + 2, &asked, &gone);
    assert!(!lane.breaker_is_open(), "nor does one that comes later");
}

fn secret_of(label: &str) -> Record {
    let mut record = record(label);
    record.envelope.topic = "secret".into();
    record
}

/// The one that went through was sent before the breaker opened, so its answer closes nothing; that the probe is set aside for
/// it tells the same.
#[test]
fn a_probe_that_is_set_aside_because_another_went_through_closes_the_breaker() {
    let mut lane = lane(options(), &["x1", "a1"]);
    let asked = poll(&mut lane, 0);
    let down = Outcome::Unavailable(cause());
    lane.published(1, batch_of(&asked, "x1"), vec![down.clone()]);
    lane.published(2, batch_of(&asked, "a1"), vec![Outcome::Durable]);
    assert!(lane.breaker_is_open());
    let now = lane.wake_at(2).max(ticks(10 * MS));
    let probe = poll(&mut lane, now);
    assert_eq!(probe.labels(), ["x1"]);
    answer(&mut lane, now, &probe, &down);
    assert!(!lane.breaker_is_open(), "another has gone through: there is no outage of all");
    let notes = poll(&mut lane, now).notes;
    assert!(notes.iter().any(|note| matches!(note, Note::SetAside { .. })), "{notes:?}");
}

/// Otherwise a new message on a quiet route would wait for as long as the one that is set aside.
#[test]
fn rows_that_come_back_from_the_store_were_tried_already() {
    let row = |label: &str| DueRow { ordinal: Ordinal(7), record: RecordRef::single(record(label)), attempts: 0 };
    let mut keyless = record("x1");
    keyless.key = None;
    let timed = DueRow { ordinal: Ordinal(8), record: RecordRef::single(keyless), attempts: 0 };
    let line = DueLine { key: key("x"), rows: vec![row("x1")], more: false };
    for page in
        [DuePage { lines: vec![line], ..DuePage::default() }, DuePage { timed: vec![timed], ..DuePage::default() }]
    {
        let blocked = [BlockedKey { key: key("x"), rows: 1 }];
        let mut lane = Lane::new(options(), &blocked, Tick::MAX, 0);
        poll(&mut lane, 0);
        lane.due_read(0, page);
        read(&mut lane, 0, &["a1"]);
        let asked = poll(&mut lane, 0);
        answer(&mut lane, 0, &asked, &Outcome::Unavailable(cause()));
        let mut now = 0;
        for _ in 0..6 {
            now = lane.wake_at(now);
            let asked = poll(&mut lane, now);
            answer(&mut lane, now, &asked, &Outcome::Unavailable(cause()));
        }
        let pause = lane.wake_at(now) - now;
        read(&mut lane, now, &["b1"]);
        assert!(pause > ticks(15 * MS), "those that failed wait for long by now: {pause}");
        let now = now + ticks(15 * MS);
        assert_eq!(poll(&mut lane, now).labels(), ["b1"], "one that was not tried is the next probe, and at once");
    }
}

/// A broker that ends and comes back, again and again, with a message under way each time.
#[test]
fn an_outage_begins_the_count_of_unknown_outcomes_anew() {
    let [lost, down] = [Outcome::Unknown(cause()), Outcome::Unavailable(cause())];
    for (in_between, attempts) in [(&down, 0), (&lost, 1)] {
        let mut lane = lane(options(), &["a1", "b1"]);
        let mut outcomes = [&lost, in_between, &lost, &lost].into_iter();
        let mut counted = 0;
        for millis in 0..100 {
            let now = ticks(millis * MS);
            let asked = poll(&mut lane, now);
            counted += asked.notes.iter().filter(|note| matches!(note, Note::Rejected { .. })).count();
            for (batch, labels) in &asked.published {
                let outcome = if labels[0] == "a1" { outcomes.next() } else { None };
                lane.published(now, *batch, vec![outcome.unwrap_or(&Outcome::Durable).clone()]);
            }
        }
        assert_eq!(counted, attempts, "of three unknown outcomes, while another one went through");
    }
}
