//! Parked rows: how they change, and how the head of each line is kept.
//!
//! The rows of one key that are in line are one range of an index, by ordinal; the first of them is the head. A row waits
//! for time alone if it is in no line, or the head of one: such a row has `wake_at`, all others have none. That is the
//! store's own mark and says nothing new. It is brought up to date for every key that a transaction touched, at its end,
//! and it is what makes a due read one short range of an index, however many rows are held. Everything here happens under
//! the route's lock: two transactions that each remove a row of one line would otherwise each mark the other's as head.
//!
//! **No `wake_at` is earlier than the moment at which its writer had the lock**, however long a row has been due by its own
//! time: a due read begins where the last one found nothing left (see [`crate::floor`]).

use std::collections::BTreeMap;

use postrider_core::{
    key::{KeyHash, OrderingKey},
    log::RecordRef,
    parked::{Ordinal, Parked, ParkedState},
    time::Timestamp,
};

use crate::{db::Db, error::Work, values::Instant};

/// By the primary key. The route is compared so that no index serves for it: when all rows but a few are gone, every index
/// looks alike to the planner, and most of them hold the entries of all that are gone.
const REMOVE: &str = "
DELETE FROM {parked}
 WHERE ordinal = $1 AND route IS NOT DISTINCT FROM $2
RETURNING in_line, key_hash, wake_at IS NOT NULL";

/// The unique index on (id, route, seq) decides whether there is a row of that record already; that one stays as it is.
/// Sorted, so that rows have their ordinals in the given order.
const PARK: &str = "
INSERT INTO {parked} (ordinal, route, id, state, in_line, key_hash, spread, due_at, wake_at, attempts, cause_code,
                      cause_detail, parked_at, topic, name, key, enqueued_at, deliver_at, expires_at, attempts_max,
                      headers, payload, seq)
SELECT ordinal, $1, id, state, in_line, key_hash, spread, due_at, wake_at, attempts, cause_code, cause_detail, $2, topic,
       name, key, enqueued_at, deliver_at, expires_at, attempts_max, headers, payload, seq
  FROM unnest($3::bigint[], $4::uuid[], $5::text[], $6::boolean[], $7::bigint[], $8::bigint[], $9::timestamptz[],
              $10::timestamptz[], $11::bigint[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[],
              $17::timestamptz[], $18::timestamptz[], $19::timestamptz[], $20::bigint[], $21::bytea[], $22::bytea[],
              $23::bigint[])
       AS row (ordinal, id, state, in_line, key_hash, spread, due_at, wake_at, attempts, cause_code, cause_detail, topic,
               name, key, enqueued_at, deliver_at, expires_at, attempts_max, headers, payload, seq)
 ORDER BY ordinal
    ON CONFLICT (id, route, seq) DO NOTHING";

const DRAW: &str = "SELECT nextval('{ordinal}') FROM generate_series(1, $1::bigint)";

/// As above.
const FIND: &str = "
SELECT state, in_line, key_hash, deliver_at, attempts, cause_code, cause_detail, wake_at IS NOT NULL
  FROM {parked}
 WHERE ordinal = $1 AND route IS NOT DISTINCT FROM $2";

const CHANGE: &str = "
UPDATE {parked}
   SET ordinal = $2, state = $3, in_line = $4, due_at = $5, wake_at = $6, attempts = $7, cause_code = $8,
       cause_detail = $9, parked_at = coalesce($10, parked_at)
 WHERE ordinal = $1";

/// For each of these lines: the head has a time to wake, if it waits for time, and nobody else has any. One short range of the
/// index of lines for each head, above all that is known to be gone, and the primary key. No join, and in an order that no other
/// index has, for the planner's sake, as above.
const MARK_HEADS: &str = "
UPDATE {parked}
   SET wake_at = greatest(due_at, $4)
 WHERE wake_at IS NULL AND due_at IS NOT NULL
   AND ordinal = ANY (ARRAY (
           SELECT head.ordinal
             FROM unnest($2::bigint[], $3::bigint[]) AS touched (key_hash, lowest)
            CROSS JOIN LATERAL (SELECT line.ordinal
                                  FROM {parked} AS line
                                 WHERE line.route = $1 AND line.in_line AND line.key_hash <= touched.key_hash
                                   AND (line.key_hash, line.ordinal) >= (touched.key_hash, touched.lowest)
                                 ORDER BY line.key_hash, line.ordinal
                                 LIMIT 1) AS head))";

/// Whoever was the head of this line is not, for a row with a lower ordinal enters it.
const UNMARK_HEAD: &str = "
UPDATE {parked}
   SET wake_at = NULL
 WHERE ordinal = (SELECT ordinal
                    FROM {parked} AS line
                   WHERE line.route = $1 AND line.key_hash = $2 AND line.in_line
                   ORDER BY line.ordinal
                   LIMIT 1)";

/// The parked rows of one route, in one transaction under the route's lock. Call [`Self::finish`] at its end.
pub(crate) struct Rows<'a> {
    db: &'a Db<'a>,
    route: &'a str,
    now: Timestamp,
    /// By key: an ordinal below which its line has no row, and [`UNKNOWN`] where none is known.
    touched: BTreeMap<i64, i64>,
}

