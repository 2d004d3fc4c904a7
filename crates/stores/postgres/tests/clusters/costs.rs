//! What reading and settling cost, in buffers and rows as the server itself counts them: never by time.
//!
//! The server explains every statement that it runs into its log, so what is measured is what the store really does.

use std::{fs, time::Duration};

use futures_util::future::join_all;
use postrider_core::{
    admin::StoreAdmin,
    log::{Log, RecordRef, Retention, Settlement},
    parked::{Cause, DueLimit, DuePage, Parked},
};
use postrider_store_postgres::PostgresStore;
use tokio_postgres::{Client, IsolationLevel, Transaction};

use crate::{
    cluster::Cluster,
    reader::{Reader, WHOLE, commit, commit_keyed, number},
};

/// The server's log holds the plan of every statement, with what it touched.
const EXPLAIN: &str = "session_preload_libraries=auto_explain auto_explain.log_min_duration=0 \
                       auto_explain.log_analyze=on auto_explain.log_buffers=on auto_explain.log_timing=off \
                       log_min_messages=log";

/// What the server did since some moment.
struct Meter {
    log: String,
    from: usize,
}

impl Meter {
    fn start(cluster: &Cluster) -> Self {
        let log = cluster.file("log");
        let from = fs::read(&log).unwrap().len();
        Self { log, from }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap()[self.from..]).into_owned()
    }

    /// Buffers of all statements. Of each plan the first line counts, for it holds what lies below.
    fn buffers(&self) -> u64 {
        self.text().split("Query Text:").skip(1).map(|plan| plan.lines().find_map(buffers).unwrap_or(0)).sum()
    }

    /// Rows that were looked at and passed over.
    fn rows_removed(&self) -> u64 {
        let counts = self.text();
        let removed = counts.lines().filter_map(|line| line.trim().strip_prefix("Rows Removed by Filter:"));
        removed.map(|count| count.trim().parse::<u64>().unwrap()).sum()
    }
}

/// `Buffers: shared hit=5 read=1 dirtied=1`: hits and reads together.
fn buffers(line: &str) -> Option<u64> {
    let counts = line.trim().strip_prefix("Buffers:")?.split_whitespace();
    let touched = counts.filter_map(|count| count.strip_prefix("hit=").or_else(|| count.strip_prefix("read=")));
    Some(touched.map(|count| count.trim_end_matches(',').parse::<u64>().unwrap()).sum())
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn under_a_held_snapshot_reads_and_settlements_cost_the_same_all_the_time() {
    const ROUNDS: usize = 240;
    let cluster = Cluster::start(EXPLAIN);
    let mut reader = Reader::open(&cluster.url()).await;
    let mut holder = cluster.connect().await;
    let held = hold_snapshot(&mut holder).await;
    let (mut reads, mut settlements, mut beats) = (Vec::new(), Vec::new(), Vec::new());
    let (mut takes, mut purges) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let sent = commit(&cluster.url(), 5).await;
        let meter = Meter::start(&cluster);
        assert_eq!(reader.page(WHOLE).await.unwrap().0, sent);
        reads.push(meter.buffers());
        let meter = Meter::start(&cluster);
        reader.settle().await.unwrap();
        settlements.push(meter.buffers());
        let meter = Meter::start(&cluster);
        reader.heartbeat().await.unwrap();
        beats.push(meter.buffers());
        // Checkpoints, of which all but the newest are deleted, and stay in the index.
        for _ in 0..10 {
            reader.settle().await.unwrap();
        }
        let meter = Meter::start(&cluster);
        reader.try_again().await.unwrap();
        takes.push(meter.buffers());
        let meter = Meter::start(&cluster);
        reader.store.purge(Retention::default()).await.unwrap();
        purges.push(meter.buffers());
        if round % 20 == 0 {
            reader.store.purge(Retention::by_age(Duration::ZERO)).await.unwrap();
        }
    }
    held.commit().await.unwrap();
    // An index may have become one page higher meanwhile. A heartbeat leaves a version of its node's row and of each lane's: some
    // pages an hour.
    let beaten = ROUNDS as u64 / 8;
    for (what, costs, more) in [
        ("read", reads, 4),
        ("settlement", settlements, 4),
        ("heartbeat", beats, beaten),
        // A lane that is taken is a version of its row as well.
        ("taking a lane", takes, beaten),
        // It looks at all lanes more than once. From the low end it would pass thousands of checkpoints by now.
        ("tidying up", purges, 3 * beaten),
    ] {
        let (early, late) = (median(costs[20..60].to_vec()), median(costs[ROUNDS - 40..].to_vec()));
        println!("{what}: {early} buffers at first, {late} at last");
        assert!(early > 0, "{what}: the server's log tells what it costs");
        assert!(late <= early + more, "{what}: {early} buffers at first, {late} at last");
    }
}

