//! Parked: the messages that cannot simply go on, and why. The only state that is kept per message.
//!
//! A parked row belongs to one route and holds a copy of its envelope, so that retention never waits for it. Rows have
//! ordinals, ascending in the order of parking. The rows of one key that are `retrying`, `held` or blocking `dead` form
//! its **line**; the row with the least ordinal is the line's **head**. That is all there is to it: no row is ever
//! "promoted", a line cannot have two heads, and nothing can be held behind nothing.
//!
//! ```text
//!            deliver_at in the future                 due: behind what its key has in line
//!   read ────────────────────────────► scheduled ──────────────────────────────► published, or held
//!    │ rejected                                            redrive (of one whose key has gone on)
//!    ├───────────► retrying ──► published                  ▲
//!    │                │ attempts used up                   │
//!    │                └──────► dead (blocks its key) ── redrive ──► retrying
//!    │ behind a head           dead (released)  ───────────┘
//!    └───────────► held ──► head once those before it are gone: due at once
//! ```

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    key::KeyHash,
    log::{Record, RecordRef},
};

/// Place of a row among the parked rows of its route; given by the store, ascending in the order of parking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ordinal(pub u64);

/// The code of messages that wait because the topic, queue or stream that they go to takes nothing, while others of their route
/// go through. What the destination says itself is in the detail. It never makes a message dead.
pub const DESTINATION_UNAVAILABLE: &str = "destination-unavailable";

/// Why something did not go on: a short stable code to group by, and a sentence for people.
#[derive(Clone)]
pub struct Cause(Arc<Why>);

struct Why {
    code: Box<str>,
    detail: Box<str>,
    unsent: bool,
    of_one_destination: bool,
}

impl Cause {
    /// The code is lower case with dashes (`too-large`); the detail never holds payloads or secrets.
    #[must_use]
    pub fn new(code: &str, detail: impl fmt::Display) -> Self {
        Self::of(code, detail, false, false)
    }

    /// As [`new`](Self::new), of a publisher that kept the message to itself: it did not even try to reach the destination.
    /// Such a refusal is no attempt in the metrics. It is known as long as the cause stays in memory.
    #[must_use]
    pub fn unsent(code: &str, detail: impl fmt::Display) -> Self {
        Self::of(code, detail, true, false)
    }

    /// As [`new`](Self::new), of a topic, queue or stream that a message names itself: nothing is said of others on the same
    /// server. It is known as long as the cause stays in memory.
    #[must_use]
    pub fn of_one_destination(code: &str, detail: impl fmt::Display) -> Self {
        Self::of(code, detail, false, true)
    }

    fn of(code: &str, detail: impl fmt::Display, unsent: bool, of_one_destination: bool) -> Self {
        Self(Arc::new(Why { code: code.into(), detail: detail.to_string().into(), unsent, of_one_destination }))
    }

    /// Whether it says nothing of other destinations.
    #[must_use]
    pub fn is_of_one_destination(&self) -> bool {
        self.0.of_one_destination
    }

    /// Whether nothing went towards the destination.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        self.0.unsent
    }

    /// What dead letters are grouped by.
    #[must_use]
    pub fn code(&self) -> &str {
        &self.0.code
    }

    /// What a person reads.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.0.detail
    }
}

/// By code and detail.
impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        (self.code(), self.detail()) == (other.code(), other.detail())
    }
}

impl Eq for Cause {}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code(), self.detail())
    }
}

