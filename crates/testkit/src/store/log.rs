//! Cases: what a relay reads from the log.

use std::{sync::Arc, time::Duration};

use postrider_core::{
    envelope::Envelope,
    key::OrderingKey,
    lease::{RouteSpec, Start},
    log::PageLimit,
    topic::TopicFilter,
};

use super::{
    Fixture,
    owner::{HOUR, LONGER, Owner, SHORT, WHOLE, ids, ids_of, keyed, keyless, route, several},
};
use crate::envelopes::specimens;

/// What is rolled back is never read, not even after something else commits.
pub async fn a_rolled_back_transaction_is_never_read(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    store.roll_back(several(3)).await;
    assert_eq!(owner.ids().await, [], "a rolled-back message must never be read");
    let kept = several(2);
    store.commit(kept.clone()).await;
    store.roll_back(several(1)).await;
    assert_eq!(owner.ids().await, ids_of(&kept), "only what was committed may be read");
}

/// What a savepoint took back is never read; what stands before and behind it is.
pub async fn a_savepoint_takes_back_only_what_follows_it(store: Arc<dyn Fixture>) {
    if !store.log().capabilities().savepoints {
        return;
    }
    let mut owner = Owner::of(&*store, &route("r")).await;
    let (before, taken_back, behind) = (keyed("a"), keyed("a"), keyed("a"));
    let mut transaction = store.begin().await;
    transaction.append(vec![before.clone()]).await;
    transaction.savepoint().await;
    transaction.append(vec![taken_back]).await;
    transaction.roll_back_to_savepoint().await;
    transaction.append(vec![behind.clone()]).await;
    transaction.commit().await;
    assert_eq!(
        owner.ids().await,
        [before.id, behind.id],
        "a savepoint that is rolled back takes its messages with it, and no others"
    );
}

/// A transaction that began first and commits last is not skipped.
pub async fn a_late_commit_is_not_skipped(store: Arc<dyn Fixture>) {
    if !store.log().capabilities().concurrent_writers {
        return;
    }
    let mut owner = Owner::of(&*store, &route("r")).await;
    let (late, early) = (keyed("late"), keyed("early"));
    let mut slow = store.begin().await;
    slow.append(vec![late.clone()]).await;
    let mut fast = store.begin().await;
    fast.append(vec![early.clone()]).await;
    fast.commit().await;
    assert_eq!(owner.ids().await, [early.id], "what is committed is read although an older transaction is still open");
    slow.commit().await;
    assert_eq!(
        owner.ids().await,
        [late.id],
        "a message whose transaction commits late must still be read by a cursor that has gone past its number"
    );
}

/// What was committed before another message was enqueued stands before it, though that one's transaction began earlier.
pub async fn what_was_committed_before_an_enqueue_comes_first(store: Arc<dyn Fixture>) {
    if !store.log().capabilities().concurrent_writers {
        return;
    }
    let mut owner = Owner::of(&*store, &route("r")).await;
    let (first, second, unrelated) = (keyed("a"), keyed("a"), keyed("b"));
    let mut began_first = store.begin().await;
    began_first.append(vec![unrelated]).await;
    store.commit(vec![first.clone()]).await;
    began_first.append(vec![second.clone()]).await;
    began_first.commit().await;
    let read = owner.ids().await;
    let place = |id| read.iter().position(|read| *read == id);
    assert!(
        place(first.id) < place(second.id) && place(first.id).is_some(),
        "a message committed before another of its key was enqueued must be read first"
    );
}

/// One batch keeps its order, and so do several appends of one transaction.
pub async fn one_transaction_keeps_its_order(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let (one, two) = (several(50), several(50));
    let mut transaction = store.begin().await;
    transaction.append(one.clone()).await;
    transaction.append(two.clone()).await;
    transaction.commit().await;
    assert_eq!(owner.ids().await, [ids_of(&one), ids_of(&two)].concat(), "a batch is read in the order it was given");
}

/// An empty batch and an empty transaction leave nothing behind.
pub async fn nothing_enqueued_is_nothing_read(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    store.commit(Vec::new()).await;
    store.begin().await.commit().await;
    assert_eq!(owner.ids().await, []);
}

/// Every field of every envelope arrives as it was.
pub async fn every_field_survives(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let sent = specimens();
    store.commit(sent.clone()).await;
    let read = owner.read(PageLimit { records: 17, bytes: 1 << 30 }).await;
    assert_eq!(read.len(), sent.len(), "every envelope is read once");
    for (record, envelope) in read.iter().zip(&sent) {
        assert_eq!(&record.envelope, envelope, "an envelope must leave the log as it went in");
        assert_eq!(record.key, envelope.key.as_ref().map(OrderingKey::hash), "the key hash of {}", envelope.id);
        assert_eq!(record.replay, None, "a live record is no replay");
    }
}

