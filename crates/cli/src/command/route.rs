//! `postrider route`: stops a route until it is resumed, whichever relays serve it.

use clap::{Args, Subcommand};

use super::store::{ActorArguments, StoreArguments};
use crate::exit::{Code, Outcome};

#[derive(Subcommand)]
pub(crate) enum Action {
    /// Lets its lanes drain and keeps them idle.
    Pause(Named),
    /// Lets a paused route go on.
    Resume(Named),
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
    }
    Ok(Code::Done)
}
