//! What the nodes that serve a route ask for, and what is read for all of them.
//!
//! Nodes of one route may have different configurations: in a roll-out, a roll-back, or because one was forgotten. They share
//! the route's cursors, so whatever one of them does not read is passed over for all. A store therefore keeps, with each
//! route, what every live node has asked for, and the route reads all of it: any node can deliver any topic, for a route has
//! one destination. Pure; a store calls [`Asked::hear`] in the transaction of `register`, in which it serialises all callers.
//!
//! What goes away goes when somebody asks again: topics that neither a live node wants nor the node that was the last to
//! start. That one keeps its say after it has gone. Otherwise a newer node that restarts would leave the older ones alone for
//! a moment, and they would pass over what only it knows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    lease::{NodeId, NodeStanding, Order, Reader, RouteSpec},
    left::Left,
    log::Cursor,
    time::Timestamp,
    topic::TopicFilter,
};

/// How many changes of its topics a route remembers at most. Those that tell nothing of what was delivered are forgotten first,
/// then the oldest.
const LEFT_MAX: usize = 16;

/// What was asked of one route. Stores keep it as JSON, with the route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Topics of the last node that asked for something new.
    latest: Option<TopicFilter>,
    /// What each node asks for. Those that are no longer live are left out.
    nodes: BTreeMap<NodeId, Ask>,
    /// What it read before its topics were changed, in the order in which that was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left: Vec<Left>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Ask {
    topics: TopicFilter,
    order: Order,
    lanes: u32,
}

impl Asked {
    /// Notes what a node asks for, and answers with what the route is to be. `known` is the reader and the number of lanes that
    /// the route has; `live` are the nodes that are live by the store's clock.
    ///
    /// A node that asks for the same again takes nothing back of what another has changed meanwhile. A live node that serves
    /// the route and has never said what it wants (an older version made it known) wants what is read.
    #[must_use]
    pub fn hear(
        &mut self,
        node: NodeId,
        spec: &RouteSpec,
        known: Option<(&Reader, u32)>,
        live: &[NodeStanding],
    ) -> RouteSpec {
        let ask = Ask { topics: spec.topics.clone(), order: spec.order, lanes: spec.lanes };
        let again = self.nodes.get(&node) == Some(&ask);
        self.nodes.retain(|id, _| live.iter().any(|standing| standing.id == *id));
        self.nodes.insert(node, ask);
        if !again {
            self.latest = Some(spec.topics.clone());
        }
        let mut topics = self.latest.clone().unwrap_or_else(|| spec.topics.clone());
        for ask in self.nodes.values() {
            topics.add(&ask.topics);
        }
        let (order, lanes) = match known {
            Some((reader, lanes)) if again => (reader.order, lanes),
            _ => (spec.order, spec.lanes),
        };
        if let Some((reader, _)) = known {
            if live.iter().any(|other| self.is_silent(other, &spec.name)) {
                topics.add(&reader.topics);
            }
            if reader.topics.is_same_as(&topics) {
                topics = reader.topics.clone(); // in the order in which it stands
            }
        }
        RouteSpec { topics, order, lanes, ..spec.clone() }
    }

    /// Notes what a route has read if it is going to read something else. The store calls it before it changes the reader,
    /// with the cursors that the lanes have then, by number.
    pub fn note_topics(&mut self, known: &Reader, wanted: &RouteSpec, cursors: &[Cursor], now: Timestamp) {
        if !Self::changes_topics(known, wanted) {
            return;
        }
        // Where the lanes were is asked of topics that are no longer read, and cursors never move back: those of now tell more of
        // the same topics than those of before.
        let cursors = if wanted.topics.covers_all(&known.topics) { &[] } else { cursors };
        if !cursors.is_empty() {
            let told_again = self.left.iter_mut().filter(|left| known.topics.covers_all(&left.topics));
            told_again.for_each(Left::forget_cursors);
        }
        self.left.push(Left::new(known, cursors, now));
        if self.left.len() > LEFT_MAX {
            self.left.remove(self.left.iter().position(|left| left.cursors().next().is_none()).unwrap_or(0));
        }
    }

    /// Whether other topics are read then: only in that case the cursors are asked for.
    #[must_use]
    pub fn changes_topics(known: &Reader, wanted: &RouteSpec) -> bool {
        !wanted.topics.is_same_as(&known.topics)
    }

    /// What the route read before its topics were changed, in the order in which that was.
    #[must_use]
    pub fn left(&self) -> &[Left] {
        &self.left
    }

    /// The same, of what was stored.
    #[must_use]
    pub fn decode_left(stored: Option<&str>) -> Vec<Left> {
        Self::decode(stored).left
    }