/// What everybody's cleaning has to spare until it ends.
async fn hold_snapshot(holder: &mut Client) -> Transaction<'_> {
    let held = holder.build_transaction().isolation_level(IsolationLevel::RepeatableRead).start().await.unwrap();
    held.execute("SELECT count(*) FROM pg_class", &[]).await.unwrap();
    held
}

const DUE: DueLimit = DueLimit { lines: 100, per_line: 10, bytes: 1 << 20 };

/// Messages that fail once and go through with the second attempt, in lines and in none.
async fn park_and_wake(reader: &mut Reader, url: &str) {
    commit_keyed(url).await;
    let page = reader.store.read(&reader.lease, &reader.cursor, WHOLE).await.unwrap();
    let retrying = || Parked::Retrying { after: Duration::ZERO, attempts: 1, cause: Cause::new("busy", "later") };
    let park = (0..page.records.len()).map(|i| (RecordRef::new(&page.records, u32::try_from(i).unwrap()), retrying()));
    let advance = Some(page.end.clone());
    reader.cursor = page.end.clone();
    reader.settle_all(Settlement { advance, park: park.collect(), ..Settlement::default() }).await;
    let due = reader.store.due(&reader.lease, DUE).await.unwrap();
    let remove = ordinals(&due);
    assert_eq!(remove.len(), page.records.len(), "{due:?}");
    reader.settle_all(Settlement { remove, ..Settlement::default() }).await;
}

fn ordinals(due: &DuePage) -> Vec<postrider_core::parked::Ordinal> {
    due.lines.iter().flat_map(|line| &line.rows).chain(&due.timed).map(|row| row.ordinal).collect()
}

