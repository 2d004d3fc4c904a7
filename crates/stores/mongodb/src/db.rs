//! A piece of work on the database: commands that are transactions of their own, a look at one state of it, or a transaction.
//!
//! Every command says by itself how durable its write and how settled its read must be, whatever the client was told: writes
//! wait until a majority has them in its journal, reads see nothing that could be rolled back and everything that this process
//! was told of before (see [`crate::seen`]).
//!
//! A write of its own that meets a document which somebody's open transaction has written *waits* for that one to end, while a
//! write inside of a transaction is refused at once. A transaction whose process has died stays open until the server ends it,
//! a minute later or more, so no write waits without a limit ([`Db::within`]).

use std::{sync::Arc, time::Duration};

use mongodb::{
    Client, ClientSession, Database,
    bson::{Bson, Document, Timestamp, doc},
    options::{Acknowledgment, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern},
};
use postrider_core::{Error, ErrorKind, enlist::Batch, time::Timestamp as Instant};

use crate::{
    cursor::{Tick, tick, timestamp},
    dialect::Mongo,
    enlist,
    error::{Fault, Work, corrupt},
    seen::Seen,
    value::{long, millis, point, text_opt},
};

/// How long a write may wait for the majority before it counts as neither done nor not done, and a read until it reaches what
/// this process has seen.
const MAJORITY_PATIENCE: Duration = Duration::from_secs(30);

fn patience_millis() -> i64 {
    millis_of(MAJORITY_PATIENCE)
}

fn millis_of(patience: Duration) -> i64 {
    i64::try_from(patience.as_millis()).unwrap_or(i64::MAX)
}

/// Documents of one answer, as far as they fit into 16 MB.
const BATCH_MAX: i64 = 100_000;

/// Updates of one command. Each may carry a cause of 8 KiB, and a command is a document like any other.
const STATEMENTS_MAX: usize = 1_000;

/// The server's clock, in an expression: microseconds since 1970, as a number.
pub(crate) fn server_now() -> Document {
    doc! { "$multiply": [{ "$toLong": "$$NOW" }, 1_000_i64] }
}

/// The work, and the names of the collections.
pub(crate) struct Db {
    pub(crate) names: Mongo,
    database: Database,
    /// A cursor belongs to the session in which it was opened.
    session: ClientSession,
    mode: Mode,
    /// How long a write of its own may take.
    patience: Duration,
    seen: Arc<Seen>,
}

enum Mode {
    Alone,
    /// At the point of time that the first read was given.
    Look(Option<Timestamp>),
    Transaction,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    /// A change of things which are no documents: an index takes as long as it takes.
    Make,
}

/// What to look for. `limit` 0 is everything.
#[derive(Clone, Default)]
pub(crate) struct Find {
    pub(crate) filter: Document,
    pub(crate) sort: Document,
    pub(crate) fields: Document,
    pub(crate) limit: i64,
}

impl Find {
    pub(crate) fn new(filter: Document) -> Self {
        Self { filter, ..Self::default() }
    }

    pub(crate) fn sort(self, sort: Document) -> Self {
        Self { sort, ..self }
    }

    pub(crate) fn fields(self, fields: Document) -> Self {
        Self { fields, ..self }
    }

    pub(crate) fn limit(self, limit: i64) -> Self {
        Self { limit, ..self }
    }

    fn command(self, collection: String) -> Document {
        let mut command = doc! { "find": collection, "filter": self.filter, "batchSize": BATCH_MAX };
        if !self.sort.is_empty() {
            command.insert("sort", self.sort);
        }
        if !self.fields.is_empty() {
            command.insert("projection", self.fields);
        }
        if self.limit > 0 {
            command.insert("limit", self.limit);
        }
        command
    }
}

impl Db {
    /// Commands that are transactions of their own.
    pub(crate) async fn alone(client: &Client, names: &Mongo, seen: &Arc<Seen>) -> Work<Self> {
        Self::new(client, names, seen, Mode::Alone).await
    }

    /// On one state of the database, and without changing it.
    pub(crate) async fn look(client: &Client, names: &Mongo, seen: &Arc<Seen>) -> Work<Self> {
        Self::new(client, names, seen, Mode::Look(None)).await
    }

