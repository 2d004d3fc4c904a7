//! Reading a page of the log: the hot path.
//!
//! SQLite has one writer at a time and a number is drawn under its lock, so the order of `seq` **is** the order of
//! commits: a cursor that has passed a number has passed all lower ones for good, and a plain `seq > ?` is commit-safe.
//! (A rolled-back transaction gives its numbers back; `AUTOINCREMENT` keeps purged ones from returning.)
//!
//! A page costs a handful of allocations, whatever its length: keys, headers and payloads are gathered in one buffer that
//! the records share, and topics and names are kept once per store.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use postrider_core::{
    Error,
    envelope::{Envelope, MessageId},
    headers::Headers,
    key::OrderingKey,
    lease::Lease,
    log::{Page, PageLimit, Record},
    time::Timestamp,
};
use rusqlite::{OptionalExtension, Row, params};

use crate::{
    cursor,
    error::{Work, corrupt},
    intern::text,
    select::{Chosen, Selection, bytes, integer, optional_bytes, optional_integer},
    worker::Db,
};

/// Records that one read looks at. A lane that few records belong to returns after so many, with its cursor moved, so that
/// nobody else waits long for the thread.
const SCAN_MAX: u32 = 20_000;

/// One range of the primary key, without a lock. Begins with `select::CHOSEN_BY`.
pub(crate) const READ: &str = "
SELECT seq, topic, id, key, enqueued_at, name, deliver_at, expires_at, attempts_max, headers, payload
  FROM {p}log
 WHERE seq > ?1 AND seq <= ?2
 ORDER BY seq";

/// Where a replay ends, if this owner still has it.
const REPLAY_END: &str = "
SELECT replay_end
  FROM {p}route JOIN {p}lane ON route = name
 WHERE name = ?1 AND number = ?2 AND epoch = ?3";

/// Reads on behind `after`.
pub(crate) fn read(db: &Db, lease: &Lease, after: i64, limit: PageLimit) -> Work<Page> {
    let replay = lease.reader.replay.is_some();
    let last = if replay { replay_end(db, lease)? } else { i64::MAX };
    let mut interner = db.interner.borrow_mut();
    interner.tidy();
    let mut selection = Selection::new(&lease.reader, lease.lane.number, lease.lanes);
    let mut gathered = Gathered::new(limit, db.dialect.now(), replay.then(|| Arc::clone(&lease.lane.route)));
    let mut statement = db.statement(READ)?;
    let mut rows = statement.query(params![after, last])?;
    let (mut end, mut scanned, mut more) = (after, 0, false);
    // Ends with the log, with a full page, or with the scan's limit.
    while let Some(row) = rows.next()? {
        if scanned == SCAN_MAX || gathered.is_full() {
            more = true;
            break;
        }
        let seq = integer(row, 0)?;
        if let Some(chosen) = selection.choose(row, &mut interner)? {
            let (topic, name) = (Arc::clone(interner.text(chosen.topic)), Arc::clone(interner.text(chosen.name)));
            if !gathered.take(seq, row, &chosen, topic, name)? {
                more = true;
                break;
            }
        }
        assert!(seq > end, "the log is read in ascending order");
        end = seq;
        scanned += 1;
    }
    Ok(gathered.into_page(after, end, more, replay && !more))
}

fn replay_end(db: &Db, lease: &Lease) -> Work<i64> {
    let lane = &lease.lane;
    let mut statement = db.statement(REPLAY_END)?;
    let end: Option<i64> = statement
        .query_row(params![&*lane.route, lane.number, lease.epoch.0.cast_signed()], |row| row.get(0))
        .optional()?;
    Ok(end.ok_or_else(Error::fenced)?)
}

/// A page in the making.
struct Gathered {
    limit: PageLimit,
    now: Timestamp,
    replay: Option<Arc<str>>,
    records: Vec<Record>,
    /// Per record, where its key, headers and payload lie in the buffer: four ends of three adjoining pieces.
    pieces: Vec<[usize; 4]>,
    seqs: Vec<i64>,
    buffer: Vec<u8>,
    weight: usize,
}

