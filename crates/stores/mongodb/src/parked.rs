//! Parked rows: how they change, and how the head of each line is kept.
//!
//! The rows of one key that are in line are one range of an index, by ordinal; the first of them is the head. A row waits
//! for time alone if it is in no line, or the head of one: such a row has `wake_at`, all others have none. That is the
//! store's own mark and says nothing new. It is brought up to date for every key that a transaction touched, at its end,
//! and it is what makes a due read one short range of an index, however many rows are held. Every transaction here writes to
//! the route first: two that each remove a row of one line would otherwise each mark the other's as head.
//!
//! A destination that refuses everything parks thousands of rows at once, each of another key, and the lane cannot be written
//! by anybody else meanwhile. So whatever is done is done to all rows together: the number of commands does not grow with them.

use std::collections::{BTreeSet, HashMap, HashSet};

use mongodb::bson::{Bson, Document, doc};
use postrider_core::{
    key::KeyHash,
    log::RecordRef,
    parked::{Ordinal, Parked, ParkedState},
    time::Timestamp,
};
use uuid::Uuid;

use crate::{
    db::{Db, Find, Update},
    error::Work,
    records::fields,
    value::{instant, is_true, long, long_opt, text, uuid, uuid_opt},
};

/// The parked rows of one route, in one transaction. Call [`Self::finish`] at its end.
pub(crate) struct Rows<'a> {
    db: &'a mut Db,
    route: &'a str,
    now: Timestamp,
    /// The ordinal that the next row gets.
    next: i64,
    touched: BTreeSet<i64>,
}

/// What a row's state comes down to in fields.
struct Fields<'a> {
    state: ParkedState,
    in_line: bool,
    due_at: Option<Timestamp>,
    attempts: Option<u32>,
    cause: Option<(&'a str, &'a str)>,
}

impl Fields<'_> {
    fn due_at(&self) -> Option<i64> {
        self.due_at.map(Timestamp::as_micros)
    }

    /// A row in no line wakes by its own time. One in line does as the head only, which is seen to at the end.
    fn wake_at(&self) -> Option<i64> {
        self.due_at().filter(|_| !self.in_line)
    }

    fn document(&self) -> Document {
        let mut document = doc! {
            "state": self.state.name(),
            "in_line": self.in_line,
            "due_at": self.due_at(),
            "wake_at": self.wake_at(),
        };
        if let Some(attempts) = self.attempts {
            document.insert("attempts", i64::from(attempts));
        }
        if let Some((code, detail)) = self.cause {
            document.insert("cause_code", code);
            document.insert("cause_detail", shortened(detail));
        }
        document
    }
}

/// A row before it changes.
#[derive(Clone)]
struct Found {
    state: String,
    in_line: bool,
    key: Option<KeyHash>,
    deliver_at: Option<Timestamp>,
}

impl<'a> Rows<'a> {
    /// `places` is how many ordinals will be given out at most.
    pub(crate) async fn new(db: &'a mut Db, route: &'a str, places: usize) -> Work<Self> {
        let places = i64::try_from(places).unwrap_or(i64::MAX);
        let next = db.lock_route(route, places).await? - places + 1;
        let now = db.now().await?;
        Ok(Self { db, route, now, next, touched: BTreeSet::new() })
    }

    fn draw(&mut self) -> i64 {
        self.next += 1;
        self.next - 1
    }

    /// Removes rows. Those that are gone are skipped; answers which were there.
    pub(crate) async fn remove(&mut self, ordinals: &[Ordinal]) -> Work<BTreeSet<Ordinal>> {
        let found = self.find(ordinals.iter().copied()).await?;
        let places: Vec<i64> = found.keys().copied().collect();
        for places in places.chunks(STATEMENTS_MAX) {
            let these = doc! { "route": self.route, "ordinal": { "$in": places } };
            self.db.delete("parked", these).await?;
        }
        let in_line = found.values().filter(|row| row.in_line);
        self.touched.extend(in_line.filter_map(|row| row.key.map(KeyHash::as_i64)));
        Ok(found.keys().copied().map(ordinal).collect())
    }

    /// Adds rows at the end, in the given order. A record that has a row already keeps that one.
    pub(crate) async fn park(&mut self, rows: &[(RecordRef, Parked)]) -> Work<()> {
        let mut known = self.known(rows).await?;
        let (mut documents, mut bytes) = (Vec::new(), 0);
        for (record, parked) in rows {
            let ordinal = self.draw();
            if !known.insert((record.envelope.id.0, record.number.cast_signed())) {
                continue;
            }
            let fields = self.fields(parked, record.key, record.envelope.deliver_at);
            if fields.in_line {
                self.touched.extend(record.key.map(KeyHash::as_i64));
            }
            let weight = record.envelope.weight();
            // A command has room for one large row, and for nothing beside it.
            if bytes + weight > INSERT_BYTES_MAX {
                self.db.insert("parked", std::mem::take(&mut documents)).await?;
                bytes = 0;
            }
            documents.push(self.document(ordinal, record, &fields));
            bytes += weight;
        }
        self.db.insert("parked", documents).await
    }

