//! `postrider config check`: whether a file is right, without opening anything.

use std::path::PathBuf;

use clap::Subcommand;

use crate::{
    config::Config,
    exit::{Code, Outcome},
};

#[derive(Subcommand)]
pub(crate) enum Action {
    /// Reads the file and tells every problem with its line; opens nothing.
    Check {
        /// The configuration file.
        #[arg(long, value_name = "FILE", default_value = "postrider.toml")]
        config: PathBuf,
    },
}

pub(crate) fn run(action: &Action) -> Outcome {
    let Action::Check { config: path } = action;
    let config = Config::load(path)?;
    let names: Vec<&str> = config.routes.iter().map(|route| route.name.as_str()).collect();
    println!("{} is fine: store {}, routes {}", path.display(), scheme(&config.store.url), names.join(", "));
    Ok(Code::Done)
}

/// The rest of a store's URL may hold a password.
fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or(url)
}
