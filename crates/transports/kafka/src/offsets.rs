//! How far each partition is: which offset may be committed, so that nothing before it is left out.
//!
//! Pure. An offset that is committed says that everything before it is done with. Deliveries are answered in any order, so
//! what may be committed is the least offset that is out, or, with none out, the one behind the last that came. Kafka leaves
//! gaps in offsets (compaction, transactions); since only what came is counted, they do not matter.
//!
//! A partition that is taken away and comes back has a new *term*. Answers to deliveries of an old one mean nothing any more:
//! whoever had the partition meanwhile may have got the same messages.
//!
//! Offsets may go back without that: a topic was deleted and made again, or a broker that lagged became the leader and lost
//! the end of the log. From the offset on that comes again the partition holds other messages under numbers that were used
//! before, so that, too, is a new term: an answer to an old message says nothing about the one that has its number now. What
//! is out before that offset stands where it stood, and still holds back what may be committed. The group's own record may
//! then be too far; it is set back, or whoever comes next would begin behind messages that nobody has had.

use std::collections::BTreeMap;

/// A partition of a topic.
pub(crate) type Place = (String, i32);

/// A message's place in its partition, in one term of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) place: Place,
    pub(crate) term: u64,
    pub(crate) offset: i64,
}

/// All partitions of a subscriber.
#[derive(Debug, Default)]
pub(crate) struct Offsets {
    last_term: u64,
    partitions: BTreeMap<Place, Partition>,
}

#[derive(Debug)]
struct Partition {
    term: u64,
    /// Came, and are not done with; with the terms that they came in.
    out: BTreeMap<i64, u64>,
    /// Behind the last that came.
    next: i64,
    /// What the group has on record, as far as this subscriber knows. `None` when offsets went back: whatever it is, it is of
    /// a log that is gone.
    committed: Option<i64>,
}

impl Partition {
    fn position(&self) -> i64 {
        self.out.first_key_value().map_or(self.next, |(offset, _)| *offset)
    }
}

impl Offsets {
    /// Notes a message that came.
    pub(crate) fn came(&mut self, topic: &str, partition: i32, offset: i64) -> Spot {
        let place = (topic.to_owned(), partition);
        let last_term = &mut self.last_term;
        let mut next_term = || {
            *last_term += 1;
            *last_term
        };
        let found = self.partitions.entry(place.clone()).or_insert_with(|| Partition {
            term: next_term(),
            out: BTreeMap::new(),
            next: offset,
            committed: Some(offset),
        });
        if offset < found.next {
            found.term = next_term();
            found.out.split_off(&offset);
            found.committed = None;
        }
        found.out.insert(offset, found.term);
        found.next = offset + 1;
        Spot { place, term: found.term, offset }
    }

    /// Whether the message still is this subscriber's.
    pub(crate) fn has(&self, spot: &Spot) -> bool {
        let partition = self.partitions.get(&spot.place);
        partition.is_some_and(|partition| partition.out.get(&spot.offset) == Some(&spot.term))
    }

    /// Notes that a message is done with.
    pub(crate) fn done(&mut self, spot: &Spot) {
        if self.has(spot)
            && let Some(partition) = self.partitions.get_mut(&spot.place)
        {
            partition.out.remove(&spot.offset);
        }
    }

    /// How many are not done with.
    pub(crate) fn out(&self) -> usize {
        self.partitions.values().map(|partition| partition.out.len()).sum()
    }

    /// What may be committed and is not: the message whose offset it is comes next, should this subscriber end.
    pub(crate) fn to_commit(&self) -> Vec<Spot> {
        let spot = |(place, partition): (&Place, &Partition)| {
            let (term, offset) = (partition.term, partition.position());
            partition.committed.is_none_or(|committed| offset > committed).then(|| Spot {
                place: place.clone(),
                term,
                offset,
            })
        };
        self.partitions.iter().filter_map(spot).collect()
    }

    /// Notes what was committed.
    pub(crate) fn committed(&mut self, spots: &[Spot]) {
        for spot in spots {
            if let Some(partition) = self.partitions.get_mut(&spot.place).filter(|found| found.term == spot.term) {
                partition.committed = partition.committed.max(Some(spot.offset));
            }
        }
    }

