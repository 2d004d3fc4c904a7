//! Reading a page of the log: the hot path.
//!
//! SQLite has one writer at a time and a number is drawn under its lock, so the order of `seq` **is** the order of
//! commits: a cursor that has passed a number has passed all lower ones for good, and a plain `seq > ?` is commit-safe.
//! (A rolled-back transaction gives its numbers back; `AUTOINCREMENT` keeps purged ones from returning.)
//!
//! A page costs a handful of allocations, whatever its length: keys, headers and payloads are gathered in one buffer that
//! the records share, and topics and names are kept once. Rows are gathered first and become records when the buffer is
//! complete, so that no record is written twice.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use postrider_core::{
    Error,
    envelope::{Envelope, MessageId},
    headers::Headers,
    key::{KeyHash, OrderingKey},
    lease::Lease,
    log::{Page, PageLimit, Record},
    text::{Texts, text},
    time::Timestamp,
};
use rusqlite::{OptionalExtension, Row, params};
use uuid::Uuid;

use crate::{
    cursor,
    error::{Work, corrupt},
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
    let mut selection = Selection::new(&lease.reader, lease.lane.number, lease.lanes);
    let mut gathered = Gathered::new(limit);
    let mut statement = db.statement(READ)?;
    let mut found = statement.query(params![after, last])?;
    let (mut end, mut scanned, mut more) = (after, 0, false);
    // Ends with the log, with a full page, or with the scan's limit.
    while let Some(row) = found.next()? {
        if scanned == SCAN_MAX || gathered.is_full() {
            more = true;
            break;
        }
        let seq = integer(row, 0)?;
        if let Some(chosen) = selection.choose(row)?
            && !gathered.take(seq, row, chosen)?
        {
            more = true;
            break;
        }
        assert!(seq > end, "the log is read in ascending order");
        end = seq;
        scanned += 1;
    }
    let Gathered { rows, buffer, .. } = gathered;
    let shared = Shared {
        texts: selection.into_texts(),
        now: db.dialect.now(),
        replay: replay.then(|| Arc::clone(&lease.lane.route)),
        buffer: buffer.into(),
    };
    let records = Arc::new(shared.records(&rows));
    let seqs: Vec<i64> = rows.iter().map(|row| row.seq).collect();
    let marks = Arc::new(move |n: u32| cursor::encode(if n == 0 { after } else { seqs[n as usize - 1] }));
    Ok(Page { records, marks, end: cursor::encode(end), more, ended: replay && !more })
}

fn replay_end(db: &Db, lease: &Lease) -> Work<i64> {
    let lane = &lease.lane;
    let mut statement = db.statement(REPLAY_END)?;
    let end: Option<i64> = statement
        .query_row(params![&*lane.route, lane.number, lease.epoch.0.cast_signed()], |row| row.get(0))
        .optional()?;
    Ok(end.ok_or_else(Error::fenced)?)
}

/// The rows of a page in the making.
struct Gathered {
    limit: PageLimit,
    rows: Vec<GatheredRow>,
    /// Key, headers and payload of each row, one behind the other.
    buffer: Vec<u8>,
    weight: usize,
}

/// What a record will need, but for its bytes.
struct GatheredRow {
    seq: i64,
    topic: usize,
    name: usize,
    id: Uuid,
    hash: Option<KeyHash>,
    enqueued_at: i64,
    deliver_at: Option<i64>,
    expires_at: Option<i64>,
    attempts_max: Option<i64>,
    key_bytes: usize,
    headers_bytes: usize,
    payload_bytes: usize,
}

impl Gathered {
    fn new(limit: PageLimit) -> Self {
        let limit = PageLimit { records: limit.records.max(1), ..limit };
        Self { limit, rows: Vec::new(), buffer: Vec::new(), weight: 0 }
    }

    fn is_full(&self) -> bool {
        self.rows.len() >= self.limit.records as usize
    }

