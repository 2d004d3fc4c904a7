//! Torture: many writers that hold, roll back, set savepoints and prepare; two relays that take the lane from each other,
//! forget what they did not settle, and lose their sessions. A checker compares the producers' own log with what arrived.
//!
//! Two shortcuts read along as controls, on the same server and at the same time: a cursor over numbers, and a horizon
//! below the oldest open transaction. The checker must find both wrong, or it would prove nothing about the store.
//!
//! Seconds by default; `POSTRIDER_TORTURE_SECONDS` makes it longer, `POSTRIDER_TORTURE_SEED` makes it another one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use postrider_core::{
    enlist::Enlist,
    envelope::{Envelope, MessageId},
    lease::{LaneId, Node, NodeId, Order, RouteSpec, Start},
    log::{Log, PageLimit, Settlement},
    topic::TopicFilter,
};
use postrider_store_postgres::{Postgres, PostgresStore};
use postrider_testkit::{
    checker::{Enqueued, check},
    random::Random,
};
use support::{Place, batch, connect};
use tokio_postgres::{Client, Transaction};

const WRITERS: u64 = 24;
const KEYS: u64 = 200;
const PAGE: PageLimit = PageLimit { records: 37, bytes: 1 << 20 };

/// Pages that a relay reads between two settlements.
const PAGES_UNSETTLED_MAX: u64 = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_made_up_or_turned_around() {
    let seconds = setting("POSTRIDER_TORTURE_SECONDS", 6);
    let seed = setting("POSTRIDER_TORTURE_SEED", 1);
    let place = Place::new(10).await;
    let world = Arc::new(World::new(&place));
    world.prepare().await;

    let controls = [tokio::spawn(id_cursor(world.clone())), tokio::spawn(below_xmin(world.clone()))];
    let mut relays = Vec::new();
    for i in 0..2 {
        let store = if i == 0 { place.store() } else { place.another().await };
        relays.push(tokio::spawn(relay(world.clone(), store, seed * 100 + i)));
    }
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let writers: Vec<_> =
        (0..WRITERS).map(|i| tokio::spawn(writer(world.clone(), seed * 1000 + i, deadline))).collect();
    for writer in writers {
        writer.await.unwrap();
    }
    world.written.store(true, Ordering::SeqCst);
    for relay in relays {
        relay.await.unwrap();
    }
    let [id_cursor, below_xmin] = controls;
    let (id_cursor, below_xmin) = (id_cursor.await.unwrap(), below_xmin.await.unwrap());

    let enqueued = world.enqueued.lock().unwrap();
    let verdict = check(&enqueued, &world.arrivals.lock().unwrap());
    let restarts = world.restarts.load(Ordering::SeqCst);
    println!("seed {seed}, {restarts} restarts: {verdict:?}");
    assert!(verdict.is_good() && verdict.committed > 500, "seed {seed}: {verdict:?}");
    let bound = restarts * (PAGES_UNSETTLED_MAX + 1) * u64::from(PAGE.records);
    assert!(verdict.duplicates <= bound, "seed {seed}: {} duplicates, at most {bound}", verdict.duplicates);
    assert!(restarts > 3, "the relays were disturbed only {restarts} times");

    let verdict = check(&enqueued, &id_cursor);
    println!("cursor over numbers: lost {}, out of order {}", verdict.lost, verdict.out_of_order);
    assert!(verdict.lost > 0, "a cursor over numbers loses messages, and the checker must see it");
    let verdict = check(&enqueued, &below_xmin);
    println!("horizon below xmin: lost {}, out of order {}", verdict.lost, verdict.out_of_order);
    assert!(verdict.out_of_order > 0, "a horizon below xmin turns keys around, and the checker must see it");
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// What writers and readers share.
struct World {
    schema: String,
    dialect: Postgres,
    written: AtomicBool,
    enqueued: Mutex<Vec<Enqueued>>,
    arrivals: Mutex<Vec<MessageId>>,
    restarts: AtomicU64,
}

impl World {
    fn new(place: &Place) -> Self {
        Self {
            schema: place.schema().to_owned(),
            dialect: place.store().dialect(),
            written: AtomicBool::new(false),
            enqueued: Mutex::default(),
            arrivals: Mutex::default(),
            restarts: AtomicU64::new(0),
        }
    }

    async fn prepare(&self) {
        let schema = &self.schema;
        let sql = format!(
            "CREATE TABLE \"{schema}\".keys (key bigint PRIMARY KEY, version bigint NOT NULL);
             INSERT INTO \"{schema}\".keys SELECT key, 0 FROM generate_series(0, {}) AS key",
            KEYS - 1
        );
        connect().await.batch_execute(&sql).await.unwrap();
    }

    /// Takes the lock that orders the key, and its next version with it.
    async fn lock(&self, transaction: &Transaction<'_>, key: u64) -> u64 {
        let sql = format!("UPDATE \"{}\".keys SET version = version + 1 WHERE key = $1 RETURNING version", self.schema);
        let row = transaction.query_one(&sql, &[&key.cast_signed()]).await.unwrap();
        row.get::<_, i64>(0).cast_unsigned()
    }

    fn note(&self, messages: Vec<Enqueued>, committed: bool) {
        let noted =
            messages.into_iter().map(|message| Enqueued { committed: committed && message.committed, ..message });
        self.enqueued.lock().unwrap().extend(noted);
    }
}

async fn writer(world: Arc<World>, seed: u64, deadline: Instant) {
    let mut random = Random::new(seed);
    let mut client = connect().await;
    while Instant::now() < deadline {
        write(&world, &mut client, &mut random).await;
    }
}

/// One transaction.
async fn write(world: &World, client: &mut Client, random: &mut Random) {
    let mut transaction = client.transaction().await.unwrap();
    if random.chance(500) {
        // An id early, numbers late.
        transaction.execute("SELECT pg_current_xact_id()", &[]).await.unwrap();
        hold(random, 40).await;
    }
    let key = random.below(KEYS);
    let sequence = world.lock(&transaction, key).await;
    let count = if random.chance(4) { 2_000 } else { 1 + random.below(3) };
    let mut messages = append(world, &mut transaction, key, sequence, count).await;
    if random.chance(100) {
        transaction.batch_execute("SAVEPOINT here").await.unwrap();
        let taken_back = append(world, &mut transaction, key, sequence, 2).await;
        hold(random, 20).await;
        transaction.batch_execute("ROLLBACK TO SAVEPOINT here").await.unwrap();
        messages.extend(taken_back.into_iter().map(|message| Enqueued { committed: false, ..message }));
        messages.extend(append(world, &mut transaction, key, sequence, 1).await);
    }
    if random.chance(300) {
        let longest = if random.chance(30) { 1_500 } else { 60 };
        hold(random, longest).await;
    }
    let commits = !random.chance(50);
    if random.chance(20) {
        let name = uuid::Uuid::now_v7();
        transaction.batch_execute(&format!("PREPARE TRANSACTION '{name}'")).await.unwrap();
        // There is no transaction any more; this only gives the connection back.
        transaction.commit().await.unwrap();
        hold(random, 600).await;
        let end = if commits { "COMMIT" } else { "ROLLBACK" };
        client.batch_execute(&format!("{end} PREPARED '{name}'")).await.unwrap();
    } else if commits {
        transaction.commit().await.unwrap();
    } else {
        transaction.rollback().await.unwrap();
    }
    world.note(messages, commits);
}

/// Up to so many milliseconds. This is what is tested, not something waited for.
async fn hold(random: &mut Random, millis: u64) {
    tokio::time::sleep(Duration::from_millis(random.below(millis))).await;
}

async fn append(world: &World, open: &mut Transaction<'_>, key: u64, sequence: u64, count: u64) -> Vec<Enqueued> {
    let key = format!("key-{key}");
    let envelopes: Vec<_> = (0..count).map(|_| Envelope::new("t", "n", "{}").with_key(key.as_str())).collect();
    let enqueued =
        |envelope: &Envelope| Enqueued { id: envelope.id, key: Some(key.clone()), sequence, committed: true };
    let messages = envelopes.iter().map(enqueued).collect();
    open.append(&world.dialect, batch(envelopes)).await.unwrap();
    messages
}

/// Takes the lane, reads and settles for a while, and then drops everything. Ends when all is written and read.
async fn relay(world: Arc<World>, store: PostgresStore, seed: u64) {
    let mut random = Random::new(seed);
    let lane = LaneId { route: "r".into(), number: 0 };
    let (topics, order, start) = (TopicFilter::all(), Order::Key, Start::Oldest);
    let spec = RouteSpec { name: "r".into(), topics, order, lanes: 1, start };
    loop {
        let lease_life = Duration::from_secs(3600);
        let node = Node {
            id: NodeId::generate(),
            name: "relay".into(),
            routes: vec!["r".into()],
            lease_life,
            standstills: Vec::new(),
        };
        store.register(&node, std::slice::from_ref(&spec)).await.unwrap();
        if store.acquire(&lane, &node).await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            store.retire(node.id).await.unwrap();
            continue;
        }
        let done = own(&world, &store, &lane, &node, &mut random).await;
        store.retire(node.id).await.unwrap();
        if done {
            return;
        }
        world.restarts.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns whether everything is read.
async fn own(world: &World, store: &PostgresStore, lane: &LaneId, node: &Node, random: &mut Random) -> bool {
    let lease = store.acquire(lane, node).await.unwrap().expect("a node gets again what it owns");
    let mut cursor = store.resume(&lease).await.unwrap().cursor;
    let (mut number, mut unsettled) = (0, 0);
    let pages = 20 + random.below(400);
    for _ in 0..pages {
        let all_written = world.written.load(Ordering::SeqCst);
        let page = match store.read(&lease, &cursor, PAGE).await {
            Ok(page) => page,
            Err(error) if error.is_fenced() || error.is_transient() => return false,
            Err(error) => panic!("{error:?}"),
        };
        world.arrivals.lock().unwrap().extend(page.records.iter().map(|record| record.envelope.id));
        unsettled += 1;
        // Now and then only a part of the page counts as published; the rest comes again.
        let part = u32::try_from(random.below(page.records.len().max(1) as u64)).unwrap();
        let advance = if random.chance(100) { (page.marks)(part) } else { page.end.clone() };
        if unsettled == PAGES_UNSETTLED_MAX || advance != page.end || random.chance(200) {
            number += 1;
            let settlement = Settlement { number, advance: Some(advance.clone()), ..Settlement::default() };
            match store.settle(&lease, &settlement).await {
                Ok(()) => unsettled = 0,
                Err(error) if error.is_fenced() => return false,
                Err(error) => panic!("{error:?}"),
            }
            if advance != page.end {
                return false;
            }
        }
        cursor = page.end;
        if page.records.is_empty() {
            if all_written && !page.more {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if random.chance(5) {
            end_sessions(&world.schema).await;
        }
    }
    false
}

/// Ends the sessions of this test's readers, as a crash or a network would.
async fn end_sessions(schema: &str) {
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE $1 AND pid <> pg_backend_pid()
                AND application_name = 'postrider' AND query LIKE '%pg_visible_in_snapshot%'";
    connect().await.execute(sql, &[&format!("%{schema}%")]).await.unwrap();
}

/// The shortcut that everybody takes first: what has a higher number is newer.
async fn id_cursor(world: Arc<World>) -> Vec<MessageId> {
    let sql = format!("SELECT id, seq FROM \"{}\".log WHERE seq > $1 ORDER BY seq", world.schema);
    let (client, mut arrived, mut last) = (connect().await, Vec::new(), 0_i64);
    loop {
        let all_written = world.written.load(Ordering::SeqCst);
        for row in client.query(&sql, &[&last]).await.unwrap() {
            arrived.push(MessageId(row.get(0)));
            last = row.get(1);
        }
        if all_written {
            return arrived;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The usual mending of it: only what lies below every open transaction, in order of transactions.
async fn below_xmin(world: Arc<World>) -> Vec<MessageId> {
    let sql = format!(
        "SELECT id, seq, tx::text FROM \"{}\".log
          WHERE tx < pg_snapshot_xmin(pg_current_snapshot()) AND (tx, seq) > ($1::text::xid8, $2)
          ORDER BY tx, seq",
        world.schema
    );
    let (client, mut arrived, mut last) = (connect().await, Vec::new(), ("0".to_owned(), 0_i64));
    loop {
        let all_written = world.written.load(Ordering::SeqCst);
        for row in client.query(&sql, &[&last.0, &last.1]).await.unwrap() {
            arrived.push(MessageId(row.get(0)));
            last = (row.get(2), row.get(1));
        }
        if all_written {
            return arrived;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
