//! Cases: what an operator sees and does.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use postrider_core::{
    ErrorKind,
    admin::{
        Actor, Hindrance, MESSAGES_PER_ENTRY, Overview, PENDING_LOOK_MAX, ParkedCounts, ParkedFilter, ParkedRow,
        ReplaySpec, RouteStatus, Undelivered,
    },
    browse::TopicPage,
    doctor::{Severity, Thresholds},
    envelope::{Envelope, MessageId},
    lease::{Node, NodeId, Order, ReplayFilter, RouteSpec},
    limits::Limits,
    log::Settlement,
    parked::{Cause, Parked, ParkedState},
    standstill::{Reason, Standstill},
    topic::TopicFilter,
};

use super::{
    Fixture,
    owner::{HOUR, LONGER, Owner, SHORT, WHOLE, dead, ids_of, keyed, keyless, node, retrying, route, several},
};

const NOW: Duration = Duration::ZERO;

/// Pending and its age come from the log itself, whether a relay runs or not.
pub async fn pending_is_read_from_the_log(store: Arc<dyn Fixture>) {
    let topics = TopicFilter::new(["orders.*"]).expect("a good filter");
    let mut owner = Owner::of(&*store, &RouteSpec { topics, ..route("r") }).await;
    let status = status(&*store, "r").await;
    assert_eq!((status.pending, status.oldest_pending_age), (0, None), "nothing waits in an empty log");
    store.commit(vec![keyless(), Envelope::new("payments", "n", ""), keyless()]).await;
    store.pass(LONGER).await;
    store.commit(several(2)).await;
    let overview = overview(&*store).await;
    assert_eq!(overview.records, 5, "the overview counts the records of the log");
    let status = of(&overview, "r");
    assert_eq!(status.pending, 4, "pending counts the records that match and that the cursor has not passed");
    assert!(!status.pending_more, "all of them were looked at");
    let age = status.oldest_pending_age.expect("something waits");
    assert!(age >= LONGER && age < HOUR, "the age of the oldest pending record is {age:?}");
    owner.read(WHOLE).await;
    let unsettled = self::status(&*store, "r").await.pending;
    assert_eq!(unsettled, 4, "reading settles nothing: pending counts from the settled cursor");
    owner.advance().await;
    let status = self::status(&*store, "r").await;
    assert_eq!((status.pending, status.oldest_pending_age), (0, None), "a passed record is not pending");
    assert_eq!(self::overview(&*store).await.records, 5, "delivered records are counted too");
}

/// A route that reads little of a busy log and stands still costs whoever looks no more than [`PENDING_LOOK_MAX`] records. What is
/// said then is never too good: at least so many wait, and for no longer than that.
pub async fn what_waits_is_looked_for_only_so_far(store: Arc<dyn Fixture>) {
    let of = |topic: &str| Envelope::new(topic, "n", "");
    let reads = |name: &str| RouteSpec { topics: TopicFilter::new([name]).expect("a good filter"), ..route(name) };
    let node = node(&["near", "far"], HOUR);
    store.log().register(&node, &[reads("near"), reads("far")]).await.expect("register");
    let mut others = usize::try_from(PENDING_LOOK_MAX).expect("it fits") - 1;
    while others > 0 {
        let some = others.min(Limits::default().batch_messages_max);
        store.commit((0..some).map(|_| of("other")).collect()).await;
        others -= some;
    }
    // The last that is looked at, and a moment later the first that is not.
    store.commit(vec![of("near")]).await;
    store.pass(LONGER).await;
    store.commit(vec![of("near"), of("far")]).await;
    // Some stores have an order to make first, a part of it with each look.
    let mut shown = overview(&*store).await;
    for _ in 0..9 {
        if self::of(&shown, "far").oldest_pending_age.is_some() {
            break;
        }
        shown = overview(&*store).await;
    }
    let (near, far) = (self::of(&shown, "near"), self::of(&shown, "far"));
    assert_eq!(
        (near.pending, near.pending_more),
        (1, true),
        "at least one waits; what is further away is not looked at"
    );
    let exact = near.oldest_pending_age.expect("it was found");
    assert!(exact >= LONGER && exact < HOUR, "{exact:?}");
    assert_eq!((far.pending, far.pending_more), (0, true), "nothing was found");
    let at_most = far.oldest_pending_age.expect("something may wait further away, and that is told");
    assert!(at_most <= exact.saturating_sub(SHORT), "nothing that may wait is older than {at_most:?}, of {exact:?}");
    store.log().retire(node.id).await.expect("retire");
    let kept = overview(&*store).await.hindrance("far", &[]);
    assert_eq!(kept, Some(Hindrance::Undelivered { pending: 0, parked: 0 }), "what may wait is not forgotten");
}

/// What waits in the parked rows is not delivered either: its age must not vanish when the cursor passes it.
pub async fn waiting_rows_have_a_pending_age(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    owner.park(&*store, vec![(keyed("a"), dead(true))]).await;
    store.pass(SHORT).await;
    let age = status(&*store, "r").await.oldest_pending_age;
    assert_eq!(age, None, "a dead row waits for an operator and is counted as dead");
    owner.park(&*store, vec![(keyed("a"), Parked::Held)]).await;
    store.pass(LONGER).await;
    let status = status(&*store, "r").await;
    assert_eq!(status.pending, 0, "the cursor has passed it");
    let age = status.oldest_pending_age.expect("a held message waits");
    assert!(age >= LONGER && age < HOUR, "the age is that of the held message: {age:?}");
}

