//! Cases: which parked rows may run, in which order, and which must not yet.

use std::{sync::Arc, time::Duration};

use postrider_core::{
    envelope::{Envelope, MessageId},
    key::KeyHash,
    parked::{BlockedKey, DueLimit, DueLine, DuePage, DueRow, Parked},
};

use super::{
    Fixture,
    owner::{ALL_DUE, HOUR, LONGER, Owner, SHORT, dead, ids_of, keyed, keyless, node, retrying, route},
};

const NOW: Duration = Duration::ZERO;

/// Nothing parked is nothing due.
pub async fn without_rows_nothing_is_due(store: Arc<dyn Fixture>) {
    let owner = Owner::of(&*store, &route("r")).await;
    let page = owner.due().await;
    assert!(page.lines.is_empty() && page.timed.is_empty() && page.next_in.is_none(), "{page:?}");
}

/// A head that is retrying comes due when its time has passed by the store's clock, and not before.
pub async fn a_retry_is_never_early(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let (soon, late) = (keyed("soon"), keyed("late"));
    owner.park(&*store, vec![(soon.clone(), retrying(SHORT)), (late, retrying(HOUR))]).await;
    store.pass(LONGER).await;
    let page = owner.due().await;
    assert_eq!(heads(&page), [soon.id], "due when its time has passed, and not before");
    assert_eq!(page.lines[0].key, KeyHash::of(b"soon"));
    assert_eq!(page.lines[0].rows[0].attempts, 1, "a due row tells how many attempts were made");
    assert_next(&page, HOUR);
}

/// A scheduled row comes due at its time, outside of any line.
pub async fn a_scheduled_row_is_never_early(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let (soon, late) = (keyed("a"), keyed("a"));
    let scheduled = |after| Parked::Scheduled { after };
    owner.park(&*store, vec![(late, scheduled(HOUR)), (soon.clone(), scheduled(SHORT))]).await;
    store.pass(LONGER).await;
    let page = owner.due().await;
    assert_eq!(ids(&page.timed), [soon.id], "a scheduled row is timed: it has no place in line until it is due");
    assert!(page.lines.is_empty(), "scheduled rows form no line");
    assert_next(&page, HOUR);
    let resumed = store.log().resume(&owner.lease).await.expect("resume");
    assert!(resumed.blocked.is_empty(), "a scheduled row blocks no key");
}

/// Where an envelope has a `deliver_at`, that is when its scheduled row comes due, whatever the settlement says.
pub async fn deliver_at_decides_when_a_scheduled_row_is_due(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let now = store.now().await;
    let soon = Envelope { deliver_at: Some(now.saturating_add(SHORT)), ..keyless() };
    let late = Envelope { deliver_at: Some(now.saturating_add(HOUR)), ..keyless() };
    let rows = vec![(soon.clone(), Parked::Scheduled { after: HOUR }), (late, Parked::Scheduled { after: NOW })];
    owner.park(&*store, rows).await;
    store.pass(LONGER).await;
    let page = owner.due().await;
    assert_eq!(ids(&page.timed), [soon.id], "a scheduled row comes due at its envelope's `deliver_at`");
    assert_next(&page, HOUR);
}

/// Retries of messages without a key stand in no line.
pub async fn a_keyless_retry_is_timed(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let (a, b) = (keyless(), keyless());
    owner.park(&*store, vec![(a.clone(), retrying(NOW)), (b.clone(), retrying(NOW))]).await;
    let page = owner.due().await;
    assert_eq!(ids(&page.timed), [a.id, b.id], "messages without a key retry each for itself");
    assert!(page.lines.is_empty());
    assert!(store.log().resume(&owner.lease).await.expect("resume").blocked.is_empty());
}

/// The head is the row with the least ordinal, and its followers come with it, in order.
pub async fn followers_come_behind_their_head(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let line: Vec<_> = (0..5).map(|_| keyed("a")).collect();
    let states = [retrying(NOW), Parked::Held, Parked::Held, Parked::Held, Parked::Held];
    owner.park(&*store, line.iter().cloned().zip(states).collect()).await;
    let page = owner.due().await;
    assert_eq!(page.lines.len(), 1, "one key is one line");
    assert_eq!(ids(&page.lines[0].rows), ids_of(&line), "head first, then those behind it in the order of parking");
    assert!(!page.lines[0].more, "the whole line is here");
    assert!(page.timed.is_empty() && page.next_in.is_none(), "held rows wait for no time");
    let page = owner.due_within(DueLimit { per_line: 2, ..ALL_DUE }).await;
    assert_eq!(ids(&page.lines[0].rows), ids_of(&line[..2]), "no more of one line than asked for");
    assert!(page.lines[0].more, "`more` says that the line is longer");
}

