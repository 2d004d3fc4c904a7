//! `postrider replay`: delivers again what was delivered, beside the live route and marked as a replay.

use clap::{Args, Subcommand};
use postrider::core::{
    admin::{ReplaySpec, StoreAdmin},
    browse::RecordFilter,
};
use serde_json::json;

use super::{
    message::Chosen,
    names::known_route,
    status::{pending, state},
    store::{ActorArguments, StoreArguments},
};
use crate::{
    exit::{Code, Failure, Outcome},
    output::{OutputArguments, or_dash, plural},
    progress::Progress,
    table::Table,
};

/// Records of one look at the store.
const LOOK: u32 = 10_000;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    start: Start,
}

#[derive(Subcommand)]
enum Action {
    /// Replays that have not ended.
    List {
        #[command(flatten)]
        store: StoreArguments,
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Ends a replay before its end, with its parked messages.
    Cancel {
        /// The replay, as `replay list` shows it.
        replay: String,
        #[command(flatten)]
        store: StoreArguments,
        #[command(flatten)]
        actor: ActorArguments,
        #[command(flatten)]
        output: OutputArguments,
    },
}

#[derive(Args)]
struct Start {
    /// Which route's messages.
    #[arg(long)]
    route: Option<String>,
    /// Through which other route, if not through its own: its destination gets them.
    #[arg(long, value_name = "ROUTE")]
    to: Option<String>,
    #[command(flatten)]
    chosen: Chosen,
    /// Messages per second at most.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Counts what would be delivered again, and starts nothing.
    #[arg(long)]
    dry_run: bool,
    /// Ends this replay instead of starting one.
    #[arg(long, value_name = "REPLAY", hide = true, conflicts_with = "route")]
    cancel: Option<String>,
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    actor: ActorArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome {
    match &arguments.action {
        None => match &arguments.start.cancel {
            Some(name) => {
                let Start { store, actor, output, .. } = &arguments.start;
                cancel(name, store, actor, *output).await
            }
            None => start(&arguments.start).await,
        },
        Some(Action::Cancel { replay, store, actor, output }) => cancel(replay, store, actor, *output).await,
        Some(Action::List { store, output }) => list(store, *output).await,
    }
}

async fn start(start: &Start) -> Outcome {
    let route = start.route.clone().ok_or_else(|| Failure::usage("say which route's messages: --route"))?;
    let spec = ReplaySpec { route, to: start.to.clone(), filter: start.chosen.filter()?, rate: start.rate };
    let admin = start.store.open().await?.admin;
    let overview = admin.overview().await?;
    for name in [Some(&spec.route), spec.to.as_ref()].into_iter().flatten() {
        known_route(&overview, name)?;
    }
    if start.dry_run {
        return dry_run(&*admin, &spec, start.output).await;
    }
    if !matches(&*admin, &spec).await? {
        // A replay that delivers nothing would look like one that has delivered everything.
        let message = format!("nothing matches: {}; nothing was started", spec.filter);
        return Err(Failure::new(Code::Problem, message));
    }
    let name = admin.replay(&spec, &start.actor.actor()).await?;
    start.output.object(
        || json!({ "replay": name, "state": "started" }),
        || format!("{name} has started; `postrider replay list` shows how far it is\n"),
    );
    Ok(Code::Done)
}

/// What a replay would deliver.
fn records(spec: &ReplaySpec) -> RecordFilter {
    RecordFilter { chosen: spec.filter.clone(), route: Some(spec.route.clone()), ..RecordFilter::default() }
}

/// Whether there is anything to deliver. Ends with the first that is found, or with the log.
async fn matches(admin: &dyn StoreAdmin, spec: &ReplaySpec) -> Outcome<bool> {
    let (filter, mut after) = (records(spec), None);
    loop {
        let page = admin.records(&filter, after, 1).await?;
        if !page.records.is_empty() {
            return Ok(true);
        }
        after = page.next;
        if after.is_none() {
            return Ok(false);
        }
    }
}

/// Counts what the route reads of the log, page by page.
async fn dry_run(admin: &dyn StoreAdmin, spec: &ReplaySpec, output: OutputArguments) -> Outcome {
    let filter = records(spec);
    let (mut after, mut found) = (None, 0);
    let mut progress = Progress::new("looked at", 0);
    // Ends with the log.
    loop {
        let page = admin.records(&filter, after, LOOK).await?;
        found += page.records.len() as u64;
        progress.at(found);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    drop(progress);
    let (messages, to) = (plural(found, "message"), spec.to.as_ref().unwrap_or(&spec.route));
    output.object(
        || json!({ "dry_run": true, "would_deliver": found, "through": to }),
        || format!("would deliver {messages} again through {to}: {}\nnothing was started\n", spec.filter),
    );
    Ok(Code::Done)
}

async fn cancel(name: &str, store: &StoreArguments, actor: &ActorArguments, output: OutputArguments) -> Outcome {
    store.open().await?.admin.cancel_replay(name, &actor.actor()).await?;
    output.object(|| json!({ "replay": name, "state": "cancelled" }), || format!("{name} is cancelled\n"));
    Ok(Code::Done)
}

async fn list(store: &StoreArguments, output: OutputArguments) -> Outcome {
    let overview = store.open().await?.admin.overview().await?;
    let replays = || overview.routes.iter().filter(|route| route.replay_of.is_some());
    output.list(
        || {
            let replay = |route: &postrider::core::admin::RouteStatus| {
                json!({
                    "replay": route.route, "through": route.replay_of, "state": state(route),
                    "pending": route.pending, "pending_more": route.pending_more, "parked": route.parked,
                })
            };
            replays().map(replay).collect()
        },
        || {
            let mut table = Table::new(&["REPLAY", "THROUGH", "STATE", "PENDING", "DEAD"]);
            for route in replays() {
                table.row([
                    route.route.to_string(),
                    or_dash(route.replay_of.as_ref()),
                    state(route).to_owned(),
                    pending(route),
                    route.parked.dead.to_string(),
                ]);
            }
            format!("{table}{} under way\n", plural(replays().count() as u64, "replay"))
        },
    );
    Ok(Code::Done)
}
