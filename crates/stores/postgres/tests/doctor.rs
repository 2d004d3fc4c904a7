//! What the doctor finds, each fact caused on a real server.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/own_server.rs"]
mod own_server;

use std::time::Duration;

use own_server::{OwnServer, PASSWORD};
use postrider_core::{
    ErrorKind,
    admin::{Actor, ParkedFilter, StoreAdmin},
    doctor::{Finding, Severity, Thresholds},
    lease::{LaneId, Lease, Node, NodeId, Order, RouteSpec, Start},
    log::{Log, PageLimit, Retention, Settlement},
    topic::TopicFilter,
};
use postrider_store_postgres::{
    Postgres, PostgresStore, connect,
    migrations::{self, Roles},
};

const AT_ONCE: Thresholds = Thresholds { transaction_age: Duration::ZERO, disk_free_bytes: 0 };

async fn findings(store: &PostgresStore, thresholds: Thresholds) -> Vec<Finding> {
    let findings = store.doctor(thresholds).await.unwrap();
    for finding in &findings {
        assert!(!finding.detail.is_empty() && !finding.fix.is_empty(), "{finding:?}");
        assert!(!format!("{finding:?}").contains(PASSWORD), "{finding:?}");
    }
    findings
}

fn codes(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.code).collect()
}

