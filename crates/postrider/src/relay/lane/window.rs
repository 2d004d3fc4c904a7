//! The window: what was read from the log and what the persisted cursor has not passed yet, in log order.
//!
//! It is bounded in records and in bytes. A page keeps all its records alive until the last of them is passed, so bytes
//! are counted per page.

use std::collections::VecDeque;

use postrider_core::log::PageLimit;

use super::entry::{Entries, State};

/// The first `passed` records of page number `page`: what a commit advances the cursor to. The driver asks that page for
/// the cursor itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Pages are numbered from 0 in the order of reading.
    pub(crate) page: u64,
    /// How many of its records are passed; all of them means the page's end.
    pub(crate) passed: u32,
}

struct PageSpan {
    number: u64,
    length: u32,
    passed: u32,
    bytes: usize,
}

pub(super) struct Window {
    records_max: u32,
    bytes_max: usize,
    page_records_max: u32,
    /// Entries in log order.
    ring: VecDeque<u32>,
    /// Leading entries that are known to be done.
    done: usize,
    pages: VecDeque<PageSpan>,
    pages_read: u64,
    bytes: usize,
    next_slot: u64,
}

impl Window {
    pub(super) fn new(records_max: u32, bytes_max: usize, page_records_max: u32) -> Self {
        Self {
            records_max,
            bytes_max,
            page_records_max: page_records_max.min(records_max.div_ceil(2)).max(1),
            ring: VecDeque::new(),
            done: 0,
            pages: VecDeque::new(),
            pages_read: 0,
            bytes: 0,
            next_slot: 0,
        }
    }

    /// How much the next page may hold; `None` while there is no room for a page worth reading.
    pub(super) fn room(&self) -> Option<PageLimit> {
        self.room_after(0, 0)
    }

    fn room_after(&self, records_freed: usize, bytes_freed: usize) -> Option<PageLimit> {
        let kept = u32::try_from(self.ring.len() - records_freed).unwrap_or(u32::MAX);
        let records = self.records_max.saturating_sub(kept).min(self.page_records_max);
        let bytes = self.bytes_max.saturating_sub(self.bytes - bytes_freed);
        let worth_it = records >= self.page_records_max && bytes >= self.bytes_max / 4;
        worth_it.then(|| PageLimit { records, bytes: (self.bytes_max / 4).max(1) })
    }

    /// Whether committing what is done would make room for a page where there is none now. ("The window is full" alone
    /// would commit after every tiny batch.)
    pub(super) fn commit_makes_room(&mut self, entries: &Entries) -> bool {
        if self.room().is_some() {
            return false;
        }
        self.count_done(entries);
        let (mut left, mut bytes) = (self.done, 0);
        for page in &self.pages {
            let open = (page.length - page.passed) as usize;
            if left < open {
                break;
            }
            left -= open;
            bytes += page.bytes;
        }
        self.room_after(self.done, bytes).is_some()
    }

    pub(super) fn begin_page(&mut self, length: u32, bytes: usize) {
        self.pages.push_back(PageSpan { number: self.pages_read, length, passed: 0, bytes });
        self.pages_read += 1;
        self.bytes += bytes;
    }

    #[inline]
    pub(super) fn push(&mut self, e: u32) {
        self.ring.push_back(e);
        self.next_slot += 1;
    }

    /// The slot that the next record read gets.
    #[inline]
    pub(super) fn next_slot(&self) -> u64 {
        self.next_slot
    }

    /// The slot of the first entry: everything before it is passed by the persisted cursor.
    pub(super) fn first_slot(&self) -> u64 {
        self.next_slot - self.ring.len() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Entries in log order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.ring.iter().copied()
    }

    pub(super) fn get(&self, i: usize) -> Option<u32> {
        self.ring.get(i).copied()
    }

    /// Counts on over entries that are done, and says how many there are at the front.
    #[inline]
    pub(super) fn count_done(&mut self, entries: &Entries) -> usize {
        while let Some(&e) = self.ring.get(self.done) {
            if entries[e].state != State::Done {
                break;
            }
            self.done += 1;
        }
        self.done
    }

    /// Where the cursor stands once the first `slots` entries are passed; `None` if that is where it stands already. Pages
    /// without records that follow are passed as well.
    pub(super) fn mark(&self, slots: usize) -> Option<Mark> {
        let mut left = slots;
        let mut mark = None;
        for page in &self.pages {
            let open = (page.length - page.passed) as usize;
            let take = left.min(open);
            if take > 0 || open == 0 {
                let taken = u32::try_from(take).expect("no more than the page");
                mark = Some(Mark { page: page.number, passed: page.passed + taken });
            }
            if take < open {
                break;
            }
            left -= take;
        }
        mark
    }

    /// Takes the first `slots` entries out, and every page that is passed with them.
    pub(super) fn pass(&mut self, slots: usize, mut gone: impl FnMut(u32)) {
        for _ in 0..slots {
            gone(self.ring.pop_front().expect("counted when the commit was made"));
        }
        self.done = self.done.saturating_sub(slots);
        let mut left = slots;
        while let Some(page) = self.pages.front_mut() {
            let take = left.min((page.length - page.passed) as usize);
            page.passed += u32::try_from(take).expect("no more than the page");
            left -= take;
            if page.passed < page.length {
                break;
            }
            self.bytes -= page.bytes;
            self.pages.pop_front();
        }
    }
}
