//! The unit of work: a transaction that is run again when it must be, with collections that cannot forget its session.
//!
//! MongoDB ends a transaction that meets another one instead of letting it wait, and says so; the whole of it then has to be
//! run again. A commit whose answer was lost has to be repeated, and nothing but the commit: running the rest again could do
//! it twice. Both are done here, after random pauses, up to a deadline.
//!
//! What would throw away the mail of a document that carries its own (the [embedded outbox](crate::embedded)) is refused:
//! replacing and deleting one whose mail is not collected yet, in whichever collection, and an update that writes to the array
//! and does not merely add to it, or that makes another document (`$replaceWith`). Mail that arrives meanwhile ends the
//! transaction, which is then run again and meets it.
//!
//! ```no_run
//! use mongodb::bson::{Document, doc};
//! use postrider_core::{enlist::Enlist, envelope::Envelope, limits::Limits};
//! use postrider_store_mongodb::{Mongo, UnitOfWork};
//!
//! # async fn example(client: &mongodb::Client) -> Result<(), postrider_store_mongodb::work::Failure> {
//! let store = &Mongo::new("shop")?;
//! // Made before, so that a second run enqueues the same message and not another one.
//! let placed = &vec![Envelope::new("orders", "order.placed", "{}").with_key("o-4711")];
//! UnitOfWork::new(client, store)
//!     .run(|mut tx| async move {
//!         tx.collection::<Document>("orders").insert_one(doc! { "_id": "o-4711" }).await?;
//!         tx.append(store, Limits::default().check(placed.clone())).await?;
//!         Ok(())
//!     })
//!     .await
//! # }
//! ```

use std::{borrow::Borrow, error::Error as StdError, fmt, sync::Arc, time::Duration};

use mongodb::{
    Client, ClientSession, Collection, Database,
    bson::{Document, doc},
    error::{TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT},
    options::UpdateModifications,
    results::{DeleteResult, InsertManyResult, InsertOneResult, UpdateResult},
};
use postrider_core::{
    BoxFuture, Error, ErrorKind, Result,
    enlist::{Batch, Enlist},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::{MappedMutexGuard, Mutex, MutexGuard},
    time::Instant,
};

use crate::{
    db::start,
    dialect::Mongo,
    embedded::{Embedded, mail_waits, may_throw_away, waiting},
    error::{from_mongo, said},
    log::pause,
    wake::Waker,
};

/// How long a unit of work is tried, unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs transactions of an application. Cheap to clone.
#[derive(Clone, Debug)]
pub struct UnitOfWork {
    client: Client,
    names: Mongo,
    patience: Duration,
    waker: Option<Waker>,
    mail: Embedded,
}

impl UnitOfWork {
    /// With a client of the application's and the names of the store.
    #[must_use]
    pub fn new(client: &Client, store: &Mongo) -> Self {
        Self {
            client: client.clone(),
            names: store.clone(),
            patience: PATIENCE,
            waker: None,
            mail: Embedded::default(),
        }
    }

    /// How long it is tried again. Default 30 seconds. Too short, and a step-down of the primary is an error.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Where documents carry their mail, if not in `_outbox`.
    #[must_use]
    pub fn embedded(mut self, mail: &Embedded) -> Self {
        self.mail = mail.clone();
        self
    }

    /// Wakes a relay of the same process after each commit.
    #[must_use]
    pub fn waking(mut self, waker: &Waker) -> Self {
        self.waker = Some(waker.clone());
        self
    }

