//! [`Collector`]: carries the mail of documents into the log of a store.
//!
//! A round: find documents with mail by a sparse index, in the order of their oldest message; read their arrays; renew the
//! lease, which is the barrier (see [`super::ownership`]); append everything to the log in one transaction of its store; pull
//! exactly what was appended, from those documents whose head is still the one that was read. Whatever fails in between
//! leaves the mail where it is, and the next round begins again.
//!
//! Mail that cannot be sent, such as a message without a topic, stays in its document with all that stands behind it. It is
//! told each round and looked at again after a while; the mail of other documents goes on.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use mongodb::{
    Client, Collection, Database, IndexModel,
    bson::{Bson, Document, doc},
    options::{IndexOptions, ReadConcern, ReadPreference, SelectionCriteria},
};
use postrider_core::{Error, ErrorKind, Result, admin::StoreAdmin, limits::Limits};

use super::{
    Embedded,
    ownership::{Epoch, Ownership},
    sack::{Emptied, Sack, open},
};
use crate::{
    config::client_options,
    db::refused,
    dialect::{Mongo, PREFIX},
    error::{Work, from_mongo},
    planted::Plant,
    server,
    wake::Waker,
};

/// How long a collector may be silent before another takes over, unless told otherwise.
const LEASE_LIFE: Duration = Duration::from_secs(15);

/// Documents of one collection that one round looks at.
const DOCUMENTS_MAX: i64 = 512;

/// Documents whose mail cannot be sent are passed over for so long.
const PASSED_OVER: Duration = Duration::from_secs(60);

/// So many of them at most: a filter has to name them all.
const PASSED_OVER_MAX: usize = 1_000;

/// How soon to look again just after something came, and at the latest.
const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// The same after a fault.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

const INDEX: &str = "postrider_mail";

/// Options of a collector. Made by [`Collector::builder`].
#[derive(Clone)]
#[must_use]
pub struct Builder {
    url: String,
    database: Option<String>,
    prefix: String,
    collections: Vec<String>,
    outbox: Embedded,
    make_indexes: bool,
    lease_life: Duration,
    limits: Limits,
    plant: Plant,
}

impl Builder {
    /// The collections whose documents carry mail.
    pub fn collections(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.collections = names.into_iter().map(Into::into).collect();
        self
    }

    /// The database, if it is not the one that the URL names behind the host.
    pub fn database(mut self, database: &str) -> Self {
        self.database = Some(database.to_owned());
        self
    }

    /// What the name of the collector's own collection begins with. Default `postrider_`.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Where the mail is in a document. Default [`FIELD`](super::FIELD).
    pub fn outbox(mut self, outbox: &Embedded) -> Self {
        self.outbox = outbox.clone();
        self
    }

    /// Whether to make the index by which mail is found. Default yes. Without it and without the index, each round reads
    /// every document.
    pub fn make_indexes(mut self, make: bool) -> Self {
        self.make_indexes = make;
        self
    }

    /// How long the collector may be silent before another takes over. Default 15 seconds.
    pub fn lease_life(mut self, life: Duration) -> Self {
        self.lease_life = life;
        self
    }

    /// Makes a mistake, for a test that must find it.
    #[cfg(feature = "planted")]
    pub fn plant(mut self, plant: Plant) -> Self {
        self.plant = plant;
        self
    }

    /// What a message may be. Default as for an outbox.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Whether the options can be right, as far as that shows without a server.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], naming what is wrong; never the URL, which may hold a password.
    pub fn check(&self) -> Result<()> {
        if self.collections.is_empty() {
            return Err(Error::invalid("say in which collections mail is collected, such as `orders`"));
        }
        let bad = |name: &&String| name.is_empty() || name.starts_with('$') || name.contains('\0');
        if let Some(name) = self.collections.iter().find(bad) {
            return Err(Error::invalid("a collection has a name that does not begin with `$`")
                .with("collection", name.escape_debug()));
        }
        let names = crate::config::Builder::new(&self.url).prefix(&self.prefix);
        match &self.database {
            Some(database) => names.database(database).check(),
            None => names.check(),
        }
    }

    /// Opens it: a standalone server will do, and a replica set as well.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the server is sharded or too old, [`ErrorKind::Unavailable`] if it cannot be reached,
    /// [`ErrorKind::Denied`] if it refuses, [`ErrorKind::Invalid`] if an option is wrong.
    pub async fn open(self) -> Result<Collector> {
        self.check()?;
        let options = client_options(&self.url).await?;
        let name = self.database.as_deref().or(options.default_database.as_deref()).unwrap_or_default();
        let names = Mongo::with_prefix(name, &self.prefix)?;
        let client = Client::with_options(options).map_err(|error| from_mongo(&error, "open the collector"))?;
        let hello = server::hello(&client).await.map_err(|fault| fault.into_error("open the collector"))?;
        server::check_embedded(&hello)?;
        let database = client.database(names.database());
        let collections: Vec<Collection<Document>> =
            self.collections.iter().map(|name| database.collection(name)).collect();
        if self.make_indexes {
            for collection in &collections {
                index(collection, &self.outbox).await.map_err(|error| from_mongo(&error, "make an index"))?;
            }
        }
        let subject = format!("{} in {}", self.outbox.field(), self.collections.join(", "));
        Ok(Collector {
            ownership: Ownership::new(&database, &names.name("collector"), subject, self.lease_life),
            held: tokio::sync::Mutex::new(None),
            database,
            collections,
            outbox: self.outbox,
            limits: self.limits,
            plant: self.plant,
            passed_over: Mutex::default(),
            waker: Waker::new(),
        })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("collections", &self.collections).finish_non_exhaustive()
    }
}