/// What is scheduled for later is not overdue.
pub async fn scheduled_records_have_no_pending_age(store: Arc<dyn Fixture>) {
    Owner::of(&*store, &route("r")).await;
    let deliver_at = Some(store.now().await.saturating_add(HOUR));
    store.commit(vec![Envelope { deliver_at, ..keyless() }]).await;
    store.pass(LONGER).await;
    let status = status(&*store, "r").await;
    assert_eq!(status.oldest_pending_age, None, "a record scheduled for later does not count for the pending age");
    store.commit(several(1)).await;
    store.pass(SHORT).await;
    let age = self::status(&*store, "r").await.oldest_pending_age.expect("an unscheduled record waits");
    assert!(age >= SHORT && age < HOUR, "the age is that of the unscheduled record: {age:?}");
}

/// Pending is counted per lane: what one lane has passed does not hide what another has not.
pub async fn pending_counts_every_lane(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &RouteSpec { lanes: 3, ..route("r") }).await;
    store.commit(several(30)).await;
    let passed = owner.ids().await.len() as u64;
    owner.advance().await;
    let pending = status(&*store, "r").await.pending;
    assert_eq!(pending, 30 - passed, "records of the lanes that have not moved are still pending");
}

/// The overview shows routes, lanes, owners, nodes and parked rows.
pub async fn the_overview_shows_what_there_is(store: Arc<dyn Fixture>) {
    let topics = TopicFilter::new(["a.*", "b"]).expect("a good filter");
    let second = RouteSpec { topics, lanes: 2, ..route("s") };
    let mut owner = Owner::of(&*store, &route("r")).await;
    let third = RouteSpec { order: Order::Total, ..route("t") };
    store.log().register(&owner.node, &[second, third]).await.expect("register");
    let states =
        [Parked::Scheduled { after: HOUR }, retrying(HOUR), Parked::Held, Parked::Held, dead(true), dead(false)];
    owner.park(&*store, states.into_iter().enumerate().map(|(i, s)| (keyed(&format!("k{i}")), s)).collect()).await;
    let overview = overview(&*store).await;
    let names: Vec<&str> = overview.routes.iter().map(|route| &*route.route).collect();
    assert_eq!(names, ["r", "s", "t"], "routes by name");
    let orders: Vec<Order> = overview.routes.iter().map(|route| route.order).collect();
    assert_eq!(orders, [Order::Key, Order::Key, Order::Total], "how each keeps order");
    let r = of(&overview, "r");
    assert_eq!(r.parked, ParkedCounts { scheduled: 1, retrying: 1, held: 2, dead: 2, blocking: 1 });
    assert_eq!((r.lanes.len(), r.lanes[0].owner, r.lanes[0].epoch), (1, Some(owner.node.id), owner.lease.epoch));
    assert!(!r.lanes[0].cursor.is_empty(), "the cursor is described for people");
    assert!(r.replay_of.is_none() && r.paused.is_none());
    let s = of(&overview, "s");
    assert_eq!((s.topics.as_str(), s.lanes.len()), ("a.*, b", 2));
    assert!(s.lanes.iter().all(|lane| lane.owner.is_none()), "nobody owns these");
    assert_eq!(s.parked, ParkedCounts::default());
    let [node] = overview.nodes.as_slice() else { panic!("one live node, not {:?}", overview.nodes) };
    assert_eq!((node.id, &node.name, &node.routes), (owner.node.id, &owner.node.name, &owner.node.routes));
    assert!(node.seen < HOUR, "time since its last heartbeat: {:?}", node.seen);
}

/// What a node says of its lanes is kept with its heartbeat, and only until the next one.
pub async fn a_node_says_why_its_lanes_stand_still(store: Arc<dyn Fixture>) {
    let owner = Owner::of(&*store, &route("r")).await;
    let cause = Cause::new("refused", "connection \"refused\"");
    let reason = Reason::Unavailable { cause, failing: None, seconds_left: Some(7) };
    let standstill = Standstill { lane: owner.lease.lane.clone(), seconds: 7, reason };
    let troubled = Node { standstills: vec![standstill.clone()], ..owner.node.clone() };
    store.log().heartbeat(&troubled).await.expect("heartbeat");
    assert_eq!(overview(&*store).await.nodes[0].standstills, [standstill]);
    store.log().heartbeat(&owner.node).await.expect("heartbeat");
    assert_eq!(overview(&*store).await.nodes[0].standstills, []);
}

