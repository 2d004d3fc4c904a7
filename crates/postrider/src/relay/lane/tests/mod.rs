//! The machine by itself, at exact times: what it wants done, and when.

mod outage;

use std::{sync::Arc, time::Duration};

use postrider_core::{
    envelope::Envelope,
    key::KeyHash,
    log::{Record, RecordRef},
    parked::{BlockedKey, Cause, DueLine, DuePage, DueRow, Ordinal, Parked},
    retry::{Backoff, Jitter, RetryPolicy},
    standstill::{MessageState, Reason},
    time::Timestamp,
    transport::{Outcome, THROTTLE_MAX},
};

use super::{Commit, Effect, Lane, LaneOptions, Note, OnDead, Settled, Tick, ticks};
use crate::relay::planted::Plant;

const MS: Duration = Duration::from_millis(1);

fn options() -> LaneOptions {
    LaneOptions {
        window_records_max: 100,
        window_bytes_max: 1 << 20,
        page_records_max: 10,
        batch_records_max: 1,
        batches_max: 8,
        run_max: 1,
        settle_every: 1000,
        settle_after: Duration::ZERO,
        retry: RetryPolicy { attempts_max: 3, backoff: Backoff::Fixed { wait: MS }, jitter: Jitter::None },
        on_dead: OnDead::Hold,
        unknown_max: 3,
        unknown_wait: 2 * MS,
        breaker_first: 10 * MS,
        breaker_max: 40 * MS,
        poll_min: MS,
        poll_max: 8 * MS,
        due_lines: 4,
        due_per_line: 4,
        due_bytes_max: 1 << 20,
        held_rows_max: 100,
        blocked_keys_max: 100,
        rate: None,
        seed: 1,
        plant: Plant::None,
    }
}

/// `a1` is the first message of key `a`.
fn record(label: &str) -> Record {
    let envelope = Envelope::new("t", "n", label.to_owned()).with_key(&label[..1]);
    let (key, enqueued_at) = (Some(key(&label[..1])), Timestamp::from_micros(0));
    Record { envelope, key, enqueued_at, wait: Duration::ZERO, expires_in: None, replay: None, number: 0 }
}

fn key(key: &str) -> KeyHash {
    KeyHash::of(key.as_bytes())
}

fn cause() -> Cause {
    Cause::new("refused", "on purpose")
}

fn rejected() -> Outcome {
    Outcome::Rejected(cause())
}

/// What one poll asked for.
#[derive(Default)]
struct Asked {
    published: Vec<(u32, Vec<String>)>,
    settles: Vec<Arc<Commit>>,
    reads: usize,
    dues: usize,
    recounts: usize,
    notes: Vec<Note>,
    drained: bool,
}

impl Asked {
    fn labels(&self) -> Vec<&str> {
        self.published.iter().flat_map(|(_, labels)| labels.iter().map(String::as_str)).collect()
    }

    fn parked(&self) -> Vec<(String, Parked)> {
        let parks = self.settles.iter().flat_map(|commit| &commit.settlement.park);
        parks.map(|(record, parked)| (label(record), parked.clone())).collect()
    }
}

fn label(record: &RecordRef) -> String {
    String::from_utf8_lossy(&record.envelope.payload).into_owned()
}

fn poll(lane: &mut Lane, now: Tick) -> Asked {
    let mut effects = Vec::new();
    lane.poll(now, &mut effects);
    let mut asked = Asked::default();
    for effect in effects {
        match effect {
            Effect::Publish { batch, records } => {
                asked.published.push((batch, records.iter().map(label).collect()));
            }
            Effect::Settle(commit) => asked.settles.push(commit),
            Effect::Read { .. } => asked.reads += 1,
            Effect::ReadDue { .. } => asked.dues += 1,
            Effect::Note(note) => asked.notes.push(note),
            Effect::Drained => asked.drained = true,
            Effect::Recount => asked.recounts += 1,
        }
    }
    asked
}

/// A lane that has read these and has no parked rows.
fn lane(options: LaneOptions, labels: &[&str]) -> Lane {
    let mut lane = Lane::new(options, &[], Tick::MAX, 0);
    assert_eq!(poll(&mut lane, 0).reads, 1, "it begins by reading");
    lane.due_read(0, DuePage::default());
    read(&mut lane, 0, labels);
    lane
}

fn read(lane: &mut Lane, now: Tick, labels: &[&str]) {
    let records = Arc::new(labels.iter().map(|label| record(label)).collect());
    lane.page_read(now, &records, !labels.is_empty(), false);
}

