//! Pulling from its documents what the log has.
//!
//! A pull may fail after the append was done: the server was away, or the document refuses every update, because somebody has
//! given its collection a validator that it does not pass. What a validator refuses is pulled without it, if the user may do
//! that: it was not made for our array, and takes nothing from what the application has written. What the log has is remembered
//! here until it is pulled, and as long as it is, none of it is appended once more. That memory ends with the process and with
//! the lease; then it is sent again.
//!
//! A pull that finds nothing is not believed: mostly the mail is gone, but what the server does not find by its id we may have
//! read all the same (a document can have two fields of one name, of which the server takes the first and a client the last).
//! Mail that would be sent round after round is told instead.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use mongodb::{
    Collection, Database,
    bson::{Bson, Document, doc},
    options::{ReadPreference, SelectionCriteria},
};
use postrider_core::{Error, ErrorKind, Result};

use super::{
    collector::Refused,
    sack::{Emptied, open},
};
use crate::{
    error::{from_code, from_mongo},
    value::long_opt,
};

const OPERATION: &str = "pull what was collected";

/// What a document answers that does not pass the validator of its collection.
const INVALID: i32 = 121;

/// What the log has and documents still do.
#[derive(Debug, Default)]
pub(super) struct Owed(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    emptied: Emptied,
    /// A document that has refused is not asked before that.
    again_at: Option<Instant>,
}

impl Owed {
    pub(super) fn add(&mut self, emptied: Vec<Emptied>) {
        self.0.extend(emptied.into_iter().map(|emptied| Entry { emptied, again_at: None }));
    }

    /// How many documents.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Another collects there, and pulls what it appends itself.
    pub(super) fn forget(&mut self, collection: usize) {
        self.0.retain(|entry| entry.emptied.collection != collection);
    }

    /// The documents of a collection, which are left alone until they are pulled.
    pub(super) fn documents(&self, collection: usize) -> impl Iterator<Item = &Bson> {
        let of_this = self.0.iter().filter(move |entry| entry.emptied.collection == collection);
        of_this.map(|entry| &entry.emptied.document)
    }

    /// Pulls exactly what was carried on from the documents of a collection, wherever it stands in the array by now: the log has
    /// it. Answers which documents have refused, or still have it; those are asked again after `patience`. If it fails, everything
    /// that may not be pulled is still owed.
    pub(super) async fn pull(
        &mut self,
        database: &Database,
        collection: (usize, &str),
        field: &str,
        patience: Duration,
    ) -> Result<Vec<Refused>> {
        let (number, name) = collection;
        let now = Instant::now();
        let is_asked =
            |entry: &Entry| entry.emptied.collection == number && entry.again_at.is_none_or(|again_at| again_at <= now);
        let updates: Vec<Document> =
            self.0.iter().filter(|entry| is_asked(entry)).map(|e| e.emptied.pull(field)).collect();
        let asked = updates.len();
        if asked == 0 {
            return Ok(Vec::new());
        }
        let (matched, mut failed) = update_all(database, name, &updates).await?;
        let still = if matched + failed.len() < asked {
            let documents = self.0.iter().filter(|entry| is_asked(entry)).map(|entry| &entry.emptied);
            still_there(&database.collection(name), documents.collect(), field).await?
        } else {
            Vec::new()
        };
        let (mut place, mut refused, mut outcome) = (0, Vec::new(), Ok(()));
        self.0.retain_mut(|entry| {
            if !is_asked(entry) {
                return true;
            }
            place += 1;
            let cause = match failed.remove(&(place - 1)) {
                Some(code) => {
                    let cause = from_code(code, OPERATION);
                    if cause.is_transient() {
                        outcome = Err(cause);
                        return true;
                    }
                    let what = "the mail was collected and its document refuses the update by which it is pulled";
                    Error::new(ErrorKind::Conflict, what).with("code", code)
                }
                None if still.contains(&entry.emptied.document) => Error::new(
                    ErrorKind::Conflict,
                    "the mail was collected and the server does not find it in its document, where it still is; has the \
                     document two fields of one name?",
                ),
                None => return false,
            };
            entry.again_at = Some(now + patience);
            let document = entry.emptied.document.to_string();
            refused.push(Refused { collection: name.to_owned(), document, cause: cause.permanent() });
            true
        });
        outcome.map(|()| refused)
    }
}

