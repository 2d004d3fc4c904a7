//! The parked rows of one route: lines of keyed rows, and rows that wait for time alone.
//!
//! Two indexes are kept beside the rows and follow from them: `lines` (the rows in line of each key, by ordinal) and
//! `timed` (rows outside of any line that wait for time, by due time). A line's head is its first row; nothing marks it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use postrider_core::{
    envelope::MessageId,
    key::KeyHash,
    log::{Record, RecordRef},
    parked::{BlockedKey, Cause, DueLimit, DueLine, DuePage, DueRoom, DueRow, Ordinal, Parked, ParkedState},
    time::Timestamp,
};

use crate::records::{set_spans, spread};

/// The parked rows of one route.
#[derive(Default)]
pub(crate) struct ParkedRows {
    rows: BTreeMap<Ordinal, Row>,
    by_record: HashMap<(MessageId, u64), Ordinal>,
    lines: BTreeMap<KeyHash, BTreeSet<Ordinal>>,
    timed: BTreeSet<(Timestamp, Ordinal)>,
    last: u64,
}

/// One parked row.
pub(crate) struct Row {
    pub(crate) record: Record,
    pub(crate) state: ParkedState,
    pub(crate) blocks: bool,
    pub(crate) attempts: u32,
    pub(crate) cause: Option<Cause>,
    /// From when on it may run; for a held row since when it is held, for a dead row nothing.
    pub(crate) due_at: Option<Timestamp>,
    /// When it was parked; for a row that was given up since, when that was.
    pub(crate) parked_at: Timestamp,
}

impl Row {
    /// The line it stands in.
    fn line(&self) -> Option<KeyHash> {
        let in_line = match self.state {
            ParkedState::Scheduled => false,
            ParkedState::Retrying | ParkedState::Held => true,
            ParkedState::Dead => self.blocks,
        };
        self.record.key.filter(|_| in_line)
    }

    /// What it waits for, if it waits for time and stands in no line.
    fn timed(&self) -> Option<Timestamp> {
        self.due_at.filter(|_| self.line().is_none())
    }

    fn spread(&self) -> KeyHash {
        spread(self.record.key, self.record.envelope.id)
    }

    fn turn_into(&mut self, parked: &Parked, now: Timestamp) {
        self.state = parked.state();
        self.blocks = false;
        match parked {
            Parked::Scheduled { after } => {
                self.due_at = Some(self.record.envelope.deliver_at.unwrap_or_else(|| now.saturating_add(*after)));
            }
            Parked::Retrying { after, attempts, cause } => {
                self.due_at = Some(now.saturating_add(*after));
                (self.attempts, self.cause) = (*attempts, Some(cause.clone()));
            }
            Parked::Held => self.due_at = Some(now),
            Parked::Dead { attempts, cause, blocks } => {
                (self.due_at, self.blocks, self.parked_at) = (None, *blocks, now);
                (self.attempts, self.cause) = (*attempts, Some(cause.clone()));
            }
        }
    }
}

impl ParkedRows {
    /// Adds a row at the end, unless the record has one already.
    pub(crate) fn park(&mut self, record: &Record, parked: &Parked, now: Timestamp) {
        if self.by_record.contains_key(&(record.envelope.id, record.number)) {
            return;
        }
        let mut row = Row {
            record: record.clone(),
            state: parked.state(),
            blocks: false,
            attempts: 0,
            cause: None,
            due_at: None,
            parked_at: now,
        };
        row.turn_into(parked, now);
        let ordinal = self.next_ordinal();
        self.insert(ordinal, row);
    }

    /// Makes something else of a row that is still there. `Held` moves it to the tail of its line.
    pub(crate) fn change(&mut self, ordinal: Ordinal, parked: &Parked, now: Timestamp) {
        let tail = matches!(parked, Parked::Held);
        self.update(ordinal, tail, |row| row.turn_into(parked, now));
    }

    /// Tries a dead row again, with a fresh count of attempts. Others stay as they are.
    pub(crate) fn redrive(&mut self, ordinal: Ordinal, now: Timestamp) {
        self.update(ordinal, false, |row| {
            if row.state == ParkedState::Dead {
                row.state = if row.line().is_some() { ParkedState::Retrying } else { ParkedState::Scheduled };
                (row.blocks, row.attempts, row.due_at) = (false, 0, Some(now));
            }
        });
    }

    /// Removes a row, if it is still there.
    pub(crate) fn remove(&mut self, ordinal: Ordinal) -> Option<Row> {
        let row = self.rows.remove(&ordinal)?;
        self.by_record.remove(&(row.record.envelope.id, row.record.number));
        if let Some(key) = row.line() {
            let line = self.lines.get_mut(&key).expect("a row in line has a line");
            line.remove(&ordinal);
            if line.is_empty() {
                self.lines.remove(&key);
            }
        }
        if let Some(due_at) = row.timed() {
            self.timed.remove(&(due_at, ordinal));
        }
        Some(row)
    }

