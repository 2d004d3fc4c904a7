//! When a node asks the store for its routes again.
//!
//! A route reads what all live nodes that serve it ask for, and every roster says what that is. A node that finds less than it
//! asks for has been taken for dead, or the route was forgotten, or the database set back: it asks again at once, and the store
//! fences whoever would pass over its messages. A node that finds more asks again when others have come or gone, so that what
//! nobody wants any more is let go; not at once, because one that only restarts is back soon. Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use postrider_core::{
    lease::{NodeId, Roster, RouteSpec},
    topic::{TopicFilter, TopicPattern},
};

use super::lane::{Tick, ticks};

/// How long nodes must have come and gone no more before topics are let go that this node does not ask for.
const LET_GO_AFTER: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct Asking {
    /// The live nodes, and whether a route reads more than this one asks for, when that last changed.
    seen: (Vec<NodeId>, bool),
    /// When to ask whether that is still wanted.
    ask_at: Option<Tick>,
    /// What was told of routes that read more.
    told: BTreeMap<Arc<str>, String>,
}

impl Asking {
    /// What to ask the store for again, of what this node asks for.
    pub(super) fn due(&mut self, now: Tick, roster: &Roster, specs: Vec<RouteSpec>) -> Vec<RouteSpec> {
        let is_more = |spec: &RouteSpec| beyond(roster, spec).is_some();
        let seen = (roster.nodes.iter().map(|node| node.id).collect(), specs.iter().any(is_more));
        if self.seen != seen {
            self.ask_at = seen.1.then_some(now + ticks(LET_GO_AFTER));
            self.seen = seen;
        }
        let let_go = self.ask_at.is_some_and(|at| now >= at);
        let is_due = |spec: &RouteSpec| !is_read(roster, spec) || (let_go && is_more(spec));
        specs.into_iter().filter(is_due).collect()
    }

    /// The store has heard it.
    pub(super) fn asked(&mut self, now: Tick) {
        self.ask_at = self.ask_at.filter(|at| now < *at);
    }

    /// What a route reads that this node does not ask for, if that is news.
    pub(super) fn news(&mut self, roster: &Roster, spec: &RouteSpec) -> Option<String> {
        let Some(more) = beyond(roster, spec).map(|topics| topics.to_string()) else {
            self.told.remove(&spec.name);
            return None;
        };
        let before = self.told.insert(Arc::clone(&spec.name), more.clone());
        (before.as_ref() != Some(&more)).then_some(more)
    }
}

fn read<'a>(roster: &'a Roster, spec: &RouteSpec) -> Option<&'a TopicFilter> {
    roster.routes.iter().find(|standing| standing.route == spec.name).map(|standing| &standing.topics)
}

fn is_read(roster: &Roster, spec: &RouteSpec) -> bool {
    read(roster, spec).is_some_and(|topics| topics.covers_all(&spec.topics))
}

fn beyond(roster: &Roster, spec: &RouteSpec) -> Option<TopicFilter> {
    let others = read(roster, spec)?.patterns().iter().filter(|pattern| !spec.topics.covers(pattern));
    TopicFilter::new(others.map(TopicPattern::as_str)).ok()
}

#[cfg(test)]
mod tests {
    use postrider_core::lease::{NodeStanding, Order, RouteStanding, Start};

    use super::*;

    fn roster(topics: &[&str], nodes: &[u64]) -> Roster {
        let routes = match TopicFilter::new(topics) {
            Ok(topics) => vec![RouteStanding { route: "r".into(), topics }],
            Err(_) => Vec::new(),
        };
        let node = |n: &u64| NodeStanding { id: NodeId::from_random(0, *n), routes: vec!["r".into()] };
        Roster { nodes: nodes.iter().map(node).collect(), routes, ..Roster::default() }
    }

    fn spec() -> RouteSpec {
        let topics = TopicFilter::new(["a"]).unwrap();
        RouteSpec { name: "r".into(), topics, order: Order::Key, lanes: 1, start: Start::Oldest }
    }

    fn asks(asking: &mut Asking, now: Tick, topics: &[&str], nodes: &[u64]) -> bool {
        !asking.due(now, &roster(topics, nodes), vec![spec()]).is_empty()
    }

    #[test]
    fn what_is_not_read_is_asked_for_at_once() {
        let mut asking = Asking::default();
        assert!(!asks(&mut asking, 0, &["a"], &[1]));
        assert!(asks(&mut asking, 1, &["b"], &[1]), "others have taken this node for dead");
        assert!(asks(&mut asking, 2, &[], &[1]), "the route was forgotten");
        assert!(!asks(&mut asking, 3, &["*"], &[1]), "a wider pattern has it");
    }

    #[test]
    fn what_others_wanted_is_let_go_a_while_after_they_have_gone() {
        let minute = ticks(LET_GO_AFTER);
        let mut asking = Asking::default();
        assert!(!asks(&mut asking, 0, &["a", "b"], &[1, 2]));
        assert!(!asks(&mut asking, 10, &["a", "b"], &[1]), "the other one may only restart");
        assert!(!asks(&mut asking, minute, &["a", "b"], &[1]));
        assert!(asks(&mut asking, minute + 10, &["a", "b"], &[1]));
        assert!(asks(&mut asking, minute + 20, &["a", "b"], &[1]), "until the store has heard it");
        asking.asked(minute + 20);
        assert!(
            !asks(&mut asking, 9 * minute, &["a", "b"], &[1]),
            "it is wanted all the same: the last to start has said so"
        );
        assert!(!asks(&mut asking, 10 * minute, &["a", "b"], &[1, 3]));
        assert!(asks(&mut asking, 11 * minute, &["a", "b"], &[1, 3]), "one that has come may have changed that");
    }

    #[test]
    fn what_is_read_for_others_is_told_once() {
        let mut asking = Asking::default();
        let mut news = |topics: &[&str]| asking.news(&roster(topics, &[1]), &spec());
        assert_eq!(news(&["a"]), None);
        assert_eq!(news(&["a", "b"]), Some("b".to_owned()));
        assert_eq!(news(&["a", "b"]), None);
        assert_eq!(news(&["a", "b", "c"]), Some("b, c".to_owned()));
        assert_eq!(news(&["a"]), None);
        assert_eq!(news(&["a", "b"]), Some("b".to_owned()), "again, if it comes again");
    }
}
