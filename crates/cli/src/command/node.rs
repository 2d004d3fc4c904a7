//! `postrider node`: the relays that are alive, and how one is asked to leave.
//!
//! A node that was killed is known until its leases end. What tells it from one that works is the time since its last
//! heartbeat: three are sent in the life of a lease, so one that is silent for half of it is late.

use clap::{Args, Subcommand};
use postrider::core::admin::{NodeStatus, Overview};
use serde_json::json;

use super::{
    status::age,
    store::{ActorArguments, StoreArguments},
};
use crate::{
    exit::{Code, Failure, Outcome},
    output::OutputArguments,
    table::{Table, printable},
};

#[derive(Subcommand)]
pub(crate) enum Action {
    /// The relays that are alive.
    List {
        #[command(flatten)]
        store: StoreArguments,
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Asks a relay to leave: it finishes what is in flight, gives its lanes to the others and ends. Whatever supervises its
    /// process may start it again, as another node.
    Drain(Drain),
}

#[derive(Args)]
pub(crate) struct Drain {
    /// Its id, the beginning of its id, or its name, as `node list` shows them.
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    actor: ActorArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) async fn run(action: &Action) -> Outcome {
    match action {
        Action::List { store, output } => {
            let overview = store.open().await?.admin.overview().await?;
            output.list(|| overview.nodes.iter().map(|node| as_json(node, &overview)).collect(), || table(&overview));
            Ok(Code::Done)
        }
        Action::Drain(drain) => {
            let admin = drain.store.open().await?.admin;
            let overview = admin.overview().await?;
            let node = find(&overview, &drain.node)?;
            admin.drain_node(node.id, &drain.actor.actor()).await?;
            drain.output.object(
                || json!({ "id": node.id, "name": node.name, "leaving": true }),
                || format!("{} is asked to leave; it learns of it with its next heartbeat\n", printable(&node.name)),
            );
            Ok(Code::Done)
        }
    }
}

fn find<'a>(overview: &'a Overview, named: &str) -> Outcome<&'a NodeStatus> {
    let fits = |node: &&NodeStatus| node.name == named || (!named.is_empty() && node.id.to_string().starts_with(named));
    let found: Vec<&NodeStatus> = overview.nodes.iter().filter(fits).collect();
    match found.as_slice() {
        [one] => Ok(one),
        [] => {
            let alive: Vec<&str> = overview.nodes.iter().map(|node| node.name.as_str()).collect();
            let alive = if alive.is_empty() { "no relay is alive".to_owned() } else { alive.join(", ") };
            Err(Failure::new(Code::Problem, format!("no relay that is alive is called `{named}`; alive: {alive}")))
        }
        several => {
            let ids: Vec<String> = several.iter().map(|node| node.id.to_string()).collect();
            Err(Failure::usage(format!("`{named}` may be several: {}; write more of the id", ids.join(", "))))
        }
    }
}

/// As one word, or as the time for which nothing was heard.
pub(super) fn state(node: &NodeStatus) -> String {
    if node.is_silent() {
        format!("silent for {}", postrider::diagnosis::in_words(node.seen))
    } else if node.leaving {
        "leaving".to_owned()
    } else {
        "alive".to_owned()
    }
}

fn lanes(node: &NodeStatus, overview: &Overview) -> usize {
    overview.routes.iter().flat_map(|route| &route.lanes).filter(|lane| lane.owner == Some(node.id)).count()
}

pub(super) fn as_json(node: &NodeStatus, overview: &Overview) -> serde_json::Value {
    json!({
        "id": node.id, "name": node.name, "state": state(node), "routes": node.routes,
        "lanes": lanes(node, overview), "heartbeat_age_seconds": node.seen.as_secs_f64(),
        "lease_life_seconds": node.lease_life.as_secs_f64(), "leaving": node.leaving, "standstills": node.standstills,
    })
}

fn table(overview: &Overview) -> String {
    let mut table = Table::new(&["NODE", "NAME", "STATE", "HEARTBEAT", "LANES", "ROUTES"]);
    for node in &overview.nodes {
        let routes: Vec<&str> = node.routes.iter().map(|route| &**route).collect();
        table.row([
            node.id.to_string(),
            node.name.clone(),
            state(node),
            format!("{} ago", age(node.seen)),
            lanes(node, overview).to_string(),
            routes.join(", "),
        ]);
    }
    if overview.nodes.is_empty() { "no relay is alive\n".to_owned() } else { table.to_string() }
}