    /// Records that have a row, by id and number. A duplicate key would end the transaction, so it is asked first.
    async fn known(&mut self, rows: &[(RecordRef, Parked)]) -> Work<HashSet<(Uuid, i64)>> {
        if rows.is_empty() {
            return Ok(HashSet::new());
        }
        let ids: Vec<Bson> = rows.iter().map(|(record, _)| uuid(record.envelope.id.0)).collect();
        let find = Find::new(doc! { "id": { "$in": ids }, "route": self.route }).fields(doc! { "id": 1, "number": 1 });
        let mut known = HashSet::new();
        for row in self.db.find("parked", find).await? {
            if let Some(id) = uuid_opt(&row, "id") {
                known.insert((id, long(&row, "number")?));
            }
        }
        Ok(known)
    }

    fn document(&self, ordinal: i64, record: &RecordRef, state: &Fields<'_>) -> Document {
        let envelope = &record.envelope;
        let spread = record.key.unwrap_or_else(|| KeyHash::of(envelope.id.0.as_bytes()));
        let mut document = doc! {
            "route": self.route,
            "ordinal": ordinal,
            "number": record.number.cast_signed(),
            "key_hash": record.key.map(KeyHash::as_i64),
            "spread": spread.as_i64(),
            "attempts": 0_i64,
            "parked_at": self.now.as_micros(),
            "enqueued_at": record.enqueued_at.as_micros(),
        };
        document.extend(state.document());
        document.insert("set_at", self.now.as_micros());
        document.extend(fields(envelope));
        document
    }

    /// Makes something else of rows. Those that are gone are skipped. `Held` moves one to the tail of its line.
    pub(crate) async fn change(&mut self, changes: &[(Ordinal, Parked)]) -> Work<()> {
        let mut found = self.find(changes.iter().map(|(ordinal, _)| *ordinal)).await?;
        let mut updates = Vec::new();
        for (ordinal, parked) in changes {
            let Some(row) = found.get(&signed(*ordinal)).cloned() else { continue };
            let fields = self.fields(parked, row.key, row.deliver_at);
            let place = match parked {
                Parked::Held => self.draw(),
                _ => signed(*ordinal),
            };
            self.write(*ordinal, place, &row, &fields, &mut updates);
            // Whoever names it once more finds it as it is by then.
            found.remove(&signed(*ordinal));
            found.insert(place, Found { state: fields.state.name().to_owned(), in_line: fields.in_line, ..row });
        }
        self.db.update_all("parked", updates).await
    }

    /// Tries dead rows again, with a fresh count of attempts. Others stay as they are; answers which were dead.
    pub(crate) async fn redrive(&mut self, ordinals: &[Ordinal]) -> Work<BTreeSet<Ordinal>> {
        let found = self.find(ordinals.iter().copied()).await?;
        let (mut updates, mut redriven) = (Vec::new(), BTreeSet::new());
        for ordinal in ordinals {
            let dead = found.get(&signed(*ordinal)).filter(|row| row.state == ParkedState::Dead.name());
            let Some(row) = dead else { continue };
            let state = if row.in_line { ParkedState::Retrying } else { ParkedState::Scheduled };
            let (due_at, attempts) = (Some(self.now), Some(0));
            let fields = Fields { state, in_line: row.in_line, due_at, attempts, cause: None };
            self.write(*ordinal, signed(*ordinal), row, &fields, &mut updates);
            redriven.insert(*ordinal);
        }
        self.db.update_all("parked", updates).await?;
        Ok(redriven)
    }

    /// Marks the heads of all lines that were touched: a head has its own time as `wake_at`, and nobody else in line any.
    pub(crate) async fn finish(self) -> Work<()> {
        let keys: Vec<i64> = self.touched.iter().copied().collect();
        for keys in keys.chunks(STATEMENTS_MAX) {
            let mut updates = Vec::new();
            for head in self.db.aggregate("meta", heads(self.route, keys, &self.db.names.name("parked"))).await? {
                let due_at = long_opt(&head, "due_at");
                if due_at != long_opt(&head, "wake_at") {
                    let named = doc! { "route": self.route, "ordinal": long(&head, "ordinal")? };
                    updates.push(Update::one(named, doc! { "$set": { "wake_at": due_at } }));
                }
            }
            self.db.update_all("parked", updates).await?;
        }
        Ok(())
    }