    /// As it is stored.
    #[must_use]
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("names and numbers are JSON")
    }

    /// What was stored. Nothing, or what only a newer version can read: then nobody has said what it wants.
    #[must_use]
    pub fn decode(stored: Option<&str>) -> Self {
        stored.and_then(|stored| serde_json::from_str(stored).ok()).unwrap_or_default()
    }

    fn is_silent(&self, node: &NodeStanding, route: &str) -> bool {
        !self.nodes.contains_key(&node.id) && node.routes.iter().any(|served| **served == *route)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::lease::Start;

    /// A route as a store would keep it.
    #[derive(Default)]
    struct Kept {
        asked: Asked,
        known: Option<(Reader, u32)>,
    }

    impl Kept {
        fn register(&mut self, node: u128, spec: &RouteSpec, live: &[u128]) -> (String, u32) {
            let mut live: Vec<NodeStanding> = live.iter().map(|n| standing(*n)).collect();
            live.push(standing(node));
            let known = self.known.as_ref().map(|(reader, lanes)| (reader, *lanes));
            let spec = self.asked.hear(id(node), spec, known, &live);
            let kept = Asked::decode(Some(&self.asked.encode()));
            assert_eq!(kept, self.asked);
            let shown = spec.topics.to_string();
            self.known = Some((Reader { topics: spec.topics, order: spec.order, replay: None }, spec.lanes));
            (shown, spec.lanes)
        }

        fn reads(&mut self, node: u128, topics: &[&str], live: &[u128]) -> String {
            self.register(node, &spec(topics, 1), live).0
        }
    }

    fn id(node: u128) -> NodeId {
        NodeId(Uuid::from_u128(node))
    }

    fn standing(node: u128) -> NodeStanding {
        NodeStanding { id: id(node), routes: vec!["r".into()] }
    }

    fn spec(topics: &[&str], lanes: u32) -> RouteSpec {
        let topics = TopicFilter::new(topics).unwrap();
        RouteSpec { name: "r".into(), topics, order: Order::Key, lanes, start: Start::Oldest }
    }

    const OLD: &[&str] = &["a"];
    const NEW: &[&str] = &["a", "b"];

    #[test]
    fn what_any_live_node_asks_for_is_read() {
        let mut route = Kept::default();
        assert_eq!(route.reads(1, OLD, &[]), "a");
        assert_eq!(route.reads(2, NEW, &[1]), "a, b");
        assert_eq!(route.reads(3, OLD, &[1, 2]), "a, b", "an older file takes nothing away");
        assert_eq!(route.reads(4, &["b", "a"], &[1, 2, 3]), "a, b", "the same in another order is no change");
        assert_eq!(route.reads(5, &["**"], &[1, 2, 3, 4]), "**", "what is covered is not named");
    }

    #[test]
    fn what_nobody_asks_for_any_more_is_no_longer_read() {
        let mut route = Kept::default();
        route.reads(1, NEW, &[]);
        assert_eq!(route.reads(2, OLD, &[1]), "a, b", "the one with `b` is still there");
        assert_eq!(route.reads(2, OLD, &[1]), "a, b", "and asking again is not the way to be rid of it");
        assert_eq!(route.reads(2, OLD, &[]), "a", "it has gone");
        assert_eq!(route.reads(2, &["c"], &[]), "c", "a node alone has it as it asks");
    }

    #[test]
    fn the_last_to_start_keeps_its_say_when_it_has_gone() {
        let mut route = Kept::default();
        route.reads(1, OLD, &[]);
        route.reads(2, NEW, &[1]);
        assert_eq!(route.reads(1, OLD, &[]), "a, b", "the newer one may only restart");
        assert_eq!(route.reads(3, OLD, &[1]), "a", "one that starts without `b` takes it out");
    }

    #[test]
    fn asking_again_takes_back_no_lanes_of_another() {
        let mut route = Kept::default();
        route.register(1, &spec(OLD, 1), &[]);
        assert_eq!(route.register(2, &spec(OLD, 4), &[1]).1, 4);
        assert_eq!(route.register(1, &spec(OLD, 1), &[2]).1, 4);
        assert_eq!(route.register(1, &spec(OLD, 2), &[2]).1, 2, "asking for something new does");
    }

    #[test]
    fn what_was_read_is_kept_with_the_cursors_of_the_time_when_that_was_changed() {
        let reader =
            |topics: &[&str]| Reader { topics: TopicFilter::new(topics).unwrap(), order: Order::Key, replay: None };
        let cursor = |at: u8| [Cursor(vec![at].into())];
        let mut asked = Asked::default();
        let mut change = |from: &[&str], to: &[&str], at: u8| {
            asked.note_topics(&reader(from), &spec(to, 1), &cursor(at), Timestamp::from_micros(i64::from(at)));
            let kept = Asked::decode(Some(&asked.encode()));
            assert_eq!(kept, asked);
            let has_cursors = |left: &Left| if left.cursors().next().is_some() { "+" } else { "" };
            let shown = |left: &Left| format!("{} {:?}{}", left.topics, left.until.as_micros(), has_cursors(left));
            kept.left().iter().map(shown).collect::<Vec<_>>()
        };
        assert!(change(NEW, &["b", "a"], 1).is_empty(), "the same in another order is no change");
        assert_eq!(change(OLD, NEW, 2), ["a 2"]);
        assert_eq!(change(NEW, OLD, 3), ["a 2", "a, b 3+"]);
        assert_eq!(change(OLD, &["c"], 4), ["a 2", "a, b 3+", "a 4+"]);
        assert_eq!(change(&["c", "b", "a"], OLD, 5), ["a 2", "a, b 3", "a 4", "c, b, a 5+"]);
        let mut kept = Vec::new();
        for at in 6..50 {
            let topic = format!("t{at}");
            kept = change(&[topic.as_str()], OLD, at);
            let told = ["a 2", "a, b 3", "a 4", "c, b, a 5+"].map(|told| kept.iter().any(|kept| kept == told));
            assert_eq!(told, [18, 19, 20, 21].map(|gone_at| at < gone_at), "those without cursors first: {kept:?}");
        }
        assert_eq!(kept.len(), LEFT_MAX);
    }

    #[test]
    fn a_live_node_that_never_said_what_it_wants_wants_what_is_read() {
        let reader = Reader { topics: TopicFilter::new(NEW).unwrap(), order: Order::Key, replay: None };
        let mut route = Kept { asked: Asked::default(), known: Some((reader, 1)) };
        assert_eq!(route.reads(2, OLD, &[1]), "a, b");
        assert_eq!(route.reads(2, OLD, &[]), "a");
    }
}
