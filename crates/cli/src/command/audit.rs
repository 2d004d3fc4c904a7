//! `postrider audit list`: who did what, when and why. Every change by an operator is there, written with it in one
//! transaction.

use clap::Subcommand;
use postrider::{MessageId, core::admin::AuditEntry};
use serde_json::json;

use super::store::StoreArguments;
use crate::{
    exit::{Code, Outcome},
    output::{OutputArguments, or_dash},
    table::Table,
};

#[derive(Subcommand)]
pub(crate) enum Action {
    /// What was done, newest first.
    List {
        /// Only what was done to this message, by name or together with others.
        #[arg(long, value_name = "MESSAGE ID")]
        id: Option<MessageId>,
        /// At most this many.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        #[command(flatten)]
        store: StoreArguments,
        #[command(flatten)]
        output: OutputArguments,
    },
}

pub(crate) async fn run(action: &Action) -> Outcome {
    let Action::List { id, limit, store, output } = action;
    let admin = store.open().await?.admin;
    let entries = match id {
        Some(id) => admin.audit_of(*id, *limit).await?,
        None => admin.audit(*limit).await?,
    };
    let as_json = |entry: &AuditEntry| {
        json!({
            "at": entry.at.to_string(), "actor": entry.actor.name, "action": entry.action,
            "subject": entry.subject, "reason": entry.actor.reason,
        })
    };
    output.list(
        || entries.iter().map(as_json).collect(),
        || {
            let mut table = Table::new(&["AT", "ACTOR", "ACTION", "SUBJECT", "REASON"]);
            for entry in &entries {
                table.row([
                    entry.at.to_string(),
                    entry.actor.name.clone(),
                    entry.action.clone(),
                    entry.in_short().to_owned(),
                    or_dash(entry.actor.reason.as_ref()),
                ]);
            }
            table.to_string()
        },
    );
    Ok(Code::Done)
}