    fn write(&mut self, ordinal: Ordinal, place: i64, row: &Found, fields: &Fields<'_>, updates: &mut Vec<Update>) {
        let key = row.key.map(KeyHash::as_i64);
        // A row that keeps its ordinal may enter a line before its head.
        if let Some(key) = key.filter(|_| fields.in_line && !row.in_line) {
            let line = doc! { "route": self.route, "in_line": true, "key_hash": key, "wake_at": { "$ne": null } };
            updates.push(Update::many(line, doc! { "$set": { "wake_at": null } }));
        }
        let mut set = fields.document();
        set.insert("ordinal", place);
        set.insert("set_at", self.now.as_micros());
        // A row that is given up is parked since then, however long it was kept for something else before.
        if fields.state == ParkedState::Dead {
            set.insert("parked_at", self.now.as_micros());
        }
        let named = doc! { "route": self.route, "ordinal": signed(ordinal) };
        updates.push(Update::one(named, doc! { "$set": set }));
        if fields.in_line || row.in_line {
            self.touched.extend(key);
        }
    }

    fn fields<'p>(&self, parked: &'p Parked, key: Option<KeyHash>, deliver_at: Option<Timestamp>) -> Fields<'p> {
        let from_now = |after| Some(self.now.saturating_add(after));
        let (due_at, attempts, cause) = match parked {
            Parked::Scheduled { after } => (deliver_at.or_else(|| from_now(*after)), None, None),
            Parked::Retrying { after, attempts, cause } => (from_now(*after), Some(*attempts), Some(cause)),
            // As the head of its line it is due since it was held. A keyless one has no line to wait in.
            Parked::Held => (Some(self.now), None, None),
            Parked::Dead { attempts, cause, .. } => (None, Some(*attempts), Some(cause)),
        };
        let cause = cause.map(|cause| (cause.code(), cause.detail()));
        Fields { state: parked.state(), in_line: key.is_some() && parked.in_line(), due_at, attempts, cause }
    }

    /// The rows that are there, by ordinal.
    async fn find(&mut self, ordinals: impl Iterator<Item = Ordinal>) -> Work<HashMap<i64, Found>> {
        let ordinals: Vec<i64> = ordinals.map(signed).collect();
        let fields = doc! { "ordinal": 1, "state": 1, "in_line": 1, "key_hash": 1, "deliver_at": 1 };
        let mut found = HashMap::new();
        for ordinals in ordinals.chunks(STATEMENTS_MAX) {
            let these = doc! { "route": self.route, "ordinal": { "$in": ordinals } };
            for row in self.db.find("parked", Find::new(these).fields(fields.clone())).await? {
                let place = long(&row, "ordinal")?;
                found.insert(
                    place,
                    Found {
                        state: text(&row, "state")?.to_owned(),
                        in_line: is_true(&row, "in_line"),
                        key: long_opt(&row, "key_hash").map(KeyHash::from_i64),
                        deliver_at: instant(&row, "deliver_at"),
                    },
                );
            }
        }
        Ok(found)
    }
}

/// The first row of each of these lines: one short look into the index for each key, however long its line is. A pass over the
/// lines themselves would read every row that is held.
fn heads(route: &str, keys: &[i64], parked: &str) -> Vec<Document> {
    let first = vec![
        doc! { "$match": { "route": route, "in_line": true } },
        doc! { "$sort": { "ordinal": 1 } },
        doc! { "$limit": 1 },
        doc! { "$project": { "_id": 0, "ordinal": 1, "due_at": 1, "wake_at": 1 } },
    ];
    let look =
        doc! { "from": parked, "localField": "key", "foreignField": "key_hash", "pipeline": first, "as": "head" };
    vec![
        // A document that is always there, for the keys to stand in.
        doc! { "$match": { "_id": "epoch" } },
        doc! { "$project": { "_id": 0, "key": { "$literal": keys } } },
        doc! { "$unwind": "$key" },
        doc! { "$lookup": look },
        doc! { "$unwind": "$head" },
        doc! { "$replaceWith": "$head" },
    ]
}

/// Rows of one command: well below what a server takes.
const STATEMENTS_MAX: usize = 10_000;

/// Bytes of one insert, unless a single row has more: well below what a server takes.
const INSERT_BYTES_MAX: usize = 4 << 20;

/// Bytes of a cause's detail that are kept. Whatever a destination has answered, a row fits into a document.
const DETAIL_BYTES_MAX: usize = 8 << 10;

fn shortened(detail: &str) -> &str {
    &detail[..detail.floor_char_boundary(DETAIL_BYTES_MAX)]
}

pub(crate) fn signed(ordinal: Ordinal) -> i64 {
    ordinal.0.cast_signed()
}

pub(crate) fn ordinal(stored: i64) -> Ordinal {
    Ordinal(stored.cast_unsigned())
}