/// Answers all that was published with `outcome`.
fn answer(lane: &mut Lane, now: Tick, asked: &Asked, outcome: &Outcome) {
    for (batch, labels) in &asked.published {
        lane.published(now, *batch, vec![outcome.clone(); labels.len()]);
    }
}

/// The batch that carries a message.
fn batch_of(asked: &Asked, wanted: &str) -> u32 {
    asked.published.iter().find(|(_, labels)| labels.iter().any(|label| label == wanted)).expect("published").0
}

#[test]
fn a_rejected_message_waits_exactly_as_its_policy_says() {
    let max = 5 * MS;
    let policies = [
        (Backoff::Fixed { wait: 2 * MS }, [2, 2, 2]),
        (Backoff::Linear { step: 2 * MS, max }, [2, 4, 5]),
        (Backoff::Exponential { first: MS, factor: 3.0, max }, [1, 3, 5]),
    ];
    for (backoff, waits) in policies {
        let retry = RetryPolicy { attempts_max: 4, backoff: backoff.clone(), jitter: Jitter::None };
        // The first message stays in flight, so that the cursor cannot reach the other and it retries from memory.
        let mut lane = lane(LaneOptions { retry, ..options() }, &["z1", "a1", "a2"]);
        let mut now = 0;
        let mut asked = poll(&mut lane, now);
        assert_eq!(asked.labels(), ["z1", "a1"]);
        for wait in waits {
            lane.published(now, batch_of(&asked, "a1"), vec![rejected()]);
            let due = now + ticks(wait * MS);
            assert!(poll(&mut lane, due - 1).labels().is_empty(), "{backoff:?}: not a microsecond early");
            asked = poll(&mut lane, due);
            assert_eq!(asked.labels(), ["a1"], "{backoff:?}");
            now = due;
        }
        lane.published(now, batch_of(&asked, "a1"), vec![rejected()]);
        let notes = poll(&mut lane, now).notes;
        assert!(matches!(notes[..], [Note::Dead { attempts: 4, blocks: true, .. }]), "{backoff:?}: {notes:?}");
    }
}

#[test]
fn a_verdict_is_committed_before_its_key_goes_on() {
    let retry = RetryPolicy { attempts_max: 1, ..options().retry };
    let mut lane = lane(LaneOptions { retry, on_dead: OnDead::Continue, ..options() }, &["a1", "a2"]);
    let asked = poll(&mut lane, 0);
    answer(&mut lane, 1, &asked, &rejected());
    let verdict = poll(&mut lane, 1);
    let dead = Parked::Dead { attempts: 1, cause: cause(), blocks: false };
    assert_eq!(verdict.parked(), [("a1".to_owned(), dead)]);
    assert!(verdict.labels().is_empty());
    assert!(poll(&mut lane, 1_000_000).labels().is_empty(), "not before the commit is answered");
    lane.settled(1_000_000, Settled::Done);
    assert_eq!(poll(&mut lane, 1_000_000).labels(), ["a2"]);
}

#[test]
fn an_unanswered_commit_is_repeated_as_it_was() {
    let mut lane = lane(options(), &["a1", "a2", "a3"]);
    let first = poll(&mut lane, 0);
    answer(&mut lane, 0, &first, &Outcome::Durable);
    let second = poll(&mut lane, 0);
    assert_eq!((second.settles.len(), second.settles[0].settlement.number), (1, 1));
    answer(&mut lane, 0, &second, &Outcome::Durable);
    lane.settled(0, Settled::Perhaps);
    assert!(poll(&mut lane, 0).settles.is_empty(), "after a moment");
    let again = poll(&mut lane, ticks(10 * MS));
    assert_eq!(again.settles.len(), 1);
    assert!(Arc::ptr_eq(&again.settles[0], &second.settles[0]), "though more is done by now");
    lane.settled(ticks(10 * MS), Settled::Done);
    let next = poll(&mut lane, ticks(10 * MS));
    assert_eq!(next.settles[0].settlement.number, 2);
    assert_eq!(next.settles[0].advance.expect("a cursor").passed, 2);
}

#[test]
fn settlements_are_numbered_on_after_a_pause() {
    let mut lane = Lane::new(options(), &[], Tick::MAX, 7);
    poll(&mut lane, 0);
    lane.due_read(0, DuePage::default());
    read(&mut lane, 0, &["a1"]);
    let asked = poll(&mut lane, 0);
    answer(&mut lane, 0, &asked, &Outcome::Durable);
    assert_eq!(poll(&mut lane, 0).settles[0].settlement.number, 8);
}