/// Which of the documents still carry mail that was to be pulled from them.
async fn still_there(collection: &Collection<Document>, pulled: Vec<&Emptied>, field: &str) -> Result<Vec<Bson>> {
    let failed = |error: mongodb::error::Error| from_mongo(&error, "look whether what was collected is pulled");
    let ids: Vec<&Bson> = pulled.iter().map(|emptied| &emptied.document).collect();
    let find = collection
        .find(doc! { "_id": { "$in": ids } })
        .projection(doc! { field: 1 })
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary));
    let mut cursor = find.await.map_err(failed)?;
    let mut still = Vec::new();
    // Ends with the cursor: of each document that was pulled from there is one at most.
    while cursor.advance().await.map_err(failed)? {
        let Some((id, Ok(entries))) = open(cursor.deserialize_current().map_err(failed)?, field) else { continue };
        let of_this = pulled.iter().filter(|emptied| emptied.document == id);
        if of_this.flat_map(|emptied| &emptied.ids).any(|id| has(&entries, id)) {
            still.push(id);
        }
    }
    Ok(still)
}

fn has(entries: &[Bson], id: &Bson) -> bool {
    entries.iter().filter_map(Bson::as_document).any(|entry| entry.get("id") == Some(id))
}

impl Emptied {
    fn pull(&self, field: &str) -> Document {
        let ids = doc! { "$in": &self.ids };
        doc! {
            "q": { "_id": &self.document, format!("{field}.id"): &ids },
            "u": { "$pull": { field: { "id": ids } } },
        }
    }
}

/// How many of the updates have met a document, and which have failed with which code.
type Updated = (usize, HashMap<usize, i32>);

async fn update_all(database: &Database, collection: &str, updates: &[Document]) -> Result<Updated> {
    let (matched, mut failed) = update(database, collection, updates, true).await?;
    let places: Vec<usize> = failed.iter().filter(|(_, code)| **code == INVALID).map(|(place, _)| *place).collect();
    if places.is_empty() {
        return Ok((matched, failed));
    }
    let again: Vec<Document> = places.iter().map(|place| updates[*place].clone()).collect();
    match update(database, collection, &again, false).await {
        Ok((also, still)) => {
            failed.retain(|_, code| *code != INVALID);
            failed.extend(still.into_iter().map(|(place, code)| (places[place], code)));
            Ok((matched + also, failed))
        }
        // Whoever may not do that tells what has refused.
        Err(error) if error.kind() == ErrorKind::Denied => Ok((matched, failed)),
        Err(error) => Err(error),
    }
}

async fn update(database: &Database, collection: &str, updates: &[Document], validated: bool) -> Result<Updated> {
    let mut command = doc! {
        "update": collection, "updates": updates, "ordered": false, "writeConcern": { "w": "majority", "j": true },
    };
    if !validated {
        command.insert("bypassDocumentValidation", true);
    }
    let answer = database.run_command(command).await.map_err(|error| from_mongo(&error, OPERATION))?;
    if let Ok(concern) = answer.get_document("writeConcernError") {
        return Err(from_code(concern.get_i32("code").unwrap_or_default(), OPERATION));
    }
    let errors = answer.get_array("writeErrors").map(Vec::as_slice).unwrap_or_default();
    let errors = errors.iter().filter_map(Bson::as_document);
    let place = |error: &Document| usize::try_from(error.get_i32("index").ok()?).ok();
    let failed = errors.filter_map(|error| Some((place(error)?, error.get_i32("code").ok()?)));
    Ok((usize::try_from(long_opt(&answer, "n").unwrap_or(0)).unwrap_or(0), failed.collect()))
}