/// Below all ordinals.
const UNKNOWN: i64 = 0;

/// What a row's state comes down to in columns.
struct Columns<'a> {
    state: ParkedState,
    in_line: bool,
    due_at: Option<Timestamp>,
    attempts: Option<u32>,
    cause: Option<(&'a str, &'a str)>,
}

impl Columns<'_> {
    /// A row in no line wakes by its own time. One in line does as the head only, which is seen to at the end.
    fn wake_at(&self, now: Timestamp) -> Option<Instant> {
        self.due_at.filter(|_| !self.in_line).map(|at| Instant(at.max(now)))
    }

    /// A row that is given up is parked since then, however long it was kept for something else before.
    fn died_at(&self, now: Timestamp) -> Option<Timestamp> {
        (self.state == ParkedState::Dead).then_some(now)
    }
}

impl<'a> Rows<'a> {
    pub(crate) fn new(db: &'a Db<'a>, route: &'a str, now: Timestamp) -> Self {
        Self { db, route, now, touched: BTreeMap::new() }
    }

    /// The head of this key's line may be another one at the end. `head`: it was this one so far, so nothing is below.
    fn touch(&mut self, key: i64, head: Option<i64>) {
        let lowest = self.touched.entry(key).or_insert(UNKNOWN);
        *lowest = head.map_or(*lowest, |head| head.max(*lowest));
    }

    /// Removes a row. One that is gone is skipped: `false`.
    pub(crate) async fn remove(&mut self, ordinal: Ordinal) -> Work<bool> {
        let removed = self.db.query_opt(REMOVE, &[&signed(ordinal), &self.route]).await?;
        let Some(row) = removed else { return Ok(false) };
        if row.try_get(0)?
            && let Some(key) = row.try_get::<_, Option<i64>>(1)?
        {
            self.touch(key, row.try_get::<_, bool>(2)?.then_some(signed(ordinal)));
        }
        Ok(true)
    }

