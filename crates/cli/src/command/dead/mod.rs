//! `postrider dead`: what was given up, and what an operator may do about it.
//!
//! Looking is in [`look`], changing in [`change`].

mod change;
mod look;

use std::time::Duration;

use clap::{Args, Subcommand};
use postrider::{
    MessageId,
    core::{
        admin::{ParkedFilter, StoreAdmin},
        parked::ParkedState,
    },
};

use crate::{exit::Outcome, values};

#[derive(Subcommand)]
pub(crate) enum Action {
    /// How many there are, by route and cause, the largest group first.
    Groups(look::Groups),
    /// Lists them, by route and place in line.
    List(look::List),
    /// All about one of them, on every route that has given it up.
    Show(look::Show),
    /// Writes them to standard output with headers and payload: always one JSON object per line (NDJSON), so it has no
    /// --output.
    Export(look::Export),
    /// Tries them again, with a fresh count of attempts. Several at once only with --yes.
    Redrive(change::Change),
    /// Gives them up for good; what they blocked goes on. Several at once only with --yes.
    Discard(change::Change),
}

/// Which of them.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Of this route.
    #[arg(long)]
    route: Option<String>,
    /// With this cause.
    #[arg(long, value_name = "CODE")]
    cause: Option<String>,
    /// With this ordering key.
    #[arg(long)]
    key: Option<String>,
    /// This message.
    #[arg(long, value_name = "MESSAGE ID")]
    id: Option<MessageId>,
    /// Parked for longer than this, such as `10d`.
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    older_than: Option<Duration>,
}

impl Filter {
    /// Ages count by the store's clock.
    async fn parked(&self, admin: &dyn StoreAdmin) -> Outcome<ParkedFilter> {
        let parked_before = match self.older_than {
            Some(age) => Some(admin.overview().await?.at.saturating_sub(age)),
            None => None,
        };
        Ok(ParkedFilter {
            route: self.route.clone(),
            state: Some(ParkedState::Dead),
            cause: self.cause.clone(),
            key: self.key.clone(),
            id: self.id,
            ordinals: None,
            parked_before,
        })
    }

    fn chooses_everything(&self) -> bool {
        let Self { route, cause, key, id, older_than } = self;
        route.is_none() && cause.is_none() && key.is_none() && id.is_none() && older_than.is_none()
    }
}

pub(crate) async fn run(action: &Action) -> Outcome {
    match action {
        Action::Groups(arguments) => look::groups(arguments).await,
        Action::List(arguments) => look::list(arguments).await,
        Action::Show(arguments) => look::show(arguments).await,
        Action::Export(arguments) => look::export(arguments).await,
        Action::Redrive(change) => change.run(change::Act::Redrive).await,
        Action::Discard(change) => change.run(change::Act::Discard).await,
    }
}
