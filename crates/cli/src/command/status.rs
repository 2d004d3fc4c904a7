//! `postrider status`: everything on one screen, the age of the oldest undelivered message first of all.

use std::time::Duration;

use clap::Args;
use postrider::{
    core::admin::{Overview, RouteStatus, StoreAdmin},
    diagnosis::{self, Finding, Topics},
};
use serde_json::{Value, json};

use super::{lease, node, store::StoreArguments, why::in_lines};
use crate::{
    exit::{Code, Outcome},
    output::{OutputArguments, plural},
    table::{Table, printable},
    topics,
};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome {
    let admin = arguments.store.open().await?.admin;
    let (overview, findings) = look(&*admin, &mut topics::unknown(Vec::new()), topics::PATIENCE).await?;
    arguments.output.object(|| as_json(&overview, &findings), || as_text(&overview, &findings));
    Ok(Code::Done)
}

/// What there is and what is wrong with it. The log is walked for so long at most.
pub(super) async fn look(
    admin: &dyn StoreAdmin,
    topics: &mut Topics,
    patience: Duration,
) -> Outcome<(Overview, Vec<Finding>)> {
    let overview = topics::look_for(patience, admin, topics).await?;
    let mut findings = diagnosis::survey(admin, &overview, topics).await?;
    findings.extend(topics.in_part());
    Ok((overview, findings))
}

pub(super) fn as_text(overview: &Overview, findings: &[Finding]) -> String {
    let mut routes =
        Table::new(&["ROUTE", "STATE", "OLDEST", "PENDING", "SCHEDULED", "RETRYING", "HELD", "DEAD", "LANES"]);
    for route in &overview.routes {
        let parked = route.parked;
        routes.row([
            name(route),
            state(route).to_owned(),
            route.oldest_pending_age.map_or_else(|| "-".to_owned(), age),
            pending(route),
            parked.scheduled.to_string(),
            parked.retrying.to_string(),
            parked.held.to_string(),
            parked.dead.to_string(),
            lanes(route),
        ]);
    }
    let empty =
        if overview.routes.is_empty() { "no routes yet: a relay makes them known when it starts\n" } else { "" };
    let text = if overview.routes.is_empty() { String::new() } else { routes.to_string() };
    let records = plural(overview.records, "record");
    let troubles: String = findings.iter().map(in_lines).collect();
    format!("{text}{empty}{records} in the log, {}\n{troubles}", relays(overview))
}

/// One that was killed is known until its leases end; what was heard of it last tells it from one that works.
fn relays(overview: &Overview) -> String {
    let (silent, alive): (Vec<_>, Vec<_>) = overview.nodes.iter().partition(|node| node.is_silent());
    let silent: String =
        silent.iter().map(|node| format!(", {} {}", printable(&node.name), node::state(node))).collect();
    format!("{} alive{silent}", plural(alive.len() as u64, "relay"))
}

fn name(route: &RouteStatus) -> String {
    match &route.replay_of {
        Some(through) => format!("{} (replay through {through})", route.route),
        None => route.route.to_string(),
    }
}

/// Owned ones of all.
pub(super) fn lanes(route: &RouteStatus) -> String {
    let owned = route.lanes.iter().filter(|lane| lane.owner.is_some()).count();
    format!("{owned}/{}", route.lanes.len())
}

/// A look at a long log ends before the log does.
pub(super) fn pending(route: &RouteStatus) -> String {
    format!("{}{}", route.pending, if route.pending_more { "+" } else { "" })
}

/// Two significant parts are enough for a person.
pub(super) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{:.1}s", age.as_secs_f64()),
        60..3_600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h {}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

pub(super) fn as_json(overview: &Overview, findings: &[Finding]) -> Value {
    let route = |route: &RouteStatus| {
        json!({
            "route": route.route,
            "replay_of": route.replay_of,
            "topics": route.topics,
            "paused": route.paused,
            "pending": route.pending,
            "pending_more": route.pending_more,
            "oldest_pending_age_seconds": route.oldest_pending_age.map(|age| age.as_secs_f64()),
            "parked": route.parked,
            "state": state(route),
            "lanes": route.lanes.iter().map(|lane| lease::as_json(overview, route, lane)).collect::<Vec<_>>(),
        })
    };
    let nodes: Vec<Value> = overview.nodes.iter().map(|node| node::as_json(node, overview)).collect();
    let routes: Vec<Value> = overview.routes.iter().map(route).collect();
    json!({ "at": overview.at.to_string(), "records": overview.records, "routes": routes, "nodes": nodes, "findings": findings })
}

/// A route that nobody serves stands still: that must not look like one that runs.
pub(super) fn state(route: &RouteStatus) -> &'static str {
    if route.paused.is_some() {
        "paused"
    } else if route.lanes.iter().all(|lane| lane.owner.is_none()) {
        "no relay"
    } else {
        "running"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let cases = [(400, "0.4s"), (61_000, "1m 1s"), (7_260_000, "2h 1m"), (176_400_000, "2d 1h")];
        for (millis, text) in cases {
            assert_eq!(age(Duration::from_millis(millis)), text);
        }
    }
}