    /// A transaction, which is rolled back if it is dropped without [`Self::commit`].
    pub(crate) async fn begin(client: &Client, names: &Mongo, seen: &Arc<Seen>) -> Work<Self> {
        let mut db = Self::new(client, names, seen, Mode::Transaction).await?;
        start(&mut db.session).await?;
        Ok(db)
    }

    async fn new(client: &Client, names: &Mongo, seen: &Arc<Seen>, mode: Mode) -> Work<Self> {
        let session = client.start_session().causal_consistency(false).await?;
        let (database, seen) = (client.database(names.database()), Arc::clone(seen));
        Ok(Self { names: names.clone(), database, session, mode, patience: MAJORITY_PATIENCE, seen })
    }

    /// Writes of their own that do not wait for longer, neither for somebody's transaction nor for the majority. What was not
    /// answered in time is done or not done.
    pub(crate) fn within(self, patience: Duration) -> Self {
        Self { patience: patience.min(MAJORITY_PATIENCE), ..self }
    }

    /// Repeats the commit while it is not known whether it has happened, and nothing but the commit.
    pub(crate) async fn commit(mut self) -> Work<()> {
        if !matches!(self.mode, Mode::Transaction) {
            return Ok(());
        }
        let (mut repeats, began) = (0, std::time::Instant::now());
        loop {
            match self.session.commit_transaction().await.map_err(Fault::from) {
                Err(fault)
                    if fault.is_unknown_commit() && repeats < COMMITS_MAX && began.elapsed() < MAJORITY_PATIENCE =>
                {
                    repeats += 1;
                }
                outcome => {
                    if let (Ok(()), Some(time)) = (&outcome, self.operation_time()) {
                        self.seen.note(time);
                    }
                    return outcome;
                }
            }
        }
    }

    /// At once, and not when somebody cleans the session.
    pub(crate) async fn roll_back(mut self) {
        if matches!(self.mode, Mode::Transaction) {
            // What cannot be rolled back has ended by itself, or will.
            let _ = self.session.abort_transaction().await;
        }
    }

    /// When the last command ran, by the time of the cluster.
    pub(crate) fn operation_time(&self) -> Option<Tick> {
        self.session.operation_time().map(tick)
    }

    /// Appends to the log, as an application does.
    pub(crate) async fn append(&mut self, batch: &Batch) -> Work<()> {
        enlist::enqueue(&mut self.session, &self.names, batch).await
    }

    async fn run(&mut self, mut command: Document, access: Access) -> Work<Document> {
        // Before the command says it: others may learn of more meanwhile.
        let wanted = self.seen.newest();
        match (&self.mode, access) {
            (Mode::Transaction, _) => {}
            (Mode::Look(Some(at)), _) => {
                command.insert("readConcern", doc! { "level": "snapshot", "atClusterTime": *at });
            }
            (Mode::Look(None), _) => self.reach(&mut command, "snapshot"),
            (Mode::Alone, Access::Read) if command.contains_key("readConcern") => {}
            (Mode::Alone, Access::Read) => self.reach(&mut command, "majority"),
            (Mode::Alone, access) => {
                let durable = doc! { "w": "majority", "j": true, "wtimeout": patience_millis() };
                command.insert("writeConcern", durable);
                if access == Access::Write {
                    command.insert("maxTimeMS", millis_of(self.patience));
                }
            }
        }
        let answer = self.database.run_command(command).session(&mut self.session).await?;
        refused(&answer)?;
        let told = match &mut self.mode {
            Mode::Look(at @ None) => {
                *at = answer.get_document("cursor").ok().and_then(|cursor| cursor.get_timestamp("atClusterTime").ok());
                at.map(tick)
            }
            Mode::Alone => point(&answer, "operationTime"),
            // What a transaction sees counts once it is committed.
            Mode::Look(Some(_)) | Mode::Transaction => None,
        };
        if let Some(told) = told {
            if matches!(self.mode, Mode::Look(_)) && wanted.is_some_and(|wanted| told < wanted) {
                return Err(Error::new(ErrorKind::Unavailable, "the server shows an older state than before").into());
            }
            self.seen.note(told);
        }
        Ok(answer)
    }

    /// Makes a read see all that this process has seen, or fail if the server does not get there in time.
    fn reach(&self, command: &mut Document, level: &str) {
        let mut concern = doc! { "level": level };
        if let Some(time) = self.seen.newest() {
            concern.insert("afterClusterTime", timestamp(time));
            command.insert("maxTimeMS", patience_millis());
        }
        command.insert("readConcern", concern);
    }