/// The topics in use are known, also those that no route reads: a walk from the oldest record to the newest leaves none out
/// and counts none twice, and one that goes on later sees what came in between.
pub async fn the_log_tells_its_topics_a_stretch_at_a_time(store: Arc<dyn Fixture>) {
    let topics = |after, limit| {
        let store = Arc::clone(&store);
        async move { store.admin().topics(after, limit).await.expect("topics") }
    };
    assert_eq!(topics(None, 10).await, TopicPage::default(), "an empty log has none");
    let of = |topic: &str| Envelope::new(topic, "n", "");
    store.commit(vec![of("old")]).await;
    store.commit(vec![of("b"), of("a.x"), of("b")]).await;
    let counted = |page: &TopicPage| {
        let topics: Vec<String> = page.topics.iter().map(|(topic, records)| format!("{topic} {records}")).collect();
        topics.join(", ")
    };
    let whole = topics(None, 10).await;
    assert_eq!((counted(&whole).as_str(), whole.next), ("a.x 1, b 2, old 1", None), "by topic, with their counts");
    let first = topics(None, 2).await;
    assert!(counted(&first).contains("old 1") && first.topics.len() == 2, "the oldest: {first:?}");
    let second = topics(Some(first.next.expect("more")), 2).await;
    let mut both = first.topics.clone();
    both.extend(second.topics.clone());
    assert_eq!(both.iter().map(|(_, records)| records).sum::<u64>(), 4, "{both:?}");
    assert!(both.iter().any(|(topic, _)| topic == "a.x"), "{both:?}");
    let end = second.next.expect("a full stretch does not know that it is the last");
    assert_eq!(topics(Some(end), 2).await, TopicPage::default(), "nothing more yet");
    store.commit(vec![of("new")]).await;
    assert_eq!(counted(&topics(Some(end), 2).await), "new 1", "only what is new");
}

/// Who has no transaction enqueues all the same: in one of the store's own, in the order given, with an audit entry if it is
/// an operator.
pub async fn the_store_enqueues_by_itself(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let batch = |envelopes: &[Envelope]| Limits::default().check(envelopes.to_vec()).expect("within the limits");
    let carried: Vec<Envelope> = (0..3).map(|_| keyed("k")).collect();
    store.admin().enqueue(batch(&carried), None).await.expect("enqueue");
    assert!(store.admin().audit(10).await.expect("audit").is_empty(), "nobody has done this by hand");
    let (by_hand, actor) = (keyless(), Actor { name: "ann".into(), reason: Some("to try".into()) });
    store.admin().enqueue(batch(std::slice::from_ref(&by_hand)), Some(&actor)).await.expect("enqueue");
    let read: Vec<_> = owner.read(WHOLE).await.iter().map(|record| record.envelope.id).collect();
    let expected: Vec<_> = carried.iter().chain([&by_hand]).map(|envelope| envelope.id).collect();
    assert_eq!(read, expected);
    let entries = store.admin().audit(10).await.expect("audit");
    assert_eq!(entries.len(), 1);
    assert_eq!((&*entries[0].action, &entries[0].actor), ("enqueue", &actor));
    assert_eq!(entries[0].message(), Some(by_hand.id), "{}", entries[0].subject);
}

/// Every field of the filter chooses.
pub async fn parked_rows_are_filtered(store: Arc<dyn Fixture>) {
    let (mut r, mut s) = (Owner::of(&*store, &route("r")).await, Owner::of(&*store, &route("s")).await);
    let (a, b, c) = (keyed("a"), keyed("b"), keyless());
    let too_large = Parked::Dead { attempts: 1, cause: Cause::new("too-large", "10 MB"), blocks: false };
    r.park(&*store, vec![(a.clone(), dead(true)), (b.clone(), retrying(HOUR)), (c.clone(), too_large)]).await;
    let park = s.read(WHOLE).await.into_iter().take(1).map(|record| (record, Parked::Held)).collect();
    s.settle(Settlement { park, ..Settlement::default() }).await.expect("settle");
    let all = ParkedFilter::default;
    let now = store.admin().overview().await.expect("overview").at;
    let cases = [
        (ParkedFilter { parked_before: Some(now.saturating_sub(HOUR)), ..all() }, vec![]),
        (
            ParkedFilter { parked_before: Some(now.saturating_add(HOUR)), state: Some(ParkedState::Held), ..all() },
            vec![("s", a.id)],
        ),
        (all(), vec![("r", a.id), ("r", b.id), ("r", c.id), ("s", a.id)]),
        (ParkedFilter { route: Some("s".into()), ..all() }, vec![("s", a.id)]),
        (ParkedFilter { state: Some(ParkedState::Dead), ..all() }, vec![("r", a.id), ("r", c.id)]),
        (ParkedFilter { cause: Some("too-large".into()), ..all() }, vec![("r", c.id)]),
        (ParkedFilter { key: Some("a".into()), ..all() }, vec![("r", a.id), ("s", a.id)]),
        (ParkedFilter { id: Some(b.id), ..all() }, vec![("r", b.id)]),
        (ParkedFilter { id: Some(b.id), route: Some("s".into()), ..all() }, vec![]),
        (ParkedFilter { route: Some("unknown".into()), ..all() }, vec![]),
    ];
    for (filter, expected) in cases {
        let rows = parked(&*store, &filter).await;
        let found: Vec<_> = rows.iter().map(|row| (&*row.route, row.envelope.id)).collect();
        assert_eq!(found, expected, "rows that match {filter:?}, by route and ordinal");
    }
}

