//! Cases: looking through the log.

use std::sync::Arc;

use postrider_core::{
    admin::{Actor, ReplaySpec},
    browse::{LogRecord, RecordFilter, Standing},
    envelope::{Envelope, MessageId},
    lease::{ReplayFilter, RouteSpec},
    topic::TopicFilter,
};

use super::{
    Fixture,
    owner::{HOUR, LONGER, Owner, WHOLE, dead, ids_of, keyed, route, several},
};

/// A record is shown with all that it has but headers and payload.
pub async fn a_record_is_shown_as_it_is(store: Arc<dyn Fixture>) {
    Owner::of(&*store, &route("r")).await;
    let now = store.now().await;
    let (deliver_at, expires_at) = (now.saturating_add(HOUR), now.saturating_add(HOUR * 2));
    let (deliver_at, expires_at) = (Some(deliver_at), Some(expires_at));
    let envelope = Envelope { deliver_at, expires_at, ..Envelope::new("a.b", "thing.done", "x").with_key("größe") };
    store.commit(vec![envelope.clone()]).await;
    let [record] = list(&*store, RecordFilter::default()).await.try_into().expect("one record");
    assert_eq!((record.id, &*record.topic, &*record.name), (envelope.id, "a.b", "thing.done"));
    assert_eq!(record.key.as_deref(), Some("größe"));
    let slack = std::time::Duration::from_millis(2);
    assert!(record.enqueued_at.saturating_add(slack) >= now, "by the store's clock");
    let close = |one: Option<_>, other: Option<postrider_core::time::Timestamp>| {
        one.zip(other).is_some_and(|(one, other): (postrider_core::time::Timestamp, _)| {
            one.since(other).max(other.since(one)) <= slack
        })
    };
    assert!(close(record.deliver_at, deliver_at) && close(record.expires_at, expires_at), "{record:?}");
    let [(lane, passed)] = record.passed.as_slice() else { panic!("one route reads it: {record:?}") };
    assert_eq!((&*lane.route, lane.number, *passed), ("r", 0, false));
}

