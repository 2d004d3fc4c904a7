//! What writers and relays share: the tables, the producers' own log, and what arrived.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use postrider_core::{envelope::MessageId, lease::LaneId};
use postrider_store_postgres::{Postgres, PostgresStore, planted::Plant};
use postrider_testkit::checker::{Enqueued, Verdict, check};
use tokio::sync::RwLock;
use tokio_postgres::{Client, Transaction};

use crate::{
    cluster::Cluster,
    support::{Place, connect_to, url},
};

/// How hard it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) time: Duration,
    pub(crate) writers: u64,
    /// Keys that the writers share: the fewer, the more often one waits for another.
    pub(crate) keys: u64,
    /// Lanes of the route. Each relay wants all of them, and reads those that it has at once, over one store.
    pub(crate) lanes: u32,
    /// The longest time that a transaction is held, in milliseconds.
    pub(crate) hold_millis_max: u64,
    /// Messages of a large transaction.
    pub(crate) bulk: u64,
    /// Whether transactions that have nothing to do with it stay open, here and in another database.
    pub(crate) bystanders: bool,
    /// Numbers per block of the ring, as a power of two: small, so that the ring turns.
    pub(crate) block_bits: u32,
}

impl Load {
    pub(crate) fn whole(time: Duration) -> Self {
        Self {
            time,
            writers: 32,
            keys: 200,
            lanes: 3,
            hold_millis_max: 2_000,
            bulk: 10_000,
            bystanders: true,
            block_bits: 10,
        }
    }

    /// Small transactions and a small ring: what goes wrong shows itself soon.
    pub(crate) fn brief(time: Duration) -> Self {
        Self {
            time,
            writers: 16,
            keys: 40,
            lanes: 1,
            hold_millis_max: 200,
            bulk: 200,
            bystanders: false,
            block_bits: 6,
        }
    }
}

/// How often what happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// Times that a lane was taken and given up before the end.
    pub(crate) takes: u64,
    /// How many messages may come twice: those that its owners had read and not settled.
    pub(crate) duplicates_max: u64,
    /// Times that a relay was fenced: it had slept through its lease, or had lost its session.
    pub(crate) fenced: u64,
    /// Sessions of readers that were ended under them.
    pub(crate) killed: u64,
    /// Large transactions that were committed.
    pub(crate) bulks: u64,
    pub(crate) prepared: u64,
    pub(crate) purged: u64,
}

/// Where it takes place: in a schema of its own on the server that all tests share, or on a server of its own.
enum Where {
    Shared(Place),
    Own(Cluster),
}

/// The schema on a server of its own.
const SCHEMA: &str = "torture";

/// Nothing is written down unless a commit waits for it, which those of the relays do not; nor does it happen in the background,
/// or not often. So what a crash takes back is more than usual.
const CRASHING: &str = "synchronous_commit=off wal_writer_delay=10s bgwriter_delay=10s checkpoint_timeout=1h \
                        wal_writer_flush_after=0 full_page_writes=off";

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct World(Arc<Inner>);

pub(crate) struct Inner {
    place: Where,
    pub(crate) plant: Plant,
    pub(crate) load: Load,
    pub(crate) dialect: Postgres,
    written: AtomicBool,
    read: AtomicBool,
    /// Whoever writes has a part of it. A server crashes while nobody does, so that no commit is in doubt.
    pub(crate) breath: RwLock<()>,
    /// Times that the server has crashed, and whether it will not do so any more.
    pub(crate) crashes: AtomicU64,
    pub(crate) stays_up: AtomicBool,
    /// Pages that were read.
    pub(crate) reads: AtomicU64,
    enqueued: Mutex<Vec<Enqueued>>,
    arrivals: Mutex<Vec<MessageId>>,
    slept: AtomicBool,
    /// Of each lane, the times that somebody became its owner.
    pub(crate) owners: Vec<AtomicU64>,
    pub(crate) takes: AtomicU64,
    pub(crate) duplicates_max: AtomicU64,
    pub(crate) fenced: AtomicU64,
    pub(crate) killed: AtomicU64,
    pub(crate) bulks: AtomicU64,
    pub(crate) prepared: AtomicU64,
    pub(crate) purged: AtomicU64,
}

impl std::ops::Deref for World {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl World {
    pub(crate) async fn new(plant: Plant, load: Load) -> Self {
        Self::at(Where::Shared(Place::new(load.block_bits).await), plant, load).await
    }

    /// On a server that crashes now and then.
    pub(crate) async fn crashing(plant: Plant, load: Load) -> Self {
        let cluster = Cluster::start(CRASHING);
        let store = PostgresStore::builder(&cluster.url()).schema(SCHEMA).block_bits(load.block_bits);
        drop(store.open().await.unwrap());
        Self::at(Where::Own(cluster), plant, load).await
    }

