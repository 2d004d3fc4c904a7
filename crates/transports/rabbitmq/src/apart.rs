//! Who goes again apart from whom, after the server has ended a channel because of one message.
//!
//! Which one it was, the server does not say, and nobody else may pay for it. So what has no confirm goes once more, in smaller
//! groups, each over a channel of its own: message by message if it is what one of them is like, and by routing keys if it is
//! where one of them goes, for what is forbidden is forbidden to all that go there. What meets the same again is to blame.
//!
//! The server takes the messages of a channel in their order, and nothing behind the one that it ends the channel for. The groups
//! are in that order, too: if the first is refused again, nothing of the others was taken.

use std::collections::HashMap;

use crate::{confirm::Verdict, error::Blame};

/// The groups in which those go again that may be to blame. None if there is nobody else to blame, and nothing to go again.
/// `sent` is all that went over the channel; groups come no further apart than single messages, so this ends.
pub(crate) fn groups<'k>(sent: &[(usize, Verdict)], key: impl Fn(usize) -> &'k str) -> Vec<Vec<usize>> {
    let blamed = sent.iter().filter_map(|(index, verdict)| match verdict {
        Verdict::Blamed(blame) => Some((*index, blame)),
        Verdict::Told(_) | Verdict::Returned => None,
    });
    let mut blamed = blamed.peekable();
    match blamed.peek() {
        Some((_, Blame::Content(_))) if sent.len() > 1 => blamed.map(|(index, _)| vec![index]).collect(),
        Some((_, Blame::RoutingKey(_))) if sent.iter().any(|(index, _)| key(*index) != key(sent[0].0)) => {
            by_key(blamed.map(|(index, _)| index), key)
        }
        _ => Vec::new(),
    }
}

fn by_key<'k>(indexes: impl Iterator<Item = usize>, key: impl Fn(usize) -> &'k str) -> Vec<Vec<usize>> {
    let (mut groups, mut places): (Vec<Vec<usize>>, HashMap<&str, usize>) = Default::default();
    for index in indexes {
        let place = *places.entry(key(index)).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use postrider_core::{parked::Cause, transport::Outcome};

    use super::*;

    const KEYS: [&str; 5] = ["b", "a", "b", "c", "a"];

    fn groups_of(sent: &[usize], confirmed: &[usize], blame: &Blame) -> Vec<Vec<usize>> {
        let verdict = |index: &usize| match confirmed.contains(index) {
            true => (*index, Verdict::Told(Outcome::Durable)),
            false => (*index, Verdict::Blamed(blame.clone())),
        };
        groups(&sent.iter().map(verdict).collect::<Vec<_>>(), |index| KEYS[index])
    }

    #[test]
    fn a_right_that_is_missing_parts_routing_keys_and_a_fault_parts_messages() {
        let right = Blame::RoutingKey("no".to_owned());
        let fault = Blame::Content(Cause::new("amqp-406", "no"));
        let all = [0, 1, 2, 3, 4];
        assert_eq!(groups_of(&all, &[], &right), [vec![0, 2], vec![1, 4], vec![3]]);
        assert_eq!(groups_of(&all, &[1], &right), [vec![0, 2], vec![3], vec![4]]);
        assert_eq!(groups_of(&all, &[0, 1, 4], &fault), [[2], [3]]);
        assert_eq!(groups_of(&[0, 2], &[], &fault), [[0], [2]]);
    }

    #[test]
    fn who_was_among_its_like_is_to_blame() {
        assert!(groups_of(&[0, 2], &[], &Blame::RoutingKey("no".to_owned())).is_empty());
        assert!(groups_of(&[3], &[], &Blame::Content(Cause::new("amqp-406", "no"))).is_empty());
        assert!(groups_of(&[0, 1], &[0, 1], &Blame::RoutingKey("no".to_owned())).is_empty(), "nobody is blamed");
    }
}