/// Pages follow each other without gap or overlap, in both directions.
pub async fn records_are_paged_in_both_directions(store: Arc<dyn Fixture>) {
    let sent = several(23);
    for some in sent.chunks(5) {
        store.commit(some.to_vec()).await;
    }
    let mut expected = ids_of(&sent);
    for newest_first in [false, true] {
        let filter = RecordFilter { newest_first, ..RecordFilter::default() };
        for limit in [1, 4, 23, 100] {
            let (mut found, mut after) = (Vec::new(), None);
            // Ends when the store says that there is nothing more; a store that never does is stopped here.
            for _ in 0..100 {
                let page = store.admin().records(&filter, after, limit).await.expect("records");
                assert!(page.records.len() <= limit as usize, "no more records than asked for");
                found.extend(page.records.iter().map(|record| record.id));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(after, None, "the log has an end");
            assert_eq!(found, expected, "newest first: {newest_first}, pages of {limit}");
        }
        expected.reverse();
    }
}

/// Every field of the filter chooses.
pub async fn records_are_filtered(store: Arc<dyn Fixture>) {
    let of = |topic: &str, name: &str, key: &str| Envelope::new(topic, name, "").with_key(key);
    let (a, b) = (of("orders.placed", "placed", "1"), of("orders.paid", "paid", "2"));
    store.commit(vec![a.clone(), b.clone()]).await;
    store.pass(LONGER).await;
    let middle = store.now().await;
    store.pass(LONGER).await;
    let c = of("payments", "paid", "1");
    store.commit(vec![c.clone()]).await;
    let all = ReplayFilter::default;
    let topics = |pattern: &str| Some(TopicFilter::new([pattern]).expect("a good pattern"));
    let cases = [
        (all(), vec![a.id, b.id, c.id]),
        (ReplayFilter { since: Some(middle), ..all() }, vec![c.id]),
        (ReplayFilter { until: Some(middle), ..all() }, vec![a.id, b.id]),
        (ReplayFilter { key: Some("1".into()), ..all() }, vec![a.id, c.id]),
        (ReplayFilter { name: Some("paid".into()), ..all() }, vec![b.id, c.id]),
        (ReplayFilter { topics: topics("orders.*"), ..all() }, vec![a.id, b.id]),
        (ReplayFilter { topics: topics("payments"), key: Some("2".into()), ..all() }, vec![]),
    ];
    for (chosen, expected) in cases {
        let filter = RecordFilter { chosen, ..RecordFilter::default() };
        assert_eq!(ids(&list(&*store, filter.clone()).await), expected, "{filter:?}");
    }
}

/// How far each reader is, replays included, and what nobody reads.
pub async fn records_tell_how_far_their_readers_are(store: Arc<dyn Fixture>) {
    let orders = TopicFilter::new(["orders.*"]).expect("a good pattern");
    let spec = |name: &str| RouteSpec { topics: orders.clone(), lanes: 2, ..route(name) };
    let mut quick = Owner::of(&*store, &spec("quick")).await;
    Owner::of(&*store, &spec("slow")).await;
    let sent: Vec<_> = (0..8).map(|n| Envelope::new("orders.placed", "n", "").with_key(format!("k{n}"))).collect();
    let stray = Envelope::new("nobody", "n", "");
    store.commit([sent.clone(), vec![stray.clone()]].concat()).await;
    let passed = quick.ids().await;
    assert!(!passed.is_empty() && passed.len() < sent.len(), "each lane has some of them");
    quick.advance().await;
    let by = |route: Option<&str>, standing| RecordFilter {
        route: route.map(ToOwned::to_owned),
        standing: Some(standing),
        ..RecordFilter::default()
    };
    assert_eq!(ids(&list(&*store, by(None, Standing::Unrouted)).await), [stray.id]);
    assert_eq!(ids(&list(&*store, by(Some("quick"), Standing::Passed)).await), passed);
    assert_eq!(ids(&list(&*store, by(Some("slow"), Standing::Passed)).await), []);
    assert_eq!(ids(&list(&*store, by(None, Standing::Waiting)).await), ids_of(&sent), "the slow one has passed none");
    let spec = ReplaySpec { route: "quick".into(), to: None, filter: ReplayFilter::default(), rate: None };
    let replay = store.admin().replay(&spec, &Actor::new("operator")).await.expect("replay");
    let waiting = list(&*store, by(Some(&replay), Standing::Waiting)).await;
    assert_eq!(ids(&waiting), ids_of(&sent), "a replay has all of them before it");
    store.commit(vec![keyed("late")]).await;
    assert_eq!(list(&*store, by(Some(&replay), Standing::Waiting)).await.len(), sent.len(), "and nothing later");
}

/// A route that reads a topic no longer has still delivered what it had passed by then, and nothing more: not what waited
/// then, nor what came later.
pub async fn what_was_delivered_stays_delivered_when_its_topic_is_let_go(store: Arc<dyn Fixture>) {
    let topics = |names: &[&str]| TopicFilter::new(names).expect("a good filter");
    let spec = |names: &[&str]| RouteSpec { topics: topics(names), lanes: 2, ..route("r") };
    let mut first = Owner::of(&*store, &spec(&["orders", "refunds"])).await;
    let of = |topic: &str| (0..8).map(|n| Envelope::new(topic, "n", "").with_key(format!("k{n}"))).collect::<Vec<_>>();
    let sent = of("refunds");
    store.commit([sent.clone(), of("orders")].concat()).await;
    let delivered: Vec<_> = first.ids().await.into_iter().filter(|id| sent.iter().any(|sent| sent.id == *id)).collect();
    assert!(!delivered.is_empty() && delivered.len() < sent.len(), "each lane has some of them");
    first.advance().await;
    store.log().retire(first.node.id).await.expect("retire");
    let before = store.now().await;
    let mut next = Owner::of(&*store, &spec(&["orders"])).await;
    let later = Envelope::new("refunds", "n", "");
    store.commit(vec![later.clone()]).await;
    next.ids().await;
    next.advance().await;

    let of_refunds = ReplayFilter { topics: Some(topics(&["refunds"])), ..ReplayFilter::default() };
    let by =
        |standing| RecordFilter { chosen: of_refunds.clone(), standing: Some(standing), ..RecordFilter::default() };
    assert_eq!(ids(&list(&*store, by(Standing::Passed)).await), delivered);
    let waited = sent.iter().map(|sent| sent.id).filter(|id| !delivered.contains(id));
    let nobodys: Vec<_> = waited.chain([later.id]).collect();
    assert_eq!(ids(&list(&*store, by(Standing::Unrouted)).await), nobodys);
    for (id, passed) in delivered.iter().map(|id| (id, true)).chain(nobodys.iter().map(|id| (id, false))) {
        let trace = store.admin().message(*id).await.expect("a trace");
        let told: Vec<_> = trace.passed.iter().map(|(lane, passed)| (&*lane.route, lane.number, *passed)).collect();
        let expected = if passed { vec![("r", 0, true)] } else { vec![] };
        assert_eq!(told, expected, "message {id}");
    }
    let overview = store.admin().overview().await.expect("overview");
    let [left] = overview.routes[0].left.as_slice() else { panic!("one change: {:?}", overview.routes[0].left) };
    assert!(left.topics.is_same_as(&topics(&["orders", "refunds"])), "{left:?}");
    let slack = std::time::Duration::from_millis(2);
    assert!(left.until.saturating_add(slack) >= before && left.until <= overview.at, "by the store's clock: {left:?}");
}

/// What is parked was passed by the cursor; its row says the rest.
pub async fn a_parked_record_counts_as_passed(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    owner.park(&*store, vec![(keyed("a"), dead(true))]).await;
    let [record] = list(&*store, RecordFilter::default()).await.try_into().expect("one record");
    assert_eq!(record.standing(), Standing::Passed);
    owner.read(WHOLE).await;
}

async fn list(store: &dyn Fixture, filter: RecordFilter) -> Vec<LogRecord> {
    let page = store.admin().records(&filter, None, 1_000).await.expect("records");
    assert_eq!(page.next, None, "everything fits into one page");
    page.records
}

fn ids(records: &[LogRecord]) -> Vec<MessageId> {
    records.iter().map(|record| record.id).collect()
}