fn of<'f>(findings: &'f [Finding], code: &str) -> &'f Finding {
    findings.iter().find(|finding| finding.code == code).unwrap_or_else(|| panic!("no `{code}` in {findings:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_as_it_comes_gives_no_cause_for_concern() {
    let server = OwnServer::start(&[]);
    let store = PostgresStore::open(&server.url("127.0.0.1", "")).await.unwrap();
    assert_eq!(findings(&store, Thresholds::default()).await, []);
    assert_eq!(store.vitals().await.unwrap().horizon_age, Some(Duration::ZERO), "nobody else is there");
    let open = "hostaddr=127.0.0.1&sslmode=disable";
    let remote = PostgresStore::open(&server.url("db.example", open)).await.unwrap();
    assert_eq!(codes(&findings(&remote, Thresholds::default()).await), ["tls-off"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_lose_commits_are_named_and_so_is_a_standby() {
    let server = OwnServer::start(&[("fsync", "off"), ("full_page_writes", "off"), ("synchronous_commit", "off")]);
    let url = server.url("127.0.0.1", "");
    let store = PostgresStore::open(&url).await.unwrap();
    let found = findings(&store, Thresholds::default()).await;
    assert_eq!(codes(&found), ["fsync-off", "full-page-writes-off", "synchronous-commit-off"]);
    assert!(found.iter().all(|finding| finding.severity == Severity::Warning));

    let client = connect(&url).await.unwrap();
    client
        .batch_execute(
            "CREATE ROLE \"Shop\"; ALTER ROLE \"Shop\" SET synchronous_commit = off;
             ALTER DATABASE postgres SET synchronous_commit = off",
        )
        .await
        .unwrap();
    for sql in ["CREATE DATABASE elsewhere", "ALTER DATABASE elsewhere SET synchronous_commit = off"] {
        client.batch_execute(sql).await.unwrap();
    }
    let found = findings(&store, Thresholds::default()).await;
    let subjects: Vec<&str> =
        found.iter().filter(|f| f.code == "synchronous-commit-off").map(|f| &*f.subject).collect();
    assert_eq!(subjects, ["this connection", "all roles in database postgres", "role \"Shop\""]);
    // A setting is kept as it was typed.
    for value in ["FALSE", "no", "0", "'Off'"] {
        client.batch_execute(&format!("ALTER ROLE \"Shop\" SET synchronous_commit = {value}")).await.unwrap();
        let found = findings(&store, Thresholds::default()).await;
        assert!(found.iter().any(|f| f.subject == "role \"Shop\""), "{value}: {found:?}");
    }
    for value in ["on", "local", "remote_write", "yes", "1"] {
        client.batch_execute(&format!("ALTER ROLE \"Shop\" SET synchronous_commit = {value}")).await.unwrap();
        let found = findings(&store, Thresholds::default()).await;
        assert!(found.iter().all(|f| f.subject != "role \"Shop\""), "{value}: {found:?}");
    }

    let standby = server.standby();
    let store = PostgresStore::builder(&standby.url("127.0.0.1", "")).migrate(false).open().await.unwrap();
    let found = findings(&store, Thresholds::default()).await;
    assert_eq!((of(&found, "standby").severity, found[0].code), (Severity::Error, "standby"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_write_nothing_by_default_is_told() {
    let server = OwnServer::start(&[]);
    let url = server.url("127.0.0.1", "");
    drop(PostgresStore::open(&url).await.unwrap());
    let client = connect(&url).await.unwrap();
    client.batch_execute("ALTER DATABASE postgres SET default_transaction_read_only = on").await.unwrap();
    let store = PostgresStore::builder(&url).migrate(false).open().await.unwrap();
    let found = findings(&store, Thresholds::default()).await;
    assert_eq!((codes(&found), found[0].severity), (vec!["read-only"], Severity::Error), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_holds_something_back_is_named() {
    let server = OwnServer::start(&[("max_prepared_transactions", "4")]);
    let url = server.url("127.0.0.1", "");
    let store = PostgresStore::open(&url).await.unwrap();
    let (writer, reader, other) =
        (connect(&url).await.unwrap(), connect(&url).await.unwrap(), connect(&url).await.unwrap());
    let (enqueuer, looker) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    looker.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED; SELECT count(*) FROM postrider.log").await.unwrap();
    enqueuer.batch_execute("BEGIN; SELECT postrider.enqueue('orders', 'order.placed', '{}'::text)").await.unwrap();
    writer.batch_execute("BEGIN; CREATE TABLE\nmine (); SELECT 'what I did'").await.unwrap();
    reader.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM pg_sequences").await.unwrap();
    let enqueue = "SELECT postrider.enqueue('orders', 'order.placed', '{}'::text)";
    other.batch_execute("BEGIN; CREATE TABLE theirs (); PREPARE TRANSACTION 'it''s mine'").await.unwrap();
    other.batch_execute(&format!("BEGIN; {enqueue}; PREPARE TRANSACTION 'a message'")).await.unwrap();
    other.batch_execute("SELECT pg_create_physical_replication_slot('left_behind', true)").await.unwrap();

    let found = findings(&store, AT_ONCE).await;
    let pid = async |client: &tokio_postgres::Client| -> i32 {
        client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
    };
    let (enqueuer_pid, writer_pid, reader_pid) = (pid(&enqueuer).await, pid(&writer).await, pid(&reader).await);
    let looker_pid = pid(&looker).await;
    let open = |pid: i32| {
        let subject = format!("pid {pid}");
        found.iter().find(|f| f.code == "open-transaction" && f.subject == subject).expect("named").clone()
    };
    let writing = open(writer_pid);
    for part in ["postrider in postgres", "idle in transaction", "cleaning", "CREATE TABLE mine (); SELECT …"] {
        assert!(writing.detail.contains(part), "{part}: {writing:?}");
    }
    assert!(!writing.detail.contains("retention"), "it has drawn no number of the log: {writing:?}");
    assert!(open(enqueuer_pid).detail.contains("retention"), "retention waits for what it has enqueued");
    assert!(!writing.detail.contains("what I did"), "a literal may be a payload: {writing:?}");
    assert!(writing.fix.contains(&format!("pg_terminate_backend({writer_pid})")), "{writing:?}");
    assert!(open(reader_pid).detail.contains("cleaning"), "who looks at numbers draws none");
    assert!(open(looker_pid).detail.contains("has looked at the log"), "a leaf that is looked at is not emptied");
    let prepared = |gid: &str| {
        let subject = format!("gid {gid}");
        found.iter().find(|f| f.code == "prepared-transaction" && f.subject == subject).expect("named").clone()
    };
    assert!(prepared("a message").detail.contains("retention"), "retention waits for what it has enqueued");
    let prepared = prepared("it's mine");
    assert!(prepared.detail.contains("cleaning") && !prepared.detail.contains("retention"), "{prepared:?}");
    assert!(prepared.fix.contains("ROLLBACK PREPARED 'it''s mine'"), "{prepared:?}");
    assert!(of(&found, "idle-replication-slot").fix.contains("pg_drop_replication_slot('left_behind')"));

    let written = store.uncommitted(Duration::ZERO).await.unwrap();
    let subjects: Vec<&str> = written.iter().map(|finding| finding.subject.as_str()).collect();
    assert_eq!(
        subjects,
        [format!("pid {enqueuer_pid}").as_str(), "gid a message"],
        "who has drawn no number of the log has enqueued nothing"
    );
    assert!(written.iter().all(|finding| finding.detail.contains("until it commits")), "{written:?}");

    let vitals = store.vitals().await.unwrap();
    assert!(vitals.horizon_age > Some(Duration::ZERO), "the oldest of them: {vitals:?}");
    assert!(vitals.log_bytes > Some(0), "{vitals:?}");

    // What is young is nobody's business.
    assert_eq!(codes(&findings(&store, Thresholds::default()).await), ["idle-replication-slot"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_privileges_are_listed() {
    let server = OwnServer::start(&[]);
    let admin_url = server.url("127.0.0.1", "");
    PostgresStore::open(&admin_url).await.unwrap();
    let admin = connect(&admin_url).await.unwrap();
    let names = Roles::default();
    for role in [names.app, names.relay, names.viewer, names.migrate] {
        admin.batch_execute(&format!("CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")).await.unwrap();
    }
    admin.batch_execute(&migrations::roles(&Postgres::default(), &names).unwrap()).await.unwrap();
    let open = async |role: &str| {
        let url = admin_url.replace("postgres://postrider:", &format!("postgres://{role}:"));
        PostgresStore::builder(&url).migrate(false).open().await
    };

    let relay = open(names.relay).await.unwrap();
    let told = findings(&relay, Thresholds::default()).await;
    assert_eq!(codes(&told), ["activity-hidden"], "a relay lacks nothing, and sees no others");
    let viewer = open(names.viewer).await.unwrap();
    assert_eq!(of(&findings(&viewer, Thresholds::default()).await, "viewer").severity, Severity::Note);
    admin.batch_execute(&format!("GRANT pg_read_all_stats TO {}", names.relay)).await.unwrap();
    assert_eq!(findings(&relay, Thresholds::default()).await, []);

    // Operators and collectors enqueue as the relay's role.
    admin
        .batch_execute(&format!("REVOKE INSERT (headers, payload) ON postrider.log FROM {}", names.relay))
        .await
        .unwrap();
    admin.batch_execute(&format!("REVOKE USAGE ON SEQUENCE postrider.seq FROM {}", names.relay)).await.unwrap();
    let found = findings(&relay, Thresholds::default()).await;
    let missing = of(&found, "missing-privileges");
    assert_eq!(missing.severity, Severity::Warning, "messages are relayed all the same");
    for part in ["INSERT (headers, payload) on \"postrider\".\"log\"", "USAGE on \"postrider\".\"seq\""] {
        assert!(missing.detail.contains(part), "{part}: {missing:?}");
    }
    admin.batch_execute(&migrations::roles(&Postgres::default(), &names).unwrap()).await.unwrap();
    assert_eq!(findings(&relay, Thresholds::default()).await, [], "the script that the fix names makes it good");

    admin.batch_execute(&format!("REVOKE TRUNCATE ON postrider.log_3 FROM {}", names.relay)).await.unwrap();
    admin.batch_execute(&format!("REVOKE USAGE ON SEQUENCE postrider.ordinal FROM {}", names.relay)).await.unwrap();
    let found = findings(&relay, Thresholds::default()).await;
    let missing = of(&found, "missing-privileges");
    assert_eq!(missing.severity, Severity::Error);
    for part in ["TRUNCATE on \"postrider\".\"log_3\"", "USAGE on \"postrider\".\"ordinal\""] {
        assert!(missing.detail.contains(part), "{part}: {missing:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ring_that_goes_round_and_an_altered_sequence_are_named() {
    let server = OwnServer::start(&[]);
    let url = server.url("127.0.0.1", "");
    let store = PostgresStore::builder(&url).block_bits(2).open().await.unwrap();
    let lease_life = Duration::from_secs(3600);
    let standstills = Vec::new();
    let node = Node { id: NodeId::generate(), name: "n".into(), routes: vec!["r".into()], lease_life, standstills };
    let (topics, order, start) = (TopicFilter::all(), Order::Key, Start::Oldest);
    store.register(&node, &[RouteSpec { name: "r".into(), topics, order, lanes: 1, start }]).await.unwrap();
    let client = connect(&url).await.unwrap();
    enqueue(&client, 20).await;
    assert_eq!(findings(&store, Thresholds::default()).await, [], "five blocks of four are in five leaves");
    enqueue(&client, 8).await;
    assert_eq!(codes(&findings(&store, Thresholds::default()).await), ["ring-filling"]);
    enqueue(&client, 8).await;
    let found = findings(&store, Thresholds::default()).await;
    let wrapped = of(&found, "ring-wrapped");
    assert!(wrapped.subject.contains('0') && wrapped.detail.contains("9 blocks behind"), "{wrapped:?}");

    client.batch_execute("ALTER SEQUENCE postrider.seq CACHE 10").await.unwrap();
    let found = findings(&store, Thresholds::default()).await;
    assert_eq!(found[0].code, "sequence-altered");
    client.batch_execute(found[0].fix.split('`').nth(1).unwrap()).await.unwrap();
    assert_eq!(
        codes(&findings(&store, Thresholds::default()).await),
        ["ring-wrapped"],
        "the fix works as it is written"
    );
}

/// One route of a store, in the hands of one node.
struct Route {
    store: PostgresStore,
    lease: Lease,
    number: u64,
}

impl Route {
    async fn take(store: &PostgresStore) -> Self {
        let (lease_life, standstills) = (Duration::from_secs(3600), Vec::new());
        let node = Node { id: NodeId::generate(), name: "n".into(), routes: vec!["r".into()], lease_life, standstills };
        let (topics, order, start) = (TopicFilter::all(), Order::Key, Start::Oldest);
        store.register(&node, &[RouteSpec { name: "r".into(), topics, order, lanes: 1, start }]).await.unwrap();
        let lease = store.acquire(&LaneId { route: "r".into(), number: 0 }, &node).await.unwrap().unwrap();
        Self { store: store.clone(), lease, number: 0 }
    }

    /// Reads all that there is and settles it, until nothing below this number is waited for any more.
    async fn read_on(&mut self, client: &tokio_postgres::Client, passed: i64) {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        let lo = "SELECT lo FROM postrider.checkpoint ORDER BY n DESC LIMIT 1";
        while client.query_one(lo, &[]).await.unwrap().get::<_, i64>(0) < passed {
            assert!(std::time::Instant::now() < deadline, "the route comes to {passed}");
            client.execute("SELECT pg_current_xact_id()", &[]).await.unwrap();
            let cursor = self.store.resume(&self.lease).await.unwrap().cursor;
            let limit = PageLimit { records: 1_000, bytes: 1 << 20 };
            let end = self.store.read(&self.lease, &cursor, limit).await.unwrap().end;
            self.number += 1;
            let settlement = Settlement { number: self.number, advance: Some(end), ..Settlement::default() };
            self.store.settle(&self.lease, &settlement).await.unwrap();
        }
    }
}

async fn enqueue(client: &tokio_postgres::Client, count: i32) {
    let sql =
        "SELECT postrider.enqueue(topic => 'orders', name => 'n', payload => ''::bytea) FROM generate_series(1, $1)";
    client.query(sql, &[&count]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_that_stands_behind_what_was_read_is_named_until_nothing_is_left_unread() {
    let server = OwnServer::start(&[]);
    let url = server.url("127.0.0.1", "");
    let store = PostgresStore::open(&url).await.unwrap();
    let client = connect(&url).await.unwrap();
    let mut route = Route::take(&store).await;
    client.batch_execute("SELECT setval('postrider.seq', 100)").await.unwrap();
    enqueue(&client, 5).await;
    route.read_on(&client, 105).await;
    enqueue(&client, 3).await;
    assert_eq!(findings(&store, Thresholds::default()).await, []);

    client.batch_execute("SELECT setval('postrider.seq', 50)").await.unwrap();
    enqueue(&client, 5).await;
    let found = findings(&store, Thresholds::default()).await;
    assert_eq!((codes(&found), found[0].severity), (vec!["sequence-altered"], Severity::Error), "{found:?}");
    assert_eq!(
        found[0].fix,
        "stop the producers and run `SELECT setval('\"postrider\".\"seq\"', 108)`, then `postrider route rebase r`"
    );
    client.batch_execute(found[0].fix.split('`').nth(1).unwrap()).await.unwrap();

    let found = findings(&store, Thresholds::default()).await;
    assert_eq!((codes(&found), found[0].severity), (vec!["sequence-altered"], Severity::Error), "{found:?}");
    assert!(found[0].detail.contains("route r has not read"), "{found:?}");
    assert!(found[0].fix.contains("`postrider route rebase r`"), "{found:?}");
    store.rebase_route("r", &Actor::new("tests")).await.unwrap();
    assert_eq!(findings(&store, Thresholds::default()).await, [], "whoever takes the route now reads them");
    let mut route = Route::take(&store).await;
    route.read_on(&client, 108).await;
    assert_eq!(findings(&store, Thresholds::default()).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ring_that_everybody_has_caught_up_with_is_no_cause_for_concern() {
    let server = OwnServer::start(&[]);
    let url = server.url("127.0.0.1", "");
    let store = PostgresStore::builder(&url).block_bits(2).open().await.unwrap();
    let client = connect(&url).await.unwrap();
    enqueue(&client, 37).await;
    let found = findings(&store, Thresholds::default()).await;
    assert!(of(&found, "ring-wrapped").detail.contains("there is no route"), "{found:?}");
    let mut route = Route::take(&store).await;
    assert_eq!(codes(&findings(&store, Thresholds::default()).await), ["ring-wrapped"]);
    route.read_on(&client, 37).await;
    // The leaf that is being written has records of two turns still, and all others will be emptied.
    assert_eq!(findings(&store, Thresholds::default()).await, []);
    while store.purge(Retention::by_age(Duration::ZERO)).await.unwrap() > 0 {}
    assert_eq!(findings(&store, Thresholds::default()).await, []);
}

/// A pooler that gives the same session of the server to several connections, one transaction at a time.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_in_between_is_noticed() {
    let server = OwnServer::start(&[("password_encryption", "md5")]);
    let direct = server.url("127.0.0.1", "");
    migrations::up(&direct, &Postgres::default(), &Actor::new("tests")).await.unwrap();
    let pooler = server.pooler("transaction");
    let store = PostgresStore::builder(&pooler.url()).migrate(false).connections_max(1).open().await.unwrap();
    let found = findings(&store, Thresholds::default()).await;
    assert_eq!(codes(&found), ["pooler", "listen-broken"]);
    assert_eq!(found[0].severity, Severity::Error);
}

/// A settlement that waits for a row is a relay that stands still: whoever has the lock is named.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_keeps_a_lock_that_others_wait_for_is_named() {
    let server = OwnServer::start(&[]);
    let url = server.url("127.0.0.1", "");
    let store = PostgresStore::open(&url).await.unwrap();
    assert_eq!(store.blockage().await.unwrap(), None);
    let (holder, waiter) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    holder.batch_execute("BEGIN; LOCK TABLE postrider.lane IN SHARE ROW EXCLUSIVE MODE").await.unwrap();
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let waiting = tokio::spawn(async move { waiter.batch_execute("UPDATE postrider.lane SET epoch = epoch").await });
    let found = until_blocked(&store).await;
    assert_eq!((found.code, found.subject), ("store-locked", format!("pid {pid}")));
    assert!(
        found.detail.contains("idle in transaction") && found.fix.contains("pg_terminate_backend"),
        "{}",
        found.detail
    );
    holder.batch_execute("ROLLBACK").await.unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(store.blockage().await.unwrap(), None);
}

/// Whoever is in the way may be behind somebody else who waits himself, and need not be a process.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_at_the_end_of_those_who_wait_is_named() {
    let server = OwnServer::start(&[("max_prepared_transactions", "4")]);
    let url = server.url("127.0.0.1", "");
    let store = PostgresStore::open(&url).await.unwrap();
    let (enqueue, lock) =
        ("SELECT postrider.enqueue('orders', 'order.placed', '{}'::text)", "BEGIN; LOCK TABLE postrider.log; COMMIT");
    let holder = connect(&url).await.unwrap();
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    for (hold, subject, end) in [
        (format!("BEGIN; {enqueue}"), format!("pid {pid}"), "ROLLBACK"),
        (format!("BEGIN; {enqueue}; PREPARE TRANSACTION 'mine'"), "gid mine".to_owned(), "ROLLBACK PREPARED 'mine'"),
    ] {
        holder.batch_execute(&hold).await.unwrap();
        let (between, waiter) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
        let altering = tokio::spawn(async move { between.batch_execute(lock).await });
        let enqueuing = tokio::spawn(async move { waiter.batch_execute(enqueue).await });
        let found = until_blocked(&store).await;
        assert_eq!(
            (found.code, &found.subject, found.severity),
            ("store-locked", &subject, Severity::Error),
            "{found:?}"
        );
        assert!(found.detail.contains("others have been waiting"), "{found:?}");
        holder.batch_execute(end).await.unwrap();
        altering.await.unwrap().unwrap();
        enqueuing.await.unwrap().unwrap();
        assert_eq!(store.blockage().await.unwrap(), None);
    }
    holder.batch_execute("BEGIN; LOCK TABLE ONLY postrider.log").await.unwrap();
    assert_eq!(until_blocked(&store).await.subject, format!("pid {pid}"));
}

async fn until_blocked(store: &PostgresStore) -> Finding {
    let deadline = std::time::Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(found) = store.blockage().await.unwrap() {
            return found;
        }
        assert!(std::time::Instant::now() < deadline, "nobody was named");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Behind such a lock nobody can even look: whoever asks is told who has it, although nobody else waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_on_a_whole_table_is_named_and_not_waited_for() {
    let server = OwnServer::start(&[]);
    let url = server.url("127.0.0.1", "");
    let store = PostgresStore::open(&url).await.unwrap();
    let holder = connect(&url).await.unwrap();
    for table in ["lane", "log_0"] {
        holder.batch_execute(&format!("BEGIN; LOCK TABLE postrider.{table} IN ACCESS EXCLUSIVE MODE")).await.unwrap();
        let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let patience = Duration::from_secs(120);
        let look = tokio::time::timeout(patience, store.overview()).await.expect("nobody waits for ever");
        let told = look.expect_err("nobody can look").chain();
        for word in ["store-locked", &format!("pid {pid} "), "a whole table", "pg_terminate_backend"] {
            assert!(told.contains(word), "{word} in {told}");
        }
        let found = tokio::time::timeout(patience, findings(&store, Thresholds::default())).await.expect("nor here");
        assert_eq!(of(&found, "store-locked").subject, format!("pid {pid}"), "{table}");
        holder.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(store.blockage().await.unwrap(), None);
        assert!(store.overview().await.is_ok());
    }
}

/// A change, or whoever opens the store, waits for such a lock for a while, and then says who has it. Also for one that lets
/// others look.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_not_waited_for_without_end_and_its_holder_is_named() {
    let server = OwnServer::start(&[]);
    let url = server.url("127.0.0.1", "");
    let store = PostgresStore::open(&url).await.unwrap();
    let holder = connect(&url).await.unwrap();
    let locks = "BEGIN; LOCK TABLE postrider.route IN SHARE MODE; \
                 LOCK TABLE postrider.parked, postrider.migration IN ACCESS EXCLUSIVE MODE";
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    holder.batch_execute(locks).await.unwrap();
    let (actor, all, dialect) = (Actor::new("anna"), ParkedFilter::default(), Postgres::default());
    let as_it_is = || PostgresStore::builder(&url).migrate(false).open();
    let outcomes = tokio::time::timeout(Duration::from_secs(120), async {
        tokio::join!(
            store.pause("r", &actor),
            store.resume_route("r", &actor),
            async { store.redrive(&all, &actor).await.map(drop) },
            async { store.discard(&all, &actor).await.map(drop) },
            async { PostgresStore::open(&url).await.map(drop) },
            async { as_it_is().await.map(drop) },
            async { migrations::status(&url, &dialect).await.map(drop) },
        )
    });
    let outcomes = outcomes.await.expect("nobody waits for ever");
    let outcomes: [_; 7] = outcomes.into();
    for (number, outcome) in outcomes.into_iter().enumerate() {
        let error = outcome.expect_err("somebody has a lock");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{number}");
        let told = error.chain();
        for word in ["store-locked", &format!("pid {pid} "), "LOCK TABLE", "pg_terminate_backend"] {
            assert!(told.contains(word), "{number}: {word} in {told}");
        }
    }
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(store.pause("r", &actor).await.unwrap_err().kind(), ErrorKind::NotFound, "the route is not known");
    assert_eq!(store.redrive(&all, &actor).await.unwrap(), 0);
    assert!(as_it_is().await.is_ok());
}
