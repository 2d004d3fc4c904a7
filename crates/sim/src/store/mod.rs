//! The simulated store: explicit transactions whose ids are drawn before they commit, as in a real database.
//!
//! A reader takes the difference of two snapshots: what is visible in the *target* and was not in the *base*. A cursor
//! holds base, target, the place in between, and a lower bound for scans. Everything here happens in an instant; the
//! network around it is the business of [`log`](crate::log).

mod leases;
mod operator;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use postrider_core::{
    Error, ErrorKind, Result,
    asked::Asked,
    envelope::{Envelope, MessageId},
    key::KeyHash,
    lease::{LaneId, Lease, NodeId, Order, Reader, Replay},
    log::{Cursor, Marks, Page, PageLimit, Record, RecordRef, Resumed, Settlement},
    parked::{BlockedKey, Cause, DueLimit, DueLine, DuePage, DueRow, Ordinal, Parked},
    time::Timestamp,
};

use crate::{plants::StorePlant, world::Micros};

/// The topics that there are.
pub const TOPICS: [&str; 2] = ["t.a", "t.b"];

/// Whether and when a transaction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It is open.
    Open,
    /// It was rolled back.
    RolledBack,
    /// So many transactions had committed before it.
    Committed(u64),
}

/// One row of the log.
#[derive(Clone, Debug)]
pub struct Row {
    /// What travels.
    pub envelope: Envelope,
    /// When it was enqueued, by the store's clock.
    pub enqueued_at: Micros,
    /// How many transactions had committed when it was enqueued: those happened before it.
    pub enqueued_after: u64,
    /// What became of its transaction.
    pub ending: Ending,
    /// Whether retention has removed it.
    pub purged: bool,
}

/// One parked row.
#[derive(Clone, Debug)]
pub struct ParkedRow {
    /// A copy of what travels.
    pub record: Record,
    /// What it waits for.
    pub parked: Parked,
    /// Attempts so far.
    pub attempts: u32,
    /// When it is due, by the store's clock.
    pub due_at: Micros,
}

/// One lane.
#[derive(Clone, Debug)]
pub struct LaneState {
    /// Under which writes are accepted.
    pub epoch: u64,
    /// Who owns it, if the lease has not run out.
    pub owner: Option<NodeId>,
    /// When the lease runs out, by the store's clock.
    pub expires_at: Micros,
    /// How far it is.
    pub place: Place,
    /// The last settlement applied: epoch and number.
    pub settled: (u64, u64),
}

/// A cursor of this store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// All that had committed before is settled.
    pub base: u64,
    /// Where the page under way ends; 0 if none is.
    pub target: u64,
    /// Rows before this one are passed in the page under way.
    pub after: u64,
    /// No row before this one can be new.
    pub low: u64,
}

/// A route, or a replay.
#[derive(Clone, Debug)]
pub struct RouteState {
    /// What it reads.
    pub reader: Arc<Reader>,
    /// What the nodes that serve it have asked for.
    pub asked: Asked,
    /// The topics that somebody wants and always has wanted since the route began: all their messages have to arrive.
    pub promised: Vec<&'static str>,
    /// Whether an operator paused it.
    pub paused: bool,
    /// Its lanes.
    pub lanes: Vec<LaneState>,
    /// Its parked rows.
    pub parked: BTreeMap<u64, ParkedRow>,
    /// The same by message.
    pub by_id: HashMap<MessageId, u64>,
    /// For a replay: commits before this one are read.
    pub until: Option<u64>,
}

