//! Which node should own which lane: a pure function of the roster, so that every node comes to the same answer.
//!
//! A lane stays with its owner unless that makes the shares uneven; what is free goes to the node with the least. Nodes
//! that saw different rosters may disagree for a heartbeat: only free lanes are taken, so that costs time, not order.

use std::collections::BTreeMap;

use postrider_core::lease::{LaneId, LaneStanding, NodeId, NodeStanding, Roster};

/// The lanes that `me` should own.
pub(super) fn share_of(me: NodeId, roster: &Roster) -> Vec<LaneId> {
    let owners = assign(roster);
    owners.into_iter().filter(|(_, owner)| *owner == me).map(|(lane, _)| lane).collect()
}

fn assign(roster: &Roster) -> BTreeMap<LaneId, NodeId> {
    let mut owners: BTreeMap<LaneId, NodeId> = BTreeMap::new();
    let mut load: BTreeMap<NodeId, usize> = roster.nodes.iter().map(|node| (node.id, 0)).collect();
    let serves = |node: &NodeStanding, lane: &LaneStanding| node.routes.contains(&lane.served_by);
    let can_serve = |node: NodeId, lane: &LaneStanding| roster.nodes.iter().any(|n| n.id == node && serves(n, lane));

    for lane in &roster.lanes {
        if let Some(owner) = lane.owner.filter(|&owner| can_serve(owner, lane)) {
            owners.insert(lane.lane.clone(), owner);
            *load.entry(owner).or_default() += 1;
        }
    }
    for lane in &roster.lanes {
        if owners.contains_key(&lane.lane) {
            continue;
        }
        let candidates = roster.nodes.iter().filter(|node| serves(node, lane)).map(|node| node.id);
        if let Some(least) = candidates.min_by_key(|node| (load[node], *node)) {
            owners.insert(lane.lane.clone(), least);
            *load.entry(least).or_default() += 1;
        }
    }
    // Even out: each move narrows the gap between two nodes by two, so this ends.
    while let Some((lane, to)) = uneven(roster, &owners, &load, &can_serve) {
        if let Some(from) = owners.insert(lane, to) {
            *load.entry(from).or_default() -= 1;
        }
        *load.entry(to).or_default() += 1;
    }
    owners
}

fn uneven(
    roster: &Roster,
    owners: &BTreeMap<LaneId, NodeId>,
    load: &BTreeMap<NodeId, usize>,
    can_serve: &impl Fn(NodeId, &LaneStanding) -> bool,
) -> Option<(LaneId, NodeId)> {
    roster.lanes.iter().rev().find_map(|lane| {
        let owner = owners.get(&lane.lane)?;
        let (least, least_load) =
            load.iter().filter(|(node, _)| can_serve(**node, lane)).min_by_key(|(node, load)| (**load, **node))?;
        (load[owner] >= least_load + 2).then(|| (lane.lane.clone(), *least))
    })
}

#[cfg(test)]
mod tests {
    use postrider_core::lease::Epoch;

    use super::*;

    fn node(n: u128, routes: &[&str]) -> NodeStanding {
        NodeStanding { id: id(n), routes: routes.iter().map(|&r| r.into()).collect() }
    }

    fn id(n: u128) -> NodeId {
        NodeId(format!("{n:032x}").parse().unwrap())
    }

    fn lane(route: &str, number: u32, owner: Option<u128>) -> LaneStanding {
        let lane = LaneId { route: route.into(), number };
        LaneStanding { lane, served_by: route.into(), owner: owner.map(id), epoch: Epoch(1), paused: false }
    }

    fn counts(roster: &Roster) -> Vec<usize> {
        roster.nodes.iter().map(|node| share_of(node.id, roster).len()).collect()
    }

    #[test]
    fn a_newcomer_gets_its_share_and_no_more() {
        let lanes = (0..4).map(|n| lane("a", n, Some(1))).collect();
        let roster =
            Roster { nodes: vec![node(1, &["a"]), node(2, &["a"]), node(3, &["a"])], lanes, ..Roster::default() };
        let mut shares = counts(&roster);
        shares.sort_unstable();
        assert_eq!(shares, [1, 1, 2]);
        assert!(share_of(id(1), &roster).contains(&LaneId { route: "a".into(), number: 0 }), "the owner keeps some");
    }

    #[test]
    fn a_balanced_roster_stays_as_it_is() {
        let lanes = vec![lane("a", 0, Some(2)), lane("a", 1, Some(1)), lane("b", 0, Some(2))];
        let roster = Roster {
            nodes: vec![node(1, &["a", "b"]), node(2, &["a", "b"])],
            lanes: lanes.clone(),
            ..Roster::default()
        };
        for standing in &lanes {
            let owner = standing.owner.unwrap();
            assert!(share_of(owner, &roster).contains(&standing.lane), "{} moved for nothing", standing.lane);
        }
    }

    #[test]
    fn a_lane_goes_only_to_a_node_that_has_its_route() {
        let lanes = vec![lane("a", 0, Some(9)), lane("a", 1, None), lane("b", 0, None), lane("c", 0, None)];
        let roster = Roster { nodes: vec![node(1, &["a"]), node(2, &["b"])], lanes, ..Roster::default() };
        assert_eq!(counts(&roster), [2, 1], "the lanes of a dead owner are taken; nobody has route c");
    }

    #[test]
    fn every_lane_has_exactly_one_owner() {
        for nodes in 1..6 {
            for lanes in 0..20_u32 {
                let owned = (0..lanes).map(|n| lane("a", n, (n % 3 == 0).then_some(u128::from(n % 7))));
                let roster = Roster {
                    nodes: (0..nodes).map(|n| node(n, &["a"])).collect(),
                    lanes: owned.collect(),
                    ..Roster::default()
                };
                let shares = counts(&roster);
                assert_eq!(shares.iter().sum::<usize>(), lanes as usize);
                assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
            }
        }
    }
}