/// Documents without mail are not in it.
async fn index(collection: &Collection<Document>, outbox: &Embedded) -> mongodb::error::Result<()> {
    let options = IndexOptions::builder().name(INDEX.to_owned()).sparse(true).build();
    let keys = doc! { format!("{}.id", outbox.field()): 1 };
    collection.create_index(IndexModel::builder().keys(keys).options(options).build()).await?;
    Ok(())
}

/// What a round did.
#[derive(Debug, Default)]
pub struct Round {
    /// Whether this collector is the one that collects. If not, another is, and nothing was looked at.
    pub owner: bool,
    /// Messages that the log has now.
    pub messages: usize,
    /// Mail that cannot be sent, as far as it was looked at in this round.
    pub refused: Vec<Refused>,
    /// Whether there is more at once.
    pub more: bool,
}

/// A document whose next message cannot be sent.
#[derive(Debug)]
pub struct Refused {
    /// Its collection.
    pub collection: String,
    /// Its `_id`, as text.
    pub document: String,
    /// What is wrong with the message.
    pub cause: Error,
}

/// The lease of this collector.
struct Held {
    epoch: Epoch,
    renewed_at: Instant,
}

/// Carries mail into a store. One at a time does, however many there are.
pub struct Collector {
    ownership: Ownership,
    held: tokio::sync::Mutex<Option<Held>>,
    database: Database,
    collections: Vec<Collection<Document>>,
    outbox: Embedded,
    limits: Limits,
    plant: Plant,
    /// Collection and document, and since when.
    passed_over: Mutex<HashMap<(usize, String), (Bson, Instant)>>,
    waker: Waker,
}

impl Collector {
    /// Options for a collector of the mail behind a URL: `mongodb://user:password@host:port/database`.
    pub fn builder(url: &str) -> Builder {
        Builder {
            url: url.to_owned(),
            database: None,
            prefix: PREFIX.to_owned(),
            collections: Vec::new(),
            outbox: Embedded::default(),
            make_indexes: true,
            lease_life: LEASE_LIFE,
            limits: Limits::default(),
            plant: Plant::None,
        }
    }

    /// A handle by which an application of the same process says that there is mail.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// One round. Dropping the future leaves each message in its document or in the log, or in both.
    ///
    /// # Errors
    /// What the server or the store answers; the mail is where it was, or is sent twice.
    pub async fn collect(&self, into: &dyn StoreAdmin) -> Result<Round> {
        let mut held = self.held.lock().await;
        let begun_at = Instant::now();
        let lease = match &mut *held {
            Some(lease) => lease,
            None => match self.ownership.acquire().await.map_err(|fault| fault.into_error("take the mail's lease"))? {
                Some(epoch) => held.insert(Held { epoch, renewed_at: begun_at }),
                None => return Ok(Round::default()),
            },
        };
        let (mut sack, more) = self.gather().await.map_err(|fault| fault.into_error("look for mail"))?;
        let refused = self.refuse(std::mem::take(&mut sack.refused))?;
        let mut round = Round { owner: true, more, messages: sack.messages(), refused };
        // Without mail there is nothing to be safe from, and the lease is renewed when it is due.
        let is_due = round.messages > 0 || lease.renewed_at.elapsed() > self.ownership.life() / 3;
        if is_due && self.plant != Plant::NoBarrier {
            let asked_at = Instant::now();
            if !self.renew(lease.epoch).await? {
                *held = None;
                return Ok(Round::default());
            }
            lease.renewed_at = asked_at;
        }
        if round.messages > 0 {
            into.enqueue(sack.batch(&self.limits)?, None).await?;
            self.pull(&sack.emptied).await.map_err(|fault| fault.into_error("pull what was collected"))?;
            round.more |= !round.refused.is_empty();
        }
        Ok(round)
    }

