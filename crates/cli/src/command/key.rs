//! `postrider key`: keys that stand still because their head was given up, and how an operator lets them go on.

use std::sync::Arc;

use clap::{Args, Subcommand};
use postrider::core::{
    admin::{ParkedFilter, ParkedRow, RouteStatus, StoreAdmin},
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

/// Routes that are told of, if a key stands still on several.
const HEADS_MAX: usize = 100;

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
    /// The ordering key. May be left out with --route for one that keeps total order: there one head stops all keys.
    #[arg(required_unless_present = "route")]
    key: Option<String>,
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
            let goes_on = if head.of_all { "; the route goes on" } else { "; its key goes on" };
            change.tell("discarded", &head, "is given up", goes_on);
            Ok(Code::Done)
        }
    }
}

/// A dead message that blocks what is behind it.
struct Head {
    row: ParkedRow,
    /// Its route keeps total order, so that it blocks every key.
    of_all: bool,
}

impl Change {
    /// The dead head that blocks the key, and the filter that chooses it alone.
    async fn head(&self) -> Outcome<(Arc<dyn StoreAdmin>, ParkedFilter, Head)> {
        let admin = self.store.open().await?.admin;
        let mut heads = self.heads(&*admin).await?;
        if heads.len() > 1 {
            let routes: Vec<&str> = heads.iter().map(|head| &*head.row.route).collect();
            let message = format!("the key stands still on several routes ({}); say --route", routes.join(", "));
            return Err(Failure::usage(message));
        }
        let Some(head) = heads.pop() else {
            let what = if self.key.is_some() { "key" } else { "route" };
            let of = self.route.as_ref().map_or_else(String::new, |route| format!(" on {route}"));
            let of = if self.key.is_some() { of } else { String::new() };
            let message = format!("the {what} does not stand still{of}: no dead message blocks it");
            return Err(Failure::new(Code::Problem, message));
        };
        let filter = ParkedFilter {
            route: Some(head.row.route.to_string()),
            state: Some(ParkedState::Dead),
            id: Some(head.row.envelope.id),
            key: key_of(&head.row),
            ordinals: Some(head.row.ordinal..=head.row.ordinal),
            ..ParkedFilter::default()
        };
        Ok((admin, filter, head))
    }

    /// On every route that is asked about: the head of the key's own line, or that of the one line that the route has.
    async fn heads(&self, admin: &dyn StoreAdmin) -> Outcome<Vec<Head>> {
        let overview = admin.overview().await?;
        let asked = |route: &&RouteStatus| self.route.as_ref().is_none_or(|name| *name == *route.route);
        let (total, keyed): (Vec<_>, Vec<_>) =
            overview.routes.iter().filter(asked).partition(|route| route.order == Order::Total);
        let mut found = Vec::new();
        for route in &total {
            let first = heads(admin, Some(route.route.to_string()), None, 1).await?;
            found.extend(first.into_iter().map(|row| Head { row, of_all: true }));
        }
        if let Some(key) = &self.key {
            // Not route by route: rows of a replay outlive it.
            let rows = heads(admin, self.route.clone(), Some(key.clone()), HEADS_MAX).await?;
            let own_line = rows.into_iter().filter(|row| !total.iter().any(|route| route.route == row.route));
            found.extend(own_line.map(|row| Head { row, of_all: false }));
        } else if let [route, ..] = &keyed[..] {
            return Err(Failure::usage(format!("{} keeps order per key; say which key", route.route)));
        }
        known_if_empty(admin, found.is_empty(), self.route.as_ref()).await?;
        Ok(found)
    }

    fn tell(&self, what: &str, Head { row, of_all }: &Head, in_words: &str, and_then: &str) {
        let (id, route, key) = (row.envelope.id, &row.route, key_of(row));
        let whose = match &key {
            _ if !of_all || key == self.key => String::new(),
            Some(key) => format!(", whose order is total (its own key is `{key}`)"),
            None => ", whose order is total (it has no key)".to_owned(),
        };
        self.output.object(
            || json!({ "route": route, "key": key, what: id }),
            || format!("{id} {in_words} on {route}{whose}{and_then}\n"),
        );
    }
}

fn key_of(row: &ParkedRow) -> Option<String> {
    row.envelope.key.as_ref().map(ToString::to_string)
}

/// Between the look and the change somebody else may have decided about the head.
fn decided(changed: u64, Head { row, .. }: &Head) -> Outcome<()> {
    if changed > 0 {
        return Ok(());
    }
    let (id, route) = (row.envelope.id, &row.route);
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
        after = rows.last().map(|last| (Arc::clone(&last.route), last.ordinal));
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
            key: key_of(&head).filter(|_| !total(&head.route)),
            state: Some(ParkedState::Held),
            ..ParkedFilter::default()
        };
        keys.push((admin.parked_count(&held).await?, head));
    }
    arguments.output.list(
        || {
            let shown = |(waiting, head): &(u64, ParkedRow)| {
                let (code, detail) = head.cause.clone().unzip();
                json!({
                    "route": head.route, "key": key_of(head), "head": head.envelope.id, "waiting": waiting,
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
                    shown_key(head, total(&head.route)),
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

/// The one head of a route that keeps total order stops all keys, whether it has one or not.
fn shown_key(head: &ParkedRow, total: bool) -> String {
    match (key_of(head), total) {
        (Some(key), true) => format!("{key} (all: total order)"),
        (None, _) => "(all: total order)".to_owned(),
        (Some(key), false) => key,
    }
}
