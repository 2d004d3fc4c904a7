//! What keeps a whole route, or one lane of it, from moving.

use std::{sync::Arc, time::Duration};

use postrider_core::{
    admin::{Actor, NodeStatus, Overview, RouteStatus},
    lease::LaneId,
    standstill::{Reason, Standstill},
    time::Timestamp,
};
use serde::Serialize;

use super::{Finding, STORE_FAILS, in_words};

/// Why nothing moves here.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "obstacle", rename_all = "kebab-case")]
pub enum Obstacle {
    /// An operator has paused the route.
    Paused {
        /// Who, and why.
        actor: Actor,
        /// Which one, if it is another: a replay rests with the route that publishes for it.
        instead: Option<Arc<str>>,
    },
    /// No relay is alive.
    NoRelay,
    /// Relays are alive, but none of them has this route.
    NotServed {
        /// The relays that are alive.
        nodes: Vec<String>,
        /// Which one they lack, if it is another: the route that publishes for a replay.
        instead: Option<Arc<str>>,
    },
    /// A relay could own the lane, but none does at the moment.
    Unowned {
        /// Which.
        lane: u32,
    },
    /// The owner has not been heard of for a while.
    Silent {
        /// Which.
        lane: u32,
        /// The owner.
        node: String,
        /// Since its last heartbeat.
        seen: Duration,
        /// Until somebody else may have the lane.
        expires_in: Option<Duration>,
    },
    /// The owner says why.
    Standstill {
        /// The owner.
        node: String,
        /// What it says.
        standstill: Standstill,
        /// When it will be over, or a destination that takes nothing is tried again, if that is known: by the store's clock.
        until: Option<Timestamp>,
    },
}

/// Everything that keeps the route from moving, the most pressing first. With a lane: of that lane only.
#[must_use]
pub fn obstacles(overview: &Overview, route: &RouteStatus, lane: Option<u32>) -> Vec<Obstacle> {
    let served_by = route.replay_of.as_ref().unwrap_or(&route.route);
    let paused = |name: &str| overview.routes.iter().find(|status| *status.route == *name)?.paused.clone();
    if let Some(actor) = route.paused.clone() {
        return vec![Obstacle::Paused { actor, instead: None }];
    }
    if let Some(actor) = paused(served_by) {
        return vec![Obstacle::Paused { actor, instead: route.replay_of.clone() }];
    }
    if overview.nodes.is_empty() {
        return vec![Obstacle::NoRelay];
    }
    if !overview.nodes.iter().any(|node| node.routes.contains(served_by)) {
        let nodes = overview.nodes.iter().map(|node| node.name.clone()).collect();
        return vec![Obstacle::NotServed { nodes, instead: route.replay_of.clone() }];
    }
    let lanes = route.lanes.iter().filter(|status| lane.is_none_or(|lane| lane == status.number));
    lanes
        .filter_map(|status| match status.owner {
            None => Some(Obstacle::Unowned { lane: status.number }),
            Some(owner) => {
                let node = overview.nodes.iter().find(|node| node.id == owner)?;
                if node.is_silent() {
                    let (node, seen) = (node.name.clone(), node.seen);
                    return Some(Obstacle::Silent { lane: status.number, node, seen, expires_in: status.expires_in });
                }
                let of_lane = LaneId { route: route.route.clone(), number: status.number };
                said(node, &of_lane, overview.at)
            }
        })
        .collect()
}

fn said(node: &NodeStatus, lane: &LaneId, now: Timestamp) -> Option<Obstacle> {
    // One that rests was paused until just now, and goes on.
    let of_lane = |standstill: &&Standstill| standstill.lane == *lane && standstill.reason != Reason::Rests;
    let standstill = node.standstills.iter().find(of_lane)?.clone();
    let then = |left| now.saturating_sub(node.seen).saturating_add(Duration::from_secs(left));
    let until = match standstill.reason {
        Reason::Throttled { seconds_left: Some(left) } => Some(then(left)),
        // One that is over by now is under way, or was, and the node has not said what came of it.
        Reason::Unavailable { seconds_left: Some(left), .. } => Some(then(left)).filter(|at| *at > now),
        _ => None,
    };
    Some(Obstacle::Standstill { node: node.name.clone(), standstill, until })
}

impl Obstacle {
    /// Whether the store fails the lane: then nothing that is known of cursors and of what waits can be trusted.
    pub(super) fn is_of_store(&self) -> bool {
        matches!(self, Self::Standstill { standstill, .. } if matches!(standstill.reason, Reason::Store { .. }))
    }