    /// Runs `body` in a transaction and commits it. It may run several times, so whatever it makes that must be the same (ids
    /// above all) is made before. It returns every error of the transaction that it was given: one that it keeps to itself may
    /// have ended the transaction.
    ///
    /// If the future is dropped half-way, the transaction is aborted, unless the commit was on its way already.
    ///
    /// # Errors
    /// What `body` returns, if that is not for another run to cure. [`ErrorKind::Unavailable`] if the deadline is over; if it
    /// was the commit whose answer never came, the error says so, and what was done is done or not done.
    pub async fn run<T, F, R>(&self, mut body: F) -> Result<T, Failure>
    where
        F: FnMut(Transaction) -> R,
        R: Future<Output = Result<T, Failure>>,
    {
        let deadline = Instant::now() + self.patience;
        let mut runs = 0;
        // Ends with a commit, with an error that another run cannot cure, or with the deadline.
        loop {
            let failure = match self.run_once(&mut body, deadline).await {
                Ok(done) => {
                    if let Some(waker) = &self.waker {
                        waker.wake();
                    }
                    return Ok(done);
                }
                Err(failure) => failure,
            };
            let wait = pause(runs);
            if !failure.is_curable() || Instant::now() + wait > deadline {
                return Err(failure);
            }
            tokio::time::sleep(wait).await;
            runs += 1;
        }
    }

    async fn run_once<T, F, R>(&self, body: &mut F, deadline: Instant) -> Result<T, Failure>
    where
        F: FnMut(Transaction) -> R,
        R: Future<Output = Result<T, Failure>>,
    {
        let mut session = self.client.start_session().await?;
        start(&mut session).await?;
        let database = self.client.database(self.names.database());
        let state = Arc::new(Mutex::new(State { session, open: true }));
        let mail = self.mail.clone();
        let outcome = body(Transaction { state: Arc::clone(&state), database, mail }).await;
        let mut state = state.lock().await;
        state.open = false;
        match outcome {
            Ok(done) => {
                commit(&mut state.session, deadline).await?;
                Ok(done)
            }
            Err(failure) => {
                // The failure is what the caller wants to know; what cannot be aborted ends by itself.
                let _ = state.session.abort_transaction().await;
                Err(failure)
            }
        }
    }
}

/// Again and again while the answer does not come; never anything but the commit.
async fn commit(session: &mut ClientSession, deadline: Instant) -> Result<(), Failure> {
    let mut commits = 0;
    loop {
        let error = match session.commit_transaction().await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if !error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) {
            return Err(error.into());
        }
        let wait = pause(commits);
        if Instant::now() + wait > deadline {
            let what = "it is not known whether the transaction was committed: its answer never came";
            // Deliberately not transient: another run could do it twice.
            return Err(Error::new(ErrorKind::Unavailable, what).permanent().caused_by(said(&error)).into());
        }
        tokio::time::sleep(wait).await;
        commits += 1;
    }
}

/// Why a unit of work was not done.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// An error of ours: of an enqueue, or of a commit whose outcome is unknown.
    Store(Error),
    /// An error of the driver.
    Driver(mongodb::error::Error),
    /// An error of the application, which no other run cures.
    Application(Box<dyn StdError + Send + Sync>),
}

impl Failure {
    /// An error of the application: the transaction is aborted and not run again.
    pub fn application(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Application(error.into())
    }

    /// As the error of everything else here.
    #[must_use]
    pub fn into_error(self) -> Error {
        match self {
            Self::Store(error) => error,
            Self::Driver(error) => from_mongo(&error, "run a transaction"),
            Self::Application(error) => Error::new(ErrorKind::Other, "run a transaction").permanent().caused_by(error),
        }
    }

