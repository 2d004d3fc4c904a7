//! Looking at what was given up: by cause, one by one, or all of it with payloads.

use std::sync::Arc;

use clap::Args;
use postrider::{
    MessageId,
    core::{
        admin::{ParkedFilter, ParkedRow},
        parked::ParkedState,
    },
};
use serde_json::{Value, json};

use super::Filter;
use crate::{
    command::{
        envelope::{self, Contents},
        names::known_if_empty,
        status::age,
        store::StoreArguments,
    },
    exit::{Code, Failure, Outcome},
    output::{OutputArguments, or_dash, print},
    progress::Progress,
    table::{Table, printable},
};

/// Rows of one look at the store; each comes with its payload.
const LOOK: u32 = 200;

#[derive(Args)]
pub(crate) struct Groups {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(super) async fn groups(arguments: &Groups) -> Outcome {
    let groups = arguments.store.open().await?.admin.dead_groups().await?;
    arguments.output.list(
        || {
            let group = |group: &postrider::core::admin::CauseGroup| {
                json!({
                    "route": group.route, "replay_of": group.replay_of, "cause": group.code, "detail": group.detail,
                    "count": group.rows, "first_at": group.first_at.to_string(), "last_at": group.last_at.to_string(),
                })
            };
            groups.iter().map(group).collect()
        },
        || {
            let mut table = Table::new(&["COUNT", "ROUTE", "CAUSE", "FIRST", "LAST", "NEWEST DETAIL"]);
            for group in &groups {
                table.row([
                    group.rows.to_string(),
                    group.route.to_string(),
                    group.code.clone(),
                    group.first_at.to_string(),
                    group.last_at.to_string(),
                    group.detail.clone(),
                ]);
            }
            let dead: u64 = groups.iter().map(|group| group.rows).sum();
            format!("{table}{dead} dead\n")
        },
    );
    Ok(Code::Done)
}

#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    filter: Filter,
    /// At most this many.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    output: OutputArguments,
}

pub(super) async fn list(arguments: &List) -> Outcome {
    let admin = arguments.store.open().await?.admin;
    let rows = admin.parked(&arguments.filter.parked(&*admin).await?, None, arguments.limit).await?;
    known_if_empty(&*admin, rows.is_empty(), arguments.filter.route.as_ref()).await?;
    arguments.output.list(
        || rows.iter().map(as_json).collect(),
        || {
            let mut table = Table::new(&["MESSAGE", "ROUTE", "TOPIC", "KEY", "ATTEMPTS", "AGE", "CAUSE"]);
            for row in &rows {
                let (code, detail) = row.cause.clone().unwrap_or_default();
                table.row([
                    row.envelope.id.to_string(),
                    row.route.to_string(),
                    row.envelope.topic.to_string(),
                    or_dash(row.envelope.key.as_ref()),
                    row.attempts.to_string(),
                    age(row.age),
                    format!("{code}: {detail}"),
                ]);
            }
            let full = rows.len() == arguments.limit as usize;
            let more = if full { ", perhaps more: raise --limit, or see `dead groups`" } else { "" };
            format!("{table}{} dead{more}\n", rows.len())
        },
    );
    Ok(Code::Done)
}

#[derive(Args)]
pub(crate) struct Show {
    /// The message.
    #[arg(value_name = "MESSAGE ID")]
    id: MessageId,
    /// Shows headers and payload too.
    #[arg(long)]
    payload: bool,
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(super) async fn show(arguments: &Show) -> Outcome {
    let admin = arguments.store.open().await?.admin;
    let filter = ParkedFilter { id: Some(arguments.id), state: Some(ParkedState::Dead), ..ParkedFilter::default() };
    let contents = Contents::of(&*admin, arguments.payload).await?;
    let rows = admin.parked(&filter, None, LOOK).await?;
    if rows.is_empty() {
        let message = format!("no route has given up message {0}; `postrider why {0}` tells where it is", arguments.id);
        return Err(Failure::new(Code::Problem, message));
    }
    arguments.output.list(
        || rows.iter().map(|row| whole(row, contents)).collect(),
        || rows.iter().map(|row| in_lines(row, contents)).collect::<Vec<_>>().join("\n"),
    );
    Ok(Code::Done)
}

fn in_lines(row: &ParkedRow, contents: Contents) -> String {
    let (code, detail) = row.cause.clone().unwrap_or_default();
    let mut lines = vec![
        ("route".to_owned(), row.route.to_string()),
        ("cause".to_owned(), format!("{code}: {detail}")),
        ("attempts".to_owned(), row.attempts.to_string()),
        ("parked at".to_owned(), row.parked_at.to_string()),
        ("blocks its key".to_owned(), if row.head { "yes" } else { "no" }.to_owned()),
    ];
    lines.extend(envelope::as_lines(&row.envelope, contents));
    lines.iter().map(|(name, value)| format!("{:<16} {}\n", printable(name), printable(value))).collect()
}

#[derive(Args)]
pub(crate) struct Export {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    filter: Filter,
}

pub(super) async fn export(arguments: &Export) -> Outcome {
    let admin = arguments.store.open().await?.admin;
    let contents = Contents::of(&*admin, true).await?;
    let filter = arguments.filter.parked(&*admin).await?;
    let count = admin.parked_count(&filter).await?;
    known_if_empty(&*admin, count == 0, filter.route.as_ref()).await?;
    let mut progress = Progress::new("exported", count);
    let (mut after, mut done) = (None, 0);
    // Ends with the first page that is not full.
    loop {
        let rows = admin.parked(&filter, after.clone(), LOOK).await?;
        for row in &rows {
            print(format_args!("{}\n", whole(row, contents)));
        }
        done += rows.len() as u64;
        progress.at(done);
        match rows.last() {
            Some(last) if rows.len() == LOOK as usize => after = Some((Arc::clone(&last.route), last.ordinal)),
            _ => return Ok(Code::Done),
        }
    }
}

fn whole(row: &ParkedRow, contents: Contents) -> Value {
    let mut fields = envelope::as_json(&row.envelope, contents);
    let (code, detail) = row.cause.clone().unzip();
    fields.insert("route".into(), json!(row.route));
    fields.insert("cause".into(), json!(code));
    fields.insert("detail".into(), json!(detail));
    fields.insert("attempts".into(), json!(row.attempts));
    fields.insert("head".into(), json!(row.head));
    fields.insert("parked_at".into(), json!(row.parked_at.to_string()));
    Value::Object(fields)
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
