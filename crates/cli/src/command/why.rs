//! `postrider why`: the exact reason why a message waits, route by route, and what to do about it.

use clap::Args;
use postrider::{
    MessageId,
    diagnosis::{self, Finding},
};
use serde_json::json;

use super::store::StoreArguments;
use crate::{
    exit::{Code, Outcome},
    output::OutputArguments,
    table::printable,
};

#[derive(Args)]
pub(crate) struct Arguments {
    /// The message.
    #[arg(value_name = "MESSAGE ID")]
    id: MessageId,
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Exit code 1 as long as something waits, nothing is known, or it may have been given up: a script can ask until it is
/// delivered.
pub(crate) async fn run(arguments: &Arguments) -> Outcome {
    let store = arguments.store.open().await?;
    let findings = diagnosis::why(&*store.admin, arguments.id).await?;
    arguments
        .output
        .list(|| findings.iter().map(|finding| json!(finding)).collect(), || findings.iter().map(in_lines).collect());
    let done = findings.iter().all(|finding| diagnosis::DONE.contains(&finding.code));
    Ok(if done { Code::Done } else { Code::Problem })
}

pub(super) fn in_lines(finding: &Finding) -> String {
    let fix = finding.fix.as_ref().map_or_else(String::new, |fix| format!("  -> {}\n", printable(fix)));
    format!("{} [{}]\n{fix}", printable(&finding.to_string()), finding.code)
}
