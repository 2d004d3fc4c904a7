//! The cursor: how far a lane is, in one of two ways.
//!
//! ```text
//! scan    the collection in the order of `at`, up to a point in time of the cluster      first start, lost history
//!   │ nothing left below that point
//!   ▼
//! stream  the change stream, behind a token of it                                        otherwise
//! ```
//!
//! A point in time of the cluster is one number here: seconds in the upper half, the count within the second in the lower.
//! A message is *passed* if its `at` is not above [`Position::bound`] and it is not among those that committed late: what
//! the stream has from [`Position::onward`] on (see [`crate::stream::late`]).
//!
//! The server gives no `at` twice. A client that fills it in itself may, and then a scan may have to stop among several that
//! share one: it notes behind which of them, in the order of their `_id`. Until all of them are behind it, none counts as passed.

use bytes::Bytes;
use mongodb::bson::{Bson, Document, Timestamp, doc};
use postrider_core::{Error, Result, log::Cursor};

/// A point in time of the cluster.
pub(crate) type Tick = u64;

pub(crate) fn tick(time: Timestamp) -> Tick {
    u64::from(time.time) << 32 | u64::from(time.increment)
}

pub(crate) fn timestamp(tick: Tick) -> Timestamp {
    let half = |half: u64| u32::try_from(half & u64::from(u32::MAX)).expect("the half of 64 bits");
    Timestamp { time: half(tick >> 32), increment: half(tick) }
}

/// So many seconds, as the difference of two ticks.
pub(crate) fn seconds(seconds: u64) -> Tick {
    seconds.min(u64::from(u32::MAX)) << 32
}

/// How far a lane is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// In the collection: everything up to `at` is passed, of what was committed up to `until`.
    Scan {
        /// The point up to which the scan goes; the stream takes over behind it.
        until: Tick,
        /// The `at` of the last message that is passed.
        at: Tick,
        /// Whether it was the server's history that made the scan necessary.
        lost: bool,
        /// Where it is among several messages that share the next `at`.
        among: Option<Among>,
    },
    /// In the change stream.
    Stream {
        /// Everything that was committed up to here is passed.
        through: Tick,
        /// Behind which event; without one, behind `through`.
        token: Option<String>,
    },
}

/// A place among messages that share one `at`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Among {
    pub(crate) at: Tick,
    /// A document with the `_id` of the last of them that is behind it, as bytes: ids of any type are told apart by them.
    last: Vec<u8>,
}

impl Among {
    pub(crate) fn new(at: Tick, last: &Bson) -> Result<Self> {
        let invalid = |error| Error::invalid("the `_id` of a message cannot be written").caused_by(error);
        Ok(Self { at, last: doc! { "_id": last }.to_vec().map_err(invalid)? })
    }

    pub(crate) fn last(&self) -> Result<Bson> {
        let foreign = || Error::invalid("not a cursor of the MongoDB store").with("bytes", self.last.len());
        let document = Document::from_reader(&*self.last).map_err(|_| foreign())?;
        document.get("_id").cloned().ok_or_else(foreign)
    }
}

/// Where a stream begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Onward {
    /// Behind the event with this token.
    Token(String),
    /// With what was committed at this point or later.
    Time(Tick),
}

impl Position {
    /// With the oldest message that is kept, and everything that is committed by now.
    pub(crate) fn oldest(now: Tick) -> Self {
        Self::Scan { until: now, at: 0, lost: false, among: None }
    }

    /// With what commits after `now`.
    pub(crate) fn behind(now: Tick) -> Self {
        Self::Stream { through: now, token: None }
    }

    /// A message whose `at` is greater is not passed.
    pub(crate) fn bound(&self) -> Tick {
        match self {
            Self::Scan { at, .. } => *at,
            Self::Stream { through, .. } => *through,
        }
    }

    /// Everything that was committed up to here is passed, or is still before the scan.
    pub(crate) fn horizon(&self) -> Tick {
        match self {
            Self::Scan { until, .. } => *until,
            Self::Stream { through, .. } => *through,
        }
    }

    /// Where the stream goes on.
    pub(crate) fn onward(&self) -> Onward {
        match self {
            Self::Stream { token: Some(token), .. } => Onward::Token(token.clone()),
            other => Onward::Time(other.horizon() + 1),
        }
    }

    /// A scan that finds everything that is not passed: what was inserted since `overlap` before the horizon. Inserts from
    /// before that have committed, or were rolled back, before the horizon.
    pub(crate) fn rescan(&self, now: Tick, overlap: Tick) -> Self {
        Self::Scan { until: now, at: self.scan_from(overlap), lost: true, among: None }
    }

    /// As [`Self::rescan`], because somebody wants it and not because the server has forgotten anything.
    pub(crate) fn rebase(&self, now: Tick, overlap: Tick) -> Self {
        Self::Scan { until: now, at: self.scan_from(overlap), lost: false, among: None }
    }

    /// Nothing up to here is open any more, of what this position has passed or not.
    pub(crate) fn scan_from(&self, overlap: Tick) -> Tick {
        self.bound().min(self.horizon().saturating_sub(overlap))
    }

    /// A position that has passed nothing which one of these has not. Duplicates are its only price.
    pub(crate) fn least(positions: Vec<Self>, now: Tick, overlap: Tick) -> Self {
        let all_stream = positions.iter().all(|position| matches!(position, Self::Stream { .. }));
        let first = positions.first().cloned().unwrap_or_else(|| Self::oldest(now));
        if all_stream || positions.iter().all(|position| *position == first) {
            // Tokens of one transaction have the same time and are text that sorts as the stream does.
            return positions.into_iter().min_by_key(Self::place).unwrap_or(first);
        }
        let at = positions.iter().map(|position| position.scan_from(overlap));
        Self::Scan { until: now, at: at.min().unwrap_or(0), lost: false, among: None }
    }

