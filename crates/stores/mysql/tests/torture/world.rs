//! What writers and relays share: the tables, the producers' own log, and what arrived.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use mysql_async::prelude::Queryable;
use postrider_core::envelope::MessageId;
use postrider_store_mysql::{Mysql, MysqlStore, planted::Plant};
use postrider_testkit::checker::{Enqueued, Verdict, check};

use crate::support::{Place, builder, connect};

/// Writers at the same time.
pub(crate) const WRITERS: u64 = 12;

/// How hard it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) time: Duration,
    /// Keys that the writers share: the fewer, the more often one waits for another.
    pub(crate) keys: u64,
    /// Lanes that the keys are split into.
    pub(crate) lanes: u32,
    /// Messages of a large transaction, if there is to be one.
    pub(crate) bulk: u64,
    /// Whether transactions are prepared, and resolved later by somebody.
    pub(crate) prepares: bool,
}

impl Load {
    pub(crate) fn whole(time: Duration) -> Self {
        Self { time, keys: 30, lanes: 2, bulk: 10_000, prepares: true }
    }

    /// Small transactions and few keys: what goes wrong shows itself soon.
    pub(crate) fn brief(time: Duration) -> Self {
        Self { time, keys: 4, lanes: 1, bulk: 0, prepares: false }
    }
}

/// How often what happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// Times that a lane was taken.
    pub(crate) takes: u64,
    /// Answers of `Fenced`.
    pub(crate) fenced: u64,
    /// Connections of relays that were killed under them.
    pub(crate) killed: u64,
    /// Relays that were killed while they had a lane.
    pub(crate) died: u64,
    pub(crate) purged: u64,
    /// Large transactions that were committed.
    pub(crate) bulks: u64,
    pub(crate) prepared: u64,
    /// How many messages may come twice: those that their readers had not settled.
    pub(crate) duplicates_max: u64,
}

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct World(Arc<Inner>);

pub(crate) struct Inner {
    place: Place,
    pub(crate) plant: Plant,
    pub(crate) load: Load,
    pub(crate) dialect: Mysql,
    written: AtomicBool,
    read: AtomicBool,
    enqueued: Mutex<Vec<Enqueued>>,
    arrivals: Mutex<Vec<MessageId>>,
    slept: AtomicBool,
    /// By lane.
    pub(crate) takes: Vec<AtomicU64>,
    pub(crate) fenced: AtomicU64,
    pub(crate) killed: AtomicU64,
    pub(crate) died: AtomicU64,
    pub(crate) purged: AtomicU64,
    pub(crate) bulks: AtomicU64,
    pub(crate) prepared: AtomicU64,
    /// Messages that arrived and were not settled by whoever had read them: so many may arrive again.
    pub(crate) unsettled: AtomicU64,
}

impl std::ops::Deref for World {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl World {
    pub(crate) async fn new(plant: Plant, load: Load) -> Self {
        let place = Place::new().await;
        let table = format!("{}keys", place.prefix());
        let mut connection = connect().await;
        let sql = format!("CREATE TABLE {table} (k BIGINT PRIMARY KEY, version BIGINT NOT NULL) ENGINE = InnoDB");
        connection.query_drop(sql).await.unwrap();
        // One more than the writers share.
        let rows: Vec<String> = (0..=load.keys).map(|key| format!("({key}, 0)")).collect();
        connection.query_drop(format!("INSERT INTO {table} VALUES {}", rows.join(", "))).await.unwrap();
        let dialect = place.store().dialect();
        Self(Arc::new(Inner {
            place,
            plant,
            load,
            dialect,
            written: AtomicBool::new(false),
            read: AtomicBool::new(false),
            enqueued: Mutex::default(),
            arrivals: Mutex::default(),
            slept: AtomicBool::new(false),
            takes: (0..load.lanes).map(|_| AtomicU64::new(0)).collect(),
            fenced: AtomicU64::new(0),
            killed: AtomicU64::new(0),
            died: AtomicU64::new(0),
            purged: AtomicU64::new(0),
            bulks: AtomicU64::new(0),
            prepared: AtomicU64::new(0),
            unsettled: AtomicU64::new(0),
        }))
    }
}

impl Inner {
    /// One more process, so to speak, with connections of its own.
    pub(crate) async fn store(&self) -> MysqlStore {
        builder(self.place.prefix()).migrate(false).plant(self.plant).open().await.unwrap()
    }

    /// Takes the lock that orders the key, and its next version with it.
    pub(crate) async fn lock(&self, transaction: &mut impl Queryable, key: u64) -> mysql_async::Result<u64> {
        let keys = format!("{}keys", self.place.prefix());
        transaction.exec_drop(format!("UPDATE {keys} SET version = version + 1 WHERE k = ?"), (key,)).await?;
        let version: Option<u64> =
            transaction.exec_first(format!("SELECT version FROM {keys} WHERE k = ? FOR UPDATE"), (key,)).await?;
        Ok(version.expect("the key is there"))
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
        self.plant == Plant::None && has_read && !self.slept.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn counts(&self) -> Counts {
        let of = |count: &AtomicU64| count.load(Ordering::SeqCst);
        Counts {
            takes: self.takes.iter().map(of).sum(),
            fenced: of(&self.fenced),
            killed: of(&self.killed),
            died: of(&self.died),
            purged: of(&self.purged),
            bulks: of(&self.bulks),
            prepared: of(&self.prepared),
            duplicates_max: of(&self.unsettled),
        }
    }

    pub(crate) fn verdict(&self) -> Verdict {
        check(&self.enqueued.lock().unwrap(), &self.arrivals.lock().unwrap())
    }

    pub(crate) fn prefix(&self) -> &str {
        self.place.prefix()
    }
}