    /// Closes a cursor without waiting for it. If that does not arrive, the server closes it by itself after a while.
    pub(crate) fn close(&self, collection: &str, cursor: i64) {
        let database = self.database.clone();
        let command = doc! { "killCursors": collection, "cursors": [cursor] };
        tokio::spawn(async move {
            let _ = database.run_command(command).await;
        });
    }

    /// The next answer of a cursor that stays open: as soon as there is something, or after `patience` without anything.
    pub(crate) async fn more(&mut self, collection: &str, cursor: i64, max: i64, patience: Duration) -> Work<Document> {
        let command = doc! {
            "getMore": cursor,
            "collection": collection,
            "batchSize": max,
            "maxTimeMS": millis_of(patience),
        };
        Ok(self.database.run_command(command).session(&mut self.session).await?)
    }

    /// A command that reads, and its whole answer.
    pub(crate) async fn ask(&mut self, command: Document) -> Work<Document> {
        self.run(command, Access::Read).await
    }

    /// A command that changes things which are no documents, such as collections.
    pub(crate) async fn tell(&mut self, command: Document) -> Work<Document> {
        self.run(command, Access::Make).await
    }

    /// The collection of the log, as the server describes it now. Not for a transaction, which cannot ask this.
    pub(crate) async fn described_log(&mut self) -> Work<Described> {
        let command = doc! { "listCollections": 1, "filter": { "name": self.names.log() } };
        let answer = match self.database.run_command(command).session(&mut self.session).await.map_err(Fault::from) {
            Ok(answer) => answer,
            // Not authorised. Whoever may not ask goes on without knowing.
            Err(fault) if fault.code() == Some(13) => return Ok(Described::Unknown),
            Err(fault) => return Err(fault),
        };
        let Some(mut found) = batch(answer, "firstBatch")?.0.pop() else { return Ok(Described::Absent) };
        let Ok(info) = found.get_document_mut("info") else { return Ok(Described::Unknown) };
        let Some(id) = info.remove("uuid") else { return Ok(Described::Unknown) };
        let validator =
            found.get_document("options").and_then(|options| options.get_document("validator")).ok().cloned();
        Ok(Described::There { id, validator })
    }

    /// The names of the log's indexes.
    pub(crate) async fn log_indexes(&mut self) -> Work<Vec<String>> {
        let command = doc! { "listIndexes": self.names.log() };
        let answer = self.database.run_command(command).session(&mut self.session).await?;
        let found = batch(answer, "firstBatch")?.0;
        Ok(found.iter().filter_map(|index| text_opt(index, "name")).map(ToOwned::to_owned).collect())
    }

    /// All documents of a cursor, batch by batch.
    async fn exhaust(&mut self, collection: &str, answer: Document) -> Work<Vec<Document>> {
        let (mut found, mut id) = batch(answer, "firstBatch")?;
        // Ends with the cursor.
        while id != 0 {
            let more = doc! { "getMore": id, "collection": collection, "batchSize": BATCH_MAX };
            let answer = self.database.run_command(more).session(&mut self.session).await?;
            let (next, then) = batch(answer, "nextBatch")?;
            found.extend(next);
            id = then;
        }
        Ok(found)
    }

    pub(crate) async fn find(&mut self, collection: &str, find: Find) -> Work<Vec<Document>> {
        let name = self.names.name(collection);
        let answer = self.run(find.command(name.clone()), Access::Read).await?;
        self.exhaust(&name, answer).await
    }

    pub(crate) async fn find_one(&mut self, collection: &str, filter: Document) -> Work<Option<Document>> {
        Ok(self.find(collection, Find::new(filter).limit(1)).await?.into_iter().next())
    }

    pub(crate) async fn aggregate(&mut self, collection: &str, pipeline: Vec<Document>) -> Work<Vec<Document>> {
        let name = self.names.name(collection);
        let command = doc! { "aggregate": &name, "pipeline": pipeline, "cursor": { "batchSize": BATCH_MAX } };
        let answer = self.run(command, Access::Read).await?;
        self.exhaust(&name, answer).await
    }

    pub(crate) async fn insert(&mut self, collection: &str, documents: Vec<Document>) -> Work<()> {
        if documents.is_empty() {
            return Ok(());
        }
        let command = doc! { "insert": self.names.name(collection), "documents": documents, "ordered": true };
        self.run(command, Access::Write).await?;
        Ok(())
    }