    /// Whether the server has ended the transaction because it met another one, or lost its primary.
    fn is_curable(&self) -> bool {
        match self {
            Self::Store(error) => {
                error.is_transient() && matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Unavailable)
            }
            Self::Driver(error) => error.contains_label(TRANSIENT_TRANSACTION_ERROR),
            Self::Application(_) => false,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<mongodb::error::Error> for Failure {
    fn from(error: mongodb::error::Error) -> Self {
        Self::Driver(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => fmt::Display::fmt(error, f),
            Self::Driver(error) => fmt::Display::fmt(&error.kind, f),
            Self::Application(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl StdError for Failure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Store(error) => error.source(),
            Self::Driver(_) => None,
            Self::Application(error) => error.source(),
        }
    }
}

/// One run of a unit of work. Cheap to clone; when the run is over, all clones are.
#[derive(Clone, Debug)]
pub struct Transaction {
    state: Arc<Mutex<State>>,
    database: Database,
    mail: Embedded,
}

#[derive(Debug)]
struct State {
    session: ClientSession,
    open: bool,
}

impl Transaction {
    /// A collection of the store's database, bound to this transaction.
    #[must_use]
    pub fn collection<T: Send + Sync>(&self, name: &str) -> Bound<T> {
        self.bind(&self.database.collection(name))
    }

    /// A collection of any database, bound to this transaction.
    #[must_use]
    pub fn bind<T: Send + Sync>(&self, collection: &Collection<T>) -> Bound<T> {
        Bound { collection: collection.clone(), transaction: self.clone() }
    }

    /// The session itself, for repositories that take one. What is done without it is not part of the transaction.
    ///
    /// # Errors
    /// If the run is over: what were done now would be part of nothing.
    pub async fn session(&self) -> mongodb::error::Result<MappedMutexGuard<'_, ClientSession>> {
        let state = self.state.lock().await;
        if !state.open {
            return Err(mongodb::error::Error::custom("the unit of work is over".to_owned()));
        }
        Ok(MutexGuard::map(state, |state| &mut state.session))
    }
}

impl Enlist<Mongo> for Transaction {
    type Appended<'a>
        = BoxFuture<'a, Result<()>>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, store: &'a Mongo, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let session = self.session().await;
            session.map_err(|error| from_mongo(&error, "enqueue").permanent())?.append(store, batch).await
        })
    }
}

/// A collection in a transaction: what is done with it is part of that transaction and of nothing else.
#[derive(Debug)]
pub struct Bound<T: Send + Sync> {
    collection: Collection<T>,
    transaction: Transaction,
}

/// Return the errors from the unit of work.
impl<T: Send + Sync> Bound<T> {
    /// Inserts a document.
    ///
    /// # Errors
    /// What the driver answers.
    pub async fn insert_one(&self, document: impl Borrow<T>) -> mongodb::error::Result<InsertOneResult>
    where
        T: Serialize,
    {
        let mut session = self.transaction.session().await?;
        self.collection.insert_one(document).session(&mut *session).await
    }

    /// Inserts documents, in order.
    ///
    /// # Errors
    /// What the driver answers.
    pub async fn insert_many(
        &self,
        documents: impl IntoIterator<Item = impl Borrow<T>>,
    ) -> mongodb::error::Result<InsertManyResult>
    where
        T: Serialize,
    {
        let mut session = self.transaction.session().await?;
        self.collection.insert_many(documents).session(&mut *session).await
    }

    /// Replaces a document as a whole.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the document has mail that is not collected yet, or what the driver answers.
    pub async fn replace_one(&self, filter: Document, document: impl Borrow<T>) -> Result<UpdateResult, Failure>
    where
        T: Serialize,
    {
        let mut session = self.transaction.session().await?;
        let guarded = waiting(&filter, self.transaction.mail.field(), false);
        let replaced = self.collection.replace_one(guarded, document).session(&mut *session).await?;
        if replaced.matched_count == 0 {
            self.refuse_waiting(&mut session, &filter, "replaced").await?;
        }
        Ok(replaced)
    }

