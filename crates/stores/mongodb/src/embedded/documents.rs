//! [`Documents`]: a collection whose documents carry their mail. Every write is one document, changed and announced at once.
//!
//! What would throw waiting mail away is refused: replacing and deleting a document that has any. A write that does not go
//! through here, such as a replacement by a repository that does not know the array, is not seen and loses it.

use mongodb::{
    Collection,
    bson::{Document, doc, serialize_to_document},
    options::ReturnDocument,
    results::{DeleteResult, InsertOneResult, UpdateResult},
};
use postrider_core::{Error, ErrorKind, Result};
use serde::{Serialize, de::DeserializeOwned};

use super::{Embedded, Mail, guard::touches};
use crate::{db::durable, error::from_mongo, wake::Waker};

/// A collection whose documents carry their mail. Its writes wait for the journal, whatever the client was told.
///
/// A filter names one document, best by its `_id`: of several that match, one that has no room for the mail is passed over.
#[derive(Clone, Debug)]
pub struct Documents<T: Send + Sync> {
    collection: Collection<T>,
    outbox: Embedded,
    waker: Option<Waker>,
}

impl<T: Send + Sync> Documents<T> {
    /// With a collection of the application's.
    #[must_use]
    pub fn new(collection: &Collection<T>, outbox: &Embedded) -> Self {
        Self { collection: collection.clone(), outbox: outbox.clone(), waker: None }
    }

    /// Wakes a collector of the same process after each write that sends something.
    #[must_use]
    pub fn waking(mut self, waker: &Waker) -> Self {
        self.waker = Some(waker.clone());
        self
    }

    /// The collection itself, for reading. What is written with it must leave the array alone.
    #[must_use]
    pub fn collection(&self) -> &Collection<T> {
        &self.collection
    }

    /// Inserts a document with its mail.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] if the mail is too much for one document, or what the server answers.
    pub async fn insert_one(&self, document: &T, mail: Mail) -> Result<InsertOneResult>
    where
        T: Serialize,
    {
        self.fits(&mail)?;
        let (document, sends) = self.with_mail(document, mail)?;
        let inserted = self.plain().insert_one(document).write_concern(durable()).await;
        self.done(sends, inserted, "insert a document")
    }

    /// Changes a document by operators such as `$set`, and sends its mail if there is one that matches.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] if so much mail waits in the document already that this does not fit, [`ErrorKind::Invalid`] if
    /// the update is no list of operators or touches the array; nothing is changed then. Or what the server answers.
    pub async fn update_one(&self, filter: Document, update: Document, mail: Mail) -> Result<UpdateResult> {
        self.fits(&mail)?;
        let (guarded, sends) = (self.with_room(&filter, &mail), !mail.is_empty());
        let update = self.pushing(update, mail)?;
        let updated = self.collection.update_one(guarded, update).write_concern(durable()).await;
        let updated = self.done(sends, updated, "update a document")?;
        if updated.matched_count == 0 && sends {
            self.refuse_full(filter).await?;
        }
        Ok(updated)
    }

    /// As [`Self::update_one`], and returns the document as it is then.
    ///
    /// # Errors
    /// As [`Self::update_one`].
    pub async fn find_one_and_update(&self, filter: Document, update: Document, mail: Mail) -> Result<Option<T>>
    where
        T: DeserializeOwned,
    {
        self.fits(&mail)?;
        let (guarded, sends) = (self.with_room(&filter, &mail), !mail.is_empty());
        let update = self.pushing(update, mail)?;
        let action = self.collection.find_one_and_update(guarded, update).write_concern(durable());
        let found = action.return_document(ReturnDocument::After).await;
        let found = self.done(sends, found, "update a document")?;
        if found.is_none() && sends {
            self.refuse_full(filter).await?;
        }
        Ok(found)
    }

    /// Replaces a document as a whole, and sends mail with it.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] while the document has mail that is not collected yet: the replacement would throw it away.
    /// [`ErrorKind::Limit`] as [`Self::insert_one`], or what the server answers.
    pub async fn replace_one(&self, filter: Document, document: &T, mail: Mail) -> Result<UpdateResult>
    where
        T: Serialize,
    {
        self.fits(&mail)?;
        let (document, sends) = self.with_mail(document, mail)?;
        let replaced = self.plain().replace_one(self.without_mail(&filter), document).write_concern(durable()).await;
        let replaced = self.done(sends, replaced, "replace a document")?;
        if replaced.matched_count == 0 {
            self.refuse_waiting(filter, "replaced").await?;
        }
        Ok(replaced)
    }

    /// Deletes a document. To announce that, mark it first with a change that sends mail, and delete it once that is collected.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] while the document has mail that is not collected yet, or what the server answers.
    pub async fn delete_one(&self, filter: Document) -> Result<DeleteResult> {
        let deleted = self.collection.delete_one(self.without_mail(&filter)).write_concern(durable()).await;
        let deleted = self.done(false, deleted, "delete a document")?;
        if deleted.deleted_count == 0 {
            self.refuse_waiting(filter, "deleted").await?;
        }
        Ok(deleted)
    }

