//! What needs a server of its own: a standalone one that is refused, one whose history is tiny, one that keeps its majority
//! waiting, and a set that loses its primary.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::{Duration, Instant};

use mongodb::{
    bson::{Document, Timestamp, doc},
    options::{Acknowledgment, CollectionOptions, WriteConcern},
};
use postrider_core::{
    ErrorKind,
    admin::StoreAdmin,
    doctor::Thresholds,
    enlist::Enlist,
    envelope::Envelope,
    lease::{LaneId, Lease, Node, RouteSpec},
    log::{Log, PageLimit, RecordRef, Settlement},
    parked::{Cause, DueLimit, Parked},
};
use postrider_store_mongodb::{MongoStore, UnitOfWork};
use postrider_testkit::store::{Fixture, OpenTransaction};
use support::{
    Place, batch, node, now,
    servers::{PATIENCE, ReplicaSet, Server, WITH_FAULTS, until},
    spec,
};

const HOUR: Duration = Duration::from_hours(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standalone_server_is_refused_with_what_to_do() {
    let server = Server::start(&[]).await;
    let refused = MongoStore::open(&server.url()).await.unwrap_err();
    assert_eq!((refused.kind(), refused.is_transient()), (ErrorKind::Unsupported, false));
    let said = refused.to_string();
    assert!(said.contains("standalone") && said.contains("--replSet") && said.contains("rs.initiate()"), "{said}");
}

/// The server's history is a ring of a megabyte. What it has forgotten is in the collection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_history_costs_a_scan_and_never_a_message() {
    let server = Server::replica_set(&["--oplogSize", "1", "--syncdelay", "1"]).await;
    let place = Place::on(&server.url()).await;
    let store = place.store();
    let owner = node("r", HOUR);
    store.register(&owner, &[spec("r")]).await.unwrap();
    let lease = store.acquire(&LaneId { route: "r".into(), number: 0 }, &owner).await.unwrap().unwrap();
    let mut cursor = store.resume(&lease).await.unwrap().cursor;
    let limit = PageLimit { records: 1_000, bytes: 1 << 30 };
    let named = |name: &str| Envelope::new("t", name, "{}");

    place.commit(vec![named("before")]).await;
    let mut slow = place.begin().await;
    slow.append(vec![named("slow")]).await;
    place.commit(vec![named("quick")]).await;
    let page = store.read(&lease, &cursor, limit).await.unwrap();
    assert_eq!(page.records.len(), 2);
    let first = Settlement { number: 1, advance: Some(page.end.clone()), ..Settlement::default() };
    store.settle(&lease, &first).await.unwrap();
    cursor = page.end;
    slow.commit().await;
    place.commit(vec![named("later")]).await;

    // Until the server has forgotten where the cursor is.
    let noise = place.client.database("noise").collection("noise");
    let deadline = Instant::now() + PATIENCE;
    let page = loop {
        let documents: Vec<_> = (0..20).map(|_| doc! { "x": "x".repeat(100_000) }).collect();
        noise.insert_many(documents).await.unwrap();
        let page = store.read(&lease, &cursor, limit).await.unwrap();
        if store.recoveries() > 0 {
            break page;
        }
        assert!(Instant::now() < deadline, "the server remembers everything");
    };
    let found: Vec<&str> = page.records.iter().map(|record| &*record.envelope.name).collect();
    assert_eq!(found, ["before", "slow", "quick", "later"], "in order, with what was passed once more");
    let second = Settlement { number: 2, advance: Some(page.end.clone()), ..Settlement::default() };
    store.settle(&lease, &second).await.unwrap();
    let findings = store.doctor(Thresholds::default()).await.unwrap();
    assert!(findings.iter().any(|finding| finding.code == "history-lost"), "it is reported: {findings:?}");
    let overview = store.overview().await.unwrap();
    assert_eq!(overview.routes[0].pending, 0);
    assert!(overview.routes[0].lanes[0].cursor.contains("lost history"), "{:?}", overview.routes[0].lanes);

    place.commit(vec![named("after")]).await;
    let page = store.read(&lease, &page.end, limit).await.unwrap();
    let found: Vec<&str> = page.records.iter().map(|record| &*record.envelope.name).collect();
    assert_eq!(found, ["after"], "and the stream goes on");
    let third = Settlement { number: 3, advance: Some(page.end.clone()), ..Settlement::default() };
    store.settle(&lease, &third).await.unwrap();
    let cursor = store.overview().await.unwrap().routes[0].lanes[0].cursor.clone();
    assert!(cursor.contains("stream") && cursor.contains("lost history"), "it stays to be seen: {cursor}");
}

