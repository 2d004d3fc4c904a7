//! `postrider lease list`: who may act on which lane, and for how long without another heartbeat.

use clap::Subcommand;
use postrider::core::admin::{LaneStatus, Overview, RouteStatus};
use serde_json::{Value, json};

use super::{status::age, store::StoreArguments};
use crate::{
    exit::{Code, Outcome},
    output::{OutputArguments, or_dash},
    table::Table,
};

#[derive(Subcommand)]
pub(crate) enum Action {
    /// Every lane, its owner, its epoch, and when the lease ends unless it is extended.
    List {
        #[command(flatten)]
        store: StoreArguments,
        #[command(flatten)]
        output: OutputArguments,
    },
}

pub(crate) async fn run(action: &Action) -> Outcome {
    let Action::List { store, output } = action;
    let overview = store.open().await?.admin.overview().await?;
    let lanes = || overview.routes.iter().flat_map(|route| route.lanes.iter().map(move |lane| (route, lane)));
    output.list(
        || lanes().map(|(route, lane)| as_json(&overview, route, lane)).collect(),
        || {
            let mut table = Table::new(&["ROUTE", "LANE", "OWNER", "EPOCH", "EXPIRES IN", "CURSOR"]);
            for (route, lane) in lanes() {
                table.row([
                    route.route.to_string(),
                    lane.number.to_string(),
                    or_dash(owner(&overview, lane)),
                    lane.epoch.0.to_string(),
                    or_dash(lane.expires_in.map(age)),
                    lane.cursor.clone(),
                ]);
            }
            table.to_string()
        },
    );
    Ok(Code::Done)
}

/// By name, if the node is known.
fn owner(overview: &Overview, lane: &LaneStatus) -> Option<String> {
    let owner = lane.owner?;
    let node = overview.nodes.iter().find(|node| node.id == owner);
    Some(node.map_or_else(|| owner.to_string(), |node| node.name.clone()))
}

pub(super) fn as_json(overview: &Overview, route: &RouteStatus, lane: &LaneStatus) -> Value {
    json!({
        "route": route.route, "lane": lane.number, "owner": lane.owner, "owner_name": owner(overview, lane),
        "epoch": lane.epoch, "expires_in_seconds": lane.expires_in.map(|left| left.as_secs_f64()),
        "cursor": lane.cursor,
    })
}