/// Everything.
#[derive(Clone, Debug, Default)]
pub struct Store {
    /// Its clock.
    pub now: Micros,
    /// The log, in the order of ids.
    pub rows: Vec<Row>,
    /// Transactions committed so far.
    pub commits: u64,
    /// Routes and replays.
    pub routes: BTreeMap<Arc<str>, RouteState>,
    /// Nodes: the routes that they serve, and until when they count as alive.
    pub nodes: BTreeMap<NodeId, (Vec<Arc<str>>, Micros)>,
    next_ordinal: u64,
    next_replay: u64,
    /// The mistake that is planted here.
    pub plant: StorePlant,
    /// Writes of stale owners that were refused.
    pub stale_writes: u64,
    /// What was parked as dead, with its route and cause, for the checks.
    pub verdicts: Vec<(Arc<str>, MessageId, u32, Cause)>,
    /// Leases with a lower epoch are from before a fail-over.
    void_before: u64,
    /// Lanes that were taken although their last owner had not given them back.
    pub takeovers: u64,
    /// Highest epoch that ever wrote, per lane.
    written: HashMap<LaneId, u64>,
}

fn micros(duration: Duration) -> Micros {
    Micros::try_from(duration.as_micros()).unwrap_or(Micros::MAX / 4)
}

fn stamp(at: Timestamp) -> Micros {
    Micros::try_from(at.as_micros()).unwrap_or(0)
}

impl Store {
    /// An empty store.
    #[must_use]
    pub fn new(now: Micros, plant: StorePlant) -> Self {
        Self { now, plant, ..Self::default() }
    }

    // ---- the application ----------------------------------------------------------------------------------------

    /// Draws an id and adds a row to an open transaction.
    pub fn append(&mut self, envelope: Envelope) -> usize {
        let (enqueued_at, enqueued_after) = (self.now, self.commits);
        self.rows.push(Row { envelope, enqueued_at, enqueued_after, ending: Ending::Open, purged: false });
        self.rows.len() - 1
    }

    /// Ends a transaction.
    pub fn end(&mut self, rows: &[usize], commit: bool) {
        let ending = if commit { Ending::Committed(self.commits) } else { Ending::RolledBack };
        self.commits += u64::from(commit);
        for &row in rows {
            self.rows[row].ending = ending;
        }
    }

    // ---- reading ------------------------------------------------------------------------------------------------

    /// `Log::resume`.
    pub fn resume(&mut self, lease: &Lease) -> Result<Resumed> {
        self.fence(lease)?;
        let cursor = encode(self.lane_mut(lease)?.place);
        let mut blocked: BTreeMap<KeyHash, u32> = BTreeMap::new();
        for row in self.rows_in_lane(lease).filter(|(_, row)| row.parked.in_line()) {
            if let Some(key) = row.1.record.key {
                *blocked.entry(key).or_default() += 1;
            }
        }
        Ok(Resumed { cursor, blocked: blocked.into_iter().map(|(key, rows)| BlockedKey { key, rows }).collect() })
    }

    /// `Log::read`.
    pub fn read(&self, lease: &Lease, after: &Cursor, limit: PageLimit) -> Result<Page> {
        let route = self.routes.get(&lease.lane.route).ok_or_else(Error::fenced)?;
        if lease.epoch.0 < self.void_before {
            return Err(Error::fenced());
        }
        let id_cursor = self.plant == StorePlant::IdCursor;
        let mut place = decode(after);
        let visible_to = self.commits.min(route.until.unwrap_or(u64::MAX));
        if place.target == 0 {
            place.target = visible_to;
            place.after = place.low;
        }
        let mut records = Vec::new();
        let mut ids = Vec::new();
        let (mut bytes, mut full) = (0, false);
        for (id, row) in (0_u64..).zip(&self.rows).skip(usize::try_from(place.after).unwrap_or(usize::MAX)) {
            let seen = match row.ending {
                Ending::Committed(commit) if id_cursor => commit < visible_to,
                Ending::Committed(commit) => commit >= place.base && commit < place.target,
                _ => false,
            };
            if !seen || row.purged {
                continue;
            }
            let Some(record) = self.record(lease, row) else { continue };
            let weight = record.envelope.weight();
            if records.len() as u32 >= limit.records || (bytes + weight > limit.bytes && !records.is_empty()) {
                full = true;
                break;
            }
            bytes += weight;
            ids.push(id + 1);
            records.push(record);
        }
        let end = if full {
            Place { after: *ids.last().expect("full"), ..place }
        } else if id_cursor {
            Place { low: ids.last().copied().unwrap_or(place.low), ..Place::default() }
        } else {
            Place { base: place.target, target: 0, after: 0, low: self.first_unseen(place.target) }
        };
        let ended = !full && route.until.is_some_and(|until| end.base >= until);
        let end_cursor = if records.is_empty() && end.base == decode(after).base { after.clone() } else { encode(end) };
        let marks: Marks = Arc::new(move |n| match n {
            0 => encode(place),
            n if id_cursor => encode(Place { low: ids[n as usize - 1], ..Place::default() }),
            n => encode(Place { after: ids[n as usize - 1], ..place }),
        });
        Ok(Page { records: Arc::new(records), marks, end: end_cursor, more: full, ended })
    }