/// A scan that is under way when the server forgets where it was to end. What committed behind that point is not in the stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_that_outlives_the_history_begins_again_and_loses_nothing() {
    let server = Server::replica_set(&["--oplogSize", "1", "--syncdelay", "1"]).await;
    let place = Place::on(&server.url()).await;
    let store = place.store();
    let named = |number: u32| Envelope::new("t", &format!("n-{number:02}"), "{}").with_key("k");
    for number in 0..10 {
        place.commit(vec![named(number)]).await;
    }
    let lease = lane(&store).await;
    let few = PageLimit { records: 3, bytes: 1 << 20 };
    let begin = store.resume(&lease).await.unwrap().cursor;
    let first = store.read(&lease, &begin, few).await.unwrap();
    assert!(first.records.len() == 3 && first.more);
    place.commit(vec![named(10)]).await;

    let noise = place.client.database("noise").collection("noise");
    let deadline = Instant::now() + PATIENCE;
    let (next, mut page) = loop {
        let documents: Vec<_> = (0..20).map(|_| doc! { "x": "x".repeat(100_000) }).collect();
        noise.insert_many(documents).await.unwrap();
        // Whoever has just started knows nothing but the cursor.
        let next = place.another().await;
        let page = next.read(&lease, &first.end, few).await.unwrap();
        if next.recoveries() > 0 {
            break (next, page);
        }
        assert!(Instant::now() < deadline, "the server remembers everything");
    };
    let mut found = Vec::new();
    loop {
        found.extend(page.records.iter().map(|record| record.envelope.name.to_string()));
        if !page.more {
            break;
        }
        page = next.read(&lease, &page.end, few).await.unwrap();
    }
    assert!(found.is_sorted(), "in order: {found:?}");
    found.extend(first.records.iter().map(|record| record.envelope.name.to_string()));
    found.sort();
    found.dedup();
    let all: Vec<String> = (0..=10).map(|number| format!("n-{number:02}")).collect();
    assert_eq!(found, all, "nothing is lost");
    let findings = store.doctor(Thresholds::default()).await.unwrap();
    assert!(findings.iter().any(|finding| finding.code == "history-lost"), "it is reported: {findings:?}");
}

/// A lane that nothing is for moves along with the server's history, and never has to be read anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_lane_is_not_forgotten() {
    assert!(idle_lane_moves(0).await, "the cursor moves along");
}

/// A move of the cursor is a write, and comes every now and then. In between a read does not begin where the cursor is, but where
/// the last one ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_lane_reads_no_history_twice() {
    assert!(!idle_lane_moves(1_000_000).await, "the cursor stays, and the server has forgotten where that is");
}

/// Reads a lane that nothing is for until the server has forgotten where it began, and then something. Whether its cursor has
/// moved meanwhile.
async fn idle_lane_moves(idle_seconds: u64) -> bool {
    let server = Server::replica_set(&["--oplogSize", "1", "--syncdelay", "1"]).await;
    let place = Place::with(&server.url(), |builder| builder.idle_seconds(idle_seconds)).await;
    let store = place.store();
    let owner = node("r", HOUR);
    store.register(&owner, &[spec("r"), spec("asleep")]).await.unwrap();
    let lease = async |route: &str| {
        let lane = LaneId { route: route.into(), number: 0 };
        store.acquire(&lane, &owner).await.unwrap().unwrap()
    };
    let (awake, asleep) = (lease("r").await, lease("asleep").await);
    let limit = PageLimit { records: 1_000, bytes: 1 << 30 };
    let mut cursor = store.resume(&awake).await.unwrap().cursor;
    let began = cursor.clone();
    let noise = place.client.database("noise").collection("noise");
    let deadline = Instant::now() + PATIENCE;
    // Until the server has forgotten where both have begun.
    loop {
        let documents: Vec<_> = (0..5).map(|_| doc! { "x": "x".repeat(100_000) }).collect();
        noise.insert_many(documents).await.unwrap();
        let page = store.read(&awake, &cursor, limit).await.unwrap();
        assert!(page.records.is_empty());
        cursor = page.end;
        assert_eq!(store.recoveries(), 0, "the lane that reads is remembered");
        // Whoever has just started knows nothing but the cursor.
        let stranger = place.another().await;
        let begun = stranger.resume(&asleep).await.unwrap().cursor;
        stranger.read(&asleep, &begun, limit).await.unwrap();
        if stranger.recoveries() > 0 {
            break;
        }
        assert!(Instant::now() < deadline, "the server remembers everything");
    }
    place.commit(vec![Envelope::new("t", "n", "{}")]).await;
    let page = store.read(&awake, &cursor, limit).await.unwrap();
    assert_eq!((page.records.len(), store.recoveries()), (1, 0));
    cursor != began
}