/// Rows that have woken leave their entries in the index of wake times, and nobody may remove them while a snapshot is held.
#[tokio::test(flavor = "multi_thread")]
async fn under_a_held_snapshot_due_reads_cost_the_same_however_many_rows_have_woken() {
    let cluster = Cluster::start(EXPLAIN);
    let url = cluster.url();
    let mut reader = Reader::open(&url).await;
    let (mut holder, client) = (cluster.connect().await, cluster.connect().await);
    let held = hold_snapshot(&mut holder).await;
    let (mut idle, mut waking) = (Vec::new(), Vec::new());
    for rounds in [20, 40, 60] {
        for _ in 0..rounds {
            park_and_wake(&mut reader, &url).await;
        }
        client.batch_execute("VACUUM ANALYZE postrider.parked").await.unwrap();
        // A clock may be set back by a little, so what has woken in the last two seconds is passed once more.
        let millis = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
        let until = number(&client, millis).await + 2_100;
        while number(&client, millis).await < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // What a look has learnt is for the next one.
        for _ in 0..2 {
            assert!(ordinals(&reader.store.due(&reader.lease, DUE).await.unwrap()).is_empty());
        }
        let meter = Meter::start(&cluster);
        reader.store.due(&reader.lease, DUE).await.unwrap();
        idle.push(meter.buffers());
        let meter = Meter::start(&cluster);
        park_and_wake(&mut reader, &url).await;
        waking.push(meter.buffers());
    }
    held.commit().await.unwrap();
    println!("nothing due: {idle:?} buffers; parked and woken: {waking:?}");
    assert!(idle[0] > 0 && idle[2] <= idle[0] + 6, "nothing due: {idle:?} buffers");
    // Indexes grow higher at first.
    assert!(waking[2] <= waking[1] + waking[1] / 5, "parked and woken: {waking:?} buffers");
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_open_transactions_make_a_page_no_dearer() {
    const ROWS: usize = 2_000;
    let cluster = Cluster::start(&format!("{EXPLAIN} max_prepared_transactions=600"));
    let url = cluster.url();
    // All in one leaf, so that nothing but the number of open transactions differs.
    let store = PostgresStore::builder(&url).block_bits(20).open().await.unwrap();
    let mut reader = Reader::take(store, "r").await;
    let mut costs = Vec::new();
    for open in [0, 500] {
        let client = cluster.connect().await;
        for i in 0..open {
            let prepare = format!("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'open-{i}'");
            client.batch_execute(&prepare).await.unwrap();
        }
        let sent = commit(&url, ROWS).await;
        let meter = Meter::start(&cluster);
        assert_eq!(reader.page(WHOLE).await.unwrap().0, sent);
        let plans = meter.text();
        assert!(plans.contains("Index Scan") && !plans.contains("Seq Scan on log"), "a range of the leaf's index");
        assert!(plans.contains("pg_visible_in_snapshot(tx, $"), "snapshots are bound, and the plan is a general one");
        costs.push((meter.buffers(), meter.rows_removed()));
        reader.settle().await.unwrap();
    }
    println!("buffers, rows passed over: {costs:?}");
    let [(few, _), (many, removed)] = costs[..] else { panic!("two") };
    assert!(many <= few + few / 5 + 8, "{few} buffers with none open, {many} with 500");
    assert_eq!(removed, 0, "nothing is scanned twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_costs_one_scan_when_it_ends_and_nothing_before() {
    let cluster = Cluster::start(EXPLAIN);
    let url = cluster.url();
    let mut reader = Reader::open(&url).await;
    let mut client = cluster.connect().await;
    let mut early = client.transaction().await.unwrap();
    let held = crate::reader::append(&mut early, 1).await;
    let meter = Meter::start(&cluster);
    for _ in 0..20 {
        let sent = commit(&url, 50).await;
        assert_eq!(reader.page(WHOLE).await.unwrap().0, sent);
    }
    assert_eq!(meter.rows_removed(), 0, "what is still open has nobody look at anything twice");
    early.commit().await.unwrap();
    let meter = Meter::start(&cluster);
    assert_eq!(reader.read_on().await, held);
    assert_eq!(meter.rows_removed(), 1_000, "its end is one look at all that was written since");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_readers_write_nothing() {
    let cluster = Cluster::start("checkpoint_timeout=1h");
    let url = cluster.url();
    let one = Reader::open(&url).await;
    let mut readers = [Reader::take(one.store.clone(), "other").await, one];
    let client = cluster.connect().await;
    commit(&url, 3).await;
    // As the engine does it: a cursor is settled when it has moved.
    async fn poll(readers: &mut [Reader; 2]) {
        for reader in readers {
            let before = reader.cursor.clone();
            reader.read_on().await;
            if reader.cursor != before {
                reader.settle().await.unwrap();
            }
        }
    }
    poll(&mut readers).await;
    poll(&mut readers).await;
    let wal = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
    let before = number(&client, wal).await;
    for _ in 0..100 {
        poll(&mut readers).await;
    }
    // The server itself writes a few records now and then, about running transactions; a settlement alone is larger.
    let written = number(&client, wal).await - before;
    assert!(written < 200, "{written} bytes of WAL by two routes without traffic");
    // Others write, and not to the log: a new snapshot each time, and still nothing to settle.
    let checkpoints = "SELECT count(*) FROM postrider.checkpoint";
    let before = number(&client, checkpoints).await;
    client.batch_execute("CREATE TABLE theirs (x int)").await.unwrap();
    for _ in 0..50 {
        client.batch_execute("INSERT INTO theirs VALUES (1)").await.unwrap();
        poll(&mut readers).await;
    }
    assert_eq!(number(&client, checkpoints).await, before, "what others write is no reason to settle");
}

/// As lanes of a node that has nothing to do: they look for records and for due rows at the same moments.
#[tokio::test(flavor = "multi_thread")]
async fn idle_lanes_that_look_at_the_same_moment_send_one_statement_for_all() {
    let cluster = Cluster::start(EXPLAIN);
    let url = cluster.url();
    let mut readers = vec![Reader::open(&url).await];
    for number in 1..8 {
        let store = readers[0].store.clone();
        readers.push(Reader::take(store, &format!("r{number}")).await);
    }
    commit(&url, 3).await;
    for reader in &mut readers {
        assert_eq!(reader.read_on().await.len(), 3);
        reader.settle().await.unwrap();
    }
    // How close together they come is a matter of the machine, so they are given many moments.
    let mut statements = Vec::new();
    for _ in 0..60 {
        let meter = Meter::start(&cluster);
        let looking = readers.iter_mut().map(|reader| async {
            assert!(reader.read_on().await.is_empty());
            assert!(ordinals(&reader.store.due(&reader.lease, DUE).await.unwrap()).is_empty());
        });
        join_all(looking).await;
        statements.push(meter.text().matches("Query Text:").count());
    }
    let together = statements.iter().filter(|count| **count == 2).count();
    assert!(together >= 15, "one for records, and one for due rows: {statements:?}");
    // What is committed then is found by every one of them all the same.
    commit(&url, 2).await;
    for reader in &mut readers {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while reader.read_on().await.len() < 2 {
            assert!(
                std::time::Instant::now() < deadline,
                "a commit that nobody announced is found by one of the next looks"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_that_has_nothing_to_do_is_one_statement() {
    let cluster = Cluster::start(EXPLAIN);
    let url = cluster.url();
    let mut reader = Reader::open(&url).await;
    // Some blocks of 64, all read and settled.
    for _ in 0..4 {
        commit(&url, 100).await;
        reader.read_on().await;
        reader.settle().await.unwrap();
    }
    let at_once = Retention::by_age(Duration::ZERO);
    while reader.store.purge(at_once).await.unwrap() > 0 {}
    for retention in [at_once, Retention::by_count(0), Retention::default()] {
        let meter = Meter::start(&cluster);
        assert_eq!(reader.store.purge(retention).await.unwrap(), 0);
        let statements = meter.text().matches("Query Text:").count();
        assert_eq!(statements, 1, "{retention:?}: {}", meter.text());
    }
}

/// Its checkpoints, one for each settlement, go in bulk: an idle lane that settles now and then costs nothing.
#[tokio::test(flavor = "multi_thread")]
async fn retention_tidies_up_behind_a_lane_when_it_is_worth_it() {
    let cluster = Cluster::start(EXPLAIN);
    let (url, client) = (cluster.url(), cluster.connect().await);
    let mut reader = Reader::open(&url).await;
    let mut settle_and_purge = async |settlements: usize| {
        for _ in 0..settlements {
            reader.settle().await.unwrap();
        }
        let meter = Meter::start(&cluster);
        reader.store.purge(Retention::default()).await.unwrap();
        let statements = meter.text().matches("Query Text:").count();
        (statements, number(&client, "SELECT count(*) FROM postrider.checkpoint").await)
    };
    let (statements, left) = settle_and_purge(40).await;
    assert!(statements > 1 && left == 1, "{statements} statements, and {left} are left");
    assert_eq!(settle_and_purge(10).await, (1, 11));
    assert_eq!(settle_and_purge(10).await.1, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_one_statement_while_nothing_comes_and_what_commits_late_is_counted() {
    let cluster = Cluster::start(EXPLAIN);
    let url = cluster.url();
    let reader = Reader::open(&url).await;
    let records = async || -> u64 {
        let page = reader.store.topics(None, 20_000).await.unwrap();
        page.topics.iter().map(|(_, records)| records).sum()
    };
    let mut client = cluster.connect().await;
    let mut late = client.transaction().await.unwrap();
    crate::reader::append(&mut late, 1).await;
    commit(&url, 3).await;
    for _ in 0..4 {
        assert_eq!(records().await, 3);
    }
    late.commit().await.unwrap();
    assert_eq!(records().await, 4, "no number was drawn, and there is one more");
    // As a node that has nothing to do: it spends ids.
    for _ in 0..3 {
        reader.heartbeat().await.unwrap();
        assert_eq!(records().await, 4);
    }
    let meter = Meter::start(&cluster);
    assert_eq!(records().await, 4);
    assert_eq!(meter.text().matches("Query Text:").count(), 1, "{}", meter.text());
    commit(&url, 2).await;
    assert_eq!(records().await, 6);
}
