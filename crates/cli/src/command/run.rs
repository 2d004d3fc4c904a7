//! `postrider run`: the relay daemon. SIGTERM or Ctrl-C drains it; a second one ends it at once; SIGHUP reads its
//! configuration again.

use clap::Args;

use crate::{config::Source, daemon, exit::Outcome};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: Source,
}

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    daemon::run(&arguments.source)
}
