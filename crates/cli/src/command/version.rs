//! `postrider version`: which program this is, and which schema of each store it works with.

use clap::Args;
use postrider::{mysql, postgres, sqlite};
use serde_json::json;

use crate::{
    exit::{Code, Outcome},
    output::OutputArguments,
};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    let (on_sqlite, on_postgres) = (sqlite::migrations::LATEST, postgres::migrations::LATEST);
    let on_mysql = mysql::migrations::LATEST;
    arguments.output.object(
        || json!({ "version": version, "schema": { "sqlite": on_sqlite, "postgres": on_postgres, "mysql": on_mysql } }),
        || format!("postrider {version} (schema: sqlite {on_sqlite}, postgres {on_postgres}, mysql {on_mysql})\n"),
    );
    Ok(Code::Done)
}