impl Gathered {
    fn new(limit: PageLimit, now: Timestamp, replay: Option<Arc<str>>) -> Self {
        Self {
            limit: PageLimit { records: limit.records.max(1), ..limit },
            now,
            replay,
            records: Vec::new(),
            pieces: Vec::new(),
            seqs: Vec::new(),
            buffer: Vec::new(),
            weight: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.records.len() >= self.limit.records as usize
    }

    /// Adds a record, unless it is too heavy for a page that has others: then `false`.
    fn take(&mut self, seq: i64, row: &Row<'_>, chosen: &Chosen<'_>, topic: Arc<str>, name: Arc<str>) -> Work<bool> {
        let key = chosen.key.unwrap_or_default();
        let headers = optional_bytes(row, 9)?.unwrap_or_default();
        let payload = bytes(row, 10)?;
        // The same sum as `Envelope::weight`, before there is an envelope.
        let weight = key.len() + headers.len() + payload.len() + size_of::<Envelope>();
        if !self.records.is_empty() && self.weight + weight > self.limit.bytes {
            return Ok(false);
        }
        if self.records.is_empty() {
            self.reserve(weight);
        }
        self.weight += weight;
        let mut ends = [self.buffer.len(); 4];
        for (end, piece) in ends[1..].iter_mut().zip([key, headers, payload]) {
            self.buffer.extend_from_slice(piece);
            *end = self.buffer.len();
        }
        self.pieces.push(ends);
        self.seqs.push(seq);
        self.records.push(self.record(row, chosen, topic, name)?);
        Ok(true)
    }

    /// Guesses by the first record how long the page may become, within reason.
    fn reserve(&mut self, weight: usize) {
        let records = (self.limit.records as usize).min(self.limit.bytes / weight + 1).min(2048);
        self.records.reserve_exact(records);
        self.pieces.reserve_exact(records);
        self.seqs.reserve_exact(records);
        self.buffer.reserve((weight - size_of::<Envelope>()) * records);
    }

    /// The record without its bytes; they follow when the buffer is complete.
    fn record(&self, row: &Row<'_>, chosen: &Chosen<'_>, topic: Arc<str>, name: Arc<str>) -> Work<Record> {
        let deliver_at = optional_integer(row, 6)?.map(Timestamp::from_micros);
        let expires_at = optional_integer(row, 7)?.map(Timestamp::from_micros);
        Ok(Record {
            envelope: Envelope {
                id: MessageId(chosen.id),
                topic,
                name,
                key: None,
                headers: Headers::default(),
                payload: Bytes::new(),
                deliver_at,
                expires_at,
                attempts_max: optional_integer(row, 8)?.map(|attempts| u32::try_from(attempts).unwrap_or(u32::MAX)),
            },
            key: chosen.hash,
            enqueued_at: Timestamp::from_micros(chosen.enqueued_at),
            wait: deliver_at.map_or(Duration::ZERO, |at| at.since(self.now)),
            expires_in: expires_at.map(|at| at.since(self.now)),
            replay: self.replay.clone(),
        })
    }

    fn into_page(self, after: i64, end: i64, more: bool, ended: bool) -> Page {
        let Self { mut records, pieces, seqs, buffer, .. } = self;
        let buffer = Bytes::from(buffer);
        for (record, [from, key, headers, payload]) in records.iter_mut().zip(pieces) {
            record.envelope.key = slice(&buffer, from..key).map(|key| ordering_key(&key));
            if let Some(headers) = slice(&buffer, key..headers) {
                record.envelope.headers = Headers::from_encoded(headers);
            }
            if let Some(payload) = slice(&buffer, headers..payload) {
                record.envelope.payload = payload;
            }
        }
        let marks = Arc::new(move |n: u32| cursor::encode(if n == 0 { after } else { seqs[n as usize - 1] }));
        Page { records: Arc::new(records), marks, end: cursor::encode(end), more, ended }
    }
}

/// SQLite does not insist on UTF-8, and neither a lost nor a stuck message would be better than a replacement character.
fn ordering_key(bytes: &Bytes) -> OrderingKey {
    OrderingKey::from_utf8(bytes.clone()).unwrap_or_else(|_| OrderingKey::from(&*text(bytes)))
}

/// Nothing for nothing: an empty slice would keep the buffer alive for no use.
fn slice(buffer: &Bytes, range: Range<usize>) -> Option<Bytes> {
    (!range.is_empty()).then(|| buffer.slice(range))
}

/// The columns of an envelope in both tables, in the order in which [`envelope`] expects them.
pub(crate) const ENVELOPE: &str =
    "id, topic, name, key, enqueued_at, deliver_at, expires_at, attempts_max, headers, payload";

/// One envelope with buffers of its own, from a row that has [`ENVELOPE`] from column `first` on; for the few that are
/// parked or looked at.
pub(crate) fn envelope(db: &Db, row: &Row<'_>, first: usize) -> Work<(Envelope, Timestamp)> {
    let mut interner = db.interner.borrow_mut();
    let id = uuid::Uuid::from_slice(bytes(row, first)?).map_err(|_| corrupt("a message id does not have 16 bytes"))?;
    let key = optional_bytes(row, first + 3)?.map(|key| OrderingKey::from(&*text(key)));
    let envelope = Envelope {
        id: MessageId(id),
        topic: interner.intern(bytes(row, first + 1)?),
        name: interner.intern(bytes(row, first + 2)?),
        key,
        headers: optional_bytes(row, first + 8)?
            .map(|headers| Headers::from_encoded(Bytes::copy_from_slice(headers)))
            .unwrap_or_default(),
        payload: Bytes::copy_from_slice(bytes(row, first + 9)?),
        deliver_at: row.get::<_, Option<i64>>(first + 5)?.map(Timestamp::from_micros),
        expires_at: row.get::<_, Option<i64>>(first + 6)?.map(Timestamp::from_micros),
        attempts_max: row.get(first + 7)?,
    };
    Ok((envelope, Timestamp::from_micros(row.get(first + 4)?)))
}
