//! The server is killed in the middle of everything, again and again: what was committed is delivered, in order, and nothing
//! else is. It is a server of this test's own, which writes every commit through and gives numbers as MariaDB does; the
//! server of the other tests gives them as MySQL 8 does.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    collections::HashSet,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use mysql_async::{Conn, TxOpts, prelude::Queryable};
use postrider_core::{
    admin::StoreAdmin,
    enlist::Enlist,
    envelope::{Envelope, MessageId},
    lease::{LaneId, RouteSpec},
    log::{Cursor, Log, PageLimit, Settlement},
    parked::DueLimit,
};
use postrider_store_mysql::{Mysql, MysqlStore};
use postrider_testkit::{
    checker::{Enqueued, check},
    fault::Server,
};
use support::{batch, node, spec};

/// Where the package puts the server.
const PROGRAM: &str = "/usr/sbin/mariadbd";

const WRITERS: u64 = 6;
const KEYS: u64 = 4;
const KILLS: u64 = 6;

/// Each relay is alone with its connections, as a process is, so that each reads what others have given places to.
const ROUTES: [&str; 2] = ["r", "s"];
const LANES: u32 = 2;

/// Commits between two kills, at least.
const COMMITS: u64 = 150;

/// Longer than anything takes on a slow machine.
const DEADLINE: Duration = Duration::from_secs(120);

fn start(dir: &Path) -> Server {
    let data = format!("--datadir={}", dir.join("data").display());
    // A server that starts throws away what looks like a temporary table there, whoever's it is.
    let own = dir.join("temporary");
    std::fs::create_dir(&own).unwrap();
    let temporary = format!("--tmpdir={}", own.display());
    let as_root = is_root().then_some("--user=root");
    let installed = Command::new("mariadb-install-db")
        .args(["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal", &data, &temporary])
        .args(as_root)
        .stdout(Stdio::null())
        .status();
    assert!(installed.is_ok_and(|status| status.success()), "mariadb-install-db runs");
    let socket = dir.join("socket").display().to_string();
    Server::start(Path::new(PROGRAM), |port| {
        let settings = ["--no-defaults", "--bind-address=127.0.0.1", "--skip-log-bin", "--innodb-buffer-pool-size=64M"];
        // What is killed must be still at once: writes that the kernel does for a process can outlive it, and were seen to land
        // in the files of the server that had taken its place.
        let chosen =
            ["--innodb-flush-log-at-trx-commit=1", "--innodb-autoinc-lock-mode=1", "--innodb-use-native-aio=OFF"];
        let places = [data.clone(), temporary.clone(), format!("--socket={socket}"), format!("--port={port}")];
        let fixed = settings.into_iter().chain(chosen).chain(as_root).map(str::to_owned);
        fixed.chain(places).collect()
    })
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n")
}

/// What everybody knows.
struct World {
    url: String,
    commits: AtomicU64,
    over: AtomicBool,
    /// Messages of transactions that ended, or may have.
    written: Mutex<Vec<Enqueued>>,
    /// By route, as [`ROUTES`] has them.
    arrived: [Mutex<Vec<MessageId>>; ROUTES.len()],
    /// Messages that arrived and were not settled by whoever had read them: so many may arrive again.
    unsettled: [AtomicU64; ROUTES.len()],
    /// The last fault that each relay met, for whoever asks why one does not end.
    faults: Mutex<Vec<String>>,
}