    async fn at(place: Where, plant: Plant, load: Load) -> Self {
        let schema = place.schema();
        let sql = format!(
            "CREATE TABLE \"{schema}\".keys (key bigint PRIMARY KEY, version bigint NOT NULL);
             INSERT INTO \"{schema}\".keys SELECT key, 0 FROM generate_series(0, {}) AS key",
            load.keys - 1
        );
        let client = connect_to(&place.url()).await;
        client.batch_execute(&sql).await.unwrap();
        if plant == Plant::SequenceCache {
            client.batch_execute(&format!("ALTER SEQUENCE \"{schema}\".seq CACHE 10")).await.unwrap();
        }
        let dialect = Postgres::new(schema, "").unwrap();
        Self(Arc::new(Inner {
            place,
            plant,
            load,
            dialect,
            written: AtomicBool::new(false),
            read: AtomicBool::new(false),
            breath: RwLock::new(()),
            crashes: AtomicU64::new(0),
            stays_up: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            enqueued: Mutex::default(),
            arrivals: Mutex::default(),
            slept: AtomicBool::new(false),
            owners: (0..load.lanes).map(|_| AtomicU64::new(0)).collect(),
            takes: AtomicU64::new(0),
            duplicates_max: AtomicU64::new(0),
            fenced: AtomicU64::new(0),
            killed: AtomicU64::new(0),
            bulks: AtomicU64::new(0),
            prepared: AtomicU64::new(0),
            purged: AtomicU64::new(0),
        }))
    }
}

impl Where {
    fn url(&self) -> String {
        match self {
            Self::Shared(_) => url(),
            Self::Own(cluster) => cluster.url(),
        }
    }

    fn schema(&self) -> &str {
        match self {
            Self::Shared(place) => place.schema(),
            Self::Own(_) => SCHEMA,
        }
    }
}

impl Inner {
    pub(crate) fn lanes(&self) -> impl Iterator<Item = LaneId> + use<> {
        (0..self.load.lanes).map(|number| LaneId { route: "r".into(), number })
    }

    pub(crate) async fn connect(&self) -> Client {
        connect_to(&self.place.url()).await
    }

    /// For an application: when its commit has an answer, it is written down.
    pub(crate) async fn connect_to_write(&self) -> Client {
        let client = self.connect().await;
        client.batch_execute("SET synchronous_commit = on").await.unwrap();
        client
    }

    /// The server that crashes, if it is one.
    pub(crate) fn crashing_server(&self) -> Option<&Cluster> {
        match &self.place {
            Where::Shared(_) => None,
            Where::Own(cluster) => Some(cluster),
        }
    }

    pub(crate) fn crashes(&self) -> u64 {
        self.crashes.load(Ordering::SeqCst)
    }

    /// Whether the writers have written enough.
    pub(crate) fn is_enough(&self, deadline: Instant) -> bool {
        Instant::now() >= deadline && (self.crashing_server().is_none() || self.stays_up.load(Ordering::SeqCst))
    }

    /// Messages of transactions that have ended.
    pub(crate) fn noted(&self) -> usize {
        self.enqueued.lock().unwrap().len()
    }

    /// One more process, so to speak, with sessions of its own.
    pub(crate) async fn store(&self) -> PostgresStore {
        let builder = PostgresStore::builder(&self.place.url()).schema(self.schema()).connections_max(4).migrate(false);
        builder.plant(self.plant).open().await.unwrap()
    }

    pub(crate) fn schema(&self) -> &str {
        self.place.schema()
    }

    /// Takes the lock that orders the key, and its next version with it.
    pub(crate) async fn lock(&self, transaction: &Transaction<'_>, key: u64) -> u64 {
        let schema = self.schema();
        let sql = format!("UPDATE \"{schema}\".keys SET version = version + 1 WHERE key = $1 RETURNING version");
        let row = transaction.query_one(&sql, &[&key.cast_signed()]).await.unwrap();
        row.get::<_, i64>(0).cast_unsigned()
    }

    /// The producers' own log: what became of a transaction's messages.
    pub(crate) fn note(&self, messages: Vec<Enqueued>, committed: bool) {
        let noted =
            messages.into_iter().map(|message| Enqueued { committed: committed && message.committed, ..message });
        self.enqueued.lock().unwrap().extend(noted);
    }

    pub(crate) fn arrive(&self, ids: impl Iterator<Item = MessageId>) {
        self.arrivals.lock().unwrap().extend(ids);
    }

    pub(crate) fn all_is_written(&self) {
        self.written.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_written(&self) -> bool {
        self.written.load(Ordering::SeqCst)
    }

    pub(crate) fn all_is_read(&self) {
        self.read.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_read(&self) -> bool {
        self.read.load(Ordering::SeqCst)
    }

    /// Whether whoever asks is to sleep through its lease: the first one that has read something. Not where a mistake is
    /// planted, which has little time to show itself.
    pub(crate) fn sleeps_on_purpose(&self, has_read: bool) -> bool {
        self.plant == Plant::None
            && self.crashing_server().is_none()
            && has_read
            && !self.slept.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn verdict(&self) -> Verdict {
        check(&self.enqueued.lock().unwrap(), &self.arrivals.lock().unwrap())
    }

    pub(crate) fn counts(&self) -> Counts {
        let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        Counts {
            takes: count(&self.takes),
            duplicates_max: count(&self.duplicates_max),
            fenced: count(&self.fenced),
            killed: count(&self.killed),
            bulks: count(&self.bulks),
            prepared: count(&self.prepared),
            purged: count(&self.purged),
        }
    }
}