/// A destination that refuses everything parks a whole window, each message of another key. What that costs in commands must not
/// grow with it, for the lane cannot be written by anybody else meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_of_many_rows_is_as_many_commands_as_one_of_few() {
    let server = Server::replica_set(&[]).await;
    let place = Place::on(&server.url()).await;
    let store = place.store();
    let lease = lane(&store).await;
    let mut cursor = store.resume(&lease).await.unwrap().cursor;
    let mut costs = Vec::new();
    for (turn, rows) in (0..).zip([4_u32, 400]) {
        let keyed = |n: u32| Envelope::new("t", "n", "{}").with_key(format!("{turn}-{n}"));
        place.commit((0..rows).map(keyed).collect()).await;
        let page = store.read(&lease, &cursor, PageLimit { records: 1_000, bytes: 1 << 20 }).await.unwrap();
        assert_eq!(page.records.len(), rows as usize);
        let retrying = |after| Parked::Retrying { after, attempts: 1, cause: Cause::new("refused", "by everybody") };
        let park = (0..rows).map(|n| (RecordRef::new(&page.records, n), retrying(Duration::ZERO))).collect();
        let (number, advance) = (turn * 3, Some(page.end.clone()));
        let parking = Settlement { number: number + 1, advance, park, ..Settlement::default() };
        let before = server.commands().await;
        store.settle(&lease, &parking).await.unwrap();
        let parked = server.commands().await;
        let due = store.due(&lease, DueLimit { lines: 1_000, per_line: 9, bytes: 1 << 20 }).await.unwrap();
        let ordinals: Vec<_> = due.lines.iter().flat_map(|line| &line.rows).map(|row| row.ordinal).collect();
        assert_eq!(ordinals.len(), rows as usize, "each of them is the head of its line");
        let change = ordinals.iter().map(|ordinal| (*ordinal, retrying(HOUR))).collect();
        let looked = server.commands().await;
        store.settle(&lease, &Settlement { number: number + 2, change, ..Settlement::default() }).await.unwrap();
        let remove = ordinals;
        store.settle(&lease, &Settlement { number: number + 3, remove, ..Settlement::default() }).await.unwrap();
        costs.push((parked - before) + (server.commands().await - looked));
        assert!(store.resume(&lease).await.unwrap().blocked.is_empty());
        cursor = page.end;
    }
    // The server has some commands of its own.
    assert!(costs[1] <= costs[0] + 8, "{costs:?} commands");
}

/// Each lane is somewhere else, and the server takes its time with every stream. Whoever looks has four seconds at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_waits_for_all_streams_together_and_not_for_each() {
    const LANES: u32 = 20;
    let server = Server::replica_set(&WITH_FAULTS).await;
    let place = Place::on(&server.url()).await;
    let store = place.store();
    let owner = node("r", HOUR);
    store.register(&owner, &[RouteSpec { lanes: LANES, ..spec("r") }]).await.unwrap();
    for number in 0..LANES {
        place.commit(vec![Envelope::new("t", "n", "{}")]).await;
        let lease = store.acquire(&LaneId { route: "r".into(), number }, &owner).await.unwrap().unwrap();
        let cursor = store.resume(&lease).await.unwrap().cursor;
        let page = store.read(&lease, &cursor, PageLimit { records: 1_000, bytes: 1 << 20 }).await.unwrap();
        let settlement = Settlement { number: 1, advance: Some(page.end), ..Settlement::default() };
        store.settle(&lease, &settlement).await.unwrap();
    }
    let exact = store.overview().await.unwrap().routes[0].pending;
    let fault = |mode: &str| {
        let log = format!("{}.{}", place.names.database(), place.names.log());
        let data =
            doc! { "failCommands": ["aggregate"], "namespace": log, "blockConnection": true, "blockTimeMS": 500 };
        doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data }
    };
    server.tell(fault("alwaysOn")).await;
    let began = Instant::now();
    let overview = store.overview().await.unwrap();
    let took = began.elapsed();
    server.tell(fault("off")).await;
    assert!(took > Duration::from_millis(500), "the server takes its time: {took:?}");
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert!(overview.routes[0].pending >= exact, "what is not known to be delivered counts as pending");
}

