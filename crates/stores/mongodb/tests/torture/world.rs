//! What writers and relays share: the database, the producers' own log, and what arrived.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use mongodb::{
    Client, Collection,
    bson::{Document, doc},
};
use postrider_core::envelope::MessageId;
use postrider_store_mongodb::{Mongo, MongoStore, planted::Plant};
use postrider_testkit::checker::{Enqueued, Verdict, check};

use crate::support::{Place, builder, url};

/// Writers at the same time.
pub(crate) const WRITERS: u64 = 10;

/// Longer than any writer holds its transaction.
const OVERLAP: Duration = Duration::from_secs(3);

/// So many reads between two that find their history lost.
const FORGET_EVERY: u32 = 6;

/// What happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// Takes of the lane.
    pub(crate) takes: u64,
    /// Settlements of owners whose lane was somebody else's.
    pub(crate) fenced: u64,
    /// Scans because history was lost.
    pub(crate) scans: u64,
    pub(crate) purged: u64,
    pub(crate) parked: u64,
    /// Relays that died with the lane in their hands.
    pub(crate) killed: u64,
    /// Arrivals that may be a message's second or later one.
    pub(crate) duplicates_max: u64,
}

impl Counts {
    /// Whether everything has happened that makes a run worth something.
    pub(crate) fn are_complete(&self) -> bool {
        self.takes > 1 && self.fenced > 0 && self.scans > 0 && self.purged > 0 && self.parked > 0
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct World(Arc<Inner>);

pub(crate) struct Inner {
    place: Place,
    pub(crate) plant: Plant,
    pub(crate) time: Duration,
    /// Keys that the writers share: the fewer, the more often one meets another.
    pub(crate) keys: u64,
    pub(crate) names: Mongo,
    enough: AtomicBool,
    written: AtomicBool,
    all_read: AtomicBool,
    enqueued: Mutex<Vec<Enqueued>>,
    arrivals: Mutex<Vec<MessageId>>,
    pub(crate) takes: AtomicU64,
    /// Messages that were read, as often as they were.
    pub(crate) read: AtomicU64,
    pub(crate) parked: AtomicU64,
    pub(crate) fenced: AtomicU64,
    pub(crate) recoveries: AtomicU64,
    pub(crate) purged: AtomicU64,
    pub(crate) killed: AtomicU64,
    /// What was read and is not known to be settled. It may come again.
    pub(crate) unsettled: AtomicU64,
    /// The points in the time of the cluster at which messages that were read had been inserted.
    inserted: Mutex<BTreeSet<u64>>,
}

impl std::ops::Deref for World {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl World {
    pub(crate) async fn new(plant: Plant, time: Duration, keys: u64) -> Self {
        Self::on(&url(), plant, time, keys).await
    }

    /// On another server than the usual one.
    pub(crate) async fn on(url: &str, plant: Plant, time: Duration, keys: u64) -> Self {
        let place = Place::on(url).await;
        let versions: Vec<Document> =
            (0..keys).map(|key| doc! { "_id": key.cast_signed(), "version": 0_i64 }).collect();
        place.collection("keys").insert_many(versions).await.unwrap();
        let names = place.names.clone();
        Self(Arc::new(Inner {
            place,
            plant,
            time,
            keys,
            names,
            enough: AtomicBool::new(false),
            written: AtomicBool::new(false),
            all_read: AtomicBool::new(false),
            enqueued: Mutex::default(),
            arrivals: Mutex::default(),
            takes: AtomicU64::new(0),
            read: AtomicU64::new(0),
            parked: AtomicU64::new(0),
            fenced: AtomicU64::new(0),
            recoveries: AtomicU64::new(0),
            purged: AtomicU64::new(0),
            killed: AtomicU64::new(0),
            unsettled: AtomicU64::new(0),
            inserted: Mutex::default(),
        }))
    }
}

impl Inner {
    /// One more process, so to speak, with connections of its own.
    pub(crate) async fn store(&self) -> MongoStore {
        let builder = builder(&self.place.url, &self.names).migrate(false).overlap(OVERLAP).plant(self.plant);
        // The set may be without a primary just now.
        loop {
            match builder.clone().forget_every(FORGET_EVERY).open().await {
                Ok(store) => return store,
                Err(error) => assert!(error.is_transient(), "{error:?}"),
            }
        }
    }

    pub(crate) fn client(&self) -> Client {
        self.place.client.clone()
    }

    /// The documents whose write orders the keys.
    pub(crate) fn keys(&self) -> Collection<Document> {
        self.place.collection("keys")
    }

    /// The producers' own log: what became of a transaction's messages.
    pub(crate) fn note(&self, messages: Vec<Enqueued>, committed: bool) {
        let noted = messages.into_iter().map(|message| Enqueued { committed, ..message });
        self.enqueued.lock().unwrap().extend(noted);
    }

    pub(crate) fn arrive(&self, ids: impl Iterator<Item = MessageId>) {
        self.arrivals.lock().unwrap().extend(ids);
    }

    /// Where messages that were read stand in the log.
    pub(crate) fn have_read(&self, numbers: impl Iterator<Item = u64>) {
        self.inserted.lock().unwrap().extend(numbers);
    }

    /// Messages that one scan can bring once more: as many as were ever inserted within the overlap.
    fn overlap_max(&self) -> u64 {
        let mut seconds = BTreeMap::<u64, u64>::new();
        for number in self.inserted.lock().unwrap().iter() {
            *seconds.entry(number >> 32).or_default() += 1;
        }
        // The overlap begins somewhere within a second.
        let within =
            |from: u64| -> u64 { seconds.range(from..=from + OVERLAP.as_secs()).map(|(_, count)| count).sum() };
        seconds.keys().map(|from| within(*from)).max().unwrap_or(0)
    }

    /// Tells the writers to end.
    pub(crate) fn enough_is_written(&self) {
        self.enough.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_enough(&self) -> bool {
        self.enough.load(Ordering::SeqCst)
    }

    pub(crate) fn all_is_written(&self) {
        self.written.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_written(&self) -> bool {
        self.written.load(Ordering::SeqCst)
    }

    pub(crate) fn all_is_read(&self) {
        self.all_read.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_read(&self) -> bool {
        self.all_read.load(Ordering::SeqCst)
    }

    /// What happened, to judge whether a run was worth something.
    pub(crate) fn counts(&self) -> Counts {
        let of = |count: &AtomicU64| count.load(Ordering::SeqCst);
        Counts {
            takes: of(&self.takes),
            fenced: of(&self.fenced),
            scans: of(&self.recoveries),
            purged: of(&self.purged),
            parked: of(&self.parked),
            killed: of(&self.killed),
            duplicates_max: of(&self.unsettled) + of(&self.recoveries) * self.overlap_max(),
        }
    }

    pub(crate) fn verdict(&self) -> Verdict {
        check(&self.enqueued.lock().unwrap(), &self.arrivals.lock().unwrap())
    }
}