    /// One document, or all that match. Answers how many matched, changed or not.
    pub(crate) async fn update(&mut self, collection: &str, update: Update) -> Work<u64> {
        let updates = vec![update.into_statement()];
        let command = doc! { "update": self.names.name(collection), "updates": updates, "ordered": true };
        let answer = self.run(command, Access::Write).await?;
        Ok(long(&answer, "n")?.unsigned_abs())
    }

    /// Many updates, one after the other, in as few commands as they fit into.
    pub(crate) async fn update_all(&mut self, collection: &str, updates: Vec<Update>) -> Work<()> {
        let name = self.names.name(collection);
        let mut statements = updates.into_iter().map(Update::into_statement).peekable();
        // Ends with the updates.
        while statements.peek().is_some() {
            let some: Vec<Document> = statements.by_ref().take(STATEMENTS_MAX).collect();
            self.run(doc! { "update": &name, "updates": some, "ordered": true }, Access::Write).await?;
        }
        Ok(())
    }

    /// Changes one document and returns it as it is then. `None`: none matches.
    pub(crate) async fn find_and_update(
        &mut self,
        collection: &str,
        filter: Document,
        change: impl Into<Bson>,
    ) -> Work<Option<Document>> {
        self.find_and_modify(collection, Update::one(filter, change)).await
    }

    /// As [`Self::find_and_update`], and makes the document where there is none.
    pub(crate) async fn find_and_upsert(
        &mut self,
        collection: &str,
        filter: Document,
        change: impl Into<Bson>,
    ) -> Work<Document> {
        let found = self.find_and_modify(collection, Update::one(filter, change).or_insert()).await?;
        Ok(found.ok_or_else(|| corrupt("a document that was just written is not there"))?)
    }

    async fn find_and_modify(&mut self, collection: &str, update: Update) -> Work<Option<Document>> {
        let Update { filter, change, upsert, .. } = update;
        let name = self.names.name(collection);
        let command = doc! { "findAndModify": name, "query": filter, "update": change, "new": true, "upsert": upsert };
        let mut answer = self.run(command, Access::Write).await?;
        Ok(match answer.remove("value") {
            Some(Bson::Document(document)) => Some(document),
            _ => None,
        })
    }

    pub(crate) async fn delete(&mut self, collection: &str, filter: Document) -> Work<u64> {
        let statement = doc! { "q": filter, "limit": 0 };
        let command = doc! { "delete": self.names.name(collection), "deletes": [statement] };
        let answer = self.run(command, Access::Write).await?;
        Ok(long(&answer, "n")?.unsigned_abs())
    }

    /// The instant by the database's clock. The one door through which time enters this crate.
    pub(crate) async fn now(&mut self) -> Work<Instant> {
        let pipeline = vec![doc! { "$match": { "_id": "epoch" } }, doc! { "$project": { "now": "$$NOW" } }];
        let found = self.aggregate("meta", pipeline).await?;
        let document = found.first().ok_or_else(|| missing_meta(&self.names))?;
        Ok(millis(document, "now")?.ok_or_else(|| corrupt("the server does not say what time it is"))?)
    }

    /// The point up to which everything is committed by a majority, by the time of the cluster.
    pub(crate) async fn committed(&mut self) -> Work<Tick> {
        let command = doc! { "find": self.names.name("meta"), "limit": 1, "singleBatch": true };
        let answer = self.run(command, Access::Read).await?;
        let time =
            answer.get_timestamp("operationTime").map_err(|_| corrupt("the server tells no time of the cluster"))?;
        Ok(tick(time))
    }

    /// A fresh epoch: greater than any before.
    pub(crate) async fn draw_epoch(&mut self) -> Work<i64> {
        let value = doc! { "$max": [{ "$add": ["$value", 1_i64] }, server_now()] };
        let change = vec![doc! { "$set": { "value": value } }];
        let drawn = self.find_and_update("meta", doc! { "_id": "epoch" }, change).await?;
        long(&drawn.ok_or_else(|| missing_meta(&self.names))?, "value")
    }

    /// Draws a number that nobody else gets.
    pub(crate) async fn draw(&mut self, name: &str) -> Work<i64> {
        let drawn = self.find_and_update("meta", doc! { "_id": name }, doc! { "$inc": { "value": 1_i64 } }).await?;
        long(&drawn.ok_or_else(|| missing_meta(&self.names))?, "value")
    }