    /// Whether another lane stands still for the same reason: the same destination, store or owner, and not a message of its
    /// own.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unowned { .. }, Self::Unowned { .. }) => true,
            (Self::Silent { node, .. }, Self::Silent { node: another, .. }) => node == another,
            (Self::Standstill { node, standstill, .. }, Self::Standstill { node: another, standstill: theirs, .. })
                if node == another =>
            {
                match (&standstill.reason, &theirs.reason) {
                    (
                        Reason::Unavailable { cause, failing, .. },
                        Reason::Unavailable { cause: same, failing: as_many, .. },
                    ) => cause.code() == same.code() && failing.is_some() == as_many.is_some(),
                    (Reason::Throttled { .. }, Reason::Throttled { .. }) => true,
                    (Reason::Store { operation, error }, Reason::Store { operation: same, error: words }) => {
                        operation == same && error == words
                    }
                    _ => false,
                }
            }
            _ => false,
        }
    }

    /// As a finding about `route`.
    #[must_use]
    pub fn finding(&self, route: &str) -> Finding {
        match self {
            Self::Paused { actor, instead } => {
                let reason = actor.reason.as_deref().map_or_else(String::new, |reason| format!(": {reason}"));
                let which =
                    instead.as_ref().map_or_else(String::new, |other| format!(" `{other}`, which publishes for it,"));
                Finding::of(route, "paused", format!("the route{which} is paused by {}{reason}", actor.name))
                    .fix(format!("postrider route resume {}", instead.as_deref().unwrap_or(route)))
            }
            Self::NoRelay => Finding::of(route, "no-relay", "no relay is running on this store").fix(
                "start one: postrider run, with the configuration that has the route; if one runs, its log says why it \
                     cannot write to the store, and postrider doctor may know too",
            ),
            Self::NotServed { nodes, instead: None } => Finding::of(
                route,
                "not-served",
                format!("no running relay has this route; alive: {}", nodes.join(", ")),
            )
            .fix(format!("add the route `{route}` to a relay's configuration, or postrider route forget {route}")),
            Self::NotServed { nodes, instead: Some(other) } => Finding::of(
                route,
                "not-served",
                format!(
                    "no running relay has the route `{other}`, which publishes for it; alive: {}",
                    nodes.join(", ")
                ),
            )
            .fix(format!("add the route `{other}` to a relay's configuration, or postrider replay cancel {route}")),
            Self::Unowned { lane } => {
                Finding::of(route, "unowned", format!("lane {lane} has no owner at the moment; a relay will take it"))
                    .fix("if this lasts longer than a lease, see the log of the relay: the store may be refusing it")
            }
            Self::Silent { lane, node, seen, expires_in } => {
                let lease =
                    expires_in.map_or_else(|| "is over".to_owned(), |left| format!("ends in {}", in_words(left)));
                let seen = in_words(*seen);
                Finding::of(
                    route,
                    "silent",
                    format!("{node} owns lane {lane} and is silent for {seen}; its lease {lease}"),
                )
                .fix("if it is dead, another relay takes the lane when the lease ends: see that one runs")
            }
            Self::Standstill { node, standstill, until } => of_standstill(route, node, standstill, *until),
        }
    }
}

fn of_standstill(route: &str, node: &str, standstill: &Standstill, until: Option<Timestamp>) -> Finding {
    let since = in_words(Duration::from_secs(standstill.seconds));
    let end = match (&standstill.reason, until) {
        (_, None) => String::new(),
        (Reason::Unavailable { .. }, Some(at)) => format!("; it is tried again at {at}"),
        (_, Some(until)) => format!(" until {until}"),
    };
    let what = format!("{}{end} (for {since}, says {node})", standstill.reason);
    let (code, fix) = match &standstill.reason {
        Reason::Unavailable { cause, .. } if cause.code() == "gone" => (
            "unavailable",
            format!(
                "the endpoint said that it is gone for good: correct its URL; or try it again: send the relay SIGHUP, \
                 or postrider route drain {route}, then resume"
            ),
        ),
        Reason::Unavailable { failing: Some(_), .. } => (
            "unavailable",
            "see what the destination says of them; the next other message is sent as soon as it is there, and if it goes \
             through, attempts on these are counted"
                .to_owned(),
        ),
        Reason::Unavailable { .. } => (
            "unavailable",
            "mend the destination; the relay probes it by itself, nothing is lost and no attempt is counted".to_owned(),
        ),
        Reason::Store { .. } => (
            STORE_FAILS,
            "do what the error says, and see postrider doctor; the relay asks again by itself, and nothing is lost".to_owned(),
        ),
        Reason::Throttled { .. } => ("throttled", "wait, or lower the route's rate".to_owned()),
        Reason::Limit { .. } => {
            ("limit", format!("redrive or discard what is dead: postrider dead list --route {route}"))
        }
        Reason::Message { message, .. } => ("waits-for", format!("postrider why {message}")),
        _ => ("standstill", "see the log of the relay".to_owned()),
    };
    Finding::of(route, code, what).fix(fix)
}
