//! [`Collector`]: carries the mail of documents into the log of a store.
//!
//! A round: find documents with mail by a sparse index, in the order of their oldest message; read their arrays; renew the
//! lease, which is the barrier (see [`super::ownership`]); append everything to the log in one transaction of its store; pull
//! exactly what was appended, by its ids. Whatever fails before the append leaves the mail where it is, and the next round
//! begins again. What fails behind it is remembered ([`super::pull`]): the next round pulls first, and appends none of it once
//! more.
//!
//! Each collection has a lease of its own, so that relays whose lists differ collect none of them twice. Each round begins
//! with another one, so that a backlog in one holds up none of the others.
//!
//! Mail that cannot be sent, such as a message without a topic, stays in its document with all that stands behind it. It is
//! told and looked at again after a while; the mail of other documents goes on, however many of those there are: the first
//! thousand are named to the server as not wanted, and of more a round goes on behind as many as were met. A document whose
//! messages have no `id` at all is not found among the others, and is looked for every now and then.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use mongodb::{
    Collection, Database,
    action::{Action, CountDocuments, Find},
    bson::{Bson, Document, doc},
    options::{Hint, ReadConcern, ReadPreference, SelectionCriteria},
};
use postrider_core::{Error, ErrorKind, Result, admin::StoreAdmin, limits::Limits};

use super::{
    Builder, Embedded,
    ownership::{Epoch, Ownership},
    pull::Owed,
    sack::{Sack, open},
};
use crate::{
    error::{Work, from_mongo},
    planted::Plant,
    wake::Waker,
};

/// Documents of one collection that one round looks at.
const DOCUMENTS_MAX: i64 = 512;

/// Documents whose mail cannot be sent are passed over for so long; and so often those are looked for whose mail has no ids.
const PASSED_OVER: Duration = Duration::from_secs(60);

/// So many of them at most are named, in a filter. As many may refuse the update by which their mail is pulled.
const PASSED_OVER_MAX: usize = 1_000;

/// How soon to look again just after something came, and at the latest.
const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// The same after a fault.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

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

/// A lease of this collector.
struct Held {
    epoch: Epoch,
    renewed_at: Instant,
}

/// A collection whose documents carry mail, and the claim to its lease.
pub(super) struct Source {
    pub(super) collection: Collection<Document>,
    pub(super) ownership: Ownership,
}

/// What a round leaves to the next one.
#[derive(Default)]
struct State {
    /// The lease of each collection, where it is ours.
    held: Vec<Option<Held>>,
    owed: Owed,
    /// With which collection the next round begins.
    first: usize,
    /// When mail without ids was last looked for.
    looked_at: Option<Instant>,
    /// For each collection.
    skipped: Vec<Skipped>,
}

/// Documents whose mail cannot be sent beyond those that are named: so many stand in front of the others. It is their number alone
/// that is known, so if one of them goes, a good one may be skipped with the rest, until they are looked at again.
#[derive(Default)]
struct Skipped {
    documents: u64,
    since: Option<Instant>,
}

impl Skipped {
    /// How many to skip. After a while all are looked at again.
    fn count(&mut self) -> u64 {
        if self.since.is_some_and(|since| since.elapsed() > PASSED_OVER) {
            *self = Self::default();
        }
        self.documents
    }

    fn add(&mut self, documents: usize) {
        if documents > 0 {
            self.documents += documents as u64;
            self.since.get_or_insert_with(Instant::now);
        }
    }
}

/// Carries mail into a store. For each collection one at a time does, however many there are.
pub struct Collector {
    state: tokio::sync::Mutex<State>,
    database: Database,
    sources: Vec<Source>,
    outbox: Embedded,
    /// The index by which mail is found, if there is one for sure.
    found_by: Option<&'static str>,
    limits: Limits,
    plant: Plant,
    /// Collection and document, and since when.
    passed_over: Mutex<HashMap<(usize, String), (Bson, Instant)>>,
    waker: Waker,
}

impl Collector {
    pub(super) fn new(
        database: Database,
        sources: Vec<Source>,
        outbox: Embedded,
        limits: Limits,
        found_by: Option<&'static str>,
        plant: Plant,
    ) -> Self {
        let held = sources.iter().map(|_| None).collect();
        let skipped = sources.iter().map(|_| Skipped::default()).collect();
        let state = State { held, skipped, ..State::default() };
        Self {
            state: tokio::sync::Mutex::new(state),
            database,
            sources,
            outbox,
            found_by,
            limits,
            plant,
            passed_over: Mutex::default(),
            waker: Waker::new(),
        }
    }

