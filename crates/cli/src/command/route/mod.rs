//! `postrider route`: stops a route until it is resumed, whichever relays serve it; waits until it rests; tries it out;
//! forgets it for good, or makes its cursor good after the database was set back.

mod drain;
mod test;

use std::sync::Arc;

use clap::{Args, Subcommand};
use postrider::core::admin::{Hindrance, RouteStatus, StoreAdmin, Undelivered};
use serde_json::{Value, json};

use super::{
    names::known_route,
    status::{age, lanes, pending, state},
    store::{ActorArguments, StoreArguments},
};
use crate::{
    exit::{Code, Failure, Outcome},
    output::{OutputArguments, or_dash, plural},
    table::{Table, printable},
};

#[derive(Subcommand)]
pub(crate) enum Action {
    /// Every route: what it reads and how it stands.
    List {
        #[command(flatten)]
        store: StoreArguments,
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Lets its lanes drain and keeps them idle.
    Pause(Named),
    /// Lets a paused route go on.
    Resume(Named),
    /// Pauses it and waits until nothing of it is in flight.
    Drain(drain::Arguments),
    /// Enqueues a marked message for it and waits until it is delivered. The destination gets it like any other message, with
    /// the header `postrider-probe`, and so does every other route that reads its topic.
    Test(test::Arguments),
    /// Forgets a route that is no longer configured: its cursor, replays and parked messages. Until then retention waits
    /// for it. One for which something waits only with --yes.
    Forget(Forget),
    /// Makes the cursor good after the database was set back (PostgreSQL): all that it has not settled is delivered, some of
    /// it perhaps twice. An error asks for it.
    Rebase(Named),
}

#[derive(Args)]
pub(crate) struct Named {
    /// The route.
    route: String,
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    actor: ActorArguments,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Args)]
pub(crate) struct Forget {
    #[command(flatten)]
    named: Named,
    /// Really does it. Without, a route for which messages wait is only looked at.
    #[arg(long)]
    yes: bool,
}

impl Named {
    /// The store, if it knows the route.
    async fn open(&self) -> Outcome<Arc<dyn StoreAdmin>> {
        let admin = self.store.open().await?.admin;
        known_route(&admin.overview().await?, &self.route)?;
        Ok(admin)
    }

    /// What has become of the route: one word for a program, a sentence for people.
    fn tell(&self, state: &str, in_words: &str) {
        let route = &self.route;
        self.output.object(|| json!({ "route": route, "state": state }), || format!("{route} {in_words}\n"));
    }
}

pub(crate) async fn run(action: &Action) -> Outcome {
    match action {
        Action::List { store, output } => return list(store, *output).await,
        Action::Drain(arguments) => return drain::run(arguments).await,
        Action::Test(arguments) => return test::run(arguments).await,
        Action::Pause(named) => {
            named.open().await?.pause(&named.route, &named.actor.actor()).await?;
            named.tell("paused", "is paused");
        }
        Action::Resume(named) => {
            named.open().await?.resume_route(&named.route, &named.actor.actor()).await?;
            named.tell("resumed", "goes on");
        }
        Action::Forget(arguments) => forget(arguments).await?,
        Action::Rebase(named) => {
            named.open().await?.rebase_route(&named.route, &named.actor.actor()).await?;
            named.tell("rebasing", "is rebased when a relay reads it next; what was not settled is delivered");
        }
    }
    Ok(Code::Done)
}

async fn forget(Forget { named, yes }: &Forget) -> Outcome<()> {
    let admin = named.open().await?;
    let route = &named.route;
    let dead = admin.dead_groups().await?;
    match admin.overview().await?.hindrance(route, &dead) {
        Some(Hindrance::Served { node }) => return Err(served(route, &node)),
        Some(Hindrance::Undelivered { pending, parked }) if !yes => {
            named.output.object(
                || json!({ "dry_run": true, "route": route, "pending": pending, "parked": parked }),
                || {
                    let parked = plural(parked, "parked message");
                    format!(
                        "would forget {route} with {parked} and a cursor that has at least {pending} before it\n\
                         nothing was changed; do it with --yes\n"
                    )
                },
            );
            return Ok(());
        }
        _ => {}
    }
    let undelivered = if *yes { Undelivered::GiveUp } else { Undelivered::Keep };
    admin.forget_route(route, undelivered, &named.actor.actor()).await?;
    named.tell("forgotten", "is forgotten; a relay that has it in its configuration makes it known as a new route");
    Ok(())
}

/// A relay that has the route would make it known again.
fn served(route: &str, node: &str) -> Failure {
    Failure::new(
        Code::Refused,
        format!(
            "`{route}` is served by {}\n  take the route out of its configuration and restart it, or stop it; then forget \
             the route",
            printable(node)
        ),
    )
}

async fn list(store: &StoreArguments, output: OutputArguments) -> Outcome {
    let overview = store.open().await?.admin.overview().await?;
    let routes = || overview.routes.iter().filter(|route| route.replay_of.is_none());
    output.list(
        || routes().map(as_json).collect(),
        || {
            let mut table = Table::new(&["ROUTE", "STATE", "TOPICS", "LANES", "PENDING", "OLDEST", "DEAD"]);
            for route in routes() {
                table.row([
                    route.route.to_string(),
                    state(route).to_owned(),
                    route.topics.clone(),
                    lanes(route),
                    pending(route),
                    or_dash(route.oldest_pending_age.map(age)),
                    route.parked.dead.to_string(),
                ]);
            }
            if routes().next().is_none() {
                "no routes yet: a relay makes them known when it starts\n".to_owned()
            } else {
                table.to_string()
            }
        },
    );
    Ok(Code::Done)
}

fn as_json(route: &RouteStatus) -> Value {
    json!({
        "route": route.route, "state": state(route), "topics": route.topics, "paused": route.paused,
        "lanes": route.lanes.len(), "pending": route.pending, "pending_more": route.pending_more, "parked": route.parked,
        "oldest_pending_age_seconds": route.oldest_pending_age.map(|age| age.as_secs_f64()),
    })
}