    /// All rows, by ordinal.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ordinal, &Row)> {
        self.rows.iter().map(|(ordinal, row)| (*ordinal, row))
    }

    /// Whether a row is the head of its line.
    pub(crate) fn is_head(&self, ordinal: Ordinal) -> bool {
        let line = self.rows.get(&ordinal).and_then(Row::line).and_then(|key| self.lines.get(&key));
        line.is_some_and(|line| line.first() == Some(&ordinal))
    }

    /// Every key of a lane that has a line.
    pub(crate) fn blocked(&self, number: u32, lanes: u32) -> Vec<BlockedKey> {
        let of_lane = self.lines.iter().filter(|(key, _)| key.lane(lanes) == number);
        of_lane.map(|(key, line)| BlockedKey { key: *key, rows: count(line.len()) }).collect()
    }

    /// Whether a lane has rows that will go on without an operator's doing. A row that is held behind a dead one counts:
    /// it must find its lane once the dead one is gone.
    pub(crate) fn any_waiting(&self, number: u32, lanes: u32) -> bool {
        self.rows.values().any(|row| row.state != ParkedState::Dead && row.spread().lane(lanes) == number)
    }

    /// What may run now, longest due first, lines and timed rows alike.
    pub(crate) fn due(&self, number: u32, lanes: u32, limit: DueLimit, now: Timestamp) -> DuePage {
        let heads = self.lines.iter().filter(|(key, _)| key.lane(lanes) == number).filter_map(|(key, line)| {
            let head = *line.first().expect("a line is never empty");
            Some((self.rows[&head].due_at?, head, Some((*key, line))))
        });
        let timed = self.timed.iter().map(|(due_at, ordinal)| (*due_at, *ordinal, None));
        let timed = timed.filter(|(_, ordinal, _)| self.rows[ordinal].spread().lane(lanes) == number);
        let mut waiting: Vec<_> = heads.chain(timed).collect();
        waiting.sort_by_key(|(due_at, ordinal, _)| (*due_at, *ordinal));

        let mut page = DuePage::default();
        let mut room = limit.room();
        for (due_at, ordinal, line) in waiting {
            let taken = match line {
                _ if due_at > now => false,
                Some(_) if page.lines.len() >= limit.lines as usize => false,
                None if page.timed.len() >= limit.lines as usize => false,
                _ => room.take(&self.rows[&ordinal].record),
            };
            match line {
                _ if !taken => {
                    // The first that stays behind is the next to come due; one that is due already, at once.
                    let wait = due_at.since(now);
                    page.next_in = Some(page.next_in.map_or(wait, |next| next.min(wait)));
                }
                Some((key, line)) => page.lines.push(self.due_line(key, line, limit.per_line, &mut room, now)),
                None => page.timed.push(self.due_row(ordinal, now)),
            }
        }
        page
    }

    /// The head, which has its room already, and as many behind it as may follow.
    fn due_line(
        &self,
        key: KeyHash,
        line: &BTreeSet<Ordinal>,
        per_line: u32,
        room: &mut DueRoom,
        now: Timestamp,
    ) -> DueLine {
        let per_line = per_line.max(1) as usize;
        let mut rows = Vec::new();
        for ordinal in line.iter().take(per_line) {
            let row = &self.rows[ordinal];
            let head = rows.is_empty();
            if !head && (row.due_at.is_none_or(|due_at| due_at > now) || !room.take(&row.record)) {
                break;
            }
            rows.push(self.due_row(*ordinal, now));
        }
        DueLine { key, more: rows.len() < line.len(), rows }
    }

    fn due_row(&self, ordinal: Ordinal, now: Timestamp) -> DueRow {
        let row = &self.rows[&ordinal];
        let mut record = row.record.clone();
        set_spans(&mut record, now);
        DueRow { ordinal, record: RecordRef::single(record), attempts: row.attempts }
    }

    fn update(&mut self, ordinal: Ordinal, tail: bool, change: impl FnOnce(&mut Row)) {
        let Some(mut row) = self.remove(ordinal) else { return };
        change(&mut row);
        let ordinal = if tail { self.next_ordinal() } else { ordinal };
        self.insert(ordinal, row);
    }

    fn insert(&mut self, ordinal: Ordinal, row: Row) {
        if let Some(key) = row.line() {
            self.lines.entry(key).or_default().insert(ordinal);
        }
        if let Some(due_at) = row.timed() {
            self.timed.insert((due_at, ordinal));
        }
        self.by_record.insert((row.record.envelope.id, row.record.number), ordinal);
        self.rows.insert(ordinal, row);
    }

    fn next_ordinal(&mut self) -> Ordinal {
        self.last += 1;
        Ordinal(self.last)
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