#[test]
fn nothing_is_done_on_a_lease_that_may_be_over() {
    let mut lane = lane(options(), &["a1"]);
    lane.renewed(100);
    let over = poll(&mut lane, 100);
    assert!(over.labels().is_empty() && over.reads + over.dues + over.settles.len() == 0);
    assert_eq!(lane.wake_at(100), Tick::MAX, "only a heartbeat can help");
    lane.renewed(200);
    assert_eq!(poll(&mut lane, 100).labels(), ["a1"]);
}

#[test]
fn a_drain_publishes_the_holes_before_what_went_out_and_no_more() {
    let mut lane = lane(LaneOptions { batches_max: 2, ..options() }, &["a1", "a2", "b1", "c1"]);
    let asked = poll(&mut lane, 0);
    assert_eq!(asked.labels(), ["a1", "b1"]);
    lane.drain(0);
    answer(&mut lane, 0, &asked, &Outcome::Durable);
    let hole = poll(&mut lane, 0);
    assert_eq!(hole.labels(), ["a2"], "b1 has gone out, c1 has not");
    assert!(!hole.drained);
    lane.settled(0, Settled::Done);
    answer(&mut lane, 0, &hole, &Outcome::Durable);
    let rest = poll(&mut lane, 0);
    assert_eq!(rest.settles[0].advance.expect("a cursor").passed, 3);
    assert!(!rest.drained, "not before it is committed");
    lane.settled(0, Settled::Done);
    let end = poll(&mut lane, 0);
    assert!(end.drained && end.labels().is_empty() && end.reads == 0);
}

#[test]
fn a_throttled_lane_pauses_exactly_as_long_as_it_was_asked() {
    let mut lane = lane(options(), &["a1", "b1"]);
    let asked = poll(&mut lane, 0);
    answer(&mut lane, 0, &asked, &Outcome::Throttled(5 * MS));
    assert!(poll(&mut lane, 4_999).labels().is_empty());
    let mut again = poll(&mut lane, 5_000).labels().into_iter().map(str::to_owned).collect::<Vec<_>>();
    again.sort();
    assert_eq!(again, ["a1", "b1"]);
}

#[test]
fn a_pause_may_be_longer_than_an_outage_is_waited_for_but_not_than_a_day() {
    for (asked_for, pause) in
        [(1000 * options().breaker_max, 1000 * options().breaker_max), (Duration::MAX, THROTTLE_MAX)]
    {
        let mut lane = lane(options(), &["a1"]);
        let asked = poll(&mut lane, 0);
        answer(&mut lane, 0, &asked, &Outcome::Throttled(asked_for));
        assert!(poll(&mut lane, ticks(pause) - 1).labels().is_empty());
        assert_eq!(poll(&mut lane, ticks(pause)).labels(), ["a1"]);
    }
}

#[test]
fn a_drain_waits_for_a_pause_only_if_something_behind_it_has_arrived() {
    let pause = Duration::from_secs(1);
    let drain_after = |second: &Outcome| {
        let mut lane = lane(options(), &["a1", "b1"]);
        for (batch, labels) in poll(&mut lane, 0).published {
            let outcome = |label: &String| if label == "a1" { Outcome::Throttled(pause) } else { second.clone() };
            lane.published(0, batch, labels.iter().map(outcome).collect());
        }
        lane.drain(0);
        lane
    };
    assert!(poll(&mut drain_after(&Outcome::Throttled(pause)), 0).drained, "nothing would arrive twice");
    let mut lane = drain_after(&Outcome::Durable);
    assert!(!poll(&mut lane, ticks(pause) - 1).drained, "b1 would");
    assert_eq!(poll(&mut lane, ticks(pause)).labels(), ["a1"]);
}

#[test]
fn a_pause_that_is_asked_for_is_told_once() {
    let hour = Duration::from_hours(1);
    let mut lane = lane(options(), &["a1", "b1"]);
    let asked = poll(&mut lane, 0);
    answer(&mut lane, 0, &asked, &Outcome::Throttled(hour));
    let told = poll(&mut lane, 0).notes;
    assert!(matches!(told[..], [Note::Throttled { pause }] if pause == hour), "{told:?}");
    assert_eq!(lane.waits_for(ticks(MS)), Some(Reason::Throttled { seconds_left: Some(3600) }));
    let asked = poll(&mut lane, ticks(hour));
    answer(&mut lane, ticks(hour), &asked, &Outcome::Throttled(Duration::from_secs(1)));
    assert_eq!(poll(&mut lane, ticks(hour)).notes.len(), 1, "and so is the next one");
}