    fn plain(&self) -> Collection<Document> {
        self.collection.clone_with_type()
    }

    fn done<R>(&self, sends: bool, outcome: mongodb::error::Result<R>, operation: &'static str) -> Result<R> {
        let outcome = outcome.map_err(|error| from_mongo(&error, operation))?;
        if let (true, Some(waker)) = (sends, &self.waker) {
            waker.wake();
        }
        Ok(outcome)
    }

    /// The document as it is stored, and whether it sends anything.
    fn with_mail(&self, document: &T, mail: Mail) -> Result<(Document, bool)>
    where
        T: Serialize,
    {
        let not_a_document = |error| Error::invalid("what is stored must be a document").caused_by(error);
        let mut document = serialize_to_document(document).map_err(not_a_document)?;
        if document.contains_key(self.outbox.field()) {
            return Err(self.touches());
        }
        let sends = !mail.is_empty();
        if sends {
            document.insert(self.outbox.field(), mail.into_entries());
        }
        Ok((document, sends))
    }

    fn pushing(&self, mut update: Document, mail: Mail) -> Result<Document> {
        if let Some(name) = update.keys().find(|name| !name.starts_with('$')) {
            let what = "an update is a list of operators such as `$set`; a whole document is for replace_one";
            return Err(Error::invalid(what).with("field", name.escape_debug()));
        }
        let array = self.outbox.field();
        if update.iter().any(|(operator, change)| touches(array, operator, change)) {
            return Err(self.touches());
        }
        if !mail.is_empty() {
            let push = update.entry("$push".to_owned()).or_insert_with(|| Document::new().into());
            let Some(push) = push.as_document_mut() else {
                return Err(Error::invalid("`$push` is a document: fields, and what is pushed to each"));
            };
            push.insert(array, doc! { "$each": mail.into_entries() });
        }
        Ok(update)
    }

    fn touches(&self) -> Error {
        let what = "the array of the mail is not for the application to write; give the mail to the write instead";
        Error::invalid(what).with("field", self.outbox.field())
    }

    fn with_room(&self, filter: &Document, mail: &Mail) -> Document {
        if mail.is_empty() {
            return filter.clone();
        }
        let waiting = doc! { "$ifNull": [format!("${}", self.outbox.field()), []] };
        let count = doc! { "$add": [{ "$size": &waiting }, long(mail.len())] };
        let bytes = doc! { "$add": [{ "$bsonSize": { "mail": waiting } }, long(mail.bytes())] };
        let room = doc! { "$and": [
            { "$lte": [count, i64::from(self.outbox.messages_max)] },
            { "$lte": [bytes, i64::from(self.outbox.bytes_max)] },
        ] };
        doc! { "$and": [filter, { "$expr": room }] }
    }

    fn without_mail(&self, filter: &Document) -> Document {
        waiting(filter, self.outbox.field(), false)
    }

    /// More than fits into an empty document fits into none.
    fn fits(&self, mail: &Mail) -> Result<()> {
        let Embedded { messages_max, bytes_max, .. } = self.outbox;
        if mail.len() <= messages_max as usize && mail.bytes() <= bytes_max as usize {
            return Ok(());
        }
        Err(self.full("the mail of one write does not fit into a document").with("messages", mail.len()))
    }

    fn full(&self, what: &'static str) -> Error {
        Error::new(ErrorKind::Limit, what)
            .with("embedded_messages_max", self.outbox.messages_max)
            .with("embedded_bytes_max", self.outbox.bytes_max)
    }

    async fn refuse_full(&self, filter: Document) -> Result<()> {
        if !self.is_there(filter).await? {
            return Ok(());
        }
        Err(self.full(
            "so much mail waits in the document that this does not fit, so nothing was changed; is a collector running?",
        ))
    }

    async fn refuse_waiting(&self, filter: Document, participle: &'static str) -> Result<()> {
        if !self.is_there(filter).await? {
            return Ok(());
        }
        Err(mail_waits(self.outbox.field(), participle))
    }

    async fn is_there(&self, filter: Document) -> Result<bool> {
        let found = self.plain().find_one(filter).projection(doc! { "_id": 1 }).await;
        Ok(found.map_err(|error| from_mongo(&error, "look for a document"))?.is_some())
    }
}

/// Which of the documents that match have mail, or have none. A message that stands in the place of the array is mail as well: it
/// waits there for somebody who mends it.
pub(crate) fn waiting(filter: &Document, field: &str, waits: bool) -> Document {
    let operator = if waits { "$or" } else { "$nor" };
    let mail = [doc! { format!("{field}.0"): { "$exists": true } }, doc! { field: { "$type": "object" } }];
    doc! { "$and": [filter, { operator: &mail[..] }] }
}

/// Why a document was left as it is.
pub(crate) fn mail_waits(field: &str, participle: &'static str) -> Error {
    let what = format!(
        "the document has mail that is not collected yet and would be lost, so it was not {participle}; update it instead, \
         or try again when the mail is collected"
    );
    Error::new(ErrorKind::Conflict, what).with("field", field)
}

fn long(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
