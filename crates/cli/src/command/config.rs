//! `postrider config`: whether a configuration is right, what it comes down to, and what may be said in one.

use clap::{Subcommand, ValueEnum};

use crate::{
    config::{Loaded, Source, schema, show},
    exit::{Code, Outcome},
};

#[derive(Subcommand)]
pub(crate) enum Action {
    /// Reads everything and tells every problem with its place; looks secrets up, connects to nothing.
    Check {
        #[command(flatten)]
        source: Source,
    },
    /// Prints what holds, with the origin of every value and without secrets.
    Show {
        #[command(flatten)]
        source: Source,
        /// As TOML with comments, or as one JSON object.
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
    },
    /// Prints the JSON Schema of the file, for editors.
    Schema,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}

pub(crate) fn run(action: &Action) -> Outcome {
    match action {
        Action::Check { source } => check(source),
        Action::Show { source, output } => {
            let Loaded { shown, .. } = source.load()?;
            match output {
                Output::Text => print!("{}", show::as_text(&source.file(), &shown)),
                Output::Json => println!("{}", show::as_object(&source.file(), &shown)),
            }
            Ok(Code::Done)
        }
        Action::Schema => {
            println!("{:#}", schema::schema());
            Ok(Code::Done)
        }
    }
}

fn check(source: &Source) -> Outcome {
    let Loaded { config, warnings, .. } = source.load()?;
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
    // The rest of a store's URL may hold a password.
    let scheme = |url: &str| url.split(':').next().unwrap_or(url).to_owned();
    let stores: Vec<String> = config.stores.iter().map(|store| scheme(&store.url)).collect();
    let names: Vec<&str> = config.routes.iter().map(|route| route.name.as_str()).collect();
    println!("{} is fine: store {}, routes {}", source.file(), stores.join(", "), names.join(", "));
    Ok(Code::Done)
}
