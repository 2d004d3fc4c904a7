//! `postrider config`: whether a configuration is right, what it comes down to, and what may be said in one.

use clap::Subcommand;
use serde_json::json;

use crate::{
    config::{Loaded, Source, schema, show},
    exit::{Code, Outcome},
    output::{OutputArguments, print},
};

#[derive(Subcommand)]
pub(crate) enum Action {
    /// Reads everything and tells every problem with its place; looks secrets up, connects to nothing.
    Check {
        #[command(flatten)]
        source: Source,
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Prints what holds, with the origin of every value and without secrets.
    Show {
        #[command(flatten)]
        source: Source,
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Prints the JSON Schema of the file, for editors.
    Schema,
}

pub(crate) fn run(action: &Action) -> Outcome {
    match action {
        Action::Check { source, output } => check(source, *output),
        Action::Show { source, output } => {
            let Loaded { shown, .. } = source.load()?;
            let file = source.file();
            output.object(|| show::as_object(&file, &shown), || show::as_text(&file, &shown));
            Ok(Code::Done)
        }
        Action::Schema => {
            print(format_args!("{:#}\n", schema::schema()));
            Ok(Code::Done)
        }
    }
}

fn check(source: &Source, output: OutputArguments) -> Outcome {
    let Loaded { config, warnings, .. } = source.load()?;
    for warning in &warnings {
        eprintln!("warning: {warning}");
    }
    // The rest of a store's URL may hold a password.
    let scheme = |url: &str| url.split(':').next().unwrap_or(url).to_owned();
    let mut stores = Vec::new();
    for store in &config.stores {
        stores.push(scheme(&store.url.get()?));
    }
    let names: Vec<&str> = config.routes.iter().map(|route| route.name.as_str()).collect();
    let file = source.file();
    output.object(
        || json!({ "file": file, "fine": true, "stores": stores, "routes": names, "warnings": warnings }),
        || format!("{file} is fine: store {}, routes {}\n", stores.join(", "), names.join(", ")),
    );
    Ok(Code::Done)
}
