//! A server that stops in an instant: nothing that was committed is lost, nothing is made up, and what was in a reader's
//! memory alone is forgotten.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use postrider_core::{Result, envelope::MessageId, log::Log};
use postrider_store_postgres::{Postgres, planted::Plant};
use postrider_testkit::checker::{Enqueued, check};
use tokio_postgres::NoTls;

use crate::{
    cluster::Cluster,
    reader::{Reader, WHOLE, append, commit, number, spend_ids},
};

/// What the writers did. A commit without an answer is in doubt; the tables say afterwards whether it happened.
#[derive(Default)]
struct Written {
    sure: Mutex<Vec<Enqueued>>,
    in_doubt: Mutex<Vec<(i64, Vec<Enqueued>)>>,
    over: AtomicBool,
}

/// Commits until told to stop, each transaction with an entry of its own in a table of the application.
async fn writer(url: String, number: i64, written: Arc<Written>) {
    let mut version = 0;
    // Ends when told, or with the test.
    while !written.over.load(Ordering::SeqCst) {
        let Ok((mut client, connection)) = tokio_postgres::connect(&url, NoTls).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        tokio::spawn(connection);
        while !written.over.load(Ordering::SeqCst) {
            version += 1;
            let entry = number * 1_000_000 + version;
            let key = format!("key-{number}");
            let message = postrider_core::envelope::Envelope::new("t", "n", "{}").with_key(key.as_str());
            let sequence = version.cast_unsigned();
            let noted = Enqueued { id: message.id, key: Some(key), sequence, committed: true };
            let batch = postrider_core::limits::Limits::default().check(vec![message]);
            let attempt = async {
                let mut transaction = client.transaction().await?;
                transaction.execute("INSERT INTO done VALUES ($1)", &[&entry]).await?;
                let appended =
                    postrider_core::enlist::Enlist::append(&mut transaction, &Postgres::default(), batch).await;
                match appended {
                    Ok(()) => transaction.commit().await,
                    // The connection is gone, so this fails too.
                    Err(_) => transaction.batch_execute("SELECT 1").await,
                }
            };
            if attempt.await.is_ok() {
                written.sure.lock().unwrap().push(noted);
            } else {
                written.in_doubt.lock().unwrap().push((entry, vec![noted]));
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn crashes_under_load_lose_nothing_and_make_nothing_up() {
    let cluster = Cluster::start("");
    let url = cluster.url();
    let mut reader = Reader::open(&url).await;
    cluster.connect().await.batch_execute("CREATE TABLE done (entry bigint PRIMARY KEY)").await.unwrap();
    let written = Arc::new(Written::default());
    let writers: Vec<_> = (0..6).map(|i| tokio::spawn(writer(url.clone(), i, Arc::clone(&written)))).collect();

    let (mut arrivals, mut takes, mut unsettled, mut unsettled_max) = (Vec::new(), 0_u64, 0_u64, 0_u64);
    let deadline = Instant::now() + Duration::from_secs(60);
    for crash in 1..=4 {
        // Some hundred messages between two crashes; the crash comes while writers write and the reader reads.
        while written.sure.lock().unwrap().len() < crash * 300 {
            assert!(Instant::now() < deadline, "the writers write");
            match reader.page(WHOLE).await {
                Ok((read, _)) => {
                    unsettled += read.len() as u64;
                    unsettled_max = unsettled_max.max(unsettled);
                    arrivals.extend(read);
                }
                Err(error) => panic!("{error:?}"),
            }
            if unsettled > 100 {
                reader.settle().await.unwrap();
                unsettled = 0;
            }
        }
        cluster.crash();
        cluster.up();
        arrivals.extend(reader.recover().await);
        reader.settle().await.unwrap();
        takes += 1;
        unsettled = 0;
    }
    written.over.store(true, Ordering::SeqCst);
    for writer in writers {
        writer.await.unwrap();
    }
    arrivals.extend(reader.read_on().await);

    let client = cluster.connect().await;
    let mut enqueued = std::mem::take(&mut *written.sure.lock().unwrap());
    let in_doubt = std::mem::take(&mut *written.in_doubt.lock().unwrap());
    for (entry, messages) in in_doubt {
        let committed = client.query_opt("SELECT 1 FROM done WHERE entry = $1", &[&entry]).await.unwrap().is_some();
        enqueued.extend(messages.into_iter().map(|message| Enqueued { committed, ..message }));
    }
    let verdict = check(&enqueued, &arrivals);
    println!("{takes} crashes: {verdict:?}");
    assert!(verdict.is_good() && verdict.committed >= 1_200, "{verdict:?}");
    assert!(verdict.duplicates <= takes * unsettled_max, "{} of at most {takes} x {unsettled_max}", verdict.duplicates);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_transaction_survives_a_crash_and_is_delivered_when_it_commits() {
    let cluster = Cluster::start("");
    let mut reader = Reader::open(&cluster.url()).await;
    let prepare = "BEGIN; SELECT postrider.enqueue('orders', 'order.placed', 'prepared'); PREPARE TRANSACTION 'one'";
    cluster.connect().await.batch_execute(prepare).await.unwrap();
    let others = commit(&cluster.url(), 5).await;
    assert_eq!(reader.read_on().await, others);
    reader.settle().await.unwrap();
    cluster.crash();
    cluster.up();
    let others = commit(&cluster.url(), 5).await;
    assert_eq!(reader.recover().await, others, "it holds up nobody");
    cluster.connect().await.batch_execute("COMMIT PREPARED 'one'").await.unwrap();
    assert_eq!(reader.read_on().await.len(), 1, "its number lies below those of ten that were read");
}

/// The server flushes every few seconds whatever is set, and if it does so just before it crashes, nothing is handed out twice.
const CRASHES_MAX: u32 = 8;

/// Unflushed ids are handed out again after a crash. Returns what the reader got of four messages whose ids were handed out
/// twice, and what they are.
async fn ids_handed_out_twice(plant: Plant) -> (Vec<MessageId>, Vec<MessageId>) {
    for _ in 0..CRASHES_MAX {
        if let Some(found) = ids_handed_out(plant).await {
            return found;
        }
    }
    panic!("in {CRASHES_MAX} crashes no id was handed out twice");
}

/// As above. `None`: the server flushed before it crashed.
async fn ids_handed_out(plant: Plant) -> Option<(Vec<MessageId>, Vec<MessageId>)> {
    // Nothing is flushed unless a commit waits for it, and nothing in the background does it either.
    let cluster =
        Cluster::start("wal_writer_delay=10s bgwriter_delay=10s checkpoint_timeout=1h wal_writer_flush_after=0");
    let url = cluster.url();
    let mut reader = Reader::planted(&url, plant).await;
    commit(&url, 2).await;
    reader.read_on().await;
    reader.settle().await.unwrap();
    let client = cluster.connect().await;
    client.batch_execute("SET synchronous_commit = off; CREATE UNLOGGED TABLE spent (x int)").await.unwrap();
    let flushed = number(&client, "SELECT pg_current_xact_id()::text::bigint").await;
    // These commit, and nobody has waited for them.
    for _ in 0..10 {
        client.batch_execute("INSERT INTO spent VALUES (1)").await.unwrap();
    }
    // The reader's base sees them now, in memory alone.
    reader.read_on().await;
    cluster.crash();
    cluster.up();
    let client = cluster.connect().await;
    let next = number(&client, "SELECT pg_current_xact_id()::text::bigint").await;
    if next > flushed + 8 {
        return None;
    }
    let mut sent = Vec::new();
    for _ in 0..4 {
        sent.extend(commit(&url, 1).await);
    }
    // Past the old counter, so that the planted mistake is not refused for its ids.
    spend_ids(&client, 20).await;
    Some((reader.recover().await, sent))
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_are_handed_out_again_hide_nothing() {
    let (read, sent) = ids_handed_out_twice(Plant::None).await;
    assert_eq!(read, sent);
    let (read, sent) = ids_handed_out_twice(Plant::BaseKeptOverLostConnection).await;
    assert!(read.len() < sent.len(), "a base that is kept over a lost connection must hide something");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_four_billionth_transaction_is_one_like_the_others() {
    let cluster = Cluster::start("");
    let url = cluster.url();
    drop(Reader::open(&url).await);
    cluster.set_next_xid(0, u32::MAX - 40);
    let mut reader = Reader::open(&url).await;
    let mut early = cluster.connect().await;
    let mut early = early.transaction().await.unwrap();
    let below = append(&mut early, 1).await;
    let (mut sent, mut read) = (Vec::new(), Vec::new());
    for round in 0..60 {
        sent.extend(commit(&url, 2).await);
        read.extend(reader.read_on().await);
        if round % 7 == 0 {
            reader.settle().await.unwrap();
            reader.again().await;
        }
    }
    assert_eq!(read, sent);
    let xid = number(&cluster.connect().await, "SELECT pg_current_xact_id()::text::bigint").await;
    assert!(xid > 1 << 32, "the counter has crossed: {xid}");
    early.commit().await.unwrap();
    assert_eq!(reader.read_on().await, below, "one from below that commits above");
}

/// What a reader does, and the table on which it can be made to wait while it does it.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Register,
    Heartbeat,
    Take,
    Resume,
    Observe,
    Read,
    Due,
    Settle,
}

impl Phase {
    const ALL: [Self; 8] =
        [Self::Register, Self::Heartbeat, Self::Take, Self::Resume, Self::Observe, Self::Read, Self::Due, Self::Settle];

    fn table(self) -> &'static str {
        match self {
            Self::Register | Self::Heartbeat => "node",
            Self::Take | Self::Resume | Self::Settle => "checkpoint",
            Self::Observe => "seq",
            Self::Read => "log_0",
            Self::Due => "parked",
        }
    }

    async fn perform(self, reader: &mut Reader) -> Result<()> {
        match self {
            Self::Register => reader.register().await,
            Self::Heartbeat => reader.heartbeat().await,
            Self::Take => reader.try_again().await,
            Self::Resume => reader.store.resume(&reader.lease).await.map(drop),
            Self::Observe | Self::Read => reader.page(WHOLE).await.map(drop),
            Self::Due => {
                let limit = postrider_core::parked::DueLimit { lines: 10, per_line: 10, bytes: 1 << 20 };
                reader.store.due(&reader.lease, limit).await.map(drop)
            }
            Self::Settle => reader.settle().await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_cut_in_any_phase_loses_nothing() {
    let cluster = Cluster::start("");
    let url = cluster.url();
    let (mut reader, client, mut blocker) =
        (Reader::open(&url).await, cluster.connect().await, cluster.connect().await);
    let (mut sent, mut read) = (Vec::new(), HashSet::new());
    for phase in Phase::ALL {
        sent.extend(commit(&url, 3).await);
        let block = blocker.transaction().await.unwrap();
        // A sequence cannot be locked by name, but a change of it that is rolled back locks it as well.
        let lock = match phase {
            Phase::Observe => "ALTER SEQUENCE postrider.seq OWNED BY NONE".to_owned(),
            _ => format!("LOCK TABLE postrider.{} IN ACCESS EXCLUSIVE MODE", phase.table()),
        };
        block.batch_execute(&lock).await.unwrap();
        let cut = async {
            let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                        WHERE application_name = 'postrider' AND wait_event_type = 'Lock'";
            let deadline = Instant::now() + Duration::from_secs(60);
            while number(&client, sql).await == 0 {
                assert!(Instant::now() < deadline, "{phase:?} waits for its lock");
            }
        };
        let (outcome, ()) = tokio::join!(phase.perform(&mut reader), cut);
        let error = outcome.expect_err("its connection was cut");
        assert!(error.is_transient() || error.is_fenced(), "{phase:?}: {error:?}");
        block.rollback().await.unwrap();
        // What is unsettled comes again; the set forgets how often.
        reader.again().await;
        read.extend(reader.recover().await);
        reader.settle().await.unwrap();
        assert_eq!(read.len(), sent.len(), "{phase:?}");
        assert!(sent.iter().all(|id| read.contains(id)), "{phase:?}");
    }
}
