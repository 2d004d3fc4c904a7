//! Parked rows: how they change, and how the head of each line is kept.
//!
//! The rows of one key that are in line are one range of an index, by ordinal; the first of them is the head. A row waits
//! for time alone if it is in no line, or the head of one: such a row has `wake_at`, all others have none. That is the
//! store's own mark and says nothing new. It is brought up to date for every key that a transaction touched, at its end,
//! and it is what makes a due read one short range of an index, however many rows are held.

use std::collections::BTreeSet;

use postrider_core::{
    key::KeyHash,
    log::Record,
    parked::{Ordinal, Parked, ParkedState},
    time::Timestamp,
};
use rusqlite::{OptionalExtension, params};

use crate::{error::Work, route::draw, worker::Db};

const REMOVE: &str = "DELETE FROM {p}parked WHERE ordinal = ?1 AND route = ?2 RETURNING in_line, key_hash";

/// The unique index on (id, route, seq) decides whether there is a row of that record already; that one stays as it is.
const PARK: &str = "
INSERT INTO {p}parked (ordinal, route, id, state, in_line, key_hash, spread, due_at, wake_at, attempts, cause_code,
                       cause_detail, parked_at, topic, name, key, enqueued_at, deliver_at, expires_at, attempts_max,
                       headers, payload, seq)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23)
    ON CONFLICT (id, route, seq) DO NOTHING";

const FIND: &str = "
SELECT state, in_line, key_hash, deliver_at, attempts, cause_code, cause_detail
  FROM {p}parked
 WHERE ordinal = ?1 AND route = ?2";

const CHANGE: &str = "
UPDATE {p}parked
   SET ordinal = ?2, state = ?3, in_line = ?4, due_at = ?5, wake_at = ?6, attempts = ?7, cause_code = ?8,
       cause_detail = ?9, parked_at = coalesce(?10, parked_at)
 WHERE ordinal = ?1";

/// The first entry of one range of the index of lines.
pub(crate) const HEAD: &str = "
SELECT ordinal, due_at, wake_at
  FROM {p}parked
 WHERE route = ?1 AND key_hash = ?2 AND in_line = 1
 ORDER BY ordinal
 LIMIT 1";

const WAKE: &str = "UPDATE {p}parked SET wake_at = ?2 WHERE ordinal = ?1";

/// The parked rows of one route, in one write transaction. Call [`Self::finish`] at its end.
pub(crate) struct Rows<'a> {
    db: &'a Db,
    route: &'a str,
    now: Timestamp,
    touched: BTreeSet<i64>,
}

/// What a row's state comes down to in columns.
struct Columns<'a> {
    state: ParkedState,
    in_line: bool,
    due_at: Option<i64>,
    attempts: Option<u32>,
    cause: Option<(&'a str, &'a str)>,
}

impl Columns<'_> {
    /// A row in no line wakes by its own time. One in line does as the head only, which is seen to at the end.
    fn wake_at(&self) -> Option<i64> {
        self.due_at.filter(|_| !self.in_line)
    }

    /// A row that is given up is parked since then, however long it was kept for something else before.
    fn died_at(&self, now: Timestamp) -> Option<Timestamp> {
        (self.state == ParkedState::Dead).then_some(now)
    }
}

impl<'a> Rows<'a> {
    pub(crate) fn new(db: &'a Db, route: &'a str, now: Timestamp) -> Self {
        Self { db, route, now, touched: BTreeSet::new() }
    }

    /// Removes a row. One that is gone is skipped: `false`.
    pub(crate) fn remove(&mut self, ordinal: Ordinal) -> Work<bool> {
        let mut statement = self.db.statement(REMOVE)?;
        let removed: Option<(bool, Option<i64>)> = statement
            .query_row(params![signed(ordinal), self.route], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        if let Some((true, Some(key))) = removed {
            self.touched.insert(key);
        }
        Ok(removed.is_some())
    }

    /// Adds rows at the end, in the given order. A record that has a row already keeps that one.
    pub(crate) fn park<'r>(&mut self, rows: impl ExactSizeIterator<Item = (&'r Record, &'r Parked)>) -> Work<()> {
        let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
        if count == 0 {
            return Ok(());
        }
        let last = draw(self.db, "ordinal", count)?;
        let mut statement = self.db.statement(PARK)?;
        for (ordinal, (record, parked)) in (last - count + 1..).zip(rows) {
            let envelope = &record.envelope;
            let columns = self.columns(parked, record.key, envelope.deliver_at);
            let spread = record.key.unwrap_or_else(|| KeyHash::of(envelope.id.0.as_bytes()));
            let headers = (!envelope.headers.is_empty()).then(|| envelope.headers.encoded().as_ref());
            statement.execute(params![
                ordinal,
                self.route,
                envelope.id.0.as_bytes(),
                columns.state.name(),
                columns.in_line,
                record.key.map(KeyHash::as_i64),
                spread.as_i64(),
                columns.due_at,
                columns.wake_at(),
                columns.attempts.unwrap_or(0),
                columns.cause.map(|cause| cause.0),
                columns.cause.map(|cause| cause.1),
                self.now.as_micros(),
                envelope.topic,
                envelope.name,
                envelope.key.as_ref().map(postrider_core::key::OrderingKey::as_str),
                record.enqueued_at.as_micros(),
                envelope.deliver_at.map(Timestamp::as_micros),
                envelope.expires_at.map(Timestamp::as_micros),
                envelope.attempts_max,
                headers,
                envelope.payload.as_ref(),
                record.number.cast_signed(),
            ])?;
            if columns.in_line {
                self.touched.extend(record.key.map(KeyHash::as_i64));
            }
        }
        Ok(())
    }