    /// Forgets a partition that was taken away.
    pub(crate) fn lose(&mut self, place: &Place) {
        self.partitions.remove(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(offsets: &Offsets) -> Vec<(i32, i64)> {
        offsets.to_commit().iter().map(|spot| (spot.place.1, spot.offset)).collect()
    }

    #[test]
    fn nothing_is_committed_beyond_what_is_out() {
        let mut offsets = Offsets::default();
        let spots: Vec<Spot> = [5, 6, 9, 10].iter().map(|offset| offsets.came("t", 0, *offset)).collect();
        assert_eq!(positions(&offsets), []);
        offsets.done(&spots[1]);
        offsets.done(&spots[2]);
        assert_eq!(positions(&offsets), [], "the first is still out");
        offsets.done(&spots[0]);
        assert_eq!(positions(&offsets), [(0, 10)], "gaps do not matter");
        offsets.committed(&offsets.to_commit());
        assert_eq!(positions(&offsets), []);
        offsets.done(&spots[3]);
        assert_eq!(positions(&offsets), [(0, 11)]);
        assert_eq!(offsets.out(), 0);
    }

    #[test]
    fn partitions_do_not_wait_for_each_other() {
        let mut offsets = Offsets::default();
        let (first, second) = (offsets.came("t", 0, 1), offsets.came("t", 1, 7));
        offsets.done(&second);
        assert_eq!(positions(&offsets), [(1, 8)]);
        assert!(offsets.has(&first) && !offsets.has(&second));
    }

    #[test]
    fn an_answer_to_an_old_term_means_nothing() {
        let mut offsets = Offsets::default();
        let before = offsets.came("t", 0, 3);
        offsets.lose(&before.place);
        assert!(!offsets.has(&before));
        let after = offsets.came("t", 0, 3);
        offsets.done(&before);
        offsets.committed(&[Spot { offset: 99, ..before }]);
        assert!(offsets.has(&after), "the new delivery is still out");
        offsets.done(&after);
        assert_eq!(positions(&offsets), [(0, 4)]);
    }
    #[test]
    fn an_older_offset_after_a_rebalance_is_a_beginning_like_any_other() {
        let mut offsets = Offsets::default();
        let before = offsets.came("t", 0, 90);
        offsets.done(&before);
        offsets.committed(&offsets.to_commit());
        offsets.lose(&before.place);
        // Whoever had it meanwhile has gone back, or never committed.
        let again = offsets.came("t", 0, 40);
        assert_eq!(positions(&offsets), [], "nothing of it is done with, and the group's record stays as it is");
        offsets.done(&again);
        assert_eq!(positions(&offsets), [(0, 41)]);
    }

    #[test]
    fn a_topic_that_was_made_again_begins_anew_and_the_group_s_record_with_it() {
        let mut offsets = Offsets::default();
        let old: Vec<Spot> = (100..103).map(|offset| offsets.came("t", 0, offset)).collect();
        offsets.done(&old[0]);
        offsets.committed(&offsets.to_commit());
        let new = offsets.came("t", 0, 0);
        assert_eq!(positions(&offsets), [(0, 0)], "the record says 101, which this topic does not have yet");
        offsets.committed(&offsets.to_commit());
        assert!(!offsets.has(&old[1]), "it is gone with its topic");
        let spots: Vec<Spot> = (1..102).map(|offset| offsets.came("t", 0, offset)).collect();
        for spot in &old {
            offsets.done(spot);
        }
        assert_eq!(positions(&offsets), [], "an answer to an old message is none to the one that has its offset now");
        assert!(offsets.has(spots.last().unwrap()));
        offsets.done(&new);
        assert_eq!(positions(&offsets), [(0, 1)]);
    }

    #[test]
    fn what_is_out_before_a_log_that_was_cut_is_not_left_out() {
        let mut offsets = Offsets::default();
        let old: Vec<Spot> = (5..9).map(|offset| offsets.came("t", 0, offset)).collect();
        offsets.done(&old[0]);
        offsets.committed(&offsets.to_commit());
        // The log ends before 7 now, and has got another 7.
        let other = offsets.came("t", 0, 7);
        offsets.done(&old[2]);
        offsets.done(&other);
        assert_eq!(positions(&offsets), [(0, 6)], "6 is still out");
        assert!(offsets.has(&old[1]) && !offsets.has(&old[3]));
        offsets.done(&old[1]);
        assert_eq!(positions(&offsets), [(0, 8)]);
        assert_eq!(offsets.out(), 0);
    }
}