/// Pages of parked rows follow each other without gap or overlap, over routes.
pub async fn parked_rows_are_paged(store: Arc<dyn Fixture>) {
    let (mut r, mut s) = (Owner::of(&*store, &route("r")).await, Owner::of(&*store, &route("s")).await);
    let sent = several(5);
    r.park(&*store, sent.iter().map(|envelope| (envelope.clone(), dead(false))).collect()).await;
    let park = s.read(WHOLE).await.into_iter().map(|record| (record, dead(false))).collect();
    s.settle(Settlement { park, ..Settlement::default() }).await.expect("settle");
    let mut found = Vec::new();
    let mut after = None;
    // Ends with the first empty page; more pages than rows mean that paging repeats itself.
    for _ in 0..20 {
        let page = store.admin().parked(&ParkedFilter::default(), after.clone(), 3).await.expect("parked");
        assert!(page.len() <= 3, "no more rows than asked for");
        let Some(last) = page.last() else { break };
        after = Some((Arc::clone(&last.route), last.ordinal));
        found.extend(page.into_iter().map(|row| (row.route.to_string(), row.envelope.id)));
    }
    let expected: Vec<_> = ["r", "s"].iter().flat_map(|r| sent.iter().map(|e| ((*r).to_owned(), e.id))).collect();
    assert_eq!(found, expected);
}

/// A listed row says all about itself.
pub async fn a_listed_row_says_how_it_stands(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let rows = vec![(keyed("a"), retrying(HOUR)), (keyed("a"), Parked::Held), (keyless(), retrying(HOUR))];
    owner.park(&*store, rows).await;
    store.pass(SHORT).await;
    let rows = parked(&*store, &ParkedFilter::default()).await;
    assert_eq!(rows.iter().map(|row| row.head).collect::<Vec<_>>(), [true, false, false], "only lines have heads");
    let due_in = rows[0].due_in.expect("a retrying row waits for time");
    assert!(due_in <= HOUR - SHORT && due_in > HOUR / 2, "`due_in` is what is left: {due_in:?}");
    assert_eq!(rows[1].due_in, None, "a held row waits for no time");
    assert!(rows.iter().all(|row| row.age >= SHORT && row.age < HOUR), "`age` counts from the parking");
    let now = store.now().await;
    // Some databases keep milliseconds only.
    let parked_for = |row: &ParkedRow| now.since(row.parked_at) + Duration::from_millis(2);
    assert!(rows.iter().all(|row| parked_for(row) >= SHORT && parked_for(row) < HOUR), "and so does `parked_at`");
    store.pass(SHORT).await;
    let later = parked(&*store, &ParkedFilter::default()).await;
    let instants = |rows: &[ParkedRow]| rows.iter().map(|row| row.parked_at).collect::<Vec<_>>();
    assert_eq!(instants(&later), instants(&rows), "which is the same at every look");
}

/// A dead row is as old as its death, whatever it waited for before: else an operator who discards what has been dead for long
/// would discard what has just died.
pub async fn a_dead_row_is_as_old_as_its_death(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let (scheduled, head, held, redriven) = (keyed("a"), keyed("b"), keyed("b"), keyed("c"));
    let rows = vec![
        (scheduled.clone(), Parked::Scheduled { after: NOW }),
        (head.clone(), dead(true)),
        (held.clone(), Parked::Held),
        (redriven.clone(), dead(true)),
    ];
    owner.park(&*store, rows).await;
    store.pass(LONGER).await;
    let later = store.now().await;
    // Some databases keep milliseconds only.
    store.pass(Duration::from_millis(2)).await;
    let old = async || {
        let rows = parked(&*store, &ParkedFilter { parked_before: Some(later), ..ParkedFilter::default() }).await;
        rows.iter().map(|row| row.envelope.id).collect::<BTreeSet<_>>()
    };
    let ordinal = async |id| {
        let rows = parked(&*store, &ParkedFilter { id: Some(id), ..ParkedFilter::default() }).await;
        rows[0].ordinal
    };
    let all = BTreeSet::from([scheduled.id, head.id, held.id, redriven.id]);
    assert_eq!(old().await, all, "all were parked before");
    assert_eq!(redrive(&*store, &ParkedFilter { id: Some(redriven.id), ..ParkedFilter::default() }).await, 1);
    let waits_again = vec![(ordinal(redriven.id).await, retrying(HOUR)), (ordinal(scheduled.id).await, Parked::Held)];
    owner.change(waits_again).await;
    assert_eq!(old().await, all, "neither a redrive nor a wait makes a row younger");
    let mut died = Vec::new();
    for id in [scheduled.id, held.id, redriven.id] {
        died.push((ordinal(id).await, dead(true)));
    }
    owner.change(died).await;
    assert_eq!(old().await, BTreeSet::from([head.id]), "what has died since is not old; what was dead before is");
    let rows = parked(&*store, &ParkedFilter::default()).await;
    let young = rows.iter().filter(|row| row.parked_at >= later && row.age < LONGER + HOUR).count();
    assert_eq!((rows.len(), young), (4, 3), "and so says each row: {rows:?}");
}

