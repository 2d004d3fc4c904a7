//! Due: how a store puts a page of due rows together, whatever it keeps them in.
//!
//! A store knows which rows wait for nothing but time ([`Waiting`]), and what stands in one line or one row ([`Kept`]). What
//! of that goes into a page, in which order, and when to look again is the same for all of them, and is here.
//!
//! ```text
//! waiting rows ─► next_due ─► the store reads a line, or a row ─► line, timed ─► page
//! ```

use std::{time::Duration, vec};

use crate::{
    envelope::Envelope,
    key::KeyHash,
    lease::Lease,
    log::{Record, RecordRef},
    parked::{DueLimit, DueLine, DuePage, DueRoom, DueRow, Ordinal},
    time::Timestamp,
};

/// A row that waits for time alone: the head of a line, or one outside of any.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// When it may run.
    pub wake_at: Timestamp,
    /// Its place.
    pub ordinal: Ordinal,
    /// What its lane is told by; of a row in line, its key.
    pub spread: KeyHash,
    /// Whether it is the head of a line.
    pub in_line: bool,
}

/// A parked row, as a store keeps it.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its place.
    pub ordinal: Ordinal,
    /// Attempts made so far.
    pub attempts: u32,
    /// Its own time, if it has one: the dead have none.
    pub due_at: Option<Timestamp>,
    /// The hash of its key, if it has one.
    pub key: Option<KeyHash>,
    /// When it was enqueued.
    pub enqueued_at: Timestamp,
    /// The copy of the message.
    pub envelope: Envelope,
}

/// A page of due rows in the making. What has no place in it, or is not due yet, says when to look again.
#[derive(Debug)]
pub struct DueRead<'a> {
    lease: &'a Lease,
    limit: DueLimit,
    now: Timestamp,
    waiting: vec::IntoIter<Waiting>,
    room: DueRoom,
    page: DuePage,
}

impl<'a> DueRead<'a> {
    /// From what waits in the lease's lane, in any order: all that is due, or one more of each kind than the limit lets
    /// through, and the first of each kind that is not.
    #[must_use]
    pub fn new(lease: &'a Lease, limit: DueLimit, now: Timestamp, mut waiting: Vec<Waiting>) -> Self {
        waiting.sort_by_key(|row| (row.wake_at, row.ordinal));
        Self { lease, limit, now, waiting: waiting.into_iter(), room: limit.room(), page: DuePage::default() }
    }

    /// The next that is due and may have a place in the page: its [`line`](Self::line), or the row alone as a
    /// [`timed`](Self::timed) one, is to be read. Ends with `None`.
    pub fn next_due(&mut self) -> Option<Waiting> {
        loop {
            let row = self.waiting.next()?;
            let taken = if row.in_line { self.page.lines.len() } else { self.page.timed.len() };
            if row.wake_at <= self.now && taken < self.limit.lines as usize {
                return Some(row);
            }
            self.put_off(&row);
        }
    }

    /// How many rows of a line are looked at: those that may go, and one that tells whether there are more.
    #[must_use]
    pub fn rows_of_line(&self) -> i64 {
        i64::from(self.per_line()) + 1
    }

    /// What stands in a line, from its head on, [so many](Self::rows_of_line) rows of it. Nothing, if the line is gone.
    ///
    /// # Errors
    /// The first of the rows, as it came.
    pub fn line<E>(&mut self, head: &Waiting, rows: impl IntoIterator<Item = Result<Kept, E>>) -> Result<(), E> {
        let mut line = DueLine { key: head.spread, rows: Vec::new(), more: false };
        for row in rows {
            let row = row?;
            let is_due = row.due_at.is_some_and(|at| at <= self.now);
            let found = self.due_row(row);
            if line.rows.len() == self.per_line() as usize || !is_due || !self.room.take(&found.record) {
                line.more = true;
                break;
            }
            line.rows.push(found);
        }
        if line.rows.is_empty() {
            self.put_off(head);
        } else {
            self.page.lines.push(line);
        }
        Ok(())
    }

    /// A row in no line. `None`: it is gone.
    pub fn timed(&mut self, waiting: &Waiting, row: Option<Kept>) {
        match row.map(|row| self.due_row(row)) {
            Some(found) if self.room.take(&found.record) => self.page.timed.push(found),
            _ => self.put_off(waiting),
        }
    }

    /// What has come together.
    #[must_use]
    pub fn page(self) -> DuePage {
        self.page
    }

    fn per_line(&self) -> u32 {
        self.limit.per_line.max(1)
    }

    /// What stays behind although it is due comes next, at once.
    fn put_off(&mut self, row: &Waiting) {
        let wait = row.wake_at.since(self.now);
        self.page.next_in = Some(self.page.next_in.map_or(wait, |next| next.min(wait)));
    }

