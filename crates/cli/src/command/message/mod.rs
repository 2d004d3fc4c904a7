//! `postrider message`: what is in the log, where one message is, and what has happened to it.

mod get;
mod list;
mod trace;

use clap::{Args, Subcommand};
use postrider::MessageId;

pub(crate) use self::list::Chosen;
use super::store::StoreArguments;
use crate::{
    exit::{Code, Failure, Outcome},
    output::OutputArguments,
};

#[derive(Subcommand)]
pub(crate) enum Action {
    /// One message: its envelope, and where it is on every route.
    Get(One),
    /// Messages that are still in the log, newest first.
    List(list::Arguments),
    /// What has happened to one message, in order of time. Delivery leaves no trace of its own but the cursor's place.
    Trace(One),
}

#[derive(Args)]
pub(crate) struct One {
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

pub(crate) async fn run(action: &Action) -> Outcome {
    match action {
        Action::Get(one) => get::run(one).await,
        Action::List(arguments) => list::run(arguments).await,
        Action::Trace(one) => trace::run(one).await,
    }
}

fn unknown(id: MessageId) -> Failure {
    Failure::new(
        Code::Problem,
        format!(
            "message {id} is not in the store: its transaction is open or was rolled back, or retention has removed it"
        ),
    )
}