/// Dead rows are grouped by route and cause, largest first.
pub async fn dead_rows_are_grouped_by_cause(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let died = |code: &str, detail: &str| Parked::Dead { attempts: 1, cause: Cause::new(code, detail), blocks: false };
    let before = store.now().await;
    owner.park(&*store, vec![(keyless(), died("rare", "x")), (keyless(), died("common", "first"))]).await;
    store.pass(SHORT).await;
    owner.park(&*store, vec![(keyless(), died("common", "newest")), (keyless(), retrying(HOUR))]).await;
    let groups = store.admin().dead_groups().await.expect("groups");
    let shown: Vec<_> = groups.iter().map(|g| (&*g.route, g.code.as_str(), g.detail.as_str(), g.rows)).collect();
    assert_eq!(shown, [("r", "common", "newest", 2), ("r", "rare", "x", 1)], "largest first, detail of the newest");
    // Some databases keep milliseconds only.
    let slack = Duration::from_millis(2);
    assert!(groups[0].first_at.saturating_add(slack) >= before, "the first was parked after {before}");
    assert!(groups[0].last_at.since(groups[0].first_at) + slack >= SHORT, "the newest was parked later than the first");
    assert_eq!(groups[1].first_at, groups[1].last_at, "a single row is the first and the newest");
}

/// Everything about one message: its record, how far each route is, its parked rows.
pub async fn a_message_can_be_traced(store: Arc<dyn Fixture>) {
    let mut passed = Owner::of(&*store, &route("passed")).await;
    Owner::of(&*store, &route("waiting")).await;
    let envelope = keyed("a");
    passed.park(&*store, vec![(envelope.clone(), dead(true))]).await;
    let trace = store.admin().message(envelope.id).await.expect("message");
    assert_eq!(trace.record.expect("the log still has it").0, envelope);
    let state = |name: &str| trace.passed.iter().find(|(lane, _)| *lane.route == *name).map(|(_, passed)| *passed);
    assert_eq!((state("passed"), state("waiting")), (Some(true), Some(false)), "whether each route has passed it");
    let rows: Vec<_> = trace.parked.iter().map(|row| (&*row.route, row.state)).collect();
    assert_eq!(rows, [("passed", ParkedState::Dead)]);
    let unknown = store.admin().message(MessageId::generate()).await.expect("an unknown id is no error");
    assert!(unknown.record.is_none() && unknown.parked.is_empty());
}

/// Redriving a dead row that blocks its key: it is tried again, as the head, with a fresh count.
pub async fn a_blocking_dead_is_redriven_as_the_head(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let (head, next) = (keyed("a"), keyed("a"));
    owner.park(&*store, vec![(head.clone(), dead(true)), (next.clone(), Parked::Held)]).await;
    assert_eq!(redrive(&*store, &ParkedFilter::default()).await, 1, "only dead rows are redriven, and counted");
    let line = &owner.due().await.lines[0];
    assert_eq!(
        line.rows.iter().map(|row| (row.record.envelope.id, row.attempts)).collect::<Vec<_>>(),
        [(head.id, 0), (next.id, 0)],
        "a redriven blocking dead stays the head of its line, due now, with no attempts counted"
    );
    let rows = parked(&*store, &ParkedFilter::default()).await;
    assert_eq!((rows[0].state, rows[0].is_redriven()), (ParkedState::Retrying, true), "and is known to be redriven");
    assert!(rows[0].cause.is_some() && !rows[1].is_redriven(), "with the cause that it was given up for");
}

/// Redriving a dead row whose key has gone on: it is scheduled for now, and goes behind what its key has.
pub async fn a_released_dead_is_redriven_behind_its_key(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let (released, head) = (keyed("a"), keyed("a"));
    owner.park(&*store, vec![(released.clone(), dead(false)), (head.clone(), retrying(HOUR))]).await;
    let filter = ParkedFilter { id: Some(released.id), ..ParkedFilter::default() };
    assert_eq!(redrive(&*store, &filter).await, 1);
    let page = owner.due().await;
    let timed: Vec<_> = page.timed.iter().map(|row| (row.record.envelope.id, row.attempts)).collect();
    assert_eq!(timed, [(released.id, 0)], "it comes as a timed row, due now, with a fresh count of attempts");
    assert!(page.lines.is_empty(), "it must not become the head of its key's line: that key has gone on");
    let rows = parked(&*store, &filter).await;
    assert_eq!((rows[0].state, rows[0].is_redriven()), (ParkedState::Scheduled, true), "{rows:?}");
}

/// How long retention has kept the oldest record is told by the store's clock.
pub async fn the_age_of_the_oldest_record_is_told(store: Arc<dyn Fixture>) {
    let age = async || store.admin().vitals().await.expect("vitals").oldest_record_age;
    assert_eq!(age().await, Some(Duration::ZERO), "an empty log has no old records");
    store.commit(vec![keyless()]).await;
    store.pass(LONGER).await;
    store.commit(vec![keyless()]).await;
    let age = age().await.expect("every store knows its records");
    assert!(age >= LONGER && age < HOUR, "the age of the oldest: {age:?}");
}