    /// Options for a collector of the mail behind a URL: `mongodb://user:password@host:port/database`.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
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
        let mut state = self.state.lock().await;
        let state = &mut *state;
        let ours = self.take_leases(state).await?;
        if ours.is_empty() {
            return Ok(Round::default());
        }
        // What the log has already leaves its documents before anything else is looked at.
        let mut refused = self.pull(&mut state.owed).await?;
        let gathered = self.gather(&ours, state).await;
        let (mut sack, more) = gathered.map_err(|fault| fault.into_error("look for mail"))?;
        refused.extend(self.refuse(std::mem::take(&mut sack.refused)));
        let mut round = Round { owner: true, more, messages: sack.messages(), refused };
        for &number in &ours {
            let has_mail = sack.emptied.iter().any(|emptied| emptied.collection == number);
            if !self.keep_lease(state, number, has_mail).await? {
                // Some of the mail may be another's by now; all of it is still where it was.
                let owner = state.held.iter().any(Option::is_some);
                return Ok(Round { owner, messages: 0, more: false, ..round });
            }
        }
        if round.messages > 0 {
            into.enqueue(sack.batch(&self.limits)?, None).await?;
            state.owed.add(sack.emptied);
            round.more |= !round.refused.is_empty();
            round.refused.extend(self.pull(&mut state.owed).await?);
        }
        Ok(round)
    }

    /// The collections that are ours to collect, beginning with another one each time.
    async fn take_leases(&self, state: &mut State) -> Result<Vec<usize>> {
        for (number, source) in self.sources.iter().enumerate() {
            if state.held[number].is_some() {
                continue;
            }
            state.owed.forget(number);
            let renewed_at = Instant::now();
            let taken = source.ownership.acquire().await;
            let taken = taken.map_err(|fault| fault.into_error("take the mail's lease"))?;
            state.held[number] = taken.map(|epoch| Held { epoch, renewed_at });
        }
        let count = self.sources.len();
        let order = (0..count).map(|place| (state.first + place) % count);
        let ours = order.filter(|number| state.held[*number].is_some()).collect();
        state.first = (state.first + 1) % count;
        Ok(ours)
    }

    /// The barrier, if there is mail. Without there is nothing to be safe from, and the lease is renewed when it is due. `false`:
    /// it is another's.
    async fn keep_lease(&self, state: &mut State, number: usize, has_mail: bool) -> Result<bool> {
        let ownership = &self.sources[number].ownership;
        let Some(lease) = &mut state.held[number] else { return Ok(false) };
        let is_due = has_mail || lease.renewed_at.elapsed() > ownership.life() / 3;
        if !is_due || self.plant == Plant::NoBarrier {
            return Ok(true);
        }
        let asked_at = Instant::now();
        let renewed = ownership.renew(lease.epoch).await;
        let renewed = renewed.map_err(|fault| fault.into_error("renew the mail's lease"))?;
        if renewed {
            lease.renewed_at = asked_at;
        } else {
            state.held[number] = None;
        }
        Ok(renewed)
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
                // What was refused is passed over from now on, so that the next round comes further.
                Ok(round) if round.more && (round.messages > 0 || !round.refused.is_empty()) => continue,
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

    /// Lets another collector begin at once.
    ///
    /// # Errors
    /// What the server answers; the lease then expires by itself.
    pub async fn release(&self) -> Result<()> {
        let mut state = self.state.lock().await;
        for (source, held) in self.sources.iter().zip(&mut state.held) {
            if let Some(lease) = held.take() {
                let released = source.ownership.release(lease.epoch).await;
                released.map_err(|fault| fault.into_error("give the lease back"))?;
            }
        }
        Ok(())
    }

    /// How many documents have mail that waits, counted up to `most`.
    ///
    /// # Errors
    /// What the server answers.
    pub async fn waiting(&self, most: u64) -> Result<u64> {
        let mut documents = 0;
        for Source { collection, .. } in &self.sources {
            let counted = collection.count_documents(self.has_mail()).limit(most.max(1)).await;
            documents += counted.map_err(|error| from_mongo(&error, "count documents with mail"))?;
            let counted = collection.count_documents(self.has_nameless_mail()).limit(most.max(1));
            let counted = counted.optional(self.hint(), CountDocuments::hint).await;
            documents += counted.map_err(|error| from_mongo(&error, "count documents with mail"))?;
        }
        Ok(documents.min(most))
    }

    fn has_mail(&self) -> Document {
        doc! { format!("{}.id", self.outbox.field()): { "$exists": true } }
    }

    /// Messages of which none has an id. One that has neither an id nor a topic is no message to us.
    fn has_nameless_mail(&self) -> Document {
        let field = self.outbox.field();
        doc! { format!("{field}.id"): { "$exists": false }, format!("{field}.topic"): { "$exists": true } }
    }

    /// The server does not use a sparse index of its own accord for what is missing. Of the documents that are not in it, none is
    /// wanted.
    fn hint(&self) -> Option<Hint> {
        self.found_by.map(|index| Hint::Name(index.to_owned()))
    }

    /// The mail of a round, and whether there may be more.
    async fn gather(&self, ours: &[usize], state: &mut State) -> Work<(Sack, bool)> {
        let (mut sack, mut more) = (Sack::default(), false);
        let looks = state.looked_at.is_none_or(|looked_at| looked_at.elapsed() > PASSED_OVER);
        for &number in ours {
            let mut without: Vec<Bson> = state.owed.documents(number).cloned().collect();
            without.extend(self.passed_over(number));
            if looks && !self.look(&mut sack, number, (self.has_nameless_mail(), self.hint()), &without, 0).await?.0 {
                return Ok((sack, true));
            }
            let (before, skip) = (sack.refused.len(), state.skipped[number].count());
            let (all, documents) = self.look(&mut sack, number, (self.has_mail(), None), &without, skip).await?;
            // Of those that this look has met, the ones for which there is no room among the named.
            let unnamed = sack.refused.len().saturating_sub(before.max(self.room()));
            state.skipped[number].add(unnamed);
            if !all {
                return Ok((sack, true));
            }
            more |= documents == DOCUMENTS_MAX;
        }
        if looks {
            state.looked_at = Some(Instant::now());
        }
        Ok((sack, more))
    }

    /// Takes the mail of the documents that match. Whether all of it has found room, and how many documents there were.
    async fn look(
        &self,
        sack: &mut Sack,
        number: usize,
        (mut filter, hint): (Document, Option<Hint>),
        without: &[Bson],
        skip: u64,
    ) -> Work<(bool, i64)> {
        let (collection, field) = (&self.sources[number].collection, self.outbox.field());
        if !without.is_empty() {
            filter.insert("_id", doc! { "$nin": without });
        }
        let find = collection
            .find(filter)
            .sort(doc! { format!("{field}.id"): 1 })
            .projection(doc! { field: 1 })
            .skip(skip)
            .limit(DOCUMENTS_MAX)
            .read_concern(ReadConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        let mut cursor = find.optional(hint, Find::hint).await?;
        let mut documents = 0;
        // Ends with the cursor, or when the sack is full.
        while cursor.advance().await? {
            documents += 1;
            let Some((id, entries)) = open(cursor.deserialize_current()?, field) else { continue };
            let has_room = match entries {
                Ok(entries) => sack.take((number, collection.name()), id, entries, &self.limits),
                Err(cause) => {
                    sack.refuse(number, id, cause);
                    true
                }
            };
            if !has_room {
                return Ok((false, documents));
            }
        }
        Ok((true, documents))
    }

    fn passed_over(&self, collection: usize) -> Vec<Bson> {
        let mut passed_over = self.passed_over.lock().unwrap_or_else(PoisonError::into_inner);
        passed_over.retain(|_, (_, since)| since.elapsed() < PASSED_OVER);
        let of_this = passed_over.iter().filter(|((number, _), _)| *number == collection);
        of_this.map(|(_, (id, _))| id.clone()).collect()
    }

    /// How many more documents can be named.
    fn room(&self) -> usize {
        let passed_over = self.passed_over.lock().unwrap_or_else(PoisonError::into_inner);
        PASSED_OVER_MAX.saturating_sub(passed_over.len())
    }

    /// Notes what could not be sent, to be passed over for a while; the first of them, as far as there is room.
    fn refuse(&self, met: Vec<(usize, Bson, Error)>) -> Vec<Refused> {
        let mut passed_over = self.passed_over.lock().unwrap_or_else(PoisonError::into_inner);
        let mut refused = Vec::new();
        for (number, id, cause) in met {
            let (collection, document) = (self.sources[number].collection.name().to_owned(), id.to_string());
            if passed_over.len() < PASSED_OVER_MAX {
                passed_over.insert((number, document.clone()), (id, Instant::now()));
            }
            refused.push(Refused { collection, document, cause });
        }
        refused
    }

    /// What the log has and documents still do. Nothing more is appended while that is too much.
    async fn pull(&self, owed: &mut Owed) -> Result<Vec<Refused>> {
        let mut refused = Vec::new();
        for (number, Source { collection, .. }) in self.sources.iter().enumerate() {
            let of = (number, collection.name());
            refused.extend(owed.pull(&self.database, of, self.outbox.field(), PASSED_OVER).await?);
        }
        if owed.len() > PASSED_OVER_MAX {
            let what =
                "too many documents refuse the update by which their mail is pulled; mend them, and then it goes on";
            return Err(Error::new(ErrorKind::Limit, what).with("documents_max", PASSED_OVER_MAX));
        }
        Ok(refused)
    }
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.sources.iter().map(|source| source.collection.name()).collect();
        f.debug_struct("Collector").field("collections", &names).finish_non_exhaustive()
    }
}
