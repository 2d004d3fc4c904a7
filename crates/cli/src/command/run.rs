//! `postrider run`: the relay daemon. SIGTERM or Ctrl-C drains it; a second one ends it at once.

use std::path::PathBuf;

use clap::Args;

use crate::{config::Config, daemon, exit::Outcome};

#[derive(Args)]
pub(crate) struct Arguments {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = "postrider.toml")]
    config: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    daemon::run(&Config::load(&arguments.config)?)
}