/// What an application was told is written, and only one member had when it died, was never delivered and never is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_one_member_had_is_never_delivered() {
    let mut set = ReplicaSet::start().await;
    let place = Place::on(&set.url()).await;
    let store = place.store();
    let owner = node("r", HOUR);
    store.register(&owner, &[spec("r")]).await.unwrap();
    let lease = store.acquire(&LaneId { route: "r".into(), number: 0 }, &owner).await.unwrap().unwrap();
    let begin = store.resume(&lease).await.unwrap().cursor;
    let limit = PageLimit { records: 1_000, bytes: 1 << 30 };
    place.commit(vec![Envelope::new("t", "kept", "{}")]).await;

    set.stop_replication().await;
    let weak = WriteConcern::builder().w(Acknowledgment::Nodes(1)).build();
    let weak = CollectionOptions::builder().write_concern(weak).build();
    let database = place.client.database(place.names.database());
    let log = database.collection_with_options::<Document>(place.names.log(), weak);
    let at = Timestamp { time: 0, increment: 0 };
    let ghost = |n: i32| doc! { "at": at, "topic": "t", "name": "ghost", "key": n.to_string(), "payload": "{}" };
    log.insert_many((0..200).map(ghost)).await.unwrap();
    let page = store.read(&lease, &begin, limit).await.unwrap();
    let found: Vec<&str> = page.records.iter().map(|record| &*record.envelope.name).collect();
    assert_eq!(found, ["kept"], "what a majority does not have is not read");
    set.lose_primary().await;

    let deadline = Instant::now() + PATIENCE;
    // The drivers may have to find the new primary first.
    let (names_of, later) = (&place.names, &vec![Envelope::new("t", "later", "{}")]);
    let work = store.unit_of_work(&place.client).patience(PATIENCE);
    work.run(|mut tx| async move { Ok(tx.append(names_of, batch(later.clone())).await?) }).await.unwrap();
    let names = loop {
        match store.read(&lease, &page.end, limit).await {
            Ok(page) => break page.records.iter().map(|record| record.envelope.name.to_string()).collect::<Vec<_>>(),
            Err(error) => assert!(error.is_transient() && Instant::now() < deadline, "{error:?}"),
        }
    };
    assert_eq!(names, ["later"]);
    assert!(place.delivered().await.iter().all(|envelope| &*envelope.name != "ghost"), "nor by a scan");
}

/// The only lane of a new route, in the hands of a test.
async fn lane(store: &MongoStore) -> Lease {
    let owner = node("r", HOUR);
    store.register(&owner, &[spec("r")]).await.unwrap();
    store.acquire(&LaneId { route: "r".into(), number: 0 }, &owner).await.unwrap().expect("the lane is free")
}

/// A primary that was just elected has what its predecessor acknowledged, and shows an older state until it knows that a
/// majority has it. Whoever was told more must not be shown less.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_waits_until_it_reaches_what_was_seen_before() {
    let server = Server::replica_set(&WITH_FAULTS).await;
    let place = Place::on(&server.url()).await;
    let store = place.store();
    let lease = lane(&store).await;
    server.hold_majority().await;
    // Another takes the lane.
    let takeover = doc! {
        "update": format!("{}lane", place.names.prefix()),
        "updates": [{ "q": {}, "u": { "$inc": { "epoch": 1_i64 } } }],
        "writeConcern": { "w": 1 },
    };
    let database = place.names.database();
    let answer = place.client.database(database).run_command(takeover).await.unwrap();
    store.has_seen(answer.get_timestamp("operationTime").unwrap());

    let resuming = tokio::spawn({
        let (store, lease) = (store.clone(), lease.clone());
        async move { store.resume(&lease).await.map(drop) }
    });
    let asking = tokio::spawn({
        let (store, lease) = (store.clone(), lease.clone());
        async move { store.due(&lease, DueLimit { lines: 1, per_line: 1, bytes: 1 }).await.map(drop) }
    });
    let answered = || resuming.is_finished() || asking.is_finished();
    until("both to ask", async || answered() || server.under_way(database).await >= 2).await;
    assert!(!answered(), "what is older than that is no answer");
    server.release_majority().await;
    for outcome in [resuming.await.unwrap(), asking.await.unwrap()] {
        assert!(outcome.as_ref().is_err_and(postrider_core::Error::is_fenced), "{outcome:?}");
    }
}