/// Waiting and expiry arrive as spans by the store's clock.
pub async fn instants_arrive_as_spans(store: Arc<dyn Fixture>) {
    let owner = Owner::of(&*store, &route("r")).await;
    let now = store.now().await;
    let plain = keyless();
    let later = Envelope { deliver_at: Some(now.saturating_add(HOUR)), ..keyless() };
    let past = Envelope { deliver_at: Some(now.saturating_sub(HOUR)), ..keyless() };
    let expiring = Envelope { expires_at: Some(now.saturating_add(HOUR)), ..keyless() };
    let expired = Envelope { expires_at: Some(now.saturating_sub(HOUR)), ..keyless() };
    store.commit(vec![plain, later, past, expiring, expired]).await;
    store.pass(SHORT).await;
    let page = owner.page(WHOLE).await;
    let [plain, later, past, expiring, expired] = page.records.as_slice() else {
        panic!(
            "five records were committed, {} were read: a scheduled record is read like any other",
            page.records.len()
        )
    };
    assert_eq!((plain.wait, plain.expires_in), (Duration::ZERO, None), "a plain record neither waits nor expires");
    assert!(later.wait > HOUR / 2 && later.wait <= HOUR - SHORT, "`wait` is what is left at reading: {:?}", later.wait);
    assert_eq!(past.wait, Duration::ZERO, "a `deliver_at` in the past waits no more");
    let left = expiring.expires_in.expect("a record with `expires_at` has `expires_in`");
    assert!(left > HOUR / 2 && left <= HOUR - SHORT, "`expires_in` is what is left at reading: {left:?}");
    assert_eq!(expired.expires_in, Some(Duration::ZERO), "an expired record says so with a zero");
}

/// The time of enqueueing is the store's.
pub async fn the_time_of_enqueueing_is_by_the_clock_of_the_store(store: Arc<dyn Fixture>) {
    let owner = Owner::of(&*store, &route("r")).await;
    let before = store.now().await;
    store.commit(several(1)).await;
    let after = store.now().await;
    store.pass(LONGER).await;
    let enqueued_at = owner.page(WHOLE).await.records[0].enqueued_at;
    // Some databases keep milliseconds only.
    let slack = Duration::from_millis(2);
    assert!(
        enqueued_at >= before.saturating_sub(slack) && enqueued_at <= after.saturating_add(slack),
        "`enqueued_at` {enqueued_at} lies between {before} and {after}"
    );
}

/// A page ends at its number of records; the next begins exactly behind it.
pub async fn a_page_holds_no_more_records_than_asked_for(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let sent = several(10);
    store.commit(sent.clone()).await;
    let limit = PageLimit { records: 4, ..WHOLE };
    let mut read = Vec::new();
    for (expected, more) in [(4, true), (4, true), (2, false)] {
        let page = owner.page(limit).await;
        assert_eq!(page.records.len(), expected, "a page is filled up to the limit and never beyond");
        assert_eq!(page.more, more, "`more` tells whether another read would find something at once");
        assert!(!page.ended, "a route never ends");
        read.extend(ids(page.records.iter()));
        owner.cursor = page.end;
    }
    assert_eq!(read, ids_of(&sent), "pages follow each other without gap or overlap");
}

/// A page ends at its number of bytes, but never stays empty for it.
pub async fn a_page_holds_no_more_bytes_than_asked_for(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let sent: Vec<_> = (0..6).map(|_| Envelope::new("t", "n", vec![7; 10_000])).collect();
    store.commit(sent.clone()).await;
    let page = owner.page(PageLimit { records: 100, bytes: 35_000 }).await;
    assert_eq!(page.records.len(), 3, "three of 10 kB fit into 35 kB");
    assert!(page.more, "three are left");
    let mut read = ids(page.records.iter());
    owner.cursor = page.end;
    for _ in 3..6 {
        let page = owner.page(PageLimit { records: 100, bytes: 1 }).await;
        assert_eq!(page.records.len(), 1, "a page holds at least one record even if that one is larger than the limit");
        read.extend(ids(page.records.iter()));
        owner.cursor = page.end;
    }
    assert_eq!(read, ids_of(&sent));
}