    /// Makes something else of a row. One that is gone is skipped. `Held` moves it to the tail of its line.
    pub(crate) fn change(&mut self, ordinal: Ordinal, parked: &Parked) -> Work<()> {
        let Some(row) = self.find(ordinal)? else { return Ok(()) };
        let columns = self.columns(parked, row.key, row.deliver_at);
        let place = if matches!(parked, Parked::Held) { draw(self.db, "ordinal", 1)? } else { signed(ordinal) };
        self.write(ordinal, place, &row, &columns)
    }

    /// Tries a dead row again, with a fresh count of attempts. Others stay as they are: `false`.
    pub(crate) fn redrive(&mut self, ordinal: Ordinal) -> Work<bool> {
        let Some(row) = self.find(ordinal)?.filter(|row| row.state == ParkedState::Dead.name()) else {
            return Ok(false);
        };
        let state = if row.in_line { ParkedState::Retrying } else { ParkedState::Scheduled };
        let due_at = Some(self.now.as_micros());
        let columns = Columns { state, in_line: row.in_line, due_at, attempts: Some(0), cause: None };
        self.write(ordinal, signed(ordinal), &row, &columns)?;
        Ok(true)
    }

    /// Marks the heads of all lines that were touched.
    pub(crate) fn finish(self) -> Work<()> {
        for key in &self.touched {
            self.mark_head(*key)?;
        }
        Ok(())
    }

    fn write(&mut self, ordinal: Ordinal, place: i64, row: &Found, columns: &Columns<'_>) -> Work<()> {
        let key = row.key.map(KeyHash::as_i64);
        // A row that keeps its ordinal may enter a line before its head.
        if let Some(key) = key.filter(|_| columns.in_line && !row.in_line) {
            self.unmark_head(key)?;
        }
        self.db.statement(CHANGE)?.execute(params![
            signed(ordinal),
            place,
            columns.state.name(),
            columns.in_line,
            columns.due_at,
            columns.wake_at(),
            columns.attempts.unwrap_or(row.attempts),
            columns.cause.map_or(row.cause_code.as_deref(), |cause| Some(cause.0)),
            columns.cause.map_or(row.cause_detail.as_deref(), |cause| Some(cause.1)),
            columns.died_at(self.now).map(Timestamp::as_micros),
        ])?;
        if columns.in_line || row.in_line {
            self.touched.extend(key);
        }
        Ok(())
    }

    fn columns<'p>(&self, parked: &'p Parked, key: Option<KeyHash>, deliver_at: Option<Timestamp>) -> Columns<'p> {
        let from_now = |after| Some(self.now.saturating_add(after).as_micros());
        let (due_at, attempts, cause) = match parked {
            Parked::Scheduled { after } => {
                (deliver_at.map_or_else(|| from_now(*after), |at| Some(at.as_micros())), None, None)
            }
            Parked::Retrying { after, attempts, cause } => (from_now(*after), Some(*attempts), Some(cause)),
            // As the head of its line it is due since it was held. A keyless one has no line to wait in.
            Parked::Held => (Some(self.now.as_micros()), None, None),
            Parked::Dead { attempts, cause, .. } => (None, Some(*attempts), Some(cause)),
        };
        let cause = cause.map(|cause| (cause.code(), cause.detail()));
        Columns { state: parked.state(), in_line: key.is_some() && parked.in_line(), due_at, attempts, cause }
    }

    fn find(&self, ordinal: Ordinal) -> Work<Option<Found>> {
        let mut statement = self.db.statement(FIND)?;
        let found = statement.query_row(params![signed(ordinal), self.route], |row| {
            Ok(Found {
                state: row.get(0)?,
                in_line: row.get(1)?,
                key: row.get::<_, Option<i64>>(2)?.map(KeyHash::from_i64),
                deliver_at: row.get::<_, Option<i64>>(3)?.map(Timestamp::from_micros),
                attempts: row.get(4)?,
                cause_code: row.get(5)?,
                cause_detail: row.get(6)?,
            })
        });
        Ok(found.optional()?)
    }

    fn mark_head(&self, key: i64) -> Work<()> {
        if let Some((ordinal, due_at, wake_at)) = self.head(key)?
            && due_at != wake_at
        {
            self.db.statement(WAKE)?.execute(params![ordinal, due_at])?;
        }
        Ok(())
    }

    fn unmark_head(&self, key: i64) -> Work<()> {
        if let Some((ordinal, _, Some(_))) = self.head(key)? {
            self.db.statement(WAKE)?.execute(params![ordinal, None::<i64>])?;
        }
        Ok(())
    }

    fn head(&self, key: i64) -> Work<Option<Head>> {
        let mut statement = self.db.statement(HEAD)?;
        let head = statement.query_row(params![self.route, key], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        Ok(head.optional()?)
    }
}

/// Ordinal, `due_at` and `wake_at` of the first row of a line.
type Head = (i64, Option<i64>, Option<i64>);

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

pub(crate) fn signed(ordinal: Ordinal) -> i64 {
    ordinal.0.cast_signed()
}

pub(crate) fn ordinal(stored: i64) -> Ordinal {
    Ordinal(stored.cast_unsigned())
}
