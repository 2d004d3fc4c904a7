//! Where the stream of a lane that has nothing to read is by now.
//!
//! A cursor is moved over what is none of ours only every now and then, for each move is a write. But a read that begins at the
//! cursor makes the server go through all of its history from there once more, with every poll and hint, and the first message
//! after a pause waits for that. So where a read has found nothing it leaves here how far the stream was, and the next one that
//! begins at the same cursor goes on from there. Nothing here is the only copy of anything: the cursor is as good, and slower.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use postrider_core::lease::LaneId;

use crate::cursor::{Onward, Position};

/// For each lane: between this position and the place of this token there is nothing.
#[derive(Default)]
pub(crate) struct Quiet(Mutex<HashMap<LaneId, (Position, String)>>);

impl Quiet {
    /// Where to go on from a position: behind what is known to be empty.
    pub(crate) fn onward(&self, lane: &LaneId, from: &Position) -> Onward {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(lane) {
            Some((position, token)) if position == from => Onward::Token(token.clone()),
            _ => from.onward(),
        }
    }

    /// Notes that there was nothing up to this token.
    pub(crate) fn note(&self, lane: &LaneId, from: Position, token: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(lane.clone(), (from, token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_stands_at_the_same_place_goes_on_behind_it() {
        let (quiet, lane) = (Quiet::default(), LaneId { route: "r".into(), number: 0 });
        let onward = |at| quiet.onward(&lane, &Position::behind(at));
        assert_eq!(onward(1), Onward::Time(2));
        quiet.note(&lane, Position::behind(1), "token".to_owned());
        assert_eq!(onward(1), Onward::Token("token".to_owned()));
        assert_eq!(onward(7), Onward::Time(8), "another place");
        let other = LaneId { route: "r".into(), number: 1 };
        assert_eq!(quiet.onward(&other, &Position::behind(1)), Onward::Time(2), "another lane");
    }
}
