//! The four roles on a real server: what each can do, which is all that it is for, and what it cannot.
//!
//! The whole store suite runs under them: the store is opened as the relay, the application enqueues as the app.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use postrider_core::{
    BoxFuture, ErrorKind,
    admin::{Actor, MessageTrace, ParkedFilter, StoreAdmin},
    enlist::Enlist,
    envelope::Envelope,
    lease::{LaneId, Node, NodeId, Order, RouteSpec, Start},
    log::{Log, Retention},
    time::Timestamp,
    topic::TopicFilter,
};
use postrider_store_postgres::{
    Postgres, PostgresStore,
    migrations::{self, Roles},
};
use postrider_testkit::store::{Fixture, OpenTransaction};
use support::{Application, Schema, batch, connect, connect_to, url};
use tokio_postgres::error::SqlState;

/// A store that belongs to four roles, made for it alone.
struct Governed {
    store: Mutex<PostgresStore>,
    names: Names,
    schema: Schema,
}

/// Four roles that can log in. Names that need quotes.
struct Names([String; 4]);

const PASSWORD: &str = "open-sesame";

impl Names {
    async fn fresh(schema: &Schema) -> Self {
        let names = ["app", "relay", "viewer", "migrate"].map(|role| format!("{}-{role}'s", schema.name()));
        let client = connect().await;
        for name in &names {
            client.batch_execute(&format!("CREATE ROLE \"{name}\" LOGIN PASSWORD '{PASSWORD}'")).await.unwrap();
        }
        Self(names)
    }

    fn roles(&self) -> Roles<'_> {
        let [app, relay, viewer, migrate] = &self.0;
        Roles { app, relay, viewer, migrate }
    }

    fn url(&self, role: usize) -> String {
        let (_, place) = url().rsplit_once('@').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        format!("postgres://{}:{PASSWORD}@{place}", self.0[role].replace('\'', "%27"))
    }
}

impl Drop for Governed {
    fn drop(&mut self) {
        let roles = self.names.0.clone().map(|name| format!("\"{name}\"")).join(", ");
        let sql = format!("DROP SCHEMA IF EXISTS \"{}\" CASCADE; DROP ROLE IF EXISTS {roles}", self.schema.name());
        self.schema.clean_up_with(sql);
    }
}

const APP: usize = 0;
const RELAY: usize = 1;
const VIEWER: usize = 2;
const MIGRATE: usize = 3;

impl Governed {
    async fn fresh() -> Arc<dyn Fixture> {
        Arc::new(Self::new().await)
    }

    /// The owner makes the schema, an administrator runs the script, the relay opens the store as it is.
    async fn new() -> Self {
        let schema = Schema::fresh();
        let names = Names::fresh(&schema).await;
        let admin = PostgresStore::builder(&url()).schema(schema.name()).block_bits(2).connections_max(2);
        admin.open().await.unwrap();
        let script = migrations::roles(&Postgres::new(schema.name(), "").unwrap(), &names.roles()).unwrap();
        connect().await.batch_execute(&script).await.unwrap();
        let store = Mutex::new(open(&names.url(RELAY), &schema).await);
        Self { store, names, schema }
    }

    fn store(&self) -> PostgresStore {
        self.store.lock().unwrap().clone()
    }

    /// What this role is told when it runs this statement. `None`: it is let through.
    async fn refused(&self, role: usize, sql: &str) -> Option<SqlState> {
        let client = connect_to(&self.names.url(role)).await;
        let sql =
            Postgres::new(self.schema.name(), "").map(|_| sql.replace("S.", &format!("\"{}\".", self.schema.name())));
        client.batch_execute(&sql.unwrap()).await.err().map(|error| error.code().cloned().expect("the server's answer"))
    }
}

async fn open(url: &str, schema: &Schema) -> PostgresStore {
    let builder = PostgresStore::builder(url).schema(schema.name()).connections_max(4).migrate(false);
    builder.open().await.expect("a role that may look at the schema opens the store")
}

impl Fixture for Governed {
    fn log(&self) -> Arc<dyn Log> {
        Arc::new(self.store())
    }

    fn admin(&self) -> Arc<dyn StoreAdmin> {
        Arc::new(self.store())
    }

