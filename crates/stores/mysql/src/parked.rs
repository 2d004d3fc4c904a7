//! Parked rows: how they change, and how the head of each line is kept.
//!
//! The rows of one key that are in line are one range of an index, by ordinal; the first of them is the head. A row waits
//! for time alone if it is in no line, or the head of one: such a row has `wake_at`, all others have none. That is the
//! store's own mark and says nothing new. It is brought up to date for every key that a transaction touched, at its end,
//! and it is what makes a due read one short range of an index, however many rows are held. Everything here happens under
//! the route's lock: two transactions that each remove a row of one line would otherwise each mark the other's as head.

use std::collections::BTreeSet;

use mysql_async::Value;
use postrider_core::{
    key::{KeyHash, OrderingKey},
    log::RecordRef,
    parked::{Ordinal, Parked, ParkedState},
    time::Timestamp,
};

use crate::{
    db::{Db, get, list, values},
    error::Work,
};

/// The unique index on (id, route, place) decides whether there is a row of that record already; that one stays as it is.
const PARK: &str = "
INSERT INTO {p}parked (ordinal, route, id, place, state, in_line, key_hash, spread, due_at, wake_at, attempts, cause_code,
                       cause_detail, parked_at, topic, name, `key`, enqueued_at, deliver_at, expires_at, attempts_max,
                       headers, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON DUPLICATE KEY UPDATE attempts = attempts";

const FIND: &str = "
SELECT state, in_line, key_hash, deliver_at, attempts, cause_code, cause_detail
  FROM {p}parked
 WHERE ordinal = ? AND route = ?";

const CHANGE: &str = "
UPDATE {p}parked
   SET ordinal = ?, state = ?, in_line = ?, due_at = ?, wake_at = ?, attempts = ?, cause_code = ?, cause_detail = ?,
       parked_at = COALESCE(?, parked_at)
 WHERE ordinal = ?";

/// One end of a range of the index of lines.
const HEAD: &str = "SELECT MIN(ordinal) FROM {p}parked WHERE route = ? AND in_line = 1 AND key_hash = ?";

/// The parked rows of one route, in one transaction under the route's lock. Call [`Self::finish`] at its end.
pub(crate) struct Rows<'a> {
    db: &'a mut Db,
    route: &'a str,
    now: Timestamp,
    touched: BTreeSet<i64>,
}

/// What a row's state comes down to in columns.
struct Columns<'a> {
    state: ParkedState,
    in_line: bool,
    due_at: Option<Timestamp>,
    attempts: Option<u32>,
    cause: Option<(&'a str, &'a str)>,
}

impl Columns<'_> {
    fn due_at(&self) -> Option<i64> {
        self.due_at.map(Timestamp::as_micros)
    }

    /// A row in no line wakes by its own time. One in line does as the head only, which is seen to at the end.
    fn wake_at(&self) -> Option<i64> {
        self.due_at().filter(|_| !self.in_line)
    }

    /// A row that is given up is parked since then, however long it was kept for something else before.
    fn died_at(&self, now: Timestamp) -> Option<Timestamp> {
        (self.state == ParkedState::Dead).then_some(now)
    }
}

/// A row before it changes.
struct Found {
    state: String,
    in_line: bool,
    key: Option<KeyHash>,
    deliver_at: Option<Timestamp>,
    attempts: u32,
    cause_code: Option<String>,
    cause_detail: Option<String>,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(db: &'a mut Db, route: &'a str, now: Timestamp) -> Self {
        Self { db, route, now, touched: BTreeSet::new() }
    }

    /// Removes a row. One that is gone is skipped: `false`.
    pub(crate) async fn remove(&mut self, ordinal: Ordinal) -> Work<bool> {
        let Some(row) = self.find(ordinal).await? else { return Ok(false) };
        self.db.execute("DELETE FROM {p}parked WHERE ordinal = ?", values![signed(ordinal)]).await?;
        if row.in_line {
            self.touched.extend(row.key.map(KeyHash::as_i64));
        }
        Ok(true)
    }

