//! `postrider key`: keys that stand still because their head was given up, and how an operator lets them go on.

use clap::{Args, Subcommand};
use postrider::core::{
    admin::{ParkedFilter, ParkedRow, StoreAdmin},
    lease::Order,
    parked::ParkedState,
};
use serde_json::json;

use super::{
    names::known_if_empty,
    status::age,
    store::{ActorArguments, StoreArguments},
};
use crate::{
    exit::{Code, Failure, Outcome},
    output::{OutputArguments, plural},
    table::Table,
};

/// Rows of one look at the store; each comes with its payload.
const LOOK: u32 = 500;

#[derive(Subcommand)]
pub(crate) enum Action {
    /// Keys whose head is dead, and how many messages wait behind it.
    Parked(List),
    /// Tries the head of a key again; what waits behind it follows.
    Resume(Change),
    /// Gives up on the head of a key for good; what waits behind it goes on.
    Skip(Change),
}

#[derive(Args)]
pub(crate) struct List {
    /// Of this route.
    #[arg(long)]
    route: Option<String>,
    /// At most this many.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Args)]
pub(crate) struct Change {
    /// The ordering key.
    key: String,
    /// On this route. May be left out if the key stands still on one route only.
    #[arg(long)]
    route: Option<String>,
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    actor: ActorArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) async fn run(action: &Action) -> Outcome {
    match action {
        Action::Parked(arguments) => parked(arguments).await,
        Action::Resume(change) => {
            let (admin, filter, head) = change.head().await?;
            decided(admin.redrive(&filter, &change.actor.actor()).await?, &head)?;
            change.tell("redriven", &head, "is tried again", "");
            Ok(Code::Done)
        }
        Action::Skip(change) => {
            let (admin, filter, head) = change.head().await?;
            decided(admin.discard(&filter, &change.actor.actor()).await?, &head)?;
            change.tell("discarded", &head, "is given up", "; its key goes on");
            Ok(Code::Done)
        }
    }
}

impl Change {
    /// The dead head of the key, and the filter that chooses it alone.
    async fn head(&self) -> Outcome<(std::sync::Arc<dyn StoreAdmin>, ParkedFilter, ParkedRow)> {
        let admin = self.store.open().await?.admin;
        let mut heads = heads(&*admin, self.route.clone(), Some(self.key.clone()), 100).await?;
        if heads.len() > 1 {
            let routes: Vec<&str> = heads.iter().map(|head| &*head.route).collect();
            let message = format!("the key stands still on several routes ({}); say --route", routes.join(", "));
            return Err(Failure::usage(message));
        }
        let Some(head) = heads.pop() else {
            known_if_empty(&*admin, true, self.route.as_ref()).await?;
            let of = self.route.as_ref().map_or_else(String::new, |route| format!(" on {route}"));
            let message = format!("the key does not stand still{of}: no dead message blocks it");
            return Err(Failure::new(Code::Problem, message));
        };
        let filter = ParkedFilter {
            route: Some(head.route.to_string()),
            state: Some(ParkedState::Dead),
            id: Some(head.envelope.id),
            key: Some(self.key.clone()),
            ordinals: Some(head.ordinal..=head.ordinal),
            ..ParkedFilter::default()
        };
        Ok((admin, filter, head))
    }

    fn tell(&self, what: &str, head: &ParkedRow, in_words: &str, and_then: &str) {
        let (id, route) = (head.envelope.id, &head.route);
        self.output.object(
            || json!({ "route": route, "key": self.key, what: id }),
            || format!("{id} {in_words} on {route}{and_then}\n"),
        );
    }
}

/// Between the look and the change somebody else may have decided about the head.
fn decided(changed: u64, head: &ParkedRow) -> Outcome<()> {
    if changed > 0 {
        return Ok(());
    }
    let (id, route) = (head.envelope.id, &head.route);
    let message = format!(
        "nothing was changed: message {id} is no longer dead on {route}, somebody else was faster; \
         `postrider why {id}` tells where it is"
    );
    Err(Failure::new(Code::Problem, message))
}

/// Dead rows that block what is behind them, by route and place.
async fn heads(
    admin: &dyn StoreAdmin,
    route: Option<String>,
    key: Option<String>,
    limit: usize,
) -> Outcome<Vec<ParkedRow>> {
    let filter = ParkedFilter { route, key, state: Some(ParkedState::Dead), ..ParkedFilter::default() };
    let (mut found, mut after) = (Vec::new(), None);
    // Ends with the dead rows, or with as many heads as were asked for.
    loop {
        let rows = admin.parked(&filter, after, LOOK).await?;
        let full = rows.len() == LOOK as usize;
        after = rows.last().map(|last| (std::sync::Arc::clone(&last.route), last.ordinal));
        found.extend(rows.into_iter().filter(|row| row.head));
        if !full || found.len() >= limit {
            found.truncate(limit);
            return Ok(found);
        }
    }
}

async fn parked(arguments: &List) -> Outcome {
    let admin = arguments.store.open().await?.admin;
    let heads = heads(&*admin, arguments.route.clone(), None, arguments.limit as usize).await?;
    known_if_empty(&*admin, heads.is_empty(), arguments.route.as_ref()).await?;
    let overview = admin.overview().await?;
    let total = |route: &str| overview.routes.iter().any(|one| *one.route == *route && one.order == Order::Total);
    let mut keys = Vec::new();
    for head in heads {
        // A route that keeps total order has one line, whatever the keys are.
        let held = ParkedFilter {
            route: Some(head.route.to_string()),
            key: head.envelope.key.as_ref().map(ToString::to_string).filter(|_| !total(&head.route)),
            state: Some(ParkedState::Held),
            ..ParkedFilter::default()
        };
        keys.push((admin.parked_count(&held).await?, head));
    }
    let key = |head: &ParkedRow| head.envelope.key.as_ref().map(ToString::to_string);
    arguments.output.list(
        || {
            let shown = |(waiting, head): &(u64, ParkedRow)| {
                let (code, detail) = head.cause.clone().unzip();
                json!({
                    "route": head.route, "key": key(head), "head": head.envelope.id, "waiting": waiting,
                    "age_seconds": head.age.as_secs_f64(), "cause": code, "detail": detail,
                })
            };
            keys.iter().map(shown).collect()
        },
        || {
            let mut table = Table::new(&["ROUTE", "KEY", "HEAD", "WAITING", "AGE", "CAUSE"]);
            for (waiting, head) in &keys {
                table.row([
                    head.route.to_string(),
                    key(head).unwrap_or_else(|| "(all: total order)".to_owned()),
                    head.envelope.id.to_string(),
                    waiting.to_string(),
                    age(head.age),
                    head.cause.as_ref().map_or_else(String::new, |(code, detail)| format!("{code}: {detail}")),
                ]);
            }
            let full = keys.len() == arguments.limit as usize;
            let more = if full { ", perhaps more: raise --limit" } else { "" };
            format!(
                "{table}{} still{more}\n",
                plural(keys.len() as u64, "key") + if keys.len() == 1 { " stands" } else { " stand" }
            )
        },
    );
    Ok(Code::Done)
}
