//! [`Sack`]: the mail of many documents on its way into one batch. Pure: what it takes, in which order, and what it refuses.

use std::collections::HashSet;

use mongodb::bson::{Bson, Document};
use postrider_core::{
    Error, Result,
    enlist::Batch,
    envelope::{Envelope, MessageId},
    key::OrderingKey,
    limits::Limits,
};

use crate::records::{envelope, misshapen};

/// Mail that is carried together.
#[derive(Debug, Default)]
pub(super) struct Sack {
    envelopes: Vec<Envelope>,
    ids: HashSet<MessageId>,
    bytes: usize,
    pub(super) emptied: Vec<Emptied>,
    pub(super) refused: Vec<(usize, Bson, Error)>,
}

/// A document, and which of its messages were taken.
#[derive(Debug)]
pub(super) struct Emptied {
    /// Which of the collections.
    pub(super) collection: usize,
    pub(super) document: Bson,
    /// The ids as they stand in the array; the first is at its head.
    pub(super) ids: Vec<Bson>,
}

/// What one batch holds at most: an enqueue of this size is short.
const MESSAGES_MAX: usize = 1_000;
const BYTES_MAX: usize = 8 << 20;

impl Sack {
    /// Takes the mail of a document from its head, as much as fits and can be sent. `false`: it is full.
    pub(super) fn take(
        &mut self,
        collection: (usize, &str),
        document: Bson,
        entries: Vec<Bson>,
        limits: &Limits,
    ) -> bool {
        let key = document_key(collection.1, &document);
        let (mut ids, mut cause, mut full) = (Vec::new(), None, false);
        for entry in entries {
            let (id, envelope) = match read(entry, &key, limits) {
                Ok(read) => read,
                Err(error) => {
                    cause = Some(error);
                    break;
                }
            };
            if ids.contains(&id) {
                // The same message twice in one document: an application was not sure whether its first write was done.
                continue;
            }
            let weight = envelope.weight();
            full = self.envelopes.len() >= MESSAGES_MAX.min(limits.batch_messages_max)
                || !self.envelopes.is_empty() && self.bytes + weight > BYTES_MAX.min(limits.batch_bytes_max);
            // Of one enqueue no two have the same id; those of another document have to wait for the next.
            if full || !self.ids.insert(envelope.id) {
                full = true;
                break;
            }
            self.bytes += weight;
            self.envelopes.push(envelope);
            ids.push(id);
        }
        if let (Some(error), true) = (cause, ids.is_empty()) {
            self.refuse(collection.0, document.clone(), error);
        }
        if !ids.is_empty() {
            self.emptied.push(Emptied { collection: collection.0, document, ids });
        }
        !full
    }

    /// Notes a document of which nothing can be sent.
    pub(super) fn refuse(&mut self, collection: usize, document: Bson, cause: Error) {
        self.refused.push((collection, document, cause));
    }

    pub(super) fn messages(&self) -> usize {
        self.envelopes.len()
    }

    /// As a batch for the log.
    pub(super) fn batch(&self, limits: &Limits) -> Result<Batch> {
        limits.check(self.envelopes.clone())
    }
}

/// An entry's id as it stands there, and its message.
fn read(entry: Bson, key: &str, limits: &Limits) -> Result<(Bson, Envelope)> {
    let Bson::Document(entry) = entry else {
        return Err(Error::invalid("mail is a document with id, topic, name and payload"));
    };
    let id = entry.get("id").cloned().unwrap_or(Bson::Null);
    if crate::value::uuid_opt(&entry, "id").is_none() {
        return Err(Error::invalid("the id of a message is a UUID, as binary or text").with("id", shown(&id)));
    }
    if let Some(field) = misshapen(&entry) {
        return Err(Error::invalid("a field of a message is of a type that is not read there").with("field", field));
    }
    let mut envelope = envelope(entry);
    envelope.key.get_or_insert_with(|| OrderingKey::from(key));
    limits.check(vec![envelope.clone()])?;
    Ok((id, envelope))
}

fn shown(id: &Bson) -> String {
    id.to_string().chars().take(80).collect()
}

/// A message without a key of its own is kept in order with the rest of its document.
fn document_key(collection: &str, id: &Bson) -> String {
    let id = match id {
        Bson::ObjectId(id) => id.to_hex(),
        Bson::String(text) => text.clone(),
        other => other.to_string(),
    };
    let key = format!("{collection}/{id}");
    if key.len() <= KEY_BYTES_MAX {
        key
    } else {
        format!("{collection}/{:032x}", xxhash_rust::xxh3::xxh3_128(id.as_bytes()))
    }
}

