//! Writers and relays on a server of a test's own, to which something is done meanwhile. A checker compares the producers' own
//! log with what arrived.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use mysql_async::{Conn, TxOpts, prelude::Queryable};
use postrider_core::{
    enlist::Enlist,
    envelope::{Envelope, MessageId},
    lease::{LaneId, RouteSpec},
    log::{Log, PageLimit, Settlement},
};
use postrider_store_mysql::{Mysql, MysqlStore};
use postrider_testkit::checker::{Enqueued, check};

use super::{batch, node, spec};

const WRITERS: u64 = 6;
const KEYS: u64 = 4;

/// Each relay is alone with its connections, as a process is, so that each reads what others have given places to.
const ROUTES: [&str; 2] = ["r", "s"];
const LANES: u32 = 2;

/// Commits between two faults, at least.
const COMMITS: u64 = 150;

/// Longer than anything takes on a slow machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

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

/// Does something to the server so many times while everybody works, lets them come to an end, and judges.
pub(crate) async fn torture(url: String, faults: u64, mut fault: impl FnMut(u64)) {
    let mut first = Conn::from_url(&url).await.unwrap();
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
    for number in 1..=faults {
        let enough = async {
            while world.commits.load(Ordering::SeqCst) < number * COMMITS {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(DEADLINE, enough).await.is_err() {
            panic!("writers do not come on: {}", stuck(&world).await);
        }
        fault(number);
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
        assert!(verdict.committed >= faults * COMMITS && verdict.rolled_back > 0, "{verdict:?}");
    }
}