/// The mark behind the first n records resumes exactly behind them.
pub async fn a_mark_resumes_exactly_behind_its_record(store: Arc<dyn Fixture>) {
    let owner = Owner::of(&*store, &RouteSpec { topics: topics(&["yes"]), ..route("r") }).await;
    let sent: Vec<_> = (0..12).map(|i| Envelope::new(if i % 3 == 0 { "no" } else { "yes" }, "n", "")).collect();
    store.commit(sent.clone()).await;
    let page = owner.page(WHOLE).await;
    let all = ids(page.records.iter());
    assert_eq!(all.len(), 8);
    for n in 0..8 {
        let mark = (page.marks)(n);
        let rest = store.log().read(&owner.lease, &mark, WHOLE).await.expect("read from a mark");
        assert_eq!(
            ids(rest.records.iter()),
            all[n as usize..],
            "reading from marks({n}) must return all but the first {n} records"
        );
    }
}

/// With nothing new the end is the cursor that was read from, byte for byte.
pub async fn without_anything_new_the_cursor_stays(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let page = owner.page(WHOLE).await;
    assert_eq!(page.end, owner.cursor, "in an empty log `end` equals the cursor that was read from");
    assert!(page.records.is_empty() && !page.more);
    store.commit(several(3)).await;
    owner.ids().await;
    let page = owner.page(WHOLE).await;
    assert_eq!(page.end, owner.cursor, "when all is read `end` equals the cursor that was read from");
    assert!(page.records.is_empty() && !page.more);
}

/// Records of other topics are passed over, and the cursor moves over them.
pub async fn a_filtered_page_moves_the_cursor(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &RouteSpec { topics: topics(&["wanted"]), ..route("r") }).await;
    store.commit((0..20).map(|_| Envelope::new("other", "n", "")).collect()).await;
    let before = owner.cursor.clone();
    assert_eq!(owner.ids().await, [], "a route reads only its topics");
    assert_ne!(
        owner.cursor, before,
        "`end` moves over records that the filter passes over, or retention would wait for ever"
    );
    let wanted = Envelope::new("wanted", "n", "");
    store.commit(vec![Envelope::new("other", "n", ""), wanted.clone()]).await;
    assert_eq!(owner.ids().await, [wanted.id]);
}

/// Exact topics, one-segment and many-segment wildcards choose what they say.
pub async fn topic_filters_choose_what_they_say(store: Arc<dyn Fixture>) {
    let all = ["orders", "orders.placed", "orders.placed.eu", "payments.placed", "orders_placed", "Orders.placed"];
    let cases: [(&[&str], &[&str]); 6] = [
        (&["orders.placed"], &["orders.placed"]),
        (&["orders.*"], &["orders.placed"]),
        (&["*.placed"], &["orders.placed", "payments.placed", "Orders.placed"]),
        (&["orders.**"], &["orders.placed", "orders.placed.eu"]),
        (&["orders", "payments.*"], &["orders", "payments.placed"]),
        (&["**"], &all),
    ];
    store.commit(all.iter().map(|topic| Envelope::new(topic, "n", "")).collect()).await;
    for (i, (patterns, expected)) in cases.into_iter().enumerate() {
        let spec = RouteSpec { topics: topics(patterns), ..route(&format!("r{i}")) };
        let mut owner = Owner::of(&*store, &spec).await;
        let read = owner.read(WHOLE).await;
        let read: Vec<&str> = read.iter().map(|record| &*record.envelope.topic).collect();
        assert_eq!(read, expected, "what {patterns:?} reads (topics are case-sensitive, `_` is no wildcard)");
    }
}

/// A route may begin with the oldest record, or with what commits from now on.
pub async fn a_new_route_begins_where_it_says(store: Arc<dyn Fixture>) {
    let old = several(3);
    store.commit(old.clone()).await;
    let mut from_oldest = Owner::of(&*store, &route("oldest")).await;
    let mut from_now = Owner::of(&*store, &RouteSpec { start: Start::Now, ..route("now") }).await;
    let new = several(2);
    store.commit(new.clone()).await;
    assert_eq!(from_oldest.ids().await, [ids_of(&old), ids_of(&new)].concat(), "Start::Oldest misses nothing");
    assert_eq!(from_now.ids().await, ids_of(&new), "Start::Now begins with what commits after the registration");
}

/// Two routes do not disturb each other.
pub async fn routes_have_cursors_of_their_own(store: Arc<dyn Fixture>) {
    let mut one = Owner::of(&*store, &route("one")).await;
    let two = Owner::of(&*store, &route("two")).await;
    let sent = several(4);
    store.commit(sent.clone()).await;
    assert_eq!(one.ids().await, ids_of(&sent));
    one.advance().await;
    let resumed = store.log().resume(&two.lease).await.expect("resume");
    assert_eq!(resumed.cursor, two.cursor, "settling one route must not move another");
    assert_eq!(ids(two.page(WHOLE).await.records.iter()), ids_of(&sent));
}

fn topics(patterns: &[&str]) -> TopicFilter {
    TopicFilter::new(patterns).expect("a good filter")
}