    fn first_unseen(&self, snapshot: u64) -> u64 {
        let unseen = |row: &Row| match row.ending {
            Ending::Open => true,
            Ending::RolledBack => false,
            Ending::Committed(commit) => commit >= snapshot,
        };
        self.rows.iter().position(unseen).unwrap_or(self.rows.len()) as u64
    }

    fn record(&self, lease: &Lease, row: &Row) -> Option<Record> {
        let envelope = &row.envelope;
        if !lease.reader.topics.matches(&envelope.topic) || !replayed(lease.reader.replay.as_ref(), row) {
            return None;
        }
        let key_bytes = envelope.key.as_ref().map(AsRef::as_ref);
        let (key, mine) = lease.reader.place(key_bytes, &envelope.id.0, lease.lane.number, lease.lanes);
        mine.then(|| Record {
            key,
            enqueued_at: Timestamp::from_micros(row.enqueued_at.cast_signed()),
            wait: self.left(envelope.deliver_at).unwrap_or_default(),
            expires_in: self.left(envelope.expires_at),
            replay: lease.reader.replay.is_some().then(|| Arc::clone(&lease.lane.route)),
            envelope: envelope.clone(),
            // Ids are unique here.
            number: 0,
        })
    }

    fn left(&self, at: Option<Timestamp>) -> Option<Duration> {
        at.map(|at| Duration::from_micros(stamp(at).saturating_sub(self.now)))
    }

