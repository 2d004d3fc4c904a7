//! `postrider route`: stops a route until it is resumed, whichever relays serve it, or forgets it for good,
//! or makes its cursor good after the database was set back.

use clap::{Args, Subcommand};

use super::store::{ActorArguments, StoreArguments};
use crate::exit::{Code, Outcome};

#[derive(Subcommand)]
pub(crate) enum Action {
    /// Lets its lanes drain and keeps them idle.
    Pause(Named),
    /// Lets a paused route go on.
    Resume(Named),
    /// Forgets a route that is no longer configured: its cursor, replays and parked messages. Until then retention waits
    /// for it.
    Forget(Named),
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
}

pub(crate) async fn run(action: &Action) -> Outcome {
    match action {
        Action::Pause(named) => {
            named.store.open().await?.admin.pause(&named.route, &named.actor.actor()).await?;
            println!("{} is paused", named.route);
        }
        Action::Resume(named) => {
            named.store.open().await?.admin.resume_route(&named.route, &named.actor.actor()).await?;
            println!("{} goes on", named.route);
        }
        Action::Forget(named) => {
            named.store.open().await?.admin.forget_route(&named.route, &named.actor.actor()).await?;
            println!("{} is forgotten; a relay that still has it makes it known again, as a new route", named.route);
        }
        Action::Rebase(named) => {
            named.store.open().await?.admin.rebase_route(&named.route, &named.actor.actor()).await?;
            println!("{} is rebased when a relay reads it next; what was not settled is delivered", named.route);
        }
    }
    Ok(Code::Done)
}