    /// Round after round, at once while there is more, and after ever longer pauses while there is nothing or it fails.
    /// Never ends; drop it, and then [`Self::release`]. `told` hears of every round.
    pub async fn run(&self, into: &dyn StoreAdmin, mut told: impl FnMut(&Result<Round>)) {
        let (mut poll, mut back_off) = (POLL.0, BACK_OFF.0);
        loop {
            let mut changes = self.waker.listen();
            let round = self.collect(into).await;
            told(&round);
            let wait = match round {
                Ok(Round { more: true, messages, .. }) if messages > 0 => continue,
                Ok(round) => {
                    back_off = BACK_OFF.0;
                    poll = if round.messages > 0 { POLL.0 } else { (poll * 2).min(POLL.1) };
                    poll
                }
                Err(_) => {
                    back_off = (back_off * 2).min(BACK_OFF.1);
                    back_off
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // The sender is ours, so it is there.
                _ = changes.changed() => {}
            }
        }
    }

    async fn renew(&self, epoch: Epoch) -> Result<bool> {
        self.ownership.renew(epoch).await.map_err(|fault| fault.into_error("renew the mail's lease"))
    }

    /// Lets another collector begin at once.
    ///
    /// # Errors
    /// What the server answers; the lease then expires by itself.
    pub async fn release(&self) -> Result<()> {
        match self.held.lock().await.take() {
            Some(lease) => {
                self.ownership.release(lease.epoch).await.map_err(|fault| fault.into_error("give the lease back"))
            }
            None => Ok(()),
        }
    }

    /// How many documents have mail that waits, counted up to `most`.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn waiting(&self, most: u64) -> Result<u64> {
        let mut documents = 0;
        for collection in &self.collections {
            let counted = collection.count_documents(self.has_mail()).limit(most.max(1)).await;
            documents += counted.map_err(|error| from_mongo(&error, "count documents with mail"))?;
        }
        Ok(documents.min(most))
    }

    fn has_mail(&self) -> Document {
        doc! { format!("{}.id", self.outbox.field()): { "$exists": true } }
    }

    /// The mail of a round, and whether there may be more.
    async fn gather(&self) -> Work<(Sack, bool)> {
        let (mut sack, mut more) = (Sack::default(), false);
        let field = self.outbox.field();
        for (number, collection) in self.collections.iter().enumerate() {
            let mut filter = self.has_mail();
            let passed_over = self.passed_over(number);
            if !passed_over.is_empty() {
                filter.insert("_id", doc! { "$nin": passed_over });
            }
            let mut cursor = collection
                .find(filter)
                .sort(doc! { format!("{field}.id"): 1 })
                .projection(doc! { field: 1 })
                .limit(DOCUMENTS_MAX)
                .read_concern(ReadConcern::majority())
                .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
                .await?;
            let mut documents = 0;
            // Ends with the cursor, or when the sack is full.
            while cursor.advance().await? {
                documents += 1;
                let Some((id, entries)) = open(cursor.deserialize_current()?, field) else { continue };
                if !sack.take((number, collection.name()), id, entries, &self.limits) {
                    return Ok((sack, true));
                }
            }
            more |= documents == DOCUMENTS_MAX;
        }
        Ok((sack, more))
    }

    fn passed_over(&self, collection: usize) -> Vec<Bson> {
        let mut passed_over = self.passed_over.lock().unwrap_or_else(PoisonError::into_inner);
        passed_over.retain(|_, (_, since)| since.elapsed() < PASSED_OVER);
        let of_this = passed_over.iter().filter(|((number, _), _)| *number == collection);
        of_this.map(|(_, (id, _))| id.clone()).collect()
    }

    /// Notes what could not be sent, to be passed over for a while.
    fn refuse(&self, met: Vec<(usize, Bson, Error)>) -> Result<Vec<Refused>> {
        let mut passed_over = self.passed_over.lock().unwrap_or_else(PoisonError::into_inner);
        let mut refused = Vec::new();
        for (number, id, cause) in met {
            let (collection, document) = (self.collections[number].name().to_owned(), id.to_string());
            passed_over.insert((number, document.clone()), (id, Instant::now()));
            refused.push(Refused { collection, document, cause });
        }
        if passed_over.len() > PASSED_OVER_MAX {
            passed_over.clear();
            let what = "the mail of too many documents cannot be sent; mend it, and then it goes on by itself";
            let error = Error::new(ErrorKind::Limit, what).with("documents_max", PASSED_OVER_MAX);
            return Err(match refused.pop() {
                Some(last) => {
                    error.with("collection", last.collection).with("document", last.document).caused_by(last.cause)
                }
                None => error,
            });
        }
        Ok(refused)
    }

    /// Exactly what was carried on, where the head is still the one that was read: a stale pull matches nothing.
    async fn pull(&self, emptied: &[Emptied]) -> Work<()> {
        let field = self.outbox.field();
        for (number, collection) in self.collections.iter().enumerate() {
            let of_this = emptied.iter().filter(|emptied| emptied.collection == number);
            let pull = |emptied: &Emptied| {
                let head = format!("{field}.0.id");
                doc! {
                    "q": { "_id": &emptied.document, head: emptied.ids.first() },
                    "u": { "$pull": { field: { "id": { "$in": &emptied.ids } } } },
                }
            };
            let updates: Vec<Bson> = of_this.map(|emptied| pull(emptied).into()).collect();
            if !updates.is_empty() {
                let command = doc! {
                    "update": collection.name(), "updates": updates, "ordered": false,
                    "writeConcern": { "w": "majority", "j": true },
                };
                refused(&self.database.run_command(command).await?)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.collections.iter().map(Collection::name).collect();
        f.debug_struct("Collector").field("collections", &names).finish_non_exhaustive()
    }
}
