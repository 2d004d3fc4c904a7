//! What a route has read before, and what it has delivered of topics that it no longer reads.
//!
//! A cursor tells how far a route is with the topics that it reads now. Once a topic is taken out of it, nothing would tell
//! any more which messages of that topic it had delivered by then: all of them would look as if nobody ever did. And once a
//! topic is added, all that the cursor has passed of it would look delivered. So the route keeps, with
//! [what was asked of it](crate::asked), what it read whenever that was changed, and where its lanes were if it let something go.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    key::KeyHash,
    lease::{Order, Reader},
    log::Cursor,
    time::Timestamp,
    topic::TopicFilter,
};

/// What a route read until that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// What it read until then, also what it still reads.
    pub topics: TopicFilter,
    /// When it was changed, by the store's clock.
    pub until: Timestamp,
    order: Order,
    /// Where each lane was, by number; or nothing.
    cursors: Vec<Vec<u8>>,
}

impl Left {
    pub(crate) fn new(reader: &Reader, cursors: &[Cursor], until: Timestamp) -> Self {
        let cursors = cursors.iter().map(|cursor| cursor.0.to_vec()).collect();
        Self { topics: reader.topics.clone(), until, order: reader.order, cursors }
    }

    /// Those that are kept later tell more.
    pub(crate) fn forget_cursors(&mut self) {
        self.cursors.clear();
    }

    /// Where each lane was, by number. None if all that was read then was read on, or if what was kept later tells more.
    pub fn cursors(&self) -> impl Iterator<Item = Cursor> + '_ {
        self.cursors.iter().map(|cursor| Cursor(Bytes::copy_from_slice(cursor)))
    }

    /// The lane that a record on this topic was in, if it was read at all.
    #[must_use]
    pub fn lane_of(&self, topic: &str, key: Option<&[u8]>, id: &Uuid) -> Option<u32> {
        if !self.topics.matches(topic) {
            return None;
        }
        let spread = match (self.order, key) {
            (Order::Total, _) => KeyHash::TOTAL,
            (Order::Key, Some(key)) => KeyHash::of(key),
            (Order::Key, None) => KeyHash::of(id.as_bytes()),
        };
        let lanes = u32::try_from(self.cursors.len()).ok().filter(|lanes| *lanes > 0)?;
        Some(if lanes == 1 { 0 } else { spread.lane(lanes) })
    }
}

/// The lane that had passed a record when its route let go of the record's topic, if one had. `has_passed` is asked of the
/// cursor that the lane had then.
#[must_use]
pub fn lane_that_passed(
    left: &[Left],
    topic: &str,
    key: Option<&[u8]>,
    id: &Uuid,
    has_passed: impl Fn(&Cursor) -> bool,
) -> Option<u32> {
    left.iter().rev().find_map(|left| {
        let number = left.lane_of(topic, key, id)?;
        let cursor = left.cursors().nth(number as usize)?;
        has_passed(&cursor).then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(topics: &[&str], order: Order, cursors: &[u8]) -> Left {
        let reader = Reader { topics: TopicFilter::new(topics).unwrap(), order, replay: None };
        let cursors: Vec<Cursor> = cursors.iter().map(|at| Cursor(Bytes::copy_from_slice(&[*at]))).collect();
        Left::new(&reader, &cursors, Timestamp::from_micros(1))
    }

    #[test]
    fn a_record_is_looked_for_in_the_lane_that_it_was_in() {
        let two = left(&["a", "b"], Order::Key, &[3, 9]);
        let reader = Reader { topics: two.topics.clone(), order: Order::Key, replay: None };
        for n in 0..20_u128 {
            let (id, key) = (Uuid::from_u128(n), format!("k{n}"));
            for key in [Some(key.as_bytes()), None] {
                let number = two.lane_of("b", key, &id).unwrap();
                assert!(reader.place(key, &id, number, 2).1, "as whoever read it has seen it");
                let passed = lane_that_passed(std::slice::from_ref(&two), "b", key, &id, |cursor| cursor.0[0] >= 5);
                assert_eq!(passed, (number == 1).then_some(1));
            }
            assert_eq!(left(&["a"], Order::Total, &[1]).lane_of("a", Some(b"k"), &id), Some(0));
            assert_eq!(two.lane_of("c", None, &id), None, "it never read that");
        }
    }

    #[test]
    fn the_furthest_of_several_counts() {
        let often = [left(&["a"], Order::Key, &[2]), left(&["a", "b"], Order::Key, &[7])];
        let passed = |at: u8| lane_that_passed(&often, "a", None, &Uuid::nil(), |cursor| cursor.0[0] >= at);
        assert_eq!((passed(2), passed(7), passed(8)), (Some(0), Some(0), None));
    }
}