    fn place(&self) -> (Tick, Option<String>) {
        match self {
            Self::Scan { until, .. } => (*until, None),
            Self::Stream { through, token } => (*through, token.clone()),
        }
    }

    pub(crate) fn encode(&self) -> Cursor {
        let mut bytes = Vec::with_capacity(120);
        match self {
            Self::Scan { until, at, lost, among } => {
                bytes.push(if *lost { b'l' } else { b's' });
                bytes.extend_from_slice(&until.to_be_bytes());
                bytes.extend_from_slice(&at.to_be_bytes());
                if let Some(among) = among {
                    bytes.extend_from_slice(&among.at.to_be_bytes());
                    bytes.extend_from_slice(&among.last);
                }
            }
            Self::Stream { through, token } => {
                bytes.push(b't');
                bytes.extend_from_slice(&through.to_be_bytes());
                bytes.extend_from_slice(token.as_deref().unwrap_or_default().as_bytes());
            }
        }
        Cursor(Bytes::from(bytes))
    }

    pub(crate) fn decode(cursor: &[u8]) -> Result<Self> {
        let foreign = || Error::invalid("not a cursor of the MongoDB store").with("bytes", cursor.len());
        let number = |from: usize| -> Result<u64> {
            let bytes = cursor.get(from..from + 8).and_then(|bytes| bytes.try_into().ok()).ok_or_else(foreign)?;
            Ok(u64::from_be_bytes(bytes))
        };
        match (cursor.first(), cursor.len()) {
            (Some(kind @ (b's' | b'l')), length) if length == 17 || length > 25 => {
                let among = match length {
                    17 => None,
                    _ => Some(Among { at: number(17)?, last: cursor[25..].to_vec() }),
                };
                among.as_ref().map(Among::last).transpose().map_err(|_| foreign())?;
                Ok(Self::Scan { until: number(1)?, at: number(9)?, lost: *kind == b'l', among })
            }
            (Some(b't'), 9..) => {
                let token = std::str::from_utf8(&cursor[9..]).map_err(|_| foreign())?;
                let token = (!token.is_empty()).then(|| token.to_owned());
                Ok(Self::Stream { through: number(1)?, token })
            }
            _ => Err(foreign()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(through: Tick, token: &str) -> Position {
        Position::Stream { through, token: (!token.is_empty()).then(|| token.to_owned()) }
    }

    #[test]
    fn a_position_survives_and_a_foreign_cursor_is_refused() {
        let scan = |lost, among| Position::Scan { until: u64::MAX, at: 7, lost, among };
        let among = |last: Bson| Some(Among::new(8, &last).unwrap());
        let inside = [among(4711.into()), among("o-4711".into()), among(doc! { "a": null }.into())];
        let inside = inside.map(|among| scan(false, among));
        assert!(inside.iter().all(|position| position.bound() == 7), "nothing of them is passed");
        for position in [scan(true, None), scan(false, None), stream(9, ""), stream(9, "82AB")].iter().chain(&inside) {
            assert_eq!(Position::decode(&position.encode().0).unwrap(), *position);
        }
        assert_eq!(among(4711.into()).unwrap().last().unwrap(), 4711.into());
        for foreign in
            ["", "s", "t", "another store's cursor, which is long", "s, and another store's cursor behind it"]
        {
            assert!(Position::decode(foreign.as_bytes()).is_err(), "{foreign:?}");
        }
    }

    #[test]
    fn ticks_are_ordered_like_the_time_of_the_cluster() {
        let at = |time, increment| tick(Timestamp { time, increment });
        assert!(at(1, 2) < at(1, 3) && at(1, u32::MAX) < at(2, 0));
        assert_eq!(timestamp(at(7, 9)), Timestamp { time: 7, increment: 9 });
        assert_eq!(at(100, 5) - seconds(60), at(40, 5));
    }

    #[test]
    fn the_least_has_passed_nothing_that_another_has_not() {
        let overlap = seconds(10);
        let at = |second: u64| seconds(second);
        let least = |positions: &[Position]| Position::least(positions.to_vec(), at(1_000), overlap);
        assert_eq!(least(&[stream(5, "8B"), stream(5, "8A"), stream(6, "8C")]), stream(5, "8A"));
        let scan = Position::Scan { until: at(500), at: at(200), lost: false, among: None };
        assert_eq!(least(&[scan.clone(), scan.clone()]), scan, "the same stays the same");
        let mixed = least(&[scan.clone(), stream(at(100), "8A")]);
        assert_eq!(mixed, Position::Scan { until: at(1_000), at: at(90), lost: false, among: None });
        assert_eq!(least(&[scan, stream(at(900), "8A")]).bound(), at(200));
    }

    #[test]
    fn a_rescan_begins_before_what_may_have_been_open() {
        let position = stream(seconds(100), "8A").rescan(seconds(900), seconds(60));
        assert_eq!(position, Position::Scan { until: seconds(900), at: seconds(40), lost: true, among: None });
        let early = Position::oldest(seconds(100)).rescan(seconds(900), seconds(60));
        assert_eq!(early.bound(), 0, "a scan that had not begun begins again");
    }
}
