//! Who collects: one at a time, by a lease in a document of its own. Renewing it is the barrier.
//!
//! Everything that was read before a journaled write of the same server is in the journal once that write is answered. So
//! mail is carried on only after the lease was renewed by such a write: what a crash could still have taken back is safe by
//! then, and a collector that slept through its lease learns that another has it.
//!
//! The document also names the store into which the mail goes. Two collectors that take turns and have a store each would break
//! the order of keys: what the first one has collected and not delivered stays behind in its store, while the other delivers what
//! came later. So a collector with another store is refused, until an operator has taken the name away.

use std::time::Duration;

use mongodb::{
    Collection, Database,
    bson::{Bson, Document, doc},
    error::{ErrorKind as Mongodb, WriteFailure},
    options::ReturnDocument,
};
use postrider_core::{Error, ErrorKind};
use uuid::Uuid;

use crate::{
    db::durable,
    error::Work,
    value::{long, text_opt, uuid},
};

/// One claim to a lease.
pub(super) struct Ownership {
    leases: Collection<Document>,
    /// What is collected: one owner for each.
    subject: String,
    owner: Bson,
    life: Duration,
    /// Into which store the mail goes, if whoever collects says it.
    store: Option<String>,
}

/// Raised with every owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch(i64);

const DUPLICATE_KEY: i32 = 11_000;

impl Ownership {
    pub(super) fn new(
        database: &Database,
        collection: &str,
        subject: String,
        life: Duration,
        store: Option<String>,
    ) -> Self {
        Self { leases: database.collection(collection), subject, owner: uuid(Uuid::now_v7()), life, store }
    }

    pub(super) fn life(&self) -> Duration {
        self.life
    }

    /// Refuses a store into which this mail does not go, before anything is collected.
    pub(super) async fn check_store(&self) -> Work<()> {
        match self.leases.find_one(doc! { "_id": &self.subject }).await? {
            Some(lease) => self.refuse_other_store(&lease),
            None => Ok(()),
        }
    }

    fn refuse_other_store(&self, lease: &Document) -> Work<()> {
        let theirs = text_opt(lease, "store");
        if theirs.is_none() || theirs == self.store.as_deref() {
            return Ok(());
        }
        let what = "the mail of this collection goes into another store, which may have some that it has not delivered yet; \
                    collect into that store, or let it deliver everything and then take its name out of the lease";
        let how =
            format!("db.{}.updateOne({{ _id: {:?} }}, {{ $unset: {{ store: 1 }} }})", self.leases.name(), self.subject);
        let error = Error::new(ErrorKind::Conflict, what)
            .with("mail", &self.subject)
            .with("store", theirs.unwrap_or_default())
            .with("this_store", self.store.as_deref().unwrap_or("one without a name"))
            .with("to_change_it", how);
        Err(error.permanent().into())
    }

    /// Takes the lease if it is free, has expired by the server's clock, or is ours. One that ends later than it could if it
    /// were given just now was given by a clock that has gone back since, and lasts from now for as long as it was given for.
    pub(super) async fn acquire(&self) -> Work<Option<Epoch>> {
        let store = doc! { "$literal": self.store.as_deref() };
        let ours_or_over = doc! { "$or": [
            { "$eq": ["$owner", &self.owner] },
            { "$lte": [{ "$ifNull": ["$until", "$$NOW"] }, "$$NOW"] },
        ] };
        let free = doc! { "$and": [{ "$eq": [{ "$ifNull": ["$store", &store] }, &store] }, ours_or_over] };
        let if_free = |then: Bson, otherwise: Bson| doc! { "$cond": [&free, then, otherwise] };
        let now_and_life = doc! { "$add": ["$$NOW", { "$ifNull": ["$life", millis(self.life)] }] };
        let epoch = doc! { "$add": [{ "$ifNull": ["$epoch", 0_i64] }, 1_i64] };
        let take = vec![doc! { "$set": {
            "owner": if_free(self.owner.clone(), "$owner".into()),
            "epoch": if_free(epoch.into(), "$epoch".into()),
            "until": if_free(self.until().into(), doc! { "$min": ["$until", now_and_life] }.into()),
            "life": if_free(millis(self.life).into(), "$life".into()),
            "store": if_free(store.into(), "$store".into()),
        } }];
        let taken = self
            .leases
            .find_one_and_update(doc! { "_id": &self.subject }, take)
            .upsert(true)
            .return_document(ReturnDocument::After)
            .write_concern(durable())
            .await;
        match taken {
            Ok(Some(lease)) => {
                self.refuse_other_store(&lease)?;
                let is_ours = lease.get("owner") == Some(&self.owner);
                if is_ours { Ok(Some(Epoch(long(&lease, "epoch")?))) } else { Ok(None) }
            }
            Ok(None) => Ok(None),
            // Two made it at the same time, and the other was faster.
            Err(error) if is_duplicate(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The barrier. `false`: another has taken over, and what was read is none of ours.
    pub(super) async fn renew(&self, epoch: Epoch) -> Work<bool> {
        let filter = doc! { "_id": &self.subject, "owner": &self.owner, "epoch": epoch.0 };
        // The counter makes it a write in any case: one that changes nothing would not wait for the journal.
        let renew = vec![doc! { "$set": {
            "until": self.until(),
            "beat": { "$add": [{ "$ifNull": ["$beat", 0_i64] }, 1_i64] },
        } }];
        Ok(self.leases.update_one(filter, renew).write_concern(durable()).await?.matched_count == 1)
    }

    /// Lets the next one begin at once.
    pub(super) async fn release(&self, epoch: Epoch) -> Work<()> {
        let filter = doc! { "_id": &self.subject, "owner": &self.owner, "epoch": epoch.0 };
        let free = vec![doc! { "$set": { "until": "$$NOW" } }];
        self.leases.update_one(filter, free).write_concern(durable()).await?;
        Ok(())
    }

    fn until(&self) -> Document {
        doc! { "$add": ["$$NOW", millis(self.life)] }
    }
}

/// Not so long that the sum with an instant overflows.
fn millis(life: Duration) -> i64 {
    i64::try_from(life.as_millis()).unwrap_or(i64::MAX).min(LIFE_MILLIS_MAX)
}

/// A thousand years.
const LIFE_MILLIS_MAX: i64 = 1_000 * 366 * 86_400_000;

fn is_duplicate(error: &mongodb::error::Error) -> bool {
    match &*error.kind {
        Mongodb::Command(refused) => refused.code == DUPLICATE_KEY,
        Mongodb::Write(WriteFailure::WriteError(refused)) => refused.code == DUPLICATE_KEY,
        _ => false,
    }
}
