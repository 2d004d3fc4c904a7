//! `postrider route drain`: pauses a route and waits until nothing of it is in flight, so that its destination can be taken
//! away.
//!
//! Only the node that owns a lane knows what is in flight. It says with a heartbeat that a paused lane rests; a heartbeat
//! from before the pause says nothing about it.

use std::time::Duration;

use clap::Args;
use postrider::core::{
    admin::{Overview, StoreAdmin},
    lease::LaneId,
    standstill::Reason,
    time::Timestamp,
};
use serde_json::json;

use crate::{
    command::{
        names::known_route,
        store::{ActorArguments, StoreArguments},
    },
    exit::{Code, Failure, Outcome},
    output::OutputArguments,
    values,
};

/// How often the store is asked.
const EVERY: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(crate) struct Arguments {
    /// The route.
    route: String,
    /// How long to wait. The route stays paused also when the time is over.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = values::duration)]
    timeout: Duration,
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    actor: ActorArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(super) async fn run(arguments: &Arguments) -> Outcome {
    let Arguments { route, timeout, .. } = arguments;
    let admin = arguments.store.open().await?.admin;
    known_route(&admin.overview().await?, route)?;
    admin.pause(route, &arguments.actor.actor()).await?;
    let paused_at = admin.overview().await?.at;
    if let Ok(rests) = tokio::time::timeout(*timeout, at_rest(&*admin, route, paused_at)).await {
        rests?;
        arguments.output.object(
            || json!({ "route": route, "state": "drained" }),
            || format!("{route} is paused and nothing of it is in flight\n"),
        );
        return Ok(Code::Done);
    }
    let busy = busy(&admin.overview().await?, route, paused_at);
    let lanes: Vec<String> = busy.iter().map(|(lane, node)| format!("lane {lane} of {node}")).collect();
    Err(Failure::new(
        Code::Problem,
        format!("{route} is paused, but these may still have something in flight: {}", lanes.join(", ")),
    ))
}

/// Ends when every lane rests or has no owner.
async fn at_rest(admin: &dyn StoreAdmin, route: &str, paused_at: Timestamp) -> Outcome<()> {
    while !busy(&admin.overview().await?, route, paused_at).is_empty() {
        tokio::time::sleep(EVERY).await;
    }
    Ok(())
}

/// Lanes of the route and of its replays whose owner has not said that they rest, and the owner.
fn busy(overview: &Overview, route: &str, paused_at: Timestamp) -> Vec<(LaneId, String)> {
    let of_route = overview.routes.iter().filter(|status| {
        *status.route == *route || status.replay_of.as_deref().is_some_and(|served_by| served_by == route)
    });
    let mut busy = Vec::new();
    for status in of_route {
        for lane in &status.lanes {
            let Some(owner) = lane.owner else { continue };
            let lane = LaneId { route: status.route.clone(), number: lane.number };
            let node = overview.nodes.iter().find(|node| node.id == owner);
            let rests = node.is_some_and(|node| {
                let said_since = overview.at.saturating_sub(node.seen) > paused_at;
                said_since && node.standstills.iter().any(|said| said.lane == lane && said.reason == Reason::Rests)
            });
            if !rests {
                busy.push((lane, node.map_or_else(|| owner.to_string(), |node| node.name.clone())));
            }
        }
    }
    busy
}
