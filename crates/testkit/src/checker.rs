//! The verdict: from what was committed and what arrived, what was lost, doubled, made up or turned around.
//!
//! The checker believes nobody. It is given every transaction's messages with their fate, and every arrival in the order
//! of arriving, and compares the two.

use std::collections::{HashMap, HashSet};

use postrider_core::envelope::MessageId;
use serde::Serialize;

/// One enqueued message and what became of its transaction.
#[derive(Clone, Debug)]
pub struct Enqueued {
    /// The message.
    pub id: MessageId,
    /// Its ordering key; without one it has no order.
    pub key: Option<String>,
    /// Its place among the messages of its key: whatever was committed before another was enqueued has a lower number.
    /// Messages of truly concurrent transactions share a number.
    pub sequence: u64,
    /// Whether its transaction committed. If not, it was rolled back.
    pub committed: bool,
}

/// What the comparison found. The lists name the first few of each kind of wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Messages whose transaction committed.
    pub committed: u64,
    /// Messages whose transaction was rolled back.
    pub rolled_back: u64,
    /// Committed messages that arrived at least once.
    pub delivered: u64,
    /// Arrivals of a message after its first. Allowed, within bounds.
    pub duplicates: u64,
    /// Committed messages that never arrived.
    pub lost: u64,
    /// Messages that arrived though they were rolled back, or that nobody ever enqueued.
    pub ghosts: u64,
    /// First arrivals that came after a first arrival of the same key with a higher sequence.
    pub out_of_order: u64,
    /// Some of the lost.
    pub lost_ids: Vec<MessageId>,
    /// Some of the ghosts.
    pub ghost_ids: Vec<MessageId>,
    /// Some of those out of order.
    pub out_of_order_ids: Vec<MessageId>,
}

/// How many ids of each kind a verdict names.
const NAMED_MAX: usize = 10;

impl Verdict {
    /// Whether nothing was lost, made up or turned around.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.lost == 0 && self.ghosts == 0 && self.out_of_order == 0
    }
}

/// Compares what was enqueued with what arrived, in the order of arriving.
#[must_use]
pub fn check(enqueued: &[Enqueued], arrivals: &[MessageId]) -> Verdict {
    let mut verdict = Verdict::default();
    let by_id: HashMap<MessageId, &Enqueued> = enqueued.iter().map(|message| (message.id, message)).collect();
    let mut arrived = HashSet::new();
    let mut highest: HashMap<&str, u64> = HashMap::new();
    for id in arrivals {
        let message = by_id.get(id).filter(|message| message.committed);
        if !arrived.insert(*id) {
            verdict.duplicates += u64::from(message.is_some());
            continue;
        }
        let Some(message) = message else {
            note(&mut verdict.ghosts, &mut verdict.ghost_ids, *id);
            continue;
        };
        verdict.delivered += 1;
        if let Some(key) = &message.key {
            let highest = highest.entry(key).or_insert(message.sequence);
            if message.sequence < *highest {
                note(&mut verdict.out_of_order, &mut verdict.out_of_order_ids, *id);
            }
            *highest = message.sequence.max(*highest);
        }
    }
    for message in enqueued {
        match message.committed {
            true => verdict.committed += 1,
            false => verdict.rolled_back += 1,
        }
        if message.committed && !arrived.contains(&message.id) {
            note(&mut verdict.lost, &mut verdict.lost_ids, message.id);
        }
    }
    verdict
}

fn note(count: &mut u64, named: &mut Vec<MessageId>, id: MessageId) {
    *count += 1;
    if named.len() < NAMED_MAX {
        named.push(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enqueued(key: &str, sequence: u64, committed: bool) -> Enqueued {
        let key = (!key.is_empty()).then(|| key.to_owned());
        Enqueued { id: MessageId::generate(), key, sequence, committed }
    }

    fn ids(messages: &[&Enqueued]) -> Vec<MessageId> {
        messages.iter().map(|message| message.id).collect()
    }

    #[test]
    fn a_good_history_is_good() {
        let all = [enqueued("a", 1, true), enqueued("b", 1, true), enqueued("a", 2, true), enqueued("a", 3, false)];
        let verdict = check(&all, &ids(&[&all[1], &all[0], &all[2]]));
        assert!(verdict.is_good());
        assert_eq!((verdict.committed, verdict.rolled_back, verdict.delivered, verdict.duplicates), (3, 1, 3, 0));
    }

    #[test]
    fn a_lost_message_is_found() {
        let all = [enqueued("a", 1, true), enqueued("a", 2, true)];
        let verdict = check(&all, &ids(&[&all[1]]));
        assert_eq!((verdict.lost, verdict.delivered), (1, 1));
        assert_eq!(verdict.lost_ids, ids(&[&all[0]]));
        assert!(!verdict.is_good());
    }

    #[test]
    fn a_duplicate_is_counted_but_is_no_wrong() {
        let all = [enqueued("a", 1, true), enqueued("a", 2, true)];
        let verdict = check(&all, &ids(&[&all[0], &all[1], &all[0], &all[1], &all[1]]));
        assert_eq!((verdict.duplicates, verdict.delivered, verdict.out_of_order), (3, 2, 0));
        assert!(verdict.is_good());
    }

    #[test]
    fn a_ghost_is_found_once_however_often_it_arrives() {
        let all = [enqueued("a", 1, false)];
        let stranger = MessageId::generate();
        let verdict = check(&all, &[all[0].id, all[0].id, stranger]);
        assert_eq!((verdict.ghosts, verdict.delivered, verdict.duplicates), (2, 0, 0));
        assert_eq!(verdict.ghost_ids, [all[0].id, stranger]);
        assert!(!verdict.is_good());
    }

    #[test]
    fn a_first_arrival_out_of_order_is_found() {
        let all = [enqueued("a", 1, true), enqueued("a", 2, true), enqueued("a", 3, true), enqueued("b", 1, true)];
        let verdict = check(&all, &ids(&[&all[2], &all[3], &all[0], &all[1]]));
        assert_eq!((verdict.out_of_order, verdict.lost), (2, 0));
        assert_eq!(verdict.out_of_order_ids, ids(&[&all[0], &all[1]]));
        assert!(!verdict.is_good());
    }

    #[test]
    fn neither_concurrent_nor_keyless_messages_have_an_order() {
        let all = [enqueued("a", 1, true), enqueued("a", 1, true), enqueued("", 1, true), enqueued("", 2, true)];
        let verdict = check(&all, &ids(&[&all[3], &all[1], &all[2], &all[0]]));
        assert_eq!(verdict.out_of_order, 0);
    }
}