/// The first answer may be lost, or never have come because there was no majority. Whoever asks again must not be told that all
/// is well before it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_settlement_waits_for_a_majority_as_the_first_one_did() {
    let server = Server::replica_set(&WITH_FAULTS).await;
    let place = Place::on(&server.url()).await;
    let store = place.store();
    let lease = lane(&store).await;
    place.commit(vec![Envelope::new("t", "n", "{}")]).await;
    let cursor = store.resume(&lease).await.unwrap().cursor;
    let page = store.read(&lease, &cursor, PageLimit { records: 10, bytes: 1 << 20 }).await.unwrap();
    let settlement = Settlement { number: 1, advance: Some(page.end), ..Settlement::default() };

    server.hold_majority().await;
    let settle = || {
        let (store, lease, settlement) = (store.clone(), lease.clone(), settlement.clone());
        tokio::spawn(async move { store.settle(&lease, &settlement).await })
    };
    let (first, database) = (settle(), place.names.database());
    let applied = doc! { "settled": 1_i64 };
    let lanes = place.collection("lane");
    until("the first to be applied", async || lanes.count_documents(applied.clone()).await.unwrap() == 1).await;
    let again = settle();
    until("the second to ask", async || again.is_finished() || server.under_way(database).await >= 2).await;
    assert!(!first.is_finished() && !again.is_finished(), "no majority has it");
    server.release_majority().await;
    first.await.unwrap().unwrap();
    again.await.unwrap().unwrap();
}

/// The URL asks for the weakest that there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_the_client_is_set_to_everything_waits_for_a_majority() {
    let server = Server::replica_set(&WITH_FAULTS).await;
    let place = Place::on(&format!("{}?w=1&journal=false&readConcernLevel=local", server.url())).await;
    let (store, database) = (place.store(), place.names.database());
    let lease = lane(&store).await;
    let begin = store.resume(&lease).await.unwrap().cursor;
    let limit = PageLimit { records: 10, bytes: 1 << 20 };

    server.hold_majority().await;
    let weak = doc! { "at": Timestamp { time: 0, increment: 0 }, "topic": "t", "name": "weak", "payload": "{}" };
    place.collection("log").insert_one(weak).await.unwrap();
    assert_eq!(place.collection("log").count_documents(doc! {}).await.unwrap(), 1, "the client itself sees it");
    let page = store.read(&lease, &begin, limit).await.unwrap();
    assert!(page.records.is_empty(), "what no majority has is not read");

    let working = tokio::spawn({
        let (work, names) = (UnitOfWork::new(&place.client, &place.names), place.names.clone());
        let message = vec![Envelope::new("t", "durable", "{}")];
        async move {
            let (names, message) = (&names, &message);
            work.run(|mut tx| async move { Ok(tx.append(names, batch(message.clone())).await?) }).await
        }
    });
    let settling = tokio::spawn({
        let (store, lease) = (store.clone(), lease.clone());
        let settlement = Settlement { number: 1, advance: Some(begin.clone()), ..Settlement::default() };
        async move { store.settle(&lease, &settlement).await }
    });
    until("the commit to wait", async || working.is_finished() || server.commits_under_way().await > 0).await;
    until("the settlement to wait", async || settling.is_finished() || server.under_way(database).await > 0).await;
    assert!(!working.is_finished() && !settling.is_finished(), "neither counts before a majority has it");
    server.release_majority().await;
    working.await.unwrap().unwrap();
    settling.await.unwrap().unwrap();
    let page = store.read(&lease, &begin, limit).await.unwrap();
    let found: Vec<&str> = page.records.iter().map(|record| &*record.envelope.name).collect();
    assert_eq!(found, ["weak", "durable"]);
}

/// A scan reaches back for longer than any transaction lives, as far as the server says how long that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_overlap_follows_what_the_server_allows_a_transaction() {
    let life = |seconds: i32| doc! { "setParameter": 1, "transactionLifetimeLimitSeconds": seconds };
    let server = Server::replica_set(&[]).await;
    let told = async |store: &MongoStore| {
        let findings = store.doctor(Thresholds::default()).await.unwrap();
        findings.iter().any(|finding| finding.code == "transactions-long")
    };
    let place = Place::on(&server.url()).await;
    let usual = place.store();
    assert_eq!((usual.overlap(), told(&usual).await), (Duration::from_secs(600), false));
    server.tell(life(400)).await;
    assert!(told(&usual).await, "it was opened before");
    let longer = place.another().await;
    assert_eq!((longer.overlap(), told(&longer).await), (Duration::from_secs(1_200), false));
    let place = Place::with(&server.url(), |builder| builder.overlap(Duration::from_secs(30))).await;
    let set = place.store();
    assert_eq!((set.overlap(), told(&set).await), (Duration::from_secs(30), true), "whoever sets it is believed");
}