/// Longer ids are told apart by their hash: a key has a limit.
const KEY_BYTES_MAX: usize = 200;

/// What a document that was found carries: its id and its mail. Where something else stands in the place of the array, it is
/// refused, however much it looks like a message: nothing can be pulled from it, so it would be sent again and again.
pub(super) fn open(mut found: Document, field: &str) -> Option<(Bson, Result<Vec<Bson>>)> {
    let entries = match found.remove(field)? {
        Bson::Array(entries) => Ok(entries),
        _ => Err(Error::invalid("mail is in an array of its document; add to it with `$push`, not with `$set`")
            .with("field", field.escape_debug())),
    };
    Some((found.remove("_id")?, entries))
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;
    use crate::records::fields;

    fn entry(envelope: &Envelope) -> Bson {
        fields(envelope).into()
    }

    fn message() -> Envelope {
        Envelope::new("orders", "order.placed", "{}")
    }

    #[test]
    fn mail_keeps_its_order_under_the_key_of_its_document() {
        let (a, b) = (message(), message().with_key("own"));
        let mut sack = Sack::default();
        assert!(sack.take((0, "orders"), "o-1".into(), vec![entry(&a), entry(&b)], &Limits::default()));
        let batch = sack.batch(&Limits::default()).unwrap();
        let taken: Vec<_> = batch.envelopes().iter().map(|e| (e.id, e.key.as_ref().unwrap().as_str())).collect();
        assert_eq!(taken, [(a.id, "orders/o-1"), (b.id, "own")]);
        assert_eq!((sack.emptied.len(), sack.emptied[0].ids.len(), sack.refused.len()), (1, 2, 0));
    }

    #[test]
    fn a_message_that_cannot_be_sent_keeps_what_stands_behind_it_and_nothing_else() {
        let (good, bad, behind) = (message(), doc! { "id": "no uuid" }, message());
        let mut sack = Sack::default();
        let entries = vec![entry(&good), bad.clone().into(), entry(&behind)];
        assert!(sack.take((0, "orders"), 1.into(), entries, &Limits::default()));
        assert_eq!((sack.messages(), sack.refused.len()), (1, 0), "what stands before it goes");
        assert!(sack.take((0, "orders"), 2.into(), vec![bad.into(), entry(&behind)], &Limits::default()));
        assert_eq!((sack.messages(), sack.refused.len(), sack.emptied.len()), (1, 1, 1));
        assert!(sack.refused[0].2.to_string().contains("UUID"), "{}", sack.refused[0].2);
    }

    #[test]
    fn only_an_array_is_mail() {
        let one = entry(&message());
        let (id, entries) = open(doc! { "_id": 7, "_outbox": [one.clone()] }, "_outbox").unwrap();
        assert_eq!((id, entries.unwrap()), (7.into(), vec![one.clone()]));
        for other in [one, "text".into(), Bson::Null] {
            let (id, entries) = open(doc! { "_id": 7, "_outbox": other }, "_outbox").unwrap();
            let refused = entries.unwrap_err();
            assert!(id == 7.into() && refused.to_string().contains("array"), "{refused}");
        }
        assert!(open(doc! { "_id": 7 }, "_outbox").is_none());
    }

    #[test]
    fn the_same_message_counts_once_in_a_document_and_waits_in_another() {
        let one = message();
        let mut sack = Sack::default();
        assert!(sack.take((0, "orders"), 1.into(), vec![entry(&one), entry(&one)], &Limits::default()));
        assert_eq!(sack.messages(), 1);
        assert!(!sack.take((0, "orders"), 2.into(), vec![entry(&one)], &Limits::default()));
        assert!(sack.batch(&Limits::default()).is_ok());
    }

    #[test]
    fn it_is_full_at_some_point() {
        let mut sack = Sack::default();
        let many: Vec<Bson> = (0..MESSAGES_MAX + 5).map(|_| entry(&message())).collect();
        assert!(!sack.take((0, "orders"), 1.into(), many, &Limits::default()));
        assert_eq!((sack.messages(), sack.emptied[0].ids.len()), (MESSAGES_MAX, MESSAGES_MAX));
        assert!(!sack.take((0, "orders"), 2.into(), vec![entry(&message())], &Limits::default()));
        assert_eq!((sack.emptied.len(), sack.refused.len()), (1, 0));
    }

    #[test]
    fn long_ids_make_short_keys() {
        assert_eq!(document_key("c", &"x".into()), "c/x");
        let (long, other) = ("x".repeat(300), "y".repeat(300));
        let keys = [long, other].map(|id| document_key("c", &id.into()));
        assert!(keys[0] != keys[1] && keys[0].len() < KEY_BYTES_MAX);
    }
}
