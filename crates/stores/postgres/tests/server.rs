//! What is PostgreSQL's own: lost sessions, plain SQL, the schema, the ring, and transactions that stay open.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::Duration;

use postrider_core::{
    ErrorKind,
    admin::{Actor, ParkedFilter, ReplaySpec, StoreAdmin},
    enlist::Enlist,
    envelope::{Envelope, MessageId},
    lease::{LaneId, Lease, Node, NodeId, Order, ReplayFilter, RouteSpec, Start},
    log::{Cursor, Log, Page, PageLimit, RecordRef, Retention, Settlement},
    parked::{Cause, Parked},
    topic::TopicFilter,
};
use postrider_store_postgres::{Postgres, PostgresStore, migrations};
use postrider_testkit::fault::{Proxy, Traffic};
use support::{Place, Schema, batch, connect, url};

const WHOLE: PageLimit = PageLimit { records: 100_000, bytes: 1 << 30 };

/// One route on a store of its own, in the hands of one node.
struct Post {
    place: Place,
    store: PostgresStore,
    lease: Lease,
    cursor: Cursor,
    number: u64,
}

impl Post {
    async fn new(block_bits: u32) -> Self {
        let place = Place::new(block_bits).await;
        let store = place.store();
        let lease = take(&store, "r").await;
        let cursor = store.resume(&lease).await.unwrap().cursor;
        Self { place, store, lease, cursor, number: 0 }
    }

    async fn page(&self) -> Page {
        self.store.read(&self.lease, &self.cursor, WHOLE).await.unwrap()
    }

    async fn read_on(&mut self) -> Vec<MessageId> {
        let mut ids = Vec::new();
        loop {
            let page = self.page().await;
            ids.extend(page.records.iter().map(|record| record.envelope.id));
            self.cursor = page.end;
            if !page.more {
                return ids;
            }
        }
    }

    async fn settle(&mut self) -> postrider_core::Result<()> {
        self.number += 1;
        let settlement =
            Settlement { number: self.number, advance: Some(self.cursor.clone()), ..Settlement::default() };
        self.store.settle(&self.lease, &settlement).await
    }

    async fn commit(&self, count: usize) -> Vec<MessageId> {
        commit(&self.store.dialect(), count).await
    }