/// A head that waits keeps its whole line waiting.
pub async fn a_waiting_head_keeps_its_line_waiting(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let rows = vec![(keyed("a"), retrying(HOUR)), (keyed("a"), Parked::Held), (keyed("a"), retrying(NOW))];
    owner.park(&*store, rows).await;
    let page = owner.due().await;
    assert!(page.lines.is_empty() && page.timed.is_empty(), "nothing may overtake the head of its line: {page:?}");
    assert_next(&page, HOUR);
}

/// A held row that is the head is due at once; nothing needs to promote it.
pub async fn a_held_head_is_due_at_once(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let (head, next) = (keyed("a"), keyed("a"));
    owner.park(&*store, vec![(head, retrying(HOUR)), (next.clone(), Parked::Held)]).await;
    let waiting = rows_in_line(&*store).await;
    owner.remove(vec![waiting[0]]).await;
    let page = owner.due().await;
    assert_eq!(heads(&page), [next.id], "when the head is gone the next held row is the head, and due at once");
}

/// A dead head that blocks stops its line.
pub async fn a_blocking_dead_head_stops_its_line(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let rows = vec![(keyed("a"), dead(true)), (keyed("a"), Parked::Held), (keyed("b"), retrying(NOW))];
    let b = rows[2].0.id;
    owner.park(&*store, rows).await;
    let page = owner.due().await;
    assert_eq!(heads(&page), [b], "a key waits behind its blocking dead; other keys go on");
    assert_eq!(page.next_in, None, "a blocking dead waits for an operator, not for time");
}

/// A dead row that released its key is not in line.
pub async fn a_releasing_dead_is_not_in_line(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let next = keyed("a");
    owner.park(&*store, vec![(keyed("a"), dead(false)), (next.clone(), Parked::Held)]).await;
    assert_eq!(heads(&owner.due().await), [next.id], "a dead row that does not block stands in no line");
    let resumed = store.log().resume(&owner.lease).await.expect("resume");
    assert_eq!(resumed.blocked, [BlockedKey { key: KeyHash::of(b"a"), rows: 1 }], "nor does it count as blocking");
}

/// A row of a later key does not wait for another key's line.
pub async fn lines_are_independent(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let (waiting, a, b) = (keyed("w"), keyed("a"), keyed("b"));
    let rows = vec![(waiting, retrying(HOUR)), (a.clone(), retrying(NOW)), (b.clone(), Parked::Held)];
    owner.park(&*store, rows).await;
    let mut due = heads(&owner.due().await);
    due.sort();
    let mut expected = vec![a.id, b.id];
    expected.sort();
    assert_eq!(due, expected);
}

/// What has been due for longest comes first, in lines and among timed rows.
pub async fn the_longest_due_comes_first(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    // Parked in the opposite order, over so many keys that no order of hashes is right by chance.
    let waits = (1..=6).rev().map(|i| SHORT * i);
    let lines: Vec<_> = waits.clone().map(|wait| (keyed(&format!("{wait:?}")), retrying(wait))).collect();
    let timed: Vec<_> = waits.map(|wait| (keyless(), Parked::Scheduled { after: wait })).collect();
    let expected = |rows: &[(Envelope, Parked)]| rows.iter().rev().map(|(e, _)| e.id).collect::<Vec<_>>();
    let (expected_lines, expected_timed) = (expected(&lines), expected(&timed));
    owner.park(&*store, lines.into_iter().chain(timed).collect()).await;
    store.pass(SHORT * 7).await;
    let page = owner.due().await;
    assert_eq!(heads(&page), expected_lines, "lines: longest due first, not in the order of parking or of keys");
    assert_eq!(ids(&page.timed), expected_timed, "timed rows: longest due first, not in the order of parking");
    let page = owner.due_within(DueLimit { lines: 2, ..ALL_DUE }).await;
    assert_eq!(heads(&page), expected_lines[..2], "a limit leaves out those that have been due for the shortest time");
}

/// Limits on lines and timed rows hold, and what stays behind is announced.
pub async fn a_due_read_is_limited(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let lines = (0..5).map(|i| (keyed(&format!("k{i}")), retrying(NOW)));
    let timed = (0..5).map(|_| (keyless(), retrying(NOW)));
    owner.park(&*store, lines.chain(timed).collect()).await;
    let page = owner.due_within(DueLimit { lines: 2, ..ALL_DUE }).await;
    assert_eq!((page.lines.len(), page.timed.len()), (2, 2), "no more lines, and no more timed rows, than asked for");
    assert_eq!(page.next_in, Some(Duration::ZERO), "rows that are due but did not fit come due at once");
}

