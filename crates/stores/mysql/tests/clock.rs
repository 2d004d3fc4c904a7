//! A server whose clock is set while everybody works, back and ahead, by hours: nothing is lost or turned around, whoever's
//! heartbeats arrive keeps its lanes, and nobody waits for the clock to come back to where it was.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::{Duration, Instant};

use mysql_async::{Conn, TxOpts};
use postrider_core::{
    enlist::Enlist,
    envelope::Envelope,
    lease::{LaneId, Lease, Node},
    log::{Cursor, Log, PageLimit, RecordRef, Settlement},
    parked::{Cause, DueLimit, Parked},
};
use postrider_store_mysql::{Mysql, MysqlStore};
use support::{
    batch, node,
    servers::{database, start_with_clock},
    spec,
    workload::{DEADLINE, torture},
};

/// In seconds.
const HOUR: i64 = 3_600;

/// How the clock is set, one after the other: also to before the server was started, and by less than a lease.
const JUMPS: [i64; 6] = [3 * HOUR, -5 * HOUR, 1, 48 * HOUR, 0, -2];

const LIMIT: PageLimit = PageLimit { records: 100, bytes: 1 << 20 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_loses_nothing_and_turns_nothing_around() {
    let dir = tempfile::tempdir().unwrap();
    let (server, clock) = start_with_clock(dir.path());
    let jump = |number: u64| clock.set(JUMPS[usize::try_from(number).unwrap() - 1]);
    torture(database(&server).await, JUMPS.len() as u64, jump).await;
}

/// Two nodes that want one lane.
struct Two {
    store: MysqlStore,
    url: String,
    lane: LaneId,
}

impl Two {
    async fn new(url: String, nodes: [&Node; 2]) -> Self {
        let store = MysqlStore::open(&url).await.unwrap();
        for node in nodes {
            store.register(node, &[spec("r")]).await.unwrap();
        }
        Self { store, url, lane: LaneId { route: "r".into(), number: 0 } }
    }

    async fn acquire(&self, node: &Node) -> Option<(Lease, Cursor)> {
        let lease = self.store.acquire(&self.lane, node).await.unwrap()?;
        let cursor = self.store.resume(&lease).await.unwrap().cursor;
        Some((lease, cursor))
    }

    /// One that beats until the lane is its own, as a relay does.
    async fn wait(&self, node: &Node) -> (Lease, Cursor) {
        let began = Instant::now();
        loop {
            self.store.heartbeat(node).await.unwrap();
            match self.acquire(node).await {
                Some(taken) => return taken,
                None => assert!(began.elapsed() < DEADLINE, "a lease that nobody extends does not run out"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn enqueue(&self, name: &str, count: usize) {
        let mut connection = Conn::from_url(&self.url).await.unwrap();
        let mut transaction = connection.start_transaction(TxOpts::default()).await.unwrap();
        let envelopes = (0..count).map(|_| Envelope::new("t", name, "").with_key("k")).collect();
        transaction.append(&Mysql::default(), batch(envelopes)).await.unwrap();
        transaction.commit().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_goes_back_takes_no_lane_from_who_is_alive_and_keeps_none_for_who_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (server, clock) = start_with_clock(dir.path());
    let (mut owner, other) = (node("r", Duration::from_secs(60)), node("r", Duration::from_secs(60)));
    let two = Two::new(database(&server).await, [&owner, &other]).await;
    let (lease, cursor) = two.acquire(&owner).await.expect("the lane is free");
    two.enqueue("retried", 2).await;
    let page = two.store.read(&lease, &cursor, LIMIT).await.unwrap();
    let record = |index| RecordRef::new(&page.records, index);
    let retrying = Parked::Retrying { after: Duration::from_secs(1), attempts: 1, cause: Cause::new("c", "d") };
    let park = vec![(record(0), retrying), (record(1), Parked::Held)];
    let settlement = Settlement { number: 1, advance: Some(page.end.clone()), park, ..Settlement::default() };
    two.store.settle(&lease, &settlement).await.unwrap();

    clock.set(-3 * HOUR);
    // Whichever of them comes first.
    two.store.heartbeat(&other).await.unwrap();
    assert!(two.acquire(&other).await.is_none(), "the owner is alive");
    two.store.heartbeat(&owner).await.unwrap();
    assert!(two.acquire(&other).await.is_none(), "and stays the owner");
    let settlement = Settlement { number: 2, advance: Some(page.end.clone()), ..Settlement::default() };
    two.store.settle(&lease, &settlement).await.unwrap();
    let (began, limit) = (Instant::now(), DueLimit { lines: 10, per_line: 10, bytes: 1 << 20 });
    loop {
        let due = two.store.due(&lease, limit).await.unwrap();
        if due.lines.first().is_some_and(|line| line.rows.len() == 2) {
            break;
        }
        assert!(began.elapsed() < DEADLINE, "a retry waits for the clock: {due:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // It says that it can be expected to live for a second, and dies; and the clock goes back once more.
    owner.lease_life = Duration::from_secs(1);
    two.store.heartbeat(&owner).await.unwrap();
    clock.set(-9 * HOUR);
    let (lease, _) = two.wait(&other).await;
    assert_eq!(two.store.resume(&lease).await.unwrap().blocked.len(), 1, "what was parked is still there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_goes_ahead_leaves_the_lane_to_whoever_beats_first_and_fences_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let (server, clock) = start_with_clock(dir.path());
    let (first, second) = (node("r", Duration::from_secs(60)), node("r", Duration::from_secs(60)));
    let two = Two::new(database(&server).await, [&first, &second]).await;
    let (lease, cursor) = two.acquire(&first).await.expect("the lane is free");
    two.enqueue("before", 3).await;

    clock.set(3 * HOUR);
    two.store.heartbeat(&first).await.unwrap();
    two.store.heartbeat(&second).await.unwrap();
    assert!(two.acquire(&second).await.is_none(), "its heartbeat has arrived");
    let before = two.store.read(&lease, &cursor, LIMIT).await.unwrap();
    let settlement = Settlement { number: 1, advance: Some(before.end.clone()), ..Settlement::default() };
    two.store.settle(&lease, &settlement).await.unwrap();
    two.enqueue("unsettled", 3).await;
    let unsettled = two.store.read(&lease, &before.end, LIMIT).await.unwrap();
    assert_eq!(unsettled.records.len(), 3);

    clock.set(6 * HOUR);
    two.store.heartbeat(&second).await.unwrap();
    let (_, taken) = two.acquire(&second).await.expect("for the server, the first has been silent for hours");
    assert_eq!(taken, before.end, "what was not settled comes again");
    let settlement = Settlement { number: 2, advance: Some(unsettled.end.clone()), ..Settlement::default() };
    assert!(two.store.settle(&lease, &settlement).await.unwrap_err().is_fenced(), "and the first writes nothing more");
    two.store.heartbeat(&first).await.unwrap();
    assert!(two.acquire(&first).await.is_none(), "nor takes it back");
}