    /// Changes one document.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the change could throw away mail of the document that is not collected yet, or what the driver
    /// answers.
    pub async fn update_one(
        &self,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> Result<UpdateResult, Failure> {
        let update = update.into();
        let mut session = self.transaction.session().await?;
        let Some(guarded) = self.guarded(&filter, &update) else {
            return Ok(self.collection.update_one(filter, update).session(&mut *session).await?);
        };
        let updated = self.collection.update_one(guarded, update).session(&mut *session).await?;
        if updated.matched_count == 0 {
            self.refuse_waiting(&mut session, &filter, "changed").await?;
        }
        Ok(updated)
    }

    /// Changes all documents that match.
    ///
    /// # Errors
    /// As [`Self::update_one`], for any of them.
    pub async fn update_many(
        &self,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> Result<UpdateResult, Failure> {
        let update = update.into();
        let mut session = self.transaction.session().await?;
        if self.guarded(&filter, &update).is_some() {
            self.refuse_waiting(&mut session, &filter, "changed").await?;
        }
        Ok(self.collection.update_many(filter, update).session(&mut *session).await?)
    }

    /// Deletes one document.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the document has mail that is not collected yet, or what the driver answers.
    pub async fn delete_one(&self, filter: Document) -> Result<DeleteResult, Failure> {
        let mut session = self.transaction.session().await?;
        let guarded = waiting(&filter, self.transaction.mail.field(), false);
        let deleted = self.collection.delete_one(guarded).session(&mut *session).await?;
        if deleted.deleted_count == 0 {
            self.refuse_waiting(&mut session, &filter, "deleted").await?;
        }
        Ok(deleted)
    }

    /// Deletes all documents that match.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if one of them has mail that is not collected yet, or what the driver answers.
    pub async fn delete_many(&self, filter: Document) -> Result<DeleteResult, Failure> {
        let mut session = self.transaction.session().await?;
        // Before anything is deleted: who keeps the error to itself has then lost nothing.
        self.refuse_waiting(&mut session, &filter, "deleted").await?;
        Ok(self.collection.delete_many(filter).session(&mut *session).await?)
    }

    /// Those of the documents without mail, if the update could throw mail away.
    fn guarded(&self, filter: &Document, update: &UpdateModifications) -> Option<Document> {
        let field = self.transaction.mail.field();
        may_throw_away(update, field).then(|| waiting(filter, field, false))
    }

    /// Fails if a document that matches has mail. In the state that the transaction sees: a document that has changed since
    /// cannot be written in it.
    async fn refuse_waiting(
        &self,
        session: &mut ClientSession,
        filter: &Document,
        participle: &'static str,
    ) -> Result<(), Failure> {
        let field = self.transaction.mail.field();
        let documents = self.collection.clone_with_type::<Document>();
        let look = documents.find_one(waiting(filter, field, true)).projection(doc! { "_id": 1 });
        match look.session(session).await? {
            // Deliberately not transient: another run at once would find it there, too.
            Some(_) => Err(mail_waits(field, participle).permanent().into()),
            None => Ok(()),
        }
    }

    /// Changes one document and returns it as it is then.
    ///
    /// # Errors
    /// As [`Self::update_one`].
    pub async fn find_one_and_update(
        &self,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> Result<Option<T>, Failure>
    where
        T: DeserializeOwned,
    {
        let after = mongodb::options::ReturnDocument::After;
        let update = update.into();
        let guarded = self.guarded(&filter, &update);
        let is_guarded = guarded.is_some();
        let mut session = self.transaction.session().await?;
        let action = self.collection.find_one_and_update(guarded.unwrap_or_else(|| filter.clone()), update);
        let found = action.return_document(after).session(&mut *session).await?;
        if found.is_none() && is_guarded {
            self.refuse_waiting(&mut session, &filter, "changed").await?;
        }
        Ok(found)
    }

    /// One document that matches.
    ///
    /// # Errors
    /// What the driver answers.
    pub async fn find_one(&self, filter: Document) -> mongodb::error::Result<Option<T>>
    where
        T: DeserializeOwned,
    {
        let mut session = self.transaction.session().await?;
        self.collection.find_one(filter).session(&mut *session).await
    }

    /// All documents that match.
    ///
    /// # Errors
    /// What the driver answers.
    pub async fn find(&self, filter: Document) -> mongodb::error::Result<Vec<T>>
    where
        T: DeserializeOwned,
    {
        let mut session = self.transaction.session().await?;
        let mut cursor = self.collection.find(filter).session(&mut *session).await?;
        let mut found = Vec::new();
        // Ends with the cursor.
        while let Some(document) = cursor.next(&mut session).await {
            found.push(document?);
        }
        Ok(found)
    }
}