    /// Adds rows at the end, in the given order. A record that has a row already keeps that one.
    pub(crate) async fn park(&mut self, rows: &[(RecordRef, Parked)]) -> Work<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
        let first = self.db.draw("ordinal", count).await? - count + 1;
        for ((record, parked), ordinal) in rows.iter().zip(first..) {
            let columns = self.columns(parked, record.key, record.envelope.deliver_at);
            if columns.in_line {
                self.touched.extend(record.key.map(KeyHash::as_i64));
            }
            let values = self.values(ordinal, record, &columns);
            self.db.execute(PARK, values).await?;
        }
        Ok(())
    }

    fn values(&self, ordinal: i64, record: &RecordRef, columns: &Columns<'_>) -> Vec<Value> {
        let envelope = &record.envelope;
        let spread = record.key.unwrap_or_else(|| KeyHash::of(envelope.id.0.as_bytes()));
        let headers = (!envelope.headers.is_empty()).then(|| envelope.headers.encoded().to_vec());
        values![
            ordinal,
            self.route,
            envelope.id.0.as_bytes().to_vec(),
            record.number.cast_signed(),
            columns.state.name(),
            columns.in_line,
            record.key.map(KeyHash::as_i64),
            spread.as_i64(),
            columns.due_at(),
            columns.wake_at(),
            columns.attempts.unwrap_or(0),
            columns.cause.map(|cause| cause.0.to_owned()),
            columns.cause.map(|cause| cause.1.to_owned()),
            self.now.as_micros(),
            &*envelope.topic,
            &*envelope.name,
            envelope.key.as_ref().map(OrderingKey::as_str),
            record.enqueued_at.as_micros(),
            envelope.deliver_at.map(Timestamp::as_micros),
            envelope.expires_at.map(Timestamp::as_micros),
            envelope.attempts_max,
            headers,
            envelope.payload.to_vec(),
        ]
    }

    /// Makes something else of a row. One that is gone is skipped. `Held` moves it to the tail of its line.
    pub(crate) async fn change(&mut self, ordinal: Ordinal, parked: &Parked) -> Work<()> {
        let Some(row) = self.find(ordinal).await? else { return Ok(()) };
        let columns = self.columns(parked, row.key, row.deliver_at);
        let place = match parked {
            Parked::Held => self.db.draw("ordinal", 1).await?,
            _ => signed(ordinal),
        };
        self.write(ordinal, place, &row, &columns).await
    }

    /// Tries a dead row again, with a fresh count of attempts. Others stay as they are: `false`.
    pub(crate) async fn redrive(&mut self, ordinal: Ordinal) -> Work<bool> {
        let found = self.find(ordinal).await?;
        let Some(row) = found.filter(|row| row.state == ParkedState::Dead.name()) else { return Ok(false) };
        let state = if row.in_line { ParkedState::Retrying } else { ParkedState::Scheduled };
        let (due_at, attempts) = (Some(self.now), Some(0));
        let columns = Columns { state, in_line: row.in_line, due_at, attempts, cause: None };
        self.write(ordinal, signed(ordinal), &row, &columns).await?;
        Ok(true)
    }

    /// Marks the heads of all lines that were touched: a head has its own time as `wake_at`, and nobody else in line any.
    pub(crate) async fn finish(self) -> Work<()> {
        for keys in self.touched.into_iter().collect::<Vec<_>>().chunks(HEADS_MAX) {
            // The least of each group is one step in the index of lines.
            let sql = format!(
                "SELECT MIN(ordinal) FROM {{p}}parked WHERE route = ? AND in_line = 1 AND key_hash IN ({}) GROUP BY key_hash",
                vec!["?"; keys.len()].join(", ")
            );
            let mut values = values![self.route];
            values.extend(keys.iter().copied().map(Value::from));
            let mut heads: Vec<i64> = Vec::new();
            for row in self.db.query(&sql, values).await? {
                heads.push(get(&row, 0)?);
            }
            if !heads.is_empty() {
                let heads = list(heads);
                let sql = format!("UPDATE {{p}}parked SET wake_at = due_at WHERE ordinal IN ({heads})");
                self.db.execute_text(&sql).await?;
            }
        }
        Ok(())
    }

    async fn write(&mut self, ordinal: Ordinal, place: i64, row: &Found, columns: &Columns<'_>) -> Work<()> {
        let key = row.key.map(KeyHash::as_i64);
        // A row that keeps its ordinal may enter a line before its head.
        if let Some(key) = key.filter(|_| columns.in_line && !row.in_line) {
            self.unmark_head(key).await?;
        }
        let cause_code = columns.cause.map_or(row.cause_code.clone(), |cause| Some(cause.0.to_owned()));
        let cause_detail = columns.cause.map_or(row.cause_detail.clone(), |cause| Some(cause.1.to_owned()));
        let values = values![
            place,
            columns.state.name(),
            columns.in_line,
            columns.due_at(),
            columns.wake_at(),
            columns.attempts.unwrap_or(row.attempts),
            cause_code,
            cause_detail,
            columns.died_at(self.now).map(Timestamp::as_micros),
            signed(ordinal),
        ];
        self.db.execute(CHANGE, values).await?;
        if columns.in_line || row.in_line {
            self.touched.extend(key);
        }
        Ok(())
    }

    async fn unmark_head(&mut self, key: i64) -> Work<()> {
        if let Some(head) = get::<Option<i64>>(&self.db.query_one(HEAD, values![self.route, key]).await?, 0)? {
            self.db.execute("UPDATE {p}parked SET wake_at = NULL WHERE ordinal = ?", values![head]).await?;
        }
        Ok(())
    }

    fn columns<'p>(&self, parked: &'p Parked, key: Option<KeyHash>, deliver_at: Option<Timestamp>) -> Columns<'p> {
        let from_now = |after| Some(self.now.saturating_add(after));
        let (due_at, attempts, cause) = match parked {
            Parked::Scheduled { after } => (deliver_at.or_else(|| from_now(*after)), None, None),
            Parked::Retrying { after, attempts, cause } => (from_now(*after), Some(*attempts), Some(cause)),
            // As the head of its line it is due since it was held. A keyless one has no line to wait in.
            Parked::Held => (Some(self.now), None, None),
            Parked::Dead { attempts, cause, .. } => (None, Some(*attempts), Some(cause)),
        };
        let cause = cause.map(|cause| (cause.code(), cause.detail()));
        Columns { state: parked.state(), in_line: key.is_some() && parked.in_line(), due_at, attempts, cause }
    }

    async fn find(&mut self, ordinal: Ordinal) -> Work<Option<Found>> {
        let Some(row) = self.db.query_opt(FIND, values![signed(ordinal), self.route]).await? else { return Ok(None) };
        Ok(Some(Found {
            state: get(&row, 0)?,
            in_line: get(&row, 1)?,
            key: get::<Option<i64>>(&row, 2)?.map(KeyHash::from_i64),
            deliver_at: get::<Option<i64>>(&row, 3)?.map(Timestamp::from_micros),
            attempts: get(&row, 4)?,
            cause_code: get(&row, 5)?,
            cause_detail: get(&row, 6)?,
        }))
    }
}

/// Lines that one statement marks.
const HEADS_MAX: usize = 500;

pub(crate) fn signed(ordinal: Ordinal) -> i64 {
    ordinal.0.cast_signed()
}

pub(crate) fn ordinal(stored: i64) -> Ordinal {
    Ordinal(stored.cast_unsigned())
}