/// Leases and schedules go by the primary's clock. A member whose clock is an hour ahead changes nothing while it follows; when it
/// leads, and when it leads no more, nothing stands still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_clock_is_off_by_an_hour_holds_up_nothing() {
    const LIFE: Duration = Duration::from_secs(3);
    let set = ReplicaSet::start_at([None, None, Some("+1h")]).await;
    set.step_up(0).await;
    let place = Place::on(&set.url()).await;
    let store = place.store();
    let (first, second) = (node("r", HOUR), node("r", HOUR));
    store.register(&first, &[spec("r")]).await.unwrap();
    store.register(&second, &[spec("r")]).await.unwrap();
    let lane = LaneId { route: "r".into(), number: 0 };
    let lease = store.acquire(&lane, &first).await.unwrap().expect("the lane is free");
    assert!(store.acquire(&lane, &second).await.unwrap().is_none(), "it has an owner");
    let tomorrow = now(&place.client).await.saturating_add(24 * HOUR);
    let scheduled = Envelope { deliver_at: Some(tomorrow), ..Envelope::new("t", "tomorrow", "{}").with_key("s") };
    place.commit(vec![Envelope::new("t", "again", "{}").with_key("k"), scheduled]).await;

    // The one that is ahead leads, and by its clock the lease is over. Its owner has not had the time to say that it lives.
    set.step_up(2).await;
    for _ in 0..2 {
        let taken = lasting(async || store.acquire(&lane, &second).await).await;
        assert!(taken.is_none(), "nobody takes it from an owner that may live");
        lasting(async || store.heartbeat(&second).await).await;
    }
    // Whoever's heartbeats arrive keeps its lane, now with a short lease.
    lasting(async || store.heartbeat(&first).await).await;
    assert!(lasting(async || store.acquire(&lane, &second).await).await.is_none(), "its heartbeat counts");
    let owner = Node { lease_life: LIFE, ..first };
    let begin = lasting(async || store.resume(&lease).await).await.cursor;
    let limit = PageLimit { records: 10, bytes: 1 << 20 };
    let page = lasting(async || store.read(&lease, &begin, limit).await).await;
    assert_eq!(page.records.len(), 2);
    let (after, cause) = (Duration::from_secs(1), Cause::new("refused", "at first"));
    let park = vec![
        (RecordRef::new(&page.records, 0), Parked::Retrying { after, attempts: 1, cause }),
        (RecordRef::new(&page.records, 1), Parked::Scheduled { after: page.records[1].wait }),
    ];
    let settlement = Settlement { number: 1, advance: Some(page.end.clone()), park, ..Settlement::default() };
    lasting(async || store.settle(&lease, &settlement).await).await;
    lasting(async || store.heartbeat(&owner).await).await;

    // The owner dies and the clock goes back. Its lease runs out all the same, and the row comes due.
    set.step_up(1).await;
    let lease = loop_until("the lane to be free", async || {
        lasting(async || store.heartbeat(&second).await).await;
        lasting(async || store.acquire(&lane, &second).await).await
    })
    .await;
    assert_eq!(lasting(async || store.resume(&lease).await).await.blocked.len(), 1);
    let due = loop_until("the row to be due", async || {
        let due = lasting(async || store.due(&lease, DueLimit { lines: 9, per_line: 9, bytes: 1 << 20 }).await).await;
        (!due.lines.is_empty()).then_some(due)
    })
    .await;
    assert_eq!(&*due.lines[0].rows[0].record.envelope.name, "again");
    assert!(due.timed.is_empty(), "what is for tomorrow waits for tomorrow");
}

/// The answer, once the driver has found the primary.
async fn lasting<T>(ask: impl AsyncFn() -> postrider_core::Result<T>) -> T {
    loop_until("an answer", async || match ask().await {
        Ok(answer) => Some(answer),
        Err(error) => {
            assert!(error.is_transient(), "{error:?}");
            None
        }
    })
    .await
}

async fn loop_until<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    let mut found = None;
    until(what, async || {
        found = ask().await;
        found.is_some()
    })
    .await;
    found.expect("it was waited for")
}