#[test]
fn a_pause_of_the_publisher_itself_is_not_told_as_the_destinations_wish() {
    let mut lane = lane(options(), &["a1", "b1"]);
    let asked = poll(&mut lane, 0);
    answer(&mut lane, 0, &asked, &Outcome::Throttled(100 * MS));
    assert!(poll(&mut lane, 0).notes.is_empty());
    let waits_for = lane.waits_for(ticks(MS));
    assert!(matches!(waits_for, Some(Reason::Message { state: MessageState::Turn, .. })), "{waits_for:?}");
    assert!(poll(&mut lane, ticks(99 * MS)).labels().is_empty(), "but waited for");
    assert_eq!(poll(&mut lane, ticks(100 * MS)).labels().len(), 2);
}

#[test]
fn what_a_run_did_not_publish_goes_again_in_order() {
    let runs = LaneOptions { run_max: 3, batch_records_max: 3, ..options() };
    let mut lane = lane(runs, &["a1", "a2", "a3", "a4"]);
    let asked = poll(&mut lane, 0);
    assert_eq!(asked.published[0].1, ["a1", "a2", "a3"]);
    let behind = || Outcome::Unknown(cause());
    lane.published(0, asked.published[0].0, vec![Outcome::Durable, Outcome::Throttled(MS), behind()]);
    assert!(poll(&mut lane, 999).labels().is_empty());
    assert_eq!(poll(&mut lane, 1000).published[0].1, ["a2", "a3", "a4"]);
}

#[test]
fn a_message_without_an_answer_counts_as_unknown() {
    let runs = LaneOptions { batch_records_max: 10, ..options() };
    let mut lane = lane(runs, &["a1", "b1"]);
    let asked = poll(&mut lane, 0);
    lane.published(0, asked.published[0].0, vec![Outcome::Durable]);
    let again = poll(&mut lane, ticks(10 * MS));
    assert_eq!(again.labels(), ["b1"]);
    assert!(again.notes.is_empty(), "no attempt was counted");
}

#[test]
fn a_key_with_a_line_in_the_store_waits_from_the_start() {
    let mut lane = Lane::new(options(), &[BlockedKey { key: key("a"), rows: 1 }], Tick::MAX, 0);
    poll(&mut lane, 0);
    lane.due_read(0, DuePage::default());
    read(&mut lane, 0, &["a2", "b1"]);
    let asked = poll(&mut lane, 0);
    assert_eq!(asked.labels(), ["b1"]);
    assert_eq!(asked.parked(), [("a2".to_owned(), Parked::Held)], "it joins the stored line");
    lane.settled(0, Settled::Done);

    // The stored line comes due: its rows go in order, and only then what is read from the log.
    assert_eq!(poll(&mut lane, ticks(MS)).dues, 1);
    read(&mut lane, ticks(MS), &["a3"]);
    let row =
        |ordinal, label| DueRow { ordinal: Ordinal(ordinal), record: RecordRef::single(record(label)), attempts: 1 };
    let line = DueLine { key: key("a"), rows: vec![row(1, "a1"), row(2, "a2")], more: false };
    lane.due_read(ticks(MS), DuePage { lines: vec![line], ..DuePage::default() });
    for expected in ["a1", "a2", "a3"] {
        let asked = poll(&mut lane, ticks(MS));
        assert_eq!(asked.labels(), [expected]);
        answer(&mut lane, ticks(MS), &asked, &Outcome::Durable);
    }
}

#[test]
fn the_window_is_never_overrun() {
    let small = LaneOptions { window_records_max: 4, page_records_max: 2, ..options() };
    let mut lane = lane(small, &["a1", "b1"]);
    let first = poll(&mut lane, ticks(MS));
    assert_eq!(first.reads, 1, "the next page is read while this one is published");
    read(&mut lane, ticks(MS), &["c1", "d1"]);
    let second = poll(&mut lane, ticks(MS));
    lane.hint(ticks(MS));
    assert_eq!(poll(&mut lane, ticks(100 * MS)).reads, 0, "full");
    lane.due_read(ticks(100 * MS), DuePage::default());
    answer(&mut lane, ticks(100 * MS), &second, &Outcome::Durable);
    assert_eq!(poll(&mut lane, ticks(100 * MS)).reads, 0, "what is done behind what is not makes no room");
    answer(&mut lane, ticks(100 * MS), &first, &Outcome::Durable);
    assert_eq!(poll(&mut lane, ticks(100 * MS)).settles.len(), 1);
    lane.settled(ticks(100 * MS), Settled::Done);
    assert_eq!(poll(&mut lane, ticks(100 * MS)).reads, 1);
}