    fn beside(&self) -> BoxFuture<'_, Arc<dyn Log>> {
        Box::pin(async { Arc::new(open(&self.names.url(RELAY), &self.schema).await) as Arc<dyn Log> })
    }

    fn begin(&self) -> BoxFuture<'_, Box<dyn OpenTransaction>> {
        let (store, url) = (self.store(), self.names.url(APP));
        Box::pin(async move { Box::new(Application::begin_at(&url, &store).await) as Box<dyn OpenTransaction> })
    }

    fn now(&self) -> BoxFuture<'_, Timestamp> {
        Box::pin(async {
            let row = connect().await.query_one("SELECT clock_timestamp()", &[]).await.unwrap();
            Timestamp::from(row.get::<_, std::time::SystemTime>(0))
        })
    }

    fn pass(&self, span: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(span))
    }

    fn reopen(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let again = open(&self.names.url(RELAY), &self.schema).await;
            *self.store.lock().unwrap() = again;
        })
    }
}

mod as_relay_and_app {
    use super::Governed;

    postrider_testkit::store_conformance!(Governed::fresh);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_app_enqueues_and_does_nothing_else() {
    let place = Governed::new().await;
    let enqueue = "SELECT S.enqueue(topic => 'orders', name => 'order.placed', payload => '{}')";
    let insert = "INSERT INTO S.log (id, topic, name, payload) VALUES (gen_random_uuid(), 'orders', 'n', '{}')";
    for sql in [enqueue, insert] {
        assert_eq!(place.refused(APP, sql).await, None, "{sql}");
    }
    assert_eq!(place.store().overview().await.unwrap().records, 2);
    for sql in [
        "SELECT id FROM S.log",
        "SELECT id FROM S.log_0",
        "INSERT INTO S.log (tx, id, topic, name, payload) VALUES ('1', gen_random_uuid(), 'o', 'n', '')",
        "INSERT INTO S.log (seq, id, topic, name, payload) VALUES (1, gen_random_uuid(), 'o', 'n', '')",
        "INSERT INTO S.log (leaf, id, topic, name, payload) VALUES (1, gen_random_uuid(), 'o', 'n', '')",
        "INSERT INTO S.log (enqueued_at, id, topic, name, payload) VALUES (now(), gen_random_uuid(), 'o', 'n', '')",
        "INSERT INTO S.log_0 (id, topic, name, payload) VALUES (gen_random_uuid(), 'o', 'n', '')",
        "UPDATE S.log SET topic = 'x'",
        "DELETE FROM S.log",
        "TRUNCATE S.log",
        "SELECT setval('S.seq', 1)",
        "SELECT * FROM S.parked",
        "SELECT * FROM S.checkpoint",
        "INSERT INTO S.audit (at, actor, action, subject) VALUES (now(), 'a', 'b', 'c')",
        "CREATE TABLE S.mine ()",
    ] {
        assert_eq!(place.refused(APP, sql).await, Some(SqlState::INSUFFICIENT_PRIVILEGE), "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_relay_changes_neither_the_schema_nor_what_was_written() {
    let place = Governed::new().await;
    for sql in [
        "CREATE TABLE S.mine ()",
        "ALTER TABLE S.lane ADD COLUMN x int",
        "DROP TABLE S.parked",
        "ALTER SEQUENCE S.seq CACHE 10",
        "SELECT setval('S.seq', 1)",
        "INSERT INTO S.log (id, topic, name, payload, seq) VALUES (gen_random_uuid(), 'o', 'n', '', 1)",
        "UPDATE S.log_0 SET topic = 'x'",
        "DELETE FROM S.log_0",
        "UPDATE S.checkpoint SET epoch = 1",
        "DELETE FROM S.audit",
        "UPDATE S.audit SET actor = 'nobody'",
        "UPDATE S.setting SET value = 1",
        "DELETE FROM S.migration",
    ] {
        assert_eq!(place.refused(RELAY, sql).await, Some(SqlState::INSUFFICIENT_PRIVILEGE), "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_viewer_looks_and_sees_no_payload() {
    let place = Governed::new().await;
    let relay = place.store();
    let lease_life = Duration::from_secs(3600);
    let node = Node {
        id: NodeId::generate(),
        name: "n".into(),
        routes: vec!["r".into()],
        lease_life,
        standstills: Vec::new(),
    };
    let (topics, order, start) = (TopicFilter::all(), Order::Key, Start::Oldest);
    relay.register(&node, &[RouteSpec { name: "r".into(), topics, order, lanes: 1, start }]).await.unwrap();
    let sent = Envelope::new("orders", "order.placed", "secret");
    place.commit(vec![sent.clone()]).await;

    let viewer = open(&place.names.url(VIEWER), &place.schema).await;
    let overview = viewer.overview().await.unwrap();
    assert_eq!((overview.records, overview.routes[0].pending), (1, 1));
    assert!(viewer.dead_groups().await.unwrap().is_empty());
    assert!(viewer.audit(10).await.unwrap().is_empty());
    assert!(relay.sees_contents().await.unwrap() && !viewer.sees_contents().await.unwrap());
    let seen = |trace: MessageTrace| trace.record.map(|(envelope, _)| envelope.payload).unwrap();
    assert_eq!(seen(relay.message(sent.id).await.unwrap()), "secret");
    assert_eq!(seen(viewer.message(sent.id).await.unwrap()), "", "where it is, and not what is in it");
    assert!(viewer.audit_of(sent.id, 10).await.unwrap().is_empty());
    assert!(viewer.parked(&ParkedFilter::default(), None, 10).await.unwrap().is_empty());
    for sql in ["SELECT payload FROM S.log_0", "SELECT headers FROM S.log_0", "SELECT payload FROM S.parked"] {
        assert_eq!(place.refused(VIEWER, sql).await, Some(SqlState::INSUFFICIENT_PRIVILEGE), "{sql}");
    }

    let actor = Actor::new("viewer");
    let denied = [
        viewer.pause("r", &actor).await.unwrap_err(),
        viewer.drop_route("r", &actor).await.unwrap_err(),
        viewer.acquire(&LaneId { route: "r".into(), number: 0 }, &node).await.map(drop).unwrap_err(),
        viewer.heartbeat(&node).await.map(drop).unwrap_err(),
    ];
    for error in denied {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    }
    for sql in ["DELETE FROM S.parked", "TRUNCATE S.log_0", "INSERT INTO S.node VALUES (gen_random_uuid())"] {
        assert_eq!(place.refused(VIEWER, sql).await, Some(SqlState::INSUFFICIENT_PRIVILEGE), "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_migrates_and_gives_rights_again() {
    let place = Governed::new().await;
    let dialect = Postgres::new(place.schema.name(), "").unwrap();
    let owner = connect_to(&place.names.url(MIGRATE)).await;
    owner.batch_execute(&migrations::roles(&dialect, &place.names.roles()).unwrap()).await.unwrap();
    let altered = format!("ALTER TABLE \"{}\".lane ADD COLUMN x int", place.schema.name());
    owner.batch_execute(&altered).await.unwrap();

    // Everything that the migrations make has the owner, so that none is forgotten in the script.
    let others: Vec<String> = connect()
        .await
        .query(
            "SELECT relname::text FROM pg_class WHERE relnamespace = $1::text::regnamespace AND relkind IN ('r', 'p', 'S')
                AND relowner <> (SELECT oid FROM pg_roles WHERE rolname = $2)
              UNION ALL
             SELECT proname::text FROM pg_proc WHERE pronamespace = $1::text::regnamespace
                AND proowner <> (SELECT oid FROM pg_roles WHERE rolname = $2)",
            &[&format!("\"{}\"", place.schema.name()), &place.names.0[MIGRATE]],
        )
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(others, [""; 0], "these belong to somebody else still");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_can_begin_with_nothing_but_a_schema() {
    let schema = Schema::fresh();
    let names = Names::fresh(&schema).await;
    let sql = format!("CREATE SCHEMA \"{}\" AUTHORIZATION \"{}\"", schema.name(), names.0[MIGRATE]);
    connect().await.batch_execute(&sql).await.unwrap();
    let dialect = Postgres::new(schema.name(), "").unwrap();
    migrations::up(&names.url(MIGRATE), &dialect, &Actor::new("tests")).await.unwrap();
    let owner = connect_to(&names.url(MIGRATE)).await;
    owner.batch_execute(&migrations::roles(&dialect, &names.roles()).unwrap()).await.unwrap();
    let store = open(&names.url(RELAY), &schema).await;
    let place = Governed { store: Mutex::new(store.clone()), names, schema };
    let mut client = connect_to(&place.names.url(APP)).await;
    let mut transaction = client.transaction().await.unwrap();
    transaction.append(&dialect, batch(vec![Envelope::new("orders", "order.placed", "{}")])).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(store.overview().await.unwrap().records, 1);
    assert_eq!(store.purge(Retention::by_age(Duration::ZERO)).await.unwrap(), 0);
}
