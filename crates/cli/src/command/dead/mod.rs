//! `postrider dead`: what was given up, and what an operator may do about it.
//!
//! Redriving and discarding need a filter, or `--all` in so many words.

use clap::{Args, Subcommand};
use postrider::{
    MessageId,
    core::{
        admin::{ParkedFilter, ParkedRow},
        parked::ParkedState,
    },
};
use serde_json::{Value, json};

use super::{
    status::age,
    store::{ActorArguments, StoreArguments},
};
use crate::{
    exit::{Code, Failure, Outcome},
    table::Table,
};

#[derive(Subcommand)]
pub(crate) enum Action {
    /// Lists them, by route and place in line.
    List {
        #[command(flatten)]
        store: StoreArguments,
        #[command(flatten)]
        filter: Filter,
        /// At most this many.
        #[arg(long, default_value_t = 100)]
        limit: u32,
        /// One JSON object per line.
        #[arg(long)]
        json: bool,
    },
    /// Tries them again, with a fresh count of attempts.
    Redrive(Change),
    /// Gives them up for good; what they blocked goes on.
    Discard(Change),
}

#[derive(Args)]
pub(crate) struct Change {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    filter: Filter,
    /// Every dead message of the store.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    actor: ActorArguments,
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
}

impl Filter {
    fn parked(&self) -> ParkedFilter {
        ParkedFilter {
            route: self.route.clone(),
            state: Some(ParkedState::Dead),
            cause: self.cause.clone(),
            key: self.key.clone(),
            id: self.id,
        }
    }

    fn chooses_everything(&self) -> bool {
        self.route.is_none() && self.cause.is_none() && self.key.is_none() && self.id.is_none()
    }
}

pub(crate) async fn run(action: &Action) -> Outcome {
    match action {
        Action::List { store, filter, limit, json } => list(store, filter, *limit, *json).await,
        Action::Redrive(change) => {
            let filter = change.filter()?;
            let rows = change.store.open().await?.admin.redrive(&filter, &change.actor.actor()).await?;
            Ok(tell("redriven", rows))
        }
        Action::Discard(change) => {
            let filter = change.filter()?;
            let rows = change.store.open().await?.admin.discard(&filter, &change.actor.actor()).await?;
            Ok(tell("discarded", rows))
        }
    }
}

impl Change {
    fn filter(&self) -> Outcome<ParkedFilter> {
        if self.filter.chooses_everything() != self.all {
            return Err(Failure::usage("say which messages (--route, --cause, --key or --id), or --all of them"));
        }
        Ok(self.filter.parked())
    }
}

/// That nothing matched is a finding: whoever asked expected something.
fn tell(what: &str, rows: u64) -> Code {
    println!("{rows} {what}");
    if rows == 0 { Code::Problem } else { Code::Done }
}

async fn list(store: &StoreArguments, filter: &Filter, limit: u32, json: bool) -> Outcome {
    let rows = store.open().await?.admin.parked(&filter.parked(), None, limit).await?;
    if json {
        for row in &rows {
            println!("{}", as_json(row));
        }
        return Ok(Code::Done);
    }
    let mut table = Table::new(&["MESSAGE", "ROUTE", "TOPIC", "KEY", "ATTEMPTS", "AGE", "CAUSE"]);
    for row in &rows {
        let (code, detail) = row.cause.clone().unwrap_or_default();
        table.row([
            row.envelope.id.to_string(),
            row.route.to_string(),
            row.envelope.topic.to_string(),
            row.envelope.key.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
            row.attempts.to_string(),
            age(row.age),
            format!("{code}: {detail}"),
        ]);
    }
    print!("{table}");
    println!("{} dead{}", rows.len(), if rows.len() == limit as usize { ", perhaps more: raise --limit" } else { "" });
    Ok(Code::Done)
}

fn as_json(row: &ParkedRow) -> Value {
    let (code, detail) = row.cause.clone().unzip();
    json!({
        "id": row.envelope.id,
        "route": row.route,
        "topic": row.envelope.topic,
        "name": row.envelope.name,
        "key": row.envelope.key.as_ref().map(ToString::to_string),
        "attempts": row.attempts,
        "cause": code,
        "detail": detail,
        "head": row.head,
        "age_seconds": row.age.as_secs_f64(),
    })
}