/// Redriving looks at the filter, and at dead rows only.
pub async fn a_redrive_leaves_others_alone(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let rows = vec![(keyed("a"), dead(true)), (keyed("b"), dead(true)), (keyed("c"), retrying(HOUR))];
    owner.park(&*store, rows).await;
    let only_a = ParkedFilter { key: Some("a".into()), ..ParkedFilter::default() };
    assert_eq!(redrive(&*store, &only_a).await, 1);
    let states: Vec<_> = parked(&*store, &ParkedFilter::default()).await.iter().map(|row| row.state).collect();
    assert_eq!(states, [ParkedState::Retrying, ParkedState::Dead, ParkedState::Retrying]);
    let retrying_only = ParkedFilter { state: Some(ParkedState::Retrying), ..ParkedFilter::default() };
    assert_eq!(redrive(&*store, &retrying_only).await, 0, "only dead rows can be redriven");
}

/// Discarding frees the line, whatever state the row was in.
pub async fn a_discard_frees_the_line(store: Arc<dyn Fixture>) {
    for head in [dead(true), retrying(HOUR)] {
        let name = head.state().name();
        let mut owner = Owner::of(&*store, &route(name)).await;
        let line: Vec<_> = (0..2).map(|_| keyed(name)).collect();
        // Other routes have the records of earlier rounds unread; this one begins with them.
        owner.read(WHOLE).await;
        owner.park(&*store, line.iter().cloned().zip([head, Parked::Held]).collect()).await;
        assert!(owner.due().await.lines.is_empty(), "the head stops its line");
        let filter = ParkedFilter { id: Some(line[0].id), ..ParkedFilter::default() };
        let discarded = store.admin().discard(&filter, &Actor::new("operator")).await.expect("discard");
        assert_eq!(discarded, 1);
        let due = owner.due().await;
        let heads: Vec<_> = due.lines.iter().map(|line| line.rows[0].record.envelope.id).collect();
        assert_eq!(
            heads,
            ids_of(&line[1..]),
            "when a {name} head is discarded the next of its line is the head, due at once"
        );
    }
}

/// Rows are counted without being fetched, and a long piece of work can be done slice by slice.
pub async fn work_can_be_cut_into_slices(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    owner.park(&*store, (0..5).map(|n| (keyed(&format!("k{n}")), dead(true))).collect()).await;
    let all = ParkedFilter { state: Some(ParkedState::Dead), ..ParkedFilter::default() };
    let count = |filter: ParkedFilter| {
        let store = Arc::clone(&store);
        async move { store.admin().parked_count(&filter).await.expect("count") }
    };
    assert_eq!(count(all.clone()).await, 5);
    assert_eq!(count(ParkedFilter { key: Some("k3".into()), ..all.clone() }).await, 1);
    let ordinals: Vec<_> = parked(&*store, &all).await.iter().map(|row| row.ordinal).collect();
    let slice = ParkedFilter { ordinals: Some(ordinals[1]..=ordinals[3]), ..all.clone() };
    assert_eq!(count(slice.clone()).await, 3, "both ends are included");
    assert_eq!(redrive(&*store, &slice).await, 3);
    let left: Vec<_> = parked(&*store, &all).await.iter().map(|row| row.ordinal).collect();
    assert_eq!(left, [ordinals[0], ordinals[4]], "the others are left alone");
}

/// A paused route is shown as paused, by whom and why.
pub async fn a_pause_tells_who_and_why(store: Arc<dyn Fixture>) {
    Owner::of(&*store, &route("r")).await;
    let actor = Actor { name: "anna".into(), reason: Some("broker upgrade".into()) };
    store.admin().pause("r", &actor).await.expect("pause");
    assert_eq!(status(&*store, "r").await.paused, Some(actor.clone()));
    store.admin().resume_route("r", &actor).await.expect("resume");
    assert_eq!(status(&*store, "r").await.paused, None);
}

/// Names that nobody knows are answered with `NotFound`.
pub async fn unknown_names_are_refused(store: Arc<dyn Fixture>) {
    Owner::of(&*store, &route("r")).await;
    let (admin, actor) = (store.admin(), Actor::new("operator"));
    let spec = ReplaySpec { route: "unknown".into(), to: None, filter: ReplayFilter::default(), rate: None };
    let answers = [
        ("pause", admin.pause("unknown", &actor).await.err()),
        ("resume_route", admin.resume_route("unknown", &actor).await.err()),
        ("replay", admin.replay(&spec, &actor).await.err()),
        ("cancel_replay", admin.cancel_replay("unknown", &actor).await.err()),
        ("cancel_replay of a route", admin.cancel_replay("r", &actor).await.err()),
        ("drop_route", admin.drop_route("unknown", &actor).await.err()),
        ("drain_node", admin.drain_node(NodeId::generate(), &actor).await.err()),
    ];
    for (call, error) in answers {
        let error = error.unwrap_or_else(|| panic!("{call} of a name that nobody knows must be refused"));
        assert_eq!(error.kind(), ErrorKind::NotFound, "{call}: {error:?}");
    }
    assert!(admin.audit(10).await.expect("audit").is_empty(), "what was refused leaves no audit entry");
}