#[test]
fn an_idle_lane_looks_ever_more_seldom_and_a_hint_wakes_it() {
    let mut lane = lane(options(), &[]);
    let mut now = 0;
    // The longest wait, 8 ms, ends at a multiple of it, which all idle lanes of a node have in common.
    for at in [1, 3, 7, 8, 16, 24] {
        assert_eq!(poll(&mut lane, ticks(at * MS) - 1).reads, 0, "before {at} ms");
        now = ticks(at * MS);
        assert_eq!(poll(&mut lane, now).reads, 1, "at {at} ms");
        read(&mut lane, now, &[]);
    }
    lane.hint(now + 1);
    assert_eq!(poll(&mut lane, now + 1).reads, 1);
}

#[test]
fn a_rate_is_kept() {
    let slow = LaneOptions { rate: Some(100), window_records_max: 1000, page_records_max: 500, ..options() };
    let labels: Vec<String> = (0..500).map(|n| format!("{}{n}", char::from(b'a' + n as u8 % 26))).collect();
    let mut lane = lane(slow, &labels.iter().map(String::as_str).collect::<Vec<_>>());
    let (mut now, mut published) = (0, 0);
    while now < 2_000_000 {
        let asked = poll(&mut lane, now);
        published += asked.labels().len();
        answer(&mut lane, now, &asked, &Outcome::Durable);
        for _ in &asked.settles {
            lane.settled(now, Settled::Done);
        }
        for _ in 0..asked.reads {
            read(&mut lane, now, &[]);
        }
        for _ in 0..asked.dues {
            lane.due_read(now, DuePage::default());
        }
        now = lane.wake_at(now);
    }
    assert!((190..=210).contains(&published), "{published} in two seconds at a hundred a second");
}

#[test]
fn a_lane_that_stands_still_at_a_limit_says_so_once() {
    let retry = RetryPolicy { attempts_max: 1, ..options().retry };
    let mut lane = lane(LaneOptions { retry, held_rows_max: 1, ..options() }, &["a1", "a2", "a3"]);
    let asked = poll(&mut lane, 0);
    answer(&mut lane, 0, &asked, &rejected());
    let stalled = poll(&mut lane, 0);
    assert_eq!(stalled.parked().len(), 1);
    let said = |asked: &Asked| {
        let limits = asked.notes.iter().filter_map(|note| match note {
            Note::Stalled { record, limit } => Some((label(record), *limit)),
            _ => None,
        });
        limits.collect::<Vec<_>>()
    };
    assert_eq!(said(&stalled), [("a2".to_owned(), "held_rows_max")]);
    lane.settled(0, Settled::Done);
    assert!(matches!(lane.waits_for(0), Some(Reason::Limit { limit, .. }) if limit == "held_rows_max"));

    assert_eq!(poll(&mut lane, 0).recounts, 1, "an operator may have made room");
    lane.recounted(0, &[BlockedKey { key: key("a"), rows: 1 }]);
    let still = poll(&mut lane, 0);
    assert!(said(&still).is_empty() && still.settles.is_empty() && still.labels().is_empty(), "said once");
    let again = poll(&mut lane, ticks(options().poll_max));
    assert_eq!((again.recounts, again.labels().len()), (1, 0));
    lane.recounted(ticks(options().poll_max), &[]);
    assert_eq!(poll(&mut lane, ticks(options().poll_max)).labels(), ["a2"], "the dead one was discarded");
}

#[test]
fn a_lane_tells_what_it_waits_for() {
    let mut lane = lane(options(), &["a1", "a2"]);
    let state = |lane: &mut Lane, now| match lane.waits_for(now) {
        Some(Reason::Message { state, attempts, cause, .. }) => (state, attempts, cause.map(|c| c.code().to_owned())),
        other => panic!("{other:?}"),
    };
    assert_eq!(state(&mut lane, 0), (MessageState::Turn, 0, None));
    let asked = poll(&mut lane, 0);
    assert_eq!(state(&mut lane, 0), (MessageState::Answer, 0, None));
    answer(&mut lane, 0, &asked, &Outcome::Throttled(Duration::from_secs(1)));
    assert_eq!(lane.waits_for(0), Some(Reason::Throttled { seconds_left: Some(1) }));
    let later = ticks(Duration::from_secs(2));
    let asked = poll(&mut lane, later);
    answer(&mut lane, later, &asked, &rejected());
    let (state, attempts, cause) = state(&mut lane, later);
    assert_eq!((state, attempts), (MessageState::Retry, 1));
    assert!(cause.is_some());
}