/// A due read is limited in bytes; a line that is cut short says so; one row always fits.
pub async fn a_due_read_is_limited_in_bytes(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let large = || Envelope::new("t", "n", vec![7; 10_000]).with_key("a");
    let line: Vec<_> = (0..4).map(|_| large()).collect();
    let states = [retrying(NOW), Parked::Held, Parked::Held, Parked::Held];
    owner.park(&*store, line.iter().cloned().zip(states).collect()).await;
    let page = owner.due_within(DueLimit { bytes: 25_000, ..ALL_DUE }).await;
    assert_eq!(ids(&page.lines[0].rows), ids_of(&line[..2]), "two of 10 kB fit into 25 kB");
    assert!(page.lines[0].more, "a line that is cut short by its bytes has `more` set");
    let page = owner.due_within(DueLimit { bytes: 1, ..ALL_DUE }).await;
    assert_eq!(heads(&page), [line[0].id], "at least one row is returned even if it is larger than the limit");
    assert!(page.lines[0].more);
}

/// A due row carries its whole record.
pub async fn a_due_row_carries_its_record(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let now = store.now().await;
    let envelope = Envelope {
        deliver_at: Some(now.saturating_sub(HOUR)),
        expires_at: Some(now.saturating_add(HOUR)),
        attempts_max: Some(3),
        ..Envelope::new("t", "n", vec![0, 255]).with_key("größe")
    };
    owner.park(&*store, vec![(envelope.clone(), retrying(NOW))]).await;
    let page = owner.due().await;
    let record = &page.lines[0].rows[0].record;
    assert_eq!(record.envelope, envelope, "a due row holds a copy of everything");
    assert_eq!((record.key, record.wait), (Some(KeyHash::of("größe".as_bytes())), Duration::ZERO));
    let left = record.expires_in.expect("it expires");
    assert!(left <= HOUR && left > HOUR / 2, "`expires_in` is what is left at this reading: {left:?}");
}

/// The new owner learns of every key that has a line, and how long it is.
pub async fn resume_lists_every_blocked_key(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let keys: Vec<String> = (0..150).map(|i| format!("k{i}")).collect();
    let mut rows: Vec<_> = keys.iter().map(|key| (keyed(key), retrying(HOUR))).collect();
    rows.extend([(keyed("k0"), Parked::Held), (keyed("k0"), Parked::Held), (keyed("dead"), dead(true))]);
    rows.extend([(keyed("other"), dead(false)), (keyed("later"), Parked::Scheduled { after: HOUR })]);
    owner.park(&*store, rows).await;
    store.log().retire(owner.node.id).await.expect("retire");
    let next = Owner::take(&*store, &node(&["r"], HOUR), "r", 0).await;
    let mut blocked = store.log().resume(&next.lease).await.expect("resume").blocked;
    let mut expected: Vec<_> = keys.iter().map(|key| (key.as_str(), if key == "k0" { 3 } else { 1 })).collect();
    expected.push(("dead", 1));
    let mut expected: Vec<_> =
        expected.into_iter().map(|(key, rows)| BlockedKey { key: KeyHash::of(key.as_bytes()), rows }).collect();
    blocked.sort_by_key(|b| b.key);
    expected.sort_by_key(|b| b.key);
    assert_eq!(blocked, expected, "every key with a line, with its number of rows, and no other key");
}

fn ids(rows: &[DueRow]) -> Vec<MessageId> {
    rows.iter().map(|row| row.record.envelope.id).collect()
}

fn heads(page: &DuePage) -> Vec<MessageId> {
    page.lines
        .iter()
        .map(|DueLine { rows, .. }| rows.first().expect("a line is never empty").record.envelope.id)
        .collect()
}

/// The next row comes due in about `after`: some of it has passed since it was parked.
fn assert_next(page: &DuePage, after: Duration) {
    let next = page.next_in.expect("a row waits for time, so `next_in` is set");
    assert!(next <= after && next > after / 2, "`next_in` {next:?} is what is left of {after:?}");
}

async fn rows_in_line(store: &dyn Fixture) -> Vec<postrider_core::parked::Ordinal> {
    let rows = store.admin().parked(&postrider_core::admin::ParkedFilter::default(), None, 100).await;
    rows.expect("list parked rows").into_iter().map(|row| row.ordinal).collect()
}
