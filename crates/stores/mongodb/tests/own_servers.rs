//! What needs a server of its own: a standalone one that is refused, and one whose history is tiny.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use mongodb::{Client, bson::doc};
use postrider_core::{
    ErrorKind,
    admin::StoreAdmin,
    doctor::Thresholds,
    envelope::Envelope,
    lease::LaneId,
    log::{Log, PageLimit, Settlement},
};
use postrider_store_mongodb::MongoStore;
use postrider_testkit::store::{Fixture, OpenTransaction};
use support::{Place, node, program, spec};

const HOUR: Duration = Duration::from_hours(1);
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that ends with the test.
struct Server {
    child: Child,
    dir: PathBuf,
    port: u16,
}

impl Server {
    async fn start(options: &[&str]) -> Self {
        let dir = std::env::temp_dir().join(format!("postrider-mongod-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(dir.join("data")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(program())
            .args(["--dbpath", "data", "--bind_ip", "127.0.0.1", "--port", &port.to_string(), "--nounixsocket"])
            .args(["--wiredTigerCacheSizeGB", "0.25", "--setParameter", "diagnosticDataCollectionEnabled=false"])
            .args(options)
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(dir.join("log")).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { child, dir, port };
        server.until(|hello| hello.contains_key("maxWireVersion")).await;
        server
    }

    /// One that is a replica set of itself.
    async fn replica_set(options: &[&str]) -> Self {
        let server = Self::start(&[&["--replSet", "rs0"], options].concat()).await;
        let host = format!("127.0.0.1:{}", server.port);
        let config = doc! { "_id": "rs0", "members": [{ "_id": 0, "host": host }] };
        let direct = server.direct().await;
        direct.database("admin").run_command(doc! { "replSetInitiate": config }).await.unwrap();
        server.until(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false)).await;
        server
    }

    async fn direct(&self) -> Client {
        Client::with_uri_str(format!("mongodb://127.0.0.1:{}/?directConnection=true", self.port)).await.unwrap()
    }

    async fn until(&self, is_so: impl Fn(&mongodb::bson::Document) -> bool) {
        let client = self.direct().await;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let hello = client.database("admin").run_command(doc! { "hello": 1 }).await;
            if hello.is_ok_and(|hello| is_so(&hello)) {
                return;
            }
            assert!(Instant::now() < deadline, "the server has not begun; its log is in {}", self.dir.display());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn url(&self) -> String {
        format!("mongodb://127.0.0.1:{}/shop", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

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
}
