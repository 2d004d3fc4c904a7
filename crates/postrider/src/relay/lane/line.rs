//! Lines: all that a lane knows of one key.
//!
//! A line is a queue of waiting entries in memory, plus what the store has of that key. Order within a key is: rows of the
//! stored line, in ordinal order, then records from the log. So `ahead` is the one thing to know about the store: while it
//! is set, rows of this key are parked there that are not in memory, and nothing from the log may go.

use std::{collections::HashMap, hash::BuildHasherDefault};

use postrider_core::key::KeyHash;

use super::entry::{Entries, Mix, NIL, Source};

pub(super) struct Line {
    pub(super) key: KeyHash,
    pub(super) head: u32,
    tail: u32,
    /// Entries whose publish is under way. All of one line ride in the same batch.
    pub(super) flying: u32,
    /// Rows of the stored line that are in memory: queued, or in flight.
    pub(super) loaded: u32,
    /// A failed entry that the rest of the key waits for.
    pub(super) barrier: u32,
    /// Rows of this key may be parked that are not in memory.
    pub(super) ahead: bool,
    /// Whether the line stands in the ready queue.
    pub(super) ready: bool,
    /// About how many rows the stored line has. Operators can make it smaller; it is exact again when the line was seen
    /// whole.
    pub(super) rows: u32,
    used: bool,
}

#[derive(Default)]
pub(super) struct Lines {
    slab: Vec<Line>,
    free: Vec<u32>,
    index: HashMap<u64, u32, BuildHasherDefault<Mix>>,
    /// Lines with rows in the store.
    pub(super) blocked: u32,
}

impl Lines {
    /// The line of a key; a new one if it has none.
    #[inline]
    pub(super) fn of(&mut self, key: KeyHash) -> u32 {
        if let Some(&l) = self.index.get(&key.0) {
            return l;
        }
        let line = Line {
            key,
            head: NIL,
            tail: NIL,
            flying: 0,
            loaded: 0,
            barrier: NIL,
            ahead: false,
            ready: false,
            rows: 0,
            used: true,
        };
        let l = if let Some(l) = self.free.pop() {
            self.slab[l as usize] = line;
            l
        } else {
            self.slab.push(line);
            u32::try_from(self.slab.len() - 1).expect("bounded by window and blocked keys")
        };
        self.index.insert(key.0, l);
        l
    }

    /// Forgets a line of which nothing is left to know.
    #[inline]
    pub(super) fn forget_if_empty(&mut self, l: u32) {
        let line = &mut self.slab[l as usize];
        let empty = line.head == NIL
            && line.flying == 0
            && line.loaded == 0
            && line.barrier == NIL
            && !line.ahead
            && !line.ready
            && line.used;
        if empty {
            line.used = false;
            self.index.remove(&line.key.0);
            self.set_rows(l, 0);
            self.free.push(l);
        }
    }

    pub(super) fn set_rows(&mut self, l: u32, rows: u32) {
        let line = &mut self.slab[l as usize];
        match (line.rows, rows) {
            (0, 1..) => self.blocked += 1,
            (1.., 0) => self.blocked -= 1,
            _ => {}
        }
        line.rows = rows;
    }

    /// All lines that are in use.
    pub(super) fn all(&self) -> Vec<u32> {
        let count = u32::try_from(self.slab.len()).expect("as above");
        (0..count).filter(|&l| self.slab[l as usize].used).collect()
    }

    #[inline]
    pub(super) fn push_back(&mut self, entries: &mut Entries, l: u32, e: u32) {
        entries[e].next = NIL;
        let line = &mut self.slab[l as usize];
        if line.tail == NIL {
            line.head = e;
        } else {
            entries[line.tail].next = e;
        }
        line.tail = e;
    }

    pub(super) fn push_front(&mut self, entries: &mut Entries, l: u32, e: u32) {
        let line = &mut self.slab[l as usize];
        entries[e].next = line.head;
        line.head = e;
        if line.tail == NIL {
            line.tail = e;
        }
    }

    #[inline]
    pub(super) fn pop_front(&mut self, entries: &Entries, l: u32) -> u32 {
        let line = &mut self.slab[l as usize];
        let e = line.head;
        line.head = entries[e].next;
        if line.head == NIL {
            line.tail = NIL;
        }
        e
    }

    /// Takes an entry out of the queue. Those before it are walked over: rows and timed ones, of which there are few.
    pub(super) fn unlink(&mut self, entries: &mut Entries, l: u32, e: u32) {
        let line = &mut self.slab[l as usize];
        let (mut before, mut at) = (NIL, line.head);
        while at != e {
            (before, at) = (at, entries[at].next);
        }
        let next = entries[e].next;
        if before == NIL {
            line.head = next;
        } else {
            entries[before].next = next;
        }
        if next == NIL {
            line.tail = before;
        }
    }

    /// Takes all entries out of the queue that came from the given sources, in order.
    pub(super) fn take_from(&mut self, entries: &mut Entries, l: u32, wanted: impl Fn(Source) -> bool) -> Vec<u32> {
        let mut taken = Vec::new();
        let mut at = self.slab[l as usize].head;
        self.slab[l as usize].head = NIL;
        self.slab[l as usize].tail = NIL;
        while at != NIL {
            let next = entries[at].next;
            if wanted(entries[at].source) {
                taken.push(at);
            } else {
                self.push_back(entries, l, at);
            }
            at = next;
        }
        taken
    }
}

impl std::ops::Index<u32> for Lines {
    type Output = Line;
    #[inline]
    fn index(&self, l: u32) -> &Line {
        &self.slab[l as usize]
    }
}

impl std::ops::IndexMut<u32> for Lines {
    #[inline]
    fn index_mut(&mut self, l: u32) -> &mut Line {
        &mut self.slab[l as usize]
    }
}