/// Every change leaves an entry, newest first, with actor and reason.
pub async fn every_change_is_audited(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    owner.park(&*store, vec![(keyed("a"), dead(true)), (keyed("b"), dead(true))]).await;
    let (admin, actor) = (store.admin(), Actor { name: "anna".into(), reason: Some("ticket 7".into()) });
    let before = store.now().await;
    let only_a = ParkedFilter { key: Some("a".into()), ..ParkedFilter::default() };
    admin.redrive(&only_a, &actor).await.expect("redrive");
    admin.discard(&only_a, &actor).await.expect("discard");
    admin.pause("r", &actor).await.expect("pause");
    admin.resume_route("r", &actor).await.expect("resume");
    let spec = ReplaySpec { route: "r".into(), to: None, filter: ReplayFilter::default(), rate: None };
    let replay = admin.replay(&spec, &actor).await.expect("replay");
    admin.cancel_replay(&replay, &actor).await.expect("cancel");
    admin.drop_route("r", &actor).await.expect("forget");
    admin.drain_node(owner.node.id, &actor).await.expect("drain");
    let entries = admin.audit(100).await.expect("audit");
    let actions: Vec<&str> = entries.iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!(
        actions,
        ["drain-node", "forget-route", "cancel-replay", "replay", "resume", "pause", "discard", "redrive"],
        "one entry for every change, newest first"
    );
    for entry in &entries {
        assert_eq!(entry.actor, actor, "an entry names who and why");
        assert!(!entry.subject.is_empty(), "an entry of {} names what it was done to", entry.action);
        assert!(entry.at.saturating_add(Duration::from_millis(2)) >= before, "an entry has its time");
    }
    assert_eq!(admin.audit(2).await.expect("audit").len(), 2, "no more entries than asked for");
}

/// What was done to one of many that were changed together is found by its id, and nothing else is.
pub async fn each_of_many_changed_rows_is_named_in_the_audit_record(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    // More than one entry has room for.
    let rows: Vec<Envelope> = (0..=MESSAGES_PER_ENTRY).map(|number| keyed(&format!("k{number}"))).collect();
    let ids: Vec<MessageId> = rows.iter().map(|row| row.id).collect();
    owner.park(&*store, rows.into_iter().map(|row| (row, dead(false))).collect()).await;
    let (spared, count) = (keyed("spared"), ids.len() as u64);
    let other = spared.id;
    owner.park(&*store, vec![(spared, retrying(HOUR))]).await;
    let (admin, actor) = (store.admin(), Actor { name: "anna".into(), reason: Some("ticket 7".into()) });
    let those = |state| ParkedFilter { state: Some(state), ..ParkedFilter::default() };
    assert_eq!(admin.redrive(&those(ParkedState::Dead), &actor).await.expect("redrive"), count);
    assert_eq!(admin.discard(&those(ParkedState::Scheduled), &actor).await.expect("discard"), count);
    assert_eq!(admin.discard(&those(ParkedState::Scheduled), &actor).await.expect("discard"), 0, "none is left");

    for id in [ids[0], ids[MESSAGES_PER_ENTRY / 2], ids[MESSAGES_PER_ENTRY]] {
        let acts = admin.audit_of(id, 10).await.expect("audit");
        let told: Vec<(&str, &Actor)> = acts.iter().map(|act| (act.action.as_str(), &act.actor)).collect();
        assert_eq!(told, [("discard", &actor), ("redrive", &actor)], "newest first, of {id}");
        assert_eq!(admin.audit_of(id, 1).await.expect("audit").len(), 1, "no more entries than asked for");
    }
    for id in [other, MessageId::generate()] {
        assert_eq!(admin.audit_of(id, 10).await.expect("audit"), [], "nothing was done to {id}");
    }
    let entries = admin.audit(100).await.expect("audit");
    assert_eq!(entries.len(), 4, "two for each change: no entry is longer than is said");
    assert!(ids.iter().all(|id| entries.iter().filter(|entry| entry.names(*id)).count() == 2), "each id is there once");
}

/// What is done to a message is done on a route, and is nothing to another one that has it too: whoever did not say which has
/// an entry for each.
pub async fn an_audit_entry_names_the_route_of_its_rows(store: Arc<dyn Fixture>) {
    let mut billing = Owner::of(&*store, &route("billing")).await;
    let mut audit = Owner::of(&*store, &route("audit")).await;
    let both = keyed("a");
    let id = both.id;
    billing.park(&*store, vec![(both, dead(true))]).await;
    let park = audit.read(WHOLE).await.into_iter().map(|record| (record, dead(true))).collect();
    let settlement = Settlement { advance: Some(audit.cursor.clone()), park, ..Settlement::default() };
    audit.settle(settlement).await.expect("park the same on the other route");
    let (admin, actor) = (store.admin(), Actor::new("anna"));
    let (all, by_id) = (ParkedFilter::default(), ParkedFilter { id: Some(id), ..ParkedFilter::default() });
    assert_eq!(admin.redrive(&all, &actor).await.expect("redrive"), 2);
    assert_eq!(admin.discard(&by_id, &actor).await.expect("discard"), 2);
    let acts = admin.audit_of(id, 10).await.expect("audit");
    let mut told: Vec<_> = acts.iter().map(|act| (act.action.as_str(), act.route().unwrap_or("-"))).collect();
    told.sort_unstable();
    assert_eq!(told, [("discard", "audit"), ("discard", "billing"), ("redrive", "audit"), ("redrive", "billing")]);
}