    /// Whoever changes which readers there are, or depends on it, writes here: of two at the same time one is repeated.
    pub(crate) async fn lock_readers(&mut self) -> Work<()> {
        self.draw("readers").await.map(drop)
    }

    /// Everything that changes a route's parked rows or lanes writes to the route, so that the head of a line, which is marked,
    /// is found by one transaction at a time. Draws ordinals, too: answers the last of `count` new ones.
    pub(crate) async fn lock_route(&mut self, route: &str, count: i64) -> Work<i64> {
        let change = doc! { "$inc": { "ordinals": count, "beat": 1_i64 } };
        match self.find_and_update("route", doc! { "_id": route }, change).await? {
            Some(document) => long(&document, "ordinals"),
            None => Ok(count),
        }
    }
}

/// Begins a transaction that is as durable as it must be, whatever the client was told.
pub(crate) async fn start(session: &mut ClientSession) -> mongodb::error::Result<()> {
    session
        .start_transaction()
        .read_concern(ReadConcern::snapshot())
        .write_concern(durable())
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
        .await
}

/// A commit whose outcome is unknown is repeated so often.
const COMMITS_MAX: u32 = 5;

/// What the server says of a collection.
pub(crate) enum Described {
    /// It does not say.
    Unknown,
    Absent,
    There {
        /// Another one for each collection that was ever made, whatever it is called.
        id: Bson,
        validator: Option<Document>,
    },
}

impl Described {
    /// Which collection it is, if it is there and known.
    pub(crate) fn id(self) -> Option<Bson> {
        match self {
            Self::There { id, .. } => Some(id),
            Self::Unknown | Self::Absent => None,
        }
    }
}

/// Which documents become what.
pub(crate) struct Update {
    filter: Document,
    change: Bson,
    many: bool,
    upsert: bool,
}

impl Update {
    pub(crate) fn one(filter: Document, change: impl Into<Bson>) -> Self {
        Self { filter, change: change.into(), many: false, upsert: false }
    }

    pub(crate) fn many(filter: Document, change: impl Into<Bson>) -> Self {
        Self { many: true, ..Self::one(filter, change) }
    }

    pub(crate) fn or_insert(self) -> Self {
        Self { upsert: true, ..self }
    }

    fn into_statement(self) -> Document {
        let Self { filter, change, many, upsert } = self;
        doc! { "q": filter, "u": change, "multi": many, "upsert": upsert }
    }
}

/// In the journals of a majority.
pub(crate) fn durable() -> WriteConcern {
    WriteConcern::builder().w(Acknowledgment::Majority).journal(true).w_timeout(MAJORITY_PATIENCE).build()
}

/// An answer that is good may tell of a write that is not.
pub(crate) fn refused(answer: &Document) -> Work<()> {
    let first = answer.get_array("writeErrors").ok().and_then(|errors| errors.first()).and_then(Bson::as_document);
    let Some(error) = first.or_else(|| answer.get_document("writeConcernError").ok()) else { return Ok(()) };
    let code = error.get_i32("code").unwrap_or_default();
    // The server repeats what it was told in the text of some errors; only those that never do are shown.
    let message = error.get_str("codeName").map_or_else(|_| format!("the server answers {code}"), ToOwned::to_owned);
    Err(Fault::Refused { code, message })
}

fn missing_meta(names: &Mongo) -> Error {
    Error::new(
        ErrorKind::Schema,
        "the collections of the store are missing; run the migrations, or let the store do it",
    )
    .with("database", names.database())
    .with("prefix", names.prefix())
}

/// The documents of a batch and the cursor's number.
pub(crate) fn batch(mut answer: Document, name: &str) -> Work<(Vec<Document>, i64)> {
    let Some(Bson::Document(mut cursor)) = answer.remove("cursor") else {
        return Err(corrupt("the server answers without a cursor").into());
    };
    let id = long(&cursor, "id")?;
    let Some(Bson::Array(documents)) = cursor.remove(name) else {
        return Err(corrupt("the server answers without a batch").into());
    };
    let documents = documents.into_iter().filter_map(|document| match document {
        Bson::Document(document) => Some(document),
        _ => None,
    });
    Ok((documents.collect(), id))
}