    /// Adds rows at the end, in the given order, by one statement. A record that has a row already keeps that one.
    pub(crate) async fn park(&mut self, rows: &[(RecordRef, Parked)]) -> Work<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let ordinals = self.draw(rows.len()).await?;
        let columns: Vec<Columns<'_>> =
            rows.iter().map(|(record, parked)| self.columns(parked, record.key, record.envelope.deliver_at)).collect();
        for ((record, _), columns) in rows.iter().zip(&columns) {
            if let Some(key) = record.key.filter(|_| columns.in_line) {
                self.touch(key.as_i64(), None);
            }
        }
        macro_rules! each {
            (|$record:ident| $value:expr) => {
                &rows.iter().map(|($record, _)| $value).collect::<Vec<_>>()
            };
        }
        macro_rules! column {
            (|$columns:ident| $value:expr) => {
                &columns.iter().map(|$columns| $value).collect::<Vec<_>>()
            };
        }
        self.db
            .execute(
                PARK,
                &[
                    &self.route,
                    &Instant(self.now),
                    &ordinals,
                    each!(|record| record.envelope.id.0),
                    column!(|columns| columns.state.name()),
                    column!(|columns| columns.in_line),
                    each!(|record| record.key.map(KeyHash::as_i64)),
                    each!(|record| {
                        record.key.unwrap_or_else(|| KeyHash::of(record.envelope.id.0.as_bytes())).as_i64()
                    }),
                    column!(|columns| columns.due_at.map(Instant)),
                    column!(|columns| columns.wake_at(self.now)),
                    column!(|columns| i64::from(columns.attempts.unwrap_or(0))),
                    column!(|columns| columns.cause.map(|cause| cause.0)),
                    column!(|columns| columns.cause.map(|cause| cause.1)),
                    each!(|record| &*record.envelope.topic),
                    each!(|record| &*record.envelope.name),
                    each!(|record| record.envelope.key.as_ref().map(OrderingKey::as_str)),
                    each!(|record| Instant(record.enqueued_at)),
                    each!(|record| record.envelope.deliver_at.map(Instant)),
                    each!(|record| record.envelope.expires_at.map(Instant)),
                    each!(|record| record.envelope.attempts_max.map(i64::from)),
                    each!(|record| {
                        let headers = &record.envelope.headers;
                        (!headers.is_empty()).then(|| headers.encoded().as_ref())
                    }),
                    each!(|record| record.envelope.payload.as_ref()),
                    each!(|record| record.number.cast_signed()),
                ],
            )
            .await?;
        Ok(())
    }

    /// Makes something else of a row. One that is gone is skipped. `Held` moves it to the tail of its line.
    pub(crate) async fn change(&mut self, ordinal: Ordinal, parked: &Parked) -> Work<()> {
        let Some(row) = self.find(ordinal).await? else { return Ok(()) };
        let columns = self.columns(parked, row.key, row.deliver_at);
        let place = if matches!(parked, Parked::Held) { self.draw(1).await?[0] } else { signed(ordinal) };
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

    /// Marks the heads of all lines that were touched.
    pub(crate) async fn finish(self) -> Work<()> {
        if !self.touched.is_empty() {
            let (keys, lowest): (Vec<i64>, Vec<i64>) = self.touched.into_iter().unzip();
            self.db.execute(MARK_HEADS, &[&self.route, &keys, &lowest, &Instant(self.now)]).await?;
        }
        Ok(())
    }

    async fn write(&mut self, ordinal: Ordinal, place: i64, row: &Found, columns: &Columns<'_>) -> Work<()> {
        let key = row.key.map(KeyHash::as_i64);
        // A row that keeps its ordinal may enter a line before its head.
        if let Some(key) = key.filter(|_| columns.in_line && !row.in_line) {
            self.db.execute(UNMARK_HEAD, &[&self.route, &key]).await?;
        }
        let attempts = i64::from(columns.attempts.unwrap_or(row.attempts));
        let cause_code = columns.cause.map_or(row.cause_code.as_deref(), |cause| Some(cause.0));
        let cause_detail = columns.cause.map_or(row.cause_detail.as_deref(), |cause| Some(cause.1));
        self.db
            .execute(
                CHANGE,
                &[
                    &signed(ordinal),
                    &place,
                    &columns.state.name(),
                    &columns.in_line,
                    &columns.due_at.map(Instant),
                    &columns.wake_at(self.now),
                    &attempts,
                    &cause_code,
                    &cause_detail,
                    &columns.died_at(self.now).map(Instant),
                ],
            )
            .await?;
        if let Some(key) = key.filter(|_| columns.in_line || row.in_line) {
            self.touch(key, (row.in_line && row.wakes).then_some(signed(ordinal)));
            if columns.in_line
                && let Some(lowest) = self.touched.get_mut(&key)
            {
                *lowest = (*lowest).min(place);
            }
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

    async fn find(&self, ordinal: Ordinal) -> Work<Option<Found>> {
        let found = self.db.query_opt(FIND, &[&signed(ordinal), &self.route]).await?;
        let Some(row) = found else { return Ok(None) };
        Ok(Some(Found {
            state: row.try_get(0)?,
            in_line: row.try_get(1)?,
            key: row.try_get::<_, Option<i64>>(2)?.map(KeyHash::from_i64),
            deliver_at: row.try_get::<_, Option<Instant>>(3)?.map(|at| at.0),
            attempts: crate::db::unsigned(row.try_get(4)?),
            cause_code: row.try_get(5)?,
            cause_detail: row.try_get(6)?,
            wakes: row.try_get(7)?,
        }))
    }

    /// Ordinals that nobody else has, ascending. Under the route's lock they are above all others of the route.
    async fn draw(&self, count: usize) -> Work<Vec<i64>> {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let rows = self.db.query(DRAW, &[&count]).await?;
        let mut drawn = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
        drawn.sort_unstable();
        Ok(drawn)
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
    /// In line: whether it is the head.
    wakes: bool,
}

pub(crate) fn signed(ordinal: Ordinal) -> i64 {
    ordinal.0.cast_signed()
}

pub(crate) fn ordinal(stored: i64) -> Ordinal {
    Ordinal(stored.cast_unsigned())
}
