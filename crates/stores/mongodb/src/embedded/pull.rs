//! Pulling from its documents what the log has.
//!
//! A pull may fail after the append was done: the server was away, or the document refuses every update, because somebody has
//! given its collection a validator that it does not pass. What the log has is remembered here until it is pulled, and as long
//! as it is, none of it is appended once more. That memory ends with the process and with the lease; then it is sent again.

use std::time::{Duration, Instant};

use mongodb::{
    Database,
    bson::{Bson, Document, doc},
};
use postrider_core::{Error, ErrorKind, Result};

use super::{collector::Refused, sack::Emptied};
use crate::error::{from_code, from_mongo};

const OPERATION: &str = "pull what was collected";

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

    /// Pulls exactly what was carried on from the documents of a collection, where the head is still the one that was read: a
    /// stale pull matches nothing. Answers which documents have refused; those are asked again after `patience`. If it fails,
    /// everything that may not be pulled is still owed.
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
        if updates.is_empty() {
            return Ok(Vec::new());
        }
        let command = doc! {
            "update": name, "updates": updates, "ordered": false, "writeConcern": { "w": "majority", "j": true },
        };
        let answer = database.run_command(command).await.map_err(|error| from_mongo(&error, OPERATION))?;
        if let Ok(concern) = answer.get_document("writeConcernError") {
            return Err(from_code(concern.get_i32("code").unwrap_or_default(), OPERATION));
        }
        let mut failed = failed(&answer);
        let (mut place, mut refused, mut outcome) = (0, Vec::new(), Ok(()));
        self.0.retain_mut(|entry| {
            if !is_asked(entry) {
                return true;
            }
            place += 1;
            let Some(code) = failed.remove(&(place - 1)) else { return false };
            let cause = from_code(code, OPERATION);
            if cause.is_transient() {
                outcome = Err(cause);
            } else {
                entry.again_at = Some(now + patience);
                let what = "the mail was collected and its document refuses the update by which it is pulled";
                let cause = Error::new(ErrorKind::Conflict, what).with("code", code).permanent();
                let document = entry.emptied.document.to_string();
                refused.push(Refused { collection: name.to_owned(), document, cause });
            }
            true
        });
        outcome.map(|()| refused)
    }
}

impl Emptied {
    fn pull(&self, field: &str) -> Document {
        let head = format!("{field}.0.id");
        doc! {
            "q": { "_id": &self.document, head: self.ids.first() },
            "u": { "$pull": { field: { "id": { "$in": &self.ids } } } },
        }
    }
}

/// Which of the updates have failed, and with which code.
fn failed(answer: &Document) -> std::collections::HashMap<i32, i32> {
    let errors = answer.get_array("writeErrors").map(Vec::as_slice).unwrap_or_default();
    let errors = errors.iter().filter_map(Bson::as_document);
    errors.filter_map(|error| Some((error.get_i32("index").ok()?, error.get_i32("code").ok()?))).collect()
}