/// In good health: in use, with something pending and something dead, which is an operator's daily business.
pub async fn a_healthy_store_has_no_error(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    owner.park(&*store, vec![(keyed("a"), dead(true))]).await;
    store.commit(several(3)).await;
    let findings = store.admin().doctor(Thresholds::default()).await.expect("a doctor looks");
    for finding in &findings {
        assert_ne!(finding.severity, Severity::Error, "{finding:?}");
        let told = [&finding.subject, &finding.detail, &finding.fix].iter().all(|text| !text.is_empty());
        assert!(told && !finding.code.is_empty(), "a finding says what, why and what to do: {finding:?}");
    }
    assert!(findings.windows(2).all(|pair| pair[0].severity >= pair[1].severity), "worst first: {findings:?}");
}

/// A forgotten route is gone with all that it had; others are not touched.
pub async fn a_forgotten_route_is_gone(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let mut other = Owner::of(&*store, &route("other")).await;
    owner.park(&*store, vec![(keyed("a"), dead(true))]).await;
    let park = other.read(WHOLE).await.into_iter().map(|record| (record, retrying(NOW))).collect();
    other.settle(Settlement { park, ..Settlement::default() }).await.expect("settle");
    let (admin, actor) = (store.admin(), Actor::new("operator"));
    let spec = ReplaySpec { route: "r".into(), to: None, filter: ReplayFilter::default(), rate: None };
    admin.replay(&spec, &actor).await.expect("replay");
    admin.drop_route("r", &actor).await.expect("forget");
    let overview = overview(&*store).await;
    let names: Vec<&str> = overview.routes.iter().map(|route| &*route.route).collect();
    assert_eq!(names, ["other"], "a forgotten route is gone, with its replays");
    let rows = parked(&*store, &ParkedFilter::default()).await;
    assert_eq!(rows.iter().map(|row| &*row.route).collect::<Vec<_>>(), ["other"], "its parked rows are gone");
    let gone = store.log().acquire(&owner.lease.lane, &node(&["r"], HOUR)).await.expect("acquire");
    assert!(gone.is_none(), "its lanes are gone");
    let mut again = Owner::of(&*store, &route("r")).await;
    assert_eq!(again.read(WHOLE).await.len(), 1, "made known again, it begins where a new route begins");
}

/// Neither while a node serves it, nor with messages that nobody has given up by name.
pub async fn a_route_that_is_needed_is_not_forgotten(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    owner.park(&*store, vec![(keyed("a"), dead(true))]).await;
    store.commit(several(2)).await;
    let (admin, actor) = (store.admin(), Actor::new("operator"));
    for undelivered in [Undelivered::Keep, Undelivered::GiveUp] {
        let served = admin.forget_route("r", undelivered, &actor).await.expect_err("a live node serves it");
        assert_eq!(served.kind(), ErrorKind::Denied, "{served:?}");
        assert!(served.to_string().contains(&owner.node.name), "the answer names the node: {served}");
    }
    store.log().retire(owner.node.id).await.expect("retire");
    let hindrance = overview(&*store).await.hindrance("r", &[]);
    assert_eq!(hindrance, Some(Hindrance::Undelivered { pending: 2, parked: 1 }));
    let needed = admin.forget_route("r", Undelivered::Keep, &actor).await.expect_err("messages wait for it");
    assert_eq!(needed.kind(), ErrorKind::Denied, "{needed:?}");
    assert!(admin.audit(10).await.expect("audit").is_empty(), "what was refused leaves no audit entry");
    assert_eq!(status(&*store, "r").await.pending, 2, "what was refused changes nothing");
    admin.forget_route("r", Undelivered::GiveUp, &actor).await.expect("forget");
    let unknown = admin.forget_route("r", Undelivered::GiveUp, &actor).await.expect_err("it is gone");
    assert_eq!(unknown.kind(), ErrorKind::NotFound, "{unknown:?}");
}

async fn overview(store: &dyn Fixture) -> Overview {
    store.admin().overview().await.expect("overview")
}

async fn status(store: &dyn Fixture, route: &str) -> RouteStatus {
    of(&overview(store).await, route).clone()
}

fn of<'a>(overview: &'a Overview, route: &str) -> &'a RouteStatus {
    let found = overview.routes.iter().find(|status| *status.route == *route);
    found.unwrap_or_else(|| panic!("the overview must show route {route}"))
}

async fn parked(store: &dyn Fixture, filter: &ParkedFilter) -> Vec<ParkedRow> {
    store.admin().parked(filter, None, 1_000).await.expect("list parked rows")
}

async fn redrive(store: &dyn Fixture, filter: &ParkedFilter) -> u64 {
    store.admin().redrive(filter, &Actor::new("operator")).await.expect("redrive")
}