    fn rows_in_lane<'a>(&'a self, lease: &'a Lease) -> impl Iterator<Item = (u64, &'a ParkedRow)> + 'a {
        let parked = self.routes.get(&lease.lane.route).map(|route| &route.parked).into_iter().flatten();
        parked.map(|(ordinal, row)| (*ordinal, row)).filter(move |(_, row)| {
            let spread = row.record.key.unwrap_or_else(|| KeyHash::of(row.record.envelope.id.0.as_bytes()));
            lease.lanes <= 1 || spread.lane(lease.lanes) == lease.lane.number
        })
    }

    /// `Log::due`.
    pub fn due(&mut self, lease: &Lease, limit: DueLimit) -> Result<DuePage> {
        self.fence(lease)?;
        Ok(self.due_now(lease, limit))
    }

    fn due_now(&self, lease: &Lease, limit: DueLimit) -> DuePage {
        let mut page = DuePage::default();
        let mut lines: BTreeMap<KeyHash, Vec<(u64, &ParkedRow)>> = BTreeMap::new();
        let mut candidates: Vec<(Micros, u64, Option<KeyHash>)> = Vec::new();
        for (ordinal, row) in self.rows_in_lane(lease) {
            match (row.record.key, &row.parked) {
                (Some(key), parked) if parked.in_line() => lines.entry(key).or_default().push((ordinal, row)),
                (_, Parked::Scheduled { .. } | Parked::Retrying { .. }) => candidates.push((row.due_at, ordinal, None)),
                _ => {}
            }
        }
        for (key, rows) in &lines {
            let (ordinal, head) = rows[0];
            match head.parked {
                Parked::Retrying { .. } => candidates.push((head.due_at, ordinal, Some(*key))),
                Parked::Held if self.plant != StorePlant::HeldNeverDue => candidates.push((0, ordinal, Some(*key))),
                _ => {}
            }
        }
        candidates.sort_unstable();
        let mut bytes = 0;
        for (due_at, ordinal, key) in candidates {
            let early = Micros::from(self.plant == StorePlant::ScheduledEarly) * 500_000;
            if due_at > self.now + early || bytes >= limit.bytes {
                page.next_in.get_or_insert(Duration::from_micros(due_at.saturating_sub(self.now)));
                break;
            }
            match key {
                None if page.timed.len() < limit.lines as usize => {
                    let row = &self.routes[&lease.lane.route].parked[&ordinal];
                    bytes += row.record.envelope.weight();
                    page.timed.push(self.due_row(ordinal, row));
                }
                Some(key) if page.lines.len() < limit.lines as usize => {
                    let runnable = |row: &ParkedRow| matches!(row.parked, Parked::Retrying { .. } | Parked::Held);
                    let all = &lines[&key];
                    let take = all.iter().take_while(|(_, row)| runnable(row)).take(limit.per_line as usize);
                    let rows: Vec<DueRow> = take.map(|(ordinal, row)| self.due_row(*ordinal, row)).collect();
                    bytes += rows.iter().map(|row| row.record.envelope.weight()).sum::<usize>();
                    page.lines.push(DueLine { key, more: rows.len() < all.len(), rows });
                }
                _ => {
                    page.next_in.get_or_insert(Duration::ZERO);
                }
            }
        }
        page
    }

    fn due_row(&self, ordinal: u64, row: &ParkedRow) -> DueRow {
        let mut record = row.record.clone();
        record.wait = Duration::ZERO;
        record.expires_in = self.left(record.envelope.expires_at);
        DueRow { ordinal: Ordinal(ordinal), record: RecordRef::single(record), attempts: row.attempts }
    }

    // ---- settling -----------------------------------------------------------------------------------------------

    /// `Log::settle`.
    ///
    /// # Panics
    /// If a stale owner's write would be accepted.
    pub fn settle(&mut self, lease: &Lease, settlement: &Settlement) -> Result<()> {
        self.fence(lease)?;
        let written = self.written.entry(lease.lane.clone()).or_default();
        assert!(lease.epoch.0 >= *written, "a stale owner's write was accepted on {}", lease.lane);
        *written = lease.epoch.0;
        let (epoch, number) = self.lane_mut(lease)?.settled;
        let again = epoch == lease.epoch.0 && settlement.number <= number;
        if again && self.plant != StorePlant::RepeatByContent {
            return Ok(());
        }
        let now = self.now;
        let name = Arc::clone(&lease.lane.route);
        let route = self.routes.get_mut(&name).ok_or_else(Error::fenced)?;
        for ordinal in &settlement.remove {
            if let Some(row) = route.parked.remove(&ordinal.0) {
                route.by_id.remove(&row.record.envelope.id);
            }
        }
        for (record, parked) in &settlement.park {
            if let Parked::Dead { attempts, cause, .. } = parked {
                self.verdicts.push((Arc::clone(&name), record.envelope.id, *attempts, cause.clone()));
            }
            if route.by_id.contains_key(&record.envelope.id) {
                continue;
            }
            self.next_ordinal += 1;
            let mut row = ParkedRow { record: (**record).clone(), parked: Parked::Held, attempts: 0, due_at: 0 };
            change(&mut row, parked, now);
            route.by_id.insert(record.envelope.id, self.next_ordinal);
            route.parked.insert(self.next_ordinal, row);
        }
        for (ordinal, parked) in &settlement.change {
            let Some(mut row) = route.parked.remove(&ordinal.0) else { continue };
            if let Parked::Dead { attempts, cause, .. } = parked {
                self.verdicts.push((Arc::clone(&name), row.record.envelope.id, *attempts, cause.clone()));
            }
            let mut place = ordinal.0;
            if *parked == Parked::Held {
                self.next_ordinal += 1;
                place = self.next_ordinal;
            }
            change(&mut row, parked, now);
            route.by_id.insert(row.record.envelope.id, place);
            route.parked.insert(place, row);
        }
        let lane = self.lane_mut(lease)?;
        lane.settled = (lease.epoch.0, settlement.number);
        if let Some(cursor) = &settlement.advance {
            lane.place = decode(cursor);
        }
        Ok(())
    }

    /// `Log::finish`.
    pub fn finish(&mut self, lease: &Lease) -> Result<bool> {
        self.fence(lease)?;
        let waits = |row: &ParkedRow| !matches!(row.parked, Parked::Dead { .. });
        if self.routes[&lease.lane.route].parked.values().any(waits) {
            return Ok(false);
        }
        self.routes.remove(&lease.lane.route);
        Ok(true)
    }

    /// `Log::purge`: what every reader has passed and is old enough. Answers which rows went.
    pub fn purge(&mut self, keep: Option<Duration>) -> Vec<usize> {
        let Some(keep) = keep else { return Vec::new() };
        if self.routes.is_empty() {
            return Vec::new();
        }
        let places = || self.routes.values().flat_map(|route| route.lanes.iter().map(|lane| lane.place));
        let passed = |id: u64, commit: u64| {
            places().all(|place| commit < place.base || (place.target > 0 && commit < place.target && id < place.after))
        };
        let old = |row: &Row| row.enqueued_at + micros(keep) < self.now;
        let gone: Vec<usize> = (0_u64..)
            .zip(&self.rows)
            .filter(|(id, row)| match row.ending {
                Ending::Committed(commit) => {
                    !row.purged && old(row) && (self.plant == StorePlant::PurgeByAge || passed(*id, commit))
                }
                _ => false,
            })
            .map(|(id, _)| usize::try_from(id).expect("an index"))
            .collect();
        for &row in &gone {
            self.rows[row].purged = true;
        }
        gone
    }
}