    /// Reads and settles until retention may go as far as this number, and returns what was read meanwhile. Whoever has a
    /// transaction open on this server, be it another test, keeps the bound down for a while.
    async fn until_passed(&mut self, number: i64) -> Vec<MessageId> {
        let client = connect().await;
        let passed = format!("SELECT max(lo) FROM \"{}\".checkpoint", self.place.schema());
        let deadline = std::time::Instant::now() + Duration::from_secs(120);
        let mut read = Vec::new();
        loop {
            let lo: Option<i64> = client.query_one(&passed, &[]).await.unwrap().get(0);
            if lo >= Some(number) {
                return read;
            }
            assert!(std::time::Instant::now() < deadline, "the bound is at {lo:?} and not yet at {number}");
            // Something has ended, so there is a round to be made.
            client.execute("SELECT pg_current_xact_id()", &[]).await.unwrap();
            read.extend(self.read_on().await);
            self.settle().await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Empties what may be emptied, and returns how many records that were.
    async fn purge_all(&self, retention: Retention) -> u64 {
        let mut purged = 0;
        loop {
            match self.store.purge(retention).await.unwrap() {
                0 => return purged,
                some => purged += some,
            }
        }
    }

    /// Ends the reader's session, as a crash of the server would.
    async fn end_session(&self) {
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                    WHERE application_name = 'postrider' AND query LIKE $1 AND query LIKE '%pg_visible_in_snapshot%'
                      AND pid <> pg_backend_pid()";
        let client = connect().await;
        let ended: i64 = client.query_one(sql, &[&format!("%{}%", self.place.schema())]).await.unwrap().get(0);
        assert_eq!(ended, 1, "the reader has one session");
        // Until the server has let go of what the session held.
        let held = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'postrider' AND query LIKE $1
                      AND query LIKE '%pg_visible_in_snapshot%' AND pid <> pg_backend_pid()";
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while client.query_one(held, &[&format!("%{}%", self.place.schema())]).await.unwrap().get::<_, i64>(0) > 0 {
            assert!(std::time::Instant::now() < deadline, "a terminated session ends");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

fn node() -> Node {
    let lease_life = Duration::from_secs(3600);
    Node {
        id: NodeId::generate(),
        name: "test".to_owned(),
        routes: vec!["r".into()],
        lease_life,
        standstills: Vec::new(),
    }
}

async fn take(store: &PostgresStore, route: &str) -> Lease {
    let node = node();
    let (topics, order, start) = (TopicFilter::all(), Order::Key, Start::Oldest);
    store.register(&node, &[RouteSpec { name: route.into(), topics, order, lanes: 1, start }]).await.unwrap();
    store.acquire(&LaneId { route: route.into(), number: 0 }, &node).await.unwrap().unwrap()
}

async fn commit(dialect: &Postgres, count: usize) -> Vec<MessageId> {
    let envelopes: Vec<_> = (0..count).map(|i| Envelope::new("orders", "order.placed", format!("{i}"))).collect();
    let ids = envelopes.iter().map(|envelope| envelope.id).collect();
    let mut client = connect().await;
    let mut transaction = client.transaction().await.unwrap();
    transaction.append(dialect, batch(envelopes)).await.unwrap();
    transaction.commit().await.unwrap();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_lost_session_only_what_was_persisted_counts() {
    let mut post = Post::new(20).await;
    let first = post.commit(3).await;
    assert_eq!(post.read_on().await, first);
    post.settle().await.unwrap();
    let second = post.commit(3).await;
    assert_eq!(post.read_on().await, second);
    post.end_session().await;

    let late = post.settle().await.unwrap_err();
    assert!(late.is_fenced(), "a cursor from before must not be persisted: {late:?}");
    // The first read may still meet the broken connection.
    let read = loop {
        match post.store.read(&post.lease, &post.cursor, WHOLE).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {}
            other => break other,
        }
    };
    assert!(read.unwrap_err().is_fenced(), "nor be read from");

    let again = post.store.acquire(&post.lease.lane, &node()).await.unwrap();
    assert!(again.is_none(), "the lease is still held; its node takes the lane anew");
    let resumed = post.store.resume(&post.lease).await.unwrap().cursor;
    post.cursor = resumed;
    assert_eq!(post.read_on().await, second, "what was not settled comes again");
    post.settle().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_persisted_cursor_can_be_written_again_by_another_session() {
    let mut post = Post::new(20).await;
    post.commit(2).await;
    post.read_on().await;
    post.settle().await.unwrap();
    post.end_session().await;
    post.settle().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_sql_enqueues() {
    let mut post = Post::new(20).await;
    let schema = post.place.schema().to_owned();
    let client = connect().await;
    let call = format!(
        "SELECT \"{schema}\".enqueue(topic => 'orders', name => 'order.placed', key => 'o-4711', payload => '{{}}',
                                     headers => '{{\"tenant\": \"größe\"}}', attempts_max => 3)"
    );
    let id: uuid::Uuid = client.query_one(&call, &[]).await.unwrap().get(0);
    let insert = format!(
        "INSERT INTO \"{schema}\".log (id, topic, name, payload) VALUES (gen_random_uuid(), 'orders', 'order.placed', '{{}}')"
    );
    client.batch_execute(&insert).await.unwrap();
    let page = post.page().await;
    let [called, inserted] = page.records.as_slice() else { panic!("two records: {page:?}") };
    assert_eq!((called.envelope.id.0, called.envelope.attempts_max), (id, Some(3)));
    assert_eq!(called.envelope.key.as_ref().unwrap().as_str(), "o-4711");
    assert_eq!(called.envelope.headers.get("tenant").unwrap().as_deref(), Some("größe"));
    assert_eq!((inserted.envelope.key.as_ref(), inserted.envelope.headers.is_empty()), (None, true));
    assert_eq!(post.read_on().await.len(), 2);
}

/// The log has no check constraints: they would make every enqueue some 40 % dearer.
#[tokio::test(flavor = "multi_thread")]
async fn what_plain_sql_wrote_is_read_whatever_it_is() {
    let mut post = Post::new(20).await;
    let log = format!("\"{}\".log", post.place.schema());
    let client = connect().await;
    let rows = [
        "'', '', NULL, NULL, ''",
        "'orders', 'x', '', 0, '{}'",
        "'orders', 'x', 'k', -9223372036854775808, '{}'",
        "'orders', 'x', 'k', 9223372036854775807, '{}'",
        "repeat('t', 100000), repeat('n', 100000), repeat('k', 100000), 1, '{}'",
    ];
    for row in rows {
        let sql = format!(
            "INSERT INTO {log} (id, topic, name, key, attempts_max, payload) VALUES (gen_random_uuid(), {row})"
        );
        client.batch_execute(&sql).await.unwrap();
    }
    let page = post.page().await;
    assert_eq!(page.records.len(), rows.len());
    let attempts: Vec<Option<u32>> = page.records.iter().map(|record| record.envelope.attempts_max).collect();
    assert_eq!(attempts, [None, Some(1), Some(1), Some(u32::MAX), Some(1)]);
    let no_key = &page.records[1];
    assert_eq!((no_key.key, no_key.envelope.key.as_ref()), (None, None), "an empty key is none");
    assert_eq!(post.read_on().await.len(), rows.len());
    post.settle().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_columns_on_which_the_order_rests_stand_first_and_in_their_order() {
    // Defaults are evaluated in the order of columns; the other way round, a number would come before its transaction, or a
    // leaf be chosen by a number that something else has drawn.
    let post = Post::new(20).await;
    let schema = post.place.schema().to_owned();
    let client = connect().await;
    let order = "SELECT string_agg(attname, ',' ORDER BY attnum) FROM pg_attribute
                  WHERE attrelid = $1::text::regclass AND attnum BETWEEN 1 AND 4";
    for leaf in ["log", "log_0", "log_7"] {
        let row = client.query_one(order, &[&format!("\"{schema}\".{leaf}")]).await.unwrap();
        assert_eq!(row.get::<_, String>(0), "tx,seq,enqueued_at,leaf", "{leaf}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_enqueues_something_itself_leads_no_message_astray() {
    // Blocks of four numbers, so that the number drawn by the value is often in another leaf than the row's own.
    let mut post = Post::new(2).await;
    let schema = post.place.schema().to_owned();
    let client = connect().await;
    let sql = format!(
        "CREATE FUNCTION \"{schema}\".note_event() RETURNS uuid LANGUAGE sql VOLATILE AS
         $$ SELECT \"{schema}\".enqueue('events', 'event.noted', 'x') $$;
         CREATE FUNCTION \"{schema}\".in_an_hour() RETURNS timestamptz LANGUAGE sql VOLATILE AS
         $$ SELECT \"{schema}\".enqueue('events', 'event.noted', 'x'); SELECT clock_timestamp() + interval '1 hour' $$"
    );
    client.batch_execute(&sql).await.unwrap();
    for _ in 0..16 {
        let insert = format!(
            "INSERT INTO \"{schema}\".log (id, topic, name, expires_at, payload)
             VALUES (\"{schema}\".note_event(), 'orders', 'order.placed', \"{schema}\".in_an_hour(), '{{}}')"
        );
        client.batch_execute(&insert).await.unwrap();
    }
    assert_eq!(post.read_on().await.len(), 3 * 16);
}

#[tokio::test(flavor = "multi_thread")]
async fn open_transactions_hold_up_nobody() {
    let mut post = Post::new(20).await;
    let dialect = post.store.dialect();
    let (mut writer, mut reader, prepared) = (connect().await, connect().await, connect().await);
    let mut writing = writer.transaction().await.unwrap();
    let held = Envelope::new("orders", "order.placed", "held");
    let held_id = held.id;
    writing.append(&dialect, batch(vec![held])).await.unwrap();
    let reading = reader.build_transaction().isolation_level(tokio_postgres::IsolationLevel::RepeatableRead);
    let reading = reading.start().await.unwrap();
    reading.query("SELECT count(*) FROM pg_class", &[]).await.unwrap();
    let gid = uuid::Uuid::now_v7();
    let schema = post.place.schema().to_owned();
    let orphan = format!(
        "BEGIN; SELECT \"{schema}\".enqueue('orders', 'order.placed', 'prepared'); PREPARE TRANSACTION '{gid}'"
    );
    prepared.batch_execute(&orphan).await.unwrap();
    for _ in 0..3 {
        let sent = post.commit(5).await;
        assert_eq!(post.read_on().await, sent, "what is committed is read at once");
        post.settle().await.unwrap();
    }
    writing.commit().await.unwrap();
    assert_eq!(post.read_on().await, [held_id]);
    prepared.batch_execute(&format!("COMMIT PREPARED '{gid}'")).await.unwrap();
    assert_eq!(post.read_on().await.len(), 1, "an orphan that is committed after all is not lost");
    reading.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ring_is_emptied_leaf_by_leaf_and_loses_nothing() {
    let mut post = Post::new(4).await;
    let retention = Retention::by_age(Duration::ZERO);
    let (mut sent, mut read, mut purged) = (0, 0, 0);
    // Blocks of 16 in 8 leaves: 600 records are more than four times round.
    for _ in 0..60 {
        sent += post.commit(10).await.len();
        read += post.read_on().await.len();
        post.settle().await.unwrap();
        purged += post.store.purge(retention).await.unwrap();
    }
    assert_eq!((sent, read), (600, 600));
    post.until_passed(591).await;
    purged += post.purge_all(retention).await;
    let kept = post.store.overview().await.unwrap().records;
    assert_eq!(purged + kept, 600, "what is purged is gone, and nothing else");
    assert!(purged > 450, "of 600 delivered records only {purged} were purged");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_ring_takes_more_and_an_open_transaction_keeps_its_records() {
    let mut post = Post::new(4).await;
    let retention = Retention::by_age(Duration::ZERO);
    let mut client = connect().await;
    let mut early = client.transaction().await.unwrap();
    let held = Envelope::new("orders", "order.placed", "early");
    let held_id = held.id;
    early.append(&post.store.dialect(), batch(vec![held])).await.unwrap();
    for _ in 0..10 {
        post.commit(50).await;
    }
    assert_eq!(post.read_on().await.len(), 500, "five times round without anything being purged");
    post.settle().await.unwrap();
    assert_eq!(post.store.purge(retention).await.unwrap(), 0, "one that has drawn early keeps everything behind it");
    early.commit().await.unwrap();
    assert_eq!(post.read_on().await, [held_id]);
    // Once it has ended, the bounds rise with the next rounds.
    post.until_passed(480).await;
    let purged = post.purge_all(retention).await;
    assert!(purged > 300, "{purged}");
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_are_printed_applied_once_and_checked() {
    let (by_hand, by_up) = (Schema::fresh(), Schema::fresh());
    let client = connect().await;
    client.batch_execute(&migrations::sql(&Postgres::new(by_hand.name(), "x_").unwrap())).await.unwrap();
    let dialect = Postgres::new(by_up.name(), "x_").unwrap();
    let planned = migrations::plan(&url(), &dialect).await.unwrap().len();
    assert!(planned >= 1, "a new schema has something to apply");
    let closed = PostgresStore::builder(&url()).schema(by_up.name()).prefix("x_").migrate(false).open().await;
    assert_eq!(closed.unwrap_err().kind(), ErrorKind::Schema, "without migrations nothing is made");
    let url = url();
    let racers = (0..12).map(|_| {
        let (url, dialect) = (url.clone(), dialect.clone());
        tokio::spawn(async move { migrations::up(&url, &dialect, &Actor::new("tests")).await.unwrap().len() })
    });
    let mut applied = 0;
    for racer in racers.collect::<Vec<_>>() {
        applied += racer.await.unwrap();
    }
    assert_eq!(applied, planned, "of twelve that race, each is applied by one");
    let described =
        "SELECT string_agg(format('%s.%s %s %s', c.relname, a.attname, a.atttypid::regtype, a.attnotnull), E'\\n'
                              ORDER BY c.relname, a.attnum)
                       FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
                       JOIN pg_namespace AS n ON n.oid = c.relnamespace
                      WHERE n.nspname = $1 AND a.attnum > 0";
    let describe =
        async |schema: &Schema| -> String { client.query_one(described, &[&schema.name()]).await.unwrap().get(0) };
    assert_eq!(describe(&by_hand).await, describe(&by_up).await);

    let table = format!("\"{}\".x_migration", by_up.name());
    client.batch_execute(&format!("UPDATE {table} SET checksum = 'altered'")).await.unwrap();
    let error = migrations::status(&url, &dialect).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("another text"), "{error:?}");
    client
        .batch_execute(&format!("INSERT INTO {table} (version, name, checksum) VALUES (99, 'x', 'x')"))
        .await
        .unwrap();
    let error = migrations::status(&url, &dialect).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("newer"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_altered_sequence_is_refused() {
    let post = Post::new(20).await;
    let alter = format!("ALTER SEQUENCE \"{}\".seq CACHE 10", post.place.schema());
    connect().await.batch_execute(&alter).await.unwrap();
    let error = post.store.read(&post.lease, &post.cursor, WHOLE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error:?}");
    assert!(error.to_string().contains("CACHE 1"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_wakes_a_waiter() {
    let post = Post::new(20).await;
    let other = post.place.another().await;
    let notifier = other.notifier();
    let waiting = tokio::spawn(tokio::time::timeout(Duration::from_secs(20), {
        let store = post.store.clone();
        async move { store.hint().await }
    }));
    // The listener connects in the background; announcements are cheap and may be lost until it has.
    while !waiting.is_finished() {
        notifier.notify();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(waiting.await.unwrap().is_ok(), "an announcement wakes a relay of another process");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_url_names_no_password() {
    let refused = PostgresStore::open("postgres://user:secret@host:notaport/db").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(!refused.chain().contains("secret"), "{}", refused.chain());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_audited_does_not_happen() {
    let place = std::sync::Arc::new(Place::new(12).await);
    let schema = place.schema().to_owned();
    let broken = async move || {
        let sql = format!("ALTER TABLE {schema}.audit ADD CONSTRAINT broken CHECK (false) NOT VALID");
        connect().await.batch_execute(&sql).await.unwrap();
    };
    postrider_testkit::store::unaudited::nothing_changes_unaudited(place, broken).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrations_of_an_operator_are_audited() {
    let schema = Schema::fresh();
    let anna = Actor { name: "anna".into(), reason: Some("ticket 7".into()) };
    let dialect = Postgres::new(schema.name(), "").unwrap();
    let applied = migrations::up(&url(), &dialect, &anna).await.unwrap();
    let store = PostgresStore::builder(&url()).schema(schema.name()).migrate(false).open().await.unwrap();
    let entries = store.audit(100).await.unwrap();
    assert_eq!(entries.len(), applied.len());
    let last = &entries[0];
    assert_eq!((&last.actor, &*last.action, &last.subject), (&anna, "migrate", &applied.last().unwrap().in_words()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_beyond_the_newest_is_removed_however_young() {
    let mut post = Post::new(4).await;
    post.commit(101).await;
    post.until_passed(95).await;
    assert_eq!(post.store.purge(Retention::default()).await.unwrap(), 0, "nothing is asked for");
    assert_eq!(post.purge_all(Retention::by_count(1_000)).await, 0, "there are not so many");
    // The head is at 101 in blocks of 16; there is no number 0. Behind the block that ends at 47 are 54 numbers.
    assert_eq!(post.purge_all(Retention::by_count(54)).await, 47);
    let young = Retention { keep: Some(Duration::from_secs(3600)), records_max: Some(20) };
    assert_eq!(post.purge_all(young).await, 32, "one of the two is reason enough");
    assert_eq!(post.store.overview().await.unwrap().records, 101 - 47 - 32);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_removed_while_the_sequence_is_set_back() {
    let mut post = Post::new(4).await;
    let retention = Retention::by_age(Duration::ZERO);
    post.commit(101).await;
    post.until_passed(95).await;
    assert_eq!(post.purge_all(retention).await, 95);
    let kept = post.store.overview().await.unwrap().records;
    let set_back = format!("SELECT setval('\"{}\".seq', 1)", post.place.schema());
    connect().await.execute(&set_back, &[]).await.unwrap();
    post.commit(60).await;
    assert_eq!(post.store.purge(retention).await.unwrap(), 0, "nobody has seen these");
    assert_eq!(post.store.overview().await.unwrap().records, kept + 60);
}

/// Counts locks that connections of this name wait for.
async fn until_waiting(application: &str, kind: &str) {
    let waits = "SELECT count(*) FROM pg_locks AS lock JOIN pg_stat_activity AS who USING (pid)
                  WHERE NOT lock.granted AND lock.locktype = $1 AND who.application_name = $2";
    let client = connect().await;
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while client.query_one(waits, &[&kind, &application]).await.unwrap().get::<_, i64>(0) == 0 {
        assert!(std::time::Instant::now() < deadline, "{application} waits for a lock");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_that_is_made_while_retention_waits_keeps_its_records_whatever_the_default_isolation() {
    let mut post = Post::new(4).await;
    let sent = post.commit(40).await.len();
    post.until_passed(32).await;
    let named = |name: &str, more: &str| {
        let application = format!("{name}-{}", uuid::Uuid::now_v7().simple());
        (format!("{}?application_name={application}{more}", url()), application)
    };
    let (registrar_url, registrar) = named("registrar", "");
    let level = "&options=-c%20default_transaction_isolation%3Drepeatable%5C%20read";
    let (purger_url, purger) = named("purger", level);
    let open = async |url: &str| PostgresStore::builder(url).schema(post.place.schema()).open().await.unwrap();
    let (registers, purges) = (open(&registrar_url).await, open(&purger_url).await);
    // Somebody who makes a route is kept waiting half-way, and retention waits for him.
    let mut client = connect().await;
    let holding = client.transaction().await.unwrap();
    let hold = format!("LOCK TABLE \"{}\".node IN EXCLUSIVE MODE", post.place.schema());
    holding.batch_execute(&hold).await.unwrap();
    let registering = tokio::spawn(async move { take(&registers, "late").await });
    until_waiting(&registrar, "relation").await;
    let purging = tokio::spawn(async move { purges.purge(Retention::by_age(Duration::ZERO)).await });
    until_waiting(&purger, "advisory").await;
    holding.commit().await.unwrap();
    let lease = registering.await.unwrap();
    assert_eq!(purging.await.unwrap().unwrap(), 0, "a route has passed nothing yet");
    let cursor = post.store.resume(&lease).await.unwrap().cursor;
    let page = post.store.read(&lease, &cursor, WHOLE).await.unwrap();
    assert_eq!(page.records.len(), sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_falls_silent_is_given_up_and_found_again() {
    let post = Post::new(20).await;
    let config: tokio_postgres::Config = url().parse().unwrap();
    let port = config.get_ports()[0];
    let proxy = Proxy::to(&format!("127.0.0.1:{port}")).await;
    let through = url().replace(&format!(":{port}/"), &format!(":{}/", proxy.address().port()));
    let store = PostgresStore::builder(&through).schema(post.place.schema()).open().await.unwrap();
    let node = node();
    // Two connections of the pool are known to work, and that of the reader.
    let (one, other) = tokio::join!(store.heartbeat(&node), store.acquire(&post.lease.lane, &node));
    assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");
    store.read(&post.lease, &post.cursor, WHOLE).await.unwrap();
    let sent = post.commit(3).await;
    proxy.set(Traffic::Silent);
    let asked_at = std::time::Instant::now();
    let lane = LaneId { route: "r".into(), number: 0 };
    let settlement = Settlement { number: 1, ..Settlement::default() };
    let (beat, acquired, settled, read) = tokio::join!(
        store.heartbeat(&node),
        store.acquire(&lane, &node),
        store.settle(&post.lease, &settlement),
        store.read(&post.lease, &post.cursor, WHOLE)
    );
    for error in [beat.err(), acquired.err(), settled.err(), read.err()] {
        let error = error.expect("nobody answers");
        assert!(error.is_transient() && error.kind() == ErrorKind::Unavailable, "{error:?}");
    }
    assert!(asked_at.elapsed() < Duration::from_secs(40), "after {:?}", asked_at.elapsed());
    // What was silent is not used again: another connection is, and that one comes through.
    proxy.set(Traffic::Flowing);
    let before = proxy.connections();
    store.heartbeat(&node).await.unwrap();
    assert!(proxy.connections() > before, "by a new connection");
    let before = proxy.connections();
    let page = store.read(&post.lease, &post.cursor, WHOLE).await.unwrap();
    assert!(proxy.connections() > before, "and the log in a new session");
    assert_eq!(page.records.iter().map(|record| record.envelope.id).collect::<Vec<_>>(), sent);
}

/// Waits until a connection of this name has waited for a lock for so long.
async fn until_waiting_for(application: &str, waits: i64, time: Duration) {
    let sql = "SELECT count(*) FROM pg_stat_activity
                WHERE application_name = $1 AND wait_event_type = 'Lock'
                  AND clock_timestamp() - query_start > $2::bigint * interval '1 millisecond'";
    let client = connect().await;
    let millis = i64::try_from(time.as_millis()).unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while client.query_one(sql, &[&application, &millis]).await.unwrap().get::<_, i64>(0) < waits {
        assert!(std::time::Instant::now() < deadline, "{waits} of {application} wait for {time:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_cancels_long_statements_cancels_neither_reading_nor_retention() {
    let mut post = Post::new(4).await;
    post.commit(40).await;
    post.until_passed(31).await;
    let application = format!("hurried-{}", uuid::Uuid::now_v7().simple());
    let hurried = format!("{}?application_name={application}&options=-c%20statement_timeout%3D3s", url());
    let store = PostgresStore::builder(&hurried).schema(post.place.schema()).open().await.unwrap();
    store.read(&post.lease, &post.cursor, WHOLE).await.unwrap();
    let sent = post.commit(3).await;
    // Both take as long as somebody has the leaves: that of the records to read, and that of the ones to be removed.
    let mut client = connect().await;
    let holding = client.transaction().await.unwrap();
    for leaf in ["log_0", "log_2"] {
        let hold = format!("LOCK TABLE ONLY \"{}\".{leaf} IN ACCESS EXCLUSIVE MODE", post.place.schema());
        holding.batch_execute(&hold).await.unwrap();
    }
    let reading = tokio::spawn({
        let (store, lease, cursor) = (store.clone(), post.lease.clone(), post.cursor.clone());
        async move { store.read(&lease, &cursor, WHOLE).await }
    });
    let purging = tokio::spawn(async move { store.purge(Retention::by_age(Duration::ZERO)).await });
    until_waiting_for(&application, 2, Duration::from_secs(4)).await;
    holding.rollback().await.unwrap();
    let page = reading.await.unwrap().unwrap();
    assert_eq!(page.records.iter().map(|record| record.envelope.id).collect::<Vec<_>>(), sent);
    assert_eq!(purging.await.unwrap().unwrap(), 15, "the first block; there is no number 0");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_expires_while_a_page_that_was_read_ahead_waits_has_expired() {
    const LIMIT: PageLimit = PageLimit { records: 20, bytes: 1 << 20 };
    let mut post = Post::new(20).await;
    let mut client = connect().await;
    let expires_at: std::time::SystemTime =
        client.query_one("SELECT clock_timestamp() + interval '2 seconds'", &[]).await.unwrap().get(0);
    let envelopes: Vec<Envelope> = (0..60)
        .map(|_| Envelope { expires_at: Some(expires_at.into()), ..Envelope::new("orders", "order.placed", "{}") })
        .collect();
    let mut transaction = client.transaction().await.unwrap();
    transaction.append(&post.store.dialect(), batch(envelopes)).await.unwrap();
    transaction.commit().await.unwrap();
    // A full page: the next one is on its way.
    let page = post.store.read(&post.lease, &post.cursor, LIMIT).await.unwrap();
    assert_eq!((page.records.len(), page.more), (20, true));
    post.cursor = page.end;
    let is_over = "SELECT clock_timestamp() > $1";
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !client.query_one(is_over, &[&expires_at]).await.unwrap().get::<_, bool>(0) {
        assert!(std::time::Instant::now() < deadline, "time passes");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let page = post.store.read(&post.lease, &post.cursor, LIMIT).await.unwrap();
    let left: Vec<_> = page.records.iter().map(|record| record.expires_in).collect();
    assert_eq!(left, [Some(Duration::ZERO); 20]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_ended_leaves_no_checkpoints_behind() {
    let mut post = Post::new(20).await;
    let actor = Actor::new("tests");
    let settle_often = async |store: &PostgresStore, lease: &Lease| {
        let cursor = store.resume(lease).await.unwrap().cursor;
        for number in 1..=10 {
            let page = store.read(lease, &cursor, PageLimit { records: 1, bytes: 1 << 20 }).await.unwrap();
            let settlement = Settlement { number, advance: Some((page.marks)(1)), ..Settlement::default() };
            store.settle(lease, &settlement).await.unwrap();
        }
    };
    let client = connect().await;
    let count = format!("SELECT count(*) FROM \"{}\".checkpoint WHERE route = $1", post.place.schema());
    let checkpoints = async |route: &str| -> i64 { client.query_one(&count, &[&route]).await.unwrap().get(0) };
    post.commit(20).await;
    post.read_on().await;
    post.settle().await.unwrap();

    let spec = ReplaySpec { route: "r".into(), to: None, filter: ReplayFilter::default(), rate: None };
    for is_cancelled in [false, true] {
        let name = post.store.replay(&spec, &actor).await.unwrap();
        let lane = LaneId { route: name.clone(), number: 0 };
        let lease = post.store.acquire(&lane, &node()).await.unwrap().unwrap();
        settle_often(&post.store, &lease).await;
        assert!(checkpoints(&name).await > 10);
        if is_cancelled {
            post.store.cancel_replay(&name, &actor).await.unwrap();
        } else {
            assert!(post.store.finish(&lease).await.unwrap());
        }
        assert_eq!(checkpoints(&name).await, 0, "the name of a replay is never given again");
        let settlement = Settlement { number: 11, ..Settlement::default() };
        assert!(
            post.store.settle(&lease, &settlement).await.unwrap_err().is_fenced(),
            "its owner is fenced all the same"
        );
    }

    let lease = take(&post.store, "other").await;
    settle_often(&post.store, &lease).await;
    assert!(checkpoints("other").await > 10);
    post.store.drop_route("other", &actor).await.unwrap();
    assert_eq!(checkpoints("other").await, 1, "what a former owner runs into");
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_rows_are_found_by_when_they_were_parked() {
    let mut post = Post::new(20).await;
    post.commit(2).await;
    let page = post.page().await;
    let dead = || Parked::Dead { cause: Cause::new("refused", "no"), attempts: 1, blocks: false };
    for n in 1..=2 {
        let park = vec![(RecordRef::new(&page.records, n - 1), dead())];
        let advance = Some((page.marks)(n));
        post.number += 1;
        let settlement = Settlement { number: post.number, advance, park, ..Settlement::default() };
        post.store.settle(&post.lease, &settlement).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let rows = post.store.parked(&ParkedFilter::default(), None, 10).await.unwrap();
    let sql = format!("SELECT max(parked_at) FROM \"{}\".parked", post.place.schema());
    let newest: std::time::SystemTime = connect().await.query_one(&sql, &[]).await.unwrap().get(0);
    let before = ParkedFilter { parked_before: Some(newest.into()), ..ParkedFilter::default() };
    let found = post.store.parked(&before, None, 10).await.unwrap();
    assert_eq!((rows.len(), found.len()), (2, 1), "the instant itself is not before it");
    assert_eq!(found[0].ordinal, rows[0].ordinal);
    assert_eq!(post.store.parked_count(&before).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_messages_behind_small_ones_come_in_pages_of_their_own_size() {
    const LIMIT: PageLimit = PageLimit { records: 1_000, bytes: 1 << 20 };
    let mut post = Post::new(20).await;
    let mut sent = post.commit(600).await;
    let mut client = connect().await;
    let mut transaction = client.transaction().await.unwrap();
    // Each but the last is a fifth of a page; that one nearly fills a page by itself.
    for size in [vec![200 << 10; 40], vec![1_000 << 10]].concat() {
        let envelope = Envelope::new("orders", "order.placed", vec![b'x'; size]);
        sent.push(envelope.id);
        transaction.append(&post.store.dialect(), batch(vec![envelope])).await.unwrap();
    }
    transaction.commit().await.unwrap();
    sent.extend(post.commit(300).await);
    let (mut read, mut pages) = (Vec::new(), 0);
    loop {
        let page = post.store.read(&post.lease, &post.cursor, LIMIT).await.unwrap();
        let weight: usize = page.records.iter().map(|record| record.envelope.weight()).sum();
        assert!(weight <= LIMIT.bytes || page.records.len() == 1, "{} records weigh {weight}", page.records.len());
        read.extend(page.records.iter().map(|record| record.envelope.id));
        post.cursor = page.end;
        post.settle().await.unwrap();
        pages += 1;
        if !page.more {
            break;
        }
    }
    assert_eq!(read, sent, "each once, and in order");
    assert!(pages < 20, "in {pages} pages");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_pending_is_counted_beside_what_an_open_transaction_keeps_from_being_forgotten() {
    let mut post = Post::new(6).await;
    let mut client = connect().await;
    let mut early = client.transaction().await.unwrap();
    let late = Envelope::new("orders", "order.placed", "late");
    early.append(&post.store.dialect(), batch(vec![late])).await.unwrap();
    post.commit(500).await;
    post.read_on().await;
    post.settle().await.unwrap();
    let pending = async |post: &Post| post.store.overview().await.unwrap().routes[0].pending;
    assert_eq!(pending(&post).await, 0, "an open transaction's message is not there yet");
    early.commit().await.unwrap();
    post.commit(7).await;
    assert_eq!(pending(&post).await, 8, "what came late, and what is new");
    let page = post.store.read(&post.lease, &post.cursor, PageLimit { records: 3, bytes: 1 << 20 }).await.unwrap();
    post.cursor = page.end;
    post.settle().await.unwrap();
    assert_eq!(pending(&post).await, 5, "half-way through a round");
}
