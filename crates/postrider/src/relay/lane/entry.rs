//! The records in a lane's memory: a slab of small entries that lines and window refer to by index.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use postrider_core::{log::RecordRef, parked::Cause};

use super::Tick;

/// No entry, no line.
pub(super) const NIL: u32 = u32::MAX;

/// Where an entry came from, and so where it is at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Read from the log; `place` is its slot in the window.
    Log,
    /// A row of its key's stored line; `place` is its ordinal.
    Line,
    /// A parked row outside of any line (scheduled and come due, or without a key); `place` is its ordinal.
    Timed,
}

/// What an entry is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its turn.
    Waiting,
    /// The outcome of its publish.
    InFlight,
    /// A moment, after an unknown outcome. It cannot be parked: the cursor waits for it.
    Again,
    /// Its back-off, after a rejection. If the cursor gets here first it is parked, else it goes again from memory.
    Retry,
    /// The commit of the verdict that gave it up.
    Dead {
        /// Whether its key waits for an operator.
        blocks: bool,
    },
    /// The commit that parks it until its time.
    Scheduled,
    /// The commit that is under way or next.
    Parking {
        /// Whether that commit lets its key go on.
        releases: bool,
    },
    /// Durable; the cursor may pass.
    Done,
}

pub(super) struct Entry {
    pub(super) record: Option<RecordRef>,
    /// Slot or ordinal, by source.
    pub(super) place: u64,
    pub(super) line: u32,
    /// The entry behind this one in its line's queue.
    pub(super) next: u32,
    pub(super) attempts: u32,
    pub(super) state: State,
    pub(super) source: Source,
    /// Whether there is something about it in the troubles.
    pub(super) troubled: bool,
}

/// What only few entries have.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    /// When an `Again` or `Retry` goes again.
    pub(super) due: Tick,
    pub(super) cause: Option<Cause>,
    /// Unknown outcomes in a row, since the destination last said that it takes nothing.
    pub(super) unknowns: u32,
    /// How many messages of the lane had been durable at the first unknown outcome that no attempt was made of. An outage that
    /// was guessed does not end the count: whatever goes through after it tells that the guess was wrong.
    pub(super) durables_before: Option<u64>,
    /// How many had been durable when it was first sent and did not go through.
    pub(super) sent_after: Option<u64>,
    /// How many had been durable when its destination last took nothing.
    pub(super) refused_after: Option<u64>,
    pub(super) expires_at: Tick,
    /// It was sent, and did not go through.
    pub(super) tried: bool,
}

impl Default for Trouble {
    fn default() -> Self {
        Self {
            due: 0,
            cause: None,
            unknowns: 0,
            durables_before: None,
            sent_after: None,
            refused_after: None,
            expires_at: Tick::MAX,
            tried: false,
        }
    }
}

/// Indices are reused: an entry must not be looked at after it was dropped.
#[derive(Default)]
pub(super) struct Entries {
    slab: Vec<Entry>,
    free: Vec<u32>,
    troubles: HashMap<u32, Trouble, BuildHasherDefault<Mix>>,
}

impl Entries {
    #[inline]
    pub(super) fn add(&mut self, record: RecordRef, source: Source, place: u64, line: u32, attempts: u32) -> u32 {
        let entry = Entry {
            record: Some(record),
            place,
            line,
            next: NIL,
            attempts,
            state: State::Waiting,
            source,
            troubled: false,
        };
        if let Some(e) = self.free.pop() {
            self.slab[e as usize] = entry;
            return e;
        }
        self.slab.push(entry);
        u32::try_from(self.slab.len() - 1).expect("bounded by the window")
    }

    #[inline]
    pub(super) fn drop(&mut self, e: u32) {
        let entry = &mut self.slab[e as usize];
        debug_assert!(entry.record.is_some(), "dropped twice");
        entry.record = None;
        if entry.troubled {
            self.troubles.remove(&e);
        }
        self.free.push(e);
    }

    /// `None` for no entry.
    pub(super) fn get(&self, e: u32) -> Option<&Entry> {
        self.slab.get(e as usize)
    }

    pub(super) fn trouble(&mut self, e: u32) -> &mut Trouble {
        self.slab[e as usize].troubled = true;
        self.troubles.entry(e).or_default()
    }

    pub(super) fn trouble_of(&self, e: u32) -> Option<&Trouble> {
        self.troubles.get(&e)
    }

    /// Whether it has failed before, as far as this lane or its stored row knows.
    pub(super) fn was_tried(&self, e: u32) -> bool {
        self[e].attempts > 0 || (self[e].troubled && self.trouble_of(e).is_some_and(|trouble| trouble.tried))
    }

    #[inline]
    pub(super) fn record(&self, e: u32) -> &RecordRef {
        self[e].record.as_ref().expect("kept until it is dropped")
    }
}

impl std::ops::Index<u32> for Entries {
    type Output = Entry;
    #[inline]
    fn index(&self, e: u32) -> &Entry {
        &self.slab[e as usize]
    }
}

impl std::ops::IndexMut<u32> for Entries {
    #[inline]
    fn index_mut(&mut self, e: u32) -> &mut Entry {
        &mut self.slab[e as usize]
    }
}

/// A hasher for numbers that are hashes already, or small indices: one multiplication.
#[derive(Clone, Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed");
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of the product")]
    fn write_u64(&mut self, value: u64) {
        let product = u128::from(value ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}