    /// Adds a row, unless it is too heavy for a page that has others: then `false`.
    #[inline]
    fn take(&mut self, seq: i64, row: &Row<'_>, chosen: Chosen<'_>) -> Work<bool> {
        let Chosen { topic, id, key, hash, enqueued_at, name } = chosen;
        let key = key.unwrap_or_default();
        let headers = optional_bytes(row, 9)?.unwrap_or_default();
        let payload = bytes(row, 10)?;
        // The same sum as `Envelope::weight`, before there is an envelope.
        let weight = key.len() + headers.len() + payload.len() + size_of::<Envelope>();
        if self.rows.is_empty() {
            self.reserve(weight);
        } else if self.weight + weight > self.limit.bytes {
            return Ok(false);
        }
        self.weight += weight;
        self.buffer.extend_from_slice(key);
        self.buffer.extend_from_slice(headers);
        self.buffer.extend_from_slice(payload);
        self.rows.push(GatheredRow {
            seq,
            topic,
            name,
            id,
            hash,
            enqueued_at,
            deliver_at: optional_integer(row, 6)?,
            expires_at: optional_integer(row, 7)?,
            attempts_max: optional_integer(row, 8)?,
            key_bytes: key.len(),
            headers_bytes: headers.len(),
            payload_bytes: payload.len(),
        });
        Ok(true)
    }

    /// Guesses by the first row how long the page may become, within reason.
    fn reserve(&mut self, weight: usize) {
        let rows = (self.limit.records as usize).min(self.limit.bytes / weight + 1).min(2048);
        self.rows.reserve_exact(rows);
        self.buffer.reserve((weight - size_of::<Envelope>()) * rows);
    }
}

/// What all records of a page have in common.
struct Shared {
    texts: (Texts, Texts),
    now: Timestamp,
    replay: Option<Arc<str>>,
    buffer: Bytes,
}

impl Shared {
    /// The records of a page.
    fn records(&self, rows: &[GatheredRow]) -> Vec<Record> {
        let mut from = 0;
        let record = |row: &GatheredRow| {
            let key = from..from + row.key_bytes;
            let headers = key.end..key.end + row.headers_bytes;
            let payload = headers.end..headers.end + row.payload_bytes;
            from = payload.end;
            self.record(row, key, headers, payload)
        };
        rows.iter().map(record).collect()
    }

    #[inline]
    fn record(&self, row: &GatheredRow, key: Range<usize>, headers: Range<usize>, payload: Range<usize>) -> Record {
        let deliver_at = row.deliver_at.map(Timestamp::from_micros);
        let expires_at = row.expires_at.map(Timestamp::from_micros);
        Record {
            envelope: Envelope {
                id: MessageId(row.id),
                topic: Arc::clone(self.texts.0.text(row.topic)),
                name: Arc::clone(self.texts.1.text(row.name)),
                key: (!key.is_empty()).then(|| self.key(key)),
                headers: Headers::from_encoded(self.piece(headers)),
                payload: self.piece(payload),
                deliver_at,
                expires_at,
                attempts_max: row.attempts_max.map(|attempts| u32::try_from(attempts).unwrap_or(u32::MAX)),
            },
            key: row.hash,
            enqueued_at: Timestamp::from_micros(row.enqueued_at),
            wait: deliver_at.map_or(Duration::ZERO, |at| at.since(self.now)),
            expires_in: expires_at.map(|at| at.since(self.now)),
            replay: self.replay.clone(),
            number: row.seq.cast_unsigned(),
        }
    }

    /// SQLite does not insist on UTF-8, and neither a lost nor a stuck message would be better than a replacement character.
    fn key(&self, range: Range<usize>) -> OrderingKey {
        OrderingKey::from_utf8(self.buffer.slice(range.clone()))
            .unwrap_or_else(|_| OrderingKey::from(&*text(&self.buffer[range])))
    }

    /// Nothing for nothing: an empty slice would keep the buffer alive for no use.
    fn piece(&self, range: Range<usize>) -> Bytes {
        if range.is_empty() { Bytes::new() } else { self.buffer.slice(range) }
    }
}

/// The columns of an envelope in both tables, in the order in which [`envelope`] expects them.
pub(crate) const ENVELOPE: &str =
    "id, topic, name, key, enqueued_at, deliver_at, expires_at, attempts_max, headers, payload";

pub(crate) fn message_id(row: &Row<'_>, column: usize) -> Work<MessageId> {
    let id = Uuid::from_slice(bytes(row, column)?).map_err(|_| corrupt("a message id does not have 16 bytes"))?;
    Ok(MessageId(id))
}

/// One envelope with buffers of its own, from a row that has [`ENVELOPE`] from column `first` on; for the few that are
/// parked or looked at.
pub(crate) fn envelope(row: &Row<'_>, first: usize) -> Work<(Envelope, Timestamp)> {
    let id = message_id(row, first)?;
    let key = optional_bytes(row, first + 3)?.map(|key| OrderingKey::from(&*text(key)));
    let envelope = Envelope {
        id,
        topic: text(bytes(row, first + 1)?).into(),
        name: text(bytes(row, first + 2)?).into(),
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