fn change(row: &mut ParkedRow, to: &Parked, now: Micros) {
    match to {
        Parked::Retrying { after, attempts, .. } => (row.due_at, row.attempts) = (now + micros(*after), *attempts),
        Parked::Dead { attempts, .. } => row.attempts = *attempts,
        Parked::Scheduled { after } => {
            row.due_at = row.record.envelope.deliver_at.map_or(now + micros(*after), stamp);
        }
        Parked::Held => {}
    }
    row.parked = to.clone();
}

fn replayed(replay: Option<&Replay>, row: &Row) -> bool {
    let Some(Replay { filter, .. }) = replay else { return true };
    filter.since.is_none_or(|since| row.enqueued_at >= stamp(since))
        && filter.until.is_none_or(|until| row.enqueued_at < stamp(until))
        && filter.key.as_deref().is_none_or(|key| row.envelope.key.as_ref().is_some_and(|other| other.as_str() == key))
}

fn encode(place: Place) -> Cursor {
    let numbers = [place.base, place.target, place.after, place.low];
    Cursor(numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Bytes>())
}

fn decode(cursor: &Cursor) -> Place {
    let number = |i: usize| u64::from_le_bytes(cursor.0[i * 8..i * 8 + 8].try_into().expect("four numbers"));
    Place { base: number(0), target: number(1), after: number(2), low: number(3) }
}

/// The error of a call that the network swallowed.
#[must_use]
pub fn unreachable() -> Error {
    Error::new(ErrorKind::Unavailable, "the store does not answer")
}

/// Whether a route keeps one order for all.
#[must_use]
pub fn is_total(reader: &Reader) -> bool {
    reader.order == Order::Total
}
