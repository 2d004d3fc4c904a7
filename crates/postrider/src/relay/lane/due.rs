//! Rows come back from the store: lines whose head is due, and timed rows.

use postrider_core::parked::{DueLimit, DuePage, DueRow, Ordinal, Parked};

use super::{
    Control, Effect, Lane, Ready, Tick,
    entry::{NIL, Source, State},
    ticks,
};

impl Lane {
    /// Parked rows that may be in memory at once, beside the window: a part of the bound on duplicates.
    fn rows_max(&self) -> usize {
        (self.options.due_lines * (self.options.due_per_line + 1)) as usize
    }

    pub(super) fn due_is_wanted(&self, now: Tick) -> bool {
        now >= self.due_at && !self.draining && self.active.len() < self.rows_max()
    }

    pub(super) fn ask_for_due(&mut self, now: Tick, out: &mut Vec<Effect>) {
        self.control = Control::Due;
        self.due_read_at = now;
        // Rows that are in memory already, or that were passed over, come again; they must not crowd out others.
        let again = u32::try_from(self.active.len()).unwrap_or(u32::MAX / 2) + std::mem::take(&mut self.passed_over);
        let lines = self.options.due_lines + again;
        let limit = DueLimit { lines, per_line: self.options.due_per_line, bytes: self.options.due_bytes_max };
        out.push(Effect::ReadDue { limit });
    }

    pub(crate) fn due_read(&mut self, now: Tick, page: DuePage) {
        self.control = Control::Idle;
        if self.draining {
            return; // what is stored stays stored
        }
        let before = self.active.len();
        let returned = page.timed.len() + page.lines.len();
        // Of the room for rows a part is kept for timed ones, so that lines cannot starve them. What does not fit comes
        // again with the next due read.
        let room = self.rows_max() - self.options.due_lines as usize;
        for line in page.lines {
            if self.active.len() + line.rows.len() > room {
                self.passed_over += 1;
                continue;
            }
            let l = self.lines.of(line.key);
            self.load_line(now, l, line.rows, line.more);
        }
        for row in page.timed {
            if self.active.len() < self.rows_max() {
                self.load_timed(now, row);
            }
        }
        let progressed = self.active.len() > before;
        let next = page.next_in.map_or(Tick::MAX, |next| ticks(next).max(1_000));
        let full = returned >= self.options.due_lines as usize;
        self.due_at = match (full, progressed) {
            (true, true) => now,
            (true, false) => now + ticks(self.options.poll_min), // all of them are in memory and on their way
            (false, _) => self.later(now, self.options.poll_max).min(now.saturating_add(next)),
        };
    }

    /// A line whose rows are still being worked off takes no second helping; it comes again with the next due read. That
    /// includes a head that became durable while this read was under way: it is still in the store.
    fn load_line(&mut self, now: Tick, l: u32, rows: Vec<DueRow>, more: bool) {
        let known = rows.first().is_some_and(|head| self.active.contains(&head.ordinal));
        let line = &self.lines[l];
        if known || line.loaded > 0 || line.barrier != NIL || line.flying > 0 {
            self.lines.forget_if_empty(l);
            return;
        }
        debug_assert!(self.lines[l].ahead, "a stored line that the lane did not know of");
        let count = u32::try_from(rows.len()).expect("no more than was asked for");
        self.lines[l].loaded = count;
        self.lines[l].ahead = more;
        let rows_known = self.lines[l].rows;
        self.lines.set_rows(l, if more { rows_known.max(count + 1) } else { count });
        for row in rows.into_iter().rev() {
            let e = self.load(now, row, Source::Line, l);
            self.lines.push_front(&mut self.entries, l, e);
        }
        // It stands there because it failed, if only its destination took nothing; those behind it were never sent.
        let head = self.lines[l].head;
        self.entries.trouble(head).tried = true;
        self.wake_line(now, l);
    }

    fn load_timed(&mut self, now: Tick, row: DueRow) {
        if self.active.contains(&row.ordinal) {
            return;
        }
        let Some(key) = row.record.key else {
            let was_scheduled = row.record.envelope.deliver_at.is_some();
            let e = self.load(now, row, Source::Timed, NIL);
            self.entries.trouble(e).tried |= !was_scheduled;
            self.ready.push_back(Ready::Loose(e));
            return;
        };
        let l = self.lines.of(key);
        if self.lines[l].ahead {
            self.active.insert(row.ordinal);
            self.join(now, l, row.ordinal);
            return;
        }
        match self.entries.get(self.lines[l].barrier).map(|barrier| (barrier.state, barrier.source)) {
            Some((State::Parking { .. }, Source::Line | Source::Timed)) => {
                self.active.insert(row.ordinal);
                self.join(now, l, row.ordinal);
            }
            Some((State::Retry | State::Dead { .. } | State::Parking { .. }, _)) => {
                self.passed_over += 1; // it comes again; see `forget_timed`
            }
            // Free, or behind one that clears in a moment.
            _ => {
                let e = self.load(now, row, Source::Timed, l);
                self.lines.push_back(&mut self.entries, l, e);
                self.wake_line(now, l);
            }
        }
    }

    fn load(&mut self, now: Tick, row: DueRow, source: Source, l: u32) -> u32 {
        self.active.insert(row.ordinal);
        let expires_in = row.record.expires_in;
        let e = self.entries.add(row.record, source, row.ordinal.0, l, row.attempts);
        if let Some(left) = expires_in {
            self.entries.trouble(e).expires_at = now.saturating_add(ticks(left));
        }
        e
    }

    /// Timed rows in a line's queue become held rows of its stored line.
    pub(super) fn join_timed(&mut self, now: Tick, l: u32) {
        for e in self.lines.take_from(&mut self.entries, l, |source| source == Source::Timed) {
            self.join(now, l, Ordinal(self.entries[e].place));
            self.drop_entry(e);
        }
    }

    /// It counts as a row of the line from this moment, not only from its commit.
    fn join(&mut self, now: Tick, l: u32, ordinal: Ordinal) {
        self.lines[l].ahead = true;
        let rows = self.lines[l].rows;
        self.lines.set_rows(l, rows + 1);
        self.change.push((ordinal, NIL, Parked::Held));
        self.touch(now);
    }

    pub(crate) fn due_failed(&mut self, now: Tick) {
        self.control = Control::Idle;
        self.due_at = now + self.pause();
    }

    /// For a drain: rows that are not in flight stay in the store, and what is queued behind them joins their line.
    pub(super) fn forget_rows(&mut self) {
        for l in self.lines.all() {
            for e in self.lines.take_from(&mut self.entries, l, |source| source != Source::Log) {
                self.forget_row(e);
            }
        }
        for ready in std::mem::take(&mut self.ready) {
            match ready {
                Ready::Loose(e) if self.entries[e].source == Source::Timed => self.forget_row(e),
                other => self.ready.push_back(other),
            }
        }
    }

    /// A row in memory that is in no queue and not in flight is the store's alone again.
    pub(super) fn forget_row(&mut self, e: u32) {
        let l = self.entries[e].line;
        self.active.remove(&Ordinal(self.entries[e].place));
        if self.entries[e].source == Source::Line {
            self.lines[l].loaded -= 1;
            self.lines[l].ahead = true;
        }
        self.drop_entry(e);
    }
}