    fn due_row(&self, row: Kept) -> DueRow {
        let Kept { ordinal, attempts, key, enqueued_at, envelope, .. } = row;
        let record = Record {
            key,
            enqueued_at,
            wait: envelope.deliver_at.map_or(Duration::ZERO, |at| at.since(self.now)),
            expires_in: envelope.expires_at.map(|at| at.since(self.now)),
            replay: self.lease.reader.replay.as_ref().map(|_| self.lease.lane.route.clone()),
            number: 0,
            envelope,
        };
        DueRow { ordinal, record: RecordRef::single(record), attempts }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use super::*;
    use crate::{
        lease::{Epoch, LaneId, Order, Reader},
        topic::TopicFilter,
    };

    fn lease() -> Lease {
        let reader = Reader { topics: TopicFilter::all(), order: Order::Key, replay: None };
        let lane = LaneId { route: "billing".into(), number: 0 };
        Lease { lane, lanes: 1, epoch: Epoch(1), reader: Arc::new(reader) }
    }

    fn waiting(wake_at: i64, ordinal: u64, in_line: bool) -> Waiting {
        let wake_at = Timestamp::from_micros(wake_at);
        Waiting { wake_at, ordinal: Ordinal(ordinal), spread: KeyHash(ordinal), in_line }
    }

    fn kept(ordinal: u64, due_at: Option<i64>) -> Kept {
        Kept {
            ordinal: Ordinal(ordinal),
            attempts: 1,
            due_at: due_at.map(Timestamp::from_micros),
            key: None,
            enqueued_at: Timestamp::from_micros(0),
            envelope: Envelope::new("t", "n", vec![0; 100]),
        }
    }

    fn ok(rows: Vec<Kept>) -> impl Iterator<Item = Result<Kept, Infallible>> {
        rows.into_iter().map(Ok)
    }

    fn ordinals(rows: &[DueRow]) -> Vec<u64> {
        rows.iter().map(|row| row.ordinal.0).collect()
    }

    const NOW: Timestamp = Timestamp::from_micros(50);
    const AMPLE: DueLimit = DueLimit { lines: 10, per_line: 2, bytes: 1 << 20 };

    #[test]
    fn the_longest_due_come_first_and_the_next_to_come_is_told() {
        let lease = lease();
        let rows = vec![waiting(70, 4, true), waiting(40, 3, true), waiting(10, 2, false), waiting(60, 1, false)];
        let mut read = DueRead::new(&lease, AMPLE, NOW, rows);
        let timed = read.next_due().unwrap();
        assert!(!timed.in_line && timed.ordinal == Ordinal(2));
        read.timed(&timed, Some(kept(2, Some(10))));
        let head = read.next_due().unwrap();
        assert!(head.in_line && head.ordinal == Ordinal(3));
        read.line(&head, ok(vec![kept(3, Some(40)), kept(5, Some(10))])).unwrap();
        assert!(read.next_due().is_none());
        let page = read.page();
        assert_eq!(ordinals(&page.timed), [2]);
        assert_eq!((ordinals(&page.lines[0].rows), page.lines[0].more), (vec![3, 5], false));
        assert_eq!(page.next_in, Some(Duration::from_micros(10)));
    }

    #[test]
    fn a_line_ends_with_the_limit_and_with_what_is_not_due() {
        for (second, third) in [(Some(10), Some(10)), (Some(90), None), (None, None)] {
            let lease = lease();
            let mut read = DueRead::new(&lease, AMPLE, NOW, vec![waiting(40, 1, true)]);
            assert_eq!(read.rows_of_line(), 3);
            let head = read.next_due().unwrap();
            read.line(&head, ok(vec![kept(1, Some(40)), kept(2, second), kept(3, third)])).unwrap();
            let page = read.page();
            let expected: &[u64] = if second == Some(10) { &[1, 2] } else { &[1] };
            assert_eq!((ordinals(&page.lines[0].rows), page.lines[0].more), (expected.to_vec(), true));
            assert_eq!(page.next_in, None, "the rest of a line comes with the line");
        }
    }

    #[test]
    fn what_has_no_place_in_the_page_comes_at_once() {
        let lease = lease();
        let one = DueLimit { lines: 1, ..AMPLE };
        let mut read = DueRead::new(&lease, one, NOW, vec![waiting(10, 1, true), waiting(20, 2, true)]);
        let head = read.next_due().unwrap();
        read.line(&head, ok(vec![kept(1, Some(10))])).unwrap();
        assert!(read.next_due().is_none());
        assert_eq!(read.page().next_in, Some(Duration::ZERO));
    }

    #[test]
    fn the_first_row_always_fits_and_no_other_that_is_too_large() {
        let lease = lease();
        let narrow = DueLimit { bytes: 10, ..AMPLE };
        let mut read = DueRead::new(&lease, narrow, NOW, vec![waiting(10, 1, false), waiting(20, 2, true)]);
        let timed = read.next_due().unwrap();
        read.timed(&timed, Some(kept(1, Some(10))));
        let head = read.next_due().unwrap();
        read.line(&head, ok(vec![kept(2, Some(20))])).unwrap();
        let page = read.page();
        assert_eq!((ordinals(&page.timed), page.lines.len()), (vec![1], 0));
        assert_eq!(page.next_in, Some(Duration::ZERO), "it comes with the next read");
    }

    #[test]
    fn what_is_gone_is_looked_for_again_and_an_error_is_handed_on() {
        let lease = lease();
        let rows = || vec![waiting(10, 1, false), waiting(20, 2, true)];
        let mut read = DueRead::new(&lease, AMPLE, NOW, rows());
        let timed = read.next_due().unwrap();
        read.timed(&timed, None);
        let head = read.next_due().unwrap();
        assert_eq!(read.line(&head, [Err("cut")]), Err("cut"));
        read.line(&head, ok(Vec::new())).unwrap();
        let page = read.page();
        assert!(page.timed.is_empty() && page.lines.is_empty() && page.next_in == Some(Duration::ZERO));
    }
}
