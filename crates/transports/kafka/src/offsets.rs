//! How far each partition is: which offset may be committed, so that nothing before it is left out.
//!
//! Pure. An offset that is committed says that everything before it is done with. Deliveries are answered in any order, so
//! what may be committed is the least offset that is out, or, with none out, the one behind the last that came. Kafka leaves
//! gaps in offsets (compaction, transactions); since only what came is counted, they do not matter.
//!
//! A partition that is taken away and comes back has a new *term*. Answers to deliveries of an old one mean nothing any more:
//! whoever had the partition meanwhile may have got the same messages.

use std::collections::{BTreeMap, BTreeSet};

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
    /// Came, and are not done with.
    out: BTreeSet<i64>,
    /// Behind the last that came.
    next: i64,
    /// What the group has on record, as far as this subscriber has put it there.
    committed: i64,
}

impl Partition {
    fn position(&self) -> i64 {
        self.out.first().copied().unwrap_or(self.next)
    }
}

impl Offsets {
    /// Notes a message that came.
    pub(crate) fn came(&mut self, topic: &str, partition: i32, offset: i64) -> Spot {
        let place = (topic.to_owned(), partition);
        let last_term = &mut self.last_term;
        let found = self.partitions.entry(place.clone()).or_insert_with(|| {
            *last_term += 1;
            Partition { term: *last_term, out: BTreeSet::new(), next: offset, committed: offset }
        });
        found.out.insert(offset);
        found.next = found.next.max(offset + 1);
        Spot { place, term: found.term, offset }
    }

    /// Whether the message still is this subscriber's.
    pub(crate) fn has(&self, spot: &Spot) -> bool {
        self.of(spot).is_some_and(|partition| partition.out.contains(&spot.offset))
    }

    /// Notes that a message is done with.
    pub(crate) fn done(&mut self, spot: &Spot) {
        if let Some(partition) = self.partitions.get_mut(&spot.place).filter(|partition| partition.term == spot.term) {
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
            (offset > partition.committed).then(|| Spot { place: place.clone(), term, offset })
        };
        self.partitions.iter().filter_map(spot).collect()
    }

    /// Notes what was committed.
    pub(crate) fn committed(&mut self, spots: &[Spot]) {
        for spot in spots {
            if let Some(partition) = self.partitions.get_mut(&spot.place).filter(|found| found.term == spot.term) {
                partition.committed = partition.committed.max(spot.offset);
            }
        }
    }

    /// Forgets a partition that was taken away.
    pub(crate) fn lose(&mut self, place: &Place) {
        self.partitions.remove(place);
    }

    fn of(&self, spot: &Spot) -> Option<&Partition> {
        self.partitions.get(&spot.place).filter(|partition| partition.term == spot.term)
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
}
