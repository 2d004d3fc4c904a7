//! What is known of the replicas over one connection, so that an outage of theirs does not write a message again with every
//! attempt.
//!
//! ```text
//!  a new connection ──► WAIT alone: too few, and nothing is written
//!                          │ enough
//!                          ▼
//!                       XADD … WAIT ──► too few: written, and remembered ──► WAIT alone, until there are enough
//!                          ▲                                                    │
//!                          └──── what is remembered and still there is durable ◄┘
//! ```
//!
//! `WAIT` speaks of what was written over its own connection, so what is remembered is forgotten with it. And it holds up the
//! whole connection while it waits: batches whose answers queue up behind it would come too late, and the connection would
//! be given up for that. So one batch has its [turn](Replicas::turn) at a time, and those that have waited while the one before
//! them has found too few replicas need not ask.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use postrider_core::{envelope::MessageId, log::Record};
use redis::{Pipeline, Value};
use tokio::{
    sync::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard},
    time::timeout,
};

/// A record that was written: the stream that it went to, what it is of the log, and the replay that it was written for.
type Written = (String, MessageId, u64, Option<Arc<str>>);

/// How many replicas must have a message, and what is known of them.
pub(crate) struct Replicas {
    wanted: u32,
    timeout: Duration,
    turn: AsyncMutex<()>,
    known: Mutex<Known>,
}

/// The right to write and to wait for replicas, which one batch has at a time where there are replicas to wait for.
pub(crate) struct Turn<'a> {
    _held: Option<AsyncMutexGuard<'a, ()>>,
}

#[derive(Default)]
struct Known {
    /// The connection that this is about.
    connection: u64,
    /// Whether there were enough when that was last asked.
    enough: bool,
    /// How often there were too few, over all connections.
    too_few: u64,
    /// Entries that are written, and that too few replicas had in time, by their message: no more than were under way when
    /// the replicas went missing, because nothing is written before they are back.
    written: HashMap<Written, String>,
}

impl Replicas {
    /// So many must have a message, after half of that time at the latest: the answer has to come in time as well.
    pub(crate) fn new(wanted: u32, timeout: Duration) -> Self {
        Self { wanted, timeout, turn: AsyncMutex::default(), known: Mutex::default() }
    }

    /// Waits for one's turn. `None`: there are too few replicas, as others have just found, or they have taken all the time.
    /// Dropping the future leaves the turn to others.
    pub(crate) async fn turn(&self) -> Option<Turn<'_>> {
        if self.wanted == 0 {
            return Some(Turn { _held: None });
        }
        let too_few = self.known().too_few;
        let held = timeout(self.timeout, self.turn.lock()).await.ok()?;
        let known = self.known();
        (known.enough || known.too_few == too_few).then_some(Turn { _held: Some(held) })
    }

    /// How many must have a message.
    pub(crate) fn wanted(&self) -> u32 {
        self.wanted
    }

    /// Adds the question whether they have what was written, if that matters.
    pub(crate) fn ask(&self, pipeline: &mut Pipeline) {
        if self.wanted > 0 {
            let patience = u64::try_from((self.timeout / 2).as_millis()).unwrap_or(u64::MAX).max(1);
            pipeline.cmd("WAIT").arg(self.wanted).arg(patience);
        }
    }

    /// Whether the answer to that question says so. Another answer than a number does not.
    pub(crate) fn have_it(&self, answer: Option<&Value>) -> bool {
        self.wanted == 0 || matches!(answer, Some(Value::Int(have)) if *have >= i64::from(self.wanted))
    }

    /// What has to be asked before these messages may be written over this connection: nothing, or whether there are enough
    /// replicas, and with that which of the entries of these messages are there. The entries, by the message's place.
    pub(crate) fn before(&self, connection: u64, messages: &[(&str, &Record)]) -> Option<(Pipeline, Vec<usize>)> {
        if self.wanted == 0 {
            return None;
        }
        let mut known = self.known();
        if known.connection < connection {
            *known = Known { connection, too_few: known.too_few, ..Known::default() };
        }
        let (mut asking, mut places) = (Pipeline::new(), Vec::new());
        self.ask(&mut asking);
        for (place, (stream, record)) in messages.iter().enumerate() {
            if let Some(entry) = known.written.get(&written(stream, record)) {
                asking.cmd("XRANGE").arg(stream).arg(entry).arg(entry);
                places.push(place);
            }
        }
        (!known.enough || !places.is_empty()).then_some((asking, places))
    }

    /// Whether there are enough replicas at the moment.
    pub(crate) fn note(&self, connection: u64, enough: bool) {
        let mut known = self.known();
        if known.connection == connection {
            known.enough = enough;
            known.too_few += u64::from(!enough);
        }
    }

    /// A message is an entry, and too few replicas have it.
    pub(crate) fn remember(&self, connection: u64, stream: &str, record: &Record, entry: String) {
        let mut known = self.known();
        if known.connection == connection {
            known.written.insert(written(stream, record), entry);
        }
    }

    /// A message is durable, or its entry is gone.
    pub(crate) fn forget(&self, stream: &str, record: &Record) {
        self.known().written.remove(&written(stream, record));
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("nobody panicked with what is known of replicas in hand")
    }
}

fn written(stream: &str, record: &Record) -> Written {
    (stream.to_owned(), record.envelope.id, record.number, record.replay.clone())
}