/// As an object of `code` and `detail`.
impl Serialize for Cause {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written { code: self.code().into(), detail: self.detail().into() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Cause {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Written { code, detail } = Written::deserialize(deserializer)?;
        Ok(Self::new(&code, detail))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "Cause")]
struct Written<'a> {
    code: Cow<'a, str>,
    detail: Cow<'a, str>,
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a parked row is waiting for. Durations count from the commit, by the store's clock.
#[derive(Clone, Debug, PartialEq)]
pub enum Parked {
    /// For its time. It has no place in its key's line until then.
    Scheduled {
        /// How long from now.
        after: Duration,
    },
    /// For its next attempt. In line.
    Retrying {
        /// How long from now.
        after: Duration,
        /// Attempts made so far.
        attempts: u32,
        /// Why the last one failed.
        cause: Cause,
    },
    /// For those before it in line; as the head of its line it is due at once.
    Held,
    /// For an operator.
    Dead {
        /// Attempts made.
        attempts: u32,
        /// Why it was given up.
        cause: Cause,
        /// Whether it stays in line, so that its key waits for the operator too.
        blocks: bool,
    },
}

/// The state of a parked row without its details: what is stored, listed and filtered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParkedState {
    /// Waits for its time.
    Scheduled,
    /// Waits for its next attempt.
    Retrying,
    /// Waits behind a head.
    Held,
    /// Waits for an operator.
    Dead,
}

impl ParkedState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Scheduled, Self::Retrying, Self::Held, Self::Dead];

    /// The stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Retrying => "retrying",
            Self::Held => "held",
            Self::Dead => "dead",
        }
    }

    /// The inverse of [`Self::name`].
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

impl fmt::Display for ParkedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Parked {
    /// The state without its details.
    #[must_use]
    pub fn state(&self) -> ParkedState {
        match self {
            Self::Scheduled { .. } => ParkedState::Scheduled,
            Self::Retrying { .. } => ParkedState::Retrying,
            Self::Held => ParkedState::Held,
            Self::Dead { .. } => ParkedState::Dead,
        }
    }

    /// Whether a keyed row in this state stands in its key's line.
    #[must_use]
    pub fn in_line(&self) -> bool {
        match self {
            Self::Scheduled { .. } => false,
            Self::Retrying { .. } | Self::Held => true,
            Self::Dead { blocks, .. } => *blocks,
        }
    }
}

/// A key that has a line in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockedKey {
    /// The key.
    pub key: KeyHash,
    /// How many rows stand in its line.
    pub rows: u32,
}

/// A parked row that may run now.
#[derive(Clone, Debug)]
pub struct DueRow {
    /// Its place.
    pub ordinal: Ordinal,
    /// Its envelope.
    pub record: RecordRef,
    /// Attempts made so far.
    pub attempts: u32,
}

/// The first rows of a line whose head is due.
#[derive(Clone, Debug)]
pub struct DueLine {
    /// The key.
    pub key: KeyHash,
    /// The head and those behind it, in line order. Never empty.
    pub rows: Vec<DueRow>,
    /// Whether the line is longer than `rows`.
    pub more: bool,
}

/// Parked rows that may run now.
#[derive(Clone, Debug, Default)]
pub struct DuePage {
    /// Lines whose head is due, longest due first.
    pub lines: Vec<DueLine>,
    /// Rows outside of any line: scheduled ones whose time has come, and retries of messages without a key. Longest due
    /// first.
    pub timed: Vec<DueRow>,
    /// In how long the next row comes due that is not returned here; `None` if none waits for time.
    pub next_in: Option<Duration>,
}

/// How much a due read returns.
#[derive(Clone, Copy, Debug)]
pub struct DueLimit {
    /// Lines at most, and timed rows at most.
    pub lines: u32,
    /// Rows of one line at most; at least 1.
    pub per_line: u32,
    /// Bytes ([`Envelope::weight`](crate::envelope::Envelope::weight)) of all rows together at most. At least one row is
    /// returned even if that one is larger; a line that is cut short by this has `more` set.
    pub bytes: usize,
}

impl DueLimit {
    /// The bytes of one read, to be taken row by row.
    #[must_use]
    pub fn room(self) -> DueRoom {
        DueRoom { bytes: self.bytes, used: false }
    }
}

/// What is left of a due read's bytes. The first row always fits.
#[derive(Debug)]
pub struct DueRoom {
    bytes: usize,
    used: bool,
}

impl DueRoom {
    /// Takes the room of a row. `false`: there is not enough left, and nothing is taken.
    pub fn take(&mut self, row: &Record) -> bool {
        let weight = row.envelope.weight();
        if self.used && weight > self.bytes {
            return false;
        }
        self.used = true;
        self.bytes = self.bytes.saturating_sub(weight);
        true
    }
}
