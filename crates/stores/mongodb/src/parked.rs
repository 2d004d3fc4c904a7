//! Parked rows: how they change, and how the head of each line is kept.
//!
//! The rows of one key that are in line are one range of an index, by ordinal; the first of them is the head. A row waits
//! for time alone if it is in no line, or the head of one: such a row has `wake_at`, all others have none. That is the
//! store's own mark and says nothing new. It is brought up to date for every key that a transaction touched, at its end,
//! and it is what makes a due read one short range of an index, however many rows are held. Every transaction here writes to
//! the route first: two that each remove a row of one line would otherwise each mark the other's as head.

use std::collections::{BTreeSet, HashSet};

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

    /// Removes a row. One that is gone is skipped: `false`.
    pub(crate) async fn remove(&mut self, ordinal: Ordinal) -> Work<bool> {
        let Some(row) = self.find(ordinal).await? else { return Ok(false) };
        self.db.delete("parked", self.named(ordinal)).await?;
        if row.in_line {
            self.touched.extend(row.key.map(KeyHash::as_i64));
        }
        Ok(true)
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

    /// Makes something else of a row. One that is gone is skipped. `Held` moves it to the tail of its line.
    pub(crate) async fn change(&mut self, ordinal: Ordinal, parked: &Parked) -> Work<()> {
        let Some(row) = self.find(ordinal).await? else { return Ok(()) };
        let fields = self.fields(parked, row.key, row.deliver_at);
        let place = match parked {
            Parked::Held => self.draw(),
            _ => signed(ordinal),
        };
        self.write(ordinal, place, &row, &fields).await
    }

    /// Tries a dead row again, with a fresh count of attempts. Others stay as they are: `false`.
    pub(crate) async fn redrive(&mut self, ordinal: Ordinal) -> Work<bool> {
        let found = self.find(ordinal).await?;
        let Some(row) = found.filter(|row| row.state == ParkedState::Dead.name()) else { return Ok(false) };
        let state = if row.in_line { ParkedState::Retrying } else { ParkedState::Scheduled };
        let (due_at, attempts) = (Some(self.now), Some(0));
        let fields = Fields { state, in_line: row.in_line, due_at, attempts, cause: None };
        self.write(ordinal, signed(ordinal), &row, &fields).await?;
        Ok(true)
    }

    /// Marks the heads of all lines that were touched: a head has its own time as `wake_at`, and nobody else in line any.
    pub(crate) async fn finish(self) -> Work<()> {
        for key in self.touched {
            let line = doc! { "route": self.route, "in_line": true, "key_hash": key };
            let first = Find::new(line).sort(doc! { "ordinal": 1 }).limit(1).fields(doc! { "ordinal": 1, "due_at": 1 });
            let Some(head) = self.db.find("parked", first).await?.into_iter().next() else { continue };
            let change = doc! { "$set": { "wake_at": long_opt(&head, "due_at") } };
            let head = doc! { "route": self.route, "ordinal": long(&head, "ordinal")? };
            self.db.update("parked", Update::one(head, change)).await?;
        }
        Ok(())
    }

    async fn write(&mut self, ordinal: Ordinal, place: i64, row: &Found, fields: &Fields<'_>) -> Work<()> {
        let key = row.key.map(KeyHash::as_i64);
        // A row that keeps its ordinal may enter a line before its head.
        if let Some(key) = key.filter(|_| fields.in_line && !row.in_line) {
            let line = doc! { "route": self.route, "in_line": true, "key_hash": key, "wake_at": { "$ne": null } };
            self.db.update("parked", Update::many(line, doc! { "$set": { "wake_at": null } })).await?;
        }
        let mut set = fields.document();
        set.insert("ordinal", place);
        set.insert("set_at", self.now.as_micros());
        self.db.update("parked", Update::one(self.named(ordinal), doc! { "$set": set })).await?;
        if fields.in_line || row.in_line {
            self.touched.extend(key);
        }
        Ok(())
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

    async fn find(&mut self, ordinal: Ordinal) -> Work<Option<Found>> {
        let fields = doc! { "state": 1, "in_line": 1, "key_hash": 1, "deliver_at": 1 };
        let find = Find::new(self.named(ordinal)).limit(1).fields(fields);
        let Some(row) = self.db.find("parked", find).await?.into_iter().next() else { return Ok(None) };
        Ok(Some(Found {
            state: text(&row, "state")?.to_owned(),
            in_line: is_true(&row, "in_line"),
            key: long_opt(&row, "key_hash").map(KeyHash::from_i64),
            deliver_at: instant(&row, "deliver_at"),
        }))
    }

    fn named(&self, ordinal: Ordinal) -> Document {
        doc! { "route": self.route, "ordinal": signed(ordinal) }
    }
}

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