impl World {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Until the server is back.
    async fn connect(&self) -> Conn {
        loop {
            match Conn::from_url(&self.url).await {
                Ok(connection) => return connection,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

/// Locks a key, enqueues, commits. A transaction whose end is not known counts as the database says later.
async fn write(world: Arc<World>, number: u64) {
    let mut connection = world.connect().await;
    let mut turn = number;
    while !world.is_over() {
        turn += 1;
        let mut messages = Vec::new();
        let done = transaction(&mut connection, turn % KEYS, turn.is_multiple_of(9), &mut messages).await;
        world.written.lock().unwrap().extend(messages);
        match done {
            Ok(()) => drop(world.commits.fetch_add(1, Ordering::SeqCst)),
            Err(_) => connection = world.connect().await,
        }
    }
}

async fn transaction(
    connection: &mut Conn,
    key: u64,
    rolls_back: bool,
    messages: &mut Vec<Enqueued>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    transaction.exec_drop("UPDATE `keys` SET version = version + 1 WHERE k = ?", (key,)).await?;
    let sequence: Option<u64> = transaction.exec_first("SELECT version FROM `keys` WHERE k = ?", (key,)).await?;
    let envelopes: Vec<Envelope> = (0..3).map(|_| Envelope::new("t", "n", "{}").with_key(key.to_string())).collect();
    let noted = |envelope: &Envelope| Enqueued {
        id: envelope.id,
        key: Some(key.to_string()),
        sequence: sequence.unwrap_or_default(),
        committed: false,
    };
    messages.extend(envelopes.iter().map(noted));
    transaction.append(&Mysql::default(), batch(envelopes)).await?;
    if rolls_back {
        transaction.rollback().await?;
    } else {
        transaction.commit().await?;
    }
    Ok(())
}

/// Takes the lane, reads and settles; from the beginning whenever something fails. Ends when all is written and read.
async fn relay(world: Arc<World>, route: usize, lane: u32) {
    let store = loop {
        match MysqlStore::builder(&world.url).migrate(false).connections_max(3).open().await {
            Ok(store) => break store,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    loop {
        match own(&world, &store, route, lane).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(fault) => world.faults.lock().unwrap().push(fault),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What the server and the relays say when somebody does not come on.
async fn stuck(world: &World) -> String {
    let faults = world.faults.lock().unwrap().clone();
    let last: Vec<&String> = faults.iter().rev().take(6).collect();
    let asked = async {
        let mut connection = world.connect().await;
        let mut said: Vec<String> = Vec::new();
        for sql in [
            "SELECT CONCAT_WS(' | ', ID, COMMAND, TIME, STATE, INFO) FROM information_schema.PROCESSLIST",
            "SELECT CONCAT_WS(' | ', trx_mysql_thread_id, trx_state, trx_started, trx_rows_modified, trx_query)
               FROM information_schema.INNODB_TRX",
        ] {
            said.extend(connection.query::<String, _>(sql).await.unwrap_or_default());
        }
        said
    };
    let said = tokio::time::timeout(Duration::from_secs(10), asked).await;
    let said = said.unwrap_or_else(|_| vec!["is not there".to_owned()]);
    format!("{} faults, the last of them {last:#?}; the server: {said:#?}", faults.len())
}

/// Whether everything is read.
async fn own(world: &World, store: &MysqlStore, route: usize, number: u32) -> Result<bool, String> {
    let told = |error: postrider_core::Error| error.to_string();
    let node = node(ROUTES[route], Duration::from_millis(700));
    let spec = RouteSpec { lanes: LANES, ..spec(ROUTES[route]) };
    store.register(&node, &[spec]).await.map_err(told)?;
    let lane = LaneId { route: ROUTES[route].into(), number };
    let Some(lease) = store.acquire(&lane, &node).await.map_err(told)? else { return Ok(false) };
    let mut cursor = store.resume(&lease).await.map_err(told)?.cursor;
    for number in 1.. {
        let all_written = world.is_over();
        store.heartbeat(&node).await.map_err(told)?;
        let page = store.read(&lease, &cursor, PageLimit { records: 1_000, bytes: 1 << 20 }).await.map_err(told)?;
        let count = page.records.len() as u64;
        world.unsettled[route].fetch_add(count, Ordering::SeqCst);
        world.arrived[route].lock().unwrap().extend(page.records.iter().map(|record| record.envelope.id));
        if page.records.is_empty() && !page.more && all_written {
            return Ok(true);
        }
        let settlement = Settlement { number, advance: Some(page.end.clone()), ..Settlement::default() };
        store.settle(&lease, &settlement).await.map_err(told)?;
        world.unsettled[route].fetch_sub(count, Ordering::SeqCst);
        cursor = page.end;
    }
    Ok(false)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_loses_nothing_and_turns_nothing_around() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = start(dir.path());
    let url = format!("mysql://root@127.0.0.1:{}/shop", server.address().port());
    let mut first = Conn::from_url(url.replace("/shop", "/")).await.unwrap();
    first.query_drop("CREATE DATABASE shop CHARACTER SET utf8mb4; USE shop").await.unwrap();
    first.query_drop("CREATE TABLE `keys` (k BIGINT PRIMARY KEY, version BIGINT NOT NULL)").await.unwrap();
    for key in 0..KEYS {
        first.exec_drop("INSERT INTO `keys` VALUES (?, 0)", (key,)).await.unwrap();
    }
    drop(MysqlStore::open(&url).await.unwrap());
    let world = Arc::new(World {
        url,
        commits: AtomicU64::new(0),
        over: AtomicBool::new(false),
        written: Mutex::default(),
        arrived: Default::default(),
        unsettled: Default::default(),
        faults: Mutex::default(),
    });
    let writers: Vec<_> = (0..WRITERS).map(|number| tokio::spawn(write(Arc::clone(&world), number))).collect();
    // One lane has two that take it from each other.
    let lanes = [(0, 0), (0, 0), (0, 1), (1, 0), (1, 1)];
    let relays = lanes.map(|(route, lane)| tokio::spawn(relay(Arc::clone(&world), route, lane)));
    for kill in 1..=KILLS {
        let enough = async {
            while world.commits.load(Ordering::SeqCst) < kill * COMMITS {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(DEADLINE, enough).await.is_err() {
            panic!("writers do not come on: {}", stuck(&world).await);
        }
        server.kill();
        server.restart();
    }
    world.over.store(true, Ordering::SeqCst);
    for task in writers.into_iter().chain(relays) {
        match tokio::time::timeout(DEADLINE, task).await {
            Ok(ended) => ended.unwrap(),
            Err(_) => panic!("somebody does not end: {}", stuck(&world).await),
        }
    }
    let stored: Vec<Vec<u8>> = world.connect().await.query("SELECT id FROM postrider_log").await.unwrap();
    let stored: HashSet<Vec<u8>> = stored.into_iter().collect();
    let mut written = world.written.lock().unwrap().clone();
    written.iter_mut().for_each(|message| message.committed = stored.contains(message.id.0.as_bytes().as_slice()));
    for (arrived, unsettled) in world.arrived.iter().zip(&world.unsettled) {
        let (verdict, unsettled) = (check(&written, &arrived.lock().unwrap()), unsettled.load(Ordering::SeqCst));
        assert!(verdict.is_good(), "{verdict:?}");
        assert!(verdict.duplicates <= unsettled, "{unsettled} at most, {verdict:?}");
        assert!(verdict.committed >= KILLS * COMMITS && verdict.rolled_back > 0, "{verdict:?}");
    }
}

/// A server tells when it started to the second.
const TOLD_APART: Duration = Duration::from_millis(1_100);

/// The machine goes down and comes back as it was a while ago, as a replica that lags comes up, or a disk that was told to keep
/// commits for later. The places that were taken back are given to other messages before the owner asks again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_from_before_a_loss_is_fenced_and_passes_over_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = start(dir.path());
    let url = format!("mysql://root@127.0.0.1:{}/shop", server.address().port());
    let mut first = Conn::from_url(url.replace("/shop", "/")).await.unwrap();
    first.query_drop("CREATE DATABASE shop CHARACTER SET utf8mb4").await.unwrap();
    let (store, node) = (MysqlStore::open(&url).await.unwrap(), node("r", Duration::from_secs(3600)));
    store.register(&node, &[spec("r")]).await.unwrap();
    let limit = PageLimit { records: 100, bytes: 1 << 20 };
    let lane = LaneId { route: "r".into(), number: 0 };
    let take = async || {
        let lease = store.acquire(&lane, &node).await.unwrap().unwrap();
        let cursor = store.resume(&lease).await.unwrap().cursor;
        (lease, cursor)
    };
    let settled =
        |number, cursor: &Cursor| Settlement { number, advance: Some(cursor.clone()), ..Settlement::default() };
    enqueue(&url, "kept", 5).await;
    let (lease, cursor) = take().await;
    let kept = store.read(&lease, &cursor, limit).await.unwrap().end;
    store.settle(&lease, &settled(1, &kept)).await.unwrap();
    server.stop();
    tokio::time::sleep(TOLD_APART).await;
    let (data, copy) = (dir.path().join("data"), dir.path().join("copy"));
    let copied = Command::new("cp").arg("-a").args([&data, &copy]).status();
    assert!(copied.is_ok_and(|status| status.success()), "copy the data");
    server.restart();
    // A restart alone costs taking the lane again.
    let told = again(async || store.read(&lease, &kept, limit).await).await.unwrap_err();
    assert!(told.is_fenced(), "{told}");
    let (lease, cursor) = take().await;
    assert_eq!(cursor, kept);
    enqueue(&url, "lost", 5).await;
    let lost = store.read(&lease, &cursor, limit).await.unwrap();
    assert_eq!(lost.records.len(), 5);
    server.kill();
    tokio::time::sleep(TOLD_APART).await;
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&copy, &data).unwrap();
    server.restart();
    enqueue(&url, "new", 10).await;
    // Somebody else gives places to all of them: none is beyond what was given.
    MysqlStore::open(&url).await.unwrap().overview().await.unwrap();
    let given: Option<i64> = Conn::from_url(&url)
        .await
        .unwrap()
        .query_first("SELECT value FROM postrider_counter WHERE name = 'place'")
        .await
        .unwrap();
    assert_eq!(given, Some(15));
    let told = again(async || store.settle(&lease, &settled(2, &lost.end)).await).await.unwrap_err();
    assert!(told.is_fenced(), "{told}");
    let due = DueLimit { lines: 1, per_line: 1, bytes: 1 };
    assert!(again(async || store.due(&lease, due).await).await.unwrap_err().is_fenced());
    assert!(again(async || store.read(&lease, &lost.end, limit).await).await.unwrap_err().is_fenced());
    let (lease, cursor) = take().await;
    let new = store.read(&lease, &cursor, limit).await.unwrap();
    let names: Vec<&str> = new.records.iter().map(|record| &*record.envelope.name).collect();
    assert_eq!(names, ["new"; 10]);
    store.settle(&lease, &settled(1, &new.end)).await.unwrap();
}

/// In one transaction.
async fn enqueue(url: &str, name: &str, count: usize) {
    let mut connection = Conn::from_url(url).await.unwrap();
    let mut transaction = connection.start_transaction(TxOpts::default()).await.unwrap();
    let envelopes: Vec<Envelope> = (0..count).map(|_| Envelope::new("t", name, "")).collect();
    transaction.append(&Mysql::default(), batch(envelopes)).await.unwrap();
    transaction.commit().await.unwrap();
}

/// As the engine does it: what fails in passing, such as a connection that ended with its server, is done again as it was.
async fn again<T>(call: impl AsyncFn() -> postrider_core::Result<T>) -> postrider_core::Result<T> {
    let began = std::time::Instant::now();
    loop {
        match call().await {
            Err(error) if error.is_transient() && !error.is_fenced() && began.elapsed() < DEADLINE => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            told => return told,
        }
    }
}
